"""Members of many problems, whose networks are those of `trainers.mlp.network`: starts, priors, and one of them each.

Shapes: kernels `[J, M, out, in]` for each layer, x `[J, rows, in]` with a last column of ones, H outputs ("heads").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import Tensor
from tf_ensembles.trainers.mlp import network as networks
from tf_ensembles.trainers.mlp.network import Kernels as Kernels
from tf_ensembles.trainers.mlp.network import Network as Network


def init(network: Network, seeds: Sequence[int], members: range, *, prior: bool = False) -> tuple[Array, ...]:
    """Draws kernels `[J, M, out, in]`: a member's are a pure function of its problem's seed and its own number."""
    drawn = {seed: networks.init(network, seed, np.asarray(members), prior=prior) for seed in set(seeds)}
    return tuple(np.stack(layer) for layer in zip(*(drawn[seed] for seed in seeds), strict=True))


def pick(kernels: Kernels, member: Tensor) -> Kernels:
    """Returns the kernels of one member per problem, `[J, out, in]`; `member` `[J]` says which."""
    return tuple(tf.gather(kernel, member, batch_dims=1) for kernel in kernels)


def values_of(kernels: Kernels, x: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
    """Returns the outputs `[J, rows, H]` of one network per problem at x `[J, rows, in]`."""
    return tf.linalg.matrix_transpose(networks.outputs(kernels, x, masks))


def normalized(kernels: tuple[Array, ...], x: Array | None, scale: Array) -> tuple[Array, ...]:
    """Returns priors whose outputs at x have mean 0 and standard deviation `scale`, each member's and output's own.

    Args:
      kernels: of random networks, `[J, M, out, in]`.
      x: examples, `[J, rows, in]`, or None for each input being 1 by itself.
      scale: a standard deviation in units of the output for each problem, `[J]`.
    """
    examples = None if x is None else tf.constant(x)
    outputs = networks.outputs(tuple(map(tf.constant, kernels)), examples).numpy()
    mean, std = outputs.mean(-1), outputs.std(-1)
    if not (std > 1e-6 * np.maximum(np.abs(mean), 1e-30)).all():
        raise ValueError(f"Expected priors that vary over the examples. Received: a deviation of {std.min()}")
    last = kernels[-1].copy()
    last[..., -1] -= mean
    return (*kernels[:-1], (last / std[..., None] * scale[:, None, None, None]).astype(np.float32))
