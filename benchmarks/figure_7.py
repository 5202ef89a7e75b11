"""Figure 7: how much ensemble-p depends on the scale of its prior functions. d = 100, temperature 0.01, per T.

The claims: the scale matters, but around the right one performance is flat; and at scale 0, without prior functions, an
ensemble is close to the uniform agent where data are few.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import testbed_drawing, testbed_runs, tuning
from trainers import sweep

if TYPE_CHECKING:
    import pandas as pd

SWEEP = "figure_7"
INPUT_DIM, TEMPERATURE = 100, 0.01
SCORE = "kl_joint"

# Prior scales as multiples of 1 / sqrt(rho) = 10; the reference's default is 3.
SCALES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

SIZES = {
    "quick": testbed_runs.Size(
        num_members=10,
        tuning_members=10,
        tuning_seeds=0,
        reporting_seeds=2,
        data_ratios=(1.0, 10.0, 100.0),
        prior_grid=tuple((scale, "1/sqrt(rho)") for scale in (0.0, 0.3, 3.0, 30.0)),
        num_batches=300,
    ),
    "standard": testbed_runs.Size(
        num_members=30,
        tuning_members=30,
        tuning_seeds=0,
        reporting_seeds=10,
        prior_grid=tuple((scale, "1/sqrt(rho)") for scale in SCALES),
    ),
    "paper": testbed_runs.Size(
        num_members=100,
        tuning_members=100,
        tuning_seeds=0,
        reporting_seeds=10,
        prior_grid=tuple((scale, "1/sqrt(rho)") for scale in SCALES),
    ),
}
SEEDS_PER_STAGE = 2


def settings(size: testbed_runs.Size) -> list[testbed_runs.Setting]:
    """Returns the settings of the figure."""
    return [testbed_runs.Setting(INPUT_DIM, ratio, TEMPERATURE) for ratio in size.data_ratios]


def stages(preset: str) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns all scales on the reporting seeds, some seeds at a time. Nothing is tuned; l2 is the default, 1."""
    size = SIZES[preset]
    agents = [testbed_runs.Agent("ensemble-p", size.num_members, 1.0, *prior) for prior in size.prior_grid]
    per_setting = {setting.id: agents for setting in settings(size)}

    def piece(seeds: range, rows: Sequence[dict[str, Any]]) -> list[sweep.Run]:
        return testbed_runs.make_runs(settings(size), per_setting, seeds, size)

    return [functools.partial(piece, seeds) for seeds in size.reporting_pieces(SEEDS_PER_STAGE)]


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Returns, per T and scale, the normalised joint KL and its difference from the best scale of that T."""
    import pandas as pd

    from benchmarks import statistics

    lines = []
    for ratio, rows in table.groupby("data_ratio"):
        seeds = statistics.by_seed(rows, SCORE, columns="prior_scale")
        best = seeds.mean().idxmin()
        for scale in seeds:
            interval = statistics.mean_interval(seeds[scale])
            behind = statistics.paired_difference(seeds[scale], seeds[best])
            lines.append(
                {
                    "num_train": round(INPUT_DIM * float(str(ratio))),
                    "prior_scale": scale / TEMPERATURE**0.5,
                    **vars(interval),
                    "behind_best": behind.estimate,
                    "behind_low": behind.low,
                    "behind_high": behind.high,
                    "best": scale == best,
                }
            )
    return pd.DataFrame(lines)


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes the figure and its tables; returns what to tell."""
    from benchmarks import figure_2

    size = SIZES[preset]
    raw = testbed_drawing.reporting_rows(rows, settings(size), size.seeds_to_report)
    summary = summarise(tuning.normalise(raw))
    canvas, axes = testbed_drawing.make_figure(1, 7.5, 5.0)
    axis = axes[0]
    scales = sorted(set(summary.prior_scale))
    counts = sorted(set(summary.num_train))
    for count, colour in zip(counts, ("tab:blue", "tab:green", "tab:orange", "tab:red"), strict=False):
        mine = summary[summary.num_train == count]
        places = [scales.index(scale) for scale in mine.prior_scale]
        testbed_drawing.curve(axis, places, mine, colour, label=f"T = {count:,}")
    axis.axhline(1.0, color="black", ls=":", lw=1.5, label="uniform agent")
    axis.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
    axis.set(xlabel="scale of the prior functions (0: none)", ylabel="joint KL / joint KL of the uniform agent")
    axis.set_ylim(bottom=0.0)
    axis.legend(frameon=False, fontsize=9)
    axis.set_title("Figure 7: ensemble-p against the scale of its prior functions")
    testbed_drawing.caption(
        canvas,
        f"d = {INPUT_DIM}, temperature {TEMPERATURE:g}, {summary['count'].max()} seeds, {size.num_members} members, "
        "weight decay l2 = 1; joint KL of τ = 10 labels, dyadic. Bars: 95% bootstrap intervals over seeds.",
    )
    tables = {"figure_7": summary, "figure_7_runs": figure_2.slim(raw)}
    return [*testbed_drawing.save(canvas, tables, folder, "figure_7"), *_told(summary)]


def _told(summary: pd.DataFrame) -> list[str]:
    lines = []
    for count, rows in summary.groupby("num_train"):
        best = rows[rows.best].iloc[0]
        zero = rows[rows.prior_scale == 0.0].iloc[0]
        lines.append(
            f"T = {count}: scale 0 at {zero.estimate:.3f} of the uniform agent, best scale {best.prior_scale:g} at "
            f"{best.estimate:.3f}"
        )
    return lines
