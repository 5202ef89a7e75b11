"""The heteroscedastic linear bandit problems of section 6, drawn as pure functions of (seed, problem number).

Shapes: J problems, N actions, d features.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles import checks, draws
from tf_ensembles.bandit_env import steps
from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import Tensor

# From features [J, N, d] and draws of U(0, 1) [J, d] to noise variances [J, N].
NoiseFunction = Callable[[Tensor, Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Problems:
    """J independent bandit problems."""

    features: Array  # [J, N, d], the actions
    theta: Array  # [J, d], theta*
    noise_variance: Array  # [J, N], sigma^2(x) of each action
    mean_reward: Array  # [J, N], theta* . x
    prior_scale: float  # s0, the scale of the prior that theta* was drawn from
    first: int = 0  # the number of the first problem: the problems are first, first + 1, ...

    @property
    def optimal_reward(self) -> Array:
        """The mean reward of the best action, `[J]`."""
        return self.mean_reward.max(axis=1)

    def __len__(self) -> int:
        return len(self.features)

    def part(self, rows: Array) -> Problems:
        """Returns some of the problems, by consecutive places `rows`."""
        own = {name: getattr(self, name)[rows] for name in ("features", "theta", "noise_variance", "mean_reward")}
        return dataclasses.replace(self, **own, first=self.first + int(rows[0]))


def diagonal_noise(features: Tensor, uniforms: Tensor) -> Tensor:
    """The paper's noise: variance `x' S x` with a diagonal `S` of entries U(0, 1)."""
    return tf.einsum("jnd,jd->jn", tf.square(features), uniforms)


def constant_noise(variance: float) -> NoiseFunction:
    """Returns noise of the same variance for all actions and problems."""
    checks.number("variance", variance, checks.SINGLE)
    return lambda features, uniforms: tf.fill(tf.shape(features)[:2], tf.cast(variance, tf.float32))


def make_problems(
    num_problems: int,
    num_actions: int,
    dim: int,
    prior_scale: float = 1.0,
    seed: int = 0,
    noise: NoiseFunction = diagonal_noise,
    first: int = 0,
) -> Problems:
    """Draws problems `first .. first + num_problems - 1` of a seed.

    Actions `x ~ N(0, I)`, `theta* ~ N(0, prior_scale^2 I)`, noise variances by `noise`. The same number gives the
    same problem, whatever is drawn with it.
    """
    check_sizes(num_problems=num_problems, num_actions=num_actions, dim=dim)
    checks.number("prior_scale", prior_scale, "(0, inf)")
    num_problems, num_actions, dim, seed = int(num_problems), int(num_actions), int(dim), checks.seed(seed)
    checks.fits(2 * num_problems * num_actions * dim, f"{num_problems} problems, {num_actions} actions, dim={dim}")
    checks.integer("first", first, 0, 2**steps.ROW_BITS - num_problems)
    rows = tf.range(first, first + num_problems, dtype=tf.int64)
    normals, uniforms = _draw(seed, rows, num_actions * dim + dim, dim)
    features = tf.reshape(tf.transpose(normals[:-dim]), [num_problems, num_actions, dim])
    theta = tf.transpose(normals[-dim:]) * prior_scale
    variance = np.asarray(noise(features, tf.transpose(uniforms)))
    if variance.shape != (num_problems, num_actions):
        raise ValueError(f"Expected noise to return shape {(num_problems, num_actions)}. Received: {variance.shape}")
    if not (np.isfinite(variance).all() and (variance > 0.0).all()):
        raise ValueError(f"Expected finite noise variances > 0. Received: a smallest one of {variance.min()}")
    mean = tf.einsum("jnd,jd->jn", features, theta)
    checks.check_result("mean rewards", mean, prior_scale=prior_scale)
    return Problems(features.numpy(), theta.numpy(), variance.astype(np.float32), mean.numpy(), prior_scale, first)


def _draw(seed: int, rows: Tensor, num_normals: int, num_uniforms: int) -> tuple[Tensor, Tensor]:
    """Returns draws of N(0, 1) and of U(0, 1) for each problem, `[num_normals, J]` and `[num_uniforms, J]`."""
    purposes = (draws.Purpose.BANDIT_NORMAL, draws.Purpose.BANDIT_UNIFORM)
    keys = (tf.constant(draws.key(seed, purpose), tf.int64) for purpose in purposes)
    flat = _graph()(*keys, steps.places(rows, num_normals), steps.places(rows, num_uniforms))
    return tf.reshape(flat[0], [num_normals, -1]), tf.reshape(flat[1], [num_uniforms, -1])


@functools.cache
def _graph() -> Any:
    """The draws as one graph for all sizes: several times faster than operation by operation."""
    first, numbers = tf.zeros([1], tf.int64), tf.TensorSpec([None], tf.int64)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)] * 2 + [numbers] * 2, autograph=False)
    def flat(normal_key: Tensor, uniform_key: Tensor, normals: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        return steps.normals_at(normal_key, first, normals), steps.uniforms_at(uniform_key, first, uniforms)

    return flat


def check_sizes(**sizes: int) -> None:
    """Raises unless all of the named sizes are whole numbers of at least 1."""
    for name, size in sizes.items():
        checks.integer(name, size, 1)
