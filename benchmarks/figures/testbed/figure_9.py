"""Figure 9: figures 2 and 8 at d = 10, broken down by the number of training examples.

The claim: bootstrapping gains most at a middle T. With little data the prior decides, and with much the posterior
concentrates. Shares the runs of figure 2.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.figures.testbed import drawing as testbed_drawing
from benchmarks.figures.testbed import figure_2, tuning
from trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

SWEEP = figure_2.SWEEP
INPUT_DIM = 10


def stages(preset: str) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns the stages of figure 2 at d = 10."""
    return figure_2.stages(preset, (INPUT_DIM,))


def breakdown(table: pd.DataFrame) -> pd.DataFrame:
    """Returns, per T, each agent's normalised scores and the paired differences, with intervals."""
    import pandas as pd

    parts = []
    for ratio, rows in table.groupby("data_ratio"):
        summary, _ = figure_2.compare(rows)
        parts.append(summary.assign(data_ratio=ratio, num_train=round(INPUT_DIM * float(str(ratio)))))
    return pd.concat(parts, ignore_index=True)


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure and its table; returns what to tell."""
    size = figure_2.SIZES[preset]
    settings = figure_2.settings(size, (INPUT_DIM,))
    choice = tuning.choose(rows, figure_2.tuning_runs(size, settings), figure_2.AGENTS)
    runs = figure_2.reporting_runs(size, settings, choice, size.seeds_to_report)
    raw = testbed_drawing.reporting_rows(rows, runs)
    summary = breakdown(tuning.normalise(raw))
    canvas, axes = testbed_drawing.make_figure(3, 12.0, 4.3)
    for axis, (score, label) in zip(axes, testbed_drawing.SCORES.items(), strict=False):
        for shift, agent in enumerate(figure_2.AGENTS):
            mine = summary[(summary.score == score) & (summary.quantity == agent)]
            places = [count * 1.06 ** (shift - 1) for count in mine.num_train]
            testbed_drawing.curve(axis, places, mine, testbed_drawing.COLOURS[agent], label=agent)
        axis.set(ylabel="KL / KL of the uniform agent")
        axis.set_title(label, fontsize=11)
    axes[0].legend(frameon=False, fontsize=9)
    gain = summary[(summary.score == "kl_joint") & (summary.quantity == "ensemble-bp - ensemble-p")]
    axes[2].axhline(0.0, color="black", lw=0.8)
    testbed_drawing.curve(axes[2], list(gain.num_train), gain, "tab:blue", ls="--")
    axes[2].set(ylabel="difference (below 0: bp better)")
    axes[2].set_title("joint KL, ensemble-bp − ensemble-p", fontsize=11)
    for axis in axes:
        axis.set(xscale="log", xlabel="training examples T")
    canvas.suptitle("Figure 9: flipped labels at d = 10, by the number of training examples")
    fewest, most = gain["count"].min(), gain["count"].max()
    seeds = f"{most}" if fewest == most else f"{fewest} to {most}"
    testbed_drawing.caption(
        canvas,
        f"Temperature 0.1, 25% of the training labels 1 flipped to 0, {seeds} seeds, {size.num_members} "
        f"members; hyper-parameters chosen per setting by joint KL on {size.tuning_seeds} other seed(s) with "
        f"{size.tuning_members} members. Bars: 95% bootstrap intervals over seeds, of paired differences on the right.",
    )
    lines = testbed_drawing.save(canvas, {"figure_9": summary, "figure_9_runs": figure_2.slim(raw)}, folder, "figure_9")
    compared = summary[summary.verdict != ""]
    told = zip(compared.num_train, figure_2.describe(compared), strict=True)
    return [*lines, *(f"T = {num_train}: {text}" for num_train, text in told)]
