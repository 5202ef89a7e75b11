"""Panels, and how they look: one palette, one way to write numbers, and panels as SVG text.

A panel has series, a series points with intervals. The SVG needs no library and no script, and is readable as it is:
colors come from the style sheet by the number of the series in the palette, and every mark carries its value as text.
"""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import Literal

# Colors by number, on a light page and on a dark one. They stay apart for color-blind readers; markers and dashes tell
# series apart without color.
LIGHT = ("#68707c", "#00795c", "#c25100", "#0068a6", "#99377f", "#806600")
DARK = ("#a3acb9", "#4fcfa6", "#ff9d57", "#6cb8f5", "#e295cd", "#e0c65a")
MARKERS = ("o", "s", "^", "o", "D", "v")
DASHES = ((2, 3), (7, 3), (), (), (5, 2, 1, 2), (1, 2))

# The style of marks; a page says what --ink, --soft, --line and --card are.
_MARKS = """
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font-family: inherit; }
svg .tick, svg .small { font-size: 11.5px; fill: var(--soft); }
svg .label { font-size: 12.5px; fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .reference { stroke: var(--ink); stroke-width: 1.2; stroke-dasharray: 2 4; }
svg .whisker { stroke: var(--ink); stroke-width: 1.4; fill: none; }
svg .bar { fill: var(--c); }
svg .band { fill: var(--c); opacity: 0.2; stroke: none; }
svg .line { fill: none; stroke: var(--c); stroke-width: 2; }
svg .series .dot { fill: var(--c); stroke: var(--card); stroke-width: 1; }
svg .line ~ .mark .whisker { stroke: var(--c); }
"""

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
        f"{_MARKS}:root {{ {light}}}\n"
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


@dataclasses.dataclass(frozen=True)
class Point:
    """One value with its interval; ends are NaN where there is none."""

    x: float
    y: float
    low: float = math.nan
    high: float = math.nan
    count: int = 0


@dataclasses.dataclass(frozen=True)
class Series:
    """Points of one agent, or of whatever is compared."""

    name: str
    points: tuple[Point, ...]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["bars", "lines", "points"] = "bars"
    x_label: str = ""
    log_x: bool = False
    log_y: bool = False
    band: bool = False  # intervals as a band along a line of many points, instead of a whisker at each
    from_zero: bool = False  # whether the y axis of lines starts at 0
    reference: float | None = None  # a horizontal line
    reference_name: str = ""
    diagonal: bool = False  # a line where x and y agree
    places: tuple[str, ...] = ()  # names of the places 0, 1, ... of the x axis, instead of numbers

    def place(self, point: Point) -> str:
        """Returns where a point of a line lies, as text."""
        return self.places[int(point.x)] if self.places else number(point.x)


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
    where = "" if panel.kind == "bars" else f", {panel.x_label} = {panel.place(point)}"
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
            self.low, self.high = low - pad, high + pad
            self.ticks = self._decades()
            return
        if from_zero:
            low, high = min(0.0, low), max(0.0, high)
        pad = 0.06 * (high - low) or 1.0
        self.low = low if low == 0.0 else low - pad
        self.high = high if high == 0.0 else high + pad
        step = _nice((self.high - self.low) / min(5, most_ticks))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        self.ticks = [index * step for index in range(first, last + 1)]

    def _decades(self) -> list[float]:
        first, last = math.floor(self.low), math.ceil(self.high)
        for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0)):
            made = [step * 10.0**power for power in range(first, last + 1) for step in steps]
            ticks = [tick for tick in made if self.low <= math.log10(tick) <= self.high]
            if len(ticks) >= 3:
                break
        return ticks[:: max(1, math.ceil(len(ticks) / self._most))]

    def place(self, value: float) -> float:
        """Returns where a value lies on the page; values beyond an end lie at it."""
        if self._log:
            value = math.log10(value) if value > 0 else self.low
        share = (value - self.low) / (self.high - self.low)
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
            f'<g class="series c{color_number(series.name, names)}" data-series="{html.escape(series.name)}">'
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
    if panel.diagonal:
        ends = max(across.low, vertical.low), min(across.high, vertical.high)
        (x1, x2), (y1, y2) = (map(axis.place, ends) for axis in (across, vertical))
        parts.append(f'<line class="reference" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>')
    for index, series in enumerate(panel.series):
        shade = color_number(series.name, names)
        # A little apart, so that intervals at one place do not hide each other.
        shift = 3.0 * (index - (len(panel.series) - 1) / 2)
        drawn = [point for point in series.points if math.isfinite(point.y) and (point.y > 0 or not panel.log_y)]
        places = [(across.place(point.x) + shift, vertical.place(point.y), point) for point in drawn]
        dashes = " ".join(map(str, DASHES[shade]))
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
        line = f'<polyline class="line" points="{path}" stroke-dasharray="{dashes}"/>' if panel.kind == "lines" else ""
        marks = []
        band = _band(places, vertical) if panel.band else ""
        # A band's line has many points: a few of them are marked.
        step = max(1, len(places) // 8) if panel.band else 1
        for x, y, point in places[::-step][::-1]:
            tip = html.escape(describe(series.name, point, panel))
            whisker = "" if panel.band else _whisker(x, point, vertical, 3.0)
            dot = f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' if panel.kind == "points" else ""
            shape = f"{whisker}{dot or _marker(x, y, shade)}"
            marks.append(f'<g class="mark" data-tip="{tip}"><title>{tip}</title>{shape}</g>')
        parts.append(
            f'<g class="series c{shade}" data-series="{html.escape(series.name)}">{band}{line}{"".join(marks)}</g>'
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


def draw_interval(
    estimate: float,
    low: float,
    high: float,
    alternative: str,
    *,
    region: tuple[float, float] | None = None,
    among: Sequence[float] = (0.0,),
) -> str:
    """Returns a small plot of an interval.

    Args:
        estimate: where its dot is.
        low: its end; not finite where it has none.
        high: its other end.
        alternative: the plot as text.
        region: where it should lie, such as a claim says; it is drawn with a line at 0.
        among: other values of the axis, such as those of the plots above and below.
    """
    width, height, pad = 150, 22, 6
    ends = [value for value in (estimate, low, high, *(region or ()), *among) if math.isfinite(value)]
    span = (max(ends) - min(ends)) or 1.0
    first, last = min(ends) - 0.12 * span, max(ends) + 0.12 * span

    def place(value: float) -> float:
        share = (min(last, max(first, value)) - first) / (last - first)
        return pad + share * (width - 2 * pad)

    ground = ""
    if region is not None:
        left, right = place(region[0]), place(region[1])
        ground = (
            f'<rect class="region" x="{left:.1f}" y="1" width="{max(1.0, right - left):.1f}" height="{height - 2}"/>'
            f'<path class="zero" d="M{place(0.0):.1f} 1V{height - 1}"/>'
        )
    known = math.isfinite(low) and math.isfinite(high)
    line = f'<path class="whisker" d="M{place(low):.1f} 11H{place(high):.1f}"/>' if known else ""
    return (
        f'<svg class="interval" viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(alternative)}">'
        f'{ground}{line}<circle class="dot" cx="{place(estimate):.1f}" cy="11" r="4"/></svg>'
    )
