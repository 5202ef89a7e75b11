"""Bayesian linear regression of rewards, a model per output, as a part of the compiled rollout: a baseline.

The prior of parameters is N(0, I), in units of the rewards. Shapes: J problems, H models, D features.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tf_ensembles.linear.inputs import DTYPE, Tensor


class Line(NamedTuple):
    """The posterior: precision `A`, with `A^-1 = W W'`, and `sum x y / noise^2`."""

    root: Tensor  # W, [J, H, D, D]
    target: Tensor  # [J, H, D]


def initial(problems: int, heads: int, dim: int) -> Line:
    """Returns the prior."""
    return Line(tf.eye(dim, batch_shape=[problems, heads], dtype=DTYPE), tf.zeros([problems, heads, dim], DTYPE))


def draw(line: Line, features: Tensor, normals: Tensor) -> Tensor:
    """Returns the values `[J, rows, H]` of parameters drawn from the posterior by N(0, 1) draws `[J, H * D]`."""
    normals = tf.reshape(tf.cast(normals, DTYPE), line.target.shape)
    theta = tf.linalg.matvec(line.root, tf.linalg.matvec(line.root, line.target, transpose_a=True) + normals)
    return tf.cast(tf.einsum("jrd,jhd->jrh", tf.cast(features, DTYPE), theta), tf.float32)


def learned(line: Line, features: Tensor, head: Tensor, reward: Tensor, noise: Tensor) -> Line:
    """Returns the posterior after one more reward `[J]` of each problem, at features `[J, D]` (Potter's update)."""
    x, heads = tf.cast(features, DTYPE)[:, tf.newaxis], line.root.shape[1]
    weight = tf.one_hot(head, heads, dtype=DTYPE) / tf.square(tf.cast(noise, DTYPE))[:, tf.newaxis]
    factor = tf.linalg.matvec(line.root, tf.broadcast_to(x, line.target.shape), transpose_a=True)
    grown = weight * tf.reduce_sum(tf.square(factor), axis=2)
    gain = weight / ((1.0 + grown) * (1.0 + tf.math.rsqrt(1.0 + grown)))
    column = gain[..., tf.newaxis] * tf.linalg.matvec(line.root, factor)
    root = line.root - column[..., tf.newaxis] * factor[:, :, tf.newaxis]
    added = (weight * tf.cast(reward, DTYPE)[:, tf.newaxis])[..., tf.newaxis] * x
    return Line(root, line.target + added)


def fitted(features: Tensor, head: Tensor, reward: Tensor, keep: Tensor, noise: Tensor, heads: int) -> Line:
    """Returns the posterior of all decisions at once.

    Args:
      features: `[J, C, D]`.
      head: `[J, C]`.
      reward: `[J, C]`.
      keep: 1 for decisions that were made, 0 for empty places, `[C]`.
      noise: deviation of rewards, `[J]`.
      heads: H.
    """
    precision = 1.0 / tf.square(noise)[:, tf.newaxis]
    grams, targets = [], []
    for number in range(heads):  # One at a time: all at once would be H times the memory.
        weight = tf.cast(tf.equal(head, number), tf.float32) * keep * precision
        weighted = weight[..., tf.newaxis] * features
        grams.append(tf.matmul(weighted, features, transpose_a=True))
        targets.append(tf.linalg.matvec(weighted, reward, transpose_a=True))
    gram = tf.cast(tf.stack(grams, axis=1), DTYPE) + tf.eye(features.shape[2], dtype=DTYPE)
    lower = tf.linalg.cholesky(gram)
    inverse = tf.linalg.triangular_solve(lower, tf.eye(features.shape[2], batch_shape=gram.shape[:2], dtype=DTYPE))
    return Line(tf.linalg.matrix_transpose(inverse), tf.cast(tf.stack(targets, axis=1), DTYPE))
