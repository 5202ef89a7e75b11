"""What decides the last bits of a member beside its configuration: by which kernels a process computes.

The same member computed by oneDNN or by XLA, on one thread or two, differs by rounding, which training amplifies. So a
member remembers the setting of its first step and goes on under no other; what is finished stays finished.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import tensorflow as tf

from tf_ensembles import machine
from tf_ensembles.trainers import onednn


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a process computes a member."""

    device: str  # CPU, GPU or TPU
    replicas: int
    onednn: bool | None  # None where it makes no difference: not on a CPU
    threads: int | None  # of one operation, likewise
    xla: bool
    fused_batch_norm: bool
    dtype: str

    def to_json(self) -> str:
        """Returns the setting as a line of JSON."""
        return json.dumps(dataclasses.asdict(self))

    def against(self, other: Setting) -> str:
        """Returns what of this setting is not so in another, in words; "" where they are alike."""
        names = [field.name for field in dataclasses.fields(self)]
        differing = [name for name in names if getattr(self, name) != getattr(other, name)]
        return ", ".join(f"{name}={_word(getattr(self, name))}" for name in differing)

    def way_back(self, other: Setting) -> str:
        """Returns how a process with another setting can be started with this one."""
        steps = []
        if self.onednn is not None and self.onednn != other.onednn:
            steps.append(f"{onednn.VARIABLE}={int(self.onednn)}")
        if self.threads is not None and self.threads != other.threads:
            steps.append(f"{machine.THREADS}={self.threads}")
        if (self.device, self.replicas) != (other.device, other.replicas):
            steps.append(f"{self.replicas} {self.device}{'s' if self.replicas > 1 else ''} (--strategy)")
        return " and ".join(steps)


def from_json(text: str) -> Setting:
    """Returns the setting that `to_json` wrote."""
    return Setting(**json.loads(text))


def make_setting(strategy: tf.distribute.Strategy, *, xla: bool, dtype: str) -> Setting:
    """Returns the setting of this process."""
    device, replicas = device_of(strategy), int(strategy.num_replicas_in_sync)
    on_cpu = device == "CPU"
    return Setting(
        device,
        replicas,
        onednn.is_on() if on_cpu else None,
        machine.intra_op_threads() if on_cpu else None,
        xla,
        replicas == 1,  # Replicas share their statistics, which the kernel cannot.
        dtype,
    )


def device_of(strategy: tf.distribute.Strategy) -> str:
    """Returns the kind of device that a strategy computes on."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return "TPU"
    if isinstance(strategy, tf.distribute.OneDeviceStrategy):
        return str(tf.DeviceSpec.from_string(strategy.extended.worker_devices[0]).device_type)
    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"


def _word(value: Any) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
