"""The estimators of what a high signal-to-noise ratio and uneven noise do to ensemble-p (section 4.2, appendix B.4)."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tf_ensembles import extras
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims.base import Effect, Estimator, Region
from tf_ensembles.benchmarks.claims.estimators.agents import table_of
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import Floats, NoDataError

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class HighSnr(Estimator):
    """Appendix B.4's second case, from the table of its figure; everything at the highest ratio but the slope.

    - slope: how the KL of the best ensemble-p changes per factor 10 of the ratio, for each T, isotropic inputs.
    - limit: that KL against the limit predicted for its T.
    - many: that KL at the most data.
    - few: the share of the posterior's spread that is missed with fewer data than dimensions; ensemble-n is the
      control, which has to fail what ensemble-p has to pass.
    - untuned: the same share at every T, of ensemble-bp without its bootstrap.
    - anisotropic: the KL where inputs are anisotropic, and theorem 1's bound there.
    """

    figure = "B4"

    kind: Literal["slope", "limit", "many", "few", "untuned", "anisotropic"]
    region: Region

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of the kind."""
        table = table_of(tables, self.figure)
        high = table[table.case == "high snr"]
        top = high[high.snr == high.snr.max()]
        effects = list(getattr(self, f"_{self.kind}")(high if self.kind == "slope" else top))
        if not effects:
            raise NoDataError(f"no rows of the high-SNR case for {self.kind}")
        return effects

    def _slope(self, high: pd.DataFrame) -> list[Effect]:
        effects = []
        for row in _kls(high).drop_duplicates("num_data").to_dict("records"):
            label = f"KL of the best ensemble-p per factor 10 of the SNR, {_where(row)}"
            effects.append(self._effect(label, row, "slope"))
        return effects

    def _limit(self, top: pd.DataFrame) -> list[Effect]:
        effects = []
        for row in _kls(top).to_dict("records"):
            limit = float(row["predicted"])
            if np.isfinite(limit):
                share = stats.normal_interval(row["measured"] / limit - 1.0, row["error"] / limit, row["problems"])
                label = f"KL of the best ensemble-p against its limit {limit:.4f}, {_where(row)}"
                effects.append(Effect(label, share, self.region))
        return effects

    def _many(self, top: pd.DataFrame) -> list[Effect]:
        rows = _kls(top).sort_values("num_data").tail(1).to_dict("records")
        return [self._effect(f"KL of the best ensemble-p, {_where(row)}", row) for row in rows]

    def _few(self, top: pd.DataFrame) -> list[Effect]:
        missed = top[(top.quantity == "missed spread") & (top.num_data < top.dim)]
        effects = []
        for row in (
            missed[missed.agent.isin(["ensemble-p", "ensemble-n"])].sort_values("agent")[::-1].to_dict("records")
        ):
            tuned = row["agent"] == "ensemble-p"
            # What the claim asks of ensemble-p, ensemble-n has to fail by far, else the measure cannot tell them apart.
            region = self.region if tuned else Region(low=10.0 * self.region.high)
            control = "" if tuned else " (control)"
            label = f"share of the posterior's spread that {row['agent']} misses, {_where(row)}{control}"
            interval = stats.normal_interval(row["measured"], row["error"], row["problems"])
            effects.append(Effect(label, interval, region, "share"))
        return effects if len(effects) > 1 else []

    def _untuned(self, top: pd.DataFrame) -> list[Effect]:
        rows = top[(top.quantity == "missed spread") & (top.agent == "ensemble-p, untuned")]
        effects = []
        for row in rows.to_dict("records"):
            label = f"share of the posterior's spread that ensemble-bp without its bootstrap misses, {_where(row)}"
            interval = stats.normal_interval(row["measured"], row["error"], row["problems"])
            effects.append(Effect(label, interval, self.region, "share"))
        return effects

    def _anisotropic(self, top: pd.DataFrame) -> list[Effect]:
        effects = []
        for row in top[(top.quantity == "kl") & (top.condition > 1.0)].to_dict("records"):
            effects.append(self._effect(f"KL of the best ensemble-p, {_where(row)}", row))
            bound = stats.exact(row["lower_bound"], row["problems"])
            effects.append(Effect(f"theorem 1's bound on it, {_where(row)}", bound, self.region, "nats"))
        return effects

    def _effect(self, label: str, row: Mapping[Hashable, Any], name: str = "measured") -> Effect:
        error = row["slope_error" if name == "slope" else "error"]
        return Effect(label, stats.normal_interval(row[name], error, int(row["problems"])), self.region, "nats")


@dataclasses.dataclass(frozen=True)
class UnevenNoise(Estimator):
    """Whether heteroscedastic noise raises the KL of the best unbiased ensemble-p, paired over settings.

    - weakest: noise that grows along the direction in which inputs vary least, from the sweep of theorem 1.
    - strongest: along that in which they vary most, from a figure of its own.

    The effects are the mean difference from even noise, and the settings in which it falls by more than chance.
    """

    along: Literal["weakest", "strongest"]
    region: Region

    @property
    def figure(self) -> str:  # type: ignore[override]
        """The sweep of theorem 1, or the figure of its own."""
        return "T1" if self.along == "weakest" else "L-noise"

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns both effects."""
        gaps, errors = self._swept(tables) if self.along == "weakest" else self._controlled(tables)
        if not len(gaps):
            raise NoDataError("the same settings with even and with uneven noise are needed")
        limit = more_than_chance(len(gaps))
        falls = float((gaps < -limit * errors).sum())
        label = f"KL with noise along the {self.along} direction minus with even noise"
        return [
            Effect(label, stats.mean_interval(gaps), self.region, "nats", stats.effect_size(gaps)),
            Effect("settings in which it falls by more than chance", stats.exact(falls, len(gaps)), _NONE, "settings"),
        ]

    def _swept(self, tables: Tables) -> tuple[Floats, Floats]:
        sweep = table_of(tables, self.figure)
        best = sweep[(sweep.agent == "ensemble-p-weighted") & np.isfinite(sweep.kl)]
        strengths = sorted(set(best.heteroscedasticity))
        if len(strengths) < 2 or strengths[0] != 0.0:
            raise NoDataError("even and uneven noise are needed")
        return _differences(best, ["dim", "num_data", "condition"], "heteroscedasticity", strengths[0], strengths[-1])

    def _controlled(self, tables: Tables) -> tuple[Floats, Floats]:
        table = table_of(tables, self.figure)
        return _differences(table, ["dim", "num_data", "condition"], "noise", "even", self.along)


_NONE = Region(high=0.5)  # of settings


def more_than_chance(count: int) -> float:
    """Returns how many errors are more than chance, which makes one of `count` settings violate in 1 of 40 folders."""
    extras.require("scipy", "A claim")
    from scipy.stats import norm

    return float(norm.isf(0.025 / count))


def _differences(
    table: pd.DataFrame, keys: list[str], column: str, first: object, second: object
) -> tuple[Floats, Floats]:
    """Returns the KL at `second` minus that at `first`, paired by the keys, and the errors."""
    sides = [table[table[column] == value].set_index(keys) for value in (first, second)]
    one, other = sides[0].align(sides[1], join="inner", axis=0)
    errors = np.hypot(one.kl_error.to_numpy(float), other.kl_error.to_numpy(float))
    return other.kl.to_numpy(float) - one.kl.to_numpy(float), errors


def _kls(rows: pd.DataFrame) -> pd.DataFrame:
    """The KL with isotropic inputs, by T."""
    return rows[(rows.quantity == "kl") & (rows.condition == 1.0)].sort_values("num_data")


def _where(row: Mapping[Hashable, Any]) -> str:
    condition = f", condition {row['condition']:g}" if row["condition"] > 1.0 else ""
    return f"d = {row['dim']:g}, T = {row['num_data']:,g}{condition}"
