"""What `advise` computes from member likelihoods: NLLs of sub-ensembles, their errors, and the rule that chooses.

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
import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import intervals
from tf_ensembles.intervals import Interval
from tf_ensembles.metrics import likelihood as formulas
from tf_ensembles.metrics.likelihood import Floats

JOINT, DYADIC = 0, 1
Z95 = intervals.NORMAL

# A group that only one member explains at all counts at most this many nats without it.
_LARGEST_NLL = 700.0


@dataclasses.dataclass(frozen=True)
class Choice:
    """Indices of an arm, a scale and a size."""

    arm: int
    scale: int
    size: int


# The plain ensemble, without bootstrap and prior, at the largest size; and a single model.
PLAIN, SINGLE = Choice(0, 0, -1), Choice(0, 0, 0)
# From mean NLLs `[metrics, arms, scales, sizes]` to a candidate.
Rule = Callable[[Floats], Choice]


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

    def others(self, arm: int) -> NDArray[np.bool_]:
        """Returns the usable candidates of an arm that are not the plain ensemble, `[arms, scales]`.

        Those of all arms, if this one has no other.
        """
        others = self.usable.copy()
        others[0, 0] = False
        of_arm = others & (np.arange(len(others)) == arm)[:, None]
        return of_arm if of_arm.any() else others

    def estimate(self, metric: int, at: Choice, minus: Choice | None = None) -> Interval:
        """Returns the mean of a candidate, or its paired difference from another's."""
        first = (metric, at.arm, at.scale, at.size)
        values, influence = self.values[first], self.influence[first].mean(axis=0)
        if minus is not None:
            second = (metric, minus.arm, minus.scale, minus.size)
            values, influence = values - self.values[second], influence - self.influence[second].mean(axis=0)
        return mean_estimate(values, influence)


def mean_estimate(values: Floats, influence: Floats) -> Interval:
    """Returns the mean of `values` `[groups]` with the error of both groups and members, `influence` `[members]`."""
    groups, members = len(values), len(influence)
    variance = values.var(ddof=1) / groups + np.sum(influence**2) / (members * (members - 1))
    return intervals.normal(values.mean(), math.sqrt(variance))


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
    """Returns the scale with the lowest joint NLL at the largest size, given `means` `[metrics, arms, scales, sizes]`.

    The dyadic NLL sees best how members differ, but alone it would ask for ever more of it: it repeats a label with its
    example, and so takes noise for something that members should know.
    """
    return int(np.argmin(means[JOINT, arm, :, -1]))


def best_other(scores: Scores, arm: int, means: Floats) -> Choice:
    """Returns the candidate of an arm with the lowest joint NLL at the largest size, the plain ensemble left out."""
    joint = np.where(scores.others(arm), means[JOINT, :, :, -1], np.inf)
    best_arm, scale = np.unravel_index(int(np.argmin(joint)), joint.shape)
    return Choice(int(best_arm), int(scale), -1)


def choose_size(scores: Scores, arm: int, scale: int, means: Floats) -> Choice:
    """Returns the smallest size whose two NLLs are within one standard error of the largest's."""
    num_sizes = means.shape[-1]
    largest = Choice(arm, scale, num_sizes - 1)
    for size in range(num_sizes):
        candidate = Choice(arm, scale, size)
        behind = means[:, arm, scale, size] - means[:, arm, scale, -1]
        if all(behind[metric] <= scores.estimate(metric, candidate, largest).error for metric in (JOINT, DYADIC)):
            return candidate
    return largest


def make_rule(scores: Scores, arm: int, beaten: bool | None) -> Rule:
    """Returns what chooses a candidate.

    Args:
        scores: of all candidates.
        arm: 0, or 1 if bootstrapping helps.
        beaten: whether another candidate is shown to beat the plain ensemble; None if they could not be compared.
    """

    def rule(means: Floats) -> Choice:
        if beaten is None:
            best = Choice(arm, best_scale(scores, arm, means), -1)
        else:
            best = best_other(scores, arm, means) if beaten else PLAIN
        return choose_size(scores, best.arm, best.scale, means)

    return rule


def bootstrap_difference(scores: Scores, metric: int) -> Interval:
    """Returns the NLL with minus the NLL without bootstrap, at the largest size, each with its own best scale."""
    with_, without = (lambda means, arm=arm: Choice(arm, best_scale(scores, arm, means), -1) for arm in (1, 0))
    return crossed(scores, metric, with_, without)


def gain(scores: Scores, arm: int, metric: int) -> Interval:
    """Returns the NLL of the best other candidate of an arm minus that of the plain ensemble, at the largest size."""
    return crossed(scores, metric, lambda means: best_other(scores, arm, means), lambda _: PLAIN)


def beats_plain(joint: Interval, dyadic: Interval) -> bool:
    """Whether gains over the plain ensemble are shown: in the joint NLL, or in the dyadic NLL with the joint no worse.

    The dyadic NLL sees differences between members with far fewer examples, but may see them where there is only label
    noise: the joint NLL has to agree.
    """
    return joint.high < 0.0 or (dyadic.high < 0.0 and joint.estimate < 0.0)


def crossed(scores: Scores, metric: int, rule: Rule, minus: Rule | None = None) -> Interval:
    """Returns the NLL of what a rule chooses on one fold, measured on the other fold, over both ways round.

    With `minus`, less that of what this rule chooses, paired.
    """
    values, influence = np.zeros(scores.values.shape[-1]), np.zeros(scores.influence.shape[-1])
    signed = [(1.0, rule)] if minus is None else [(1.0, rule), (-1.0, minus)]
    for (sign, chooses), fold in itertools.product(signed, (0, 1)):
        choice = chooses(scores.means(1 - fold))
        at = (metric, choice.arm, choice.scale, choice.size)
        judging = scores.folds == fold
        values[judging] += sign * scores.values[at][judging]
        influence += 0.5 * sign * scores.influence[at][fold]
    return mean_estimate(values, influence)


def agreement(scores: Scores, choice: Choice, num_resamples: int, seed: int) -> tuple[float, float]:
    """Returns the share of resamples, of blocks and of members, with the same best scale, and the same size at it."""
    random = np.random.default_rng(seed)
    influence = scores.influence.mean(axis=-2)
    blocks, members = scores.values.shape[-1], influence.shape[-1]
    values = np.where(scores.usable[..., None, None], scores.values, 0.0)
    chosen = []
    for _ in range(num_resamples):
        of_blocks = random.multinomial(blocks, np.full(blocks, 1.0 / blocks)) / blocks
        of_members = random.multinomial(members, np.full(members, 1.0 / members)) / members
        means = np.where(scores.usable[..., None], values @ of_blocks + influence @ of_members, np.inf)
        best = best_scale(scores, choice.arm, means)
        chosen.append(Choice(choice.arm, best, choose_size(scores, choice.arm, choice.scale, means).size))
    same_scale = float(np.mean([other.scale == choice.scale for other in chosen]))
    return same_scale, float(np.mean([other.size == choice.size for other in chosen]))
