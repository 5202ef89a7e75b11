"""Injects effects into made-up tables of linear regression; see `injection`."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.claims.injection import inject
from tf_ensembles.benchmarks.claims.base import Region
from tf_ensembles.benchmarks.claims.estimators import identities, linear, snr
from tf_ensembles.benchmarks.figures.linear import identities as checks

_NONE = Region(high=0.5)  # of settings, checks or pairs: 0 lies inside, 1 outside


@inject.register(linear.Linear)
def _(estimator, content, value):
    content[estimator.figure] = _LINEAR[estimator.kind](content[estimator.figure], estimator, value)


def _checks(table, estimator, value):
    names = [f"proposition {number}: a check" for number in table.proposition]
    return table.assign(check=names, value=value(estimator.region))


def _bound(table, estimator, value):
    # What the bound is not about lies below it, as ensemble-bp does.
    mine = (table.agent == "ensemble-p-weighted").to_numpy()
    kl = np.where(mine, 1.0 + value(estimator.region), 0.0)
    if value(Region(high=0.5)) > 0.5:  # One setting below the bound, and the others so far above as to make up for it.
        odd = (table.setting == table.setting.iloc[0]).to_numpy()
        kl = np.where(mine, np.where(odd, 0.9, 1.5), 0.0)
    return table.assign(kl=kl, lower_bound=1.0, lower_bound_error=0.0, kl_error=1e-3)


def _conditioning(table, estimator, value):
    gap = value(estimator.region)
    noise = 0.01 * np.cos(np.arange(len(table)))
    return table.assign(kl=1.0 + noise + np.where(table.condition == table.condition.max(), gap, 0.0))


def _special(table, estimator, value):
    measured = value(estimator.region)
    return table.assign(measured=measured, error=abs(measured) / 100.0)


def _joint(table, estimator, value):
    kept = table[table.agent.isin(["ensemble-p", "ensemble-p-weighted"])].copy()
    kept["kl"] = 2.0
    last = kept.tau == kept.tau.max()
    for place in kept.index[last]:
        kept.loc[place, "kl"] = 2.0 * (1.0 + value(estimator.region))
    return kept.assign(coefficient_kl=2.0, kl_error=0.01)


def _members(table, estimator, value):
    table = table.assign(kl=1.0, infinite_ensemble=1.0, kl_error=0.005)
    for _, rows in table.groupby("agent", sort=False):
        table.loc[rows.index, "kl"] = 1.0 + value(estimator.region)
    return table


_LINEAR = {
    "exact": _checks,
    "deterministic": _checks,
    "bound": _bound,
    "conditioning": _conditioning,
    "homoscedastic": _special,
    "joint": _joint,
    "members": _members,
}


@inject.register(snr.HighSnr)
def _(estimator, content, value):
    table = content["B4"].sort_values(["num_data", "snr"], kind="stable")
    table = table.assign(measured=0.0, error=1e-6, slope=0.0, slope_error=1e-6, lower_bound=0.0, predicted=1.0)
    kls, missed = table.quantity == "kl", table.quantity == "missed spread"
    even, wide = kls & (table.condition == 1.0), kls & (table.condition > 1.0)
    table.loc[table.num_data < table.dim, "predicted"] = np.nan
    high = (table.case == "high snr") & (table.snr == table.snr.max())
    if estimator.kind == "slope":
        for count in sorted(set(table.num_data[even & (table.case == "high snr")])):
            table.loc[even & (table.num_data == count), "slope"] = value(estimator.region)
    elif estimator.kind == "limit":
        for place in table.index[high & even & table.predicted.notna()]:
            table.loc[place, "measured"] = 1.0 + value(estimator.region)
    elif estimator.kind == "many":
        most = table.num_data == table.num_data[high & even].max()
        table.loc[high & even & most, "measured"] = value(estimator.region)
    elif estimator.kind == "few":
        few = high & missed & (table.num_data < table.dim)
        table.loc[few & (table.agent == "ensemble-p"), "measured"] = value(estimator.region)
        table.loc[few & (table.agent == "ensemble-n"), "measured"] = value(Region(low=10.0 * estimator.region.high))
    elif estimator.kind == "untuned":
        for place in table.index[high & missed & (table.agent == "ensemble-p, untuned")]:
            table.loc[place, "measured"] = value(estimator.region)
    else:
        for place in table.index[high & wide]:
            table.loc[place, "measured"] = value(estimator.region)
            table.loc[place, "lower_bound"] = value(estimator.region)
    content["B4"] = table


@inject.register(snr.UnevenNoise)
def _(estimator, content, value):
    name = estimator.figure
    table = content[name]
    uneven = table.heteroscedasticity > 0.0 if name == "T1" else table.noise == estimator.along
    keys = table.groupby(["dim", "num_data", "condition"], sort=False).ngroup()
    # A little different in each setting, and exactly as wanted on average.
    wave = 0.001 * np.cos(np.arange(keys.max() + 1))
    gaps = value(estimator.region) + (wave - wave.mean())[keys]
    if value(_NONE) > _NONE.high:  # One setting in which it falls, and the others so far above as to make up for it.
        gaps = np.where(keys == 0, -1.0, 1.0)
    content[name] = table.assign(kl=1.0 + np.where(uneven, gaps, 0.0), kl_error=1e-6)


@inject.register(identities.Identity)
def _(estimator, content, value):
    table = content["L-identities"].assign(measured=1.0, predicted=1.0, error=1e-3, information=0.1)
    rounding = Region(high=identities.ROUNDING)
    if estimator.kind == "bound":
        rows = table.check == checks.BOUND
        table.loc[rows & (table["at"] > 0.0), "measured"] = value(estimator.region)
        table.loc[rows & (table["at"] == 0.0), "measured"] = value(rounding)
    elif estimator.kind == "unbiased":
        table.loc[table.check == checks.UNBIASED, "measured"] = value(rounding)
        for check in (checks.BIASED, checks.UNIQUE):
            table.loc[table.check == check, "measured"] = value(estimator.region)
    else:
        _inject_drawn(table, estimator, value)
    content["L-identities"] = table


def _inject_drawn(table, estimator, value):
    """What was drawn against what is exact, at the most labels; then the checks over all."""
    entropy = estimator.kind == "entropy"
    rows = table.check == (checks.CROSS_ENTROPY if entropy else checks.ENVIRONMENT)
    # Agents differ, so that they have a rank.
    order = {agent: 1.0 + place for place, agent in enumerate(dict.fromkeys(table.agent[rows]))}
    for name in ("measured", "predicted"):
        table.loc[rows, name] = table.agent[rows].map(order)
    last = rows & (table["at"] == table["at"][rows].max())
    for place in table.index[last]:
        table.loc[place, "measured"] *= 1.0 + value(estimator.region)
    first = table.index[rows & (table["at"] == table["at"][rows].min())][0]
    if entropy and value(_NONE) > _NONE.high:
        table.loc[first, "measured"] *= -1.0  # Below ensemble-bp, where the KL is above.
    if value(_NONE) > _NONE.high:
        table.loc[first, "measured"] *= 1.1
