"""The pieces of one training step of the compiled loop, timed one by one inside compiled loops of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles import machine
from trainers.mlp import graph as compiled_graph
from trainers.mlp import network as networks
from trainers.mlp import train as compiled

STEPS = 100
BATCH = 100


def _loop(step: Callable[..., Any], state: tuple[Any, ...]) -> Callable[[], float]:
    """Returns a call that runs a step `STEPS` times in one compiled loop and gives the seconds of one."""

    @tf.function(jit_compile=True, autograph=False)
    def run(state: Any) -> Any:
        return tf.while_loop(lambda i, *_: i < STEPS, lambda i, *values: (i + 1, *step(i, *values)), (0, *state))[1:]

    def call() -> float:
        start = time.perf_counter()
        tf.nest.flatten(run(state))[0].numpy()
        return (time.perf_counter() - start) / STEPS

    call()
    return call


def _pieces(dim: int, members: int) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], float]]:
    """Returns, by name, a step, its state, and its useful FLOPs. Every piece changes what it reads in the next step."""
    network = compiled.Network(dim, (50, 50), 2)
    random = np.random.default_rng(0)

    def draw(*shape: int) -> tf.Tensor:
        return tf.constant(random.normal(0.0, 0.1, shape).astype(np.float32))

    x, labels = draw(STEPS, BATCH, dim + 1), tf.zeros([STEPS, BATCH], tf.int32)
    weights, offset = tf.ones([members, BATCH]), tf.zeros([members, 1, BATCH])
    kernels = tuple(map(tf.constant, compiled.init_kernels(network, [compiled.Group(members)], 0)))
    zeros = tuple(map(tf.zeros_like, kernels))
    hidden, gradient = draw(members, 51, BATCH), draw(members, 50, BATCH)

    def adam(kernels: Any, gradients: Any, firsts: Any, seconds: Any) -> Any:
        after, moments = networks.adam(kernels, gradients, (firsts, seconds), 3, 1e-3, 1e-3)
        return after, *moments

    def whole(i: Any, kernels: Any, firsts: Any, seconds: Any) -> Any:
        gradients = compiled_graph.loss_gradients(kernels, x[i], labels[i], weights, offset)
        return adam(kernels, gradients, firsts, seconds)

    product, first = 2.0 * members * BATCH * 2500, 2.0 * members * BATCH * 50 * dim
    return {
        "whole step": (whole, (kernels, zeros, zeros), 3.0 * (first + product + product / 25)),
        "hidden layer, forward": (
            lambda i, k, h: (k, networks.with_one(tf.matmul(k, h))),
            (kernels[1], hidden),
            product,
        ),
        "hidden layer, backward": (
            lambda i, k, g: (k, tf.matmul(k[:, :, :-1], g, transpose_a=True)),
            (kernels[1], gradient),
            product,
        ),
        "hidden layer, kernel": (
            lambda i, k, h, g: (tf.matmul(g, h, transpose_b=True), h, g + 0.01 * k[:, :, :1]),
            (kernels[1], hidden, gradient),
            product,
        ),
        "first layer, forward": (
            lambda i, k, h: (k, networks.with_one(networks.first_layer(k, x[i]))),
            (kernels[0], hidden),
            first,
        ),
        "first layer, kernel": (
            lambda i, k, g: (networks.first_gradient(g, x[i]), g),
            (kernels[0], gradient),
            first,
        ),
        "ReLU, one layer": (lambda i, h: (tf.nn.relu(h) + 0.1,), (hidden,), 0.0),
        "Adam": (
            lambda i, k, f, s: adam(k, [a + 0.5 * b for a, b in zip(f, s, strict=True)], f, s),
            (kernels, zeros, zeros),
            0.0,
        ),
    }


def report(dim: int, repeats: int) -> str:
    """Returns a table of the pieces of a step of one block, with the share of the step and of a core's product rate."""
    pieces = _pieces(dim, compiled.BLOCK_MEMBERS)
    size = 2048
    matrix = np.random.default_rng(0).standard_normal((size, size), np.float32)

    def large_product() -> float:
        start = time.perf_counter()
        _ = matrix @ matrix
        return time.perf_counter() - start

    calls = {"2048^3 product": large_product}
    calls.update((name, _loop(step, state)) for name, (step, state, _) in pieces.items())
    # Interleaved, so that a slow moment of the machine falls on all of them.
    rounds = [{name: call() for name, call in calls.items()} for _ in range(max(repeats, 3))]
    best = {name: min(round_[name] for round_ in rounds) for name in calls}
    rate = 2 * size**3 / best.pop("2048^3 product") / machine.usable_cores()
    lines = [
        f"d={dim}, {compiled.BLOCK_MEMBERS} members; a core's share of the large product is {rate / 1e9:.0f} GFLOP/s"
    ]
    for name, seconds in best.items():
        share = f"{pieces[name][2] / seconds / rate:>6.2f} of a core" if pieces[name][2] else ""
        lines.append(f"  {name:<24}{seconds * 1e6:>7.0f} us {seconds / best['whole step']:>6.0%} {share}")
    return "\n".join(lines)
