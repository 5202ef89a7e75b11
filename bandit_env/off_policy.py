"""Off-policy evaluation: what a policy would have earned, from a log of another one's decisions.

Shapes: n decisions, N actions. A log has the action taken, its reward and its propensity: the probability with which
the logging policy took it, such as `policy_info.propensity` of our policies. A policy is a matrix of probabilities
`[n, N]`, one row for each decision's context.

- **IPS**: the mean of `w r` with `w = policy's probability / propensity`. Unbiased where propensities are right and
  no action that the policy takes was impossible in the log.
- **SNIPS**: the same over the mean weight: a little bias for much less variance.
- **DR** (doubly robust): a model's value of the policy plus the IPS of its residuals. Right if either the model or
  the propensities are. The model must not have seen the decision: `folds` makes parts to fit it on others.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from tf_ensembles import checks, intervals
from tf_ensembles.base import Array
from tf_ensembles.intervals import Interval

FEW_EFFECTIVE = 100.0  # effective decisions, below which intervals are not to be trusted
SMALL_SHARE = 0.05  # of all decisions


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a log says about one policy."""

    estimates: tuple[Interval, ...]  # of "IPS", "SNIPS" and, with a model, "DR", with their standard errors
    effective_size: float  # (sum w)^2 / sum w^2: so many decisions of the policy's own would tell as much
    largest_weight: float
    mean_weight: float  # near 1 where propensities are right
    warnings: tuple[str, ...]

    def __getitem__(self, method: str) -> Interval:
        found = {estimate.method: estimate for estimate in self.estimates}
        if method not in found:
            raise KeyError(f"Expected one of {list(found)}. Received: {method!r}")
        return found[method]


def evaluate(
    action: ArrayLike,
    reward: ArrayLike,
    propensity: ArrayLike,
    probabilities: ArrayLike,
    model_values: ArrayLike | None = None,
    clip: float | None = None,
) -> Evaluation:
    """Estimates the mean reward of a policy from a log.

    Args:
      action: of the log, `[n]` integers from 0.
      reward: of the log, `[n]`.
      propensity: of the actions taken, `[n]` in (0, 1].
      probabilities: of the policy to evaluate, `[n, N]`, rows that add up to 1.
      model_values: a model's mean reward of each action, `[n, N]`, for DR; from data without the decision itself.
      clip: the largest weight that is used; None for all. Clipping trades variance for bias.
    """
    taken, reward, propensity, policy = _checked(action, reward, propensity, probabilities)
    count = np.arange(len(taken))
    weight = policy[count, taken] / propensity
    notes = _notes(weight, propensity)
    if clip is not None:
        checks.number("clip", clip, "(0, inf)")
        clipped = weight > clip
        if clipped.any():
            notes.append(f"{clipped.sum()} weights above {clip:g} were clipped: estimates are biased")
        weight = np.minimum(weight, clip)
    estimates = [plain_mean("IPS", weight * reward)]
    total = weight.sum()
    value = float(weight @ reward / total) if total > 0.0 else math.nan
    error = math.sqrt(float((weight**2) @ (reward - value) ** 2)) / total if total > 0.0 else math.nan
    estimates.append(intervals.normal(value, error, len(reward), "SNIPS"))
    if model_values is not None:
        values = checks.floats("model_values", model_values, checks.LARGEST_VALUE)
        if values.shape != policy.shape:
            raise ValueError(f"Expected finite model_values of shape {policy.shape}. Received: shape {values.shape}")
        rest = weight * (reward - values[count, taken])
        estimates.append(plain_mean("DR", (policy * values).sum(axis=1) + rest))
    given = {"reward": reward, "propensity": propensity}
    numbers = [(part.estimate, part.error) for part in estimates] if total > 0.0 and len(reward) > 1 else []
    checks.check_result("the estimate", numbers, **given)
    sizes = _effective(weight), float(weight.max()), float(weight.mean())
    return Evaluation(tuple(estimates), *sizes, tuple(notes))


def folds(count: int, number: int = 5, seed: int = 0) -> list[Array]:
    """Returns `number` parts of `range(count)`, shuffled: fit a model on the others, and evaluate on each."""
    count = checks.integer("count", count, 2)
    checks.fits(count, f"count={count}")
    if checks.integer("number", number, 2) > count:
        raise ValueError(f"Expected between 2 and {count} folds. Received: {number}")
    checks.integer("seed", seed, 0)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(count), number)]


def plain_mean(method: str, values: Array) -> Interval:
    """Returns the mean of values, one per decision, with its standard error."""
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return intervals.normal(values.mean(), error, len(values), method)


def _effective(weight: Array) -> float:
    square = float(weight @ weight)
    return float(weight.sum() ** 2 / square) if square > 0.0 else 0.0


def _notes(weight: Array, propensity: Array) -> list[str]:
    notes, count, effective = [], len(weight), _effective(weight)
    if effective == 0.0:
        return ["the policy never takes an action that was logged: the log says nothing about it"]
    if effective < FEW_EFFECTIVE or effective < SMALL_SHARE * count:
        notes.append(f"only {effective:.0f} effective decisions of {count}: the policy is far from the log's")
    error = weight.std(ddof=1) / math.sqrt(count) if count > 1 else 0.0
    if abs(weight.mean() - 1.0) > 4.0 * error + 1e-6 and effective >= FEW_EFFECTIVE:
        notes.append(
            f"weights have mean {weight.mean():.3g}, not 1: propensities are wrong, or actions of the policy were "
            "never logged"
        )
    if propensity.min() < 1e-3:
        notes.append(f"propensities down to {propensity.min():.2g}: single decisions weigh a lot")
    return notes


def check_propensities(propensity: Array) -> None:
    """Raises for propensities that are no probabilities of something that happened."""
    if not (np.min(propensity) > 0.0 and np.max(propensity) <= 1.0 + 1e-6):
        raise ValueError(f"Expected propensities in (0, 1]. Received: {np.min(propensity):g} to {np.max(propensity):g}")


def _checked(
    action: ArrayLike, reward: ArrayLike, propensity: ArrayLike, probabilities: ArrayLike
) -> tuple[Array, Array, Array, Array]:
    policy = checks.floats("probabilities", probabilities)
    given = checks.array("action", action)
    if policy.ndim != 2 or not policy.size:
        raise ValueError(f"Expected probabilities of shape [decisions, actions]. Received: {policy.shape}")
    count, actions = policy.shape
    if given.shape != (count,) or not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"Expected {count} actions, integers. Received: {given.dtype} of shape {given.shape}")
    if given.min() < 0 or given.max() >= actions:
        raise ValueError(f"Expected actions in [0, {actions}). Received: {given.min()} to {given.max()}")
    arrays = []
    for name, values in (("rewards", reward), ("propensities", propensity)):
        array = checks.floats(name, values, checks.LARGEST_VALUE)
        if array.shape != (count,):
            raise ValueError(f"Expected {count} finite {name}. Received: shape {array.shape}")
        arrays.append(array)
    check_propensities(arrays[1])
    off = np.abs(policy.sum(axis=1) - 1.0).max()
    if off > 1e-4 or policy.min() < -1e-9:
        raise ValueError(f"Expected rows of probabilities that add up to 1. Received: one that is off by {off:g}")
    return given.astype(np.int64), arrays[0], arrays[1], policy
