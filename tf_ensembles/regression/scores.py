"""How good the predictions of a regression ensemble are, as functions of its members' means and standard deviations.

Every function takes arrays `[batch, members]`, or `[batch, members, targets]`, and targets y `[batch]` or
`[batch, targets]`, and computes in float64. The prediction is the mixture of normal members, evaluated exactly; of an
ensemble, `d = model.predict_distribution(x)` has them as `d.member_mean` and `d.member_std`. Likelihoods are those of
all targets of an example together; the other scores are means over targets as well.

The counterparts for `compile(metrics=[...])` are in `streaming`, and `MarginalNLL`, `JointNLL` and `DyadicNLL` of
`tfe.metrics` take regressions, too. The joint scores read examples in the order given: **shuffle what is sorted**.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks
from tf_ensembles.metrics import functions
from tf_ensembles.metrics.likelihood import SLICE_ELEMENTS, Floats
from tf_ensembles.regression import components, heads
from tf_ensembles.regression.components import Components

# Levels of a calibration curve at most.
MOST_LEVELS = 10**6


class CalibrationCurve(NamedTuple):
    """How often targets lay at or below each predicted quantile; the same numbers twice if calibrated."""

    levels: Floats  # [levels], what was promised
    observed: Floats  # [levels], what came


def gaussian_nll(mean: ArrayLike, std: ArrayLike, y: ArrayLike, *, standard_error: bool = False) -> Any:
    """Mean over examples of `-log mean_m N(y_i; mean_m, std_m^2)`, in nats per example.

    Args:
        mean: members' means.
        std: members' standard deviations, all above 0.
        y: targets.
        standard_error: whether to return `(value, error)`.
    """
    return functions.joint_of(member_log_likelihood(mean, std, y), 1, standard_error)


def gaussian_joint_nll(
    mean: ArrayLike, std: ArrayLike, y: ArrayLike, tau: int = 10, *, standard_error: bool = False
) -> Any:
    """Mean over batches of tau examples of `-log mean_m prod_i N(y_i; mean_m, std_m^2)`, in nats **per tau examples**.

    Batches are consecutive and disjoint; the last `batch % tau` examples are left out. `tau=1` is `gaussian_nll`.

    Args:
        mean: members' means, `batch >= tau`, in random order.
        std: members' standard deviations, all above 0.
        y: targets.
        tau: examples per joint prediction.
        standard_error: whether to return `(value, error)`; the error is NaN for fewer than two batches.
    """
    return functions.joint_of(member_log_likelihood(mean, std, y), tau, standard_error)


def gaussian_dyadic_nll(
    mean: ArrayLike,
    std: ArrayLike,
    y: ArrayLike,
    tau: int = 10,
    kappa: int = 2,
    seed: int = 0,
    *,
    anchors: functions.Anchors = "consecutive",
    num_batches: int | None = None,
    standard_error: bool = False,
) -> Any:
    """Joint NLL of tau examples drawn, with replacement, from kappa anchors; see `tfe.metrics.dyadic_nll`.

    Args:
        mean: members' means.
        std: members' standard deviations, all above 0.
        y: targets.
        tau: examples per joint prediction.
        kappa: anchors per batch; exact over how often each is drawn for kappa <= 2.
        seed: decides what is drawn.
        anchors: `"consecutive"` or `"random"` groups of examples.
        num_batches: how many random groups; None means `batch` of them.
        standard_error: whether to return `(value, error)`.
    """
    likelihood = member_log_likelihood(mean, std, y)
    return functions.dyadic_of(likelihood, tau, kappa, seed, anchors, num_batches, standard_error)


def member_log_likelihood(mean: ArrayLike, std: ArrayLike, y: ArrayLike) -> Floats:
    """Returns each member's log-density of an example's targets, `[batch, members]`."""
    return _by_rows(components.log_likelihood, *_check(mean, std, y))


def crps(mean: ArrayLike, std: ArrayLike, y: ArrayLike, *, standard_error: bool = False) -> Any:
    """Mean over examples of the continuous ranked probability score, in units of the target: closed form, exact.

    With one member of a tiny std it is the absolute error.

    Args:
        mean: members' means.
        std: members' standard deviations, all above 0.
        y: targets.
        standard_error: whether to return `(value, error)`.
    """
    values = _by_rows(components.crps, *_check(mean, std, y))
    return functions.with_error(values.mean(axis=1), standard_error)


def rmse(mean: ArrayLike, y: ArrayLike) -> float:
    """Root of the mean squared error of the mixture's mean, over examples and targets."""
    means = _means(mean)
    targets = _targets(y, means)
    return float(np.sqrt(np.mean((means.mean(axis=1) - targets) ** 2)))


def coverage(mean: ArrayLike, std: ArrayLike, y: ArrayLike, level: float = 0.9) -> float:
    """Share of targets within the mixture's central interval of probability `level`: about `level`, if calibrated."""
    level = heads.check_level(level)
    return float(np.mean(np.abs(_pit(mean, std, y) - 0.5) <= 0.5 * level))


def interval_score(mean: ArrayLike, std: ArrayLike, y: ArrayLike, level: float = 0.9) -> float:
    """Mean width of the central interval, plus `2 / (1 - level)` for each unit by which a target misses it.

    Less is better, and the best is to report the true quantiles (Gneiting and Raftery, 2007). In units of the target.
    """
    level = heads.check_level(level)
    return float(np.mean(_by_rows(lambda c, y: interval_scores(c, y, level), *_check(mean, std, y), width=4)))


def interval_scores(c: Components, y: tf.Tensor, level: float) -> tf.Tensor:
    """Returns the interval score of each target, `[batch, targets]`, of tensors."""
    tail = 0.5 * (1.0 - level)
    ends = tf.cast(components.quantile(c, tf.constant([tail, 1.0 - tail], tf.float64)), y.dtype)
    lower, upper = ends[..., 0], ends[..., 1]
    missed = tf.nn.relu(lower - y) + tf.nn.relu(y - upper)
    return upper - lower + missed / tail


def calibration_curve(mean: ArrayLike, std: ArrayLike, y: ArrayLike, num_levels: int = 19) -> CalibrationCurve:
    """Returns evenly spaced levels, and the share of targets at or below the quantile of each."""
    levels = calibration_levels(num_levels)
    probabilities = np.sort(_pit(mean, std, y), axis=None)
    return CalibrationCurve(levels, np.searchsorted(probabilities, levels, side="right") / len(probabilities))


def calibration_error(mean: ArrayLike, std: ArrayLike, y: ArrayLike, num_levels: int = 19) -> float:
    """Mean over evenly spaced levels of the distance between promised and observed probability, between 0 and 1/2."""
    curve = calibration_curve(mean, std, y, num_levels)
    return float(np.mean(np.abs(curve.levels - curve.observed)))


def calibration_levels(num_levels: int) -> Floats:
    """Returns `1, 2, ... num_levels`, each over `num_levels + 1`."""
    num_levels = checks.integer("num_levels", num_levels, 1, MOST_LEVELS)
    return np.arange(1, num_levels + 1) / (num_levels + 1)


def sharpness(mean: ArrayLike, std: ArrayLike) -> float:
    """Mean over examples and targets of the mixture's standard deviation: how much a prediction says."""
    means = _means(mean)
    stds = _stds(std, means)
    return float(np.mean(np.sqrt((stds**2).mean(axis=1) + means.var(axis=1))))


def _pit(mean: ArrayLike, std: ArrayLike, y: ArrayLike) -> Floats:
    """Returns the mixture's probability of what came or less, `[batch, targets]`: uniform, if calibrated."""
    return _by_rows(components.cdf, *_check(mean, std, y))


def _check(mean: ArrayLike, std: ArrayLike, y: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Returns means and standard deviations `[batch, members, targets]` and targets `[batch, targets]`, or raises."""
    means = _means(mean)
    return means, _stds(std, means), _targets(y, means)


def _means(mean: ArrayLike) -> Floats:
    """Returns means `[batch, members, targets]`, or raises."""
    means = checks.floats("means", mean, checks.LARGEST_VALUE)
    if means.ndim not in (2, 3) or 0 in means.shape:
        raise ValueError(
            f"Expected non-empty means [batch, members] or [batch, members, targets]. Received: {means.shape}"
        )
    return means.reshape(*means.shape[:2], -1)


def _stds(std: ArrayLike, means: Floats) -> Floats:
    """Returns standard deviations in the shape of checked means, or raises."""
    stds = checks.floats("standard deviations", std, checks.LARGEST_VALUE)
    if stds.shape != means.shape and (*stds.shape, 1) != means.shape:
        raise ValueError(f"Expected a standard deviation for each mean, {means.shape}. Received: {stds.shape}")
    if not stds.min() > 0.0:
        raise ValueError(f"Expected finite standard deviations > 0. Received: {stds.min()}")
    return stds.reshape(means.shape)


def _targets(y: ArrayLike, means: Floats) -> Floats:
    """Returns targets `[batch, targets]` of checked means, or raises."""
    targets, wanted = checks.floats("targets", y, checks.LARGEST_VALUE), (len(means), means.shape[2])
    if targets.ndim == 1:
        targets = targets[:, None]
    if targets.shape != wanted:
        raise ValueError(f"Expected targets of shape {wanted}, as the means say. Received: {targets.shape}")
    return targets


def _by_rows(function: Callable[..., Any], means: Floats, stds: Floats, y: Floats, width: int = 1) -> NDArray[Any]:
    """Returns a function of normal members and targets, computed by slices of rows."""
    size = max(1, SLICE_ELEMENTS // (means.shape[1] * means.shape[2] * width))
    results = []
    for start in range(0, len(means), size):
        rows = slice(start, start + size)
        normal = Components(tf.constant(means[rows, :, None]), tf.constant(stds[rows, :, None]))
        results.append(np.asarray(function(normal, tf.constant(y[rows]))))
    values = np.concatenate(results)
    checks.check_result("the score", values, mean=means, std=stds, y=y)
    return values
