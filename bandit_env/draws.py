"""Random draws as pure functions of (seed, step, row): the driver and the compiled rollout make the same ones.

A run that is resumed, split over processes or repeated sees the numbers it would have seen undisturbed.
"""

from __future__ import annotations

import enum
import math

import tensorflow as tf

from tf_ensembles import bootstrap
from tf_ensembles.linear_input import Tensor

_MAX_SEED = 2**32
ROW_BITS = 32


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
    return to_normal(tf.transpose(bootstrap.uniform(seed, tf.cast(steps, tf.int64), rows, num_streams), [0, 2, 1]))


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
    """Turns U[0, 1) on a grid of 2^-24 into N(0, 1) by inversion, cut at 5.3 standard deviations."""
    # Half a grid step up makes the grid symmetric and leaves out both ends, where the inverse is infinite.
    return math.sqrt(2.0) * tf.math.erfinv(2.0 * draws - (1.0 - 2.0**-24))
