"""An ensemble as a TensorFlow SavedModel, which runs without this package."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import draws, files
from tf_ensembles.ensemble import outputs
from tf_ensembles.ensemble.members import structure
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.regression import components, distribution, heads


def export_saved_model(model: Any, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes the ensemble as one SavedModel and returns its path. An earlier export at `path` is replaced.

    The signatures take `inputs` (for dict inputs: one argument per key) with any batch size:
      serving_default   `probabilities` `[batch, classes]` of the mixture
      members           `logits` `[batch, members, classes]`: what `predict` returns
      sample            also takes `key`, an int64 scalar: `probabilities` of one member, the same for the same key
      uncertainty       `total`, `aleatoric`, `epistemic` `[batch]` in nats
    Those of a regression, the same numbers as of `predict_distribution`:
      serving_default   `mean` and `std` `[batch, targets]` of the mixture
      members           `logits` as above, and `mean` and `std` `[batch, members, targets]`
      sample            `mean` of one member, a function without noise; and `value`, a draw with noise, from the joint
                        distribution of the batch: what `joint_sample(keys=[key])` draws
      uncertainty       `total`, `aleatoric`, `epistemic` `[batch]`: variances, summed over targets
      quantiles         also takes `levels`, float32 `[levels]`: `quantiles` `[batch, targets, levels]`
    (`value` and `quantiles` are for TensorFlow itself: converters do not know all of their operations.)
    Members that predict values and whose noise was not estimated have means and `epistemic` only; those that predict
    quantiles have `quantiles` `[batch, targets, levels]` at their own levels in place of `std`, and no noise to draw.
    Of several outputs, each has these under its name: `class_probabilities`, `value_mean`. Where an example has
    positions, as a map or a sequence does, shapes have them after the batch, and after the members: `[batch, height,
    width, classes]`; so has `uncertainty`, `[batch, height, width]`, and there are no `value` and `quantiles`.
    Members that diverged in training are left out of all but `members`. What `tfe.calibrate` returns has the same
    signatures; a conformal one has also:
      set               also takes `key`, as `predict_set` does, and for groups `group`, int64 `[batch]`, their numbers
                        in `model.names`: `set` `[batch, classes]` of bool
      interval          `lower` and `upper` `[batch, targets]` of a regression
    """
    if not (isinstance(model, keras.Model) and hasattr(model, "more_signatures")):
        raise ValueError(f"Expected a tfe.Ensemble. Received: {type(model)}")
    target = pathlib.Path(path)
    if target.exists() and not (target / "saved_model.pb").exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"Expected a new folder or an earlier export. Received: {target}, which holds something else")
    signature = _input_signature(model)
    archive = keras.export.ExportArchive()
    archive.track(model)
    key = tf.TensorSpec([], tf.int64, name="key")
    endpoints = _Endpoints(model)

    def add(name: str, function: Any, *more: tf.TensorSpec) -> None:
        archive.add_endpoint(name, _named(function, signature), input_signature=[*signature, *more])

    add("serving_default", endpoints.mixture)
    add("members", endpoints.members)
    add("sample", endpoints.sample, key)
    add("uncertainty", endpoints.uncertainty)
    if endpoints.has_quantiles:
        add("quantiles", endpoints.quantiles, tf.TensorSpec([None], tf.float32, name="levels"))
    for name, function, more in model.more_signatures():
        add(name, function, *more)
    with files.atomic_path(target) as temporary:
        archive.write_out(str(temporary), verbose=False)
    return target


def draw_member(seed: int, key: tf.Tensor, healthy: Any) -> tf.Tensor:
    """Returns the index of the member that a key draws among those that are healthy, an int32 scalar.

    Args:
        seed: the ensemble's.
        key: int64 scalar.
        healthy: indices of the members that have not diverged.
    """
    healthy = tf.convert_to_tensor(healthy, tf.int32)
    draw = draws.portable_uniform(seed, key, draws.Purpose.SERVED_MEMBER)
    return tf.gather(healthy, tf.cast(draw * tf.cast(tf.size(healthy), draw.dtype), tf.int32))


class _Endpoints:
    """What each signature computes, from a structure of inputs: that of each output, by its name if there are more."""

    def __init__(self, model: Any) -> None:
        self._model, self._healthy = model, np.flatnonzero(~model.diverged)
        if not len(self._healthy):
            raise ValueError("Expected at least one member that has not diverged. Received: none")
        self._parts = [_Endpoint(output, model.seed) for output in model.outputs_said()]

    @property
    def has_quantiles(self) -> bool:
        """Whether one of the outputs has quantiles at any level."""
        return any(part.has_quantiles for part in self._parts)

    def _each(self, x: Any, healthy: bool, ask: Callable[[_Endpoint, tf.Tensor], dict[str, tf.Tensor]]) -> Any:
        def ask_part(part: _Endpoint, raw: tf.Tensor) -> dict[str, tf.Tensor]:
            return ask(part, outputs.of_members(raw, self._healthy) if healthy else raw)

        return self._by_name(self._model(x, training=False), ask_part)

    def _by_name(self, raw: Any, ask: Callable[[_Endpoint, tf.Tensor], dict[str, tf.Tensor]]) -> dict[str, tf.Tensor]:
        named = {}
        for part, each in zip(self._parts, structure.leaves(raw), strict=True):
            prefix = "" if len(self._parts) == 1 else f"{part.name}_"
            named.update({f"{prefix}{key}": value for key, value in ask(part, each).items()})
        return named

    def mixture(self, x: Any) -> dict[str, tf.Tensor]:
        return self._each(x, True, _Endpoint.mixture)

    def members(self, x: Any) -> dict[str, tf.Tensor]:
        return self._each(x, False, _Endpoint.members)

    def sample(self, x: Any, key: tf.Tensor) -> dict[str, tf.Tensor]:
        raw = self._model._call_member(x, draw_member(self._model.seed, key, self._healthy))
        return self._by_name(raw, lambda part, outputs: part.sample(outputs, key))

    def quantiles(self, x: Any, levels: tf.Tensor) -> dict[str, tf.Tensor]:
        inside = tf.debugging.assert_equal(
            tf.reduce_all((levels > 0.0) & (levels < 1.0)), True, "Expected levels in (0, 1)"
        )
        with tf.control_dependencies([inside]):
            return self._each(x, True, lambda part, raw: part.quantiles(raw, levels))

    def uncertainty(self, x: Any) -> dict[str, tf.Tensor]:
        return self._each(x, True, _Endpoint.uncertainty)


class _Endpoint:
    """What signatures say of one output, from members' outputs `[batch, members, ..., outputs]`."""

    def __init__(self, output: outputs.Output, seed: int) -> None:
        self._output, self._kind, self._seed, self.name = output, output.require(), seed, output.name
        self._head: Any = output.head

    @property
    def has_distribution(self) -> bool:
        """Whether members predict a distribution of numbers, noise included."""
        head = self._head
        return head is not None and not isinstance(head, heads.Quantiles) and head != heads.Values()

    @property
    def has_quantiles(self) -> bool:
        """Whether the mixture's quantiles are known at any level."""
        return self.has_distribution and not self._output.has_positions

    def _predictions(self, raw: tf.Tensor) -> tf.Tensor:
        """Probabilities, or means, of members' outputs, `[batch, members, ..., outputs]`."""
        return outputs.two_columns(self._kind, outputs.member_probabilities(self._kind, raw, self._head))

    def _moments(self, raw: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Mean, aleatoric and epistemic variance of the mixture, `[batch, ..., targets]`."""
        variances = components.member_variances(self._head.components(raw))
        return components.moments(self._head.means(raw), variances)

    def mixture(self, raw: tf.Tensor) -> dict[str, tf.Tensor]:
        if self.has_distribution:
            mean, aleatoric, epistemic = self._moments(raw)
            return {"mean": mean, "std": tf.sqrt(aleatoric + epistemic)}
        mean = tf.reduce_mean(self._predictions(raw), axis=1)
        if isinstance(self._head, heads.Quantiles):
            quantiles = tf.reduce_mean(self._head.quantiles(raw), axis=1)
            return {"mean": mean, "quantiles": tf.linalg.matrix_transpose(quantiles)}
        return {"probabilities" if self._head is None else "mean": mean}

    def members(self, raw: tf.Tensor) -> dict[str, tf.Tensor]:
        if not self.has_distribution:
            return {"logits": raw}
        variances = components.member_variances(self._head.components(raw))
        return {"logits": raw, "mean": self._head.means(raw), "std": tf.sqrt(variances)}

    def sample(self, raw: tf.Tensor, key: tf.Tensor) -> dict[str, tf.Tensor]:
        """What one member says, from its outputs `[batch, 1, ..., outputs]`."""
        if self._head is None:
            return {"probabilities": self._predictions(raw)[:, 0]}
        chosen = raw[:, 0]
        mean = self._head.means(chosen)
        if not self.has_quantiles:
            return {"mean": mean}
        uniform = distribution.joint_uniform(self._seed, key[None], tf.range(tf.shape(raw)[0]), mean.shape[-1])
        return {"mean": mean, "value": components.draw(self._head.components(chosen), uniform[0], draws.to_normal)}

    def quantiles(self, raw: tf.Tensor, levels: tf.Tensor) -> dict[str, tf.Tensor]:
        if not self.has_quantiles:
            return {}
        return {"quantiles": tf.cast(components.quantile(self._head.components(raw), levels), tf.float32)}

    def uncertainty(self, raw: tf.Tensor) -> dict[str, tf.Tensor]:
        if self.has_distribution:
            aleatoric, epistemic = (tf.reduce_sum(part, axis=-1) for part in self._moments(raw)[1:])
            return {"total": aleatoric + epistemic, "aleatoric": aleatoric, "epistemic": epistemic}
        if self._head is not None:
            # Members give means only: their spread is epistemic, and nobody knows the noise of the targets.
            return {"epistemic": tf.reduce_sum(tf.math.reduce_variance(self._predictions(raw), axis=1), axis=-1)}
        rank, shape = len(raw.shape), tf.shape(raw)
        if rank > 3:  # Positions are examples here.
            raw = tf.transpose(raw, [0, *range(2, rank - 1), 1, rank - 1])
            raw = tf.reshape(raw, [-1, raw.shape[-2], raw.shape[-1]])
        total, aleatoric = likelihood.entropies_tensor(kinds.as_logits_tensor(raw, self._kind))
        found = {"total": total, "aleatoric": aleatoric, "epistemic": tf.maximum(total - aleatoric, 0.0)}
        if rank == 3:
            return found
        positions = tf.concat([shape[:1], shape[2:-1]], axis=0)
        return {name: tf.reshape(value, positions) for name, value in found.items()}


def _input_signature(model: Any) -> list[tf.TensorSpec]:
    """One spec per input, named by its key for dict inputs."""
    specs = model.input_specs()
    if isinstance(specs, dict):
        return [tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in specs.items()]
    if isinstance(specs, list):
        return [tf.TensorSpec(shape, dtype, name=f"inputs_{i}") for i, (shape, dtype) in enumerate(specs)]
    return [tf.TensorSpec(specs[0], specs[1], name="inputs")]


def _named(function: Any, signature: list[tf.TensorSpec]) -> Any:
    """Returns `function` of the model's input structure, and of what else it takes, as a function of flat tensors."""
    names = [spec.name for spec in signature]

    def flat(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        values = tensors[: len(names)]
        rest = tensors[len(names) :]
        if names == ["inputs"]:
            return function(values[0], *rest)
        if names[0] == "inputs_0":
            return function(list(values), *rest)
        return function(dict(zip(names, values, strict=True)), *rest)

    return flat
