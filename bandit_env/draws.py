"""Random draws as pure functions of (seed, step, row): the driver and the compiled rollout make the same ones.

A run that is resumed, split over processes or repeated sees the numbers it would have seen undisturbed.
"""

from __future__ import annotations

import enum

import tensorflow as tf

from tf_ensembles import bootstrap
from tf_ensembles.linear.inputs import Tensor

_MAX_SEED = 2**32
ROW_BITS = 32
# Least squares at Chebyshev points, relative error below 2e-7: z / x in powers of w - 2.5 and of sqrt(w) - 3, where
# x = 2 u - 1 and w = -log(1 - x^2).
_CENTRE = (
    *(3.958321e-08, 4.851791e-07, -4.9811946e-06, -6.2078803e-06, 3.0911509e-04),
    *(-1.7730417e-03, -5.9081299e-03, 0.34880268, 2.1233136),
)
_TAIL = (
    *(-2.0303381e-04, 9.6169643e-05, 1.7972933e-03, -5.1487416e-03, 8.1674211e-03),
    *(-1.0791938e-02, 1.3340938e-02, 1.4165818, 4.0064346),
)


class Purpose(enum.IntEnum):
    """What draws are for; each has its own stream of numbers under one seed."""

    PROBLEM_NORMAL = 1
    PROBLEM_UNIFORM = 2
    REWARD = 3
    POLICY = 4
    MEMBER = 5
    ANCHOR = 6
    NOISE = 7


def key(seed: int, purpose: Purpose) -> int:
    """Returns the generator's seed for a user's seed and a purpose."""
    if not 0 <= seed < _MAX_SEED:
        raise ValueError(f"Expected a seed in [0, 2**32). Received: {seed}")
    return seed + _MAX_SEED * int(purpose)


def uniform(seed: int | Tensor, step: Tensor, rows: Tensor, num_streams: int) -> Tensor:
    """Returns float32 draws of U[0, 1), `[streams, rows]`, for one step; `seed` comes from `key`."""
    draws = bootstrap.uniform(seed, tf.reshape(tf.cast(step, tf.int64), [1]), rows, num_streams)
    return tf.transpose(draws[0])


def normal(seed: int | Tensor, step: Tensor, rows: Tensor, num_streams: int) -> Tensor:
    """Returns float32 draws of N(0, 1), `[streams, rows]`, for one step; `seed` comes from `key`."""
    return to_normal(uniform(seed, step, rows, num_streams))


def normals(seed: int | Tensor, steps: Tensor, rows: Tensor, num_streams: int) -> Tensor:
    """Returns what `normal` returns, for many steps: `[steps, streams, rows]`."""
    drawn = normals_at(seed, steps, places(rows, num_streams))
    return tf.reshape(drawn, [tf.shape(drawn)[0], num_streams, -1])


def places(rows: Tensor, num_streams: int) -> Tensor:
    """Returns `[streams * rows]` numbers that stand for pairs of a stream and a row, for `normals_at`."""
    streams = tf.bitwise.left_shift(tf.range(num_streams, dtype=tf.int64), tf.constant(ROW_BITS, tf.int64))
    return tf.reshape(streams[:, tf.newaxis] + tf.cast(rows, tf.int64), [-1])


def normals_at(seed: int | Tensor, steps: Tensor, numbers: Tensor) -> Tensor:
    """Returns what `normals` returns, flat: `[steps, streams * rows]`, from the numbers of `places`."""
    return to_normal(uniforms_at(seed, steps, numbers))


def uniforms_at(seed: int | Tensor, steps: Tensor, numbers: Tensor) -> Tensor:
    """As `normals_at`, for draws of U[0, 1)."""
    return bootstrap.uniform(seed, tf.cast(steps, tf.int64), numbers)[..., 0]


def make_ids(step: Tensor, rows: Tensor) -> Tensor:
    """Returns the ids of the decisions of one step: `(step << 32) + row`."""
    return tf.bitwise.left_shift(tf.cast(step, tf.int64), tf.constant(ROW_BITS, tf.int64)) + rows


def split_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the step and the row of each id."""
    ids = tf.cast(ids, tf.int64)
    step = tf.bitwise.right_shift(ids, tf.constant(ROW_BITS, tf.int64))
    return step, tf.bitwise.bitwise_and(ids, tf.constant(2**ROW_BITS - 1, tf.int64))


def member_normals(seed: int | Tensor, ids: Tensor, num_members: int) -> Tensor:
    """Returns N(0, 1) draws fixed for each (id, member), `[members, rows]`: they do not depend on when data arrive."""
    return to_normal(tf.transpose(bootstrap.uniform(seed, ids, tf.range(num_members, dtype=tf.int64))[..., 0]))


def to_normal(draws: Tensor) -> Tensor:
    """Turns U[0, 1) on a grid of 2^-24 into N(0, 1) by inversion, cut at 5.4 standard deviations.

    Polynomials instead of `tf.math.erfinv`: XLA makes one vectorised pass of them, and taking the logarithm of a
    product of two exact numbers keeps its digits in the tails.
    """
    # Half a grid step up makes the grid symmetric and leaves out both ends, where the inverse is infinite.
    x = 2.0 * draws - (1.0 - 2.0**-24)
    w = -tf.math.log((1.0 - x) * (1.0 + x))
    return x * tf.where(w < 5.0, _polynomial(_CENTRE, w - 2.5), _polynomial(_TAIL, tf.sqrt(w) - 3.0))


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Horner's rule, the highest power first."""
    value = coefficients[0] * tf.ones([], x.dtype)
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
