"""`tf.distribute` strategies by name: on which devices a member is trained.

    auto         a TPU if $TPU_NAME names one, the workers of $TF_CONFIG, several GPUs, else one device
    cpu          the first CPU
    mirrored     all GPUs of this machine, or all logical CPUs where it has none
    multiworker  several processes or machines, as $TF_CONFIG says; start the same command on each
    tpu          a TPU or a slice of a pod, by name

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import enum
import json
import os
from typing import Any


class StrategyName(enum.Enum):
    """Which devices to train on."""

    AUTO = "auto"
    CPU = "cpu"
    MIRRORED = "mirrored"
    MULTIWORKER = "multiworker"
    TPU = "tpu"


def make_strategy(name: StrategyName | str = StrategyName.AUTO, tpu: str | None = None) -> Any:
    """Returns a `tf.distribute.Strategy`. Call it before anything else makes TensorFlow choose its devices.

    Args:
        name: which; see the module.
        tpu: the TPU's name, its address, or `"local"` on a TPU machine; for `auto` and `tpu` only.
    """
    try:
        kind = StrategyName(name)
    except ValueError:
        options = ", ".join(option.value for option in StrategyName)
        raise ValueError(f"Expected a strategy of {options}. Received: {name!r}") from None
    if tpu is not None and kind not in (StrategyName.AUTO, StrategyName.TPU):
        raise ValueError(f"Expected a TPU with strategy auto or tpu only. Received: {tpu!r} with {kind.value}")
    tpu = tpu or os.environ.get("TPU_NAME") or None
    if kind is StrategyName.AUTO:
        kind = _choose(tpu)
    import tensorflow as tf

    if kind is StrategyName.TPU:
        return _make_tpu(tpu)
    if kind is StrategyName.MULTIWORKER:
        _check_cluster()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind is StrategyName.MIRRORED:
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        return tf.distribute.MirroredStrategy(gpus or [d.name for d in tf.config.list_logical_devices("CPU")])
    if kind is StrategyName.CPU:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    return tf.distribute.get_strategy()


def has_several_processes(strategy: Any) -> bool:
    """Whether other processes take the same steps, and so must train the same member."""
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def describe(strategy: Any, global_batch: int) -> str:
    """Returns a line that tells replicas and both batch sizes."""
    replicas = strategy.num_replicas_in_sync
    if global_batch % replicas:
        raise ValueError(
            f"Expected a global batch that {replicas} replicas can share equally. Received: {global_batch} examples"
        )
    devices = f"{replicas} replica{'s' if replicas > 1 else ''}"
    return f"{devices}, a batch of {global_batch} examples in all, {global_batch // replicas} per replica"


def _choose(tpu: str | None) -> StrategyName:
    if tpu is not None:
        return StrategyName.TPU
    if _workers():
        return StrategyName.MULTIWORKER
    import tensorflow as tf

    # One device needs no strategy: AUTO stands for TensorFlow's default.
    return StrategyName.MIRRORED if len(tf.config.list_physical_devices("GPU")) > 1 else StrategyName.AUTO


def _workers() -> list[str]:
    """The addresses that $TF_CONFIG lists."""
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return []
    try:
        cluster = json.loads(text).get("cluster", {})
        return [address for role in ("chief", "worker") for address in cluster.get(role, [])]
    except (ValueError, AttributeError):
        raise ValueError(f"Expected JSON with a cluster in $TF_CONFIG. Received: {text!r}") from None


def _check_cluster() -> None:
    if not _workers():
        raise ValueError(
            'Expected the workers in $TF_CONFIG: {"cluster": {"worker": ["host1:port", "host2:port"]}, '
            '"task": {"type": "worker", "index": 0}}, with its own index on each. Received: none'
        )


def _make_tpu(tpu: str | None) -> Any:
    if tpu is None:
        raise ValueError(
            "Expected a TPU: give --tpu NAME (its name, grpc:// address, or 'local' on a TPU machine), or $TPU_NAME. "
            "Received: neither"
        )
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except Exception as error:  # TensorFlow raises many kinds here; all mean that it cannot be used.
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"Expected to reach the TPU {tpu!r}. Received: {first_line}") from error
