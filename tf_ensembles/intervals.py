"""The one type for an estimate with its interval, and the ways to make it that need nothing but NumPy.

An interval remembers how its ends follow from a level, so it has other levels, and p-values, too:

    interval = intervals.normal(mean, standard_error)
    interval.low, interval.high     # of 95%
    interval.at(0.1)                # of 90%
    interval.level(0.0)             # the p-value of 0
    f"{interval:.3g}"               # 0.12 [0.1, 0.14]

Student's and Fieller's intervals, which need SciPy, are in `benchmarks/stats.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ends = Callable[[float], tuple[float, float]]  # from a level, such as 0.05, to the ends of the interval

LEVEL = 0.05  # of a test; an interval leaves out what a test at this level rejects
NORMAL = 1.959963984540054  # the 97.5% quantile of the normal distribution

_SMALLEST_LEVEL = 1e-15


@dataclasses.dataclass(frozen=True)
class Interval:
    """An estimate with its 95% interval; the ends are NaN where the values give none.

    Attributes:
        estimate: what was estimated.
        low: the lower end.
        high: the upper end.
        count: how many values, seeds or examples it was made from; 0 where that is not counted.
        ends: the ends of any level; None where only those of 95% are known.
        error: the standard error; NaN where the interval was not made from it.
        method: the estimator, where there are several of the same value.
    """

    estimate: float
    low: float
    high: float
    count: int = 0
    ends: Ends | None = dataclasses.field(default=None, repr=False, compare=False)
    error: float = dataclasses.field(default=math.nan, repr=False, compare=False)
    method: str = dataclasses.field(default="", repr=False, compare=False)

    @classmethod
    def from_ends(cls, estimate: float, ends: Ends, count: int = 0) -> Interval:
        """Returns the interval whose ends a function of the level gives."""
        return cls(estimate, *ends(LEVEL), count, ends)

    def excludes(self, value: float) -> bool:
        """Whether the interval lies on one side of a value."""
        return self.low > value or self.high < value

    def at(self, level: float) -> Interval:
        """Returns the interval of another level, such as 0.1 for 90%."""
        if self.ends is None:
            if not self.low < self.high:  # Exact, or without an interval: so at every level.
                return self
            raise ValueError(f"Expected an interval whose ends are known at every level. Received: {self}")
        low, high = self.ends(level)
        return dataclasses.replace(self, low=low, high=high)

    def p_value(self, value: float) -> float:
        """Returns the two-sided p-value of a value: the smallest level whose interval leaves it out."""
        if not self.at(1.0 - 1e-12).excludes(value):
            return 1.0
        low, high = math.log(_SMALLEST_LEVEL), 0.0
        if self.at(_SMALLEST_LEVEL).excludes(value):
            return 0.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if self.at(math.exp(middle)).excludes(value) else (middle, high)
        return math.exp(high)

    def map(self, function: Callable[[float], float]) -> Interval:
        """Returns the interval of an increasing function of the estimate, such as `lambda x: x + 1.0`."""
        ends = self.ends

        def mapped(level: float) -> tuple[float, float]:
            assert ends is not None
            low, high = ends(level)
            return function(low), function(high)

        numbers = (function(self.estimate), function(self.low), function(self.high))
        return Interval(*numbers, self.count, None if ends is None else mapped, method=self.method)

    def plus(self, value: float) -> Interval:
        """Returns the interval moved by a number that is known."""
        return self.map(lambda end: end + value)

    def widened(self, factor: float) -> Interval:
        """Returns the interval with both ends `factor` times as far from the estimate, as where seeds share data."""
        return self.map(lambda end: self.estimate + factor * (end - self.estimate))

    def numbers(self) -> dict[str, float]:
        """Returns what a table keeps of it."""
        return {"estimate": self.estimate, "low": self.low, "high": self.high, "count": self.count}

    def __format__(self, spec: str) -> str:
        numbers = (format(value, spec or ".3f") for value in (self.estimate, self.low, self.high))
        return "{} [{}, {}]".format(*numbers)

    def __str__(self) -> str:
        return format(self)


def exact(value: float, count: int = 0) -> Interval:
    """Returns a value without sampling error."""
    return Interval(float(value), float(value), float(value), int(count))


def normal(estimate: float, error: float, count: int = 0, method: str = "") -> Interval:
    """Returns the interval of an estimate with a normal distribution, whose standard error is known."""
    estimate = float(estimate)
    error = float(error)
    ends = functools.partial(_normal_ends, estimate, error)  # Not a closure: an interval can be pickled.
    return Interval(estimate, *ends(LEVEL), int(count), ends, error, method)


def _normal_ends(estimate: float, error: float, level: float) -> tuple[float, float]:
    reach = NORMAL if level == LEVEL else statistics.NormalDist().inv_cdf(1.0 - level / 2)
    return estimate - reach * error, estimate + reach * error


def resampled(
    estimate: float, draws: NDArray[np.float64], least: float = -math.inf, most: float = math.inf, count: int = 0
) -> Interval:
    """Returns the interval of bootstrap draws, moved to the estimate, within `[least, most]`; NaN where none is finite.

    Resampling moves some scores: it makes a calibration error larger. So the draws give the width, not the center.
    """
    finite = draws[np.isfinite(draws)]
    if not math.isfinite(estimate) or len(finite) < 2:
        return Interval(estimate, math.nan, math.nan, count)
    center = finite.mean()

    def ends(level: float) -> tuple[float, float]:
        low, high = np.quantile(finite - center, [level / 2, 1.0 - level / 2]) + estimate
        return float(max(low, least)), float(min(high, most))

    return Interval.from_ends(estimate, ends, count)
