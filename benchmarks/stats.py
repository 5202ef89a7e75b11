"""The one place for statistics: intervals, pairing by seed, and the words for what an interval says.

Agents are compared on the same problems, so their differences are taken seed by seed: what makes a problem hard for
both does not blur the comparison. Figures, claims and the report all come here, so they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import extras

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

# What a results folder says about a claim.
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive at this size"
NOT_MEASURED = "not measured"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_MEASURED)
# What an interval of a difference `first - second` says.
LOWER, HIGHER, NO_DIFFERENCE, TOO_FEW = "lower", "higher", "no difference shown", "too few seeds to say"

# With fewer seeds no interval is taken to decide anything.
MIN_SEEDS = 5
# Below this many values a bootstrap interval is too narrow, and Student's is taken.
BOOTSTRAP_FROM = 10
NORMAL = 1.959963984540054  # the 97.5% quantile of the normal distribution

_RESAMPLES = 9999


class NoDataError(ValueError):
    """The tables do not hold what is asked for."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate from `count` seeds with its 95% interval; the ends are NaN with fewer than two seeds."""

    estimate: float
    low: float
    high: float
    count: int

    def excludes(self, value: float) -> bool:
        """Whether the interval lies on one side of a value."""
        return self.low > value or self.high < value

    def plus(self, value: float) -> Interval:
        """Returns the interval moved by a number that is known."""
        return Interval(self.estimate + value, self.low + value, self.high + value, self.count)

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


def mean_interval(values: ArrayLike) -> Interval:
    """Returns the mean of values, one per seed, with its 95% interval: bootstrap, or Student's for a handful."""
    array = _checked(values)
    if not 2 <= len(array) < BOOTSTRAP_FROM:
        return _bootstrap(np.mean, [array])
    extras.require("scipy", "An interval")
    from scipy import stats

    half = float(stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))
    mean = float(array.mean())
    return Interval(mean, mean - half, mean + half, len(array))


def paired_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Returns the mean of `first - second`, paired by seed, with its 95% interval: below 0, `first` is lower."""
    one, other = _pair(first, second)
    return mean_interval(one - other)


def relative_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Returns `mean(first) / mean(second) - 1`, paired by seed, with its 95% interval: below 0, `first` is lower."""
    one, other = _pair(first, second)
    if len(one) < BOOTSTRAP_FROM:
        return mean_interval((one - other) / other.mean())

    def ratio(a: Floats, b: Floats, axis: int = -1) -> Floats:
        return np.mean(a, axis=axis) / np.mean(b, axis=axis)

    return _bootstrap(ratio, [one, other]).plus(-1.0)


def independent_difference(first: Interval, second: Interval) -> Interval:
    """Returns `second - first` of independent estimates, with the interval that their own intervals give (MOVER)."""
    gap = second.estimate - first.estimate
    low = gap - math.hypot(second.estimate - second.low, first.high - first.estimate)
    high = gap + math.hypot(second.high - second.estimate, first.estimate - first.low)
    return Interval(gap, low, high, min(first.count, second.count))


def normal_interval(mean: float, error: float, count: int) -> Interval:
    """Returns the 95% interval of a mean over many problems whose standard error is known."""
    return Interval(float(mean), float(mean - NORMAL * error), float(mean + NORMAL * error), int(count))


def exact(value: float, count: int) -> Interval:
    """Returns a value without sampling error, from `count` problems."""
    return Interval(float(value), float(value), float(value), int(count))


def effect_size(differences: ArrayLike) -> float:
    """Returns the mean of paired differences over their standard deviation; NaN where there is none."""
    array = np.asarray(differences, np.float64)
    spread = array.std(ddof=1) if len(array) > 1 else 0.0
    return float(array.mean() / spread) if spread > 0 else math.nan


def direction(interval: Interval) -> str:
    """Returns what an interval of a difference `first - second` says, in a word."""
    if interval.count < MIN_SEEDS:
        return TOO_FEW
    if not interval.excludes(0.0):
        return NO_DIFFERENCE
    return LOWER if interval.high < 0 else HIGHER


def by_seed(table: pd.DataFrame, score: str, columns: str = "agent") -> dict[Any, pd.Series[float]]:
    """Returns scores averaged over settings, a series by seed for each agent, of the seeds that have all of them.

    Args:
        table: a row per (setting, seed, agent), with columns `setting` and `seed`.
        score: what to average.
        columns: what to compare.
    """
    import pandas as pd

    # Not pandas's groupby: a report asks for this hundreds of times, and it is many times slower.
    cells: dict[Any, dict[Any, list[float]]] = {}
    settings: dict[tuple[Any, Any], set[Any]] = {}
    asked = [table[name].tolist() for name in (columns, "seed", "setting", score)]
    for name, seed, setting, value in zip(*asked, strict=True):
        cells.setdefault(name, {}).setdefault(seed, []).append(value)
        settings.setdefault((name, seed), set()).add(setting)
    total = len(set(asked[2]))
    seeds = sorted({seed for found in cells.values() for seed in found})
    kept = [seed for seed in seeds if all(len(settings.get((name, seed), ())) == total for name in cells)]
    return {
        name: pd.Series([sum(cells[name][seed]) / len(cells[name][seed]) for seed in kept], kept, dtype=float)
        for name in sorted(cells)
    }


def paired(table: pd.DataFrame, score: str, first: str, second: str) -> tuple[Floats, Floats]:
    """Returns two agents' scores by seed, averaged over settings, of the seeds that have both in every setting."""
    found = by_seed(table[table.agent.isin([first, second])], score)
    if absent := [name for name in (first, second) if name not in found]:
        raise NoDataError(f"no rows of {', '.join(absent)}")
    if not len(found[first]):
        raise NoDataError(f"no seed has all runs of {first} and {second}")
    return np.asarray(found[first], np.float64), np.asarray(found[second], np.float64)


def _checked(values: ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim == 1 and len(array) == 0:
        raise NoDataError("no seed has all the runs that are compared")
    if array.ndim != 1 or not np.isfinite(array).all():
        raise ValueError(f"Expected finite values, one per seed. Received: {array}")
    return array


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats]:
    one, other = _checked(first), _checked(second)
    if one.shape != other.shape:
        raise ValueError(f"Expected as many values of both, paired by seed. Received: {one.shape} and {other.shape}")
    return one, other


def _bootstrap(statistic: Callable[..., Any], samples: Sequence[Floats]) -> Interval:
    extras.require("scipy", "An interval")
    from scipy import stats

    estimate, count = float(statistic(*samples)), len(samples[0])
    if count < 2:
        return Interval(estimate, math.nan, math.nan, count)
    if all(np.ptp(sample) == 0 for sample in samples):
        return exact(estimate, count)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = stats.bootstrap(
            samples,
            statistic,
            n_resamples=_RESAMPLES,
            paired=True,
            vectorized=True,
            confidence_level=0.95,
            method="BCa",
            rng=np.random.default_rng(0),
        )
    low, high = result.confidence_interval
    if np.isnan(low) or np.isnan(high):
        # Resampling changes nothing, as in the ratio of an agent to itself: there is nothing to correct.
        low, high = np.quantile(result.bootstrap_distribution, [0.025, 0.975])
    return Interval(estimate, float(low), float(high), count)
