"""Lets the names that a wheel has work in a checkout, too.

A wheel has `trainers`, `bandit_env` and `benchmarks` within this package, where they collide with nobody's. In a
checkout they lie beside it. There, `tf_ensembles.trainers` and all below it are the very modules of `trainers`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_HOME = pathlib.Path(__file__).parent
_PREFIX = f"{__name__.partition('.')[0]}."
NAMES = ("trainers", "bandit_env", "benchmarks")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `tf_ensembles.trainers.agents` as `trainers.agents`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        name = fullname.removeprefix(_PREFIX)
        if name == fullname or name.partition(".")[0] not in NAMES:
            return None
        found = importlib.util.find_spec(name)
        if found is None:
            return None
        places = found.submodule_search_locations
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=found.origin, is_package=places is not None)
        spec.submodule_search_locations = places
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Puts the module itself in the place of the empty one that was made for its other name."""
        name = module.__name__
        sys.modules[name] = importlib.import_module(name.removeprefix(_PREFIX))

    def get_code(self, fullname: str) -> Any:
        """Returns the code of the module, for `python -m`."""
        spec = importlib.util.find_spec(fullname.removeprefix(_PREFIX))
        assert spec is not None
        assert isinstance(spec.loader, importlib.abc.InspectLoader)
        return spec.loader.get_code(fullname.removeprefix(_PREFIX))


def install() -> None:
    """Lets those names be found, where they are not within this package anyway. The first call counts."""
    if (_HOME / NAMES[0]).is_dir() or not (_HOME.parent / NAMES[0] / "__init__.py").is_file():
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())  # Before the one that would load the same files a second time.
