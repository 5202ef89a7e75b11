"""How effects of a wanted size are planted in made-up tables: a case of `plant` for every kind of test.

Means are exactly what was planted, so that nothing depends on chance.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.claims.base import SCORE, Region, Test
from benchmarks.claims.tests import agents as tests
from benchmarks.claims.tests import contrasts
from benchmarks.stats import NoDataError

if TYPE_CHECKING:
    import pandas as pd

Made = dict[str, "pd.DataFrame"]  # tables of figures, by their ids
Value = Callable[[Region], float]


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


@functools.singledispatch
def figures_of(test: Test) -> tuple[str, ...]:
    """Returns the ids of the figures whose tables a test reads."""
    return (test.figure,)  # type: ignore[attr-defined]


@figures_of.register(tests.Several)
def _(test: tests.Several) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in test.tests for name in figures_of(one)))


@figures_of.register(tests.GainGrowsWithMembers)
def _(test: tests.GainGrowsWithMembers) -> tuple[str, ...]:
    return test.small, test.large


@figures_of.register(tests.PriorScale)
def _(test: tests.PriorScale) -> tuple[str, ...]:
    return ("F7",)


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
    for column, limit in test.most.items():
        rows &= (table[column] <= limit).to_numpy()
    for column, end in test.at.items():
        asked = {name for pair in test.pairs for name in (pair.first, pair.second)}
        values = table.loc[rows & table.agent.isin(asked), column]
        rows &= (table[column] == (values.min() if end == "smallest" else values.max())).to_numpy()
    parts = (
        [rows & (table[test.each] == one).to_numpy() for one in sorted(set(table[test.each]))] if test.each else [rows]
    )
    for part in parts:
        for score in test.scores:
            _plant_pairs(table, part, score, test.pairs, [value(pair.region) for pair in test.pairs])


@plant.register(contrasts.GainContrast)
def _(test: contrasts.GainContrast, made: Made, value: Value) -> None:
    table = made[test.figure]
    rows = np.ones(len(table), bool)
    for column, wanted in test.where.items():
        rows &= (table[column] == wanted).to_numpy()
    for name, gain in ((test.there, 0.0), (test.here, value(test.region))):
        mine = rows & (table[test.column] == name).to_numpy()
        for agent, mean in ((test.first, 1.0 - gain), (test.second, 1.0)):
            set_mean(table, mine & (table.agent == agent).to_numpy(), test.score, mean)


@plant.register(contrasts.Treatments)
def _(test: contrasts.Treatments, made: Made, value: Value) -> None:
    table = made[test.figure]
    for agent in test.agents:
        for name, mean in ((test.second, 1.0), (test.first, 1.0 + value(test.region))):
            set_mean(table, ((table.agent == agent) & (table[test.column] == name)).to_numpy(), test.score, mean)


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
        set_mean(table, rows & (table.agent == agent).to_numpy(), score, mean)


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
            set_mean(table, at & (table.agent == agent).to_numpy(), test.score, mean)


@plant.register(tests.GainGrowsWithMembers)
def _(test: tests.GainGrowsWithMembers, made: Made, value: Value) -> None:
    for name, difference in ((test.small, 0.0), (test.large, value(test.region))):
        table = made[name]
        for agent, mean in ((test.first, 1.0 + difference), (test.second, 1.0)):
            set_mean(table, (table.agent == agent).to_numpy(), test.score, mean)


@plant.register(tests.PriorScale)
def _(test: tests.PriorScale, made: Made, value: Value) -> None:
    table = made["F7"]
    place = ((table.input_dim == test.input_dim) & (table.temperature == test.temperature)).to_numpy()
    constant = (table.agent == tests.FREQUENCIES).to_numpy()
    mine = place & ~constant & (table.l2 == test.l2).to_numpy()
    if test.kind.startswith("zero"):
        few = place & (table.data_ratio == table.data_ratio.min()).to_numpy()
        if test.kind == "zero is frequencies":
            set_mean(table, few & constant, "kl_joint", 1.0)
        set_mean(table, mine & few & (table.prior_scale == 0.0).to_numpy(), "kl_joint", 1.0 + value(test.region))
        return
    right = 0.4
    means = {0.0: 1.0, test.right: right}
    if test.kind == "depends":
        means[test.right] = 1.0 + value(test.region)
    else:
        near = [scale for scale in test.near if scale in set(table.prior_scale)]
        means |= {scale: right + value(test.region) * (1.0 - right) for scale in near}
    for scale, mean in means.items():
        set_mean(table, mine & (table.prior_scale == scale).to_numpy(), "kl_joint", mean)


def set_mean(table: pd.DataFrame, rows: Any, score: str, mean: float) -> None:
    """Gives some rows' score a mean."""
    if not np.any(rows):
        raise NoDataError("the settings or agents that it asks for are not run")
    values = table.loc[rows, score]
    table.loc[rows, score] = values * (mean / values.mean())
