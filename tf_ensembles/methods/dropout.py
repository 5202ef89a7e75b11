"""Monte Carlo dropout: one network whose units are left out at random, as an ensemble of its sub-networks.

Shapes: outputs `[batch, members, outputs]`.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tf_ensembles import draws
from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.methods.sampled import OfNetwork

_SPATIAL = (layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D)


@keras.saving.register_keras_serializable(package="tf_ensembles")
class MemberDropout(layers.Layer):
    """Dropout that leaves out the same units for all examples of a member, in inference, too.

    Takes `[members * batch, ...]` and leaves out units by a function of (seed, member, place, unit).

    Args:
        rate: the share that is left out.
        place: the layer's number in its model.
        seed: decides the units.
        spatial: whether whole channels are left out.
    """

    def __init__(self, rate: float, place: int, seed: int, spatial: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate, self.place, self.seed, self.spatial = float(rate), int(place), int(seed), bool(spatial)
        self.members = Hidden(1)  # How many are run now: what holds the layer says.

    def call(self, inputs: Any) -> Any:
        """Returns the inputs with each member's units left out, and the others scaled up."""
        count, shape = self.members.value, inputs.shape
        units = [1] * (len(shape) - 2) + [shape[-1]] if self.spatial else list(shape[1:])
        size = int(np.prod(units))
        drawn = draws.uniform(self.seed, [self.place], tf.range(count), size, draws.Purpose.DROPPED)[0]
        kept = tf.cast(drawn >= self.rate, inputs.dtype) / (1.0 - self.rate)
        parts = tf.reshape(inputs, [count, -1, *[-1 if s is None else s for s in shape[1:]]])
        return tf.reshape(parts * tf.reshape(kept, [count, 1, *units]), tf.shape(inputs))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the input."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {"rate": self.rate, "place": self.place, "seed": self.seed, "spatial": self.spatial}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="tf_ensembles")
class MCDropout(OfNetwork):
    """A trained Keras model with dropout, asked `num_members` times with units left out, under an ensemble's contract.

    A member leaves out the same units for every example, so that it is a function, and joint predictions mean
    something. Which units is a function of the seed. Batch norm and all else run in inference mode.

    Args:
        model: a trained functional or Sequential model with `Dropout` or `SpatialDropout` layers; it is copied. Of one
            that was compiled, the loss says what outputs are.
        num_members: K.
        seed: decides the units.
        outputs: what the model returns, as `tfe.Ensemble` takes it.
    """

    def __init__(
        self, model: keras.Model, num_members: int = 30, seed: int = 0, outputs: str = "auto", **kwargs: Any
    ) -> None:
        super().__init__(num_members, seed, outputs, **kwargs)
        self._take(model, "a trained Keras model", lambda given: _with_member_dropout(given, self.seed))
        self.network.trainable = False

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns member outputs `[batch, members, outputs]`."""
        for layer in _dropped(self.network):
            layer.members = Hidden(self.num_members)
        return self._folded(inputs, training=False)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: the model is trained first."""
        raise ValueError("Expected fit on the Keras model, before tfe.MCDropout(model). Received: fit on an MCDropout")


def _dropped(model: keras.Model) -> list[Any]:
    return [layer for layer in keras_private.all_layers(model) if isinstance(layer, MemberDropout)]


def _with_member_dropout(model: keras.Model, seed: int) -> keras.Model:
    """Returns a copy of a model with layers of ours in the place of its dropout."""
    if _dropped(model):  # From a file.
        return model
    for layer in keras_private.all_layers(model):
        hidden = [getattr(layer, name, 0.0) for name in ("dropout", "recurrent_dropout")]
        if isinstance(layer, layers.AlphaDropout | layers.GaussianDropout | layers.GaussianNoise) or any(
            isinstance(rate, float) and rate > 0.0 for rate in hidden
        ):
            raise ValueError(
                "Expected Dropout or SpatialDropout layers. Received: "
                f"{layer.name}, a {type(layer).__name__}, whose noise no member can keep"
            )
    places: list[str] = []

    def replace(layer: Any) -> Any:
        if isinstance(layer, (layers.Dropout, *_SPATIAL)):
            places.append(layer.name)
            if getattr(layer, "noise_shape", None) is not None and type(layer) is layers.Dropout:
                raise ValueError(f"Expected Dropout without a noise_shape. Received: {layer.name}")
            spatial = isinstance(layer, _SPATIAL)
            return MemberDropout(layer.rate, len(places), seed, spatial, name=layer.name, dtype=layer.dtype_policy)
        return type(layer).from_config(layer.get_config())

    try:
        copied = keras.models.clone_model(model, clone_function=replace, recursive=True)
    except ValueError as error:
        if str(error).startswith("Expected"):
            raise
        raise ValueError(
            f"Expected a functional or Sequential model. Received: {type(model).__name__}, which Keras cannot clone"
        ) from error
    if not places:
        raise ValueError("Expected a model with Dropout layers. Received: one without any")
    copied.set_weights(model.get_weights())
    return copied
