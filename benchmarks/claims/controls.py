"""Controls: made-up tables in which a claim holds, and tables in which one of its statements fails.

A claim that is not supported where it was made to hold, or that is where it was made to fail, measures nothing. Every
kind of test knows here how to plant an effect of a given size in the tables that it reads, so that a new claim has its
controls at once. Seeds differ a little, so that intervals have a width; means are exactly what was planted, so that
nothing depends on chance.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.claims import linear_tests, tests
from benchmarks.claims.base import SCORE, Claim, Region, Test
from benchmarks.claims.designs import design
from benchmarks.figures import registry
from benchmarks.figures.base import Figure
from benchmarks.figures.tables import Tables
from benchmarks.stats import NoDataError

if TYPE_CHECKING:
    import pandas as pd

SCORES = ("kl_marginal", "kl_joint", "nll_marginal", "nll_joint", "regret")
_HARD, _NOISE = 0.01, 0.005  # how much problems differ, and agents on a problem

Made = dict[str, "pd.DataFrame"]


class MadeTables(Tables):
    """Tables of figures that were made up, by the ids of the figures."""

    def __init__(self, made: Made):
        """Expects tables as `Figure.table` returns them."""
        super().__init__("", part="made up")
        self.made = made

    def _figure_table(self, figure: Figure) -> pd.DataFrame:
        if figure.id not in self.made:
            raise NoDataError(f"no table of {figure.id}")
        return self.made[figure.id]


@dataclasses.dataclass
class Planter:
    """Says how large each effect of a claim is to be, in the order of its effects.

    `broken` is the number of the effect that does not lie where the claim says; None where all do. `slight` plants a
    difference of half the margin in it instead: alike, but not the same.
    """

    broken: int | None = None
    slight: bool = False
    asked: int = 0

    def value(self, region: Region) -> float:
        """Returns the size of the next effect."""
        self.asked += 1
        if self.asked - 1 != self.broken:
            return inside(region)
        return -SCORE.value / 2 if self.slight else outside(region)


def _step(end: float) -> float:
    """A margin; half of an end that is smaller than that, as of a limit for rounding."""
    return abs(end) / 2 if 0.0 < abs(end) < SCORE.value else SCORE.value


def inside(region: Region) -> float:
    """Returns an effect that clearly lies in a region: in its middle, or a margin from its end."""
    if math.isfinite(region.low) and math.isfinite(region.high):
        return (region.low + region.high) / 2
    return region.high - _step(region.high) if math.isfinite(region.high) else region.low + _step(region.low)


def outside(region: Region) -> float:
    """Returns an effect that clearly lies out of a region, by a margin: where that is ±5%, at twice the margin."""
    if math.isfinite(region.high):
        return region.high + _step(region.high)
    return region.low - _step(region.low)


def make(claim: Claim, sizes: Mapping[str, Any], planter: Planter | None = None, seed: int = 0) -> MadeTables:
    """Returns tables for a claim in which its effects are planted.

    Args:
        claim: the claim.
        sizes: by the ids of figures, their sizes.
        planter: how large effects are; by default as the claim says.
        seed: of what differs between seeds and agents.
    """
    chance = np.random.default_rng(seed)
    made = {name: _blank(registry.figure(name), sizes[name], chance) for name in figures_of(claim.test)}
    plant(claim.test, made, (planter or Planter()).value)
    return MadeTables(made)


def figures_of(test: Test) -> tuple[str, ...]:
    """Returns the ids of the figures whose tables a test reads."""
    if isinstance(test, tests.Several):
        return tuple(dict.fromkeys(name for one in test.tests for name in figures_of(one)))
    if isinstance(test, tests.GainGrowsWithMembers):
        return test.small, test.large
    if isinstance(test, linear_tests.Linear):
        return (_LINEAR[test.kind][0],)
    return ("F7",) if isinstance(test, tests.PriorScale) else (test.figure,)  # type: ignore[attr-defined]


def _blank(figure: Figure, size: Any, chance: np.random.Generator) -> pd.DataFrame:
    """The rows of a figure's table with scores of 1, about: the same problem is as hard for all."""
    table = design(figure, size).copy()
    if figure.part == "linear":
        return table
    keys = table.groupby(["setting", "seed"], sort=False).ngroup().to_numpy()
    hard = 1.0 + _HARD * chance.standard_normal(keys.max() + 1)
    for score in SCORES:
        table[score] = hard[keys] * (1.0 + _NOISE * chance.standard_normal(len(table)))
    return table


def _set(table: pd.DataFrame, rows: Any, score: str, mean: float) -> None:
    """Gives some rows' score a mean."""
    if not np.any(rows):
        raise NoDataError("no rows to plant an effect in")
    values = table.loc[rows, score]
    table.loc[rows, score] = values * (mean / values.mean())


Value = Callable[[Region], float]


@functools.singledispatch
def plant(test: Test, made: Made, value: Value) -> None:
    """Plants the effects of a test in tables; `value` is asked for the size of each, in their order."""
    raise ValueError(f"Expected a test with controls: a case of `plant`. Received: {type(test).__name__}")


@plant.register(tests.Several)
def _(test: tests.Several, made: Made, value: Value) -> None:
    for one in test.tests:
        plant(one, made, value)


@plant.register(tests.Agents)
def _(test: tests.Agents, made: Made, value: Value) -> None:
    table = made[test.figure]
    rows = np.ones(len(table), bool)
    for column, wanted in test.where.items():
        rows &= (table[column] == wanted).to_numpy()
    for column, end in test.at.items():
        asked = {name for pair in test.pairs for name in (pair.first, pair.second)}
        values = table.loc[rows & table.agent.isin(asked), column]
        rows &= (table[column] == (values.min() if end == "smallest" else values.max())).to_numpy()
    for score in test.scores:
        _plant_pairs(table, rows, score, test.pairs, [value(pair.region) for pair in test.pairs])


@plant.register(tests.Regret)
def _(test: tests.Regret, made: Made, value: Value) -> None:
    table = made[test.figure]
    sizes = [value(pair.region) for pair in test.pairs]
    for horizon in sorted(set(table.horizon)):
        _plant_pairs(table, (table.horizon == horizon).to_numpy(), "regret", test.pairs, sizes)


def _plant_pairs(
    table: pd.DataFrame, rows: Any, score: str, pairs: Sequence[tests.Pair], differences: Sequence[float]
) -> None:
    """Gives agents means by which every pair differs as wanted; where pairs share agents, the odd ones come first."""
    wanted = list(zip(pairs, differences, strict=True))
    wanted.sort(key=lambda one: one[1] == inside(one[0].region))
    means: dict[str, float] = {}
    for pair, difference in wanted:
        if pair.first in means and pair.second not in means:
            means[pair.second] = means[pair.first] / (1.0 + difference)
        base = means.setdefault(pair.second, 1.0)
        means.setdefault(pair.first, base * (1.0 + difference))
    for agent, mean in means.items():
        _set(table, rows & (table.agent == agent).to_numpy(), score, mean)


@plant.register(tests.GainAlong)
def _(test: tests.GainAlong, made: Made, value: Value) -> None:
    table = made[test.figure]
    column = table[test.along]
    values = sorted(set(column[table.agent.isin([test.first, test.second])]))
    places = {"smallest": values[:1], "middle": values[1:-1], "largest": values[-1:]}
    gains = {test.there: 0.0, test.here: value(test.region)}
    for place, gain in gains.items():
        at = column.isin(places[place]).to_numpy()
        for agent, mean in ((test.first, 1.0 - gain), (test.second, 1.0)):
            _set(table, at & (table.agent == agent).to_numpy(), test.score, mean)


@plant.register(tests.GainGrowsWithMembers)
def _(test: tests.GainGrowsWithMembers, made: Made, value: Value) -> None:
    for name, difference in ((test.small, 0.0), (test.large, value(test.region))):
        table = made[name]
        for agent, mean in ((test.first, 1.0 + difference), (test.second, 1.0)):
            _set(table, (table.agent == agent).to_numpy(), test.score, mean)


@plant.register(tests.PriorScale)
def _(test: tests.PriorScale, made: Made, value: Value) -> None:
    table = made["F7"]
    mine = (table.l2 == test.l2).to_numpy()
    if test.kind == "zero is uniform":
        few = (table.data_ratio == table.data_ratio.min()).to_numpy()
        _set(table, mine & few & (table.prior_scale == 0.0).to_numpy(), "kl_joint", 1.0 + value(test.region))
        return
    right = 0.4
    means = {0.0: 1.0, test.right: right}
    if test.kind == "depends":
        means[test.right] = 1.0 + value(test.region)
    else:
        near = [scale for scale in test.near if scale in set(table.prior_scale)]
        means |= {scale: right + value(test.region) * (1.0 - right) for scale in near}
    for scale, mean in means.items():
        _set(table, mine & (table.prior_scale == scale).to_numpy(), "kl_joint", mean)


@plant.register(linear_tests.Linear)
def _(test: linear_tests.Linear, made: Made, value: Value) -> None:
    name, fill = _LINEAR[test.kind]
    made[name] = fill(made[name], test, value)


def _checks(table: pd.DataFrame, test: linear_tests.Linear, value: Value) -> pd.DataFrame:
    names = [f"proposition {number}: a check" for number in table.proposition]
    return table.assign(check=names, value=value(test.region))


def _bound(table: pd.DataFrame, test: linear_tests.Linear, value: Value) -> pd.DataFrame:
    # What the bound is not about lies below it, as ensemble-bp does.
    mine = (table.agent == "ensemble-p-weighted").to_numpy()
    kl = np.where(mine, 1.0 + value(test.region), 0.0)
    if value(Region(high=0.5)) > 0.5:  # One setting below the bound, and the others so far above as to make up for it.
        odd = (table.setting == table.setting.iloc[0]).to_numpy()
        kl = np.where(mine, np.where(odd, 0.9, 1.5), 0.0)
    return table.assign(kl=kl, lower_bound=1.0, lower_bound_error=0.0, kl_error=1e-3)


def _conditioning(table: pd.DataFrame, test: linear_tests.Linear, value: Value) -> pd.DataFrame:
    gap = value(test.region)
    noise = 0.01 * np.cos(np.arange(len(table)))
    return table.assign(kl=1.0 + noise + np.where(table.condition == table.condition.max(), gap, 0.0))


def _special(table: pd.DataFrame, test: linear_tests.Linear, value: Value) -> pd.DataFrame:
    measured = value(test.region)
    return table.assign(measured=measured, error=abs(measured) / 100.0)


def _joint(table: pd.DataFrame, test: linear_tests.Linear, value: Value) -> pd.DataFrame:
    kept = table[table.agent.isin(["ensemble-p", "ensemble-p-weighted"])].copy()
    kept["kl"] = 2.0
    last = kept.tau == kept.tau.max()
    for place in kept.index[last]:
        kept.loc[place, "kl"] = 2.0 * (1.0 + value(test.region))
    return kept.assign(coefficient_kl=2.0, kl_error=0.01)


def _members(table: pd.DataFrame, test: linear_tests.Linear, value: Value) -> pd.DataFrame:
    table = table.assign(kl=1.0, infinite_ensemble=1.0, kl_error=0.005)
    for _, rows in table.groupby("agent", sort=False):
        table.loc[rows.index, "kl"] = 1.0 + value(test.region)
    return table


_LINEAR: dict[str, tuple[str, Callable[[Any, linear_tests.Linear, Value], Any]]] = {
    "exact": ("P", _checks),
    "deterministic": ("P", _checks),
    "bound": ("T1", _bound),
    "conditioning": ("T1", _conditioning),
    "homoscedastic": ("B4", _special),
    "snr": ("B4", _special),
    "joint": ("A1", _joint),
    "members": ("L-members", _members),
}


def shuffled(tables: MadeTables, chance: np.random.Generator) -> MadeTables:
    """Returns tables whose scores are dealt out to agents at random, within each problem."""
    return MadeTables({name: _deal(table, chance) for name, table in tables.made.items()})


def _deal(table: pd.DataFrame, chance: np.random.Generator) -> pd.DataFrame:
    scores = [name for name in (*SCORES, "kl") if name in table]
    keys = [name for name in ("setting", "seed", "tuning", "horizon", "step") if name in table]
    if "num_members" in table and "vgg" not in set(table.agent) and "mlp" not in set(table.agent):
        keys.append("num_members")  # A single network has one member, and takes part in the deal.
    groups = table.groupby(keys, sort=False).ngroup().to_numpy()
    ordered = np.argsort(groups, kind="stable")
    dealt = np.lexsort((chance.random(len(table)), groups))
    values = table[scores].to_numpy(copy=True)
    values[ordered] = values[dealt]
    return table.assign(**dict(zip(scores, values.T, strict=True)))
