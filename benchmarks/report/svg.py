"""Draws panels as SVG text: no library, no script, readable as it is. `figures.drawing` draws them by Matplotlib.

Colors come from the page's style sheet by the number of the series in the palette of `benchmarks.style`. Every mark
carries its value as text, which the page's script shows and steps through.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence

from benchmarks import style
from benchmarks.figures.panels import Panel, Point
from benchmarks.style import number


@dataclasses.dataclass(frozen=True)
class Frame:
    """How large a plot is, in the units of its text, and how much is written beside it."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    ticks: int  # at most, along an axis
    letter: float  # the width of a letter of its ticks, about
    labels: bool  # of the axes; without them, what is around the plot says what it shows
    name: str  # for the style sheet

    @property
    def floor(self) -> int:
        """Where the area of the plot ends."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        """Where it ends on the right."""
        return self.width - self.right


FULL = Frame(420, 300, left=56, right=12, top=14, bottom=46, ticks=7, letter=6.5, labels=True, name="plot")
SMALL = Frame(240, 150, left=46, right=8, top=10, bottom=24, ticks=4, letter=8.0, labels=False, name="plot small-plot")


def describe(series: str, point: Point, panel: Panel) -> str:
    """Returns the text of a mark."""
    where = ""
    if panel.kind == "lines":
        where = f", {panel.x_label} = {panel.place(point)}"
    ends = "" if math.isnan(point.low) else f" [{number(point.low)}, {number(point.high)}]"
    size = f", n = {point.count:,}" if point.count else ""
    return f"{series}{where}: {number(point.y)}{ends}{size}"


def draw(panel: Panel, alternative: str, frame: Frame = FULL) -> str:
    """Returns a panel as an `svg` element whose text alternative is given."""
    ys = [value for series in panel.series for point in series.points for value in _span(point)]
    if panel.reference is not None:
        ys.append(panel.reference)
    finite = [y for y in ys if math.isfinite(y) and (y > 0 or not panel.log_y)]
    # Bars stand on 0; lines that are far from it would look flat.
    from_zero = panel.kind == "bars" or panel.from_zero or (bool(finite) and min(finite) < 0.4 * max(finite))
    vertical = _Axis(finite, frame.floor, frame.top, panel.log_y, from_zero, frame.ticks)
    names = [series.name for series in panel.series]
    parts = [_grid(vertical, frame)]
    if panel.kind == "bars":
        parts += _bars(panel, vertical, names, frame)
    else:
        parts += _lines(panel, vertical, names, frame)
    if panel.reference is not None:
        y = vertical.place(panel.reference)
        parts.append(f'<line class="reference" x1="{frame.left}" x2="{frame.end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        if panel.reference_name and frame.labels:
            name = html.escape(panel.reference_name)
            parts.append(f'<text class="small" x="{frame.end}" y="{y - 4:.1f}" text-anchor="end">{name}</text>')
    if frame.labels:
        label, middle = html.escape(panel.y_label), (frame.floor + frame.top) / 2
        parts.append(
            f'<text class="label" transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{label}</text>'
        )
    return (
        f'<svg class="{frame.name}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{html.escape(alternative)}">' + "".join(parts) + "</svg>"
    )


def _span(point: Point) -> list[float]:
    return [point.y, *(value for value in (point.low, point.high) if not math.isnan(value))]


class _Axis:
    """Places numbers along an axis, and says where its ticks are."""

    def __init__(self, values: Sequence[float], start: float, end: float, log: bool, from_zero: bool, most_ticks: int):
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        self._log, self._start, self._end, self._most = log, start, end, most_ticks
        if log:
            low, high = math.log10(low), math.log10(high)
            pad = 0.05 * (high - low) or 0.5
            self._low, self._high = low - pad, high + pad
            self.ticks = self._decades()
            return
        if from_zero:
            low, high = min(0.0, low), max(0.0, high)
        pad = 0.06 * (high - low) or 1.0
        self._low = low if low == 0.0 else low - pad
        self._high = high if high == 0.0 else high + pad
        step = _nice((self._high - self._low) / min(5, most_ticks))
        first = math.ceil(self._low / step - 1e-9)
        last = math.floor(self._high / step + 1e-9)
        self.ticks = [index * step for index in range(first, last + 1)]

    def _decades(self) -> list[float]:
        first, last = math.floor(self._low), math.ceil(self._high)
        for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
            made = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            ticks = [tick for tick in made if self._low <= math.log10(tick) <= self._high]
            if len(ticks) >= 3:
                break
        return ticks[:: max(1, math.ceil(len(ticks) / self._most))]

    def place(self, value: float) -> float:
        """Returns where a value lies on the page; values beyond an end lie at it."""
        if self._log:
            value = math.log10(value) if value > 0 else self._low
        share = (value - self._low) / (self._high - self._low)
        return self._start + min(1.0, max(0.0, share)) * (self._end - self._start)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * (1 - 1e-9))


def _grid(axis: _Axis, frame: Frame) -> str:
    lines = []
    for tick in axis.ticks:
        y = axis.place(tick)
        lines.append(f'<line class="grid" x1="{frame.left}" x2="{frame.end}" y1="{y:.1f}" y2="{y:.1f}"/>')
        text = number(0.0 if abs(tick) < 1e-9 * max(map(abs, axis.ticks)) else tick)
        lines.append(f'<text class="tick" x="{frame.left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    return "".join(lines)


def _bars(panel: Panel, axis: _Axis, names: Sequence[str], frame: Frame) -> list[str]:
    parts, room = [], (frame.end - frame.left) / max(1, len(panel.series))
    for index, series in enumerate(panel.series):
        middle, point = frame.left + (index + 0.5) * room, series.points[0]
        top, floor = axis.place(point.y), axis.place(0.0)
        width = min(64.0, 0.62 * room)
        tip = html.escape(describe(series.name, point, panel))
        shape = (
            f'<rect class="bar" x="{middle - width / 2:.1f}" y="{min(top, floor):.1f}" width="{width:.1f}" '
            f'height="{abs(floor - top):.1f}"/>'
        )
        whisker = _whisker(middle, point, axis, 6.0)
        parts.append(
            f'<g class="series c{style.color_number(series.name, names)}" data-series="{html.escape(series.name)}">'
            f'<g class="mark" data-tip="{tip}"><title>{tip}</title>{shape}{whisker}</g></g>'
        )
        short = html.escape(series.name.removeprefix("ensemble-"))
        parts.append(f'<text class="tick" x="{middle:.1f}" y="{frame.floor + 16}" text-anchor="middle">{short}</text>')
    return parts


def _lines(panel: Panel, vertical: _Axis, names: Sequence[str], frame: Frame) -> list[str]:
    xs = [point.x for series in panel.series for point in series.points]
    if panel.places:
        xs = [-0.3, len(panel.places) - 0.7]
    across = _Axis(xs, frame.left + 4, frame.end - 4, panel.log_x, False, frame.ticks)
    parts = []
    ticks, free = range(len(panel.places)) if panel.places else across.ticks, -math.inf
    for tick in ticks:
        x, text = across.place(tick), panel.places[int(tick)] if panel.places else number(tick)
        half = 0.5 * frame.letter * len(text)
        if x - half < free and not panel.places:
            continue  # It would run into the text before it.
        free = x + half + frame.letter
        parts.append(
            f'<text class="tick" x="{min(x, frame.width - half):.1f}" y="{frame.floor + 16}" text-anchor="middle">'
            f"{html.escape(text)}</text>"
        )
    if frame.labels:
        label, middle = html.escape(panel.x_label), (frame.left + frame.end) / 2
        parts.append(f'<text class="label" x="{middle}" y="{frame.height - 10}" text-anchor="middle">{label}</text>')
    for index, series in enumerate(panel.series):
        shade = style.color_number(series.name, names)
        # A little apart, so that intervals at one place do not hide each other.
        shift = 3.0 * (index - (len(panel.series) - 1) / 2)
        drawn = [point for point in series.points if math.isfinite(point.y) and (point.y > 0 or not panel.log_y)]
        places = [(across.place(point.x) + shift, vertical.place(point.y), point) for point in drawn]
        dashes = " ".join(map(str, style.DASHES[shade]))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        marks = []
        band = _band(places, vertical) if panel.band else ""
        # A band's line has many points: a few of them are marked.
        step = max(1, len(places) // 8) if panel.band else 1
        for x, y, point in places[::-step][::-1]:
            tip = html.escape(describe(series.name, point, panel))
            whisker = "" if panel.band else _whisker(x, point, vertical, 3.0)
            shape = f"{whisker}{_marker(x, y, shade)}"
            marks.append(f'<g class="mark" data-tip="{tip}"><title>{tip}</title>{shape}</g>')
        parts.append(
            f'<g class="series c{shade}" data-series="{html.escape(series.name)}">'
            f'{band}<polyline class="line" points="{path}" stroke-dasharray="{dashes}"/>{"".join(marks)}</g>'
        )
    return parts


def _band(places: Sequence[tuple[float, float, Point]], axis: _Axis) -> str:
    """The intervals along a line, as one shape."""
    known = [(x, point) for x, _, point in places if not math.isnan(point.low)]
    upper = [(x, axis.place(point.high)) for x, point in known]
    lower = [(x, axis.place(point.low)) for x, point in known]
    shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*upper, *lower[::-1]))
    return f'<polygon class="band" points="{shape}"/>'


def _whisker(x: float, point: Point, axis: _Axis, half: float) -> str:
    if math.isnan(point.low) or math.isnan(point.high):
        return ""
    low, high = axis.place(point.low), axis.place(point.high)
    return (
        f'<path class="whisker" d="M{x:.1f} {low:.1f}V{high:.1f}M{x - half:.1f} {low:.1f}h{2 * half}'
        f'M{x - half:.1f} {high:.1f}h{2 * half}"/>'
    )


def _marker(x: float, y: float, shade: int) -> str:
    shapes = (
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4"/>',
        f'<rect class="dot" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>',
        f'<path class="dot" d="M{x:.1f} {y - 5:.1f}l5 9h-10z"/>',
        f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>',
        f'<path class="dot" d="M{x:.1f} {y - 6:.1f}l5 6l-5 6l-5-6z"/>',
        f'<path class="dot" d="M{x - 5:.1f} {y - 4:.1f}h10l-5 9z"/>',
    )
    return shapes[shade]


def draw_interval(estimate: float, low: float, high: float, region: tuple[float, float], alternative: str) -> str:
    """Returns a small plot of an interval against the region in which a claim says that it lies."""
    width, height, pad = 150, 22, 6
    ends = [value for value in (estimate, low, high, *region, 0.0) if math.isfinite(value)]
    span = (max(ends) - min(ends)) or 1.0
    first, last = min(ends) - 0.12 * span, max(ends) + 0.12 * span

    def place(value: float) -> float:
        share = (min(last, max(first, value)) - first) / (last - first)
        return pad + share * (width - 2 * pad)

    left, right = place(region[0]), place(region[1])
    known = math.isfinite(low) and math.isfinite(high)
    line = f'<path class="whisker" d="M{place(low):.1f} 11H{place(high):.1f}"/>' if known else ""
    return (
        f'<svg class="interval" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(alternative)}">'
        f'<rect class="region" x="{left:.1f}" y="1" width="{max(1.0, right - left):.1f}" height="{height - 2}"/>'
        f'<path class="zero" d="M{place(0.0):.1f} 1V{height - 1}"/>{line}'
        f'<circle class="dot" cx="{place(estimate):.1f}" cy="11" r="4"/></svg>'
    )
