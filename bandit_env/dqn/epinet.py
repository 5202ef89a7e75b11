"""An epinet of values in place of members, as `tfe.Epinet` has it for Keras models.

    q(x, z) = base(phi(x)) + sigma([sg(phi(x)), z]) . z + sum_i z_i p_i(x) / sqrt(D),      z ~ N(0, I_D)

`phi` are the hidden layers of one network, `base` its last one, `sigma` a small network whose outputs `[A, D]` are
multiplied by the index z, and the `p_i` are D frozen random networks, with their scale; `sg` stops gradients. One index
acts in each episode; each update averages the loss over K of them that are drawn anew, each with the targets of its
own.

Kernels are those of `trainers.mlp.network` with one member: the network's, then the small one's, whose inputs are
features, index and a constant. Shapes: S seeds, K indices, D numbers of an index, A actions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.networks import network
from tf_ensembles.bandit_env.networks.network import Kernels, Network
from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import Tensor
from tf_ensembles.trainers.mlp import network as networks


def init(net: Network, seeds: Sequence[int], index_dim: int, hidden: Sequence[int]) -> tuple[Array, ...]:
    """Draws kernels `[S, 1, out, in]`; the small network's are those of a second member."""
    small = Network(net.hidden_sizes[-1] + index_dim, tuple(hidden), net.num_classes * index_dim)
    return (*network.init(net, seeds, range(1)), *network.init(small, seeds, range(1, 2)))


def draw_acting(key: Tensor, episode: Tensor, rows: Tensor, index_dim: int) -> Tensor:
    """Returns the index that acts in each seed's episode, `[S, 1, D]`: a pure function of the numbers of both."""
    drawn = draws.to_normal(steps.uniforms_of(key, steps.make_ids(episode, rows), index_dim))
    return tf.transpose(drawn)[:, tf.newaxis]


def draw_learning(key: Tensor, updates: Tensor, rows: Tensor, count: int, index_dim: int) -> Tensor:
    """Returns the indices of an update, `[S, K, D]`."""
    drawn = tf.transpose(steps.normal(key, tf.cast(updates, tf.int64), rows, count * index_dim))
    return tf.reshape(drawn, [-1, count, index_dim])


def outputs_of(kernels: Kernels, layers: int, index: Tensor, x: Tensor | None) -> Tensor:
    """Returns values without priors, `[S, K, A, rows]`.

    Args:
      kernels: of both networks, the first `layers` of them the base network's.
      layers: of the base network.
      index: `[S, K, D]`.
      x: `[S, rows, in]` with a last column of ones, or None for one-hot rows.
    """
    base, small = kernels[:layers], kernels[layers:]
    below = networks.hidden_layers(base, x)
    features = tf.stop_gradient(below[-1])[:, 0, :-1]  # without the unit that is always 1
    first, width = small[0][:, 0], features.shape[1]
    by_index = tf.matmul(first[..., width:-1], index, transpose_b=True) + first[..., -1:]  # [S, units, K]
    hidden = tf.matmul(first[..., :width], features)[:, :, tf.newaxis] + by_index[..., tf.newaxis]
    seeds, _, count, rows = hidden.shape
    hidden = tf.reshape(hidden, [seeds, -1, count * rows])  # One product for all indices.
    for kernel in small[1:]:
        hidden = tf.matmul(kernel[:, 0], networks.with_one(tf.nn.relu(hidden)))
    matrix = tf.reshape(hidden, [seeds, -1, index.shape[2], count, rows])
    learned = tf.reduce_sum(matrix * tf.transpose(index, [0, 2, 1])[:, tf.newaxis, ..., tf.newaxis], axis=2)
    return networks.last_layer(base, x, below) + tf.transpose(learned, [0, 2, 1, 3])


def mixed(priors: Tensor, index: Tensor) -> Tensor:
    """Returns what the priors add, `[S, K, A, rows]`, from what each of them says, `[S, D, A, rows]`."""
    flat = tf.reshape(priors, [*priors.shape[:2], -1])
    added = tf.matmul(index, flat) / math.sqrt(index.shape[2])
    return tf.reshape(added, [*index.shape[:2], *priors.shape[2:]])
