"""Bootstrapping: how much each member is told to trust each training example.

Every weight is a pure function of (seed, example id, member), from `draws`: the same after a shuffle, a resume, another
batch size, replica count or machine, and nothing has to be stored. (Eagerly, in graphs and under XLA, weights that take
a logarithm may differ in its last bit.)

Shapes: ids `[batch]`, members `[members]`, weights `[batch, members]`.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import checks, draws


def _uniform(seed: Any, ids: Any, members: Any, num_streams: int = 1) -> tf.Tensor:
    return draws.uniform(seed, ids, members, num_streams, draws.Purpose.BOOTSTRAP)


class Bootstrap:
    """A distribution of loss weights or of target perturbations. Subclasses fill in one of the two methods."""

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns loss weights `[batch, members]`, of mean 1."""
        return tf.ones([tf.size(ids), tf.size(members)])

    def target_noise(self, seed: Any, ids: Any, members: Any, num_targets: int) -> tf.Tensor | None:
        """Returns noise to add to regression targets, `[batch, members, targets]`, or None where there is none."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Bootstrap:
        """Returns the distribution that `get_config` described."""
        return cls(**config)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Bernoulli(Bootstrap):
    """Weights `Bernoulli(p) / p`: a member sees each example with probability p. The paper's ensemble-bp."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = checks.number("p", p, "(0, 1]")
        if self.p < 2.0**-24:
            raise ValueError(f"Expected p >= 2**-24, what a draw resolves. Received: {p}")

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns weights in {0, 1/p}, `[batch, members]`."""
        return tf.cast(_uniform(seed, ids, members)[..., 0] < self.p, tf.float32) / self.p

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"p": self.p}


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Exponential(Bootstrap):
    """Weights `Exp(1)`: the Bayesian bootstrap. No example is ever left out."""

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns positive weights `[batch, members]`."""
        return -tf.math.log(1.0 - _uniform(seed, ids, members)[..., 0])  # 1 - u is in (0, 1].


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Poisson(Bootstrap):
    """Weights `Poisson(1)`: sampling with replacement, in the limit of many examples."""

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns whole-number weights `[batch, members]`."""
        # Inversion: the weight is the number of cumulative probabilities at or below u. P(W > 12) < 1e-10.
        cumulative = np.cumsum([math.exp(-1.0) / math.factorial(k) for k in range(13)]).astype(np.float32)
        uniform = _uniform(seed, ids, members)
        return tf.reduce_sum(tf.cast(uniform >= cumulative, tf.float32), axis=-1)


@keras.saving.register_keras_serializable(package="tf_ensembles")
class GaussianNoise(Bootstrap):
    """Adds `N(0, std^2)` to each member's regression targets: the paper's perturbed loss, with Z[t, m] fixed."""

    def __init__(self, std: float) -> None:
        self.std = checks.number("std", std, checks.SINGLE)

    def target_noise(self, seed: Any, ids: Any, members: Any, num_targets: int) -> tf.Tensor:
        """Returns noise `[batch, members, targets]`."""
        uniform = _uniform(seed, ids, members, num_streams=2 * num_targets)
        radius = tf.sqrt(-2.0 * tf.math.log(1.0 - uniform[..., :num_targets]))
        return self.std * radius * tf.cos(2.0 * math.pi * uniform[..., num_targets:])  # Box and Muller's transform.

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"std": self.std}


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Renumbered(Bootstrap):
    """A bootstrap whose members have the numbers that they had in another ensemble: what `Ensemble.select` keeps.

    Args:
        bootstrap: of that ensemble.
        numbers: `[members]`, each member's number there.
    """

    def __init__(self, bootstrap: Bootstrap, numbers: Any) -> None:
        self.bootstrap, self.numbers = bootstrap, [int(number) for number in numbers]

    def _former(self, members: Any) -> tf.Tensor:
        return tf.gather(tf.constant(self.numbers, tf.int64), tf.cast(members, tf.int64))

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns loss weights `[batch, members]`."""
        return self.bootstrap.weights(seed, ids, self._former(members))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"bootstrap": keras.saving.serialize_keras_object(self.bootstrap), "numbers": self.numbers}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Renumbered:
        """Returns the distribution that `get_config` described."""
        return cls(keras.saving.deserialize_keras_object(dict(config["bootstrap"])), config["numbers"])


@keras.saving.register_keras_serializable(package="tf_ensembles")
class RenumberedNoise(Renumbered):
    """The same of a bootstrap that perturbs targets."""

    def target_noise(self, seed: Any, ids: Any, members: Any, num_targets: int) -> tf.Tensor | None:
        """Returns noise `[batch, members, targets]`."""
        return self.bootstrap.target_noise(seed, ids, self._former(members), num_targets)


def renumbered(bootstrap: Bootstrap, numbers: Any) -> Bootstrap:
    """Returns a bootstrap for some members of an ensemble, which keeps what each of them was told.

    Args:
        bootstrap: the ensemble's.
        numbers: `[members]`, the members in that ensemble.
    """
    if isinstance(bootstrap, Renumbered):
        return renumbered(bootstrap.bootstrap, [bootstrap.numbers[number] for number in numbers])
    noisy = type(bootstrap).target_noise is not Bootstrap.target_noise
    return (RenumberedNoise if noisy else Renumbered)(bootstrap, numbers)
