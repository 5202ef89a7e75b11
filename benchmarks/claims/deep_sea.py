"""Claims about deep exploration, with the papers that made them: episodes until deep sea is learned, by size and agent.

Usage: `python -m benchmarks.claims.deep_sea [RESULTS]` judges the table of a results folder, by default
`benchmarks/results`. They are one family of tests of their own (Holm). Where a seed reached its limit of episodes, its
learning time is taken to be the limit: all differences are then at least as large as they are said to be.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.claims.base import HIGHER, Claim, Effect, Estimator, Region
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import Floats, NoDataError

if TYPE_CHECKING:
    import pandas as pd

EPSILON, N, P, BP, EPINET = "epsilon-greedy", "ensemble-n", "ensemble-p", "ensemble-bp", "epinet"
TIMES = "dqn/deep_sea.csv"
_COLUMNS = ("stage", "agent", "size", "value", "members", "limit", "seed", "episodes")
TIMES_AS_MANY = 20  # episodes that epsilon-greedy has, of those that priors need

OSBAND_2016 = "Osband et al. 2016, Deep Exploration via Bootstrapped DQN"
OSBAND_2018 = "Osband, Aslanides and Cassirer 2018, Randomized Prior Functions for Deep Reinforcement Learning"
OSBAND_2019 = "Osband et al. 2019, Deep Exploration via Randomized Value Functions"
OSBAND_2023 = "Osband et al. 2023, Approximate Thompson Sampling via Epistemic Neural Networks"


def _times(tables: Tables, stage: str) -> pd.DataFrame:
    """Returns learning times of a stage, those of seeds that did not learn at their limit."""
    table = tables.read(TIMES, _COLUMNS)
    table = table[table.stage == stage].copy()
    table["learned"] = table.episodes.notna()
    table["episodes"] = table.episodes.fillna(table.limit).astype(float)
    return table


def _logs(table: pd.DataFrame, **where: object) -> pd.Series[float]:
    """Returns log2 of the learning times of some rows, by seed."""
    for name, value in where.items():
        table = table[table[name] == value]
    if table.empty:
        raise NoDataError(f"no rows of {', '.join(f'{name} {value}' for name, value in where.items())}")
    return np.log2(table.set_index("seed").episodes).sort_index()


def slopes(table: pd.DataFrame, agent: str, of_logs: bool) -> Floats:
    """Returns each seed's slope of log2 of its learning time against size, or against log2 of size, `[seeds]`.

    Sizes at which a seed reached its limit are left out, and all larger ones: their times are not known.
    """
    own = table[table.agent == agent]
    failed = own[~own.learned]["size"]
    own = own[own["size"] < (failed.min() if len(failed) else math.inf)]
    cells = own.pivot(index="seed", columns="size", values="episodes").dropna(axis=0)
    if cells.shape[1] < 3:
        raise NoDataError(f"3 sizes that all seeds of {agent} learned are needed, there are {cells.shape[1]}")
    sizes = np.asarray(cells.columns, float)
    x = np.log2(sizes) if of_logs else sizes
    x = x - x.mean()
    return np.log2(cells.to_numpy()) @ x / (x @ x)


@dataclasses.dataclass(frozen=True)
class Growth(Estimator):
    """How learning time grows with size: doublings per row of cells, or a power of the size."""

    figure = "DS"

    agent: str
    region: Region
    power: bool = False

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect."""
        label = f"{self.agent}: {'power of the size' if self.power else 'doublings per unit of size'}"
        found = slopes(_times(tables, "report"), self.agent, self.power)
        return [Effect(label, stats.mean_interval(found), self.region, "share")]


@dataclasses.dataclass(frozen=True)
class AtLeast(Estimator):
    """How many doublings an agent's learning time is above 2^N, at some sizes."""

    figure = "DS"

    agent: str
    sizes: tuple[int, ...]

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per size."""
        table = _times(tables, "report")
        return [
            Effect(
                f"size {size}: {self.agent} over 2^{size}, doublings of learning time",
                stats.mean_interval(_logs(table, agent=self.agent, size=size) - float(size)),
                HIGHER,
                "share",
            )
            for size in self.sizes
        ]


@dataclasses.dataclass(frozen=True)
class Slower(Estimator):
    """How many doublings one agent's learning time is above another's, at some sizes, paired by seed."""

    figure = "DS"

    agent: str
    other: str
    sizes: tuple[int, ...]
    region: Region = HIGHER

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per size."""
        table = _times(tables, "report")
        effects = []
        for size in self.sizes:
            first, second = (_logs(table, agent=agent, size=size) for agent in (self.agent, self.other))
            found = stats.mean_interval((first - second).dropna())
            label = f"size {size}: {self.agent} over {self.other}, doublings of learning time"
            effects.append(Effect(label, found, self.region, "share"))
        return effects


@dataclasses.dataclass(frozen=True)
class Sensitive(Estimator):
    """How many doublings the learning time of ensemble-p is above that of a reference, at other values of one thing."""

    figure = "DS"

    stage: str
    column: str
    values: tuple[float, ...]
    reference: float
    region: Region = HIGHER

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per value."""
        table = _times(tables, self.stage)
        effects = []
        for value in self.values:
            found = _logs(table, **{self.column: value}) - _logs(table, **{self.column: self.reference})
            label = f"{self.stage} {value:g} over {self.reference:g}, doublings of learning time"
            effects.append(Effect(label, stats.mean_interval(found.dropna()), self.region, "share"))
        return effects


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "DS-exponential",
        OSBAND_2019,
        "Epsilon-greedy's learning time grows like 2^N.",
        Growth(EPSILON, Region(0.75, 1.5)),
        "the 90% interval of the doublings per unit of size lies within 0.75 and 1.5",
    ),
    Claim(
        "DS-dithering",
        OSBAND_2019,
        "Epsilon-greedy needs at least 2^N episodes (worded after sizes up to 7 were seen, before larger ones).",
        AtLeast(EPSILON, (8, 10)),
        "the 95% intervals of the doublings over 2^N at sizes 8 and 10 lie above 0",
    ),
    *(
        Claim(
            f"DS-polynomial-{agent.removeprefix('ensemble-')}",
            OSBAND_2018,
            f"With priors ({agent}), it grows as a polynomial of N.",
            Growth(agent, Region(high=3.0), power=True),
            "the 95% interval of the power lies below 3",
        )
        for agent in (P, BP)
    ),
    Claim(
        "DS-20",
        OSBAND_2018,
        "At N = 20, epsilon-greedy needs more than 20 times the episodes of an ensemble with priors.",
        Slower(EPSILON, P, (20,), Region(low=math.log2(TIMES_AS_MANY))),
        "the 95% interval of the doublings lies above log2(20) = 4.32",
    ),
    Claim(
        "DS-stall",
        OSBAND_2018,
        "Without priors, the ensemble stalls at moderate N: at 15 and 20 it needs more than twice the episodes.",
        Slower(N, P, (15, 20), Region(low=1.0)),
        "both 95% intervals of the doublings lie above 1",
    ),
    Claim(
        "DS-epinet",
        OSBAND_2023,
        "An epinet matches an ensemble: less than twice its episodes at N = 10 and 20 (written before it ran).",
        Slower(EPINET, P, (10, 20), Region(high=1.0)),
        "both 95% intervals of the doublings lie below 1",
    ),
    Claim(
        "DS-scale-small",
        OSBAND_2018,
        "Priors that are much smaller than values do not help: scale 0.01 is slower than 1.",
        Sensitive("scale", "value", (0.01,), 1.0),
        "the 95% interval of the doublings lies above 0",
    ),
    Claim(
        "DS-scale-deep",
        OSBAND_2018,
        "The same at N = 15, where an ensemble without priors stalls (added after N = 10 was seen).",
        Sensitive("deep-scale", "value", (0.01,), 1.0),
        "the 95% interval of the doublings lies above 0",
    ),
    Claim(
        "DS-scale-range",
        OSBAND_2018,
        "The scale need not be tuned within a factor of 3: 0.3 and 3 take less than twice the episodes of 1.",
        Sensitive("scale", "value", (0.3, 3.0), 1.0, Region(high=1.0)),
        "both 95% intervals of the doublings lie below 1",
    ),
    Claim(
        "DS-members",
        OSBAND_2016,
        "One or two members explore less well than ten.",
        Sensitive("members", "members", (1, 2), 10),
        "both 95% intervals of the doublings lie above 0",
    ),
)


if __name__ == "__main__":
    judge.tell_family(CLAIMS, __doc__)
