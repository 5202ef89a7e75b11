"""Means and paired differences over seeds, with bootstrap confidence intervals by SciPy.

Agents are compared on the same problems, so their differences are taken seed by seed: what makes a problem hard for
both does not blur the comparison.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

_RESAMPLES = 9999


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate from `count` seeds with its confidence interval; the ends are NaN with fewer than two seeds."""

    estimate: float
    low: float
    high: float
    count: int

    def excludes(self, value: float) -> bool:
        """Whether the interval lies on one side of a value."""
        return self.low > value or self.high < value

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_interval(values: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Returns the mean of values, one per seed, with its bootstrap interval."""
    return _bootstrap(np.mean, [_checked(values)], confidence, seed)


def paired_difference(first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Returns the mean of `first - second`, paired by seed, with its bootstrap interval: below 0, `first` is lower."""
    one, other = _pair(first, second)
    return _bootstrap(np.mean, [one - other], confidence, seed)


def paired_ratio(first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Returns `mean(first) / mean(second)`, resampled in pairs, with its bootstrap interval."""
    one, other = _pair(first, second)

    def ratio(a: Floats, b: Floats, axis: int = -1) -> Floats:
        return np.mean(a, axis=axis) / np.mean(b, axis=axis)

    return _bootstrap(ratio, [one, other], confidence, seed)


def by_seed(table: pd.DataFrame, score: str, columns: str = "agent") -> pd.DataFrame:
    """Returns scores averaged over settings, a row per seed and a column per agent, for seeds that have all of them.

    Args:
        table: a row per (setting, seed, agent), with a `setting` column.
        score: what to average.
        columns: what to compare.
    """
    settings = table.setting.nunique()
    grouped = table.groupby(["seed", columns]).agg(mean=(score, "mean"), settings=("setting", "nunique"))
    complete = grouped["mean"].where(grouped.settings == settings)
    return complete.unstack(columns).dropna()


def _checked(values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
        raise ValueError(f"Expected finite values, one per seed. Received: {array}")
    return array


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    one, other = _checked(first), _checked(second)
    if one.shape != other.shape:
        raise ValueError(f"Expected as many values of both, paired by seed. Received: {one.shape} and {other.shape}")
    return one, other


def _bootstrap(statistic: Callable[..., Any], samples: Sequence[Floats], confidence: float, seed: int) -> Interval:
    from scipy import stats

    estimate, count = float(statistic(*samples)), len(samples[0])
    if count < 2:
        return Interval(estimate, float("nan"), float("nan"), count)
    if all(np.ptp(sample) == 0 for sample in samples):
        return Interval(estimate, estimate, estimate, count)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            samples,
            statistic,
            n_resamples=_RESAMPLES,
            paired=True,
            vectorized=True,
            confidence_level=confidence,
            method="BCa" if count > 4 else "percentile",  # The correction needs more than a handful of values.
            rng=np.random.default_rng(seed),
        )
    low, high = result.confidence_interval
    if np.isnan(low) or np.isnan(high):
        # Resampling changes nothing, as in the ratio of an agent to itself: there is nothing to correct.
        tail = (1.0 - confidence) / 2.0
        low, high = np.quantile(result.bootstrap_distribution, [tail, 1.0 - tail])
    return Interval(estimate, float(low), float(high), count)
