"""Arrays from an archive, or one line that says what it lacks."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from tf_ensembles import files


def read(path: pathlib.Path, needed: Sequence[str], more: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Returns the arrays of an archive by name; nothing in it is executed.

    Args:
        path: of the .npz file.
        needed: arrays that it must have, as many examples each.
        more: arrays that it may have.
    """
    if not path.exists():
        raise ValueError(f"Expected an .npz file with {', '.join(needed)}. Received: {path}, which does not exist")
    arrays = files.load_arrays(path)
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise ValueError(
            f"Expected {', '.join(needed)} in {path}. Received: no {', '.join(missing)}, but {sorted(arrays)}"
        )
    for name in needed:
        if not arrays[name].ndim or not len(arrays[name]):
            raise ValueError(f"Expected examples in {name} of {path}. Received: shape {arrays[name].shape}")
        if arrays[name].dtype.kind not in "biuf":
            raise ValueError(f"Expected numbers in {name} of {path}. Received: {arrays[name].dtype}")
    return {name: arrays[name] for name in (*needed, *more) if name in arrays}
