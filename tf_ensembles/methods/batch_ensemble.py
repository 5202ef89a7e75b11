"""Batch ensembles: members that share their kernels up to rank-one factors (Wen et al. 2020, "BatchEnsemble").

    member m's kernel = W * (r_m s_m^T),      y = activation(((x * r_m) W) * s_m + b_m)

`W` is shared by all members; the factors `r_m` of the inputs, `s_m` of the outputs and the biases `b_m` are each
member's own. So M members have few more numbers than one, and their layers are one product for all of them.

Shapes: inside the network `[members * batch, ...]`, outputs `[batch, members, outputs]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tf_ensembles import draws
from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import building, convolutions, layer_rules
from tf_ensembles.methods.sampled import OfNetwork

_SHARED = (layers.Dense, layers.Conv1D, layers.Conv2D)


@keras.saving.register_keras_serializable(package="tf_ensembles")
class RankOne(layers.Layer):
    """A dense layer or a convolution whose kernel all members share up to factors of their own.

    Takes `[members * batch, ..., inputs]`.

    Args:
        layer: Dense, Conv1D or Conv2D, without bias and activation.
        num_members: M.
        use_bias: whether members have biases of their own.
        activation: after the bias.
    """

    def __init__(self, layer: Any, num_members: int, use_bias: bool = True, activation: Any = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.layer, self.num_members, self.use_bias = layer, int(num_members), bool(use_bias)
        self.activation = keras.activations.get(activation)

    def build(self, input_shape: Any) -> None:
        """Makes the shared kernel, and factors of one."""
        if not self.layer.built:
            self.layer.build(input_shape)
        inputs, outputs = int(self.layer.kernel.shape[-2]), int(self.layer.kernel.shape[-1])
        for name, size, start in (("r", inputs, "ones"), ("s", outputs, "ones"), ("bias", outputs, "zeros")):
            made = name != "bias" or self.use_bias
            given = {"shape": (self.num_members, size), "initializer": start, "name": name}
            setattr(self, name, self.add_weight(**given) if made else None)

    def call(self, inputs: Any) -> Any:
        """Returns what all members' layers say."""
        y = _by_member(self.layer(_by_member(inputs, self.r, tf.multiply)), self.s, tf.multiply)
        y = _by_member(y, self.bias, tf.add) if self.use_bias else y
        return y if self.activation is None else self.activation(y)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape that the shared layer gives."""
        return self.layer.compute_output_shape(input_shape)

    def kernels(self) -> Any:
        """Returns every member's kernel, `[members, ..., inputs, outputs]`."""
        rank_one = np.asarray(self.r)[:, :, None] * np.asarray(self.s)[:, None]
        between = [1] * (len(self.layer.kernel.shape) - 2)
        return np.asarray(self.layer.kernel) * rank_one.reshape(self.num_members, *between, *rank_one.shape[1:])

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        layer, activation = (
            keras.saving.serialize_keras_object(self.layer),
            keras.activations.serialize(self.activation),
        )
        own = {"layer": layer, "num_members": self.num_members, "use_bias": self.use_bias, "activation": activation}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> RankOne:
        """Returns a layer with these arguments."""
        layer = keras.saving.deserialize_keras_object(config["layer"], custom_objects=custom_objects)
        return cls(**{**config, "layer": layer})


@keras.saving.register_keras_serializable(package="tf_ensembles")
class BatchEnsemble(OfNetwork):
    """Members that share the kernels of one Keras model up to rank-one factors, under an ensemble's contract.

    Every member sees every example, and the loss is the mean over members: a kernel's gradient is the mean of what
    members ask for. There is neither a prior nor a bootstrap; `tfe.Ensemble` has both.

    Args:
        model: a Sequential or functional Keras model, or a function that returns one. Its Dense, Conv1D and Conv2D
            layers get factors; other layers have to be without weights and to treat examples one by one. Its weights
            are copied.
        num_members: M.
        seed: decides the signs that factors start with, the order of batches, what dropout drops, and the weights
            of a model that is made here.
        outputs: what a member returns, as `tfe.Ensemble` takes it.
    """

    def __init__(
        self,
        model: keras.Model | Callable[[], keras.Model],
        num_members: int = 4,
        *,
        seed: int = 0,
        outputs: str = "auto",
        **kwargs: Any,
    ) -> None:
        if received := {"prior", "bootstrap"} & set(kwargs):
            raise ValueError(
                "Expected neither prior nor bootstrap: members share their kernels. Use tfe.Ensemble for them. "
                f"Received: {sorted(received)}"
            )
        super().__init__(num_members, seed, outputs, **kwargs)
        with building.seeded(draws.key(self.seed, draws.Purpose.RANK_ONE), 0):
            if callable(model) and not isinstance(model, keras.Model):
                model = model()
            self._take(model, "a Keras model", self._copy)

    def _copy(self, model: keras.Model) -> keras.Model:
        ranked = [layer for layer in keras_private.all_layers(model) if isinstance(layer, RankOne)]
        if not ranked:
            return _with_factors(model, self.num_members, self.seed)
        if ranked[0].num_members != self.num_members:  # From a file they are as many.
            raise ValueError(
                f"Expected {ranked[0].num_members} members, as in {model.name}. Received: {self.num_members}"
            )
        return model

    @property
    def num_members(self) -> int:
        """M, which is that of the variables and cannot be set again."""
        return self._num_members

    @num_members.setter
    def num_members(self, value: int) -> None:
        if hasattr(self, "network"):
            raise ValueError(f"Expected the {self._num_members} members that it was made with. Received: {value!r}")
        OfNetwork.num_members.fset(self, value)  # type: ignore[attr-defined]

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns member outputs `[batch, members, outputs]`."""
        return self._folded(inputs, training)

    def member(self, index: int) -> keras.Model:
        """Returns one member as a plain Keras model with kernels of its own."""
        if not 0 <= index < self.num_members:
            raise ValueError(f"Expected a member in [0, {self.num_members}). Received: {index!r}")
        pairs = []

        def replace(layer: Any) -> Any:
            if not isinstance(layer, RankOne):
                return type(layer).from_config(layer.get_config())
            config = {**layer.layer.get_config(), "use_bias": layer.use_bias, "activation": layer.activation}
            pairs.append((layer, type(layer.layer).from_config({**config, "name": layer.name})))
            return pairs[-1][1]

        plain = keras.models.clone_model(self.network, clone_function=replace, recursive=True)
        for layer, own in pairs:
            bias = [np.asarray(layer.bias)[index]] if layer.use_bias else []
            own.set_weights([layer.kernels()[index], *bias])
        return plain


def _by_member(x: Any, weight: Any, combine: Callable[..., Any]) -> Any:
    """Combines `[members * batch, ..., size]` with a weight `[members, size]`."""
    members, size = weight.shape
    weight = tf.cast(tf.convert_to_tensor(weight), x.dtype)
    shape = tf.shape(x)
    parts = tf.reshape(x, [members, -1, size])  # An example's positions are side by side.
    return tf.ensure_shape(tf.reshape(combine(parts, weight[:, None]), shape), x.shape)


def _with_factors(model: keras.Model, num_members: int, seed: int) -> keras.Model:
    """Returns a copy of a model with layers of ours in the place of its dense layers and convolutions."""
    _check(model)
    pairs: list[tuple[Any, RankOne]] = []

    def replace(layer: Any) -> Any:
        config = layer.get_config()
        if type(layer) not in _SHARED:
            return type(layer).from_config(config)
        shared = type(layer).from_config({**config, "use_bias": False, "activation": None, "bias_constraint": None})
        own = {"name": layer.name, "dtype": layer.dtype_policy, "trainable": layer.trainable}
        pairs.append((layer, RankOne(shared, num_members, layer.use_bias, layer.activation, **own)))
        return pairs[-1][1]

    copied = keras.models.clone_model(model, clone_function=replace, recursive=True)
    for place, (old, new) in enumerate(pairs):
        new.layer.kernel.assign(old.kernel)
        inputs, outputs = new.r.shape[1], new.s.shape[1]
        drawn = draws.uniform(seed, [place], np.arange(num_members), inputs + outputs, draws.Purpose.RANK_ONE)[0]
        signs = np.where(np.asarray(drawn) < 0.5, -1.0, 1.0)
        new.r.assign(signs[:, :inputs])
        new.s.assign(signs[:, inputs:])
        if old.use_bias:
            new.bias.assign(np.tile(np.asarray(old.bias), (num_members, 1)))
    return copied


def _check(model: keras.Model) -> None:
    """Raises for what cannot have factors, or would mix members."""
    if not layer_rules.is_graph(model):
        raise ValueError(
            "Expected a Sequential or functional model without masks and activity regularizers. "
            f"Received: {type(model).__name__} {model.name}"
        )
    found = [op for op in layer_rules.operations(model) if not isinstance(op, layers.InputLayer)]
    for operation in found:
        if type(operation) in _SHARED:
            fits = convolutions.is_plain(operation) and convolutions.known_activation(operation)
            fits = fits and getattr(operation, "groups", 1) == 1 and operation.bias_regularizer is None
            fits = fits and getattr(operation, "data_format", "channels_last") == "channels_last"
            fits = fits and operation.bias_constraint is None
        else:
            fits = layer_rules.is_folded(operation) and not getattr(operation, "variables", [])
        if layer_rules.is_random(operation):
            fits = layer_rules.is_folded(operation)  # Its generator's state is no weight.
        if not fits:
            raise ValueError(
                "Expected Dense, Conv1D and Conv2D layers (channels last, ungrouped, biases free), and others without "
                f"weights that treat examples one by one. Received: {operation.name}, a {type(operation).__name__}"
            )
    if not any(type(operation) in _SHARED for operation in found):
        raise ValueError("Expected a model with Dense, Conv1D or Conv2D layers. Received: one without any")
