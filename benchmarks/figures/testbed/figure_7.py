"""Figure 7: how much ensemble-p depends on the scale of its prior functions. d = 100, temperature 0.01, per T.

The claims: the scale matters, but around the right one performance is flat; and at scale 0, without prior functions, an
ensemble is close to the uniform agent where data are few. The paper does not say which weight decay the figure has, and
its text scales decay otherwise than the public code does, so both are drawn. Labels are imbalanced in most problems: an
agent that knows their frequencies and nothing else is better than the uniform one, and drawn beside it. The paper sees
the same trend "across other settings"; some are run with the public code's decay.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import NOT_STATED
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import base, runs
from tf_ensembles.benchmarks.figures.testbed.base import P
from tf_ensembles.benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run

INPUT_DIM, TEMPERATURE = 100, 0.01
SCORE = "kl_joint"

# Prior scales as multiples of 1 / sqrt(rho) = 10; the reference's default is 3.
SCALES = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
# Decay is l2 * d * sqrt(rho) in the public code. The paper's d / sqrt(rho) is 1 / rho = 100 times that.
CODE, TEXT = 1.0, 100.0
DECAYS = {CODE: "weight decay d √ρ of the public code", TEXT: "weight decay d / √ρ of the paper's text"}
OTHERS = ((100, 0.1), (10, 0.01), (10, 0.1))


@dataclasses.dataclass(frozen=True)
class Size(runs.Size):
    """How large the figure is made."""

    others: tuple[tuple[int, float], ...] = ()  # other dimensions and temperatures, with the public code's decay


def _size(**options: Any) -> Size:
    scales = options.pop("scales")
    priors = tuple((scale, "1/sqrt(rho)") for scale in scales)
    decays = {"l2_grid": tuple(DECAYS)}
    return Size(tuning_members=options["num_members"], tuning_seeds=0, prior_grid=priors, **decays | options)


class _Figure(base.UntunedFigure):
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
    apart = {"prior_scale": "scale {:g}/√ρ", "l2": "decay x {:g}"}
    presets = {
        # No claim reads the decay of the paper's text: seeds decide more.
        "quick": _size(
            num_members=10,
            reporting_seeds=8,
            data_ratios=(1.0, 100.0),
            l2_grid=(CODE,),
            scales=(0.0, 1.0, 3.0, 10.0),
            num_batches=300,
        ),
        "standard": _size(num_members=20, reporting_seeds=10, scales=SCALES[:-1]),
        "paper": _size(num_members=100, reporting_seeds=10, scales=SCALES, others=OTHERS),
        # The paper's size, on seeds that no other preset reports.
        "large": _size(num_members=100, reporting_seeds=10, scales=SCALES, others=OTHERS, first_seed=100),
    }

    def runs_of(self, size: Size, seeds: range) -> list[Run]:
        """All scales on some seeds: both decays in the figure's own setting, the public code's in the others."""
        grid = runs.grid([P], size)
        agents = {
            runs.make_setting(dim, ratio, temperature): [
                runs.BASE_RATE_AGENT,
                *(agent for agent in grid if (dim, temperature) == (INPUT_DIM, TEMPERATURE) or agent.l2 == CODE),
            ]
            for dim, temperature in ((INPUT_DIM, TEMPERATURE), *size.others)
            for ratio in size.data_ratios
        }
        return runs.make_runs(list(agents), {setting.id: chosen for setting, chosen in agents.items()}, seeds, size)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the joint KL against the prior's scale: a line per T for either decay; a line per other setting."""
        mine = own_setting(table)
        scales = sorted(set(table.prior_scale))
        made = []
        for l2, how in DECAYS.items():
            rows = mine[(mine.agent == P) & (mine.l2 == l2)]
            if rows.empty:
                continue
            lines = [_line(f"T = {count:,}", one, scales) for count, one in rows.groupby("num_train")]
            constant = mine[mine.agent == runs.BASE_RATE]
            if len(constant):
                seeds = stats.by_seed(constant, SCORE)[runs.BASE_RATE]
                everywhere = [panels.point(place, stats.mean_interval(seeds)) for place in range(len(scales))]
                lines.append(panels.Series("frequencies of the labels", tuple(everywhere)))
            made.append(_panel(how, lines, [f"{scale / TEMPERATURE**0.5:g}" for scale in scales]))
        others = table[(table.agent == P) & (table.l2 == CODE)]
        lines = [
            _line(f"d = {dim}, ρ = {temperature:g}", rows, scales)
            for (dim, temperature), rows in others.groupby(["input_dim", "temperature"], sort=False)
        ]
        if len(lines) > 1:
            places = [f"{scale:g}" for scale in scales]
            made.append(_panel("other settings, mean over T", lines, places, "prior scale · √ρ"))
        return made

    def used(self, tables: Tables) -> Mapping[str, str]:
        table = own_setting(tables.of(self))
        return {
            **base.used(table[table.agent == P]),
            "prior scales": listing(table.prior_scale / table.temperature**0.5),
        }

    def shown(self, tables: Tables) -> str:
        return f"ensemble-p, d = {INPUT_DIM}, temperature ρ = {TEMPERATURE:g}; joint KL of 10 labels, dyadic."


def own_setting(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of the setting that the paper's figure shows."""
    return table[(table.input_dim == INPUT_DIM) & (table.temperature == TEMPERATURE)]


def _line(name: str, rows: pd.DataFrame, scales: list[float]) -> panels.Series:
    seeds = stats.by_seed(rows, SCORE, columns="prior_scale")
    points = [
        panels.point(scales.index(scale), stats.mean_interval(found)) for scale, found in seeds.items() if len(found)
    ]
    return panels.Series(name, tuple(points))


def _panel(title: str, lines: list[panels.Series], places: list[str], unit: str = "prior scale") -> panels.Panel:
    return panels.Panel(
        title,
        "joint KL / uniform guess",
        tuple(lines),
        kind="lines",
        x_label=f"{unit} (0: no prior functions)",
        places=tuple(places),
        reference=1.0,
        reference_name="uniform guess",
    )


FIGURE = _Figure()
