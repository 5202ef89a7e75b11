"""Runs the layers of a Keras graph for all members at once.

A layer is run in one of three ways:
  batched   a rule does the work of all members in one operation on stacked weights (see `_rule`);
  folded    it has no weights and treats examples one by one, so members are folded into the batch;
  looped    another operation without weights: it is called once per member.
A model is looped as a whole, one call per member with that member's weights, where a layer with weights has no rule
(convolutions, recurrent layers: one kernel per member is as fast on a CPU), and where `call` is the user's own or masks
are passed along, because what happens between layers cannot be seen then. A loop is always correct.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers

from tf_ensembles import priors
from tf_ensembles.ensemble import keras_private


@dataclasses.dataclass(frozen=True)
class Stacked:
    """A tensor that differs between members: `[members, batch, ...]`."""

    tensor: tf.Tensor


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


def is_vectorizable(model: keras.Model) -> bool:
    """Whether the model is a graph of layers, each of which can be run for all members at once."""
    return is_graph(model) and not any(
        getattr(op, "variables", []) and not (_is_folded(op) or _rule(op)) for op in _operations(model)
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


def _nested(layer: Any) -> bool:
    return isinstance(layer, keras.Model) and is_graph(layer)


def _operations(model: keras.Model) -> list[Any]:
    found: list[Any] = []
    for operation in keras_private.graph_of(model).operations:
        found.extend(_operations(operation) if _nested(operation) else [operation])
    return found


def _is_folded(operation: Any) -> bool:
    if type(operation) in _FOLDED_RANDOM:
        return getattr(operation, "noise_shape", None) is None
    if type(operation) is layers.Activation:
        return _known_activation(operation)
    return type(operation) in _FOLDED


def _known_activation(layer: keras.layers.Layer) -> bool:
    """A user's own activation function might look across the batch; those of Keras do not."""
    return getattr(layer.activation, "__module__", "").startswith("keras.")


def looped_parts(model: keras.Model) -> tuple[str, ...]:
    """Returns the names of the parts that run once per member; empty when everything is vectorized."""
    if not is_vectorizable(model):
        return ("whole model",)
    return tuple(
        operation.name
        for operation in _operations(model)
        if not (isinstance(operation, layers.InputLayer) or _is_folded(operation) or _rule(operation))
    )


def shared_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators of the folded random layers, which draw for all members at once."""
    folded = [op for op in _operations(model) if type(op) in _FOLDED_RANDOM and _is_folded(op)]
    # One with a rate of 0 has none: it never draws.
    generators = [op.seed_generator for op in folded if getattr(op, "seed_generator", None) is not None]
    return list({id(generator): generator for generator in generators}.values())


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Rows that members took of their embeddings in one pass, so that their gradients can be asked for one by one.

    Either `rows`, `[members, ..., size]`, that were taken at `ids`, `[...]` or `[members, ...]`; or, where a loop hides
    that, the `tables` of the members, `[rows, size]` each.
    """

    rows: Any = None
    ids: Any = None
    tables: Any = None


def tables(model: keras.Model) -> list[keras.Variable]:
    """Returns the embeddings of a model whose gradients Keras takes row by row: all that are looked up and no more."""
    found = [layer for layer in keras_private.all_layers(model) if isinstance(layer, layers.Embedding) and layer.built]
    plain = [layer.embeddings for layer in found if _is_plain(layer)]
    return [table for table in plain if table.regularizer is None]


class Runner:
    """One forward pass of all members.

    Args:
        stacked: the stacked variable `[members, ...]` for the `id` of each variable of the template.
        num_members: M.
        training: whether dropout drops and batch statistics are used and updated.
        tables: the `id` of each of the template's embeddings whose lookups are to be kept in `looked_up`.
    """

    def __init__(
        self, stacked: dict[int, keras.Variable], num_members: int, training: bool, tables: Sequence[int] = ()
    ) -> None:
        self._stacked, self.num_members, self.training = stacked, num_members, training
        self.looked_up: dict[int, list[Lookup]] = {table: [] for table in tables}
        self._penalties: list[Any] = []

    def variable(self, template_variable: keras.Variable) -> keras.Variable:
        """Returns the stacked variable of a template's variable."""
        return self._stacked[id(template_variable)]

    def value(self, template_variable: keras.Variable, dtype: str) -> tf.Tensor:
        """Returns the stacked value of a template's variable, cast to the dtype that the layer computes in."""
        return tf.cast(self.variable(template_variable).value, dtype)

    def penalty(self) -> tf.Tensor | None:
        """Returns the sum of the regularization losses that the members' own layers asked for, `[members]`."""
        return tf.add_n(self._penalties) if self._penalties else None

    def run_graph(self, model: keras.Model, inputs: Any) -> Any:
        """Runs a Sequential or Functional model node by node."""
        graph = keras_private.graph_of(model)
        if tf.nest.is_nested(inputs) or not isinstance(inputs, Stacked):
            inputs = keras_private.standardize_inputs(graph, inputs)
        outputs = keras_private.run_through_graph(
            graph, inputs, lambda operation: lambda *args, **kwargs: self._run(operation, args, kwargs)
        )
        return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs

    def _run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if _nested(operation):
            return self.run_graph(operation, args[0])
        rule = _rule(operation)
        if rule is not None:
            self._add_weight_penalties(operation)
            x = args[0].tensor if isinstance(args[0], Stacked) else args[0]
            if tf.as_dtype(x.dtype).is_floating:
                x = tf.cast(x, operation.compute_dtype)
            return rule(self, operation, x, isinstance(args[0], Stacked))
        if _is_folded(operation):
            return self._fold(operation, args, kwargs)
        return self.loop(operation, args, kwargs)

    def _fold(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls a layer that treats examples one by one, on all members' examples as one batch."""
        flat = tf.nest.flatten((list(args), kwargs))
        if type(operation) in _FOLDED_RANDOM:
            kwargs = {**kwargs, "training": self.training}
            if self.training:
                args = tf.nest.map_structure(self._as_stacked, list(args))  # A shared input gets M different masks.
        elif not any(isinstance(part, Stacked) for part in flat):
            return operation(*args, **kwargs)
        args = tf.nest.map_structure(self._as_stacked, list(args))
        folded = tf.nest.map_structure(lambda part: _merge(part.tensor), args)
        return tf.nest.map_structure(lambda out: Stacked(_split(out, self.num_members)), operation(*folded, **kwargs))

    def _as_stacked(self, part: Any) -> Stacked:
        if isinstance(part, Stacked):
            return part
        tensor = tf.convert_to_tensor(part)
        return Stacked(tf.repeat(tensor[None], self.num_members, axis=0))

    def loop(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls the operation once per member with that member's weights and inputs, and stacks what comes out."""
        variables = list(getattr(operation, "variables", []))
        # One unstack per variable: its gradient is one stack, where M slices would each pad a gradient to full size.
        values = [tf.unstack(self.variable(v).value, num=self.num_members) for v in variables]
        for variable, value in zip(variables, values, strict=True):
            if id(variable) in self.looked_up:
                self.looked_up[id(variable)].append(Lookup(tables=value))
        if keras_private.takes_training(operation):
            kwargs = {**kwargs, "training": self.training}
        outputs, updates, penalties = [], [], []
        for member in range(self.num_members):
            member_args, member_kwargs = tf.nest.map_structure(lambda part: self._pick(part, member), (args, kwargs))  # noqa: B023
            mapping = [(v, value[member]) for v, value in zip(variables, values, strict=True)]
            with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
                outputs.append(operation(*member_args, **member_kwargs))
                penalties.append(sum(getattr(operation, "losses", []), start=tf.zeros([])))
            updates.append([scope.get_current_value(v) for v in variables])
        self._penalties.append(tf.stack(penalties))
        self._assign(variables, values, updates)
        return tf.nest.map_structure(lambda *parts: Stacked(tf.stack(parts)), *outputs)

    def _pick(self, part: Any, member: int) -> Any:
        return part.tensor[member] if isinstance(part, Stacked) else part

    def _assign(self, variables: Sequence[Any], values: Sequence[Any], updates: Sequence[Sequence[Any]]) -> None:
        """Writes back what the calls changed: batch statistics and the states of seed generators."""
        for index, variable in enumerate(variables):
            if any(update[index] is not value for update, value in zip(updates, values[index], strict=True)):
                self.variable(variable).assign(tf.stack([update[index] for update in updates]))

    def _add_weight_penalties(self, layer: keras.layers.Layer) -> None:
        for variable in layer.trainable_variables:
            if variable.regularizer is not None:
                values = tf.unstack(self.variable(variable).value, num=self.num_members)
                self._penalties.append(tf.stack([variable.regularizer(value) for value in values]))


def _merge(tensor: tf.Tensor) -> tf.Tensor:
    """`[members, batch, ...]` to `[members * batch, ...]`."""
    return (
        tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))
        if _dynamic(tensor)
        else tf.reshape(tensor, [-1, *tensor.shape[2:]])
    )


def _dynamic(tensor: tf.Tensor) -> bool:
    return any(size is None for size in tensor.shape[2:])


def _split(tensor: Any, num_members: int) -> tf.Tensor:
    """`[members * batch, ...]` to `[members, batch, ...]`."""
    shape = tf.shape(tensor)
    split = tf.reshape(tensor, tf.concat([[num_members, shape[0] // num_members], shape[1:]], axis=0))
    batch = None if tensor.shape[0] is None else tensor.shape[0] // num_members
    return tf.ensure_shape(split, [num_members, batch, *tensor.shape[1:]])


Rule = Callable[[Runner, Any, tf.Tensor, bool], Stacked]


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


def _rule(operation: Any) -> Rule | None:
    """Returns how to run the layer for all members in one operation, or None if there is no such way."""
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


def _is_plain(layer: Any) -> bool:
    """Whether a layer's weights are what it computes with: neither quantized nor adapted."""
    return layer.dtype_policy.quantization_mode is None and not getattr(layer, "lora_enabled", False)


def _last_axis(layer: Any) -> bool:
    """Whether a normalization layer works on the last axis only."""
    axis = getattr(layer, "axis", None)
    axis = axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis
    return axis == -1 or (isinstance(axis, int) and layer.input_spec is not None and axis == layer.input_spec.ndim - 1)
