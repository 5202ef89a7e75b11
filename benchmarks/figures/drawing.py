"""Draws panels by Matplotlib, for pictures in documents. `tf_ensembles.pictures` draws the same panels for pages."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles import extras
from tf_ensembles.benchmarks import style

if TYPE_CHECKING:
    from tf_ensembles.benchmarks.figures.panels import Panel, Series

_COLUMNS = 4  # of panels in a row, at most
_MAX_TICKS = 7  # up to this many places along a logarithmic axis are named, where there is room
_LABEL_GAP, _LABEL_CHARACTER = 0.06, 0.033  # of an axis: between the middles of two names at least, and per character


def draw(panels: Sequence[Panel], title: str, caption: str) -> Any:
    """Returns a Matplotlib figure of the panels, with a title above and a caption below."""
    extras.require("matplotlib", "A picture")
    from matplotlib import figure

    columns = len(panels) if len(panels) <= _COLUMNS else 3
    rows = math.ceil(len(panels) / columns)
    width = {1: 6.5, 2: 9.5, 3: 12.0}.get(columns, 13.5)
    canvas = figure.Figure(figsize=(width, 3.6 * rows + 0.9), layout="constrained")
    axes = list(canvas.subplots(rows, columns, squeeze=False).flat)
    named: set[tuple[str, ...]] = set()
    for axis, panel in zip(axes, panels, strict=False):
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        (_bars if panel.kind == "bars" else _lines)(axis, panel)
        if panel.reference is not None:
            name = panel.reference_name if panel.kind != "bars" else None
            axis.axhline(panel.reference, color="black", ls=":", lw=1.2, label=name or None)
        if panel.diagonal:
            axis.axline((0.0, 0.0), slope=1.0, color="black", ls=":", lw=1.2)
        axis.set_ylabel(panel.y_label)
        axis.set_title(textwrap.fill(panel.title, int(90 / columns) + 18), fontsize=10)
        _legend(axis, panel, named)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    canvas.suptitle(title)
    canvas.supxlabel(textwrap.fill(caption, int(width * 15.5)), fontsize=8, x=0.01, ha="left")
    return canvas


def _legend(axis: Any, panel: Panel, named: set[tuple[str, ...]]) -> None:
    """Names the lines, once for panels of the same ones; `named` says which were."""
    names = (*(series.name for series in panel.series), panel.reference_name or "")
    if panel.kind != "bars" and (len(panel.series) > 1 or panel.reference_name) and names not in named:
        axis.legend(frameon=False, fontsize=8)
        named.add(names)


def _bars(axis: Any, panel: Panel) -> None:
    names = [series.name for series in panel.series]
    largest = max(abs(series.points[0].y) for series in panel.series)
    digits = 3 if largest >= 0.1 else 4  # The same for all bars: one near 0 is read beside the others.
    for place, series in enumerate(panel.series):
        (one,) = series.points
        axis.bar(place, one.y, 0.7, color=style.LIGHT[style.color_number(series.name, names)])
        _whiskers(axis, series, [place], "black")
        # Inside the bar, because differences are small beside the whole.
        text = f"{one.y:.{digits}f}" if abs(one.y) >= 0.5 * 10.0**-digits else style.number(one.y)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axis.text(place, 0.04, text, ha="center", fontsize=9, transform=axis.get_xaxis_transform(), bbox=box)
    low, high = axis.get_ylim()
    if low < 0.0:
        axis.set_ylim(low - 0.15 * (high - low), high)  # Room for the numbers below bars and intervals that reach down.
    short = [name.removeprefix("ensemble-") for name in names]
    axis.set_xticks(range(len(names)), short, fontsize=9)


def _lines(axis: Any, panel: Panel) -> None:
    names = [series.name for series in panel.series]
    for index, series in enumerate(panel.series):
        number = style.color_number(series.name, names)
        look = {"color": style.LIGHT[number], "label": series.name}
        shown = [one for one in series.points if math.isfinite(one.y) and (one.y > 0 or not panel.log_y)]
        # A little apart, so that intervals at one place do not hide each other.
        shift = index - (len(panel.series) - 1) / 2
        if panel.band:
            xs = [one.x for one in shown]
            axis.plot(xs, [one.y for one in shown], **look)
            ends = [[getattr(one, end) for one in shown] for end in ("low", "high")]
            axis.fill_between(xs, *ends, color=style.LIGHT[number], alpha=0.25, lw=0)
            continue
        xs = [one.x * 1.03**shift if panel.log_x else one.x + (0.04 * shift if panel.places else 0.0) for one in shown]
        dashes = (0, style.DASHES[number]) if style.DASHES[number] else "-"
        line = "" if panel.kind == "points" else dashes
        axis.plot(xs, [one.y for one in shown], marker=style.MARKERS[number], ms=4, ls=line, **look)
        _whiskers(axis, series, xs, style.LIGHT[number], shown)
    axis.set_xlabel(panel.x_label)
    if panel.log_x:
        axis.set_xscale("log")
        _plain_numbers(axis.xaxis)
        xs = sorted({one.x for series in panel.series for one in series.points})
        if 1 < len(xs) <= _MAX_TICKS:
            axis.set_xticks(xs, _with_room(xs))
            axis.minorticks_off()
    if panel.log_y:
        axis.set_yscale("log")
        _plain_numbers(axis.yaxis)
    if panel.from_zero:
        axis.set_ylim(bottom=0.0)
    if panel.places:
        axis.set_xticks(range(len(panel.places)), panel.places)


def _with_room(xs: Sequence[float]) -> list[str]:
    """Returns names of places on a log axis, from the right: none where it would touch the one after it."""
    names: list[str] = []
    span, after, place = math.log(xs[-1] / xs[0]), "", math.inf
    for x in reversed(xs):
        name = style.number(x)
        room = max(_LABEL_GAP, _LABEL_CHARACTER * (len(name) + len(after)) / 2)
        if math.log(place / x) < room * span:
            names.append("")
        else:
            names.append(name)
            after, place = name, x
    return names[::-1]


def _plain_numbers(axis: Any) -> None:
    """Writes 100 instead of a power of ten; between powers only where there is less than one of them."""
    from matplotlib import ticker

    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: style.number(value)))
    axis.set_minor_formatter(ticker.LogFormatter(minor_thresholds=(1, 0.4)))


def _whiskers(axis: Any, series: Series, xs: Sequence[float], color: str, shown: Any = None) -> None:
    for x, one in zip(xs, series.points if shown is None else shown, strict=True):
        if not math.isnan(one.low):
            ends = [[max(0.0, one.y - one.low)], [max(0.0, one.high - one.y)]]
            axis.errorbar([x], [one.y], ends, color=color, capsize=3, lw=1, fmt="none")
