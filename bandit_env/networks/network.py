"""Many small MLPs at once, M members for each of J problems: forward pass, gradients and starts.

As in `trainers.mlp.graph`, arrays are transposed, every hidden layer has one more unit that is always 1, and a kernel's
last column is its bias. Shapes: kernels `[J, M, out, in]` for each layer, x `[J, batch, in]` with a last column of
ones, H outputs ("heads"). None in place of x stands for each input being 1 by itself, in turn: one-hot rows, for which
the first layer is its kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import Tensor
from trainers.mlp import graph
from trainers.mlp import train as mlp_train
from trainers.mlp.graph import Network as Network

Kernels = tuple[Any, ...]


def init(network: Network, seeds: Sequence[int], num_members: int, *, prior: bool = False) -> tuple[Array, ...]:
    """Draws kernels `[J, M, out, in]`: a member's are a pure function of its problem's seed and its own number."""
    group = [mlp_train.Group(num_members)]
    known: dict[int, tuple[Array, ...]] = {}
    for seed in seeds:
        if seed not in known:
            known[seed] = mlp_train.init_kernels(network, group, seed, prior=prior)
    return tuple(np.stack(layer) for layer in zip(*(known[seed] for seed in seeds), strict=True))


def pick(kernels: Kernels, member: Tensor) -> Kernels:
    """Returns the kernels of one member per problem, `[J, out, in]`; `member` `[J]` says which."""
    return tuple(tf.gather(kernel, member, batch_dims=1) for kernel in kernels)


def hidden_of(kernels: Kernels, x: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
    """Returns the last hidden layer `[J, units + 1, rows]` of one network per problem at x `[J, rows, in]`."""
    below = tf.linalg.matrix_transpose(x)
    for place, kernel in enumerate(kernels[:-1]):
        below = tf.nn.relu(tf.matmul(kernel, below))
        if masks is not None:
            below *= masks[place]
    return below


def values_of(kernels: Kernels, x: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
    """Returns the outputs `[J, rows, H]` of one network per problem at x `[J, rows, in]`."""
    return tf.linalg.matrix_transpose(tf.matmul(kernels[-1], hidden_of(kernels, x, masks)))


def layers_of(kernels: Kernels, x: Tensor | None, masks: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Returns the hidden layers of all members at x `[J, rows, in]`, each `[J * M, units + 1, rows]`."""
    problems, members = kernels[0].shape[:2]
    rows = None if x is None else tf.linalg.matrix_transpose(x)
    below: list[Tensor] = []
    for place, kernel in enumerate(kernels[:-1]):
        if place == 0 and rows is None:
            product = tf.reshape(kernel[..., :-1] + kernel[..., -1:], [-1, kernel.shape[2], kernel.shape[3] - 1])
        elif place == 0 and rows is not None:  # One product for all members of a problem.
            flat = tf.matmul(tf.reshape(kernel, [problems, members * kernel.shape[2], kernel.shape[3]]), rows)
            product = tf.reshape(flat, [problems * members, kernel.shape[2], rows.shape[2]])
        else:
            product = tf.matmul(tf.reshape(kernel, [problems * members, *kernel.shape[2:]]), below[-1])
        below.append(tf.nn.relu(product))
        if masks is not None:
            below[-1] *= masks[place]
    return below


def outputs_of(kernels: Kernels, x: Tensor | None) -> Tensor:
    """Returns the outputs of all members at x `[J, rows, in]`, `[J, M, H, rows]`."""
    return last_of(kernels, layers_of(kernels, x))


def last_of(kernels: Kernels, below: list[Tensor]) -> Tensor:
    """Returns the outputs of all members, `[J, M, H, rows]`, from their hidden layers."""
    problems, members, heads = kernels[-1].shape[:3]
    product = tf.matmul(tf.reshape(kernels[-1], [problems * members, *kernels[-1].shape[2:]]), below[-1])
    return tf.reshape(product, [problems, members, heads, product.shape[2]])


def gradients_of(
    kernels: Kernels,
    x: Tensor,
    head: Tensor,
    target: Tensor,
    offset: Tensor,
    weight: Tensor,
    binary: bool,
    masks: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Returns the gradients of every member's mean weighted loss by its kernels, `[J, M, out, in]`.

    Args:
      kernels: of all members.
      x: `[J, batch, in]`.
      head: which output each row is about, `[J, batch]`.
      target: rewards, `[J, batch]`.
      offset: what the members' priors say about each row, `[J, M, batch]`.
      weight: of each row for each member, `[J, M, batch]`.
      binary: cross-entropy of a logit, or else the squared error.
      masks: of dropout, for each hidden layer.
    """
    heads, batch = kernels[-1].shape[2], x.shape[1]
    below = layers_of(kernels, x, masks)
    outputs = last_of(kernels, below)
    chosen = tf.one_hot(head, heads, axis=1)[:, tf.newaxis]  # [J, 1, H, batch]
    value = tf.reduce_sum(outputs * chosen, axis=2) + offset
    error = tf.sigmoid(value) - target[:, tf.newaxis] if binary else 2.0 * (value - target[:, tf.newaxis])
    own = (error * weight / float(batch))[:, :, tf.newaxis] * chosen
    return backward(kernels, x, below, own, masks)


def backward(
    kernels: Kernels,
    x: Tensor | None,
    below: list[Tensor],
    gradient: Tensor,
    masks: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Returns the gradients by the kernels, `[J, M, out, in]`, from those by the outputs, `[J, M, H, rows]`.

    Args:
      kernels: of all members.
      x: `[J, rows, in]`, or None.
      below: the hidden layers at x, from `layers_of`.
      gradient: of the loss by the outputs.
      masks: of dropout, for each hidden layer.
    """
    problems, members, heads, batch = gradient.shape
    last = tf.reshape(kernels[-1], [problems * members, heads, -1])
    gradient = tf.reshape(gradient, [problems * members, heads, batch])
    found = [tf.matmul(gradient, below[-1], transpose_b=True)]
    above = last
    for place in range(len(kernels) - 2, -1, -1):
        back = tf.transpose(above, [0, 2, 1]) * gradient if above.shape[1] == 1 else None
        back = tf.matmul(above, gradient, transpose_a=True) if back is None else back
        if masks is not None:
            back *= masks[place]
        gradient = tf.where(below[place] > 0, back, 0.0)
        if place == 0 and x is None:
            found.append(tf.concat([gradient, tf.reduce_sum(gradient, axis=2, keepdims=True)], axis=2))
        elif place == 0:
            wide = tf.reshape(gradient, [problems, members * gradient.shape[1], batch])
            found.append(tf.matmul(wide, x))
        else:
            found.append(tf.matmul(gradient, below[place - 1], transpose_b=True))
        above = tf.reshape(kernels[place], [problems * members, *kernels[place].shape[2:]])
    return [
        tf.reshape(gradient, [problems, members, *kernel.shape[2:]])
        for gradient, kernel in zip(found[::-1], kernels, strict=True)
    ]


def adam(
    kernels: Kernels, gradients: Sequence[Tensor], moments: tuple[Kernels, Kernels], count: Tensor, rate: Tensor
) -> tuple[Kernels, tuple[Kernels, Kernels]]:
    """Returns kernels and moments after a step of Adam, as Keras computes it; `count` is the steps with this one."""
    time = tf.cast(count, tf.float32)
    corrected = rate * tf.sqrt(1.0 - graph.BETA_2**time) / (1.0 - graph.BETA_1**time)
    shapes = [tuple(kernel.shape[2:]) for kernel in kernels]
    masks = [np.ones((1, 1, *shape), np.float32) for shape in shapes]
    for mask in masks[:-1]:  # What makes the unit that is always 1 stays.
        mask[:, :, -1] = 0.0
    moved = [
        graph.adam(kernel, gradient, first, second, 0.0, corrected, mask)
        for kernel, gradient, first, second, mask in zip(kernels, gradients, *moments, masks, strict=True)
    ]
    after, first, second = (tuple(part) for part in zip(*moved, strict=True))
    return after, (first, second)


def normalized(kernels: tuple[Array, ...], x: Array | None, scale: Array) -> tuple[Array, ...]:
    """Returns priors whose outputs at x have mean 0 and standard deviation `scale`, each member's and output's own.

    Args:
      kernels: of random networks, `[J, M, out, in]`.
      x: examples, `[J, rows, in]`, or None.
      scale: a standard deviation in units of the output for each problem, `[J]`.
    """
    examples = None if x is None else tf.constant(x)
    outputs = outputs_of(tuple(tf.constant(kernel) for kernel in kernels), examples).numpy()
    mean, std = outputs.mean(-1), outputs.std(-1)
    if not (std > 1e-6 * np.maximum(np.abs(mean), 1e-30)).all():
        raise ValueError(f"Expected priors that vary over the examples. Received: a deviation of {std.min()}")
    last = kernels[-1].copy()
    last[..., -1] -= mean
    return (*kernels[:-1], (last / std[..., None] * scale[:, None, None, None]).astype(np.float32))
