"""What is asked of a trained ensemble: its mixture, its distribution, how good it is jointly, and files to serve it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import checks
from tf_ensembles.base import Array
from tf_ensembles.ensemble import batches, data, export, keras_private, outputs
from tf_ensembles.ensemble.members import structure
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.members.structure import Structure
from tf_ensembles.ensemble.outputs import Output
from tf_ensembles.methods import selection
from tf_ensembles.metrics import functions, kinds, likelihood
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import heads, noise
from tf_ensembles.regression.distribution import PredictiveDistribution

# Rows at a time where nothing is said.
_ROWS = 1024


class Served(keras.Model):
    """A Keras model of members that has `outputs_said`, `diverged` and `predict`, as `Ensemble` does."""

    _structure: Structure = Structure()  # of what a member returns
    _member_function: Hidden | None = None  # `_call_member`, compiled
    _outputs_argument: Any = "auto"  # what outputs are said to be
    _output_losses: tuple[Any, ...] = (None,)  # of each output
    _output_weights: tuple[float, ...] = (1.0,)
    _output_heads: tuple[Any, ...] = (None,)  # what is remembered of each: the noise of values, or what a file says

    def outputs_said(self) -> list[Output]:
        """Returns what is known of each output of members."""
        of_each = self._output_losses, self._output_weights, self._output_heads
        return outputs.describe(self._structure, self._outputs_argument, *of_each)

    @property
    def kind(self) -> Any:
        """What member outputs are, a `Kind`; None where neither `outputs` nor the loss says so.

        Of several outputs, in the structure in which a member returns them.
        """
        return self._structure.pack([output.kind for output in self.outputs_said()])

    @property
    def head(self) -> Any:
        """What the columns of a regression mean, of `tf_ensembles.regression.heads`; None for classes.

        Of several outputs, in the structure in which a member returns them.
        """
        return self._structure.pack([output.head for output in self.outputs_said()])

    @property
    def _member_loss(self) -> Any:
        return self._structure.pack(self._output_losses)

    def _take_structure(self, said: Structure) -> None:
        """Takes in what members return, which those that know no inputs say only when they have seen data."""
        if len(said) != len(self._structure):
            if self._output_losses != (None,) * len(self._structure):
                raise ValueError(
                    "Expected compile after members with several outputs have seen data: call model.adapt(x) first. "
                    f"Received: a compiled ensemble whose members turn out to return {list(said.names)}"
                )
            self._output_losses = self._output_heads = (None,) * len(said)
            self._output_weights = (1.0,) * len(said)
        self._structure = said
        outputs.split_argument(said, self._outputs_argument)  # Raises where names are unknown.

    def _written_heads(self, known: Sequence[Any]) -> dict[str, Any]:
        """Returns the part of `get_config` that `_read_heads` reads."""
        if not any(known):
            return {}
        written = [heads.write(head) for head in known]
        return {"head": written[0] if self._structure.is_one else written}

    def _read_heads(self, written: Any) -> None:
        """Remembers the heads of a file."""
        if written is not None:
            self._output_heads = tuple(map(heads.read, written if isinstance(written, list) else [written]))

    def only(self, name: str) -> Any:
        """Returns one output of several as a model with that output alone, for all that is asked of one at a time.

        `tfe.calibrate(model.only("class"), x, y["class"])`, for example. It is not trained: this ensemble is.

        Args:
            name: of the output.
        """
        from tf_ensembles.decisions.wrapped import OneOutput

        return OneOutput(self, name)

    def _members_said(self, x: Any, batch_size: int | None) -> list[Array]:
        """Returns what healthy members say, a list of outputs `[batch, members, ...]`."""
        said = structure.leaves(self.predict(x, batch_size=batch_size, verbose=0))
        return [np.asarray(part)[:, _healthy(self)] for part in said]

    def predict_proba(self, x: Any, batch_size: int | None = None) -> Any:
        """Returns the mixture's prediction: probabilities `[batch, ..., classes]`, or means `[batch, ..., targets]`.

        Where an example has several labels, these are their probabilities, `[batch, ..., labels]`. Several outputs come
        in the structure in which a member returns them; those of which nothing is known, without a loss, as None.
        """
        self._require_kinds()
        return self._mixtures(self._members_said(x, batch_size))

    def sample(self, x: Any, key: int) -> Any:
        """Returns the prediction of one member, drawn by `key`: a function from the ensemble, for Thompson sampling.

        Probabilities `[batch, ..., classes]` or means `[batch, ..., targets]`, as of `predict_proba`. The same key
        draws the same member for every batch, here and in the `sample` signature of the export. Where members are
        stacked, it costs what one member does.

        Args:
            x: one batch of inputs, `[batch, ...]`.
            key: an integer, such as the number of an episode or of a user.
        """
        self._require_kinds()
        if self._member_function is None:

            def compute(inputs: Any, key: tf.Tensor, healthy: tf.Tensor) -> Any:
                return self._call_member(inputs, export.draw_member(self.seed, key, healthy))

            self._member_function = Hidden(tf.function(compute, reduce_retracing=True))
        inputs = tf.nest.map_structure(tf.convert_to_tensor, x)
        key = tf.constant(checks.integer("key", key, least=-(2**63)), tf.int64)
        outputs_of_one = self._member_function.value(inputs, key, tf.constant(_healthy(self), tf.int32))
        return self._mixtures(structure.leaves(outputs_of_one))

    def _call_member(self, inputs: Any, member: tf.Tensor) -> Any:
        """Returns what `call` does of one member, `[batch, 1, ...]`."""
        return tf.nest.map_structure(lambda part: tf.gather(part, [member], axis=1), self(inputs, training=False))

    def _require_kinds(self) -> None:
        """Raises where nothing is known of what outputs mean."""
        listed = self.outputs_said()
        if len(listed) == 1 or all(output.kind is None for output in listed):
            listed[0].require()

    def _mixtures(self, members: Sequence[Any]) -> Any:
        """Returns the mixture's prediction from members' outputs, a list of `[batch, members, ...]`."""
        mixtures: list[Any] = []
        for output, each in zip(self.outputs_said(), members, strict=True):
            everyone, kind = np.arange(each.shape[1]), output.kind
            mixed = None if kind is None else outputs.mixture(kind, tf.convert_to_tensor(each), everyone, output.head)
            mixtures.append(None if kind is None else np.asarray(outputs.two_columns(kind, mixed)))
        return self._structure.pack(mixtures)

    def predict_distribution(self, x: Any, batch_size: int | None = None) -> Any:
        """Returns the exact predictive distribution of a regression: the mixture of its healthy members' distributions.

        `d.mean`, `d.std`, `d.aleatoric_std` and `d.epistemic_std` are `[batch, targets]`; `d.interval(0.9)`,
        `d.quantile(0.1)`, `d.cdf(y)`, `d.log_prob(y)`, `d.sample(100)` and `d.joint_sample(100)` ask for more. Members'
        outputs are kept where they are few, and else computed again for each question, so that memory is bounded.
        Several outputs come in the structure in which a member returns them, None for those that are no regression.

        Args:
            x: inputs `[batch, ...]`, or a dataset of batches of them.
            batch_size: examples per prediction.
        """
        listed = self.outputs_said()
        if not any(output.head is not None for output in listed):
            self._require_head("predict_distribution", listed[0])
        size = batch_size or _ROWS
        return self._structure.pack(
            [None if output.head is None else self._distribution(x, size, place, output)
             for place, output in enumerate(listed)]
        )  # fmt: skip

    def _distribution(self, x: Any, size: int, place: int, output: Output) -> PredictiveDistribution:
        """Returns the predictive distribution of one output."""
        head, healthy = self._require_head("predict_distribution", output), _healthy(self)
        if isinstance(head, heads.Quantiles):
            head.components(tf.zeros([1, 1]))  # Raises: a few quantiles are no distribution.

        def parts() -> Iterator[Array]:
            for inputs in data.batches_of(x, size):
                said = structure.leaves(self.predict_on_batch(inputs))[place]
                yield np.asarray(outputs.of_members(said, healthy))

        return PredictiveDistribution(head, batches.kept(parts), self.seed)

    def predict_quantiles(self, x: Any, batch_size: int | None = None) -> Array:
        """Returns the quantiles of an ensemble that was trained with `tfe.losses.Pinball`, `[batch, targets, levels]`.

        The mean over members of each member's quantiles, in order: none crosses another.
        """
        head = self._require_head("predict_quantiles", outputs.the_one(self, "predict_quantiles"))
        if not isinstance(head, heads.Quantiles):
            raise ValueError(
                "Expected members of kind 'quantiles', trained with tfe.losses.Pinball. Received: kind "
                f"{head.kind.value!r}: call model.predict_distribution(x).quantile(level)"
            )
        members = self.predict(x, batch_size=batch_size, verbose=0)[:, _healthy(self)]
        return np.asarray(tf.reduce_mean(tf.transpose(head.quantiles(members), [0, 1, 3, 2]), axis=1))

    def estimate_noise(self, x: Any, y: Any, batch_size: int | None = None) -> Any:
        """Estimates the noise of targets around members that predict values, trained by `mse` for example.

        `fit` does the same with its validation data. Everything that needs the noise then has it, also after `save`.

        Args:
            x: inputs that no member was trained on, `[batch, ...]`.
            y: their targets.
            batch_size: examples per prediction.

        Returns:
            The standard deviation of each target's noise, `[targets]`; of several outputs, in their structure, None for
            those that do not predict values.
        """
        listed = self.outputs_said()
        if not any(isinstance(output.head, heads.Values) for output in listed):
            head = self._require_head("estimate_noise", listed[0])
            raise ValueError(
                f"Expected members that predict values. Received: kind {head.kind.value!r}, which has noise"
            )
        return self._structure.pack(self._set_noise(self._members_said(x, batch_size), y))

    def _set_noise(self, members: Sequence[Array], y: Any) -> list[Any]:
        """Estimates the noise of each output that predicts values, from members' outputs `[batch, members, ...]`."""
        targets, found = self._structure.split(y, "targets y", missing=True), []
        for output, said, own in zip(self.outputs_said(), members, targets, strict=True):
            asked = isinstance(output.head, heads.Values) and own is not None
            # Each position is a row: a target has one noise, wherever it is.
            rows = np.moveaxis(said, 1, -2).reshape(-1, said.shape[1], said.shape[-1]) if said.ndim > 3 else said
            found.append(noise.estimate(rows, np.asarray(own).reshape(len(rows), -1)) if asked else None)
        known = [self._output_heads[place] if new is None else heads.Values(tuple(new.tolist()))
                 for place, new in enumerate(found)]  # fmt: skip
        self._output_heads = tuple(known)
        return found

    def _forget_noise(self) -> None:
        """What was estimated before a training says nothing of the members after it."""
        known = zip(self._output_heads, self.outputs_said(), strict=True)
        self._output_heads = tuple(None if output.kind is Kind.VALUES else head for head, output in known)

    def _estimate_noise_of_fit(self, given: Mapping[str, Any]) -> None:
        """Estimates the noise on the validation data of `fit`, where there are some that can be read again."""
        validation = given.get("validation_data")
        values = any(output.kind is Kind.VALUES for output in self.outputs_said())
        if not values or validation is None or bool(self.diverged.all()):
            return
        if isinstance(validation, tuple):
            size = given.get("validation_batch_size")
            members, targets = self._members_said(validation[0], size), validation[1]
        elif isinstance(validation, tf.data.Dataset):
            steps = given.get("validation_steps")
            taken = validation if steps is None else validation.take(steps)
            members, _, targets = batches.together([(self._on_batch(batch[0]), [], batch[1]) for batch in taken])
        else:
            return
        # Nobody loses a training to this: who asks for noise that could not be estimated is told so then.
        with contextlib.suppress(ValueError):
            self._set_noise(members, targets)

    def _on_batch(self, x: Any) -> list[Array]:
        said = structure.leaves(self.predict_on_batch(x))
        return [np.asarray(part)[:, _healthy(self)] for part in said]

    def _require_head(self, method: str, output: Output) -> heads.Head:
        kind = output.require()
        if output.head is None:
            raise ValueError(
                f"Expected a regression for {method}, such as one compiled with tfe.losses.GaussianNLL(). "
                f"Received: outputs of kind {kind.value!r}"
            )
        output.refuse_positions(method)
        return output.head

    def evaluate_joint(
        self, x: Any, y: Any = None, tau: int = 10, dyadic: bool = False, batch_size: int | None = None
    ) -> Any:
        """Returns `marginal_nll` in nats per label and `joint_nll` per tau labels; also `dyadic_nll` if asked.

        Of a regression, nats are per example and per tau examples. Where an example has positions, as a map or a
        sequence does, an example is an input with all its positions, and nats are those of all of them. Of several
        outputs, such a dict for each, in the structure in which a member returns them.

        Args:
            x: inputs `[batch, ...]` in random order, or a dataset of batches `(x, y)`.
            y: labels `[batch]`, one-hot rows, or `[batch, labels]`; targets of a regression; None for a dataset.
            tau: labels per joint prediction.
            dyadic: whether to compute `tfe.metrics.dyadic_nll`, too.
            batch_size: examples per prediction.
        """
        for output in self.outputs_said():
            output.require()
        if y is None:
            parts = [(self._on_batch(batch[0]), self._masks(batch[0]), batch[1]) for batch in x]
            members, masks, y = batches.together(parts)
        else:
            members, masks = self._members_said(x, batch_size), self._all_masks(x, batch_size)
        found = [_joint(likelihoods, tau, dyadic) for likelihoods in self._log_likelihoods(members, masks, y)]
        for output, own in zip(self.outputs_said(), self._structure.split(y, "targets y"), strict=True):
            if output.head is None:
                functions.warn_if_sorted(own)
        return self._structure.pack(found)

    def _masks(self, x: Any) -> list[Any]:
        """Returns the positions that count of each output, `[batch, ...]` of bool, None for all; of one batch."""
        if not any(output.has_positions for output in self.outputs_said()):
            return [None] * len(self._structure)
        masks = [keras_private.mask_of(part) for part in structure.leaves(self(x))]
        return [None if mask is None else np.asarray(mask)[:, 0] for mask in masks]

    def _all_masks(self, x: Any, batch_size: int | None) -> list[Any]:
        """Returns what `_masks` does, of arrays."""
        if not any(output.has_positions for output in self.outputs_said()):
            return [None] * len(self._structure)
        return batches.joined([self._masks(batch) for batch in data.batches_of(x, batch_size or _ROWS)])

    def _log_likelihoods(self, members: Sequence[Array], masks: Sequence[Any], y: Any) -> list[Any]:
        """Returns members' log-likelihoods of the targets of each output, `[batch, members]`."""
        targets, found = self._structure.split(y, "targets y"), []
        for output, said, mask, own in zip(self.outputs_said(), members, masks, targets, strict=True):
            if output.head is not None:
                if mask is not None:
                    raise ValueError(f"Expected a regression without masks. Received: the masked {output.name!r}")
                head, flat = output.head.over_positions(tf.convert_to_tensor(said))
                rows = np.asarray(own).reshape(len(said), -1) if output.has_positions else own
                found.append(PredictiveDistribution.of_outputs(head, np.asarray(flat)).member_log_prob(rows))
                continue
            kind = output.require()
            axes = said.ndim - 3
            labels = kinds.labels_tensor(tf.convert_to_tensor(np.asarray(own)), kind, said.shape[-1], axes)
            kept = outputs.counted(output, labels, mask)
            classes = np.asarray(labels) if kept is None else np.where(kept, labels, 0)
            logits, _ = kinds.read(said, kind)
            classes = likelihood.check_labels(logits, classes)
            found.append(likelihood.log_likelihood(logits, classes, None if kept is None else np.asarray(kept)))
        return found

    def best_members(self, x: Any, y: Any, num: int, tau: int = 10, batch_size: int | None = None) -> Array:
        """Returns the members, `[num]`, that a greedy choice by the joint NLL of held-out data takes, in its order.

        `model.select(model.best_members(x_val, y_val, 5))` is an ensemble of them. Members that diverged are not taken.
        Of several outputs, an example's likelihood is that of all of them.

        Args:
            x: inputs that no member was trained on, `[batch, ...]` in random order.
            y: their labels, as `evaluate_joint` takes them.
            num: how many to choose.
            tau: labels per joint prediction.
            batch_size: examples per prediction.
        """
        for output in self.outputs_said():
            output.require()
        found = self._log_likelihoods(self._members_said(x, batch_size), self._all_masks(x, batch_size), y)
        return _healthy(self)[selection.greedy(sum(found[1:], start=found[0]), num, tau)]

    def export(self, filepath: Any, format: str = "tf_saved_model", **kwargs: Any) -> None:
        """Writes a SavedModel, as `tfe.export_saved_model` does; its signatures can be converted further."""
        given = sorted(name for name, value in kwargs.items() if name != "verbose" and value is not None)
        if format != "tf_saved_model" or given:
            raise ValueError(
                "Expected model.export(path), or format='tf_saved_model': convert the signatures of that with "
                "tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=[...]), or with tf2onnx. "
                f"Received: format={format!r}, arguments {given}"
            )
        export.export_saved_model(self, filepath)

    def more_signatures(self) -> list[tuple[str, Any, list[tf.TensorSpec]]]:
        """Returns what a SavedModel offers besides the usual: name, function of inputs and more, specs of these."""
        return []

    def as_mixture(self) -> Mixture:
        """Returns the ensemble as one model whose `predict` is its mixture's, for code that expects one prediction.

        `keras.wrappers.SKLearnClassifier(lambda X, y: ensemble.as_mixture())` and `SKLearnRegressor` take it.
        """
        return Mixture(self)

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        """Raises: quantize what is exported."""
        raise ValueError(
            "Expected no quantize on an ensemble: export it, and convert its signatures with "
            "tf.lite.TFLiteConverter and optimizations=[tf.lite.Optimize.DEFAULT]. "
            f"Received: {[*args, *kwargs.values()]}"
        )


class Mixture:
    """An ensemble that trains as ever and predicts as one model: probabilities `[batch, classes]`, or means."""

    def __init__(self, ensemble: Served) -> None:
        self.ensemble = ensemble

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "ensemble":
            raise AttributeError(name)
        return getattr(self.ensemble, name)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Trains the ensemble."""
        return self.ensemble.fit(*args, **kwargs)

    def predict(self, x: Any, batch_size: int | None = None, **_: Any) -> Array:
        """Returns what the ensemble's `predict_proba` does."""
        return self.ensemble.predict_proba(x, batch_size=batch_size)


def _joint(found: Array, tau: int, dyadic: bool) -> dict[str, float]:
    """Returns the scores of members' log-likelihoods `[batch, members]`."""
    joint = {"marginal_nll": functions.joint_of(found, 1), "joint_nll": functions.joint_of(found, tau)}
    return joint | ({"dyadic_nll": functions.dyadic_of(found, tau)} if dyadic else {})


def _healthy(model: Served) -> Array:
    """Returns the indices of members that have not diverged; of all, if none is left."""
    diverged = model.diverged
    return np.flatnonzero(~diverged) if not diverged.all() else np.arange(len(diverged))
