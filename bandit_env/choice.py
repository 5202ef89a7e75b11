"""From what an ensemble predicts for each action to a choice, and to the probability of it.

Shapes: B decisions, N actions, S samples: members, or points that stand for infinitely many. An action that is not
allowed has value `NEVER`.
"""

from __future__ import annotations

import enum
import functools
import math

import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import DTYPE, Tensor

NEVER = -1e300
POINTS = 1024  # that stand for infinitely many members
_KNOTS = (-9.0, -6.0, -4.5, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.5, 6.0, 9.0)  # in standard deviations
_NODES = 8  # of the quadrature between two knots


class Choice(enum.StrEnum):
    """How a policy decides."""

    THOMPSON = "thompson"  # the best action of one member, drawn anew for each row
    GREEDY = "greedy"  # the best by the mean of members: exploits only
    UCB = "ucb"  # the best by mean + width * standard deviation
    IDS = "ids"  # information-directed: the least squared regret per information about the best action


def allowed(values: Tensor, mask: Tensor | None) -> Tensor:
    """Returns values `[B, ..., N]` with `NEVER` for actions that the mask `[B, N]` forbids."""
    if mask is None:
        return values
    for _ in range(len(values.shape) - 2):
        mask = mask[:, tf.newaxis]
    return tf.where(mask, values, tf.constant(NEVER, values.dtype))


def best_shares(samples: Tensor) -> Tensor:
    """Returns in which share of the samples `[B, S, N]` each action is the best, `[B, N]`; of equals the first."""
    best = tf.argmax(samples, axis=-1)
    return tf.reduce_mean(tf.one_hot(best, samples.shape[-1], dtype=DTYPE), axis=1)


def best_of_independent(mean: Tensor, deviation: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns how probable it is that each of N independent normal values is the largest, `[B, N]`, by quadrature.

    `P(n) = integral of phi_n(v) prod over m != n of Phi_m(v) dv`, by Gauss and Legendre between the knots of all
    values, so that wide and narrow ones are both resolved.
    """
    widest = tf.reduce_max(deviation, axis=1, keepdims=True) + tf.reduce_max(tf.abs(mean), axis=1, keepdims=True)
    deviation = tf.maximum(deviation, 1e-12 * widest + 1e-300)
    knots = mean[:, :, tf.newaxis] + deviation[:, :, tf.newaxis] * tf.constant(_KNOTS, DTYPE)
    edges = tf.sort(tf.reshape(knots, [tf.shape(mean)[0], mean.shape[1] * len(_KNOTS)]), axis=1)
    half = 0.5 * (edges[:, 1:] - edges[:, :-1])[:, :, tf.newaxis]
    places, weights = (tf.constant(part) for part in np.polynomial.legendre.leggauss(_NODES))
    nodes = 0.5 * (edges[:, 1:] + edges[:, :-1])[:, :, tf.newaxis] + half * places
    flat = [tf.shape(mean)[0], 1, (edges.shape[1] - 1) * _NODES]
    value, weight = tf.reshape(nodes, flat), tf.reshape(half * weights, flat)
    z = (value - mean[:, :, tf.newaxis]) / deviation[:, :, tf.newaxis]  # [B, N, nodes]
    below = tf.math.log(tf.maximum(normal_cdf(z), 1e-300))
    if mask is not None:  # What is not allowed is below all.
        below = tf.where(mask[:, :, tf.newaxis], below, tf.zeros_like(below))
    others = tf.exp(tf.reduce_sum(below, axis=1, keepdims=True) - below)
    density = tf.exp(-0.5 * tf.square(z)) / (math.sqrt(2.0 * math.pi) * deviation[:, :, tf.newaxis])
    found = tf.reduce_sum(weight * density * others, axis=-1)
    if mask is not None:
        found = tf.where(mask, found, tf.zeros_like(found))
    return found / tf.reduce_sum(found, axis=1, keepdims=True)


def normal_samples(mean: Tensor, factor: Tensor) -> Tensor:
    """Returns `POINTS` evenly spread samples `[B, S, N]` of normal values `mean + factor z`; factor is `[B, N, D]`."""
    actions, dim = factor.shape[-2:]
    if dim > actions:  # As many dimensions as there are values.
        product = tf.matmul(factor, factor, transpose_b=True)
        floor = 1e-12 * tf.linalg.trace(product)[:, tf.newaxis, tf.newaxis] + 1e-300
        factor, dim = tf.linalg.cholesky(product + floor * tf.eye(actions, dtype=DTYPE)), actions
    points = tf.constant(quasi_normals(dim, POINTS))
    return mean[:, tf.newaxis] + tf.einsum("bnd,sd->bsn", factor, points)


def information_directed(samples: Tensor) -> Tensor:
    """Returns the probabilities `[B, N]` of information-directed sampling, a mixture of two actions at most.

    Of all mixtures it has the least `(expected regret)^2 / (information)`, where the information of an action is the
    variance of its mean value given which action is the best (Russo and Van Roy, 2018). Samples are `[B, S, N]`.
    """
    possible = samples[:, 0] > 0.5 * NEVER
    values = tf.where(possible[:, tf.newaxis], samples, tf.zeros_like(samples))
    size, actions = tf.cast(tf.shape(samples)[1], DTYPE), samples.shape[-1]
    best = tf.one_hot(tf.argmax(samples, axis=-1), actions, dtype=DTYPE)  # [B, S, N]
    share = tf.reduce_mean(best, axis=1)
    mean = tf.reduce_mean(values, axis=1)
    given = tf.einsum("bsa,bsn->ban", best, values) / tf.maximum(share * size, 1.0)[..., tf.newaxis]
    information = tf.einsum("ba,ban->bn", share, tf.square(given - mean[:, tf.newaxis]))
    regret = tf.reduce_mean(tf.reduce_max(samples, axis=-1), axis=1, keepdims=True) - mean
    mixing = tf.constant(np.linspace(0.0, 1.0, 101))
    regrets = regret[:, :, tf.newaxis, tf.newaxis] * mixing + regret[:, tf.newaxis, :, tf.newaxis] * (1.0 - mixing)
    gains = information[:, :, tf.newaxis, tf.newaxis] * mixing + information[:, tf.newaxis, :, tf.newaxis] * (
        1.0 - mixing
    )
    ratio = tf.square(regrets) / tf.maximum(gains, 1e-300)  # [B, n, m, Q]
    both = possible[:, :, tf.newaxis] & possible[:, tf.newaxis]
    ratio = tf.where(both[..., tf.newaxis], ratio, tf.constant(np.inf, DTYPE))
    # Where one action is surely the best, there is nothing to learn: take it.
    sure = tf.reduce_max(share, axis=1) >= 1.0 - 1e-12
    flat = tf.argmin(tf.reshape(ratio, [-1, actions * actions * mixing.shape[0]]), axis=1)
    pair, where = flat // mixing.shape[0], flat % mixing.shape[0]
    part = tf.gather(mixing, where)[:, tf.newaxis]
    mixed = part * tf.one_hot(pair // actions, actions, dtype=DTYPE)
    mixed += (1.0 - part) * tf.one_hot(pair % actions, actions, dtype=DTYPE)
    return tf.where(sure[:, tf.newaxis], share, mixed)


def pick(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Returns an action `[B]` per row of probabilities `[B, N]`, from draws of U[0, 1) `[B]`."""
    reached = tf.cumsum(probabilities, axis=1) > tf.cast(uniforms, DTYPE)[:, tf.newaxis]
    last = tf.reduce_max(tf.where(probabilities > 0.0, tf.range(probabilities.shape[1]), 0), axis=1)
    first = tf.argmax(tf.cast(reached, tf.int32), axis=1, output_type=tf.int32)
    return tf.where(tf.reduce_any(reached, axis=1), first, last)


@functools.cache
def quasi_normals(dim: int, count: int) -> Array:
    """Returns points `[count, dim]` that are spread as N(0, I): a Kronecker sequence of square roots of primes."""
    from statistics import NormalDist

    steps = np.sqrt(np.array(primes(dim), np.float64)) % 1.0
    uniforms = (0.5 + np.arange(1, count + 1)[:, None] * steps) % 1.0
    # The first coordinate is a grid: best in one dimension.
    uniforms[:, 0] = (np.arange(count) + 0.5) / count
    inverse = np.vectorize(NormalDist().inv_cdf)
    return inverse(np.clip(uniforms, 1e-9, 1.0 - 1e-9)).astype(np.float64)


def normal_cdf(z: Tensor) -> Tensor:
    """Returns the distribution function of N(0, 1)."""
    return 0.5 * tf.math.erfc(-z / math.sqrt(2.0))


def primes(count: int) -> list[int]:
    """Returns the first prime numbers."""
    found: list[int] = []
    candidate = 2
    while len(found) < count:
        if all(candidate % prime for prime in found if prime * prime <= candidate):
            found.append(candidate)
        candidate += 1
    return found
