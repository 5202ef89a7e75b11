"""Kinds of runs: the names that stored results are found by, and the functions that compute them today.

    TRAIN = kinds.register("cifar10-member", "trainers.images.runs:train_member")

A name is written to disk and hashed, so it never changes; the function is where the code happens to be, so it may move.
A function of a user's own needs no registration: `"my_module:my_function"` is a kind by itself.
"""

from __future__ import annotations

import re

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[a-z][a-z0-9-]*")

_functions: dict[str, str] = {}
_progress: dict[str, str] = {}


def register(name: str, function: str, progress: str = "") -> str:
    """Names a kind of run, and returns the name.

    Args:
        name: what is stored, such as `"testbed"`: small letters, digits and hyphens.
        function: `"module:function"`, which computes such runs.
        progress: `"module:function"`, called as `function` is, which tells how far such a run has come: a number that
            grows. A run that has come farther when its worker dies is not to blame. By default nothing is known.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"Expected a name of small letters, digits and hyphens. Received: {name!r}")
    if not _FUNCTION.fullmatch(function):
        raise ValueError(f"Expected a function such as 'package.module:function'. Received: {function!r}")
    if progress:
        _progress[name] = progress
    known = _functions.setdefault(name, function)
    if known != function:
        raise ValueError(f"Expected one function for runs of kind {name!r}, which has {known}. Received: {function}")
    return name


def progress_of(kind: str) -> str:
    """Returns the `"module:function"` that tells how far a run of a kind has come; "" where there is none."""
    return _progress.get(kind, "")


def function_of(kind: str) -> str:
    """Returns the `"module:function"` that computes runs of a kind."""
    if kind in _functions:
        return _functions[kind]
    if _FUNCTION.fullmatch(kind):
        return kind
    raise ValueError(
        f"Expected a function such as 'package.module:function', or a kind of run among {sorted(_functions)}, which "
        f"the module that registers it adds when it is imported. Received: {kind!r}"
    )
