"""Batches of in-memory data, in an order that is a pure function of (seed, step).

Training that goes on after a load or a crash therefore sees the batches that it would have seen, shuffled or not. One
iterator serves all epochs, where Keras would make two for each.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def epochs(
    data: Any, length: int, batch_size: int, seed: int, first_step: tf.Variable, shuffle: bool
) -> tf.data.Dataset:
    """Returns endless batches, epoch by epoch; the last of each epoch may be smaller.

    Args:
        data: a structure of arrays `[length, ...]`.
        length: number of examples.
        batch_size: examples per batch.
        seed: decides the orders, together with the step at which an epoch starts.
        first_step: steps that were taken before the first batch; read when the first batch is asked for.
        shuffle: whether to shuffle each epoch.
    """
    steps = -(-length // batch_size)
    tensors = tf.nest.map_structure(tf.convert_to_tensor, data)

    def order(epoch: tf.Tensor) -> tf.data.Dataset:
        rows = tf.range(length)
        if shuffle:
            start = first_step.read_value() + epoch * steps
            rows = tf.random.experimental.stateless_shuffle(rows, seed=tf.stack([tf.cast(seed, tf.int64), start]))
        return tf.data.Dataset.from_tensor_slices(rows).batch(batch_size)

    def take(rows: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), tensors)

    return tf.data.Dataset.counter().flat_map(order).map(take).prefetch(tf.data.AUTOTUNE)
