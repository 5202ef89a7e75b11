"""The one place for statistics: intervals, pairing by seed, tests, and the words for what an interval says.

Agents are compared on the same problems, so their differences are taken seed by seed: what makes a problem hard for
both does not blur the comparison. Figures, claims and the report all come here, so they cannot disagree.

One method for every number of seeds, without a change of method at any of them, so that no interval becomes narrower
only because a method did:

- a mean: Student's interval, and Hall's correction of it for skewness (On the removal of skewness by transformation,
  1992); of both, at either end, the one that reaches farther. The correction alone would be too bold at small levels.
- a ratio of means over the same seeds: Fieller's interval, which is exact for normal values and knows that the
  denominator was measured, too.

Both are computed, not resampled: the same seeds always give the same interval, and an interval has a level at which it
would just reach a value, which is what p-values are made of. `python -m benchmarks.studies.coverage` measures how often
they hold the truth, beside bootstraps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import extras, intervals
from tf_ensembles.intervals import LEVEL as LEVEL
from tf_ensembles.intervals import NORMAL as NORMAL
from tf_ensembles.intervals import Interval as Interval
from tf_ensembles.intervals import exact as exact

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

# What a results folder says about a claim.
SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive at this size"
NOT_MEASURED = "not measured"
VERDICTS = (SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE, NOT_MEASURED)
SIGNS = dict(zip(VERDICTS, "✓✗?–", strict=True))
# What an interval of a difference `first - second` says.
LOWER, HIGHER, NO_DIFFERENCE, TOO_FEW = "lower", "higher", "no difference shown", "too few seeds to say"

# With fewer seeds no interval is taken to decide anything.
MIN_SEEDS = 5


class NoDataError(ValueError):
    """The tables do not hold what is asked for."""


def mean_interval(values: ArrayLike) -> Interval:
    """Returns the mean of values, one per seed, with its 95% interval: Student's, widened where values are skewed."""
    array = _checked(values)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    centered = array - mean
    variance = float((centered**2).mean())
    if np.ptp(array) == 0.0:
        return exact(mean, count)
    error = math.sqrt(variance / (count - 1))
    skewness = float((centered**3).mean()) / variance**1.5

    def ends(level: float) -> tuple[float, float]:
        reach = _student(level, count - 1)
        below, above = (_unskewed(end, skewness, count) for end in (reach, -reach))
        return mean - max(below, reach) * error, mean - min(above, -reach) * error

    return Interval.from_ends(mean, ends, count)


def paired_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Returns the mean of `first - second`, paired by seed, with its 95% interval: below 0, `first` is lower."""
    one, other = _pair(first, second)
    return mean_interval(one - other)


def relative_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Returns `mean(first) / mean(second) - 1`, paired by seed, with Fieller's 95% interval: below 0, `first` is lower.

    Where seeds are too few to tell the mean of `second` from 0, there is no interval.
    """
    one, other = _pair(first, second)
    count, base = len(one), float(other.mean())
    if base == 0.0:
        raise NoDataError("there is no relative difference from a score that is 0")
    ratio = float(one.mean()) / base
    if count < 2:
        return Interval(ratio - 1.0, math.nan, math.nan, count)
    rest, spread = one - ratio * other, other - base
    # Variances and covariance of the means of the rest and of the denominator.
    scale = 1.0 / (count * (count - 1))
    rest_square, product, square = (float(np.sum(pair)) * scale for pair in (rest**2, rest * spread, spread**2))
    if rest_square <= (1e-15 * ratio * base) ** 2:
        return exact(ratio - 1.0, count)

    def ends(level: float) -> tuple[float, float]:
        # All r with (mean(first) - r mean(second))^2 <= reach^2 var(mean(first - r second)), around the estimate.
        reach = _student(level, count - 1) ** 2
        bounded = base**2 - reach * square
        if bounded <= 0.0:
            return math.nan, math.nan
        root = math.sqrt((reach * product) ** 2 + bounded * reach * rest_square)
        low, high = ((-reach * product + sign * root) / bounded for sign in (-1.0, 1.0))
        return ratio - 1.0 + low, ratio - 1.0 + high

    return Interval.from_ends(ratio - 1.0, ends, count)


def ratio_by_seed(first: pd.Series[float], second: pd.Series[float]) -> pd.Series[float]:
    """Returns a value per seed whose mean is `mean(first) / mean(second)` and which spreads as that ratio does.

    For what is made of several ratios over the same seeds. The values are what each seed adds to the ratio, to first
    order.
    """
    base = float(second.mean())
    ratio = float(first.mean()) / base
    return ratio + (first - ratio * second) / base


def independent_difference(first: Interval, second: Interval) -> Interval:
    """Returns `second - first` of independent estimates, with the interval that their own intervals give (MOVER)."""
    gap, count = second.estimate - first.estimate, min(first.count, second.count)

    def mover(one: Interval, two: Interval) -> tuple[float, float]:
        low = gap - math.hypot(two.estimate - two.low, one.high - one.estimate)
        return low, gap + math.hypot(two.high - two.estimate, one.estimate - one.low)

    def ends(level: float) -> tuple[float, float]:
        return mover(first.at(level), second.at(level))

    known = first.ends is not None or second.ends is not None
    return Interval(gap, *mover(first, second), count, ends if known else None)


def normal_interval(mean: float, error: float, count: int, degrees: int | None = None) -> Interval:
    """Returns the 95% interval of a mean over many problems whose standard error is known.

    Where the error is an estimate of few degrees of freedom, give them, and the interval is Student's.
    """
    if degrees is None:
        return intervals.normal(mean, error, count)

    def ends(level: float) -> tuple[float, float]:
        reach = _student(level, degrees) * error
        return mean - reach, mean + reach

    return Interval.from_ends(float(mean), ends, int(count))


def holm(levels: Mapping[str, float]) -> dict[str, float]:
    """Returns p-values adjusted for all tests of a family together, by Holm's method, by the same names."""
    adjusted, worst = {}, 0.0
    for place, name in enumerate(sorted(levels, key=levels.__getitem__)):
        worst = max(worst, min(1.0, (len(levels) - place) * levels[name]))
        adjusted[name] = worst
    return adjusted


def effect_size(differences: ArrayLike) -> float:
    """Returns the mean of paired differences over their standard deviation; NaN where there is none."""
    array = np.asarray(differences, np.float64)
    spread = array.std(ddof=1) if len(array) > 1 else 0.0
    return float(array.mean() / spread) if spread > 0 else math.nan


def direction(interval: Interval) -> str:
    """Returns what an interval of a difference `first - second` says, in a word."""
    if interval.count < MIN_SEEDS or math.isnan(interval.low) or math.isnan(interval.high):
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


def _student(level: float, degrees: int) -> float:
    extras.require("scipy", "An interval")
    from scipy import special

    return float(-special.stdtrit(degrees, level / 2))


def _unskewed(value: float, skewness: float, count: int) -> float:
    """The inverse of Hall's transformation, which makes the t statistic of a skewed sample symmetric."""
    bend = skewness / (3.0 * math.sqrt(count))
    moved = value - bend / 2.0
    return moved - bend * moved**2 if abs(bend) < 1e-6 else (math.cbrt(1.0 + 3.0 * bend * moved) - 1.0) / bend
