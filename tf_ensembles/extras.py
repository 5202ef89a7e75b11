"""Optional packages: which extra of ours brings each, and the one line that says so where one is missing.

The core needs TensorFlow, Keras, NumPy and tqdm. All else is asked for where it is used:

    extras.require("matplotlib", "A plot")
    from matplotlib import figure
"""

from __future__ import annotations

import importlib.util
import sys

# From a package, as it is imported, to the extra that installs it. `setup.cfg` says the same; a test compares them.
EXTRA_OF = {
    "matplotlib": "plot",
    "pandas": "plot",
    "scipy": "plot",
    "tensorflow_datasets": "data",
    "tensorflow_probability": "linear",
    "tf_keras": "linear",
    "tf_agents": "bandit",
    "ray": "ray",
    "fsspec": "cloud",
    "s3fs": "cloud",
    "gcsfs": "cloud",
    "adlfs": "cloud",
    "shtab": "completion",
    "mkdocs": "docs",
    "sklearn": "dev",
    "tensorboard": "dev",
}
# TF-Agents pins packages that were never built for a later Python.
LAST_PYTHON = {"tf_agents": (3, 11)}


def is_available(package: str) -> bool:
    """Whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def how_to_install(package: str) -> str:
    """Returns the command that brings an optional package, and the Python that it needs where that is not this one."""
    command = f"pip install 'tf-ensembles[{EXTRA_OF[package]}]'"
    last = LAST_PYTHON.get(package)
    if last is None or sys.version_info[:2] <= last:
        return command
    return f"{command} on CPython {last[0]}.{last[1]} (this is {sys.version_info[0]}.{sys.version_info[1]})"


def missing(package: str, user: str | None = None) -> str:
    """Returns the line for a package that is missing; `user` is what needs it, such as "A plot"."""
    reason = f"{user} needs {package}" if user else f"{package} is missing"
    return f"{reason}. Install it with: {how_to_install(package)}"


def require(package: str, user: str | None = None) -> None:
    """Raises an ImportError that names the extra, unless the package is there."""
    if not is_available(package):
        raise ImportError(missing(package, user), name=package)


def explain(error: BaseException) -> str:
    """Returns an error's text, or which extra to install where it is about an optional package."""
    package = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package in EXTRA_OF and not is_available(package):
        return missing(package)
    return str(error)
