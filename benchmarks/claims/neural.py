"""Claims about neural bandits that are not the paper's: a claim for each family of problems, and what predicts regret.

Usage: `python -m benchmarks.claims.neural [RESULTS]` judges the tables of a results folder, by default
`benchmarks/results`. They are no part of the paper's family of tests; they are one family of their own (Holm).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.claims.base import HIGHER, LOWER, LOWER_RULE, REGRET, Claim, Effect, Estimator, Region
from tf_ensembles.benchmarks.claims.estimators.agents import Pair
from tf_ensembles.benchmarks.figures.tables import Tables, finite
from tf_ensembles.benchmarks.stats import Floats, Interval, NoDataError

if TYPE_CHECKING:
    import pandas as pd

REGRETS, CORRELATIONS = "bandit/neural.csv", "bandit/neural_joint.csv"
NETWORK, WHEEL, DATA = "random network", "wheel", "data"
P, BP, N, EPSILON = "ensemble-p", "ensemble-bp", "ensemble-n", "epsilon-greedy"
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class FamilyRegret(Estimator):
    """Compares agents' regret on a family, as a share of uniform play's, mean over settings, paired by seed."""

    figure = "NB"

    family: str
    pairs: tuple[Pair, ...]

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per pair."""
        table = tables.read(REGRETS, ("family", "setting", "agent", "seed", "share"))
        table = finite(table[table.family == self.family], ("share",))
        if table.empty:
            raise NoDataError(f"no rows of {self.family}")
        effects = []
        for pair in self.pairs:
            label = f"regret, {self.family}: {pair.first} against {pair.second}"
            effects.append(pair.effect(label, *stats.paired(table, "share", pair.first, pair.second)))
        return effects


@dataclasses.dataclass(frozen=True)
class RankCorrelation(Estimator):
    """Spearman's correlation over agents of regret with a score, or how much larger it is with one than another."""

    figure = "NB"

    score: str
    minus: str = ""
    region: Region = HIGHER

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect."""
        columns = ("agent", "seed", "regret", "kl_joint", "kl_marginal")
        found = rank_correlations(finite(tables.read(CORRELATIONS, columns), columns[2:]))
        if self.minus:
            label = f"rank correlation with regret: {self.score} minus {self.minus}"
            return [Effect(label, found["difference"], self.region, "share")]
        return [Effect(f"rank correlation of regret with {self.score}", found[self.score], self.region, "share")]


def rank_correlations(table: pd.DataFrame) -> dict[str, Interval]:
    """Returns Spearman's correlations over agents of mean regret with mean joint and marginal KL, and their difference.

    Intervals are percentiles of a bootstrap that draws agents and seeds anew: they say what other agents of this kind
    and other problems would have given. Its draws are fixed, so that the same table gives the same interval.
    """
    names = ("regret", "kl_joint", "kl_marginal")
    cells = {name: table.pivot(index="agent", columns="seed", values=name).dropna(axis=1).to_numpy() for name in names}
    agents, seeds = cells["regret"].shape
    if agents < 5 or seeds < 1:
        raise NoDataError(f"5 agents with the same seeds are needed, there are {agents} with {seeds}")
    chance, drawn = np.random.default_rng(0), []
    for _ in range(_RESAMPLES):
        some, those = chance.integers(agents, size=agents), chance.integers(seeds, size=seeds)
        if len(np.unique(some)) >= 4:
            drawn.append(_correlations({name: cell[some][:, those] for name, cell in cells.items()}))
    resampled = np.array(drawn)
    estimates = _correlations(cells)
    return {
        name: _percentiles(estimate, resampled[:, place], seeds)
        for place, (name, estimate) in enumerate(zip(("kl_joint", "kl_marginal", "difference"), estimates, strict=True))
    }


def _correlations(cells: dict[str, Floats]) -> tuple[float, float, float]:
    regret, joint, marginal = (_ranks(cells[name].mean(1)) for name in ("regret", "kl_joint", "kl_marginal"))
    both = [float(np.corrcoef(regret, other)[0, 1]) for other in (joint, marginal)]
    return both[0], both[1], both[0] - both[1]


def _ranks(values: Floats) -> Floats:
    """Ranks, equal ones averaged."""
    order = np.sort(values)
    return (np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right") - 1) / 2.0


def _percentiles(estimate: float, drawn: Floats, count: int) -> Interval:
    drawn = drawn[np.isfinite(drawn)]

    def ends(level: float) -> tuple[float, float]:
        low, high = np.quantile(drawn, [level / 2, 1.0 - level / 2])
        return float(min(low, estimate)), float(max(high, estimate))

    return Interval(estimate, *ends(stats.LEVEL), count, ends)


def _family(name: str, family: str) -> list[Claim]:
    return [
        Claim(
            f"NB-{name}-{agent.removeprefix('ensemble-')}",
            f"ours: {family}",
            f"{family}: Thompson sampling with {agent} has less regret than with ensemble-n, and than epsilon-greedy.",
            FamilyRegret(family, (Pair(agent, N, LOWER), Pair(agent, EPSILON, LOWER))),
            LOWER_RULE,
            margin=REGRET,
        )
        for agent in (P, BP)
    ]


CLAIMS: tuple[Claim, ...] = (
    *_family("network", NETWORK),
    *_family("wheel", WHEEL),
    *_family("data", DATA),
    Claim(
        "NB-joint",
        "ours: random networks",
        "Over some twenty agents, those of lower joint KL have less regret.",
        RankCorrelation("kl_joint"),
        "the 95% interval of the rank correlation lies above 0",
    ),
    Claim(
        "NB-joint-marginal",
        "ours: random networks",
        "Joint KL predicts regret better than marginal KL does.",
        RankCorrelation("kl_joint", "kl_marginal"),
        "the 95% interval of the difference of rank correlations lies above 0",
    ),
)


if __name__ == "__main__":
    judge.tell_family(CLAIMS, __doc__)
