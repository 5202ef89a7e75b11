"""The formulas of regression mixtures, once: densities, tails, moments, CRPS, quantiles and draws.

A member's prediction of an example's target is a normal distribution, Student's t, or a mixture of a few normal ones
(its parts). Shapes are `[batch, members, parts, targets]`. Members count alike; a member's targets are independent.
Everything computes with tensors in their own dtype, eagerly, in graphs and under XLA; quantiles always in float64.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

_LOG_2PI = math.log(2.0 * math.pi)
_ROOT_2 = math.sqrt(2.0)
# Far below the spacing of float32, 6e-8, and far above that of float64.
_QUANTILE_TOLERANCE = 1e-10
_MOST_STEPS = 400


class Components(NamedTuple):
    """What members predict, each `[batch, members, parts, targets]`."""

    loc: tf.Tensor
    scale: tf.Tensor
    log_weight: tf.Tensor | None = None  # of the parts of each member and target; None: one part
    df: float | None = None  # degrees of freedom of Student's t; None: normal


def part_means(c: Components) -> tf.Tensor:
    """Returns the mean of each member, `[..., targets]`."""
    if c.log_weight is None:
        return tf.squeeze(c.loc, axis=-2)
    return tf.reduce_sum(tf.exp(c.log_weight) * c.loc, axis=-2)


def member_variances(c: Components) -> tf.Tensor:
    """Returns the variance of each member, `[..., targets]`."""
    variance = c.scale**2
    if c.df is not None:
        variance *= c.df / (c.df - 2.0)
    if c.log_weight is None:
        return tf.squeeze(variance, axis=-2)
    weight = tf.exp(c.log_weight)
    mean = tf.reduce_sum(weight * c.loc, axis=-2, keepdims=True)
    return tf.reduce_sum(weight * (variance + (c.loc - mean) ** 2), axis=-2)


def log_density(c: Components, y: tf.Tensor) -> tf.Tensor:
    """Returns the log-density of each member and target, `[..., targets]`.

    Args:
        c: parts `[..., parts, targets]`.
        y: `[..., targets]`, to be broadcast against members.
    """
    logs = _log_standard((y[..., None, :] - c.loc) / c.scale, c.df) - tf.math.log(c.scale)
    if c.log_weight is None:
        return tf.squeeze(logs, axis=-2)
    return tf.reduce_logsumexp(c.log_weight + logs, axis=-2)


def _log_standard(z: tf.Tensor, df: float | None) -> tf.Tensor:
    """Returns the log-density of location 0 and scale 1."""
    if df is None:
        return -0.5 * (z**2 + _LOG_2PI)
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    return constant - 0.5 * (df + 1) * tf.math.log1p(z**2 / df)


def log_likelihood(c: Components, y: tf.Tensor) -> tf.Tensor:
    """Returns `log p_m(y_i | x_i)` of targets `[batch, targets]`, summed over targets, `[batch, members]`."""
    return tf.reduce_sum(log_density(c, y[:, None]), axis=-1)


def cdf(c: Components, y: tf.Tensor) -> tf.Tensor:
    """Returns the mixture's probability of a target at or below y, `[batch, targets]`."""
    loc, scale, weight = _flat(c)
    return tf.reduce_sum(weight * _tail((y[:, None] - loc) / scale, c.df), axis=1)


def _flat(c: Components) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns locations, scales and weights of all members' parts side by side, `[batch, members * parts, targets]`."""
    shape = tf.shape(c.loc)
    flat = tf.stack([shape[0], shape[1] * shape[2], shape[3]])
    count = tf.cast(shape[1], c.loc.dtype)
    weight = tf.ones_like(c.loc) if c.log_weight is None else tf.exp(c.log_weight)
    return tf.reshape(c.loc, flat), tf.reshape(c.scale, flat), tf.reshape(weight / count, flat)


def _tail(z: tf.Tensor, df: float | None) -> tf.Tensor:
    """Returns `P(Z <= z)` to full relative precision in the lower tail; at `-z` that is the upper one."""
    if df is None:
        return 0.5 * tf.math.erfc(-z / _ROOT_2)
    half = tf.zeros_like(z) + tf.constant(0.5, z.dtype)
    below = 0.5 * tf.math.betainc(half * df, half, df / (df + z**2))
    return tf.where(z <= 0.0, below, 1.0 - below)


def crps(c: Components, y: tf.Tensor) -> tf.Tensor:
    """Returns the continuous ranked probability score of the mixture, `[batch, targets]`: closed form, normal parts.

    `E|Y - y| - E|Y - Y'| / 2`, where the mean absolute value of a normal variable is known.
    """
    if c.df is not None:
        raise ValueError(
            "Expected normal members: the CRPS of mixtures of Student's t has no closed form. "
            f"Received: {c.df} degrees of freedom"
        )
    loc, scale, weight = _flat(c)
    near = tf.reduce_sum(weight * _mean_absolute(y[:, None] - loc, scale), axis=1)

    # One part against all others at a time: all pairs at once would take as many times the memory as there are parts.
    def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        one, own, share = (tf.gather(part, [index], axis=1) for part in (loc, scale, weight))
        pairs = weight * share * _mean_absolute(loc - one, tf.sqrt(scale**2 + own**2))
        return index + 1, total + tf.reduce_sum(pairs, axis=1)

    count = tf.shape(loc)[1]
    _, spread = tf.while_loop(lambda index, _: index < count, add, (tf.constant(0), tf.zeros_like(near)))
    return near - 0.5 * spread


def _mean_absolute(difference: tf.Tensor, std: tf.Tensor) -> tf.Tensor:
    """Returns `E|N(difference, std^2)|`."""
    z = difference / (_ROOT_2 * std)
    return difference * tf.math.erf(z) + std * math.sqrt(2.0 / math.pi) * tf.exp(-(z**2))


def moments(means: tf.Tensor, variances: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the mixture's mean, its aleatoric variance and its epistemic variance, `[batch, targets]`.

    Their sum is the mixture's variance: the members' mean variance, and the variance of their means.
    """
    return tf.reduce_mean(means, axis=1), tf.reduce_mean(variances, axis=1), tf.math.reduce_variance(means, axis=1)


def quantile(c: Components, levels: tf.Tensor) -> tf.Tensor:
    """Returns the mixture's quantiles, `[batch, targets, levels]` in float64, by Newton's method and bisection in turn.

    Args:
        c: what members predict.
        levels: `[levels]`, each strictly between 0 and 1.
    """
    c = Components(tf.cast(c.loc, tf.float64), tf.cast(c.scale, tf.float64), _cast(c.log_weight), c.df)
    levels = tf.cast(levels, tf.float64)
    loc, scale, weight = (part[..., None] for part in _flat(c))
    mean, *variances = moments(part_means(c), member_variances(c))
    mean, std = mean[..., None], tf.sqrt(tf.add_n(variances))[..., None]
    # Cantelli's inequality: no distribution has a quantile further from its mean.
    low, high = mean - std * tf.sqrt((1.0 - levels) / levels), mean + std * tf.sqrt(levels / (1.0 - levels))
    # The smaller of the two tails is compared with its probability, because that keeps its digits.
    upper = levels > 0.5
    sign, target = tf.where(upper, -1.0, 1.0), tf.where(upper, 1.0 - levels, levels)
    sign = tf.cast(sign, tf.float64)
    close = _QUANTILE_TOLERANCE * tf.reduce_min(scale, axis=1)

    def step(
        index: tf.Tensor, x: tf.Tensor, low: tf.Tensor, high: tf.Tensor, _: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        z = (x[:, None] - loc) / scale
        excess = sign * (tf.reduce_sum(weight * _tail(sign * z, c.df), axis=1) - target)
        slope = tf.reduce_sum(weight * tf.exp(_log_standard(z, c.df)) / scale, axis=1)
        low, high = tf.where(excess < 0.0, x, low), tf.where(excess < 0.0, high, x)
        newton, middle = x - tf.math.divide_no_nan(excess, slope), 0.5 * (low + high)
        usable = (slope > 0.0) & (newton >= low) & (newton <= high)
        tolerance = close + _QUANTILE_TOLERANCE * tf.abs(x)
        found = (usable & (tf.abs(newton - x) <= tolerance)) | (high - low <= tolerance)
        # A Newton step that is not taken yet may be wrong by far; one that is tiny may be taken for good.
        following = tf.where(usable & (found | (index % 2 == 0)), newton, middle)
        return index + 1, following, low, high, tf.reduce_all(found)

    start = tf.clip_by_value(mean + std * tf.math.ndtri(levels), low, high)
    state = (tf.constant(0), start, low, high, tf.constant(False))
    _, x, *_ = tf.while_loop(lambda index, *rest: (index < _MOST_STEPS) & ~rest[-1], step, state)
    return x


def _cast(tensor: Any) -> Any:
    return None if tensor is None else tf.cast(tensor, tf.float64)


# Draws. Whoever draws gives uniform numbers, so that the same key gives the same draw in Python and in a SavedModel.


def num_streams(num_targets: int) -> int:
    """Returns how many uniform numbers one draw of all targets takes."""
    return 3 * num_targets


def draw(c: Components, uniform: tf.Tensor, to_normal: Any) -> tf.Tensor:
    """Returns one draw of each target, `[..., targets]`.

    Args:
        c: parts of the member that was chosen, `[..., parts, targets]`.
        uniform: `[..., num_streams(targets)]` in [0, 1).
        to_normal: turns uniform numbers into normal ones.
    """
    first, second, third = tf.split(uniform, 3, axis=-1)
    if c.df is None:
        noise = tf.cast(to_normal(first), c.loc.dtype)
    else:  # Bailey's polar method.
        radius = tf.sqrt(c.df * ((1.0 - first) ** (-2.0 / c.df) - 1.0))
        noise = tf.cast(radius * tf.cos(2.0 * math.pi * second), c.loc.dtype)
    if c.log_weight is None:
        return tf.squeeze(c.loc, axis=-2) + tf.squeeze(c.scale, axis=-2) * noise
    cumulative = tf.cumsum(tf.exp(c.log_weight), axis=-2, exclusive=True)
    chosen = tf.cast(tf.cast(third, c.loc.dtype)[..., None, :] >= cumulative, tf.int32)
    part = tf.one_hot(tf.reduce_sum(chosen, axis=-2) - 1, c.loc.shape[-2], axis=len(c.loc.shape) - 2, dtype=c.loc.dtype)
    return tf.reduce_sum(part * c.loc, axis=-2) + tf.reduce_sum(part * c.scale, axis=-2) * noise
