"""What `advise` reads off member likelihoods: NLLs of sub-ensembles, their errors, and the rule that chooses.

There are one or two arms, without and with bootstrap, of all prior scales, and two metrics: the joint NLL of tau
different examples and the dyadic NLL, in which two examples are repeated with their labels. Validation examples are
taken in blocks, which hold whole groups of both; the first half of the blocks is fold 0, the second fold 1. Shapes:
  likelihood   [examples, members]                          log p_m(y_i | x_i)
  values       [metrics, arms, scales, sizes, blocks]       mean NLL of a block, in nats per tau labels
  influence    [metrics, arms, scales, sizes, 2, members]   what each member adds to a fold's mean: centered jackknife
                                                            pseudo-values

The uncertainty of a mean has two parts, and both are counted: other validation examples would give another mean, and so
would other members, drawn with another seed. Configurations share examples, initial weights and prior functions, so
differences are paired in both.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from tf_ensembles.metrics import likelihood as formulas
from tf_ensembles.metrics.likelihood import Floats

JOINT, DYADIC = 0, 1

# Two-sided 95% of a normal distribution.
Z95 = 1.959964
# A group that only one member explains at all counts at most this many nats without it.
_LARGEST_NLL = 700.0


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean, its standard error over validation examples and members, and its 95% interval."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """The interval's lower end."""
        return self.value - Z95 * self.error

    @property
    def high(self) -> float:
        """The interval's upper end."""
        return self.value + Z95 * self.error

    def __str__(self) -> str:
        return f"{self.value:.3g} (95% interval {self.low:.3g} to {self.high:.3g})"


@dataclasses.dataclass(frozen=True)
class Choice:
    """Indices of an arm, a scale and a size."""

    arm: int
    scale: int
    size: int


@dataclasses.dataclass(frozen=True)
class Scores:
    """All that is known about the candidates."""

    values: Floats  # [metrics, arms, scales, sizes, blocks]
    influence: Floats  # [metrics, arms, scales, sizes, 2, members]
    usable: NDArray[np.bool_]  # [arms, scales]: no member diverged

    @property
    def folds(self) -> NDArray[np.int64]:
        """The fold of each block, `[blocks]`."""
        return np.arange(self.values.shape[-1]) // (self.values.shape[-1] // 2)

    def means(self, fold: int | None = None) -> Floats:
        """Returns mean NLLs `[metrics, arms, scales, sizes]` over one fold or both; infinite where members diverged."""
        values = self.values if fold is None else self.values[..., self.folds == fold]
        return np.where(self.usable[..., None], values.mean(axis=-1), np.inf)

    def estimate(self, metric: int, at: Choice, minus: Choice | None = None) -> Estimate:
        """Returns the mean of a candidate, or its paired difference from another's."""
        first = (metric, at.arm, at.scale, at.size)
        values, influence = self.values[first], self.influence[first].mean(axis=0)
        if minus is not None:
            second = (metric, minus.arm, minus.scale, minus.size)
            values, influence = values - self.values[second], influence - self.influence[second].mean(axis=0)
        return mean_estimate(values, influence)


def mean_estimate(values: Floats, influence: Floats) -> Estimate:
    """Returns the mean of `values` `[groups]` with the error of both groups and members, `influence` `[members]`."""
    groups, members = len(values), len(influence)
    variance = values.var(ddof=1) / groups + np.sum(influence**2) / (members * (members - 1))
    return Estimate(float(values.mean()), math.sqrt(variance))


def block_length(tau: int) -> int:
    """Returns how many examples hold both whole pairs and whole batches of tau."""
    return math.lcm(2, tau)


def score_members(likelihood: Floats, sizes: tuple[int, ...], tau: int) -> tuple[Floats, Floats]:
    """Returns values `[metrics, sizes, blocks]` and influence `[metrics, sizes, 2, members]` of one trained ensemble.

    A size smaller than the ensemble is the mean over its disjoint sub-ensembles of that size. There must be an even
    number of whole blocks of examples.
    """
    num_blocks, members = len(likelihood) // block_length(tau), likelihood.shape[1]
    values = np.zeros((2, len(sizes), num_blocks))
    influence = np.zeros((2, len(sizes), 2, members))
    for row, size in enumerate(sizes):
        used = members // size * size
        parts = likelihood[:, :used].reshape(len(likelihood), used // size, size)
        for metric, score in ((JOINT, joint_scores), (DYADIC, dyadic_scores)):
            groups, pseudo = score(parts, tau)
            values[metric, row] = groups.mean(axis=1).reshape(num_blocks, -1).mean(axis=1)
            by_member = pseudo.reshape(2, -1, used).mean(axis=1)  # Folds are halves.
            influence[metric, row, :, :used] = (by_member - by_member.mean(axis=1, keepdims=True)) * members / used
    return values, influence


def joint_scores(parts: Floats, tau: int) -> tuple[Floats, Floats]:
    """Returns joint NLLs `[batches, parts]` of consecutive tau examples and pseudo-values `[batches, parts, size]`.

    Args:
        parts: log-likelihoods of sub-ensembles, `[examples, parts, size]`.
        tau: examples per batch.
    """
    return _jackknife(formulas.joint(parts, tau))


def dyadic_scores(parts: Floats, tau: int) -> tuple[Floats, Floats]:
    """Returns dyadic NLLs `[pairs, parts]` of consecutive pairs and pseudo-values `[pairs, parts, size]`."""
    first, second = parts[0::2], parts[1::2]
    groups, pseudo = np.zeros(first.shape[:2]), np.zeros(first.shape)
    for count, probability in enumerate(formulas.count_probabilities(tau, 2)):
        whole, of_members = _jackknife(formulas.dyadic(first, second, count, tau))
        groups += probability * whole
        pseudo += probability * of_members
    return groups, pseudo


def _jackknife(joint: Floats) -> tuple[Floats, Floats]:
    """Returns `-log mean_m exp(joint)` over the last axis, and the jackknife's pseudo-value of each member."""
    size, whole = joint.shape[-1], -formulas.log_mean_exp(joint)
    if size == 1:
        return whole, whole[..., None]
    largest = joint.max(axis=-1, keepdims=True)
    shares = np.exp(joint - largest)
    # Sums of those before and those after: a difference from the total would cancel where one member dominates.
    before, after = np.zeros_like(shares), np.zeros_like(shares)
    before[..., 1:] = np.cumsum(shares, axis=-1)[..., :-1]
    after[..., :-1] = np.cumsum(shares[..., ::-1], axis=-1)[..., ::-1][..., 1:]
    without = -largest - np.log(np.maximum((before + after) / (size - 1), math.exp(-_LARGEST_NLL)))
    return whole, size * whole[..., None] - (size - 1) * without


def best_scale(scores: Scores, arm: int, means: Floats) -> int:
    """Returns the scale to use at the largest size, given `means` `[metrics, arms, scales, sizes]`.

    Of the scales whose joint NLL is within one standard error of the lowest, the one with the lowest dyadic NLL. The
    dyadic NLL sees best how members differ, but alone it would ask for ever more of it: it repeats a label with its
    example, and so takes noise for something that members should know.
    """
    joint, dyadic = means[:, arm, :, -1]
    lowest = Choice(arm, int(np.argmin(joint)), -1)
    errors = [
        scores.estimate(JOINT, Choice(arm, scale, -1), lowest).error if scores.usable[arm, scale] else 0.0
        for scale in range(len(joint))
    ]
    return int(np.argmin(np.where(joint <= joint.min() + np.array(errors), dyadic, np.inf)))


def choose(scores: Scores, arm: int, means: Floats) -> Choice:
    """Returns the best scale, and the smallest size whose two NLLs are within one standard error of the largest's."""
    scale = best_scale(scores, arm, means)
    num_sizes = means.shape[-1]
    largest = Choice(arm, scale, num_sizes - 1)
    for size in range(num_sizes):
        mine = Choice(arm, scale, size)
        behind = means[:, arm, scale, size] - means[:, arm, scale, -1]
        if all(behind[metric] <= scores.estimate(metric, mine, largest).error for metric in (JOINT, DYADIC)):
            return mine
    return largest


def bootstrap_difference(scores: Scores, metric: int) -> Estimate:
    """Returns the NLL with minus the NLL without bootstrap, at the largest size.

    Each arm has its own best scale, which one fold chooses and the other judges.
    """
    values, influence = np.empty(scores.values.shape[-1]), np.zeros(scores.influence.shape[-1])
    for fold in (0, 1):
        plain, other = (best_scale(scores, arm, scores.means(1 - fold)) for arm in (0, 1))
        mine = scores.folds == fold
        values[mine] = scores.values[metric, 1, other, -1, mine] - scores.values[metric, 0, plain, -1, mine]
        influence += 0.5 * (scores.influence[metric, 1, other, -1, fold] - scores.influence[metric, 0, plain, -1, fold])
    return mean_estimate(values, influence)


def cross_fitted(scores: Scores, arm: int, metric: int) -> Estimate:
    """Returns the NLL of what one fold chooses, measured on the other fold, over both ways round."""
    values, influence = np.empty(scores.values.shape[-1]), np.zeros(scores.influence.shape[-1])
    for fold in (0, 1):
        choice = choose(scores, arm, scores.means(1 - fold))
        at = (metric, arm, choice.scale, choice.size)
        mine = scores.folds == fold
        values[mine] = scores.values[at][mine]
        influence += 0.5 * scores.influence[at][fold]
    return mean_estimate(values, influence)


def agreement(scores: Scores, choice: Choice, num_resamples: int, seed: int) -> tuple[float, float]:
    """Returns the share of resamples, of blocks and of members, that choose the same scale, and the same size."""
    random = np.random.default_rng(seed)
    influence = scores.influence.mean(axis=-2)
    blocks, members = scores.values.shape[-1], influence.shape[-1]
    values = np.where(scores.usable[..., None, None], scores.values, 0.0)
    chosen = []
    for _ in range(num_resamples):
        of_blocks = random.multinomial(blocks, np.full(blocks, 1.0 / blocks)) / blocks
        of_members = random.multinomial(members, np.full(members, 1.0 / members)) / members
        means = np.where(scores.usable[..., None], values @ of_blocks + influence @ of_members, np.inf)
        chosen.append(choose(scores, choice.arm, means))
    same_scale = float(np.mean([other.scale == choice.scale for other in chosen]))
    return same_scale, float(np.mean([other.size == choice.size for other in chosen]))
