"""Finds the figures: every module below this folder that has a `FIGURE`, in the order of the paper.

A new figure is a new module: nothing else has to name it. Importing this imports no TensorFlow and no pandas.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable

from tf_ensembles.benchmarks import figures as package
from tf_ensembles.benchmarks.figures.base import Figure


@functools.cache
def figures() -> tuple[Figure, ...]:
    """Returns all figures, in the order of the paper."""
    found = []
    for info in pkgutil.walk_packages(package.__path__, prefix=f"{package.__name__}."):
        if info.name.endswith(".compute"):
            continue  # What runs compute imports TensorFlow.
        module = importlib.import_module(info.name)
        if isinstance(figure := getattr(module, "FIGURE", None), Figure):
            found.append(figure)
    for key in ("id", "name"):
        names = [getattr(figure, key) for figure in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"Expected a different {key} for every figure. Received twice: {', '.join(twice)}")
    return tuple(sorted(found, key=lambda figure: figure.place))


def figure(name: str) -> Figure:
    """Returns a figure by its id, such as `F2`, or its name, such as `figure_2`."""
    for one in figures():
        if name in (one.id, one.name):
            return one
    raise ValueError(f"Expected one of {', '.join(one.name for one in figures())}. Received: {name!r}")


def select(names: Iterable[str]) -> list[Figure]:
    """Returns figures by ids, names or parts (such as `testbed`), each once, in the order of the paper."""
    wanted = set()
    for name in names:
        found = [one for one in figures() if name.lower() in (one.id.lower(), one.name.lower(), one.part.lower())]
        if not found:
            parts = dict.fromkeys(one.part for one in figures())
            known = ", ".join([*(one.id for one in figures()), *parts])
            raise ValueError(f"Expected figures of {known}. Received: {name!r}")
        wanted.update(found)
    return [one for one in figures() if one in wanted]
