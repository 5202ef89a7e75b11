"""Former places of modules and names: they work for one more release, with a warning that names the new place.

The tables here are the only place that knows former spellings of modules, so that removing them in a later release is
removing this file. Nothing is imported until somebody asks for a former name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Former modules that the README or the documentation showed, and where they are now.
MODULES = {
    "tf_ensembles.advisor": "tf_ensembles.advice.advise",
    "tf_ensembles.callbacks": "tf_ensembles.ensemble.callbacks",
    "tf_ensembles.example_ids": "tf_ensembles.ensemble.data",
    "tf_ensembles.export": "tf_ensembles.ensemble.export",
    "tf_ensembles.streaming_metrics": "tf_ensembles.metrics.streaming",
    "trainers.cifar10_runs": "trainers.images.runs",
    "trainers.cli": "benchmarks.commands.main",
    "trainers.compiled": "trainers.mlp.train",
    "trainers.sweep": "trainers.sweeps.sweep",
    "trainers.sweep_runs": "trainers.sweeps.runs",
    "trainers.sweep_store": "trainers.sweeps.store",
    "bandit_env.agent": "bandit_env.agents.linear",
    "bandit_env.driver": "bandit_env.agents.driver",
    "bandit_env.environment": "bandit_env.agents.environment",
    "bandit_env.metrics": "bandit_env.agents.metrics",
    "bandit_env.neural": "bandit_env.agents.neural",
    "bandit_env.parameters": "bandit_env.thompson",
    "bandit_env.tasks": "bandit_env.agents.tasks",
    **{f"benchmarks.figure_{number}": f"benchmarks.figures.testbed.figure_{number}" for number in (1, 2, 7, 9)},
    **{f"benchmarks.figure_{number}": f"benchmarks.figures.cifar10.figure_{number}" for number in (3, 4, 5, 10, 11)},
    "benchmarks.bandit_examples": "benchmarks.studies.bandit.examples",
    "benchmarks.bandit_speed": "benchmarks.speed.bandit",
    "benchmarks.cifar10_prior_scale": "benchmarks.studies.cifar10_prior_scale",
    "benchmarks.cifar10_settings": "benchmarks.studies.cifar10_settings",
    "benchmarks.linear_speed": "benchmarks.speed.linear",
    "benchmarks.testbed_reference": "benchmarks.studies.testbed_reference",
    "benchmarks.cifar10_speed": "benchmarks.speed.cifar10",
    "benchmarks.fit_speed": "benchmarks.speed.fit",
    "benchmarks.sweep_speed": "benchmarks.speed.sweep",
    "benchmarks.testbed_speed": "benchmarks.speed.testbed",
}


def warn(former: str, now: str, stacklevel: int = 3) -> None:
    """Says that a name has moved."""
    message = f"{former} is now {now}; the former name goes away in the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def names(module: str, former: Mapping[str, str]) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` for names that it had under another spelling.

    Args:
        module: its `__name__`.
        former: from a former name to the present one, in the same module.
    """

    def find(name: str) -> Any:
        if name not in former:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn(f"{module}.{name}", f"{module}.{former[name]}")
        return getattr(importlib.import_module(module), former[name])

    return find


def keywords(**former: str) -> Callable[[_Function], _Function]:
    """Returns a decorator that lets keyword arguments be given under former names.

    Args:
        **former: from a former name to the present one.
    """

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for old in former.keys() & kwargs.keys():
                warn(f"{function.__qualname__}'s {old}", former[old])
                if former[old] in kwargs:
                    raise TypeError(f"Expected {former[old]} or its former name {old}. Received: both")
                kwargs[former[old]] = kwargs.pop(old)
            return function(*args, **kwargs)

        return cast(_Function, call)

    return decorate


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules at their former places, which exist as such no longer."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in MODULES:
            return None
        now = importlib.util.find_spec(MODULES[fullname])
        # With a file's name, so that `python -m` has something to call the program.
        return importlib.machinery.ModuleSpec(fullname, self, origin=now.origin if now else None)

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module at its new place in the place of the empty one that was made for its former name."""
        name = module.__name__
        warn(name, MODULES[name], stacklevel=3)
        sys.modules[name] = importlib.import_module(MODULES[name])

    def get_code(self, fullname: str) -> Any:
        """Returns the code of the module at its new place, for `python -m`."""
        warn(fullname, MODULES[fullname])
        spec = importlib.util.find_spec(MODULES[fullname])
        assert spec is not None
        assert isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(MODULES[fullname])


def install() -> None:
    """Lets former modules be found. Every package of ours calls it; the first call counts."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
