"""The running law of an ensemble's members in a bandit, and Thompson sampling from it.

Problems are the last axis of every array here: each operation runs over contiguous problems. Shapes: J problems, N
actions, d features, `P = d (d + 1) / 2`. Sums are float64: with noise variances near zero, `A` is too badly conditioned
for float32 after some thousand steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from bandit_env.parameters import Spread
from tf_ensembles.linear.inputs import DTYPE, Tensor

# Up to this d, matrices are handled as scalars written out, which compiles to a few passes over the problems.
MAX_UNROLLED_DIM = 4


class Sums(NamedTuple):
    """Sufficient statistics of the data, for any number of steps.

    With one right-hand side, `target = sum nu y x`. With M members it has the members' own perturbed targets and
    anchors: `target_m = sum nu (y + z_m) x + lambda anchor_m`.
    """

    precision: Tensor  # A = sum nu x x' + lambda I, the lower triangle row by row, [P, J] or P rows of [J]
    target: Tensor  # [d, J] or d rows of [J]; [d, M, J] for M members


def triangle(dim: int) -> list[tuple[int, int]]:
    """Returns the index pairs of a packed lower triangle."""
    return [(i, j) for i in range(dim) for j in range(i + 1)]


def initial_sums(dim: int, num_problems: int, regularizer: Tensor, anchors: Tensor | None = None) -> Sums:
    """Returns the sums before any data; `anchors` `[d, M, J]` makes a finite ensemble."""
    regularizer = tf.cast(regularizer, DTYPE)
    diagonal = tf.constant([[float(i == j)] for i, j in triangle(dim)], DTYPE)
    precision = regularizer * diagonal * tf.ones([1, num_problems], DTYPE)
    target = tf.zeros([dim, num_problems], DTYPE) if anchors is None else regularizer * tf.cast(anchors, DTYPE)
    return Sums(precision, target)


def added(x: Tensor, reward: Tensor, weight: Tensor) -> Sums:
    """Returns what one data pair per problem adds to the sums.

    Args:
      x: features, `[d, J]`.
      reward: `[J]`, or the members' perturbed rewards `[M, J]`.
      weight: nu, `[J]`.
    """
    dim = x.shape[0]
    weighted = weight * x
    pairs = tf.stack([weighted[i] * x[j] for i, j in triangle(dim)])
    shape = [dim, *([1] * (len(reward.shape) - 1)), -1]
    return Sums(pairs, tf.reshape(weighted, shape) * reward[tf.newaxis])


def sample(sums: Sums, normals: Tensor, spread: Spread, anchor_deviation: Tensor) -> list[Tensor]:
    """Draws one member per problem from the infinite ensemble's law: theta, d rows of `[J]`.

    Args:
      sums: with `target` `[d, J]`.
      normals: N(0, I) draws, `[d, J]`.
      spread: PRECISION draws `A^-1 b + A^-1/2 z`, PRIOR draws `A^-1 (b + lambda s0_hat z)`.
      anchor_deviation: `lambda * s0_hat`.
    """
    z = [tf.cast(row, DTYPE) for row in _rows(normals)]
    if spread is Spread.PRIOR:
        deviation = tf.cast(anchor_deviation, DTYPE)
        right = [row + deviation * noise for row, noise in zip(_rows(sums.target), z, strict=True)]
        return _solve(sums.precision, right, None)
    return _solve(sums.precision, _rows(sums.target), z)


def members(sums: Sums, index: Tensor) -> list[Tensor]:
    """Returns one member per problem of a finite ensemble, theta as d rows of `[J]`; `index` `[J]` says which."""
    chosen = tf.gather(tf.transpose(sums.target, [2, 1, 0]), index, batch_dims=1)
    return _solve(sums.precision, _rows(tf.transpose(chosen)), None)


def mean(sums: Sums) -> Tensor:
    """Returns the mean of an infinite ensemble's members, `[d, J]`."""
    return tf.stack(_solve(sums.precision, _rows(sums.target), None))


def values(theta: list[Tensor], features: Tensor) -> Tensor:
    """Returns each action's reward under theta (d rows of `[J]`), `[N, J]`; features are `[N, d, J]`."""
    if features.shape[1] <= MAX_UNROLLED_DIM:
        return sum((features[:, i] * theta[i] for i in range(1, features.shape[1])), features[:, 0] * theta[0])
    return tf.reduce_sum(features * tf.stack(theta)[tf.newaxis], axis=1)


def _solve(packed: Tensor, right: list[Tensor], z: list[Tensor] | None) -> list[Tensor]:
    """Returns `A^-1 right`, plus `L'^-1 z` where `z` is given and `A = L L'`; all of d rows `[J]`."""
    dim = len(right)
    if dim <= MAX_UNROLLED_DIM:
        return _solve_unrolled(packed, right, z)
    place = np.zeros([dim, dim], int)
    for k, (i, j) in enumerate(triangle(dim)):
        place[i, j] = place[j, i] = k
    lower = tf.linalg.cholesky(tf.transpose(tf.gather(packed, place), [2, 0, 1]))
    half = tf.linalg.triangular_solve(lower, tf.stack(right, axis=-1)[..., tf.newaxis])
    if z is not None:
        half += tf.stack(z, axis=-1)[..., tf.newaxis]
    return tf.unstack(tf.linalg.triangular_solve(lower, half, adjoint=True)[..., 0], axis=-1)


def _solve_unrolled(packed: Tensor, right: list[Tensor], z: list[Tensor] | None) -> list[Tensor]:
    """As `_solve`, by `A = L D L'` with a unit triangle: one division and no square root more than the draw needs."""
    dim, zero = len(right), tf.zeros([], DTYPE)
    a = dict(zip(triangle(dim), _rows(packed), strict=True))
    lower: dict[tuple[int, int], Tensor] = {}
    scaled: dict[tuple[int, int], Tensor] = {}  # L D
    inverse: list[Tensor] = []  # of D
    half: list[Tensor] = []
    for i in range(dim):
        for j in range(i):
            scaled[i, j] = a[i, j] - sum((scaled[i, k] * lower[j, k] for k in range(j)), zero)
            lower[i, j] = scaled[i, j] * inverse[j]
        inverse.append(1.0 / (a[i, i] - sum((scaled[i, k] * lower[i, k] for k in range(i)), zero)))
        half.append(right[i] - sum((lower[i, k] * half[k] for k in range(i)), zero))
    theta: list[Tensor] = [None] * dim
    for i in reversed(range(dim)):
        theta[i] = half[i] * inverse[i] - sum((lower[k, i] * theta[k] for k in range(i + 1, dim)), zero)
        if z is not None:
            theta[i] += tf.sqrt(inverse[i]) * z[i]
    return theta


def _rows(array: Tensor) -> list[Tensor]:
    return list(array) if isinstance(array, list | tuple) else tf.unstack(array)
