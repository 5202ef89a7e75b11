"""What is asked of a trained ensemble: its mixture, how good it is jointly, and files to serve it from."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import export, outputs
from tf_ensembles.metrics import functions, kinds


class Served(keras.Model):
    """A Keras model of members that has `kind`, `diverged` and `predict`, as `Ensemble` does."""

    def predict_proba(self, x: Any, batch_size: int | None = None) -> Array:
        """Returns the mixture's prediction: probabilities `[batch, classes]`, or means `[batch, targets]`.

        Where an example has several labels, these are their probabilities, `[batch, labels]`.
        """
        kind = outputs.require(self.kind, self._member_loss)
        members = tf.convert_to_tensor(np.asarray(self.predict(x, batch_size=batch_size, verbose=0)))
        return np.asarray(outputs.two_columns(kind, outputs.mixture(kind, members, _healthy(self))))

    def evaluate_joint(
        self, x: Any, y: Any = None, tau: int = 10, dyadic: bool = False, batch_size: int | None = None
    ) -> dict[str, float]:
        """Returns `marginal_nll` in nats per label and `joint_nll` per tau labels; also `dyadic_nll` if asked.

        Args:
            x: inputs `[batch, ...]` in random order, or a dataset of batches `(x, y)`.
            y: labels `[batch]`, one-hot rows, or `[batch, labels]`; None for a dataset.
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
        labels = np.asarray(kinds.labels_tensor(tf.convert_to_tensor(y), kind, members.shape[-1]))
        result = {
            "marginal_nll": functions.marginal_nll(members, labels, kind=kind),
            "joint_nll": functions.joint_nll(members, labels, tau, kind=kind),
        }
        return result | ({"dyadic_nll": functions.dyadic_nll(members, labels, tau, kind=kind)} if dyadic else {})

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


def _healthy(model: Served) -> Array:
    """Returns the indices of members that have not diverged; of all, if none is left."""
    diverged = model.diverged
    return np.flatnonzero(~diverged) if not diverged.all() else np.arange(len(diverged))
