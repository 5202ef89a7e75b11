"""Prints versions, devices, cores and which optional parts are available."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import shutil

from trainers.images import cifar10

_PACKAGES = ("tensorflow", "keras", "tensorflow-probability", "tf-keras", "tensorflow-datasets", "tf-agents", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command takes no arguments."""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _extra(module: str, extra: str) -> str:
    if importlib.util.find_spec(module):
        return "available"
    return f"missing: pip install 'tf-ensembles[{extra}]'"


def _cifar10() -> str:
    folder = cifar10.default_data_dir()
    return f"prepared in {folder}" if cifar10.is_prepared(folder) else f"not prepared (would go to {folder})"


def run(args: argparse.Namespace) -> None:
    """Prints the facts, one a line."""
    import tensorflow as tf

    from tf_ensembles.version import __version__

    devices = ", ".join(device.name.removeprefix("/physical_device:") for device in tf.config.list_physical_devices())
    npm = shutil.which("npm")
    facts = {
        "tf-ensembles": __version__,
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
        "devices": devices,
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "bandit": _extra("tf_agents", "bandit"),
        "ray engine": _extra("ray", "ray"),
        "CIFAR10 data": _cifar10(),
        "npm": npm if npm else "missing: only needed to prepare CIFAR10 where the TFDS host cannot be reached",
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
