"""Prints versions, devices, cores and which optional parts are available."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil

from tf_ensembles import machine
from trainers import onednn
from trainers.images import cifar10

_PACKAGES = ("tensorflow", "keras", "tensorflow-probability", "tf-keras", "tensorflow-datasets", "tf-agents", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the command takes no arguments."""


def _extra(module: str, extra: str) -> str:
    if importlib.util.find_spec(module):
        return "available"
    return f"missing: pip install 'tf-ensembles[{extra}]'"


def _cifar10() -> str:
    folder = cifar10.default_data_dir()
    return f"prepared in {folder}" if cifar10.is_prepared(folder) else f"not prepared (would go to {folder})"


def run(args: argparse.Namespace) -> None:
    """Prints the facts, one a line."""
    from tf_ensembles.version import __version__

    npm = shutil.which("npm")
    facts = {
        "tf-ensembles": __version__,
        "python": platform.python_version(),
        **{package: version or "not installed" for package, version in machine.versions(_PACKAGES).items()},
        "devices": ", ".join(machine.devices()),
        "cores": f"{machine.usable_cores()} usable of {os.cpu_count()}",
        "oneDNN": onednn.explain(),
        "bandit": _extra("tf_agents", "bandit"),
        "ray engine": _extra("ray", "ray"),
        "CIFAR10 data": _cifar10(),
        "npm": npm if npm else "missing: only needed to prepare CIFAR10 where the TFDS host cannot be reached",
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
