"""Bootstrap laws: how much each member is told to trust each training example.

Every draw is a pure function of (seed, example id, member): the same after a shuffle, a resume, another batch size,
replica count or machine, and nothing has to be stored. The draws come from a counter-based generator (the SplitMix64
finaliser on 64-bit keys), written in plain TensorFlow integer operations so that it runs eagerly, in graphs and under
XLA with the same bits. (Laws that take a logarithm of them may differ in its last bit.)

Shapes: ids `[batch]`, members `[members]`, weights `[batch, members]`.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_STREAM = np.uint64(1 << 32)  # Members are numbered below it, so (member, stream) pairs never collide.


def _mix(z: tf.Tensor) -> tf.Tensor:
    """The SplitMix64 finaliser: a bijection of 64-bit words with full avalanche."""
    xor, shift = tf.bitwise.bitwise_xor, tf.bitwise.right_shift
    z = xor(z, shift(z, tf.constant(30, tf.uint64))) * _MIX_1
    z = xor(z, shift(z, tf.constant(27, tf.uint64))) * _MIX_2
    return xor(z, shift(z, tf.constant(31, tf.uint64)))


def _words(value: Any) -> tf.Tensor:
    """Integers as unsigned 64-bit words; negative ones wrap."""
    return tf.bitcast(tf.cast(tf.convert_to_tensor(value), tf.int64), tf.uint64)


def uniform(seed: Any, ids: Any, members: Any, num_streams: int = 1) -> tf.Tensor:
    """Returns float32 draws of U[0, 1), `[batch, members, streams]`, each a pure function of its four indices.

    Args:
        seed: an integer, or an integer scalar tensor.
        ids: example ids, `[batch]` integers.
        members: member indices, `[members]` integers.
        num_streams: how many independent draws to make per (id, member).
    """
    key = _mix(_words(seed) + _GOLDEN)
    key = _mix(key + _words(ids) * _GOLDEN)[:, None, None]
    streams = tf.range(1, num_streams + 1, dtype=tf.int64)
    counter = _words(members)[:, None] + _words(streams)[None, :] * _STREAM
    bits = _mix(key + counter[None] * _GOLDEN)
    top_24_bits = tf.cast(tf.bitwise.right_shift(bits, tf.constant(40, tf.uint64)), tf.float32)
    return top_24_bits * 2.0**-24


class Bootstrap:
    """A law of random loss weights and target perturbations. Subclasses fill in one of the two methods."""

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns loss weights `[batch, members]`, of mean 1."""
        return tf.ones([tf.size(ids), tf.size(members)])

    def target_noise(self, seed: Any, ids: Any, members: Any, num_targets: int) -> tf.Tensor | None:
        """Returns noise to add to regression targets, `[batch, members, targets]`, or None for a law without any."""
        return None

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Bootstrap:
        """Returns the law that `get_config` described."""
        return cls(**config)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Bernoulli(Bootstrap):
    """Weights `Bernoulli(p) / p`: a member sees each example with probability p. The paper's ensemble-bp."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 < p <= 1.0:
            raise ValueError(f"Expected p in (0, 1]. Received: {p}")
        self.p = float(p)

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns weights in {0, 1/p}, `[batch, members]`."""
        return tf.cast(uniform(seed, ids, members)[..., 0] < self.p, tf.float32) / self.p

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"p": self.p}


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Exponential(Bootstrap):
    """Weights `Exp(1)`: the Bayesian bootstrap. No example is ever left out."""

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns positive weights `[batch, members]`."""
        return -tf.math.log(1.0 - uniform(seed, ids, members)[..., 0])  # 1 - u is in (0, 1].


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Poisson(Bootstrap):
    """Weights `Poisson(1)`: sampling with replacement, in the limit of many examples."""

    def weights(self, seed: Any, ids: Any, members: Any) -> tf.Tensor:
        """Returns whole-number weights `[batch, members]`."""
        # Inversion: the weight is the number of cumulative probabilities at or below u. P(W > 12) < 1e-10.
        cumulative = np.cumsum([math.exp(-1.0) / math.factorial(k) for k in range(13)]).astype(np.float32)
        draws = uniform(seed, ids, members)
        return tf.reduce_sum(tf.cast(draws >= cumulative, tf.float32), axis=-1)


@keras.saving.register_keras_serializable(package="tf_ensembles")
class GaussianNoise(Bootstrap):
    """Adds `N(0, std^2)` to each member's regression targets: the paper's perturbed loss, with Z[t, m] fixed."""

    def __init__(self, std: float) -> None:
        if not (std > 0.0 and math.isfinite(std)):
            raise ValueError(f"Expected a finite std > 0. Received: {std}")
        self.std = float(std)

    def target_noise(self, seed: Any, ids: Any, members: Any, num_targets: int) -> tf.Tensor:
        """Returns noise `[batch, members, targets]`."""
        draws = uniform(seed, ids, members, num_streams=2 * num_targets)
        radius = tf.sqrt(-2.0 * tf.math.log(1.0 - draws[..., :num_targets]))
        return self.std * radius * tf.cos(2.0 * math.pi * draws[..., num_targets:])  # Box and Muller's transform.

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {"std": self.std}
