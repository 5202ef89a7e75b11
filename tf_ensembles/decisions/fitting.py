"""What calibrations are fitted by: the NLL of single labels or of several together, and where it is least."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.metrics import likelihood

Objective = Literal["marginal", "joint"]
FEW_EXAMPLES = 10


def warn_of_chance(num_examples: int, stacklevel: int, undetermined: str | None = None, stopped: str = "") -> None:
    """Warns where constants are not determined by the examples, or are chance because there are so few.

    Args:
        num_examples: of the calibration.
        stacklevel: of whoever calibrates.
        undetermined: what is not determined, and how the NLL goes on; None if all is.
        stopped: where it was stopped.
    """
    examples = f"{num_examples} calibration example{'s' * (num_examples > 1)}"
    if undetermined is not None:
        message = f"{examples} cannot determine {undetermined}. Stopped at {stopped}. Give more or other examples."
    elif num_examples < FEW_EXAMPLES:
        message = f"{examples}: constants that are fitted to so few are mostly chance. Give a hundred or more."
    else:
        return
    warnings.warn(message, stacklevel=stacklevel)


def nll(log_likelihood: tf.Tensor, objective: Objective, tau: int) -> tf.Tensor:
    """Returns the NLL of members' log-likelihoods `[batch, members]`, per label."""
    if objective == "marginal":
        return -tf.reduce_mean(likelihood.log_mean_exp_tensor(log_likelihood))
    count = log_likelihood.shape[0] // tau
    order = np.random.default_rng(0).permutation(log_likelihood.shape[0])[: count * tau]
    joint = tf.reduce_sum(tf.reshape(tf.gather(log_likelihood, order), [count, tau, -1]), axis=1)
    return -tf.reduce_mean(likelihood.log_mean_exp_tensor(joint)) / tau


def minimize(
    loss: Callable[[tf.Tensor], tf.Tensor], start: Array, limit: Array, steps: int = 200
) -> tuple[Array, Array]:
    """Returns where a smooth function of a few numbers is least, by BFGS with halved steps, in float64.

    Numbers are `limit * tanh(free / limit)` of free ones. Where data do not determine a number, the function falls, or
    stays as low, all the way to the limit.

    Args:
        loss: of a float64 tensor `[parameters]`.
        start: where to begin, within the limits.
        limit: how far each number may be from 0, `[parameters]`.
        steps: at most so many.

    Returns:
        The numbers, and which of them are not determined, both `[parameters]`.
    """

    @tf.function(reduce_retracing=True)
    def both(free: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(free)
            value = loss(limit * tf.tanh(free / limit))
        return value, tape.gradient(value, free)

    limit = np.asarray(limit, np.float64)
    point, inverse = limit * np.arctanh(np.asarray(start, np.float64) / limit), np.eye(len(start))
    value, slope = (np.asarray(part) for part in both(tf.constant(point)))
    for _ in range(steps):
        direction = -inverse @ slope
        if slope @ direction > -1e-14:
            break
        length = min(1.0, 2.0 / np.abs(direction).max())  # Logarithms of factors: e^2 at a time is enough.
        for _ in range(40):
            trial = point + length * direction
            new_value, new_slope = (np.asarray(part) for part in both(tf.constant(trial)))
            if np.isfinite(new_value) and new_value <= value + 1e-4 * length * (slope @ direction):
                break
            length /= 2
        else:
            break
        step, change = trial - point, new_slope - slope
        curvature = step @ change
        if curvature > 1e-12:
            project = np.eye(len(start)) - np.outer(step, change) / curvature
            inverse = project @ inverse @ project.T + np.outer(step, step) / curvature
        point, value, slope = trial, new_value, new_slope
    found = limit * np.tanh(point / limit)
    found = np.where(np.abs(found) > 0.99 * limit, np.sign(found) * limit, found)
    # At infinity, the function of a free number is that of its limit.
    ends = point + np.diag(np.copysign(np.inf, point) - point)
    as_low = [float(both(tf.constant(end))[0]) <= value + 1e-9 * (1.0 + abs(value)) for end in ends]
    return found, np.array(as_low) | (np.abs(found) == limit)
