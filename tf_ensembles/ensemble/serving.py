"""What is asked of a trained ensemble: its mixture, its distribution, how good it is jointly, and files to serve it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import data, export, outputs
from tf_ensembles.methods import selection
from tf_ensembles.metrics import functions, kinds, likelihood
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import heads, noise
from tf_ensembles.regression.distribution import PredictiveDistribution

# Member outputs up to this many bytes are kept for further questions; more are computed again for each.
_KEPT_BYTES = 2**28
# Rows at a time where nothing is said.
_ROWS = 1024


class Served(keras.Model):
    """A Keras model of members that has `kind`, `head`, `diverged` and `predict`, as `Ensemble` does."""

    _known_head: heads.Head | None

    @property
    def kind(self) -> Kind | None:
        """What member outputs are; None where neither `outputs` nor the loss says so."""
        kind = outputs.kind_of(self._outputs_argument, self._member_loss, self._num_outputs)
        return self._known_head.kind if kind is None and self._member_loss is None and self._known_head else kind

    @property
    def head(self) -> Any:
        """What the columns of a regression mean, of `tf_ensembles.regression.heads`; None for classes."""
        return outputs.head_of(self.kind, self._member_loss, self._known_head)

    def predict_proba(self, x: Any, batch_size: int | None = None) -> Array:
        """Returns the mixture's prediction: probabilities `[batch, classes]`, or means `[batch, targets]`.

        Where an example has several labels, these are their probabilities, `[batch, labels]`.
        """
        kind = outputs.require(self.kind, self._member_loss)
        members = tf.convert_to_tensor(np.asarray(self.predict(x, batch_size=batch_size, verbose=0)))
        return np.asarray(outputs.two_columns(kind, outputs.mixture(kind, members, _healthy(self), self.head)))

    def predict_distribution(self, x: Any, batch_size: int | None = None) -> PredictiveDistribution:
        """Returns the exact predictive distribution of a regression: the mixture of its healthy members' distributions.

        `d.mean`, `d.std`, `d.aleatoric_std` and `d.epistemic_std` are `[batch, targets]`; `d.interval(0.9)`,
        `d.quantile(0.1)`, `d.cdf(y)`, `d.log_prob(y)`, `d.sample(100)` and `d.joint_sample(100)` ask for more. Members'
        outputs are kept where they are few, and else computed again for each question, so that memory is bounded.

        Args:
            x: inputs `[batch, ...]`, or a dataset of batches of them.
            batch_size: examples per prediction.
        """
        head = self._require_head("predict_distribution")
        if isinstance(head, heads.Quantiles):
            head.components(tf.zeros([1, 1]))  # Raises: a few quantiles are no distribution.
        healthy, size = _healthy(self), batch_size or _ROWS

        def parts() -> Iterator[Array]:
            for inputs in data.batches_of(x, size):
                yield np.asarray(outputs.of_members(self.predict_on_batch(inputs), healthy))

        return PredictiveDistribution(head, _kept(parts), self.seed)

    def predict_quantiles(self, x: Any, batch_size: int | None = None) -> Array:
        """Returns the quantiles of an ensemble that was trained with `tfe.losses.Pinball`, `[batch, targets, levels]`.

        The mean over members of each member's quantiles, in order: none crosses another.
        """
        head = self._require_head("predict_quantiles")
        if not isinstance(head, heads.Quantiles):
            raise ValueError(
                "Expected members of kind 'quantiles', trained with tfe.losses.Pinball. Received: kind "
                f"{head.kind.value!r}: call model.predict_distribution(x).quantile(level)"
            )
        members = self.predict(x, batch_size=batch_size, verbose=0)[:, _healthy(self)]
        return np.asarray(tf.reduce_mean(tf.transpose(head.quantiles(members), [0, 1, 3, 2]), axis=1))

    def estimate_noise(self, x: Any, y: Any, batch_size: int | None = None) -> Array:
        """Estimates the noise of targets around members that predict values, trained by `mse` for example.

        `fit` does the same with its validation data. Everything that needs the noise then has it, also after `save`.

        Args:
            x: inputs that no member was trained on, `[batch, ...]`.
            y: their targets.
            batch_size: examples per prediction.

        Returns:
            The standard deviation of each target's noise, `[targets]`.
        """
        head = self._require_head("estimate_noise")
        if not isinstance(head, heads.Values):
            raise ValueError(
                f"Expected members that predict values. Received: kind {head.kind.value!r}, which has noise"
            )
        members = np.asarray(self.predict(x, batch_size=batch_size, verbose=0))[:, _healthy(self)]
        return self._set_noise(members, y)

    def _set_noise(self, members: Array, y: Any) -> Array:
        found = noise.estimate(members, y)
        self._known_head = heads.Values(tuple(found.tolist()))
        return found

    def _forget_noise(self) -> None:
        """What was estimated before a training says nothing of the members after it."""
        if self.kind is Kind.VALUES:
            self._known_head = None

    def _estimate_noise_of_fit(self, given: Mapping[str, Any]) -> None:
        """Estimates the noise on the validation data of `fit`, where there are some that can be read again."""
        validation = given.get("validation_data")
        if self.kind is not Kind.VALUES or validation is None or bool(self.diverged.all()):
            return
        if isinstance(validation, tuple):
            pairs = [
                (self.predict(validation[0], batch_size=given.get("validation_batch_size"), verbose=0), validation[1])
            ]
        elif isinstance(validation, tf.data.Dataset):
            steps = given.get("validation_steps")
            batches = validation if steps is None else validation.take(steps)
            pairs = [(self.predict_on_batch(batch[0]), batch[1]) for batch in batches]
        else:
            return
        members, targets = (np.concatenate([np.asarray(part) for part in parts]) for parts in zip(*pairs, strict=True))
        # Nobody loses a training to this: who asks for noise that could not be estimated is told so then.
        with contextlib.suppress(ValueError):
            self._set_noise(members[:, _healthy(self)], targets)

    def _require_head(self, method: str) -> heads.Head:
        kind = outputs.require(self.kind, self.loss)
        if self.head is None:
            raise ValueError(
                f"Expected a regression for {method}, such as one compiled with tfe.losses.GaussianNLL(). "
                f"Received: outputs of kind {kind.value!r}"
            )
        return self.head

    def evaluate_joint(
        self, x: Any, y: Any = None, tau: int = 10, dyadic: bool = False, batch_size: int | None = None
    ) -> dict[str, float]:
        """Returns `marginal_nll` in nats per label and `joint_nll` per tau labels; also `dyadic_nll` if asked.

        Of a regression, nats are per example and per tau examples.

        Args:
            x: inputs `[batch, ...]` in random order, or a dataset of batches `(x, y)`.
            y: labels `[batch]`, one-hot rows, or `[batch, labels]`; targets of a regression; None for a dataset.
            tau: labels per joint prediction.
            dyadic: whether to compute `tfe.metrics.dyadic_nll`, too.
            batch_size: examples per prediction.
        """
        kind = outputs.require(self.kind, self._member_loss)
        if y is None:
            pairs = [(self.predict_on_batch(batch[0]), np.asarray(batch[1])) for batch in x]
            predictions, y = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        else:
            predictions = self.predict(x, batch_size=batch_size, verbose=0)
        members = np.asarray(predictions)[:, _healthy(self)]
        if self.head is not None:
            found = PredictiveDistribution.of_outputs(self.head, members).member_log_prob(y)
            joint = {"marginal_nll": functions.joint_of(found, 1), "joint_nll": functions.joint_of(found, tau)}
            return joint | ({"dyadic_nll": functions.dyadic_of(found, tau)} if dyadic else {})
        labels = np.asarray(kinds.labels_tensor(tf.convert_to_tensor(y), kind, members.shape[-1]))
        result = {
            "marginal_nll": functions.marginal_nll(members, labels, kind=kind),
            "joint_nll": functions.joint_nll(members, labels, tau, kind=kind),
        }
        return result | ({"dyadic_nll": functions.dyadic_nll(members, labels, tau, kind=kind)} if dyadic else {})

    def best_members(self, x: Any, y: Any, num: int, tau: int = 10, batch_size: int | None = None) -> Array:
        """Returns the members, `[num]`, that a greedy choice by the joint NLL of held-out data takes, in its order.

        `model.select(model.best_members(x_val, y_val, 5))` is an ensemble of them. Members that diverged are not taken.

        Args:
            x: inputs that no member was trained on, `[batch, ...]` in random order.
            y: their labels, as `evaluate_joint` takes them.
            num: how many to choose.
            tau: labels per joint prediction.
            batch_size: examples per prediction.
        """
        kind, healthy = outputs.require(self.kind, self._member_loss), _healthy(self)
        members = np.asarray(self.predict(x, batch_size=batch_size, verbose=0))[:, healthy]
        if self.head is not None:
            found = PredictiveDistribution.of_outputs(self.head, members).member_log_prob(y)
        else:
            labels = kinds.labels_tensor(tf.convert_to_tensor(y), kind, members.shape[-1])
            logits, _ = kinds.read(members, kind)
            found = likelihood.log_likelihood(logits, likelihood.check_labels(logits, np.asarray(labels)))
        return healthy[selection.greedy(found, num, tau)]

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


def _kept(parts: Callable[[], Iterator[Array]]) -> Callable[[], Iterator[Array]]:
    """Returns what yields the same parts at every call: kept after the first one, if they are small enough."""
    kept: list[Array] = []

    def again() -> Iterator[Array]:
        if kept:
            yield from kept
            return
        seen, size = [], 0
        for part in parts():
            size += part.nbytes
            if size <= _KEPT_BYTES:
                seen.append(part)
            else:
                seen.clear()
            yield part
        if size <= _KEPT_BYTES:
            kept.extend(seen)

    return again


def _healthy(model: Served) -> Array:
    """Returns the indices of members that have not diverged; of all, if none is left."""
    diverged = model.diverged
    return np.flatnonzero(~diverged) if not diverged.all() else np.arange(len(diverged))
