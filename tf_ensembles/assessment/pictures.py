"""Small pictures as SVG text, for a page that needs no other file. Whatever is text in them is escaped."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

# Okabe and Ito's colors stay apart for color-blind readers; dashes and markers tell series apart without color.
COLORS = ("#0072B2", "#D55E00", "#6b7280")
_DASHES = ("", "6 3", "2 3")
_WIDTH, _HEIGHT = 380, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 44


class Series(NamedTuple):
    """A line of a picture."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    markers: bool = False
    line: bool = True


def lines(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    diagonal: bool = False,
) -> str:
    """Returns lines in axes, with a legend below."""
    x_low, x_high = x_range or _around([value for one in series for value in one.x])
    y_low, y_high = y_range or _around([value for one in series for value in one.y])
    at_x, at_y = _scale(x_low, x_high, _LEFT, _WIDTH - _RIGHT), _scale(y_low, y_high, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_axes((x_low, x_high), (y_low, y_high), at_x, at_y, x_label, y_label)]
    if diagonal:
        low, high = max(x_low, y_low), min(x_high, y_high)
        parts.append(
            f'<line x1="{at_x(low):.1f}" y1="{at_y(low):.1f}" x2="{at_x(high):.1f}" y2="{at_y(high):.1f}" '
            'stroke="#9ca3af" stroke-dasharray="4 4"/>'
        )
    for number, one in reversed(list(enumerate(series))):  # The first lies on top.
        color, dash = COLORS[number % len(COLORS)], _DASHES[number % len(_DASHES)]
        points = [(at_x(x), at_y(y)) for x, y in zip(one.x, one.y, strict=True)]
        if one.line:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            style = f'stroke="{color}" stroke-width="2" fill="none" stroke-dasharray="{dash}"'
            parts.append(f'<polyline points="{path}" {style}/>')
        if one.markers:
            size = 3 if one.line else 2
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" fill="{color}"/>' for x, y in points]
    return _figure(title, parts, [one.name for one in series])


def histograms(title: str, edges: Sequence[float], shares: dict[str, Sequence[float]], x_label: str) -> str:
    """Returns the shares of two sets in the same bins, side by side in one picture."""
    top = max((max(values) for values in shares.values()), default=1.0) or 1.0
    at_x, at_y = _scale(edges[0], edges[-1], _LEFT, _WIDTH - _RIGHT), _scale(0.0, top, _HEIGHT - _BOTTOM, _TOP)
    parts = [*_axes((edges[0], edges[-1]), (0.0, top), at_x, at_y, x_label, "share of examples")]
    for number, values in enumerate(shares.values()):
        points = [(edges[0], 0.0)]
        for left, right, value in zip(edges[:-1], edges[1:], values, strict=True):
            points += [(left, value), (right, value)]
        points.append((edges[-1], 0.0))
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in points)
        color = COLORS[number]
        parts.append(
            f'<polygon points="{path}" fill="{color}" fill-opacity="0.3" stroke="{color}" stroke-width="1.5"/>'
        )
    return _figure(title, parts, list(shares))


def dots(title: str, rows: Sequence[dict[str, Any]], score: str, label: str, *, unit: bool) -> str:
    """Returns a score of each slice as a dot with its interval, one row per slice.

    Args:
        title: of the picture.
        rows: of slices, with `name` and `scores`.
        score: which.
        label: of the axis.
        unit: whether the score lies between 0 and 1.
    """
    estimates = [row["scores"][score] for row in rows]
    seen = [value for one in estimates for value in one.values() if value is not None]
    low, high = _around(seen)
    if unit:
        low, high = max(0.0, low), min(1.0, high)
    left, row_height = 120, 18
    height = _TOP + row_height * len(rows) + _BOTTOM
    at_x = _scale(low, high, left, _WIDTH - _RIGHT)
    bottom = height - _BOTTOM
    parts = []
    for tick in _ticks(low, high):
        x = at_x(tick)
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" class="grid"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{_number(tick)}</text>')
    parts.append(f'<text x="{(left + _WIDTH) / 2:.0f}" y="{height - 8}" text-anchor="middle">{_safe(label)}</text>')
    for number, (row, one) in enumerate(zip(rows, estimates, strict=True)):
        y = _TOP + row_height * (number + 0.5)
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{_safe(_short(row["name"]))}</text>')
        if one["value"] is None:
            continue
        if one["low"] is not None:
            style = f'stroke="{COLORS[0]}" stroke-width="2"'
            ends = f'x1="{at_x(one["low"]):.1f}" x2="{at_x(one["high"]):.1f}"'
            parts.append(f'<line {ends} y1="{y:.1f}" y2="{y:.1f}" {style}/>')
        parts.append(f'<circle cx="{at_x(one["value"]):.1f}" cy="{y:.1f}" r="4" fill="{COLORS[0]}"/>')
    return _figure(title, parts, [], height)


def _figure(title: str, parts: list[str], names: list[str], height: int = _HEIGHT) -> str:
    legend = "".join(
        f'<span><svg width="26" height="10" aria-hidden="true"><line x1="1" x2="25" y1="5" y2="5" stroke-width="2.5" '
        f'stroke="{COLORS[number % len(COLORS)]}" stroke-dasharray="{_DASHES[number % len(_DASHES)]}"/></svg>'
        f"{_safe(name)}</span>"
        for number, name in enumerate(names)
    )
    about = f'role="img" aria-label="{_safe(title)}" class="picture"'
    picture = f'<svg viewBox="0 0 {_WIDTH} {height}" {about}>{"".join(parts)}</svg>'
    return f'<figure><figcaption>{_safe(title)}</figcaption>{picture}<div class="legend">{legend}</div></figure>'


def _axes(x: tuple[float, float], y: tuple[float, float], at_x: Any, at_y: Any, x_label: str, y_label: str) -> Any:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for tick in _ticks(*y):
        yield f'<line x1="{_LEFT}" x2="{right}" y1="{at_y(tick):.1f}" y2="{at_y(tick):.1f}" class="grid"/>'
        yield f'<text x="{_LEFT - 6}" y="{at_y(tick) + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
    for tick in _ticks(*x):
        yield f'<text x="{at_x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{_number(tick)}</text>'
    yield f'<line x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#6b7280"/>'
    yield f'<text x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{_safe(x_label)}</text>'
    middle = (_TOP + bottom) / 2
    turned = f'text-anchor="middle" transform="rotate(-90 13 {middle:.0f})"'
    yield f'<text x="13" y="{middle:.0f}" {turned}>{_safe(y_label)}</text>'


def _scale(low: float, high: float, start: float, end: float) -> Any:
    size = (high - low) or 1.0
    return lambda value: start + (min(max(value, low), high) - low) / size * (end - start)


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Returns a range that holds the values, with some room."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    room = 0.05 * (max(finite) - min(finite)) or 0.5
    return min(finite) - room, max(finite) + room


def _ticks(low: float, high: float) -> list[float]:
    """Returns three to seven round numbers within a range."""
    size = (high - low) or 1.0
    step = 10.0 ** math.floor(math.log10(size))
    step = next(step * factor for factor in (0.1, 0.2, 0.5, 1.0, 2.0) if size / (step * factor) <= 6.0)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{0.0 if abs(value) < 1e-12 else value:.4g}"


def _short(name: str, most: int = 15) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _safe(text: str) -> str:
    return html.escape("".join(letter if letter.isprintable() else " " for letter in str(text)))
