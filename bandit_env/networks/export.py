"""From a rollout's networks to a `tfe.Ensemble`: what was tuned by simulation serves in `NeuralThompsonAgent`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.bandit_env.networks.rollout import Learner, Result
from tf_ensembles.base import Array, Predictive
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.prior import PriorFunction
from tf_ensembles.trainers.mlp import network as networks


def build_member(features: int, hidden_sizes: Sequence[int], heads: int = 1) -> keras.Model:
    """Returns a network from an arm's features to its reward, or to the logit of it.

    With several heads, the features are those of a context, and after them the arm as a one-hot vector, as
    `NeuralThompsonAgent` has it for global observations. The network then has an output for each arm, as TF-Agents'
    networks have, of which the one-hot vector picks one.

    Args:
      features: their number, with the one-hot vector where there is one.
      hidden_sizes: units of the hidden layers.
      heads: H, outputs to pick from; 1 where arms have features of their own.
    """
    inputs = keras.Input([features])
    hidden = inputs if heads == 1 else inputs[:, :-heads]
    for units in hidden_sizes:
        hidden = keras.layers.Dense(units, "relu")(hidden)
    outputs = keras.layers.Dense(heads)(hidden)
    if heads > 1:
        outputs = keras.ops.sum(outputs * inputs[:, -heads:], axis=-1, keepdims=True)
    return keras.Model(inputs, outputs)


def make_ensemble(
    result: Result, problem: int, binary: bool, learner: Learner, bootstrap: Bootstrap | None = None, seed: int = 0
) -> Ensemble:
    """Returns the ensemble of one problem as a compiled `tfe.Ensemble`, with the members' weights and priors.

    Args:
      result: of a rollout.
      problem: its place in the result.
      binary: whether members' outputs are logits.
      learner: that of the rollout.
      bootstrap: that of the agent.
      seed: that of the rollout.
    """
    members, heads = result.kernels[-1].shape[1:3]
    features = result.kernels[0].shape[3] - 1 + (heads if heads > 1 else 0)

    def build() -> keras.Model:
        return build_member(features, learner.hidden_sizes, heads)

    loss = keras.losses.BinaryCrossentropy(from_logits=True) if binary else keras.losses.MeanSquaredError()
    ensemble = Ensemble(build, members, make_prior(build, result), bootstrap, seed=seed)
    ensemble.compile(keras.optimizers.Adam(learner.learning_rate), loss, jit_compile=False)
    return assigned(ensemble, (features,), result, problem)


def make_prior(build: Callable[[], keras.Model], result: Any) -> PriorFunction | None:
    """Returns prior functions of the same architecture, where a result has some; their scale is in their kernels."""
    return PriorFunction(build, 1.0, normalize=False) if result.prior_kernels else None


def assigned(ensemble: Ensemble, shape: tuple[int, ...], result: Any, place: int) -> Ensemble:
    """Returns an ensemble of dense layers with the weights and priors of one problem, or seed, of a result."""
    ensemble(np.zeros([2, *shape], np.float32))
    assign(ensemble.members, [kernel[place] for kernel in result.kernels])
    if result.prior_kernels:
        assign(ensemble.priors, [kernel[place] for kernel in result.prior_kernels])
    return ensemble


def make_predictive(result: Result, problem: int) -> Predictive:
    """Returns logits of both classes of a reward, `[batch, members, 2]`, of one problem's networks of one output."""
    parts = [part for part in (result.kernels, result.prior_kernels) if part]
    kernels = [tuple(tf.constant(kernel[problem : problem + 1]) for kernel in part) for part in parts]

    def predict(x: Array) -> Array:
        rows = tf.constant(np.concatenate([x, np.ones([len(x), 1])], axis=1)[np.newaxis], tf.float32)
        logit = sum(networks.outputs(part, rows)[0, :, 0] for part in kernels)
        return tf.stack([tf.zeros_like(logit), logit], axis=-1).numpy().swapaxes(0, 1)

    return predict


def dense_weights(kernels: Sequence[Array]) -> list[Array]:
    """Returns Keras's weights, kernels `[M, in, out]` and biases `[M, out]` in turns, from kernels `[M, out, in]`."""
    pairs = ((np.swapaxes(kernel[..., :-1], 1, 2), kernel[..., -1]) for kernel in kernels)
    return list(itertools.chain(*pairs))


def assign(stack: Any, kernels: Sequence[Array]) -> None:
    """Gives members or priors of an ensemble of dense layers the weights of kernels `[M, out, in]`."""
    for variable, value in zip(stack.variables, dense_weights(kernels), strict=True):
        variable.assign(value)
