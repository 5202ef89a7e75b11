"""How the layers of a Keras graph run for all members at once.

A layer is run in one of three ways:
  batched   a rule does the work of all members on stacked weights (see `rule_of`);
  folded    it has no weights and treats examples one by one, so members are folded into the batch;
  looped    anything else is called for each member with that member's weights (see `mapping`).
A model is looped as a whole where a layer with weights has no rule, where `call` is the user's own, and where masks are
passed along, because what happens between layers cannot be seen then. A loop is always correct.

An adapted `Normalization` is looped though it could be folded: measured in seconds of CPU on a busy machine, 100
members with it took 0.92 and 0.94 of the time for a step then, and 1.3 times for the start, since XLA compiles such
models (`python -m benchmarks.speed.looped --models normalized --members 100`, twice each way).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf
from keras import layers

from tf_ensembles import priors
from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import convolutions, recurrent
from tf_ensembles.ensemble.members.mapping import Lookup, Stacked

if TYPE_CHECKING:
    from tf_ensembles.ensemble.members.runner import Runner


@dataclasses.dataclass(frozen=True)
class Hidden:
    """Holds a value that Keras must not track as part of the layer."""

    value: Any


# Without weights, and each example's output depends on that example alone.
_FOLDED = (
    layers.Activation, layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Softmax, layers.Identity, layers.Rescaling,
    layers.Flatten, layers.Reshape, layers.Permute, layers.RepeatVector, layers.UnitNormalization,
    layers.Cropping1D, layers.Cropping2D, layers.Cropping3D, layers.UpSampling1D, layers.UpSampling2D,
    layers.UpSampling3D, layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D,
    layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D,
    layers.AveragePooling1D, layers.AveragePooling2D, layers.AveragePooling3D,
    layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D, layers.GlobalMaxPooling3D,
    layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalAveragePooling3D,
    priors.Cosine,
    layers.Add, layers.Subtract, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum, layers.Concatenate,
)  # fmt: skip
# Likewise, but random: the draws of a folded batch are independent, so members get different masks.
_FOLDED_RANDOM = (
    layers.Dropout, layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D,
    layers.GaussianDropout, layers.GaussianNoise, layers.AlphaDropout,
)  # fmt: skip


def runs_by_layer(model: keras.Model) -> bool:
    """Whether the model is a graph that is run layer by layer.

    It is where all layers with weights have a rule; and where it has convolutions, which a map over members cannot do.
    """
    if not is_graph(model):
        return False
    weighted = [op for op in operations(model) if getattr(op, "variables", []) and not is_folded(op)]
    return all(map(rule_of, weighted)) or any(map(convolutions.rule_of, weighted))


def has_convolutions(model: keras.Model) -> bool:
    """Whether a graph has convolutions with a rule."""
    return is_graph(model) and any(map(convolutions.rule_of, operations(model)))


def has_recurrent(model: keras.Model) -> bool:
    """Whether a graph has recurrent layers with a rule."""
    return is_graph(model) and any(map(recurrent.rule_of, operations(model)))


def activation_size(model: keras.Model) -> int | None:
    """Returns how many numbers the layers of a graph make of one example; None without a graph, or with open sizes."""
    if not has_graph(model):
        return None
    tensors = [t for op in keras_private.graph_of(model).operations for t in keras.tree.flatten(op.output)]
    sizes = [tensor.shape[1:] for tensor in tensors if isinstance(tensor, keras.KerasTensor)]
    return None if any(None in size for size in sizes) else sum(math.prod(size) for size in sizes)


def draws_together(model: keras.Model) -> bool:
    """Whether random layers draw for all members at once, from one generator; if not, each member from its own.

    What is drawn, and what a file keeps of it, must not change when a rule is added: only rules of old count.
    """
    return is_graph(model) and not any(
        getattr(op, "variables", []) and not (is_folded(op) or _dense_rule(op)) for op in operations(model)
    )


def is_graph(model: keras.Model) -> bool:
    """Whether the model is a graph of layers that can be run one by one: Sequential or Functional, without masks."""
    return has_graph(model) and not any(
        _makes_masks(layer) or layer.activity_regularizer for layer in keras_private.all_layers(model)
    )


def has_graph(model: keras.Model) -> bool:
    """Whether the model is Sequential or Functional and built."""
    if type(model) is keras.Sequential:
        return keras_private.graph_of(model) is not None
    functional = keras_private.functional_class()
    # A subclass may have been made by functional construction and yet have a `call` of its own.
    return isinstance(model, functional) and type(model).call is functional.call


def _makes_masks(layer: keras.layers.Layer) -> bool:
    return isinstance(layer, layers.Masking) or bool(getattr(layer, "mask_zero", False))


def is_nested(layer: Any) -> bool:
    """Whether a layer is a graph of layers itself."""
    return isinstance(layer, keras.Model) and is_graph(layer)


def operations(model: keras.Model) -> list[Any]:
    """Returns the operations of a graph, those of graphs within it included."""
    found: list[Any] = []
    for operation in keras_private.graph_of(model).operations:
        found.extend(operations(operation) if is_nested(operation) else [operation])
    return found


def is_folded(operation: Any) -> bool:
    """Whether the layer treats examples one by one, so that members may be folded into the batch."""
    if type(operation) in _FOLDED_RANDOM:
        return getattr(operation, "noise_shape", None) is None
    if type(operation) is layers.Activation:
        return _known_activation(operation)
    return type(operation) in _FOLDED


def is_random(operation: Any) -> bool:
    """Whether a layer that may be folded draws."""
    return type(operation) in _FOLDED_RANDOM


_known_activation = convolutions.known_activation


WHOLE = "whole model"


def mapped_parts(model: keras.Model) -> list[str]:
    """Returns those of `looped_parts` that are mapped over members, rather than unrolled by a rule."""
    unrolled = {op.name for op in operations(model) if convolutions.is_looped(op)} if is_graph(model) else set()
    return [name for name in looped_parts(model) if name not in unrolled]


def unrolls(model: keras.Model) -> bool:
    """Whether convolutions run once per member, all else for all members at once, and no penalty is of activations."""
    regularized = any(getattr(layer, "activity_regularizer", None) for layer in keras_private.all_layers(model))
    return bool(looped_parts(model)) and not mapped_parts(model) and not regularized


def looped_parts(model: keras.Model) -> tuple[str, ...]:
    """Returns the names of the parts that run once per member; empty when everything is vectorized."""
    if not runs_by_layer(model):
        return (WHOLE,)
    together = draws_together(model)
    return tuple(operation.name for operation in operations(model) if _is_looped(operation, together))


def _is_looped(operation: Any, together: bool) -> bool:
    if isinstance(operation, layers.InputLayer):
        return False
    if is_folded(operation):
        return is_random(operation) and not together
    return rule_of(operation) is None or convolutions.is_looped(operation)


def shared_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators of the folded random layers, which draw for all members at once."""
    folded = [op for op in operations(model) if type(op) in _FOLDED_RANDOM and is_folded(op)]
    # One with a rate of 0 has none: it never draws.
    generators = [op.seed_generator for op in folded if getattr(op, "seed_generator", None) is not None]
    return list({id(generator): generator for generator in generators}.values())


def tables(model: keras.Model) -> list[keras.Variable]:
    """Returns the embeddings of a model whose gradients Keras takes row by row: all that are looked up and no more."""
    found = [layer for layer in keras_private.all_layers(model) if isinstance(layer, layers.Embedding) and layer.built]
    plain = [layer.embeddings for layer in found if _is_plain(layer)]
    return [table for table in plain if table.regularizer is None]


Rule = Callable[["Runner", Any, tf.Tensor, bool], Stacked]


def _dense(runner: Runner, layer: layers.Dense, x: tf.Tensor, stacked: bool) -> Stacked:
    kernel = runner.value(layer.kernel, layer.compute_dtype)
    if len(x.shape) == (3 if stacked else 2):
        y = tf.matmul(x if stacked else x[None], kernel)
    else:
        y = tf.einsum("m...i,mio->m...o" if stacked else "...i,mio->m...o", x, kernel)
    if layer.use_bias:
        y += _broadcastable(runner.value(layer.bias, layer.compute_dtype), y)
    return Stacked(y if layer.activation is None else layer.activation(y))


def _broadcastable(weight: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Weights `[members, units]` in a shape that broadcasts against `[members, batch, ..., units]`."""
    return tf.reshape(weight, [weight.shape[0], *([1] * (len(y.shape) - 2)), weight.shape[-1]])


def _embedding(runner: Runner, layer: layers.Embedding, x: tf.Tensor, stacked: bool) -> Stacked:
    table = runner.value(layer.embeddings, layer.compute_dtype)
    x = tf.cast(x, tf.int32)
    rows = tf.gather(table, x, batch_dims=1) if stacked else tf.gather(table, x, axis=1)
    if id(layer.embeddings) in runner.looked_up:
        runner.looked_up[id(layer.embeddings)].append(Lookup(rows, x))
    return Stacked(rows)


def _batch_norm(runner: Runner, layer: layers.BatchNormalization, x: tf.Tensor, stacked: bool) -> Stacked:
    if not stacked:
        x = tf.repeat(x[None], runner.num_members, axis=0)
    dtype = x.dtype
    x = tf.cast(x, tf.float32)  # Half-precision statistics would lose too many digits; Keras does the same.
    mean_variable, variance_variable = runner.variable(layer.moving_mean), runner.variable(layer.moving_variance)
    if runner.training and layer.trainable:
        mean, variance = tf.nn.moments(x, axes=list(range(1, len(x.shape) - 1)))
        keep = layer.momentum
        mean_variable.assign(mean_variable.value * keep + mean * (1.0 - keep))
        variance_variable.assign(variance_variable.value * keep + variance * (1.0 - keep))
    else:
        mean, variance = mean_variable.value, variance_variable.value
    scale = tf.math.rsqrt(variance + layer.epsilon)
    if layer.scale:
        scale *= runner.value(layer.gamma, "float32")
    offset = -mean * scale
    if layer.center:
        offset += runner.value(layer.beta, "float32")
    return Stacked(tf.cast(x * _broadcastable(scale, x) + _broadcastable(offset, x), dtype))


def _layer_norm(runner: Runner, layer: layers.LayerNormalization, x: tf.Tensor, stacked: bool) -> Stacked:
    if not stacked:
        x = tf.repeat(x[None], runner.num_members, axis=0)
    dtype = x.dtype
    x = tf.cast(x, tf.float32)
    mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
    y = (x - mean) * tf.math.rsqrt(variance + layer.epsilon)
    if layer.scale:
        y *= _broadcastable(runner.value(layer.gamma, "float32"), y)
    if layer.center:
        y += _broadcastable(runner.value(layer.beta, "float32"), y)
    return Stacked(tf.cast(y, dtype))


def _standardize(runner: Runner, layer: priors.Standardize, x: tf.Tensor, stacked: bool) -> Stacked:
    if not stacked:
        x = tf.repeat(x[None], runner.num_members, axis=0)
    mean, std = (_broadcastable(runner.value(weight, x.dtype), x) for weight in (layer.mean, layer.std))
    return Stacked((x - mean) / std)


def rule_of(operation: Any) -> Rule | None:
    """Returns how to run the layer for all members with stacked weights, or None if there is no such way."""
    return _dense_rule(operation) or convolutions.rule_of(operation) or recurrent.rule_of(operation)


def _dense_rule(operation: Any) -> Rule | None:
    if not isinstance(operation, layers.Layer) or not operation.built:
        return None
    if not _is_plain(operation):
        return None
    if type(operation) is layers.Dense:
        return _dense if _known_activation(operation) else None
    if type(operation) is layers.Embedding:
        return _embedding
    if type(operation) is priors.Standardize:
        return _standardize
    last = _last_axis(operation)
    if type(operation) is layers.BatchNormalization:
        return _batch_norm if last and not operation.synchronized else None
    if type(operation) is layers.LayerNormalization:
        return _layer_norm if last and not getattr(operation, "rms_scaling", False) else None
    return None


_is_plain = convolutions.is_plain


def _last_axis(layer: Any) -> bool:
    """Whether a normalization layer works on the last axis only."""
    axis = getattr(layer, "axis", None)
    axis = axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis
    return axis == -1 or (isinstance(axis, int) and layer.input_spec is not None and axis == layer.input_spec.ndim - 1)
