"""Made-up tables in which effects of a wanted size are injected: a case of `inject` for every kind of estimator.

A claim that is not supported where it was made to hold, or that is where it was made to fail, measures nothing. Means
are exactly what was injected, so that nothing depends on chance; seeds differ a little, so that intervals have a width.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pandas as pd

from tf_ensembles.benchmarks.claims import presets
from tf_ensembles.benchmarks.claims.base import SCORE
from tf_ensembles.benchmarks.claims.estimators import agents, gains, prior_scale
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.stats import NoDataError
from tf_ensembles.benchmarks.studies.shuffled_names import SCORES, TablesInMemory

HARD, NOISE = 0.01, 0.005  # how much problems differ, and agents on a problem


@dataclasses.dataclass
class EffectInjector:
    """Says how large each effect of a claim is to be, in the order of its effects.

    `broken` is the number of the effect that does not lie where the claim says; None where all do. `slight` injects a
    difference of half the margin in it instead: alike, but not the same.
    """

    broken: int | None = None
    slight: bool = False
    count: int = 0

    def value(self, region):
        """Returns the size of the next effect."""
        self.count += 1
        if self.count - 1 != self.broken:
            return inside(region)
        return -SCORE.value / 2 if self.slight else outside(region)


def _step(end):
    """A margin; half of an end that is smaller than that, as of a limit for rounding."""
    return abs(end) / 2 if 0.0 < abs(end) < SCORE.value else SCORE.value


def inside(region):
    """Returns an effect that clearly lies in a region: in its middle, or a margin from its end."""
    if math.isfinite(region.low) and math.isfinite(region.high):
        return (region.low + region.high) / 2
    return region.high - _step(region.high) if math.isfinite(region.high) else region.low + _step(region.low)


def outside(region):
    """Returns an effect that clearly lies out of a region, by a margin: where that is ±5%, at twice the margin."""
    if math.isfinite(region.high):
        return region.high + _step(region.high)
    return region.low - _step(region.low)


def make(claim, sizes, injector=None, seed=0):
    """Returns tables for a claim in which its effects are injected, at sizes of figures by their ids."""
    chance = np.random.default_rng(seed)
    content = {name: _blank(registry.figure(name), sizes[name], chance) for name in claim.estimator.figures}
    inject(claim.estimator, content, (injector or EffectInjector()).value)
    return TablesInMemory(content)


@functools.cache
def _planned(figure, size):
    return pd.DataFrame(presets.planned_rows(figure, size))


def _blank(figure, size, chance):
    """The rows of a figure's table with scores of 1, about: the same problem is as hard for all."""
    table = _planned(figure, size).copy()
    if figure.part == "linear":
        return table
    keys = table.groupby(["setting", "seed"], sort=False).ngroup().to_numpy()
    hard = 1.0 + HARD * chance.standard_normal(keys.max() + 1)
    for score in SCORES:
        table[score] = hard[keys] * (1.0 + NOISE * chance.standard_normal(len(table)))
    return table


@functools.singledispatch
def inject(estimator, content, value):
    """Injects the effects of an estimator into tables; `value` gives the size of each, in their order."""
    raise ValueError(f"Expected an estimator that `inject` has a case of. Received: {type(estimator).__name__}")


@inject.register(agents.AllOf)
def _(estimator, content, value):
    for part in estimator.estimators:
        inject(part, content, value)


@inject.register(agents.Agents)
def _(estimator, content, value):
    table = content[estimator.figure]
    rows = _where(table, estimator.where)
    for column, limit in estimator.most.items():
        rows &= (table[column] <= limit).to_numpy()
    for column, end in estimator.at.items():
        values = table.loc[rows & table.agent.isin(agents.agents_of(estimator.pairs)), column]
        rows &= (table[column] == (values.min() if end == "smallest" else values.max())).to_numpy()
    parts = [rows]
    if estimator.each:
        parts = [rows & _where(table, {estimator.each: each}) for each in sorted(set(table[estimator.each]))]
    for part in parts:
        for score in estimator.scores:
            sizes = [value(pair.region) for pair in estimator.pairs]
            _inject_pairs(table, part, score, estimator.pairs, sizes)


@inject.register(gains.GainContrast)
def _(estimator, content, value):
    table = content[estimator.figure]
    for name, gain in ((estimator.there, 0.0), (estimator.here, value(estimator.region))):
        rows = _where(table, {**estimator.where, estimator.column: name})
        _inject_gain(table, rows, estimator, gain)


@inject.register(agents.Treatments)
def _(estimator, content, value):
    table = content[estimator.figure]
    for agent in estimator.agents:
        for name, mean in ((estimator.second, 1.0), (estimator.first, 1.0 + value(estimator.region))):
            set_mean(table, _where(table, {"agent": agent, estimator.column: name}), estimator.score, mean)


@inject.register(agents.Regret)
def _(estimator, content, value):
    table = content[estimator.figure]
    sizes = [value(pair.region) for pair in estimator.pairs]
    for horizon in sorted(set(table.horizon)):
        _inject_pairs(table, _where(table, {"horizon": horizon}), "regret", estimator.pairs, sizes)


@inject.register(gains.GainAlong)
def _(estimator, content, value):
    table = content[estimator.figure]
    column = table[estimator.along]
    places = estimator.places(set(column[table.agent.isin([estimator.first, estimator.second])]))
    for place, gain in ((estimator.there, 0.0), (estimator.here, value(estimator.region))):
        _inject_gain(table, column.isin(places[place]).to_numpy(), estimator, gain)


@inject.register(gains.GainGrowsWithMembers)
def _(estimator, content, value):
    for name, difference in ((estimator.figure, 0.0), (estimator.large, value(estimator.region))):
        table = content[name]
        _inject_gain(table, np.ones(len(table), bool), estimator, -difference)


@inject.register(prior_scale.PriorScale)
def _(estimator, content, value):
    table = content["F7"]
    setting = _where(table, {"input_dim": estimator.input_dim, "temperature": estimator.temperature})
    constant = _where(table, {"agent": prior_scale.FREQUENCIES})
    rows = setting & ~constant & _where(table, {"l2": estimator.l2})
    means = {0.0: 1.0, estimator.right: 0.4}
    if estimator.kind.startswith("zero"):
        few = setting & _where(table, {"data_ratio": table.data_ratio.min()})
        if estimator.kind == "zero is frequencies":
            set_mean(table, few & constant, "kl_joint", 1.0)
        rows, means = rows & few, {0.0: 1.0 + value(estimator.region)}
    elif estimator.kind == "depends":
        means[estimator.right] = 1.0 + value(estimator.region)
    else:
        near = [scale for scale in estimator.near if scale in set(table.prior_scale)]
        means |= {scale: 0.4 + value(estimator.region) * 0.6 for scale in near}
    for scale, mean in means.items():
        set_mean(table, rows & _where(table, {"prior_scale": scale}), "kl_joint", mean)


def _where(table, wanted):
    rows = np.ones(len(table), bool)
    for column, value in wanted.items():
        rows &= (table[column] == value).to_numpy()
    return rows


def _inject_gain(table, rows, estimator, gain):
    for agent, mean in ((estimator.first, 1.0 - gain), (estimator.second, 1.0)):
        set_mean(table, rows & _where(table, {"agent": agent}), estimator.score, mean)


def _inject_pairs(table, rows, score, pairs, differences):
    """Gives agents means by which every pair differs as wanted; where pairs share agents, the odd ones come first."""
    wanted = list(zip(pairs, differences, strict=True))
    wanted.sort(key=lambda one: one[1] == inside(one[0].region))
    means = {}
    for pair, difference in wanted:
        if pair.first in means and pair.second not in means:
            means[pair.second] = means[pair.first] / (1.0 + difference)
        base = means.setdefault(pair.second, 1.0)
        means.setdefault(pair.first, base * (1.0 + difference))
    for agent, mean in means.items():
        set_mean(table, rows & _where(table, {"agent": agent}), score, mean)


def set_mean(table, rows, score, mean):
    """Gives some rows' score a mean."""
    if not np.any(rows):
        raise NoDataError("the settings or agents that it asks for are not run")
    values = table.loc[rows, score]
    table.loc[rows, score] = values * (mean / values.mean())
