"""Many small MLPs at once: starts, forward pass, backward pass and Adam, for graphs that are compiled.

The testbed's agents, the rollouts of neural bandits and Bootstrapped DQN all train by these functions.

Layout. Arrays are **transposed**, `[members, units, rows]`: the first layer of all members is then one large matrix
product, hidden layers are batched products without a transposition anywhere, and vector instructions run along the
rows. Every hidden layer gets one more unit that is always 1, so a kernel's last column is its bias, and neither adding
biases nor summing their gradients costs a pass over memory.

Shapes: kernels `[members, out, in]`, one per layer, or `[groups, members, out, in]`; hidden `[members, units + 1,
rows]`. Inputs x have a last column of ones and are of one of three forms: rows that all members (of a group) see,
`[rows, in]` or `[groups, rows, in]`; rows of each member's own, `[members, rows, in]`; or None for rows in each of
which another input is 1 and the rest 0, for which the first layer is its kernel.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles import draws

Floats = NDArray[np.float32]
Kernels = tuple[Any, ...]

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
        """Shapes `(out, in)` of one member's kernels, biases included."""
        sizes = [self.input_dim, *self.hidden_sizes, self.num_classes]
        return tuple((size_out, size_in + 1) for size_in, size_out in itertools.pairwise(sizes))


def init(
    network: Network, seed: int, members: NDArray[np.int64], random_bias: Any = True, *, prior: bool = False
) -> tuple[Floats, ...]:
    """Draws initial kernels `[members, out, in]`: truncated normal with scale `1 / sqrt(fan_in)`, cut at two sigma.

    A pure function of (seed, member, position). Biases are 0, except the first where `random_bias` says so.

    Args:
        network: the architecture.
        seed: of the draws.
        members: the members' numbers.
        random_bias: whether first biases are drawn, one answer or one for each member.
        prior: whether the kernels are those of prior functions, which are unrelated to those of members.
    """
    purpose, first_id = draws.Purpose.MLP_PRIOR if prior else draws.Purpose.MLP_WEIGHTS, 0
    kernels = []
    for layer, (size_out, size_in) in enumerate(network.kernel_shapes):
        ids = np.arange(first_id, first_id + size_out * size_in)
        first_id += size_out * size_in
        uniform = draws.uniform(seed, ids, members, purpose=purpose)[..., 0].numpy()
        values = _truncated_normal(uniform).T.reshape(-1, size_out, size_in) / np.float32(math.sqrt(size_in - 1))
        values[:, :, -1] *= np.reshape(random_bias, [-1, 1]) if layer == 0 else 0.0
        kernels.append(values)
    return tuple(kernels)


def _truncated_normal(uniform: Floats) -> Floats:
    low, high = 0.5 * (1 + math.erf(-2 / math.sqrt(2))), 0.5 * (1 + math.erf(2 / math.sqrt(2)))
    return tf.math.ndtri(np.float32(low) + np.float32(high - low) * uniform).numpy()


def with_one(hidden: tf.Tensor) -> tf.Tensor:
    """Returns hidden `[..., units, rows]` with one more unit that is 1."""
    return tf.pad(hidden, [[0, 0]] * (hidden.shape.rank - 2) + [[0, 1], [0, 0]], constant_values=1.0)


def first_layer(kernel: tf.Tensor, x: tf.Tensor | None) -> tf.Tensor:
    """Returns what the first kernel makes of x, `[..., out, rows]`."""
    if x is None:
        return kernel[..., :-1] + kernel[..., -1:]
    if x.shape.rank == kernel.shape.rank:
        return tf.matmul(kernel, x, transpose_b=True)
    *groups, members, size_out, size_in = kernel.shape
    flat = tf.matmul(tf.reshape(kernel, [*groups, members * size_out, size_in]), x, transpose_b=True)
    return tf.reshape(flat, [*groups, members, size_out, x.shape[-2]])


def first_gradient(gradient: tf.Tensor, x: tf.Tensor | None) -> tf.Tensor:
    """Returns the gradient by the first kernel from that by its output, `[..., out, rows]`."""
    if x is None:
        return tf.concat([gradient, tf.reduce_sum(gradient, axis=-1, keepdims=True)], axis=-1)
    if x.shape.rank == gradient.shape.rank:
        return tf.matmul(gradient, x)
    *groups, members, size_out, rows = gradient.shape
    flat = tf.matmul(tf.reshape(gradient, [*groups, members * size_out, rows]), x)
    return tf.reshape(flat, [*groups, members, size_out, x.shape[-1]])


def hidden_layers(kernels: Kernels, x: tf.Tensor | None, masks: Sequence[tf.Tensor] | None = None) -> list[tf.Tensor]:
    """Returns the hidden layers at x, each `[..., units + 1, rows]`; `masks` multiply their units, as dropout does."""
    layers: list[tf.Tensor] = []
    for place, kernel in enumerate(kernels[:-1]):
        units = tf.nn.relu(tf.matmul(kernel, layers[-1]) if layers else first_layer(kernel, x))
        layers.append(with_one(units if masks is None else units * masks[place]))
    return layers


def last_layer(kernels: Kernels, x: tf.Tensor | None, layers: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the outputs `[..., out, rows]` from the hidden layers at x."""
    return tf.matmul(kernels[-1], layers[-1]) if layers else first_layer(kernels[-1], x)


def outputs(kernels: Kernels, x: tf.Tensor | None, masks: Sequence[tf.Tensor] | None = None) -> tf.Tensor:
    """Returns the outputs at x, `[..., out, rows]`."""
    return last_layer(kernels, x, hidden_layers(kernels, x, masks))


def backward(
    kernels: Kernels,
    x: tf.Tensor | None,
    layers: Sequence[tf.Tensor],
    gradient: tf.Tensor,
    masks: Sequence[tf.Tensor] | None = None,
) -> list[tf.Tensor]:
    """Returns the gradients by the kernels.

    Args:
        kernels: of all layers.
        x: the inputs.
        layers: the hidden layers at x.
        gradient: of the loss by the outputs, `[..., out, rows]`.
        masks: what the hidden layers were multiplied by.
    """
    gradients = []
    for place in range(len(layers), 0, -1):
        hidden, above = layers[place - 1], kernels[place][..., :-1]  # Nothing flows back into a constant.
        gradients.append(tf.matmul(gradient, hidden, transpose_b=True))
        if above.shape[-2] == 1:  # Cheaper as an elementwise product, which fuses with the mask.
            back = tf.linalg.matrix_transpose(above) * gradient
        else:
            back = tf.matmul(above, gradient, transpose_a=True)
        if masks is not None:
            back *= masks[place - 1]
        gradient = tf.where(hidden[..., :-1, :] > 0, back, 0.0)
    return [first_gradient(gradient, x), *gradients[::-1]]


def adam(
    kernels: Kernels,
    gradients: Sequence[tf.Tensor],
    moments: tuple[Kernels, Kernels],
    count: tf.Tensor,
    rate: tf.Tensor,
    decay: tf.Tensor | None = None,
) -> tuple[Kernels, tuple[Kernels, Kernels]]:
    """Returns kernels and moments after a step of Adam, as Keras computes it.

    Args:
        kernels: of all layers.
        gradients: by the kernels.
        moments: of the steps before; zeros at first.
        count: the number of steps, this one included.
        rate: the learning rate.
        decay: of the loss `decay * ||kernels||^2`, which is added; None for none.
    """
    time = tf.cast(count, tf.float32)
    corrected = rate * tf.sqrt(1.0 - BETA_2**time) / (1.0 - BETA_1**time)
    after = []
    for kernel, gradient, first, second in zip(kernels, gradients, *moments, strict=True):
        total = gradient if decay is None else gradient + 2.0 * decay * kernel
        first += (total - first) * (1.0 - BETA_1)
        second += (total * total - second) * (1.0 - BETA_2)
        after.append((kernel - corrected * first / (tf.sqrt(second) + EPSILON), first, second))
    kernels, firsts, seconds = zip(*after, strict=True)
    return kernels, (firsts, seconds)
