"""Bandits that are not linear: random networks, the wheel, and classification data, many problems of each at once.

A problem is a pure function of its seed. Shapes: J problems, T contexts, A rows of features for each context (one, or
one per arm), H outputs of a network (one per arm, or one), `N = A * H` arms, d features.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ensembles import checks, draws, extras, testbed
from tf_ensembles.bandit_env import problems as linear_problems
from tf_ensembles.base import Array

WHEEL_DELTAS = (0.5, 0.7, 0.9, 0.95, 0.99)
DATA = ("digits", "wine", "tumors")


class Noise(enum.Enum):
    """How a reward is drawn, from its mean and its deviation."""

    NORMAL = "normal"  # mean + deviation * N(0, 1)
    BINARY = "binary"  # 1 with probability `mean`, or else 0
    SIGN = "sign"  # mean + deviation or mean - deviation, each half of the time


@dataclasses.dataclass(frozen=True)
class NeuralProblems:
    """J problems of one kind. Step t shows context `t mod T`; arm n is output `n mod H` at row `n // H` of features."""

    name: str
    seeds: tuple[int, ...]  # [J]
    contexts: Array  # [J, T, A, d] float32
    means: Array  # [J, T, N] float32, mean rewards
    deviations: Array  # [J, T, N] float32
    noise: Noise
    unit: float = 1.0  # agents learn rewards divided by it

    @property
    def heads(self) -> int:
        """H."""
        return int(self.means.shape[2] // self.contexts.shape[2])

    @property
    def binary(self) -> bool:
        """Whether rewards are 0 or 1, so that networks learn logits of them."""
        return self.noise is Noise.BINARY

    def rows(self, places: Sequence[int]) -> NeuralProblems:
        """Returns some of the problems, in any order, also repeatedly."""
        index = np.asarray(places)
        own = {name: getattr(self, name)[index] for name in ("contexts", "means", "deviations")}
        return dataclasses.replace(self, seeds=tuple(self.seeds[place] for place in places), **own)


def make_random_network(
    seeds: Sequence[int], num_actions: int = 100, dim: int = 10, temperature: float = 0.5
) -> NeuralProblems:
    """Returns Neural Testbed problems as bandits: fixed arms x ~ N(0, I), of which class 1 pays 1, and class 0 nothing.

    Args:
      seeds: of the problems: environment and arms.
      num_actions: N, the same for all contexts: arms differ in their features.
      dim: d.
      temperature: of the testbed; low ones make rewards nearly certain.
    """
    num_actions, dim = checks.integer("num_actions", num_actions, 1), checks.integer("dim", dim, 1)
    features = _normals(seeds, num_actions * dim).reshape(len(seeds), num_actions, dim)
    means = [
        np.exp(testbed.make_problem(dim, 1, temperature, seed).environment.log_probs(own))[:, 1]
        for seed, own in zip(map(int, seeds), features, strict=True)
    ]
    mean = np.asarray(means, np.float32)[:, None]
    return NeuralProblems(
        f"random-network-t{temperature:g}",
        tuple(map(int, seeds)),
        features[:, None],
        mean,
        np.zeros_like(mean),
        Noise.BINARY,
    )


def make_wheel(seeds: Sequence[int], horizon: int, delta: float = 0.9, unit: float = 10.0) -> NeuralProblems:
    """Returns the wheel (Riquelme et al., 2018): 5 arms, contexts uniform on the unit disk.

    Arm 0 pays 1.2, others 1; beyond radius `delta` the arm of the context's quadrant pays 50; noise 0.01.

    Args:
      seeds: of the problems.
      horizon: T, the number of contexts.
      delta: the share of the radius where exploring does not pay; the larger, the harder.
      unit: what agents learn rewards in units of.
    """
    horizon = checks.integer("horizon", horizon, 1)
    checks.number("delta", delta, "(0, 1)")
    checks.number("unit", unit, "(0, inf)")
    uniforms = _uniforms(seeds, 2 * horizon).reshape(len(seeds), horizon, 2)
    radius, angle = np.sqrt(uniforms[..., 0]), 2.0 * np.pi * uniforms[..., 1]
    x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).astype(np.float32)
    means = np.broadcast_to(np.array([1.2, 1.0, 1.0, 1.0, 1.0], np.float32), [len(seeds), horizon, 5]).copy()
    quadrant = 1 + 2 * (x[..., 0] < 0).astype(np.int64) + (x[..., 1] < 0)
    np.put_along_axis(
        means, quadrant[..., None], np.where(radius > delta, 50.0, 1.0).astype(np.float32)[..., None], axis=2
    )
    return NeuralProblems(
        f"wheel-{delta:g}", tuple(map(int, seeds)), x[:, :, None], means, np.full_like(means, 0.01), Noise.NORMAL, unit
    )


def make_data(name: str, seeds: Sequence[int], horizon: int) -> NeuralProblems:
    """Returns scikit-learn's data as bandits; contexts are drawn from the examples with replacement.

    "digits" (10 arms, 64 features) and "wine" (3 arms, 13 features): naming the class pays 1. "tumors" (2 arms, 30
    features) is as the mushroom bandit: to leave alone pays 0; to treat pays 5 where it is benign, and 5 or -35, each
    half of the time, where it is malignant. Arm 0 tells nothing, so that it has to be explored.

    Args:
      name: one of `DATA`.
      seeds: of the problems.
      horizon: T.
    """
    linear_problems.check_sizes(horizon=horizon)
    if name not in DATA:
        raise ValueError(f"Expected data of {list(DATA)}. Received: {name!r}")
    extras.require("sklearn", "Data of scikit-learn as bandits")
    from sklearn import datasets

    load = {"digits": datasets.load_digits, "wine": datasets.load_wine, "tumors": datasets.load_breast_cancer}[name]
    x, y = load(return_X_y=True)
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-3)
    if name == "digits":
        x = np.clip(x, -3.0, 3.0)  # Pixels that are nearly always empty would be far out where they are not.
    index = (_uniforms(seeds, horizon) * len(y)).astype(np.int64)
    contexts = x[index].astype(np.float32)[:, :, None]
    if name == "tumors":
        benign = y[index] == 1
        means = np.stack([np.zeros(index.shape), np.where(benign, 5.0, -15.0)], axis=-1).astype(np.float32)
        deviation = np.stack([np.zeros(index.shape), np.where(benign, 0.0, 20.0)], axis=-1).astype(np.float32)
        return NeuralProblems(name, tuple(map(int, seeds)), contexts, means, deviation, Noise.SIGN, 10.0)
    means = np.eye(int(y.max()) + 1, dtype=np.float32)[y[index]]
    return NeuralProblems(name, tuple(map(int, seeds)), contexts, means, np.zeros_like(means), Noise.BINARY)


def _uniforms(seeds: Sequence[int], count: int) -> Array:
    """Returns draws of U[0, 1), `[J, count]`, float64."""
    numbers = checks.integers("seeds", seeds, 0)
    checks.fits(2 * len(numbers) * count, f"{count} numbers of {len(numbers)} problems")
    key = draws.key(0, draws.Purpose.NEURAL_CONTEXT)
    drawn = draws.uniform(key, tf.constant(numbers, tf.int64), tf.range(count, dtype=tf.int64))
    return drawn[..., 0].numpy().astype(np.float64)


def _normals(seeds: Sequence[int], count: int) -> Array:
    return draws.to_normal(tf.constant(_uniforms(seeds, count), tf.float32)).numpy()
