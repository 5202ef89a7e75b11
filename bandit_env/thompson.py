"""Thompson sampling with a linear ensemble: its loss, the running distribution of its members, and the choice.

Problems are the last axis of every array but those of `Loss`: each operation runs over contiguous problems. Shapes: J
problems, N actions, d features, `P = d (d + 1) / 2`. Sums are float64: with noise variances near zero, `A` is too badly
conditioned for float32 after some thousand steps.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_ensembles import checks, draws
from tf_ensembles.bandit_env import steps
from tf_ensembles.base import Array
from tf_ensembles.linear import inputs
from tf_ensembles.linear.agents import LinearAgent, table_2
from tf_ensembles.linear.inputs import DTYPE, Tensor

AGENT_NAMES = tuple(agent.value for agent in LinearAgent)

# Up to this d, matrices are handled as scalars written out, which compiles to a few passes over the problems.
MAX_UNROLLED_DIM = 4


class Spread(enum.Enum):
    """How the members of an infinite ensemble scatter around their mean; `A` is the precision, `z ~ N(0, I)`."""

    PRIOR = "prior"  # A^-1 (lambda s0_hat z): anchors only. Zero for ensemble-n
    PRECISION = "precision"  # A^-1/2 z: the exact posterior's, by proposition 1


@dataclasses.dataclass(frozen=True)
class AgentParameters:
    """Tunable parameters; None stands for Table 2's value for an agent that knows the noise and the prior.

    ensemble-bp takes none of them: proposition 1 fixes all.
    """

    noise_variance: float | None = None  # 1 / nu of n and p, equal for all data; None: the problem's mean variance
    regularizer: float | None = None  # lambda; None: 1 / s0^2
    prior_scale: float | None = None  # s0_hat, the scale of the members' anchors; None: s0

    def __post_init__(self) -> None:
        for name in ("noise_variance", "regularizer", "prior_scale"):
            if getattr(self, name) is not None:
                checks.number(name, getattr(self, name), "(0, inf)")


@dataclasses.dataclass(frozen=True)
class Loss:
    """The perturbed loss of J problems with N actions each."""

    weight: Array  # nu, [J, N]
    regularizer: float  # lambda
    anchor_scale: float  # s0_hat
    target_noise: Array  # sigma_hat, the standard deviation of the noise on members' targets, [J, N]
    spread: Spread

    def part(self, rows: Array) -> Loss:
        """Returns the loss of some of the problems."""
        return dataclasses.replace(self, weight=self.weight[rows], target_noise=self.target_noise[rows])


def make_loss(
    agent: LinearAgent | str, noise_variance: Array, prior_scale: float, parameters: AgentParameters | None = None
) -> Loss:
    """Returns the loss of an agent of Table 2 on problems with these noise variances `[J, N]`."""
    agent, parameters = check_agent(agent, parameters), parameters or AgentParameters()
    variance = checks.floats("noise variances", noise_variance)
    if not (variance > 0.0).all():
        raise ValueError(f"Expected finite noise variances > 0. Received: a smallest one of {variance.min()}")
    checks.number("prior_scale", prior_scale, "(0, inf)")
    average = variance.mean(axis=1, keepdims=True) if parameters.noise_variance is None else parameters.noise_variance
    with np.errstate(over="ignore"):
        precision = float(np.float64(prior_scale) ** -2.0)
    regularizer = precision if parameters.regularizer is None else parameters.regularizer
    scale = prior_scale if parameters.prior_scale is None else parameters.prior_scale
    row = table_2(agent, variance, average, regularizer, scale * scale)
    limits = [np.max(row.weight), row.regularizer, row.regularizer * math.sqrt(row.prior_variance), row.prior_variance]
    checks.check_result("the loss", limits, prior_scale=scale, regularizer=regularizer, noise_variance=average)
    return Loss(
        weight=np.broadcast_to(row.weight, variance.shape),
        regularizer=row.regularizer,
        anchor_scale=math.sqrt(row.prior_variance),
        target_noise=np.sqrt(np.broadcast_to(row.bootstrap_variance, variance.shape)),
        spread=Spread.PRECISION if agent is LinearAgent.ENSEMBLE_BP else Spread.PRIOR,
    )


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
    regularizer = inputs.tensor("regularizer", regularizer)
    diagonal = tf.constant([[float(i == j)] for i, j in triangle(dim)], DTYPE)
    precision = regularizer * diagonal * tf.ones([1, num_problems], DTYPE)
    target = tf.zeros([dim, num_problems], DTYPE) if anchors is None else regularizer * tf.cast(anchors, DTYPE)
    return Sums(precision, target)


def initial_anchors(num_members: int, rows: Tensor, dim: int, scale: float, seed: int) -> Tensor:
    """Returns the anchors of a finite ensemble, N(0, scale^2), `[d, M, J]`."""
    key = draws.key(seed, draws.Purpose.BANDIT_ANCHOR)
    return scale * tf.transpose(steps.normals(key, tf.range(num_members), rows, dim), [1, 0, 2])


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
    """Draws one member per problem from the infinite ensemble: theta, d rows of `[J]`.

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


def pick_members(uniforms: Tensor, num_members: int) -> Tensor:
    """Turns draws of U(0, 1) `[J]` into member indices `[J]`."""
    return tf.minimum(tf.cast(uniforms * float(num_members), tf.int32), num_members - 1)


def choose(
    sums: Sums,
    features: Tensor,
    step: Tensor,
    rows: Tensor,
    policy_key: Tensor,
    spread: Spread,
    anchor_deviation: Tensor,
    num_members: int | None,
) -> Tensor:
    """Draws a member per problem and returns the rewards it predicts, `[N, J]`; features are `[N, d, J]`."""
    if num_members is None:
        normals = steps.normal(policy_key, step, rows, features.shape[1])
        theta = sample(sums, normals, spread, anchor_deviation)
    else:
        theta = members(sums, pick_members(steps.uniform(policy_key, step, rows, 1)[0], num_members))
    return values(theta, features)


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


def check_agent(name: LinearAgent | str, parameters: AgentParameters | None) -> LinearAgent:
    """Returns the agent of a name, or raises where there is none, or where it does not take the parameters."""
    checks.option("agent name", name, AGENT_NAMES)
    if not isinstance(parameters, AgentParameters | None):
        raise ValueError(f"Expected parameters, AgentParameters or None. Received: {checks.shown(parameters)}")
    agent = LinearAgent(name)
    refused = {
        LinearAgent.ENSEMBLE_N: ("prior_scale",),
        LinearAgent.ENSEMBLE_P: (),
        LinearAgent.WEIGHTED_P: ("noise_variance",),
        LinearAgent.ENSEMBLE_BP: ("noise_variance", "regularizer", "prior_scale"),
    }[agent]
    for field in refused:
        if getattr(parameters, field, None) is not None:
            raise ValueError(f"Expected {field}=None for {agent.value}. Received: {getattr(parameters, field)}")
    return agent
