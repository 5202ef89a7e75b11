"""How results look: one palette, one way to write numbers, one way to save a picture.

Colors stay apart for color-blind readers; markers and dashes tell series apart without color. The report's style sheet
takes its colors from here.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

# By number: on a light page, and on a dark one.
LIGHT = ("#68707c", "#00795c", "#c25100", "#0068a6", "#99377f", "#806600")
DARK = ("#a3acb9", "#4fcfa6", "#ff9d57", "#6cb8f5", "#e295cd", "#e0c65a")
MARKERS = ("o", "s", "^", "o", "D", "v")
DASHES = ((2, 3), (7, 3), (), (), (5, 2, 1, 2), (1, 2))

# Agents have the same color in every figure; other series take the numbers in turn.
_NUMBERS = {
    "mlp": 0,
    "vgg": 0,
    "ensemble-n": 1,
    "ensemble-p": 2,
    "ensemble-bp": 3,
    "ensemble-p-weighted": 4,
    "ensemble-bp(0.5)": 5,
    "ensemble-bp(0.75)": 4,
    "ensemble-bp(0.9)": 3,
    "epinet": 4,
    "MC dropout": 5,
    "lower bound of theorem 1": 0,
    "predicted": 0,
    "gain of bp over p": 3,
}


def color_number(name: str, others: Sequence[str] = ()) -> int:
    """Returns the number of a series' color, among the other series of its panel."""
    if name in _NUMBERS:
        return _NUMBERS[name]
    return (list(others).index(name) + 1) % len(LIGHT) if name in others else 0


def style_sheet() -> str:
    """Returns the palette as CSS variables `--c0`, `--c1`, ... for light and dark pages."""
    light, dark = (
        "".join(f"--c{number}: {color}; " for number, color in enumerate(colors)) for colors in (LIGHT, DARK)
    )
    classes = "".join(f".c{number} {{ --c: var(--c{number}); }} " for number in range(len(LIGHT)))
    return (
        f":root {{ {light}}}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark}}} }}\n"
        f":root[data-theme=dark] {{ {dark}}}\n{classes}\n"
    )


def number(value: float) -> str:
    """Returns a number as short text."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size and size < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3g}"


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
