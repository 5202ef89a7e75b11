"""What a claim is: its text in our words, the figure whose table it reads, its test, and when it counts as supported.

An effect is compared with a *region*: where the claim says it lies. The claim is supported when the 95% interval lies
inside the region, not supported when it lies outside, and undecided when it touches both. "Alike" is a region around 0
(an equivalence test), "better" one that ends at 0, "much better" one that ends before it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal, Protocol

from benchmarks.figures.tables import Tables
from benchmarks.stats import INCONCLUSIVE, NOT_SUPPORTED, SUPPORTED, Interval

Unit = Literal["relative", "nats", "distance", "share", "settings"]

# What words mean, in shares of the score compared with.
ALIKE_WITHIN = 0.10  # "alike": within 10% of each other
MUCH = 0.10  # "much better": by more than 10%
LITTLE = 0.05  # "adds nothing": by less than 5%


@dataclasses.dataclass(frozen=True)
class Region:
    """Where a claim says that an effect lies."""

    low: float = -math.inf
    high: float = math.inf

    def judge(self, interval: Interval) -> str:
        """Returns what an interval says about the claim."""
        if math.isnan(interval.low) or math.isnan(interval.high):
            return INCONCLUSIVE
        if self.low < interval.low and interval.high < self.high:
            return SUPPORTED
        if interval.high <= self.low or interval.low >= self.high:
            return NOT_SUPPORTED
        return INCONCLUSIVE


ALIKE = Region(-ALIKE_WITHIN, ALIKE_WITHIN)
LOWER = Region(high=0.0)
MUCH_LOWER = Region(high=-MUCH)
HIGHER = Region(low=0.0)
LOWER_RULE = "the interval of the relative difference lies below 0"
MUCH_RULE = f"the interval of the relative difference lies below -{MUCH:.0%}"
ALIKE_RULE = f"the interval of every relative difference lies within ±{ALIKE_WITHIN:.0%}"


@dataclasses.dataclass(frozen=True)
class Effect:
    """One measured effect of a claim."""

    label: str  # such as "ensemble-p against ensemble-n"
    interval: Interval
    region: Region
    unit: Unit = "relative"
    size: float = math.nan  # mean over standard deviation of the paired differences

    @property
    def verdict(self) -> str:
        """What this effect alone says."""
        return self.region.judge(self.interval)


class Test(Protocol):
    """Measures the effects of a claim."""

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects, or raises ValueError where the tables do not allow it."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    id: str
    figure: str  # the id of the figure whose table it reads, and with which it is shown
    where: str  # in the paper
    text: str  # in our words
    test: Test
    rule: str  # when it counts as supported
    sample: Literal["seeds", "problems", "settings", "parts of the problems"] = "seeds"
    min_count: int = 5  # fewer give no verdict
    directional: bool = True  # whether it tells agents apart, so that exchanging them must overturn it


def combine(verdicts: Sequence[str]) -> str:
    """Returns the verdict of a claim that makes several statements: all must hold, and one that fails decides."""
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    return INCONCLUSIVE if INCONCLUSIVE in verdicts or not verdicts else SUPPORTED
