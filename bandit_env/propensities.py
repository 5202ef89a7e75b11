"""How probable it is that one of N normal values is the largest: the propensity of a member drawn from infinitely many.

Computed for one action of each row, in float32, at about the price of the decision. Errors, which tests hold against
brute force: relative to the probability, 0.1% for independent values, and 1% for up to four correlated ones, whose
worst in a thousand random cases was 2% and whose extremes 4%; of more than four, 0.01 of the probability itself.

Shapes: B decisions, N actions, D dimensions, S points.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import tensorflow as tf

from tf_ensembles.bandit_env.choice import normal_cdf, primes
from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import DTYPE, Tensor

MAX_RANK = 8  # dimensions in which correlated values may differ
_OWN = (-8.0, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, 8.0)  # knots of a value's own density, in standard deviations
_OTHERS = (-6.0, -2.5, 0.0, 2.5, 6.0)  # knots of the steps that the others' distribution functions make
_NODES = 4  # of the quadrature between two knots
_GRIDS = ((32,), (12, 12))  # nodes along each axis of one and of two dimensions
_POINTS = 256  # beyond two dimensions
_FAR = 1e6  # standard deviations: surely above
_FLAT = 1e-5  # Rows of which a smaller part is left have no direction of their own.
_LEAST = 1e-30


def independent(mean: Tensor, deviation: Tensor, action: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns the probabilities `[B]` that the value of each row's action is the largest of N independent ones.

    With t the value in its own standard deviations, `P = integral of phi(t) prod over m of Phi((delta_m + s t) / s_m)`,
    by Gauss and Legendre between knots of all values, so that wide and narrow ones are both resolved.

    Args:
      mean: `[B, N]` float64.
      deviation: `[B, N]` float64.
      action: `[B]`.
      mask: `[B, N]` of bool: which actions are allowed; None for all.
    """
    widest = tf.reduce_max(deviation, axis=1, keepdims=True) + tf.reduce_max(tf.abs(mean), axis=1, keepdims=True)
    deviation = tf.maximum(deviation, 1e-12 * widest + 1e-300)
    own_mean, own = (tf.gather(part, action, batch_dims=1)[:, tf.newaxis] for part in (mean, deviation))
    ahead, ratio = (own_mean - mean) / deviation, own / deviation
    free = tf.one_hot(action, mean.shape[1], on_value=True, off_value=False)  # It does not compete with itself.
    if mask is not None:
        free |= ~mask
    ahead, ratio = tf.where(free, tf.constant(_FAR, DTYPE), ahead), tf.where(free, tf.zeros_like(ratio), ratio)
    steps = (tf.constant(_OTHERS, DTYPE) - ahead[..., tf.newaxis]) / tf.maximum(ratio, 1e-300)[..., tf.newaxis]
    steps = tf.reshape(tf.clip_by_value(steps, _OWN[0], _OWN[-1]), [-1, mean.shape[1] * len(_OTHERS)])
    fixed = tf.broadcast_to(tf.constant(_OWN, DTYPE), [tf.shape(mean)[0], len(_OWN)])
    edges = tf.cast(tf.sort(tf.concat([fixed, steps], axis=1), axis=1), tf.float32)
    half = 0.5 * (edges[:, 1:] - edges[:, :-1])[:, :, tf.newaxis]
    places, weights = (tf.constant(part, tf.float32) for part in np.polynomial.legendre.leggauss(_NODES))
    nodes = 0.5 * (edges[:, 1:] + edges[:, :-1])[:, :, tf.newaxis] + half * places
    flat = [-1, (edges.shape[1] - 1) * _NODES]
    t, weight = tf.reshape(nodes, flat), tf.reshape(half * weights, flat)
    ahead, ratio = (tf.cast(tf.clip_by_value(part, -_FAR, _FAR), tf.float32) for part in (ahead, ratio))
    below = tf.reduce_prod(normal_cdf(ahead[:, :, tf.newaxis] + ratio[:, :, tf.newaxis] * t[:, tf.newaxis]), axis=1)
    density = tf.exp(-0.5 * tf.square(t)) / math.sqrt(2.0 * math.pi)
    return tf.cast(tf.reduce_sum(weight * density * below, axis=1), DTYPE)


def correlated(mean: Tensor, factor: Tensor, action: Tensor, rank: int, mask: Tensor | None = None) -> Tensor:
    """Returns the probabilities `[B]` that the value of each row's action is the largest of N values `mean + factor z`.

    The value leads all others where `delta + V z > 0`, row by row. Coordinates of z are turned such that the closest
    competitor depends on the first only, the next one on the first two, and so on (Geweke, Hajivassiliou and Keane;
    Genz 1992). Each is drawn, by evenly spread points, from where its competitor is beaten, and the probability of that
    is a factor of the result. In the last coordinate, all that is left is an interval, whose probability is exact.

    Args:
      mean: `[B, N]` float64.
      factor: `[B, N, D]` float64.
      action: `[B]`.
      rank: dimensions in which values may differ, at most `MAX_RANK`.
      mask: `[B, N]` of bool: which actions are allowed; None for all.
    """
    actions = mean.shape[1]
    others = (action[:, tf.newaxis] + tf.range(1, actions, dtype=action.dtype)) % actions
    gap = tf.gather(mean, action, batch_dims=1)[:, tf.newaxis] - tf.gather(mean, others, batch_dims=1)
    rows = tf.gather(factor, action, batch_dims=1)[:, tf.newaxis] - tf.gather(factor, others, batch_dims=1)
    size = tf.norm(rows, axis=-1)
    scale = tf.reduce_max(size, axis=1, keepdims=True) + tf.reduce_max(tf.abs(gap), axis=1, keepdims=True) + 1e-300
    # Of equals the first is taken.
    gap += tf.where(others > action[:, tf.newaxis], 1e-9 * scale, -1e-9 * scale)
    size = tf.maximum(size, 1e-12 * scale)
    gap, rows = gap / size, rows / size[..., tf.newaxis]
    if mask is not None:
        gap = tf.where(tf.gather(mask, others, batch_dims=1), gap, _FAR)
    rank = min(rank, actions - 1)
    triangle, first, gap = _turned(tf.clip_by_value(gap, -_FAR, _FAR), rows, rank)
    points, weights = _points(rank - 1)
    by_row = [-1, *([1] * weights.ndim)]
    total = tf.constant(weights[np.newaxis], tf.float32)  # On a grid, what an axis does not change is not repeated.
    z: list[Tensor] = []
    for (own, diagonal), places in zip(first, points, strict=True):
        ahead, *slopes = (tf.reshape(part / diagonal, by_row) for part in own)
        known = sum((slope * part for slope, part in zip(slopes, z, strict=True)), ahead)
        share = tf.maximum(normal_cdf(known), _LEAST)
        total *= share
        z.append(-tf.math.ndtri(tf.constant(places[np.newaxis], tf.float32) * share))
    total, *z = (tf.reshape(part + tf.zeros_like(total), [-1, weights.size]) for part in (total, *z))
    # What a competitor leaves of the last coordinate is beyond, or up to, a linear function of the others.
    slope, coordinates = triangle[..., -1:], tf.stack([tf.ones_like(total), *z], axis=1)  # [B, rank, S]
    limit = -tf.concat([gap[..., tf.newaxis], triangle[..., :-1]], axis=-1)
    limit /= tf.where(tf.abs(slope) > _FLAT, slope, _FLAT**2)  # [B, N - 1, rank]
    nothing = tf.one_hot(0, rank, _FAR)
    low = tf.reduce_max(tf.matmul(tf.where(slope < -_FLAT, -nothing, limit), coordinates), axis=1)
    high = tf.reduce_min(tf.matmul(tf.where(slope < -_FLAT, limit, nothing), coordinates), axis=1)
    low, high = tf.where(low > 0.0, -high, low), tf.where(low > 0.0, -low, high)  # where it is more exact
    inside = tf.maximum(normal_cdf(high) - normal_cdf(low), 0.0)
    return tf.cast(tf.reduce_sum(total * inside, axis=1), DTYPE)


def all_correlated(mean: Tensor, factor: Tensor, rank: int, mask: Tensor | None = None) -> Tensor:
    """Returns the probabilities of all actions, `[B, N]`: as `correlated`, and they sum to one."""
    number = mean.shape[1]
    each = (None if part is None else tf.repeat(part, number, axis=0) for part in (mean, factor, mask))
    mean, factor, mask = each
    action = tf.tile(tf.range(number), [tf.shape(mean)[0] // number])
    shares = tf.reshape(correlated(mean, factor, action, rank, mask), [-1, number])
    if mask is not None:
        shares = tf.where(mask[::number], shares, tf.zeros_like(shares))
    return shares / tf.reduce_sum(shares, axis=1, keepdims=True)


def _turned(gap: Tensor, rows: Tensor, rank: int) -> tuple[Tensor, list[tuple[list[Tensor], Tensor]], Tensor]:
    """Turns coordinates, by Gram and Schmidt: the closest competitor that has a direction of its own comes first.

    Returns:
      The rows in the new coordinates `[B, N - 1, rank]`; for all but the last, the competitor's gap and its coordinates
      before the diagonal one, and that; and the gaps, with those of these competitors far ahead.
    """
    count, rest, left = rows.shape[1], rows, gap
    columns: list[Tensor] = []
    first: list[tuple[list[Tensor], Tensor]] = []
    for number in range(rank):
        norm = tf.norm(rest, axis=-1)
        fits = (norm > _FLAT) & (left < _FAR)
        pick = tf.argmin(tf.where(fits, left, 2.0 * _FAR), axis=1, output_type=tf.int32)
        length = tf.gather(norm, pick, batch_dims=1)
        some = tf.reduce_any(fits, axis=1) & (length > 0.0)
        unit = tf.gather(rest, pick, batch_dims=1) / tf.where(some, length, 1.0)[:, tf.newaxis]
        unit = tf.where(some[:, tf.newaxis], unit, tf.zeros_like(unit))
        column = tf.linalg.matvec(rows, unit)
        if number < rank - 1:
            # Without a direction there is nothing to beat.
            own = [tf.where(some, tf.gather(part, pick, batch_dims=1), 0.0) for part in columns]
            ahead = tf.where(some, tf.gather(gap, pick, batch_dims=1), _FAR)
            diagonal = tf.where(some, length, 1.0)
            first.append(([tf.cast(part, tf.float32) for part in (ahead, *own)], tf.cast(diagonal, tf.float32)))
            used = tf.one_hot(pick, count, on_value=True, off_value=False) & some[:, tf.newaxis]
            left = tf.where(used, tf.constant(_FAR, DTYPE), left)
        rest -= column[..., tf.newaxis] * unit[:, tf.newaxis]
        columns.append(column)
    return tf.cast(tf.stack(columns, axis=-1), tf.float32), first, tf.cast(left, tf.float32)


@functools.cache
def _points(dim: int) -> tuple[list[Array], Array]:
    """Returns points in (0, 1)^dim, axis by axis, and their weights, as arrays that broadcast to S points.

    By Gauss and Legendre on a grid, which has an axis of its own for each dimension, or evenly spread.
    """
    if dim > 2:
        steps = np.sqrt(np.array(primes(dim), np.float64)) % 1.0
        uniforms = (0.5 / _POINTS + np.arange(_POINTS)[:, None] * steps) % 1.0
        # Folded, so that the integrand goes on smoothly from one end to the other.
        folded = np.clip(1.0 - np.abs(2.0 * uniforms - 1.0), 1e-6, 1.0 - 1e-6)
        return list(folded.T), np.full(_POINTS, 1.0 / _POINTS)
    rules = [np.polynomial.legendre.leggauss(_GRIDS[dim - 1][axis]) for axis in range(dim)]
    points = np.meshgrid(*(0.5 + 0.5 * places for places, _ in rules), indexing="ij", sparse=True)
    return list(points), functools.reduce(np.multiply.outer, [weights / 2.0 for _, weights in rules], np.ones([]))
