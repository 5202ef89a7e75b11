"""What this machine is: cores, processor, memory, packages and devices, each found in one way."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Iterable

# TensorFlow reads from it how many threads to give to one operation.
THREADS = "TF_NUM_INTRAOP_THREADS"


def usable_cores() -> int:
    """Returns the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """Returns the processor's model, or what the system says of it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "unknown processor"


def memory_bytes() -> int | None:
    """Returns the size of the memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def memory() -> str:
    """Returns the size of the memory, such as "16 GiB"."""
    size = memory_bytes()
    return "unknown memory" if size is None else f"{size / 2**30:.0f} GiB"


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Returns the version of each package, None for those that are not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def devices() -> list[str]:
    """Returns the names of TensorFlow's devices, such as "CPU:0"; starts TensorFlow."""
    import tensorflow as tf

    return [device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices()]


def intra_op_threads() -> int:
    """Returns the number of threads of one operation, found as TensorFlow does; imports TensorFlow."""
    import tensorflow as tf

    chosen = int(tf.config.threading.get_intra_op_parallelism_threads())
    return chosen or int(os.environ.get(THREADS) or 0) or usable_cores()
