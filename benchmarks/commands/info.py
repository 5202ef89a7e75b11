"""Prints versions, devices, threads, optional parts and data sets; with --check, tests the installation."""

from __future__ import annotations

import argparse
import os
import platform
import shutil

from tf_ensembles import extras, machine
from tf_ensembles.benchmarks.commands import options
from tf_ensembles.trainers import onednn
from tf_ensembles.trainers.images import cifar10

_PACKAGES = (
    "tensorflow",
    "keras",
    "numpy",
    "pandas",
    "scipy",
    "matplotlib",
    "tensorflow-probability",
    "tf-keras",
    "tensorflow-datasets",
    "tf-agents",
    "ray",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = options.examples("info", "info --check", "info --json")
    parser.add_argument(
        "--check", action="store_true", help="test the installation: fit, save, export, bandit; about 20 seconds"
    )


def run(args: argparse.Namespace) -> int:
    """Prints the facts, one a line, and with `--check` what works."""
    from tf_ensembles.version import __version__

    npm = shutil.which("npm")
    facts = {
        "tf-ensembles": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()}, {platform.machine()})",
        **{package: version or _not_installed(package) for package, version in machine.versions(_PACKAGES).items()},
        "devices": ", ".join(machine.devices()),
        "cores": f"{machine.usable_cores()} usable of {os.cpu_count()}",
        "threads": f"{machine.intra_op_threads()} within an operation",
        "oneDNN": onednn.explain(),
        "XLA": _xla(),
        "bandit": f"compiled rollouts; TF-Agents {_state('tf_agents')}",
        "ray engine": _state("ray"),
        "CIFAR10 data": _cifar10(),
        "npm": npm if npm else "missing: only needed to prepare CIFAR10 where the TFDS host cannot be reached",
    }
    width = max(map(len, facts))
    lines = "\n".join(f"{name:<{width}}  {value}" for name, value in facts.items())
    if not args.check:
        options.answer(args, facts, lines)
        return 0
    from tf_ensembles.benchmarks.commands import self_test

    print(f"{lines}\n")
    code = self_test.run()
    options.answer(args, facts | {"works": not code})
    return code


def _not_installed(package: str) -> str:
    module = package.replace("-", "_")
    return f"not installed: {extras.how_to_install(module)}" if module in extras.EXTRA_OF else "not installed"


def _state(package: str) -> str:
    return "available" if extras.is_available(package) else f"missing: {extras.how_to_install(package)}"


def _xla() -> str:
    """Whether XLA compiles here."""
    import tensorflow as tf

    try:
        value = tf.function(lambda x: x + 1.0, jit_compile=True)(tf.zeros([]))
    except (tf.errors.OpError, ValueError) as error:
        return f"does not compile: {' '.join(str(error).split())[:100]}"
    return f"compiles for {value.device.rpartition('device:')[2] or 'CPU:0'}"


def _cifar10() -> str:
    folder = cifar10.default_data_dir()
    return f"prepared in {folder}" if cifar10.is_prepared(folder) else f"not prepared (would go to {folder})"
