"""What the testbed figures share: their look, their files and their captions."""

from __future__ import annotations

import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import stats as statistics
from trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

COLOURS = {"mlp": "tab:gray", "ensemble-n": "tab:green", "ensemble-p": "tab:orange", "ensemble-bp": "tab:blue"}
SCORES = {"kl_marginal": "marginal KL", "kl_joint": "joint KL (τ = 10, dyadic)"}

# With fewer seeds a bootstrap interval is much too narrow to conclude from.
MIN_SEEDS = 5


def make_figure(columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """Returns a figure and its row of axes."""
    from matplotlib import figure

    canvas = figure.Figure(figsize=(width, height), layout="constrained")
    axes = canvas.subplots(1, columns, squeeze=False, **options)[0]
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return canvas, axes


def bars(axis: Any, intervals: Mapping[str, statistics.Interval], offset: float = 0.0, width: float = 0.7) -> None:
    """Draws one bar per agent with its confidence interval."""
    for place, (agent, interval) in enumerate(intervals.items()):
        axis.bar(place + offset, interval.estimate, width, color=COLOURS[agent])
        error_bar(axis, place + offset, interval, "black")
    axis.set_xticks(range(len(intervals)), list(intervals), fontsize=9)


def error_bar(axis: Any, x: float, interval: statistics.Interval, colour: str) -> None:
    """Draws a confidence interval, where there is one."""
    if interval.low == interval.low:
        ends = [[max(0.0, interval.estimate - interval.low)], [max(0.0, interval.high - interval.estimate)]]
        axis.errorbar([x], [interval.estimate], ends, color=colour, capsize=3, lw=1)


def curve(axis: Any, places: Sequence[float], rows: pd.DataFrame, colour: str, **options: Any) -> None:
    """Draws the intervals of a table's rows (`estimate`, `low`, `high`, `count`) at places along the x axis."""
    axis.plot(places, rows.estimate, color=colour, marker="o", ms=4, **options)
    columns = [rows[name].tolist() for name in ("estimate", "low", "high", "count")]
    for place, values in zip(places, zip(*columns, strict=True), strict=True):
        error_bar(axis, place, statistics.Interval(*values), colour)


def caption(canvas: Any, text: str) -> None:
    """Writes the caption below a figure."""
    width = int(canvas.get_size_inches()[0] * 15.5)
    canvas.supxlabel(textwrap.fill(text, width), fontsize=8, x=0.01, ha="left")


def save(canvas: Any, tables: Mapping[str, pd.DataFrame], folder: pathlib.Path, name: str) -> list[str]:
    """Writes a figure as PNG and SVG and its tables as CSV; returns a line for each file."""
    from tf_ensembles import files

    lines = []
    for suffix, options in (("png", {"dpi": 130}), ("svg", {"metadata": {"Date": None}})):
        with files.atomic_path(folder / f"{name}.{suffix}") as path:
            canvas.savefig(path, **options)
        lines.append(f"wrote {folder / name}.{suffix}")
    for table_name, table in tables.items():
        with files.atomic_path(folder / f"{table_name}.csv") as path:
            table.to_csv(path, index=False, float_format="%.6g")
        lines.append(f"wrote {folder / table_name}.csv")
    return lines


def reporting_rows(rows: Sequence[dict[str, Any]], runs: Sequence[sweep.Run]) -> pd.DataFrame:
    """Returns the table of the rows of a figure's own runs; a folder may hold others, such as of an earlier choice."""
    import pandas as pd

    wanted = {run.hash for run in runs}
    table = pd.DataFrame([row for row in rows if row["hash"] in wanted])
    if table.empty:
        raise ValueError("Expected rows of reporting seeds; 'sweep run' computes them. Received: none")
    return table


def verdict(interval: statistics.Interval) -> str:
    """Says what an interval of a difference `first - second` of KLs means."""
    if interval.count < MIN_SEEDS:
        return "too few seeds to say"
    if not interval.excludes(0.0):
        return "not distinguished"
    return "lower" if interval.high < 0 else "higher"


def listing(values: Any) -> str:
    """Returns different numbers as text, in order."""
    return ", ".join(f"{float(value):,g}" if float(value) < 1e6 else f"{value:g}" for value in sorted(set(values)))
