"""Forgetting by a window: sums over the latest rewards only."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_ensembles.linear.inputs import DTYPE, Tensor


class Window(tf.Module):
    """The latest rewards in the order of their arrival, as variables that checkpoints keep.

    Sums are linear in the weights of rewards: one that leaves the window is added once more with its weight negated.

    Args:
      size: rewards that are kept.
      dim: D, their features.
    """

    def __init__(self, size: int, dim: int) -> None:
        super().__init__(name="window")
        self._size = size
        shapes = {"problem": [], "action": [], "features": [dim], "reward": [], "keep": [], "id": []}
        whole = ("problem", "action", "id")
        self.kept = [
            tf.Variable(
                tf.zeros([size, *shape], tf.int64 if name in whole else DTYPE), trainable=False, name=f"window_{name}"
            )
            for name, shape in shapes.items()
        ]
        self.place = tf.Variable(0, dtype=tf.int64, trainable=False, name="window_place")

    def exchange(self, rows: Any) -> Any:
        """Takes rewards in; returns them with those that they push out, whose weights are negative.

        Of more rewards than the window holds, the last ones count.
        """
        rows = type(rows)(
            *(tf.cast(part[-self._size :], kept.dtype) for part, kept in zip(rows, self.kept, strict=True))
        )
        number = tf.shape(rows.reward, out_type=tf.int64)[0]
        place: Tensor = (self.place.read_value() + tf.range(number)) % self._size
        old = type(rows)(*(tf.gather(kept, place) for kept in self.kept))
        with tf.control_dependencies(list(old)):
            for kept, part in zip(self.kept, rows, strict=True):
                kept.scatter_nd_update(place[:, tf.newaxis], part)
            self.place.assign((self.place + number) % self._size)
        both = type(rows)(*(tf.concat(pair, axis=0) for pair in zip(rows, old, strict=True)))
        return both._replace(keep=tf.concat([rows.keep, -old.keep], axis=0))
