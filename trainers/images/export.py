"""An ensemble assembled from the files of its members: as a `tfe.Ensemble`, and from there as a SavedModel."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np

import tf_ensembles as tfe
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images import vgg
from tf_ensembles.trainers.images.config import MemberConfig


def load_ensemble(configs: Sequence[MemberConfig], store: str | os.PathLike[str]) -> tfe.Ensemble:
    """Returns trained members as one Keras model: pixels as stored to logits `[batch, members, classes]`.

    It standardizes inside, so it takes what the data set holds (for uint8 data: numbers in 0..255, as float32). It
    computes in float32, whatever the members were trained in.

    Args:
        configs: finished members, alike in all but seed and member, whose weights were kept.
        store: the folder of all members.
    """
    if not configs:
        raise ValueError("Expected at least one member. Received: none")
    files = [member_store.MemberFiles(store, config) for config in configs]
    scales = {config.prior_scale for config in configs}
    widths = {config.width for config in configs}
    if len(scales) > 1 or len(widths) > 1:
        raise ValueError(f"Expected members alike. Received: prior scales {scales}, widths {widths}")
    # The ensemble asks for one model per member, in their order: each is read from its file when it is asked for.
    members, priors = _models(files, "model", _build_member), _models(files, "prior", _build_prior)
    prior = tfe.PriorFunction(lambda: next(priors), scale=scales.pop()) if configs[0].prior_scale else None
    return tfe.Ensemble(lambda: next(members), len(files), prior=prior, seed=configs[0].seed, outputs="logits")


def export_members(
    configs: Sequence[MemberConfig], store: str | os.PathLike[str], path: str | os.PathLike[str]
) -> pathlib.Path:
    """Writes trained members as one SavedModel, with the signatures of `tfe.export_saved_model`; returns its path."""
    return tfe.export_saved_model(load_ensemble(configs, store), path)


def _models(
    files: Sequence[member_store.MemberFiles],
    prefix: str,
    build: Callable[[MemberConfig, member_store.Arrays], keras.Model],
) -> Iterator[keras.Model]:
    for one in files:
        arrays = one.weights()
        model = build(one.config, arrays)
        for variable, value in zip(model.variables, member_store.unpack(arrays, prefix), strict=True):
            variable.assign(value)
        yield model


def _build_member(config: MemberConfig, arrays: member_store.Arrays) -> keras.Model:
    shape = _input_shape(arrays)
    num_classes = len(member_store.unpack(arrays, "model")[-1])  # The last bias.
    return _on_pixels(vgg.build_vgg(shape, num_classes, config.width), arrays)


def _build_prior(config: MemberConfig, arrays: member_store.Arrays) -> keras.Model:
    num_classes = len(member_store.unpack(arrays, "prior")[-1])
    return _on_pixels(vgg.build_conv_prior(_input_shape(arrays), num_classes), arrays)


def _input_shape(arrays: member_store.Arrays) -> tuple[int, ...]:
    return tuple(int(size) for size in arrays["input_shape"])


def _on_pixels(model: keras.Model, arrays: member_store.Arrays) -> keras.Model:
    """Puts the standardization of `image_data.standardize` in front of a model."""
    scale = 255.0 if arrays["pixels_are_bytes"] else 1.0
    mean, std = np.asarray(arrays["mean"]), np.asarray(arrays["std"])
    standardize = keras.layers.Rescaling((1.0 / (scale * std)).tolist(), (-mean / std).tolist())
    return keras.Sequential([keras.Input(_input_shape(arrays)), standardize, model])
