"""What calibrations are fitted by: the NLL of single labels or of several together, and where it is least."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.metrics import likelihood

Objective = Literal["marginal", "joint"]


def nll(log_likelihood: tf.Tensor, objective: Objective, tau: int) -> tf.Tensor:
    """Returns the NLL of members' log-likelihoods `[batch, members]`, per label."""
    if objective == "marginal":
        return -tf.reduce_mean(likelihood.log_mean_exp_tensor(log_likelihood))
    count = log_likelihood.shape[0] // tau
    if not count:
        raise ValueError(f"Expected at least tau={tau} examples. Received: {log_likelihood.shape[0]}")
    order = np.random.default_rng(0).permutation(log_likelihood.shape[0])[: count * tau]
    joint = tf.reduce_sum(tf.reshape(tf.gather(log_likelihood, order), [count, tau, -1]), axis=1)
    return -tf.reduce_mean(likelihood.log_mean_exp_tensor(joint)) / tau


def minimize(loss: Callable[[tf.Tensor], tf.Tensor], start: Array, steps: int = 200) -> Array:
    """Returns where a smooth function of a few numbers is least, by BFGS with halved steps, in float64.

    Args:
        loss: of a float64 tensor `[parameters]`.
        start: where to begin.
        steps: at most so many.
    """

    @tf.function(reduce_retracing=True)
    def both(parameters: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(parameters)
            value = loss(parameters)
        return value, tape.gradient(value, parameters)

    point, inverse = np.asarray(start, np.float64), np.eye(len(start))
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
    return point
