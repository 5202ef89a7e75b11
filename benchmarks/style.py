"""How results look: the palette of `tf_ensembles.pictures`, numbers in lists, one way to save a Matplotlib figure."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

from tf_ensembles.pictures import DARK, DASHES, LIGHT, MARKERS, color_number, number, style_sheet

__all__ = ["DARK", "DASHES", "LIGHT", "MARKERS", "color_number", "listing", "number", "save", "style_sheet"]


def listing(values: Iterable[Any]) -> str:
    """Returns different numbers as text, in order."""
    return ", ".join(f"{float(value):,g}" if float(value) < 1e6 else f"{value:g}" for value in sorted(set(values)))


def save(canvas: Any, path: pathlib.Path) -> list[pathlib.Path]:
    """Writes a Matplotlib figure as PNG and SVG, and returns the paths; the same figure gives the same bytes."""
    import matplotlib as mpl

    from tf_ensembles import files

    written = []
    for suffix, options in ((".png", {"dpi": 130}), (".svg", {"metadata": {"Date": None}})):
        written.append(path.with_suffix(suffix))
        # Ids within an SVG are made from this, or else at random.
        with files.atomic_path(written[-1]) as temporary, mpl.rc_context({"svg.hashsalt": path.stem}):
            canvas.savefig(temporary, **options)
    return written
