"""Panels: what a figure shows, free of how it is drawn. `drawing` renders them by Matplotlib, `pictures` as SVG.

The functions here make series from a figure's table (a row per setting, seed and agent) through `benchmarks.stats`, as
claims do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tf_ensembles.benchmarks import stats, style
from tf_ensembles.benchmarks.stats import Interval
from tf_ensembles.pictures import Panel as Panel
from tf_ensembles.pictures import Point as Point
from tf_ensembles.pictures import Series as Series

if TYPE_CHECKING:
    import pandas as pd

TextTable = tuple[list[str], list[list[str]]]  # a header and rows, as text


def point(x: float, interval: Interval) -> Point:
    """Returns an interval at a place."""
    return Point(float(x), interval.estimate, interval.low, interval.high, interval.count)


def relative_bars(table: pd.DataFrame, score: str, agents: Sequence[str], base: str) -> tuple[Series, ...]:
    """A bar per agent: its mean over seeds relative to another agent's, over the seeds that have both."""
    bars = []
    for agent in (name for name in agents if name in set(table.agent)):
        one, other = stats.paired(table, score, agent, base) if agent != base else (np.ones(1), np.ones(1))
        interval = stats.relative_difference(one, other).plus(1.0)
        interval = dataclasses.replace(interval, count=0) if agent == base else interval
        bars.append(Series(agent, (point(0.0, interval),)))
    return tuple(bars)


def mean_bars(table: pd.DataFrame, score: str, agents: Sequence[str]) -> tuple[Series, ...]:
    """A bar per agent: its mean over seeds, of the seeds that have all agents."""
    seeds = stats.by_seed(table[table.agent.isin(list(agents))], score)
    return tuple(
        Series(agent, (point(0.0, stats.mean_interval(seeds[agent])),))
        for agent in agents
        if agent in seeds and len(seeds[agent])
    )


def mean_lines(table: pd.DataFrame, score: str, agents: Sequence[str], column: str) -> tuple[Series, ...]:
    """A line per agent: its mean over seeds along a column."""
    lines = []
    for agent in (name for name in agents if name in set(table.agent)):
        points = []
        for value, rows in table[table.agent == agent].groupby(column):
            seeds = stats.by_seed(rows, score)[agent]
            if len(seeds):
                points.append(point(float(str(value)), stats.mean_interval(seeds)))
        lines.append(Series(agent, tuple(points)))
    return tuple(lines)


def gain_line(table: pd.DataFrame, score: str, first: str, second: str, column: str) -> Series:
    """How much lower one agent scores than another along a column, paired by seed."""
    points = []
    for value, rows in table.groupby(column):
        one, other = stats.paired(rows, score, first, second)
        points.append(point(float(str(value)), stats.paired_difference(other, one)))
    return Series(f"gain of {first.removeprefix('ensemble-')} over {second.removeprefix('ensemble-')}", tuple(points))


def values(listed: Sequence[Panel]) -> TextTable:
    """Returns the values of panels as a table of text."""
    header = ["panel", "series", "at", "value", "95% interval", "n"]
    rows = []
    for panel in listed:
        for series in panel.series:
            for one in series.points:
                at = "" if panel.kind == "bars" else f"{panel.x_label} = {panel.place(one)}"
                known = not math.isnan(one.low)
                interval = f"{style.number(one.low)} to {style.number(one.high)}" if known else ""
                count = f"{one.count:,}" if one.count else ""
                rows.append([panel.title, series.name, at, style.number(one.y), interval, count])
    return header, rows


def finding(panel: Panel) -> str:
    """Returns what a panel shows in a sentence: every bar, or where each line starts and ends."""
    said = []
    for series in panel.series:
        points = [one for one in series.points if math.isfinite(one.y)]
        if not points:
            continue
        if panel.kind == "bars" or len(points) == 1:
            said.append(f"{series.name} {style.number(points[0].y)}")
        else:
            ends = [f"{style.number(one.y)} at {panel.x_label} = {panel.place(one)}" for one in (points[0], points[-1])]
            said.append(f"{series.name} from {ends[0]} to {ends[1]}")
    along = f" against {panel.x_label}" if panel.kind == "lines" else ""
    return f"{panel.title}: {panel.y_label}{along}: {'; '.join(said)}."
