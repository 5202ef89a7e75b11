"""What a claim is: its text in our words, the estimator of its effects, and when it counts as supported.

An effect is compared with a *region*: where the claim says it lies. The claim is supported when the interval lies
inside the region, not supported when it lies outside, and undecided when it touches both. "Better" is a region that
ends at 0, "much better" one that ends before it; both are judged by the 95% interval. "Alike" is a region around 0 and
is judged by the 90% interval, which is two one-sided tests at 5% each (TOST).

Where the paper says that agents do not differ, or are similar, the claim has a *wording* beside its region. The wording
is read first: a significant difference contradicts it, whatever its size. The second reading is the region: are they
alike? Both are told. That no difference was found supports the wording only where the second reading does, too:
otherwise a handful of noisy seeds would support it.

There is one yardstick, the *margin*: differences within it are alike, those beyond twice of it are much, and where a
difference counts as better or worse, it is told whether it is larger than the margin.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import INCONCLUSIVE, LEVEL, NOT_SUPPORTED, SUPPORTED, Interval

Unit = Literal["relative", "nats", "distance", "share", "settings"]
Wording = Literal["", "no difference", "no improvement"]


@dataclasses.dataclass(frozen=True)
class Margin:
    """The size below which a difference is taken to be of no consequence, and why."""

    value: float
    reason: str


# One margin for each kind of score. The paper's figures have no numbers that a margin could be taken from. These were
# set and changed after results had been seen: `docs/statistics.md` has the log of all rules, when each was set, what
# was known by then and which verdicts it changed. From its last entry on they are frozen: a test compares them with it.
SCORE = Margin(
    0.05,
    "5% of the score compared with. The paper shows KL, NLL and regret relative to a reference agent at 1, without "
    "numbers; a twentieth of the reference's bar is about the least that a reader of such a figure can see. What it "
    "calls much better must be seen at once: at least twice the margin, 10%.",
)
IMAGES = Margin(
    SCORE.value,
    "5% of the NLL compared with. Test labels of CIFAR10 have hardly any noise, so that the NLL is nearly the KL, and "
    "the margin of KLs holds.",
)
REGRET = Margin(SCORE.value, "5% of the regret compared with: decisions are judged as predictions are.")
NATS = Margin(
    0.05,
    "0.05 nats: the likelihood of the truth changes by a factor of e^0.05 = 1.05, which is 5% again.",
)
MUCH = 2.0  # margins


@dataclasses.dataclass(frozen=True)
class Region:
    """Where a claim says that an effect lies."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def level(self) -> float:
        """Of the interval that judges: 95%, and 90% where both ends are to be excluded, each by a test at 5%."""
        return 2 * LEVEL if math.isfinite(self.low) and math.isfinite(self.high) else LEVEL

    def judge(self, interval: Interval) -> str:
        """Returns what an interval says about the claim."""
        if math.isnan(interval.low) or math.isnan(interval.high):
            return INCONCLUSIVE
        narrow = interval if self.level == LEVEL else interval.at(self.level)
        if self.low < narrow.low and narrow.high < self.high:
            return SUPPORTED
        if interval.high <= self.low or interval.low >= self.high:
            return NOT_SUPPORTED
        return INCONCLUSIVE

    def p_inside(self, interval: Interval) -> float:
        """Returns the smallest level of a test at which the effect would still be found inside."""
        if not self.low < interval.estimate < self.high:
            return 1.0
        found = [interval.p_value(end) for end in (self.low, self.high) if math.isfinite(end)]
        return max(found, default=0.0) * LEVEL / self.level

    def p_outside(self, interval: Interval) -> float:
        """Returns the smallest level at which the effect would still be found outside."""
        if self.low < interval.estimate < self.high:
            return 1.0
        return interval.p_value(self.low if interval.estimate <= self.low else self.high)


ALIKE = Region(-SCORE.value, SCORE.value)
NOT_BETTER = Region(low=-SCORE.value)
LOWER = Region(high=0.0)
MUCH_LOWER = Region(high=-MUCH * SCORE.value)
HIGHER = Region(low=0.0)
LOWER_RULE = "the 95% interval of the relative difference lies below 0"
MUCH_RULE = f"the 95% interval of the relative difference lies below -{MUCH * SCORE.value:.0%}"
ALIKE_RULE = f"the 90% interval of every relative difference lies within ±{SCORE.value:.0%}"
SAME_RULE = f"no 95% interval of a relative difference leaves out 0, and {ALIKE_RULE}"


@dataclasses.dataclass(frozen=True)
class Effect:
    """One measured effect of a claim."""

    label: str  # such as "ensemble-p against ensemble-n"
    interval: Interval
    region: Region
    unit: Unit = "relative"
    size: float = math.nan  # mean over standard deviation of the paired differences
    wording: Wording = ""
    of_scores: bool = False  # whether it is a relative difference of scores, of which the lower is better

    @property
    def verdict(self) -> str:
        """What this effect alone says."""
        return NOT_SUPPORTED if self.contradicted else self.region.judge(self.interval)

    @property
    def contradicted(self) -> bool:
        """Whether a significant difference contradicts the paper's wording, however small it is."""
        return bool(self.wording) and self._against_wording.judge(self.interval) == SUPPORTED

    @property
    def reading(self) -> str:
        """What the second reading says, of an effect that has a wording; "" for others."""
        return self.region.judge(self.interval) if self.wording else ""

    @property
    def p_supported(self) -> float:
        """The smallest level at which it would still be supported."""
        return self.region.p_inside(self.interval)

    @property
    def p_contradicted(self) -> float:
        """The smallest level at which it would still be contradicted, by the region or by the wording."""
        worded = self._against_wording.p_inside(self.interval) if self.wording else 1.0
        return min(worded, self.region.p_outside(self.interval))

    @property
    def _against_wording(self) -> Region:
        """Where a significant effect contradicts the wording: anywhere but at 0, or below 0."""
        return LOWER if self.wording == "no improvement" or self.interval.estimate < 0.0 else HIGHER


Row = Mapping[str, Any]
NOT_RUN = "the settings or agents that it asks for are not run"


class Estimator(abc.ABC):
    """Measures the effects of a claim from tables, and says before anything has run which rows it needs of them."""

    figure: str  # the id of the figure whose table it reads, or the name of a study

    @abc.abstractmethod
    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects, or raises ValueError where the tables do not allow it."""

    @property
    def figures(self) -> tuple[str, ...]:
        """The ids of all figures whose tables it reads, `figure` first."""
        return (self.figure,)

    def note(self, tables: Tables) -> str:
        """Returns what is to be told beside the effects."""
        return ""

    def needs(self) -> Iterable[Row]:
        """Returns values of columns that some row of the table must have, together."""
        return ()

    def lacks(self, planned: Mapping[str, Sequence[Row]]) -> str:
        """Returns what is missing in the rows that figures plan, by their ids; "" where nothing is."""
        rows = planned[self.figure]
        return "" if all(any(need.items() <= row.items() for row in rows) for need in self.needs()) else NOT_RUN


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of the paper."""

    where: str
    text: str  # in our words
    some: bool = False  # whether the paper says that it can be so, or may: then one of the claims is enough
    untested: str = ""  # why no claim tests it


@dataclasses.dataclass(frozen=True)
class Claim:
    """One claim of the paper."""

    id: str
    where: str  # in the paper
    text: str  # in our words
    estimator: Estimator
    rule: str  # when it counts as supported
    sample: Literal["seeds", "problems", "settings", "splits", "parts of the problems"] = "seeds"
    min_count: int = 5  # fewer give no verdict
    identity: bool = False  # whether it is algebra, checked up to rounding: no test of a family
    margin: Margin = SCORE  # by which its differences are told to be large or small
    sentence: Sentence | None = None  # of the paper
    also: Sentence | None = None  # another one
    added: str = ""  # why there is a claim that is no sentence of the paper

    @property
    def figure(self) -> str:
        """The id of the figure whose table it reads, and with which it is shown."""
        return self.estimator.figure

    @property
    def sentences(self) -> tuple[Sentence, ...]:
        """The sentences of the paper that it tests, or tests a part of."""
        return tuple(one for one in (self.sentence, self.also) if one is not None)


def combine(verdicts: Sequence[str]) -> str:
    """Returns the verdict of a claim that makes several statements: all must hold, and one that fails decides."""
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    return INCONCLUSIVE if INCONCLUSIVE in verdicts or not verdicts else SUPPORTED


# Sentences that claims of several parts test.
PRIORS_IMPROVE = Sentence("1, 7", "Prior functions can significantly improve joint predictions.")
BOOTSTRAP_IMPROVES = Sentence(
    "1, 7", "Where the ratio varies substantially, bootstrapping can improve further.", some=True
)
