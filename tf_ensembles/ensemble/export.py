"""An ensemble as a TensorFlow SavedModel, which runs without this package."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import draws, files
from tf_ensembles.ensemble import outputs, portable
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.metrics.kinds import Kind


def export_saved_model(model: Any, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes the ensemble as one SavedModel and returns its path. An earlier export at `path` is replaced.

    The signatures take `inputs` (for dict inputs: one argument per key) with any batch size:
      serving_default   `probabilities` `[batch, classes]` of the mixture; `mean` `[batch, targets]` for a regression
      members           `logits` `[batch, members, classes]`: what `predict` returns
      sample            also takes `key`, an int64 scalar: `probabilities` of one member, the same for the same key
      uncertainty       `total`, `aleatoric`, `epistemic` `[batch]` in nats; variances `[batch]` for a regression
    Members that diverged in training are left out of all but `members`.
    """
    if not (isinstance(model, keras.Model) and hasattr(model, "input_specs")):
        raise ValueError(f"Expected a tfe.Ensemble. Received: {type(model)}")
    target = pathlib.Path(path)
    if target.exists() and not (target / "saved_model.pb").exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"Expected a new folder or an earlier export. Received: {target}, which holds something else")
    signature = _input_signature(model)
    archive = keras.export.ExportArchive()
    archive.track(model)
    key = tf.TensorSpec([], tf.int64, name="key")
    endpoints = _Endpoints(model)
    archive.add_endpoint("serving_default", _named(endpoints.mixture, signature), input_signature=signature)
    archive.add_endpoint("members", _named(endpoints.members, signature), input_signature=signature)
    archive.add_endpoint("sample", _named(endpoints.sample, [*signature, key]), input_signature=[*signature, key])
    archive.add_endpoint("uncertainty", _named(endpoints.uncertainty, signature), input_signature=signature)
    with files.atomic_path(target) as temporary:
        archive.write_out(str(temporary), verbose=False)
    return target


class _Endpoints:
    """What each signature computes, from a structure of inputs."""

    def __init__(self, model: Any) -> None:
        self._model, self._kind = model, outputs.require(model.kind, model._member_loss)
        self._healthy = np.flatnonzero(~model.diverged)
        if not len(self._healthy):
            raise ValueError("Expected at least one member that has not diverged. Received: none")

    def _predictions(self, x: Any) -> tf.Tensor:
        """Probabilities, or values, of the healthy members, `[batch, members, outputs]`."""
        raw = outputs.of_members(self._model(x, training=False), self._healthy)
        return outputs.two_columns(self._kind, outputs.member_probabilities(self._kind, raw))

    def _result(self, prediction: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"mean" if self._kind is Kind.VALUES else "probabilities": prediction}

    def mixture(self, x: Any) -> dict[str, tf.Tensor]:
        return self._result(tf.reduce_mean(self._predictions(x), axis=1))

    def members(self, x: Any) -> dict[str, tf.Tensor]:
        return {"logits": self._model(x, training=False)}

    def sample(self, x: Any, key: tf.Tensor) -> dict[str, tf.Tensor]:
        draw = portable.uniform(self._model.seed, key, draws.Purpose.SERVED_MEMBER)
        member = tf.cast(draw * len(self._healthy), tf.int32)
        return self._result(tf.gather(self._predictions(x), member, axis=1))

    def uncertainty(self, x: Any) -> dict[str, tf.Tensor]:
        if self._kind is Kind.VALUES:
            predictions = self._predictions(x)
            # Members give means only: their spread is epistemic, and the noise of the targets is not modeled.
            spread = tf.reduce_sum(tf.math.reduce_variance(predictions, axis=1), axis=-1)
            return {"total": spread, "aleatoric": tf.zeros_like(spread), "epistemic": spread}
        logits = kinds.as_logits_tensor(outputs.of_members(self._model(x, training=False), self._healthy), self._kind)
        total, aleatoric = likelihood.entropies_tensor(logits)
        return {"total": total, "aleatoric": aleatoric, "epistemic": tf.maximum(total - aleatoric, 0.0)}


def _input_signature(model: Any) -> list[tf.TensorSpec]:
    """One spec per input, named by its key for dict inputs."""
    specs = model.input_specs()
    if isinstance(specs, dict):
        return [tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in specs.items()]
    if isinstance(specs, list):
        return [tf.TensorSpec(shape, dtype, name=f"inputs_{i}") for i, (shape, dtype) in enumerate(specs)]
    return [tf.TensorSpec(specs[0], specs[1], name="inputs")]


def _named(function: Any, signature: list[tf.TensorSpec]) -> Any:
    """Returns `function` of the model's input structure as a function of flat tensors."""
    names = [spec.name for spec in signature if spec.name != "key"]

    def flat(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tensors[: len(names)]
        rest = tensors[len(names) :]
        if names == ["inputs"]:
            return function(values[0], *rest)
        if names[0] == "inputs_0":
            return function(list(values), *rest)
        return function(dict(zip(names, values, strict=True)), *rest)

    return flat
