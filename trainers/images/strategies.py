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
    kind, tpu = _read(name, tpu)
    if kind is StrategyName.AUTO:
        kind = _choose(tpu)
    import tensorflow as tf

    if kind is StrategyName.TPU:
        return _make_tpu(tpu)[0]
    if kind is StrategyName.MULTIWORKER:
        _check_cluster()
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind is StrategyName.MIRRORED:
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        return tf.distribute.MirroredStrategy(gpus or [d.name for d in tf.config.list_logical_devices("CPU")])
    if kind is StrategyName.CPU:
        return tf.distribute.OneDeviceStrategy("/cpu:0")
    return tf.distribute.get_strategy()


def make_one_each(name: StrategyName | str = StrategyName.AUTO, tpu: str | None = None) -> list[Any]:
    """Returns a strategy of one device for every device: each trains members of its own, and none waits for others.

    Args:
        name: which devices: `mirrored` all GPUs, or all logical CPUs where there are none, `tpu` the cores of a TPU,
            `auto` a TPU if there is a name of one, and otherwise as `mirrored`.
        tpu: as of `make_strategy`.
    """
    kind, tpu = _read(name, tpu)
    if kind is StrategyName.MULTIWORKER or (kind is StrategyName.AUTO and not tpu and _workers()):
        raise ValueError(
            "Expected members side by side on the devices of one machine. Received: the workers of $TF_CONFIG. "
            "Start the same command without it on every machine: they share the members of one store"
        )
    import tensorflow as tf

    if kind is StrategyName.TPU or (kind is StrategyName.AUTO and tpu):
        return _make_tpu(tpu, one_each=True)
    gpus = [] if kind is StrategyName.CPU else tf.config.list_logical_devices("GPU")
    devices = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    return [
        tf.distribute.OneDeviceStrategy(device) for device in (devices[:1] if kind is StrategyName.CPU else devices)
    ]


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


def _read(name: StrategyName | str, tpu: str | None) -> tuple[StrategyName, str | None]:
    """Returns what is asked for, checked, and the TPU's name, which may come from the environment."""
    try:
        kind = StrategyName(name)
    except ValueError:
        options = ", ".join(option.value for option in StrategyName)
        raise ValueError(f"Expected a strategy of {options}. Received: {name!r}") from None
    if tpu is not None and kind not in (StrategyName.AUTO, StrategyName.TPU):
        raise ValueError(f"Expected a TPU with strategy auto or tpu only. Received: {tpu!r} with {kind.value}")
    return kind, tpu or os.environ.get("TPU_NAME") or None


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


def _make_tpu(tpu: str | None, one_each: bool = False) -> list[Any]:
    """One strategy of all cores, or one for every core."""
    if tpu is None:
        raise ValueError(
            "Expected a TPU: give --tpu NAME (its name, grpc:// address, or 'local' on a TPU machine), or $TPU_NAME. "
            "Received: neither"
        )
    import tensorflow as tf

    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        return strategies_of_cores(resolver, topology) if one_each else [tf.distribute.TPUStrategy(resolver)]
    except Exception as error:  # TensorFlow raises many kinds here; all mean that it cannot be used.
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"Expected to reach the TPU {tpu!r}. Received: {first_line}") from error


def strategies_of_cores(resolver: Any, topology: Any) -> list[Any]:
    """Returns a strategy of one replica for every core of a TPU."""
    import tensorflow as tf

    cores = topology.device_coordinates.reshape(-1, 1, 1, topology.mesh_rank)
    placed = [tf.tpu.experimental.DeviceAssignment(topology, core) for core in cores]
    return [tf.distribute.TPUStrategy(resolver, experimental_device_assignment=one) for one in placed]
