"""Whether data look as networks want them: around zero, and of a spread around one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array

_SMALL, _LARGE = 0.1, 10.0
# A target's mean may be this many standard deviations from 0: members start around 0.
_FAR = 3.0
_SCALES_ITSELF = (
    keras.layers.Normalization,
    keras.layers.BatchNormalization,
    keras.layers.LayerNormalization,
    keras.layers.Rescaling,
    keras.layers.Embedding,
)


def remarks(build_member: Any, x: Any, y: Array, regression: bool) -> Iterator[str]:
    """Yields what is wrong with the scales of inputs `[batch, ...]` and of a regression's targets `[batch, ...]`."""
    # A model instead of a function is refused by `Ensemble`.
    member = build_member() if callable(build_member) and not isinstance(build_member, keras.Model) else None
    if not any(isinstance(layer, _SCALES_ITSELF) for layer in _layers(member)):
        for leaf in tf.nest.flatten(x):
            if np.issubdtype(leaf.dtype, np.number):
                yield from _about_inputs(np.asarray(leaf, np.float64))
    if regression:
        yield from about_targets(np.asarray(y, np.float64).reshape(len(y), -1))


def _layers(model: Any) -> Iterator[Any]:
    for layer in getattr(model, "layers", []):
        yield layer
        yield from _layers(layer)


def _about_inputs(x: Array) -> Iterator[str]:
    # Columns of a table are features of their own; pixels and time steps are alike.
    columns = x.reshape(len(x), -1) if x.ndim <= 2 else x.reshape(-1, 1)
    mean, std = np.abs(columns.mean(axis=0)), columns.std(axis=0)
    varying = std[std > 0.0]
    wide = int(np.sum((std > _LARGE) | (mean > _LARGE)))
    tell = "standardize them, or put an adapted keras.layers.Normalization first in build_member"
    if wide:
        yield (
            f"inputs are not scaled: {wide} of {len(std)} features have a mean or standard deviation above {_LARGE:g}, "
            f"up to {max(mean.max(), std.max()):.3g}; {tell}"
        )
    elif len(varying) and np.median(varying) < _SMALL:
        yield f"inputs are not scaled: their median standard deviation is {np.median(varying):.2g}; {tell}"


def about_targets(y: Array) -> Iterator[str]:
    """Yields what is wrong with the scales of targets `[batch, targets]`."""
    mean, std = y.mean(axis=0), y.std(axis=0)
    if np.any(std > _LARGE) or np.any(std < _SMALL) or np.any(np.abs(mean) > _FAR * np.maximum(std, 1.0)):
        worst = int(np.argmax(np.maximum(np.abs(mean), std)))
        yield (
            f"targets are not scaled: mean {mean[worst]:.3g}, standard deviation {std[worst]:.3g}, while members start "
            "around 0 and prior scales are in units of the targets; train on (y - mean) / std, with noise_std / std"
        )
