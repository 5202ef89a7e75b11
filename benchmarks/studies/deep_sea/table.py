"""The table of learning times, its picture, and the same in words."""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import seals, style
from benchmarks.studies.deep_sea.preset import AGENTS, EPSILON, P
from tf_ensembles import extras, files

COLUMNS = ("stage", "agent", "size", "value", "members", "limit", "seed", "episodes")
_NUMBERS = {EPSILON: 0}


def write(rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> None:
    """Writes the table and its picture into a folder, and prints the table."""
    if not rows:
        raise SystemExit("error: Expected runs that are complete. Received: none yet")
    lines = [",".join(COLUMNS)]
    for row in rows:
        time = "" if math.isnan(row["episodes"]) else f"{row['episodes']:.0f}"
        lines.append(",".join([*(f"{row[name]}" for name in COLUMNS[:-1]), time]))
    with files.atomic_path(folder / "deep_sea.csv") as temporary:
        temporary.write_text("\n".join(lines) + "\n")
    seals.add(folder / "deep_sea.csv")
    draw(rows, folder / "deep_sea")
    print(markdown(rows))


def cells(rows: Sequence[dict[str, Any]], stage: str, *names: str) -> dict[tuple[Any, ...], Any]:
    """Returns learning times of a stage, NaN where the limit came first, and the limit, by some columns."""
    found: dict[tuple[Any, ...], Any] = {}
    for row in rows:
        if row["stage"] == stage:
            times, _ = found.setdefault(tuple(row[name] for name in names), ([], row["limit"]))
            times.append(row["episodes"])
    return {key: (np.array(times, float), limit) for key, (times, limit) in sorted(found.items())}


def median(times: Any) -> tuple[float, float, float]:
    """Returns the median, the least and the largest learning time; infinity stands for beyond the limit."""
    known = np.where(np.isnan(times), math.inf, times)
    middle = sorted(known)[(len(known) - 1) // 2 :][: 2 - len(known) % 2]
    return float(np.mean(middle)), float(known.min()), float(known.max())


def _cell(times: Any, limit: int) -> str:
    middle, low, high = median(times)
    learned = int(np.isfinite(times).sum())
    over = f"> {limit:,}"
    text = over if math.isinf(middle) else f"{middle:,.0f}"
    if not learned:
        return f"{text} (0 of {len(times)})"
    return f"{text} [{low:,.0f}, {over if math.isinf(high) else f'{high:,.0f}'}] ({learned} of {len(times)})"


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Returns tables: median, least and largest learning time, and how many seeds learned within their limit."""
    report = cells(rows, "report", "agent", "size")
    agents = [agent for agent in AGENTS if any(key[0] == agent for key in report)]
    values = {row["agent"]: row["value"] for row in rows if row["stage"] == "report"}
    names = [f"{agent} ({values[agent]:g})" if values[agent] else agent for agent in agents]
    lines = [f"| N | {' | '.join(names)} |", f"|---|{'---|' * len(agents)}"]
    for size in sorted({size for _, size in report}):
        found = [_cell(*report[agent, size]) if (agent, size) in report else "–" for agent in agents]
        lines.append(f"| {size} | {' | '.join(found)} |")
    for stage, name in (("scale", "value"), ("deep-scale", "value"), ("members", "members")):
        own = cells(rows, stage, name)
        if own:
            where = next(row["size"] for row in rows if row["stage"] == stage)
            title = "members" if name == "members" else "scale of priors"
            lines += ["", f"| {title}, N = {where} | ensemble-p |", "|---|---|"]
            lines += [f"| {key:g} | {_cell(*cell)} |" for (key,), cell in own.items()]
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], path: pathlib.Path) -> list[pathlib.Path]:
    """Draws learning time against size, and against the priors' scale and the number of members; returns the paths."""
    extras.require("matplotlib", "The picture of the study")
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9.5, 4.0), layout="constrained")
    left, right = canvas.subplots(1, 2, width_ratios=[1.6, 1])
    report = cells(rows, "report", "agent", "size")
    for place, agent in enumerate(AGENTS):
        own = {size: cell for (name, size), cell in report.items() if name == agent}
        if own:  # Beside each other, so that ranges do not hide each other.
            _series(left, own, agent, _NUMBERS.get(agent, style.color_number(agent)), 0.15 * (place - 1.5))
    sizes = np.arange(4, 14)
    left.plot(sizes, 2.0**sizes, color="#888", lw=1, ls=":", zorder=0)
    left.annotate("$2^N$", (sizes[-3], 2.0 ** sizes[-3]), xytext=(6, -6), textcoords="offset points", color="#555")
    left.set(xlabel="size N", ylabel="episodes until learned", yscale="log", xticks=range(5, 31, 5))
    left.set_xlim(3.5, max(size for _, size in report) + 0.7)
    left.legend(frameon=False, fontsize=9)
    series = (("scale", "value", "scale of priors", style.color_number(P)), ("members", "members", "members", 4))
    for stage, name, label, number in (*series, ("deep-scale", "value", "scale of priors", 5)):
        own = {value: cell for (value,), cell in cells(rows, stage, name).items()}
        where = [row["size"] for row in rows if row["stage"] == stage]
        if own:
            _series(right, own, f"{label}, N = {where[0]}", number)
    right.set(xscale="log", yscale="log", xlabel="scale, in units of value; or members", title="ensemble-p")
    right.set_yticks([50, 100, 200, 500, 1000], ["50", "100", "200", "500", "1,000"])
    right.tick_params(axis="y", which="minor", labelleft=False)
    right.set_ylim(40, 3000)
    right.legend(frameon=False, fontsize=8, loc="upper left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return style.save(canvas, path)


def _series(axes: Any, own: dict[Any, Any], label: str, number: int, shift: float = 0.0) -> None:
    """Draws medians with the range of seeds; an arrow where seeds reached the limit, hollow and dotted where half."""
    color, marker = style.LIGHT[number], style.MARKERS[number]
    points = []
    for x, (times, limit) in own.items():
        middle, low, high = (min(value, limit) for value in median(times))
        stalled = bool(np.isnan(times).sum() * 2 >= len(times))
        axes.plot([x + shift] * 2, [low, high], color=color, lw=1, alpha=0.6)
        axes.plot([x + shift], [middle], marker=marker, ms=5, color=color, mfc="white" if stalled else color, ls="")
        if np.isnan(times).any():
            axes.plot([x + shift], [limit * 1.15], marker=r"$\uparrow$", ms=7, color=color, ls="")
        points.append((x + shift, middle, stalled))
    for (x, one, before), (after, other, stalled) in itertools.pairwise(points):
        axes.plot([x, after], [one, other], color=color, lw=1.5, ls=":" if before or stalled else "-", zorder=1)
    axes.plot([], [], color=color, marker=marker, ms=5, label=label)
