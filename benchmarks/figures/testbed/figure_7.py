"""Figure 7: how much ensemble-p depends on the scale of its prior functions. d = 100, temperature 0.01, per T.

The claims: the scale matters, but around the right one performance is flat; and at scale 0, without prior functions, an
ensemble is close to the uniform agent where data are few. The paper does not say which weight decay the figure has, and
its text scales decay otherwise than the public code does, so both are drawn.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.figures.testbed import drawing as testbed_drawing
from benchmarks.figures.testbed import runs as testbed_runs
from benchmarks.figures.testbed import tuning
from trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

SWEEP = "figure_7"
INPUT_DIM, TEMPERATURE = 100, 0.01
SCORE = "kl_joint"

# Prior scales as multiples of 1 / sqrt(rho) = 10; the reference's default is 3.
SCALES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Decay is l2 * d * sqrt(rho) in the public code. The paper's d / sqrt(rho) is 1 / rho = 100 times that.
DECAYS = {1.0: "weight decay d √ρ (public code)", 100.0: "weight decay d / √ρ (paper's text)"}

SIZES = {
    "quick": testbed_runs.Size(
        num_members=10,
        tuning_members=10,
        tuning_seeds=0,
        reporting_seeds=5,
        data_ratios=(1.0, 100.0),
        l2_grid=tuple(DECAYS),
        prior_grid=tuple((scale, "1/sqrt(rho)") for scale in (0.0, 1.0, 3.0, 10.0)),
        num_batches=300,
    ),
    "standard": testbed_runs.Size(
        num_members=20,
        tuning_members=20,
        tuning_seeds=0,
        reporting_seeds=10,
        l2_grid=tuple(DECAYS),
        prior_grid=tuple((scale, "1/sqrt(rho)") for scale in SCALES[:-1]),
    ),
    "paper": testbed_runs.Size(
        num_members=100,
        tuning_members=100,
        tuning_seeds=0,
        reporting_seeds=10,
        l2_grid=tuple(DECAYS),
        prior_grid=tuple((scale, "1/sqrt(rho)") for scale in SCALES),
    ),
}
SEEDS_PER_STAGE = 2


def settings(size: testbed_runs.Size) -> list[testbed_runs.Setting]:
    """Returns the settings of the figure."""
    return [testbed_runs.Setting(INPUT_DIM, ratio, TEMPERATURE) for ratio in size.data_ratios]


def reporting_runs(size: testbed_runs.Size, seeds: range) -> list[sweep.Run]:
    """Returns all scales and both decays on some seeds."""
    agents = testbed_runs.grid(["ensemble-p"], size)
    return testbed_runs.make_runs(settings(size), {setting.id: agents for setting in settings(size)}, seeds, size)


def stages(preset: str) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns all scales and both decays on the reporting seeds, some seeds at a time. Nothing is tuned."""
    size = SIZES[preset]

    def piece(seeds: range, rows: Sequence[dict[str, Any]]) -> list[sweep.Run]:
        return reporting_runs(size, seeds)

    return [functools.partial(piece, seeds) for seeds in size.reporting_pieces(SEEDS_PER_STAGE)]


def summarise(table: pd.DataFrame) -> pd.DataFrame:
    """Returns, per decay, T and scale, the normalised joint KL and its difference from the best scale."""
    import pandas as pd

    from benchmarks import stats as statistics

    lines = []
    for _, rows in table.groupby(["l2", "data_ratio"]):
        l2, ratio = float(rows.l2.iloc[0]), float(rows.data_ratio.iloc[0])
        seeds = statistics.by_seed(rows, SCORE, columns="prior_scale")
        best = seeds.mean().idxmin()
        for scale in seeds:
            interval = statistics.mean_interval(seeds[scale])
            behind = statistics.paired_difference(seeds[scale], seeds[best])
            lines.append(
                {
                    "l2": l2,
                    "num_train": round(INPUT_DIM * ratio),
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
    from benchmarks.figures.testbed import figure_2

    size = SIZES[preset]
    raw = testbed_drawing.reporting_rows(rows, reporting_runs(size, size.seeds_to_report))
    summary = summarise(tuning.normalise(raw))
    canvas, axes = testbed_drawing.make_figure(2, 10.5, 4.8, sharey=True)
    scales, counts = sorted(set(summary.prior_scale)), sorted(set(summary.num_train))
    for axis, (l2, label) in zip(axes, DECAYS.items(), strict=True):
        for count, colour in zip(counts, ("tab:blue", "tab:green", "tab:orange", "tab:red"), strict=False):
            mine = summary[(summary.num_train == count) & (summary.l2 == l2)]
            places = [scales.index(scale) for scale in mine.prior_scale]
            testbed_drawing.curve(axis, places, mine, colour, label=f"T = {count:,}")
        axis.axhline(1.0, color="black", ls=":", lw=1.5, label="uniform agent")
        axis.set_xticks(range(len(scales)), [f"{scale:g}" for scale in scales])
        axis.set(xlabel="scale of the prior functions (0: none)")
        axis.set_title(label, fontsize=10)
    axes[0].set(ylabel="joint KL / joint KL of the uniform agent")
    axes[0].set_ylim(bottom=0.0)
    axes[1].legend(frameon=False, fontsize=9)
    canvas.suptitle("Figure 7: ensemble-p against the scale of its prior functions")
    testbed_drawing.caption(
        canvas,
        f"d = {INPUT_DIM}, temperature ρ = {TEMPERATURE:g}, {summary['count'].max()} seeds, {size.num_members} "
        "members; joint KL of τ = 10 labels, dyadic. Bars: 95% bootstrap intervals over seeds.",
    )
    tables = {"figure_7": summary, "figure_7_runs": figure_2.slim(raw)}
    return [*testbed_drawing.save(canvas, tables, folder, "figure_7"), *_told(summary)]


def _told(summary: pd.DataFrame) -> list[str]:
    lines = []
    for (l2, count), rows in summary.groupby(["l2", "num_train"]):
        best, zero = rows[rows.best].iloc[0], rows[rows.prior_scale == 0.0].iloc[0]
        lines.append(
            f"l2 = {l2:g}, T = {count}: scale 0 at {zero.estimate:.3f} of the uniform agent, best scale "
            f"{best.prior_scale:g} at {best.estimate:.3f}"
        )
    return lines
