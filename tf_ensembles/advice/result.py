"""What `advise` returns: the recommendation, what it rests on, and how sure it is."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Literal

from tf_ensembles.advice import text
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.intervals import Interval
from tf_ensembles.prior import PriorFunction

Verdict = Literal["helps", "hurts", "no difference shown", "not tried"]


@dataclasses.dataclass(frozen=True)
class Row:
    """One candidate on all examples that judge. NLLs are in nats per tau labels, with their standard errors.

    `behind` is the paired difference from the recommended candidate: above 0 is worse.
    """

    prior_scale: float
    bootstrap: str  # the distribution of weights, or "none"
    num_members: int
    dyadic_nll: float
    dyadic_error: float
    dyadic_behind: float
    dyadic_behind_error: float
    joint_nll: float
    joint_error: float
    joint_behind: float
    joint_behind_error: float
    marginal_nll: float  # of all trained members, in nats per label
    epochs: int  # at which training was stopped
    diverged: int  # members whose training diverged; such a configuration is never recommended
    length_scale: float | None = None  # of a prior that has one

    @property
    def baseline(self) -> str:
        """`"single model"` or `"plain ensemble"`, which others have to beat; empty for the others."""
        if self.prior_scale or self.bootstrap != "none":
            return ""
        return "single model" if self.num_members == 1 else "plain ensemble"


@dataclasses.dataclass(frozen=True)
class Confidence:
    """How often other validation examples and other members would lead to the same advice, as shares of resamples."""

    prior_scale: float  # together with its length scale
    num_members: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The best candidate with a prior or a bootstrap against the plain ensemble, at the largest size.

    Differences are candidate minus plain, in nats per tau labels: below 0 it is better. Which candidate is best is
    decided on one half of the examples and judged on the other. The plain ensemble is beaten if the 95% interval of the
    joint NLL's difference lies below 0, or that of the dyadic NLL's while the joint NLL is no worse.
    """

    beaten: bool
    joint: Interval
    dyadic: Interval

    def __str__(self) -> str:
        if not self.beaten:
            return "nothing tried is shown to beat a plain ensemble"
        return f"beats a plain ensemble, shown by the {'joint' if self.joint.high < 0.0 else 'dyadic'} NLL"


@dataclasses.dataclass(frozen=True)
class BootstrapDiagnosis:
    """Whether bootstrapping helps here. Differences are with minus without, in nats per tau labels: below 0 it helps.

    The paper's message is that bootstrapping pays where the signal-to-noise ratio differs between inputs. `noise` has
    the 10% and 90% quantiles over examples of the label noise that members see, their mean entropy in nats; `noisy` and
    `quiet` are the difference on the half of the validation split where they see more of it, and on the other. Members
    that fit noise do not see it: a gain on the quiet half may mean just that.
    """

    verdict: Verdict
    bootstrap: str  # the distribution of weights that was tried, or "none"
    probability: float  # that it helps, if the difference is normal; NaN if not tried
    difference: Interval | None = None  # of the joint NLL: it decides
    dyadic: Interval | None = None
    noisy: Interval | None = None  # of the joint NLL
    quiet: Interval | None = None
    noise: tuple[float, float] | None = None  # None for a regression, whose noise is what `noise_std` says


@dataclasses.dataclass(frozen=True)
class Advice:
    """What `advise` recommends, what it rests on, and how sure it is. `print` it, or `plot` it."""

    prior_scale: float
    num_members: int
    bootstrap: Bootstrap | None
    epochs: int  # to train for: where examples that took no part in training said to stop
    joint_nll: Interval  # of advice like this: chosen on one half of the examples that judge, judged on the other
    dyadic_nll: Interval  # likewise
    against_plain: Comparison | None  # None if there is nothing to compare
    against_single: Interval | None  # joint NLL of advice like this minus a single model's; None if that diverged
    confidence: Confidence
    diagnosis: BootstrapDiagnosis
    table: tuple[Row, ...]
    tau: int
    num_validation: int  # examples that judge
    split: str  # which examples trained, stopped training and judged, in words
    warnings: tuple[str, ...]  # what is wrong with the data
    notes: tuple[str, ...]  # what to try next
    length_scale: float | None = None  # None: no prior, or one without a length scale
    prior: PriorFunction | None = None  # what `Ensemble` takes

    @property
    def recommended(self) -> Row:
        """The recommended row of the table."""
        wanted = (self.prior_scale, self.length_scale, text.bootstrap_name(self.bootstrap), self.num_members)
        return next(
            row for row in self.table if (row.prior_scale, row.length_scale, row.bootstrap, row.num_members) == wanted
        )

    def plot(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Draws both NLLs against ensemble size and against prior scale, with intervals, and returns the path."""
        from tf_ensembles.advice import plot

        return plot.plot(self, path)

    def __str__(self) -> str:
        return text.describe(self)
