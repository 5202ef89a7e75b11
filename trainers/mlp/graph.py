"""The graphs of the compiled loop: training and prediction of a block of members at a time.

Shapes are those of `network`: x `[batch, in]` with a last column of ones, kernels `[members, out, in]`. With two
classes only the difference of the logits matters in training.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_ensembles.trainers.mlp import network as networks
from tf_ensembles.trainers.mlp.network import Kernels, Network

# Training steps whose minibatches are gathered at a time: bounds memory for any number of steps.
CHUNK_STEPS = 100
# Rows that a forward pass takes at a time; the smaller number serves single questions.
FORWARD_ROWS = (32, 512)


def loss_gradients(
    kernels: Kernels, x: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, offset: tf.Tensor
) -> list[tf.Tensor]:
    """Returns the gradients of every member's mean weighted cross-entropy by its kernels.

    Args:
        kernels: `[members, out, in]` per layer.
        x: `[batch, in]`, its last column 1.
        labels: `[batch]`.
        weights: `[members, batch]`.
        offset: scaled prior logits `[members, classes, batch]`, or the margin of class 1, `[members, 1, batch]`.
    """
    head, binary = kernels[-1], kernels[-1].shape[1] == 2
    if binary:
        kernels = (*kernels[:-1], head[:, 1:] - head[:, :1])
    hidden = networks.hidden_layers(kernels, x)
    logits = networks.last_layer(kernels, x, hidden) + offset
    scaled = weights[:, None] / float(labels.shape[0])
    if binary:
        sign = tf.cast(2 * labels - 1, tf.float32)
        by_logits = -sign * scaled * tf.sigmoid(-sign * logits)
    else:
        by_logits = scaled * (tf.nn.softmax(logits, axis=1) - tf.one_hot(labels, logits.shape[1], axis=0))
    *below, by_head = networks.backward(kernels, x, hidden, by_logits)
    return [*below, tf.concat([-by_head, by_head], axis=1) if binary else by_head]


@functools.lru_cache(maxsize=64)
def training_graph(network: Network, members: int, batch: int) -> Any:
    """Returns the graph that trains one block through all its steps; one per shape, kept for the next problem.

    Its arguments: x `[examples, in]`, y `[examples]`, order `[steps * batch]` (positions of examples), weights
    `[examples, members]`, offset `[examples, members, classes]` (scaled prior logits), number of steps, kernels, decay
    `[members]` and learning rate `[members]`. It returns the trained kernels.
    """

    @tf.function(jit_compile=True, autograph=False)
    def chunk(count: Any, done: Any, rows: Any, state: Any, decay: Any, rate: Any) -> Any:
        """Up to `CHUNK_STEPS` steps of Adam; `rows` are x, y, weights and offset with axes `[steps, batch, ...]`."""
        x, y, weights, offset = rows
        decay, rate = decay[:, None, None], rate[:, None, None]

        def step(index: tf.Tensor, kernels: Any, moments: Any) -> Any:
            gradients = loss_gradients(
                kernels, x[index], y[index], tf.transpose(weights[index]), tf.transpose(offset[index], [1, 2, 0])
            )
            return index + 1, *networks.adam(kernels, gradients, moments, done + index + 1, rate, decay)

        return tf.while_loop(lambda index, *_: index < count, step, (0, *state))[1:]

    signature = [
        tf.TensorSpec([None, network.kernel_shapes[0][1]]),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None, members]),
        tf.TensorSpec([None, members, network.num_classes]),
        tf.TensorSpec([], tf.int32),
        tuple(tf.TensorSpec([members, *shape]) for shape in network.kernel_shapes),
        tf.TensorSpec([members]),
        tf.TensorSpec([members]),
    ]

    @tf.function(autograph=False, input_signature=signature)
    def run(
        x: Any, y: Any, order: Any, weights: Any, offset: Any, steps: Any, kernels: Any, decay: Any, rate: Any
    ) -> Any:
        if network.num_classes == 2:
            offset = offset[:, :, 1:] - offset[:, :, :1]
        # The last chunk may be cut short; its missing places are filled and never read.
        order = tf.pad(order, [[0, CHUNK_STEPS * batch]])
        zeros = tuple(tf.zeros_like(kernel) for kernel in kernels)

        def advance(done: tf.Tensor, *state: Any) -> Any:
            places = tf.reshape(order[done * batch : (done + CHUNK_STEPS) * batch], [CHUNK_STEPS, batch])
            count = tf.minimum(CHUNK_STEPS, steps - done)
            rows = [tf.gather(part, places) for part in (x, y, weights, offset)]
            return done + count, *chunk(count, done, rows, state, decay, rate)

        state = (kernels, (zeros, zeros))
        return tf.while_loop(lambda done, *_: done < steps, advance, (0, *state), parallel_iterations=1)[1]

    return run


def forward(kernels: Sequence[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """Returns logits `[batch, members, classes]` of stacked kernels at x `[batch, in]`."""
    rows = FORWARD_ROWS[-1] if x.shape[0] > FORWARD_ROWS[0] else FORWARD_ROWS[0]
    graph = _forward_graph(rows, tuple(tuple(kernel.shape) for kernel in kernels))
    return graph(tuple(kernels), x)


@functools.lru_cache(maxsize=64)
def _forward_graph(rows: int, shapes: tuple[tuple[int, ...], ...]) -> Any:
    members, classes, _ = shapes[-1]
    size_in = shapes[0][2]

    @tf.function(jit_compile=True, autograph=False)
    def piece(kernels: Any, x: Any) -> Any:
        return tf.transpose(networks.outputs(kernels, x), [2, 0, 1])

    @tf.function(autograph=False, input_signature=[tuple(map(tf.TensorSpec, shapes)), tf.TensorSpec([None, size_in])])
    def run(kernels: Any, x: Any) -> Any:
        total = tf.shape(x)[0]
        count = tf.math.floordiv(total + rows - 1, rows)
        pieces = tf.reshape(tf.pad(x, [[0, count * rows - total], [0, 0]]), [count, rows, size_in])
        output = tf.TensorSpec([rows, members, classes])
        # One piece at a time: blocks already keep the cores busy.
        logits = tf.map_fn(lambda part: piece(kernels, part), pieces, fn_output_signature=output, parallel_iterations=1)
        return tf.reshape(logits, [-1, members, classes])[:total]

    return run
