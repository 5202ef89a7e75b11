"""The graphs of the compiled loop: forward pass, backward pass and Adam for a block of small networks at a time.

Layout. Arrays are **transposed**, `[members, units, batch]`: the first layer of a whole block is then one large matrix
product, hidden layers are batched products without a transposition anywhere, and vector instructions run along the
batch. Every hidden layer carries one more unit that is always 1, so a kernel's last column is its bias, and neither
adding biases nor summing their gradients costs a pass over memory. Kernels have a row that makes this unit; training
leaves it out, because products of 50 rows are faster than of 51. With two classes only the difference of the logits
matters in training.

Shapes: x `[batch, in]` with a last column of ones, kernels `[members, out, in]`, hidden `[members, units, batch]`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# Training steps whose minibatches are gathered at a time: bounds memory for any number of steps.
CHUNK_STEPS = 100
# Rows that a forward pass takes at a time; the smaller number serves single questions.
FORWARD_ROWS = (32, 512)

# Adam's constants, as in keras.optimizers.Adam.
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


@dataclasses.dataclass(frozen=True)
class Network:
    """An MLP with ReLU: what is compiled for."""

    input_dim: int
    hidden_sizes: tuple[int, ...]
    num_classes: int

    @property
    def kernel_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes `(out, in)` of one member's kernels, constant units and biases included."""
        sizes = [self.input_dim + 1, *(size + 1 for size in self.hidden_sizes), self.num_classes]
        return tuple((size_out, size_in) for size_in, size_out in itertools.pairwise(sizes))


def layer(kernel: tf.Tensor, below: tf.Tensor) -> tf.Tensor:
    """Returns `kernel @ below`, `[members, out, batch]`, for x `[batch, in]` or hidden `[members, in, batch]`."""
    if below.shape.rank == 3:
        return tf.matmul(kernel, below)
    members, size_out, size_in = kernel.shape
    flat = tf.matmul(tf.reshape(kernel, [members * size_out, size_in]), below, transpose_b=True)
    return tf.reshape(flat, [members, size_out, below.shape[0]])


def with_one(hidden: tf.Tensor) -> tf.Tensor:
    """Returns hidden `[members, units, batch]` with one more unit that is 1."""
    return tf.pad(hidden, [[0, 0], [0, 1], [0, 0]], constant_values=1.0)


def kernel_gradient(gradient: tf.Tensor, below: tf.Tensor) -> tf.Tensor:
    """Returns the gradient of a kernel, `[members, out, in]`, from that of its output, `[members, out, batch]`."""
    if below.shape.rank == 3:
        return tf.matmul(gradient, below, transpose_b=True)
    members, size_out, batch = gradient.shape
    flat = tf.matmul(tf.reshape(gradient, [members * size_out, batch]), below)
    return tf.reshape(flat, [members, size_out, below.shape[1]])


def _output_gradient(logits: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Gradient of the mean weighted cross-entropy by the logits `[members, classes, batch]`, or by their difference.

    Args:
        logits: `[members, classes, batch]`; with two classes the margin of class 1 over class 0, `[members, 1, batch]`.
        labels: `[batch]`.
        weights: `[members, batch]`.
    """
    scaled = weights[:, None] / float(labels.shape[0])
    if logits.shape[1] == 1:
        sign = tf.cast(2 * labels - 1, tf.float32)
        return -sign * scaled * tf.sigmoid(-sign * logits)
    return scaled * (tf.nn.softmax(logits, axis=1) - tf.one_hot(labels, logits.shape[1], axis=0))


def backward(
    kernels: Sequence[tf.Tensor], x: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor, offset: tf.Tensor
) -> list[tf.Tensor]:
    """The backward pass, written out: gradients of every member's mean loss by its kernels.

    Args:
        kernels: `[members, out, in]` per layer, without the rows of constant units.
        x: `[batch, in]`, its last column 1.
        labels: `[batch]`.
        weights: `[members, batch]`.
        offset: scaled prior logits `[members, classes, batch]`, or the margin of class 1, `[members, 1, batch]`.
    """
    below = [x]
    for kernel in kernels[:-1]:
        below.append(with_one(tf.nn.relu(layer(kernel, below[-1]))))
    head, binary = kernels[-1], kernels[-1].shape[1] == 2
    if binary:
        head = head[:, 1:] - head[:, :1]
    gradient = _output_gradient(layer(head, below[-1]) + offset, labels, weights)
    head_gradient = kernel_gradient(gradient, below[-1])
    gradients = [tf.concat([-head_gradient, head_gradient], axis=1) if binary else head_gradient]
    above = head
    for kernel, hidden, lower in zip(kernels[-2::-1], below[:0:-1], below[-2::-1], strict=True):
        above = above[:, :, :-1]  # Nothing flows back into a constant.
        # A product with one inner dimension is cheaper as an elementwise product, which fuses with the mask.
        back = tf.transpose(above, [0, 2, 1]) * gradient if above.shape[1] == 1 else None
        back = tf.matmul(above, gradient, transpose_a=True) if back is None else back
        gradient = tf.where(hidden[:, :-1] > 0, back, 0.0)
        gradients.append(kernel_gradient(gradient, lower))
        above = kernel
    return gradients[::-1]


def adam(
    kernel: tf.Tensor,
    gradient: tf.Tensor,
    first: tf.Tensor,
    second: tf.Tensor,
    decay: tf.Tensor,
    rate: tf.Tensor,
    mask: Any = 1.0,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """One step of Adam as Keras computes it; `rate` holds the bias correction. Masked entries stay as they are."""
    gradient = gradient + 2.0 * decay * kernel
    first = first + (gradient - first) * (1.0 - BETA_1)
    second = second + (gradient * gradient - second) * (1.0 - BETA_2)
    return kernel - mask * rate * first / (tf.sqrt(second) + EPSILON), first, second


def trainable(kernels: Sequence[tf.Tensor]) -> tuple[tf.Tensor, ...]:
    """Returns kernels `[members, out, in]` without the rows that make hidden layers' constant units."""
    return (*(kernel[:, :-1] for kernel in kernels[:-1]), kernels[-1])


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

        def step(index: tf.Tensor, kernels: Any, firsts: Any, seconds: Any) -> Any:
            gradients = backward(
                kernels, x[index], y[index], tf.transpose(weights[index]), tf.transpose(offset[index], [1, 2, 0])
            )
            time = tf.cast(done + index + 1, tf.float32)
            corrected = rate * tf.sqrt(1.0 - BETA_2**time) / (1.0 - BETA_1**time)
            parts = zip(kernels, gradients, firsts, seconds, strict=True)
            moved = [adam(*part, decay, corrected) for part in parts]
            return index + 1, *(tuple(part) for part in zip(*moved, strict=True))

        return tf.while_loop(lambda index, *_: index < count, step, (0, *state))[1:]

    kernel_specs = tuple(tf.TensorSpec([members, *shape]) for shape in network.kernel_shapes)
    signature = [
        tf.TensorSpec([None, network.kernel_shapes[0][1]]),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None, members]),
        tf.TensorSpec([None, members, network.num_classes]),
        tf.TensorSpec([], tf.int32),
        kernel_specs,
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
        constants = [kernel[:, -1:] for kernel in kernels[:-1]]
        trained = trainable(kernels)
        zeros = tuple(tf.zeros_like(kernel) for kernel in trained)

        def advance(done: tf.Tensor, *state: Any) -> Any:
            places = tf.reshape(order[done * batch : (done + CHUNK_STEPS) * batch], [CHUNK_STEPS, batch])
            count = tf.minimum(CHUNK_STEPS, steps - done)
            rows = [tf.gather(part, places) for part in (x, y, weights, offset)]
            return done + count, *chunk(count, done, rows, state, decay, rate)

        state = (trained, zeros, zeros)
        trained = tf.while_loop(lambda done, *_: done < steps, advance, (0, *state), parallel_iterations=1)[1]
        whole = [tf.concat(parts, axis=1) for parts in zip(trained[:-1], constants, strict=True)]
        return (*whole, trained[-1])

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
        hidden = x
        for kernel in kernels[:-1]:
            hidden = tf.nn.relu(layer(kernel, hidden))
        return tf.transpose(layer(kernels[-1], hidden), [2, 0, 1])

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
