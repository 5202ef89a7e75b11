"""All networks of all splits of a data set, trained from the first step to the last in one compiled call.

A network has one hidden layer of ReLUs and two outputs, mean and raw scale, as `tfe.losses.GaussianNLL` reads them.
Every network is independent of the others: losses are summed, and Adam works number by number. Splits read examples in
orders of their own.

Shapes: networks `[splits, networks, ...]`, data `[splits, rows, ...]`, predictions `[splits, rows, networks]`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

import tf_ensembles as tfe
from tf_ensembles.benchmarks.studies.uci.protocol import Floats, Splits

# Raw scales start where the standard deviation is 1, that of the targets.
_RAW_OF_ONE = math.log(math.expm1(1.0))
_BETAS, _EPSILON = (0.9, 0.999), 1e-7


@dataclasses.dataclass(frozen=True)
class Settings:
    """How networks are trained. The first three are the protocol's."""

    hidden: int = 50
    num_members: int = 5
    epochs: int = 40
    batch_size: int = 16
    min_std: float = 1e-2  # of standardized targets


@dataclasses.dataclass(frozen=True)
class Agent:
    """What the members of an ensemble have beside their own initial weights."""

    name: str
    prior_scale: float = 0.0  # in standard deviations of the targets
    bootstrap: Any = None
    learning_rate: float = 0.01  # of Adam; falls to zero as half a cosine
    l2: float = 0.0  # decay of the mean loss


AGENTS = (
    Agent("ensemble-n"),
    Agent("ensemble-p", prior_scale=1.0),
    Agent("ensemble-bp", prior_scale=1.0, bootstrap=tfe.Bernoulli(0.5)),
)


def initial(num_splits: int, num_networks: int, inputs: int, hidden: int, seed: int) -> list[Floats]:
    """Draws kernels and biases: Glorot's uniform, zeros; the raw scale starts at a standard deviation of 1."""
    random = np.random.default_rng([seed, 1])
    shape = (num_splits, num_networks)

    def glorot(fan_in: int, fan_out: int) -> Floats:
        limit = math.sqrt(6.0 / (fan_in + fan_out))
        return random.uniform(-limit, limit, (*shape, fan_in, fan_out)).astype(np.float32)

    last = np.zeros((*shape, 1, 2), np.float32)
    last[..., 1] = _RAW_OF_ONE
    return [glorot(inputs, hidden), np.zeros((*shape, 1, hidden), np.float32), glorot(hidden, 2), last]


def priors(data: Splits, scales: NDArray[Any], hidden: int, seed: int) -> tuple[Floats, Floats]:
    """Returns scaled random functions on training and test rows, `[splits, networks, rows]`: std 1 in training."""
    random = np.random.default_rng([seed, 2])
    shape, inputs = (len(data.x_train), len(scales)), data.x_train.shape[2]
    kernel = random.normal(size=(*shape, inputs, hidden)) / math.sqrt(inputs)
    bias = random.normal(size=(*shape, 1, hidden))
    last = random.normal(size=(*shape, hidden, 1)) / math.sqrt(hidden)
    parts = [(np.maximum(x[:, None] @ kernel + bias, 0.0) @ last)[..., 0] for x in (data.x_train, data.x_test)]
    mean, std = parts[0].mean(axis=-1, keepdims=True), parts[0].std(axis=-1, keepdims=True)
    train, test = ((part - mean) / std * scales[:, None] for part in parts)
    return train.astype(np.float32), test.astype(np.float32)


def orders(num_splits: int, rows: int, settings: Settings, seed: int) -> NDArray[np.int32]:
    """Returns the rows of each step, `[steps, splits, batch]`: shuffled every epoch, the last few of it left out."""
    random = np.random.default_rng([seed, 3])
    steps = rows // settings.batch_size
    every = random.permuted(np.tile(np.arange(rows), (settings.epochs, num_splits, 1)), axis=-1)
    every = every[..., : steps * settings.batch_size].reshape(settings.epochs, num_splits, steps, -1)
    return every.transpose(0, 2, 1, 3).reshape(settings.epochs * steps, num_splits, -1).astype(np.int32)


def weights(agents: Sequence[Agent], settings: Settings, data: Splits, seed: int) -> Floats:
    """Returns loss weights `[splits, networks, rows]`."""
    splits, rows = data.y_train.shape
    result = np.ones((splits, len(agents), settings.num_members, rows), np.float32)
    for k, agent in enumerate(agents):
        for s in range(splits if agent.bootstrap is not None else 0):
            drawn = agent.bootstrap.weights(seed + 1000 * s, np.arange(rows), np.arange(settings.num_members))
            result[s, k] = np.asarray(drawn).T
    return result.reshape(splits, -1, rows)


def train(data: Splits, agents: Sequence[Agent], settings: Settings, seed: int) -> tuple[Any, Any]:
    """Trains all networks, and returns means and standard deviations of test targets in their own units.

    Each is `[splits, test, agents, members]`.
    """
    splits, rows, inputs = data.x_train.shape
    scales = np.repeat([agent.prior_scale for agent in agents], settings.num_members)
    start = initial(splits, len(scales), inputs, settings.hidden, seed)
    known, ahead = priors(data, scales, settings.hidden, seed)
    order = orders(splits, rows, settings, seed)
    run = _graph(settings)
    weight = weights(agents, settings, data, seed)
    rates, decays = (
        np.repeat(np.array([getattr(agent, name) for agent in agents], np.float32), settings.num_members)
        for name in ("learning_rate", "l2")
    )
    networks = [tf.constant(part) for part in start]
    trained = run(data.x_train, data.y_train, known, weight, order, rates, decays, networks)
    outputs = forward(trained, tf.constant(data.x_test)) + np.stack([ahead, np.zeros_like(ahead)], axis=-1)
    parts = tfe.losses.GaussianNLL(min_std=settings.min_std).head.components(tf.cast(outputs, tf.float64))
    units = data.y_std[:, None, None]
    mean, std = (np.asarray(part)[..., 0, 0].transpose(0, 2, 1) for part in (parts.loc, parts.scale))
    shape = (*data.y_test.shape, len(agents), settings.num_members)
    return (mean * units + data.y_mean[:, None, None]).reshape(shape), (std * units).reshape(shape)


def forward(networks: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns outputs `[splits, networks, rows, 2]` of inputs `[splits, rows, features]`."""
    kernel, bias, last, last_bias = networks
    return tf.nn.relu(x[:, None] @ kernel + bias) @ last + last_bias


@functools.cache
def _graph(settings: Settings) -> Any:
    loss = tfe.losses.GaussianNLL(min_std=settings.min_std)

    def losses(networks: Sequence[tf.Tensor], decay: Any, x: Any, y: Any, prior: Any, weight: Any) -> Any:
        """Returns the sum over networks of their losses on a batch."""
        outputs = forward(networks, x) + tf.stack([prior, tf.zeros_like(prior)], axis=-1)
        targets = tf.broadcast_to(y[:, None], tf.shape(prior))
        values = loss.call(tf.reshape(targets, [-1, 1]), tf.reshape(outputs, [-1, 2]))
        total = tf.reduce_sum(values * tf.reshape(weight, [-1])) / settings.batch_size
        return total + tf.add_n([tf.reduce_sum(decay * part**2) for part in networks])

    @tf.function(jit_compile=True, autograph=False)
    def run(
        x: Any, y: Any, prior: Any, weight: Any, order: Any, rates: Any, decays: Any, start: list[tf.Tensor]
    ) -> Any:
        steps, rates, decays = order.shape[0], rates[:, None, None], decays[:, None, None]

        def step(t: tf.Tensor, networks: Any, first: Any, second: Any) -> Any:
            rows = tf.gather(order, t)
            per_network = tf.repeat(rows[:, None], prior.shape[1], axis=1)
            batch = tf.gather(x, rows, batch_dims=1), tf.gather(y, rows, batch_dims=1)
            own = tf.gather(prior, per_network, batch_dims=2), tf.gather(weight, per_network, batch_dims=2)
            with tf.GradientTape() as tape:
                tape.watch(networks)
                total = losses(networks, decays, *batch, *own)
            gradients = tape.gradient(total, networks)
            time = tf.cast(t, tf.float32)
            rate = rates * 0.5 * (1.0 + tf.cos(math.pi * time / steps))
            rate *= tf.sqrt(1.0 - _BETAS[1] ** (time + 1.0)) / (1.0 - _BETAS[0] ** (time + 1.0))
            first = [_BETAS[0] * m + (1.0 - _BETAS[0]) * g for m, g in zip(first, gradients, strict=True)]
            second = [_BETAS[1] * v + (1.0 - _BETAS[1]) * g**2 for v, g in zip(second, gradients, strict=True)]
            moved = zip(networks, first, second, strict=True)
            return t + 1, [w - rate * m / (tf.sqrt(v) + _EPSILON) for w, m, v in moved], first, second

        zeros = [tf.zeros_like(part) for part in start]
        return tf.while_loop(lambda t, *_: t < steps, step, (tf.constant(0), start, zeros, list(zeros)))[1]

    return run
