"""The noise of targets around members that predict values only, estimated on data that were held out."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from tf_ensembles.metrics.likelihood import Floats, log_mean_exp

_MOST_STEPS = 1000
_CLOSE = 1e-9


def estimate(means: ArrayLike, y: ArrayLike) -> Floats:
    """Returns the standard deviation of each target's noise, `[targets]`, that makes held-out targets most likely.

    The prediction is the mixture of `N(mean_m(x), noise^2)` over members, so where members disagree, that explains part
    of an error, and the noise the rest. Expectation-maximization, which converges to one number per target.

    Args:
        means: members' values `[batch, members, targets]` on data that no member was trained on.
        y: targets `[batch, targets]`, or `[batch]` for one.
    """
    values = np.asarray(means, np.float64)
    targets = np.asarray(y, np.float64).reshape(len(values), -1)
    if targets.shape != (len(values), values.shape[2]) or not len(values):
        raise ValueError(
            f"Expected targets of shape {(len(values), values.shape[2])}, one row for each. Received: {np.shape(y)}"
        )
    if not np.isfinite(targets).all():
        raise ValueError(f"Expected finite targets. Received: {targets[~np.isfinite(targets)][0]}")
    return np.array([_of_target(values[..., k], targets[:, k]) for k in range(targets.shape[1])])


def _of_target(means: Floats, y: Floats) -> float:
    squares = (y[:, None] - means) ** 2
    variance = float(np.mean((y - means.mean(axis=1)) ** 2))
    least = 2.0**-46 * float(np.mean(y**2))  # what float32 rounds away
    if variance <= least:
        raise ValueError(
            "Expected held-out targets with noise, or an ensemble that does not fit them exactly. Received: errors of 0"
        )
    for _ in range(_MOST_STEPS):
        logs = -0.5 * squares / variance
        shares = np.exp(logs - log_mean_exp(logs)[:, None]) / means.shape[1]
        following = max(float(np.mean(np.sum(shares * squares, axis=1))), least)
        if abs(following - variance) <= _CLOSE * variance:
            break
        variance = following
    return float(np.sqrt(variance))
