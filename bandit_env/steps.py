"""Steps and rows: the ids of decisions, and draws for each of them.

Every draw is a pure function of (seed, step, row): a TF-Agents driver and the compiled rollout make the same ones, and
a run that is resumed, split over processes or repeated sees the numbers it would have seen undisturbed. Seeds here are
those of `draws.key`.
"""

from __future__ import annotations

import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.linear.inputs import Tensor

ROW_BITS = 32


def make_ids(step: Tensor, rows: Tensor) -> Tensor:
    """Returns the ids of the decisions of one step: `(step << 32) + row`."""
    return tf.bitwise.left_shift(tf.cast(step, tf.int64), tf.constant(ROW_BITS, tf.int64)) + rows


def split_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the step and the row of each id."""
    ids = tf.cast(ids, tf.int64)
    step = tf.bitwise.right_shift(ids, tf.constant(ROW_BITS, tf.int64))
    return step, tf.bitwise.bitwise_and(ids, tf.constant(2**ROW_BITS - 1, tf.int64))


def uniform(seed: int | Tensor, step: Tensor, rows: Tensor, num_streams: int) -> Tensor:
    """Returns float32 draws of U[0, 1), `[streams, rows]`, for one step."""
    drawn = draws.uniform(seed, tf.reshape(tf.cast(step, tf.int64), [1]), rows, num_streams)
    return tf.transpose(drawn[0])


def uniforms_of(seed: int | Tensor, ids: Tensor, num_streams: int) -> Tensor:
    """Returns float32 draws of U[0, 1), `[streams, ids]`: each row's own, where rows are not at the same step."""
    return tf.transpose(draws.uniform(seed, ids, tf.zeros([1], tf.int64), num_streams)[:, 0])


def normal(seed: int | Tensor, step: Tensor, rows: Tensor, num_streams: int) -> Tensor:
    """Returns float32 draws of N(0, 1), `[streams, rows]`, for one step."""
    return draws.to_normal(uniform(seed, step, rows, num_streams))


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
    return draws.to_normal(uniforms_at(seed, steps, numbers))


def uniforms_at(seed: int | Tensor, steps: Tensor, numbers: Tensor) -> Tensor:
    """As `normals_at`, for draws of U[0, 1)."""
    return draws.uniform(seed, tf.cast(steps, tf.int64), numbers)[..., 0]


def member_normals(seed: int | Tensor, ids: Tensor, num_members: int) -> Tensor:
    """Returns N(0, 1) draws fixed for each (id, member), `[members, rows]`: they do not depend on when data arrive."""
    drawn = draws.uniform(seed, ids, tf.range(num_members, dtype=tf.int64))[..., 0]
    return draws.to_normal(tf.transpose(drawn))


def put(kept: Tensor, place: Tensor, new: Tensor) -> Tensor:
    """Returns what is kept, `[places, ...]`, with something new in one place."""
    return tf.tensor_scatter_nd_update(kept, [[place]], [new])
