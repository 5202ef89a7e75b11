"""Ready-made prior functions, and the layer that gives any prior function a unit.

    tfe.PriorFunction(tfe.priors.fourier(length_scale=1.0), scale=1.0)    # for vectors: smooth, the same everywhere
    tfe.PriorFunction(tfe.priors.mlp(hidden=(50, 50)), scale=1.0)         # the testbed's prior, with random biases
    tfe.PriorFunction(tfe.priors.conv(), scale=1.0)                       # the paper's prior for images
    tfe.PriorFunction("auto", scale=1.0)                                  # whichever suits the data

A recipe knows how to make a prior; what it is made for, the inputs and the number of outputs, is learned from the first
data (`Sight`). Inputs are standardized by constants in the prior, the same for all members, so `length_scale` is in
standard deviations of the inputs. Outputs are standardized by `Standardize`, for each member by itself, so that `scale`
is a standard deviation in units of the output: logits, or the target's own.

Shapes: inputs `[batch, ...]`, outputs `[batch, outputs]`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tf_ensembles import checks
from tf_ensembles.base import Array

# A feature that varies less than this share of its size is a constant.
_CONSTANT = 1e-6
_MOST_UNITS = 10**7  # of a layer


@dataclasses.dataclass(frozen=True)
class Input:
    """One input of a model, as the first data show it."""

    shape: tuple[int | None, ...]  # without the batch
    dtype: str
    mean: Array | None = None  # of each feature, over examples and over all axes but the last; None for ids and text
    std: Array | None = None
    vocabulary: int | None = None  # of token ids: their number, if the member has an embedding that says it
    name: str | None = None  # of one of several inputs

    @property
    def is_ids(self) -> bool:
        """Whether these are token ids rather than numbers."""
        return np.issubdtype(np.dtype(self.dtype), np.integer) and self.vocabulary is not None


@dataclasses.dataclass(frozen=True)
class Sight:
    """What a prior is made for: the inputs, in the structure in which a member takes them, and the outputs."""

    inputs: Any  # an `Input`, or a dict, list or tuple of them
    num_outputs: int

    def leaves(self) -> list[Input]:
        """Returns the inputs in order."""
        return list(keras.tree.flatten(self.inputs))


class Recipe:
    """Makes a prior for what was seen of the data."""

    is_recipe = True

    def __call__(self, sight: Sight) -> keras.Model:
        """Returns a new prior for what was seen."""
        raise AttributeError(f"{type(self).__name__} makes no prior")


@dataclasses.dataclass(frozen=True)
class Mlp(Recipe):
    """A recipe; see `mlp`."""

    hidden: tuple[int, ...] = (50, 50)
    activation: str = "relu"

    def __call__(self, sight: Sight) -> keras.Model:
        """Returns a new prior for what was seen."""
        inputs, features = _features(sight)
        for size in self.hidden:
            features = _random_dense(features, size, self.activation)
        return keras.Model(inputs, _random_dense(features, sight.num_outputs))


@dataclasses.dataclass(frozen=True)
class Fourier(Recipe):
    """A recipe; see `fourier`."""

    length_scale: float = 1.0
    num_features: int = 100

    def __call__(self, sight: Sight) -> keras.Model:
        """Returns a new prior for what was seen."""
        inputs, features = _features(sight)
        # In d standardized dimensions two examples are sqrt(2 d) apart: the length scale is that of one dimension.
        width = self.length_scale * math.sqrt(int(features.shape[-1]))
        waves = keras.layers.Dense(
            self.num_features,
            kernel_initializer=keras.initializers.RandomNormal(stddev=1.0 / width),
            bias_initializer=keras.initializers.RandomUniform(0.0, 2.0 * math.pi),
        )(features)
        amplitudes = keras.initializers.RandomNormal(stddev=math.sqrt(2.0 / self.num_features))
        return keras.Model(
            inputs, keras.layers.Dense(sight.num_outputs, kernel_initializer=amplitudes)(Cosine()(waves))
        )


@dataclasses.dataclass(frozen=True)
class Conv(Recipe):
    """A recipe; see `conv`."""

    channels: tuple[int, ...] = (4, 8, 4)
    kernel_size: int = 5

    def __call__(self, sight: Sight) -> keras.Model:
        """Returns a new prior for what was seen."""
        (leaf,) = one = sight.leaves()
        dims = len(leaf.shape) - 1
        if len(one) != 1 or leaf.is_ids or dims not in (1, 2, 3):
            raise ValueError(
                "Expected one input [length, features] or [height, width, channels] for a convolutional prior. "
                f"Received: {[entry.shape for entry in one]}; tfe.priors.mlp takes any"
            )
        inputs = keras.Input(leaf.shape, dtype=leaf.dtype, name=leaf.name)
        features = _standardized(inputs, leaf)
        layer = {1: keras.layers.Conv1D, 2: keras.layers.Conv2D, 3: keras.layers.Conv3D}[dims]
        for count in self.channels:
            fan_in = int(features.shape[-1]) * self.kernel_size**dims
            features = layer(count, self.kernel_size, padding="same", activation="relu", **_random(fan_in))(features)
        return keras.Model(inputs, _random_dense(_flat(features), sight.num_outputs))


@dataclasses.dataclass(frozen=True)
class Auto(Recipe):
    """The recipe behind `"auto"`: `conv` for images and sequences of numbers, `fourier` for everything else."""

    length_scale: float = 1.0

    def __call__(self, sight: Sight) -> keras.Model:
        """Returns a new prior for what was seen."""
        leaves = sight.leaves()
        spatial = len(leaves) == 1 and len(leaves[0].shape) in (2, 3, 4) and not leaves[0].is_ids
        recipe = Conv() if spatial else Fourier(self.length_scale)
        return recipe(sight)


def mlp(hidden: Sequence[int] = (50, 50), activation: str = "relu") -> Mlp:
    """Returns the recipe of a random MLP with random biases: bends lie everywhere, not at the origin only.

    Args:
        hidden: sizes of the hidden layers.
        activation: a name that Keras knows.
    """
    sizes = checks.integers("hidden", hidden, 1, _MOST_UNITS)
    try:
        known = isinstance(activation, str) and keras.activations.get(activation) is not None
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"Expected an activation, a name that Keras knows. Received: {checks.shown(activation)}")
    return Mlp(sizes, activation)


def fourier(length_scale: float = 1.0, num_features: int = 100) -> Fourier:
    """Returns the recipe of random Fourier features: nearly a Gaussian process with an RBF kernel.

    Such a function varies as much far from the data as near them, and tells apart inputs that are more than a
    `length_scale` away from each other.

    Args:
        length_scale: in standard deviations of the inputs.
        num_features: waves; more are closer to a Gaussian process.
    """
    length_scale = checks.number("length_scale", length_scale, checks.SINGLE_BOTH)
    return Fourier(length_scale, checks.integer("num_features", num_features, 1, _MOST_UNITS))


def conv(channels: Sequence[int] = (4, 8, 4), kernel_size: int = 5) -> Conv:
    """Returns the recipe of a small random convolutional network: the paper's prior for images, with random biases.

    Args:
        channels: of the convolutions.
        kernel_size: of each, along every axis.
    """
    sizes = checks.integers("channels", channels, 1, _MOST_UNITS)
    return Conv(sizes, checks.integer("kernel_size", kernel_size, 1, _MOST_UNITS))


# Parts of recipes.


def _random(fan_in: int) -> dict[str, Any]:
    """Initializers of a random layer: outputs keep the size of standardized inputs, biases are as large as they are."""
    deviation = 1.0 / math.sqrt(fan_in)
    return {
        "kernel_initializer": keras.initializers.RandomNormal(stddev=deviation),
        "bias_initializer": keras.initializers.RandomNormal(stddev=1.0),
    }


def _random_dense(features: Any, units: int, activation: str | None = None) -> Any:
    """Returns the output of a dense layer whose initializers follow from its input."""
    return keras.layers.Dense(units, activation=activation, **_random(int(features.shape[-1])))(features)


def _features(sight: Sight) -> tuple[Any, Any]:
    """Returns Keras inputs in the structure of the sight, and one vector of features made of them."""
    made = [keras.Input(leaf.shape, dtype=leaf.dtype, name=leaf.name) for leaf in sight.leaves()]
    parts = [_vector(tensor, leaf) for tensor, leaf in zip(made, sight.leaves(), strict=True)]
    features = parts[0] if len(parts) == 1 else keras.layers.Concatenate()(parts)
    return keras.tree.pack_sequence_as(sight.inputs, made), features


def _vector(tensor: Any, leaf: Input) -> Any:
    if leaf.is_ids:
        table = keras.initializers.RandomNormal(stddev=1.0)
        tensor = keras.layers.Embedding(leaf.vocabulary, 16, embeddings_initializer=table)(tensor)
        while len(tensor.shape) > 3:
            tensor = keras.layers.Flatten()(tensor)
        return keras.layers.GlobalAveragePooling1D()(tensor) if len(tensor.shape) == 3 else tensor
    return _flat(_standardized(tensor, leaf))


def _standardized(tensor: Any, leaf: Input) -> Any:
    if leaf.mean is None or leaf.std is None:
        raise ValueError(
            f"Expected numbers, or token ids that an Embedding of the member takes, as inputs of a ready-made prior. "
            f"Received: {leaf.dtype} of shape {leaf.shape}; build the prior yourself: tfe.PriorFunction(build, scale)"
        )
    mean, std = np.asarray(leaf.mean, np.float64), np.asarray(leaf.std, np.float64)
    std = np.where(std > _CONSTANT * np.maximum(np.abs(mean), 1e-30), std, 1.0)
    return keras.layers.Rescaling((1.0 / std).tolist(), (-mean / std).tolist())(tensor)


def _flat(tensor: Any) -> Any:
    if None in tensor.shape[1:]:
        pooling = {3: keras.layers.GlobalAveragePooling1D, 4: keras.layers.GlobalAveragePooling2D}
        return pooling[len(tensor.shape)]()(tensor)
    return keras.layers.Flatten()(tensor) if len(tensor.shape) > 2 else tensor


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Cosine(keras.layers.Layer):
    """The cosine of every input."""

    def call(self, inputs: Any) -> Any:
        """Returns the cosines."""
        return keras.ops.cos(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the input."""
        return input_shape


# The unit of a prior.


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Standardize(keras.layers.Layer):
    """Shifts and divides every output by constants: `(x - mean) / std`, each `[outputs]`.

    The last layer of a normalized prior. The constants are weights, drawn once from the first data, so that each
    member has its own, and they are saved with the model.
    """

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the constants; until they are set, the layer changes nothing."""
        shape = (input_shape[-1],)
        self.mean = self.add_weight(shape=shape, initializer="zeros", trainable=False, name="mean")
        self.std = self.add_weight(shape=shape, initializer="ones", trainable=False, name="std")

    def call(self, inputs: Any) -> Any:
        """Returns the standardized inputs."""
        dtype = inputs.dtype
        return (inputs - keras.ops.cast(self.mean, dtype)) / keras.ops.cast(self.std, dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the input."""
        return input_shape


def standardized(model: keras.Model, x: Any) -> keras.Model:
    """Returns the model with its outputs standardized on data: mean 0 and standard deviation 1, each output by itself.

    Args:
        model: a prior, built or not.
        x: examples in the structure of its inputs; the constants come from these.
    """
    values = np.asarray(keras.ops.convert_to_numpy(model(x, training=False)), np.float64)
    if len(values) < 2:
        raise ValueError(
            "Expected at least 2 examples to standardize a prior on; give the training data to model.adapt(x) first. "
            f"Received: {len(values)}"
        )
    mean, std = values.mean(0), values.std(0)
    if not (np.isfinite(std).all() and (std > _CONSTANT * np.maximum(np.abs(mean), 1e-30)).all()):
        raise ValueError(
            "Expected a prior that varies over the data in every output. Received: standard deviations "
            f"{np.array2string(std, precision=3, threshold=8)}"
        )
    last = Standardize(name="standardize")
    made = [
        keras.Input(leaf.shape[1:], dtype=keras.backend.standardize_dtype(leaf.dtype), name=name)
        for name, leaf in zip(_names(x), keras.tree.flatten(x), strict=True)
    ]
    inputs = keras.tree.pack_sequence_as(x, made)
    whole = keras.Model(inputs, last(model(inputs)))
    last.mean.assign(mean)
    last.std.assign(std)
    return whole


def _names(x: Any) -> list[str | None]:
    """Returns the names of the leaves of a structure of inputs, in order; None where they have none."""
    # Keras flattens a dict in the order of its keys.
    return [str(key) for key in sorted(x)] if isinstance(x, Mapping) else [None] * len(keras.tree.flatten(x))


def see(x: Any, num_outputs: int, member: keras.Model) -> Sight:
    """Returns what a prior is made for, from examples and a member.

    Args:
        x: examples, an array or a structure of arrays `[examples, ...]`.
        num_outputs: of the member.
        member: a built member; its embeddings say how many token ids there are.
    """
    embeddings = [layer for layer in member._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    vocabulary = max((int(layer.input_dim) for layer in embeddings), default=None)
    made = []
    for name, leaf in zip(_names(x), keras.tree.flatten(x), strict=True):
        array = np.asarray(leaf)
        if array.dtype.kind in "iu" and vocabulary is not None:
            made.append(Input(array.shape[1:], str(array.dtype), vocabulary=vocabulary, name=name))
        elif array.dtype.kind in "iufb":
            rows = array.reshape(-1, array.shape[-1] if array.ndim > 1 else 1).astype(np.float64)
            made.append(Input(array.shape[1:], str(array.dtype), rows.mean(0), rows.std(0), name=name))
        else:
            made.append(Input(array.shape[1:], str(array.dtype), name=name))
    return Sight(keras.tree.pack_sequence_as(x, made), num_outputs)
