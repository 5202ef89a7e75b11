"""Figure 7: how much ensemble-p depends on the scale of its prior functions. d = 100, temperature 0.01, per T.

The claims: the scale matters, but around the right one performance is flat; and at scale 0, without prior functions, an
ensemble is close to the uniform agent where data are few. The paper does not say which weight decay the figure has, and
its text scales decay otherwise than the public code does, so both are drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks import stats
from benchmarks.figures import panels
from benchmarks.figures.base import NOT_STATED, Rows, Stage
from benchmarks.figures.tables import Tables
from benchmarks.figures.testbed import base, runs
from benchmarks.figures.testbed.base import P
from benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd

    from trainers.sweeps.runs import Run

INPUT_DIM, TEMPERATURE = 100, 0.01
SCORE = "kl_joint"

# Prior scales as multiples of 1 / sqrt(rho) = 10; the reference's default is 3.
SCALES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Decay is l2 * d * sqrt(rho) in the public code. The paper's d / sqrt(rho) is 1 / rho = 100 times that.
DECAYS = {1.0: "weight decay d √ρ of the public code", 100.0: "weight decay d / √ρ of the paper's text"}


def _size(**options: Any) -> runs.Size:
    scales = options.pop("scales")
    priors = tuple((scale, "1/sqrt(rho)") for scale in scales)
    return runs.Size(
        tuning_members=options["num_members"], tuning_seeds=0, l2_grid=tuple(DECAYS), prior_grid=priors, **options
    )


class _Figure(base.TestbedFigure):
    id, name, sweep, place = "F7", "figure_7", "figure_7", (5.1, 7)
    title = "Figure 7: the scale of the prior functions"
    about = (
        "Neural Testbed, d = 100, temperature 0.01: ensemble-p against the scale of its prior, by training examples."
    )
    paper = {
        "members": "100",
        "reported seeds": "10",
        "input dimensions d": "100",
        "T / d": "1, 10, 100, 1,000",
        "temperatures": "0.01",
        "prior scales": NOT_STATED,
    }
    full_size = "The paper's size: 14 agents x 4 settings x 10 seeds, with 100 members and T up to 100,000."
    seeds_per_stage = 2
    presets = {
        "quick": _size(
            num_members=10,
            reporting_seeds=5,
            data_ratios=(1.0, 100.0),
            scales=(0.0, 1.0, 3.0, 10.0),
            num_batches=300,
        ),
        "standard": _size(num_members=20, reporting_seeds=10, scales=SCALES[:-1]),
        "paper": _size(num_members=100, reporting_seeds=10, scales=SCALES),
    }

    def _runs(self, size: runs.Size, seeds: range) -> list[Run]:
        """All scales and both decays on some seeds."""
        mine = [runs.make_setting(INPUT_DIM, ratio, TEMPERATURE) for ratio in size.data_ratios]
        agents = runs.grid([P], size)
        return runs.make_runs(mine, {setting.id: agents for setting in mine}, seeds, size)

    def stages(self, size: runs.Size, context: Mapping[str, Any]) -> list[Stage]:
        """Returns all scales and both decays on the reporting seeds, some seeds at a time. Nothing is tuned."""

        def piece(seeds: range, rows: Rows) -> list[Run]:
            return self._runs(size, seeds)

        return [functools.partial(piece, seeds) for seeds in size.reporting_pieces(self.seeds_per_stage)]

    def collect(self, size: runs.Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns the runs."""
        return {"figure_7_runs": base.slim(base.rows_of(rows, self._runs(size, size.seeds_to_report)))}

    def series_names(self, table: pd.DataFrame) -> list[str]:
        """Names the prior's scale and the weight decay instead of the agent, which is one."""
        return [f"scale {row.prior_scale:g}/√ρ, decay x {row.l2:g}" for row in table.itertuples()]

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the joint KL against the prior's scale, a line per T, for either weight decay."""
        scales = sorted(set(table.prior_scale))
        shown = tuple(f"{scale / TEMPERATURE**0.5:g}" for scale in scales)
        made = []
        for l2, how in DECAYS.items():
            lines = []
            for count, rows in table[table.l2 == l2].groupby("num_train"):
                seeds = stats.by_seed(rows, SCORE, columns="prior_scale")
                points = [
                    panels.point(scales.index(scale), stats.mean_interval(found))
                    for scale, found in seeds.items()
                    if len(found)
                ]
                lines.append(panels.Series(f"T = {count:,}", tuple(points)))
            made.append(
                panels.Panel(
                    how,
                    "joint KL / uniform guess",
                    tuple(lines),
                    kind="lines",
                    x_label="prior scale (0: no prior functions)",
                    places=shown,
                    reference=1.0,
                    reference_name="uniform guess",
                )
            )
        return made

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns sizes, seeds, settings and the scales."""
        table = tables.of(self)
        return {**super().used(tables), "prior scales": listing(table.prior_scale / table.temperature**0.5)}

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        return (
            f"ensemble-p, d = {INPUT_DIM}, temperature ρ = {TEMPERATURE:g}; joint KL of 10 labels, dyadic. "
            f"{self.seeds_and_members(tables)}"
        )


FIGURE = _Figure()
