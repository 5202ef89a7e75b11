"""Packages whose names are loaded on first use, so that importing them costs nothing.

    if TYPE_CHECKING:
        from package.module import Name as Name

    __getattr__, __dir__, __all__ = lazy.attach(__name__, {"Name": "package.module", "module": "package.module"})

Editors, `dir` and type checkers see all names: the last by the block for them, which a test compares with the table.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def attach(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` of a package.

    Args:
        package: its `__name__`.
        homes: from each public name to the module that has it; a name that is a module of its own has itself.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(homes[name])
        itself = homes[name].rpartition(".")[2] == name and not hasattr(module, name)
        value = module if itself else getattr(module, name)
        setattr(sys.modules[package], name, value)  # The next use finds it without coming here.
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, listing, list(homes)


class _Module:
    """Stands for a module that is imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def module(name: str) -> Any:
    """Returns a stand-in for a module that is slow to import, for modules of which only some functions need it."""
    return _Module(name)
