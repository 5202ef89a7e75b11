"""What is frozen in a model, kept beside its configuration.

Keras writes whether each layer is frozen, but loses it for layers within layers of one's own: what they hold is
trainable again in what is read, and setting `trainable = False` once more changes nothing, since it is False already.
"""

from __future__ import annotations

import copy
from typing import Any

import keras

from tf_ensembles.ensemble import keras_private

_LAYERS, _VARIABLES = "tfe_trainable_layers", "tfe_trainable_variables"


def write(model: keras.Model) -> dict[str, Any]:
    """Returns the configuration of a model, and, where layers are frozen, which ones."""
    config: dict[str, Any] = keras.saving.serialize_keras_object(model)
    layers = [bool(layer.trainable) for layer in keras_private.all_layers(model)]
    if all(layers) and model.trainable:
        return config
    return {**config, _LAYERS: layers, _VARIABLES: [bool(variable.trainable) for variable in model.variables]}


def read(config: dict[str, Any], custom_objects: Any = None) -> keras.Model:
    """Returns the model that `write` described."""
    given = copy.deepcopy(config)  # Keras empties the configuration that it reads.
    flags, of_variables = given.pop(_LAYERS, []), given.pop(_VARIABLES, [])
    model = keras.saving.deserialize_keras_object(given, custom_objects=custom_objects)
    layers = keras_private.all_layers(model)
    if len(layers) == len(flags) and len(model.variables) == len(of_variables):
        for layer, flag in zip(layers, flags, strict=True):
            _set(layer, flag)  # Of those within, too, which are set in turn after it.
        for variable, flag in zip(model.variables, of_variables, strict=True):
            variable.trainable = flag
    return model


def freeze(model: keras.Model) -> None:
    """Freezes a model with all that it holds, whatever Keras remembers of it."""
    for layer in keras_private.all_layers(model):
        _set(layer, False)


def _set(layer: keras.layers.Layer, flag: bool) -> None:
    layer.trainable = not flag  # What is set to what it was is passed over, with all layers within.
    layer.trainable = flag
