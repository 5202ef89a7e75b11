"""Trains many small multi-layer perceptrons at once: every step of a block of members inside one compiled graph.

Members are independent, so they are cut into blocks of a fixed size, and each block is trained from its first step to
its last by one graph call, blocks side by side on the cores. A block's arithmetic does not depend on who computes it:
the same seed gives the same bits for any number of workers. XLA compiles once per shape (block, batch, network);
hyperparameters, the number of steps and the number of training examples are no part of the shape.

Shapes: x `[examples, inputs]`, y `[examples]`, kernels `[members, units_out, units_in + 1]`,
logits `[batch, members, classes]`. `graph` holds the graphs, and `network` says how arrays are laid out.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles import bootstrap as bootstraps
from tf_ensembles import checks, draws, machine
from tf_ensembles.trainers.mlp import graph as compiled_graph
from tf_ensembles.trainers.mlp import network as networks
from tf_ensembles.trainers.mlp.network import Floats
from tf_ensembles.trainers.mlp.network import Network as Network

# Members per block at most: larger blocks share the cost of a minibatch, smaller ones feed more cores. Measured best.
BLOCK_MEMBERS = 25
# Small ensembles are cut further, so that several cores have work, but not into smaller blocks than this.
_MIN_BLOCK_MEMBERS = 5
_MIN_BLOCKS = 4


@dataclasses.dataclass(frozen=True)
class Group:
    """Members that share their hyperparameters: one agent of those that train side by side."""

    num_members: int
    l2: float = 0.0  # decay of the mean loss, l2 * ||theta||^2, biases included
    learning_rate: float = 1e-3
    prior_scale: float = 0.0  # scale of the frozen random network added to the logits; 0: none
    bootstrap: bootstraps.Bootstrap | None = None  # distribution of the loss weights; None: all 1
    random_bias: bool = True  # whether the first bias starts random, as the kernels, or at 0


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long to train and on which minibatches."""

    num_steps: int
    batch_size: int
    seed: int  # decides initial weights, priors, bootstrap weights and the order of the examples


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained group: kernels and prior kernels `[members, out, in]` per layer. Call it on inputs for logits."""

    kernels: tuple[Floats, ...]
    prior_kernels: tuple[Floats, ...]
    prior_scale: float
    num_workers: int

    def __call__(self, x: NDArray[Any]) -> Floats:
        """Returns logits `[batch, members, classes]` for inputs `[batch, ...]`."""
        inputs = flatten(x)
        expected = self.kernels[0].shape[2] - 1
        if inputs.shape[1] != expected:
            raise ValueError(f"Expected inputs [batch, {expected}]. Received: {np.shape(x)}")
        logits = predict(self.kernels, inputs, self.num_workers)
        if self.prior_scale:
            logits += np.float32(self.prior_scale) * predict(self.prior_kernels, inputs, self.num_workers)
        return logits


def flatten(x: NDArray[Any]) -> Floats:
    """Returns inputs `[batch, ...]` as float32 `[batch, inputs]`."""
    return np.ascontiguousarray(np.asarray(x, np.float32).reshape(len(x), -1))


def init_kernels(network: Network, groups: Sequence[Group], seed: int, *, prior: bool = False) -> tuple[Floats, ...]:
    """Draws initial kernels `[members, out, in]`: a member starts alike in an ensemble of any size.

    Biases are 0, except the first where a group asks for it. Priors always have a random first bias.
    """
    members = np.concatenate([np.arange(group.num_members) for group in groups])
    random_bias = np.concatenate([np.full(group.num_members, prior or group.random_bias) for group in groups])
    return networks.init(network, seed, members, random_bias, prior=prior)


def draw_order(num_examples: int, num_draws: int, seed: int) -> NDArray[np.int32]:
    """Draws which example stands where in an endless reading of the data, shuffled anew every epoch: `[num_draws]`."""
    return _order_graph()(*(tf.constant(number, tf.int64) for number in (num_examples, num_draws, seed))).numpy()


@functools.cache
def _order_graph() -> Any:
    @tf.function(autograph=False)
    def order(num_examples: tf.Tensor, num_draws: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        ids = tf.range(num_examples)
        epochs = tf.range(tf.math.floordiv(num_draws - 1, num_examples) + 1)
        keys = tf.transpose(draws.uniform(seed, ids, epochs, purpose=draws.Purpose.MLP_ORDER)[..., 0])
        return tf.reshape(tf.argsort(keys, axis=-1, stable=True), [-1])[:num_draws]

    return order


def train(
    x: NDArray[Any],
    y: NDArray[Any],
    network: Network,
    groups: Sequence[Group],
    schedule: Schedule,
    *,
    num_workers: int | None = None,
    progress: Callable[[int], object] | None = None,
    order: NDArray[np.int32] | None = None,
) -> list[Trained]:
    """Trains the members of all groups on the same data and the same minibatches, and returns one result per group.

    Member m minimizes `mean_t W[t, m] ce(g_m(x_t) + prior_scale * p_m(x_t), y_t) + l2 * ||theta_m||^2` by Adam. Members
    share nothing but the order of the examples, so training groups together equals training each alone. With no more
    examples than `batch_size`, every step sees all of them once.

    Args:
        x: inputs `[examples, ...]`.
        y: labels `[examples]`, integers below `network.num_classes`.
        network: the architecture of members and priors.
        groups: the members and their hyperparameters.
        schedule: steps, batch size and seed.
        num_workers: blocks of members to train at the same time; by default one per core. The result does not depend
            on it.
        progress: called with the number of members whenever some have finished.
        order: examples to read, `[num_steps * batch]`, instead of those that the seed draws.
    """
    inputs = flatten(x)
    inputs = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
    batch = min(schedule.batch_size, len(inputs))
    num_members, weights = sum(group.num_members for group in groups), sum(map(math.prod, network.kernel_shapes))
    checks.fits(3 * num_members * weights, f"{num_members} members of {weights} weights")
    checks.fits(schedule.num_steps * batch, f"num_steps={schedule.num_steps} of {batch} examples")
    ids, order = _reading(len(inputs), schedule, batch, order)
    sizes = [group.num_members for group in groups]
    blocks = _blocks(sum(sizes))
    workers = min(num_workers or machine.usable_cores(), len(blocks))
    start = init_kernels(network, groups, schedule.seed)
    has_prior = any(group.prior_scale for group in groups)
    priors = init_kernels(network, groups, schedule.seed, prior=True) if has_prior else None
    scales = np.repeat(np.array([group.prior_scale for group in groups], np.float32), sizes)
    rates = np.repeat(np.array([group.learning_rate for group in groups], np.float32), sizes)
    decays = np.repeat(np.array([group.l2 for group in groups], np.float32), sizes)
    graph = compiled_graph.training_graph(network, len(blocks[0]), batch)
    data_x, data_y = tf.constant(inputs[ids]), tf.constant(np.asarray(y)[ids].astype(np.int32))
    data_order = tf.constant(order)

    def train_block(block: NDArray[np.int64]) -> list[Floats]:
        weights = _weights(groups, schedule.seed, ids, block)
        offset = tf.zeros([len(ids), len(block), network.num_classes])
        if priors is not None and scales[block].any():
            kernels = [tf.constant(kernel[block]) for kernel in priors]
            offset = compiled_graph.forward(kernels, data_x) * scales[block][:, None]
        kernels = [tf.constant(kernel[block]) for kernel in start]
        steps = tf.constant(schedule.num_steps)
        trained = graph(data_x, data_y, data_order, weights, offset, steps, tuple(kernels), decays[block], rates[block])
        result = [kernel.numpy() for kernel in trained]
        if progress is not None:
            progress(len(np.unique(block)))
        return result

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        parts = list(pool.map(train_block, blocks))
    merged = tuple(np.concatenate(layer)[: sum(sizes)] for layer in zip(*parts, strict=True))
    ends = np.cumsum(sizes)
    results = []
    for group, end in zip(groups, ends, strict=True):
        mine = slice(end - group.num_members, end)
        prior_kernels = tuple(kernel[mine] for kernel in priors) if priors is not None and group.prior_scale else ()
        kernels = tuple(kernel[mine] for kernel in merged)
        given = {name: getattr(group, name) for name in ("l2", "learning_rate", "prior_scale")}
        for kernel in kernels:
            checks.check_result("training", kernel, **given)
        results.append(Trained(kernels, prior_kernels, float(group.prior_scale), workers))
    return results


def predict(kernels: Sequence[Floats], x: Floats, num_workers: int = 1) -> Floats:
    """Returns logits `[batch, members, classes]` of stacked networks at inputs `[batch, inputs]`, on several cores."""
    inputs = tf.constant(np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1))
    num_members = len(kernels[0])
    blocks = _blocks(num_members)

    def run(block: NDArray[np.int64]) -> Floats:
        return compiled_graph.forward([tf.constant(kernel[block]) for kernel in kernels], inputs).numpy()

    with concurrent.futures.ThreadPoolExecutor(min(num_workers, len(blocks))) as pool:
        parts = list(pool.map(run, blocks))
    return np.concatenate(parts, axis=1)[:, :num_members]


def _reading(
    num_examples: int, schedule: Schedule, batch: int, order: NDArray[np.int32] | None
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Returns the ids of the examples that training will read and, step by step, which of these it reads.

    Reading fewer examples than there are costs nothing for the others.
    """
    num_draws = schedule.num_steps * batch
    if order is None:
        if batch == num_examples:
            order = np.tile(np.arange(num_examples, dtype=np.int32), schedule.num_steps)
        else:
            order = draw_order(num_examples, num_draws, schedule.seed)
    if order.shape != (num_draws,):
        raise ValueError(f"Expected an order of num_steps * batch = {num_draws} examples. Received: {order.shape}")
    if num_draws < num_examples:
        return order.astype(np.int64), np.arange(num_draws, dtype=np.int32)
    return np.arange(num_examples), order


def _blocks(num_members: int) -> list[NDArray[np.int64]]:
    """Cuts members into blocks of one size; the last is filled up with copies of the last member."""
    # A function of the number of members alone: cores and workers must not change anyone's arithmetic.
    count = max(math.ceil(num_members / BLOCK_MEMBERS), min(_MIN_BLOCKS, math.ceil(num_members / _MIN_BLOCK_MEMBERS)))
    size = math.ceil(num_members / count)
    members = np.minimum(np.arange(count * size), num_members - 1)
    return list(members.reshape(count, size))


def _weights(groups: Sequence[Group], seed: int, ids: NDArray[np.int64], block: NDArray[np.int64]) -> tf.Tensor:
    """Returns the loss weights of a block's members, `[examples, members]`."""
    parts, first = [], 0
    for group in groups:
        mine = block[(block >= first) & (block < first + group.num_members)] - first
        first += group.num_members
        if len(mine) and group.bootstrap is None:
            parts.append(tf.ones([len(ids), len(mine)]))
        elif len(mine) and group.bootstrap is not None:
            parts.append(group.bootstrap.weights(seed, ids, mine))
    return tf.concat(parts, axis=1)
