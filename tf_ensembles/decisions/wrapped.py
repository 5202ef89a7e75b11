"""A model around an ensemble: it predicts, saves, loads and exports as the ensemble does, and knows something more."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import outputs as outputs_lib
from tf_ensembles.ensemble.members import structure
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.metrics import kinds
from tf_ensembles.metrics.kinds import Kind


class Wrapped(Served):
    """Holds an ensemble, or another model around one, as `model`. It is not trained: what it knows was fitted once.

    Shapes: member outputs `[batch, members, outputs]`.
    """

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(model, Served):
            raise ValueError(
                "Expected a tfe.Ensemble, or tfe.Ensemble.from_models([model]) of a Keras model. "
                f"Received: {type(model).__name__}"
            )
        self._check(model)
        self.model = model
        self.built = True

    def _check(self, model: Served) -> None:
        """Raises unless members have one output, of one row of columns per example."""
        what = f"tfe.calibrate and {type(self).__name__}"
        outputs_lib.the_one(model, what).refuse_positions(what)

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: all variables are there."""

    # What is asked of an ensemble.

    @property
    def kind(self) -> Kind | None:
        """What member outputs are."""
        return self.model.kind

    @property
    def head(self) -> Any:
        """How the outputs of a regression are read; None for classes."""
        return self.model.head

    def outputs_said(self) -> list[outputs_lib.Output]:
        """Returns what is known of the output of members."""
        return [outputs_lib.Output("output", None, self.kind, self.head, self._member_loss)]

    @property
    def num_members(self) -> int:
        """M."""
        return self.model.num_members

    @property
    def diverged(self) -> Array:
        """Which members are left out, `[members]` of bool."""
        return self.model.diverged

    def _healthy(self) -> Array:
        """Returns the indices of the members that count, while something is traced, too."""
        with tf.init_scope():
            return np.flatnonzero(~self.diverged)

    @property
    def seed(self) -> int:
        """The ensemble's."""
        return self.model.seed

    @property
    def _member_loss(self) -> Any:
        return self.model._member_loss

    def input_specs(self) -> Any:
        """The shape, batch first, and dtype of each input, in the structure that the members take."""
        return self.model.input_specs()

    # Predictions.

    def transform(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns what this model makes of the ensemble's member outputs."""
        return outputs

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns member outputs `[batch, members, outputs]`; nothing here is trained."""
        return self.transform(self.model(inputs, training=False))

    def _call_member(self, inputs: Any, member: tf.Tensor) -> tf.Tensor:
        """Returns what `call` does of one member, `[batch, 1, outputs]`: outputs are transformed member by member."""
        return self.transform(self.model._call_member(inputs, member))

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Array:
        """Returns member outputs `[batch, members, outputs]`, which `tfe.metrics` know."""
        return kinds.tagged(self._transformed(self.model.predict(x, *args, **kwargs)), self.kind)

    def predict_on_batch(self, x: Any) -> Array:
        """Returns member outputs `[batch, members, outputs]` of one batch."""
        return self._transformed(self.model.predict_on_batch(x))

    def _transformed(self, outputs: Array) -> Array:
        return np.asarray(self.transform(tf.convert_to_tensor(np.asarray(outputs))))

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Raises: the ensemble is trained first, and wrapped then."""
        raise ValueError(
            f"Expected fit on the ensemble, before it is calibrated. Received: fit on a {type(self).__name__}"
        )

    # Saving.

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of the ensemble."""
        return {"name": self.name, "model": keras.saving.serialize_keras_object(self.model)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Wrapped:
        """Returns a model of that architecture; its variables are filled from the file."""
        given = dict(config)
        given["model"] = keras.saving.deserialize_keras_object(given["model"], custom_objects=custom_objects)
        return cls(**given)


@keras.saving.register_keras_serializable(package="tf_ensembles")
class OneOutput(Wrapped):
    """One output of an ensemble that has several, as a model of its own: what `model.only(name)` returns.

    Args:
        model: the ensemble.
        output: the name of the output.
    """

    def __init__(self, model: Any, output: str, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        names = [one.name for one in model.outputs_said()]
        if output not in names:
            raise ValueError(f"Expected the name of an output, one of {names}. Received: {output!r}")
        self.output_name, self._place = output, names.index(output)

    def _check(self, model: Served) -> None:
        """Any outputs will do."""

    def outputs_said(self) -> list[outputs_lib.Output]:
        """Returns what is known of the output."""
        return [self.model.outputs_said()[self._place]]

    @property
    def kind(self) -> Kind | None:
        """What member outputs are."""
        return self.outputs_said()[0].kind

    @property
    def head(self) -> Any:
        """How the outputs of a regression are read; None for classes."""
        return self.outputs_said()[0].head

    @property
    def _member_loss(self) -> Any:
        return self.outputs_said()[0].loss

    def transform(self, outputs: Any) -> tf.Tensor:
        """Returns the output of all."""
        return structure.leaves(outputs)[self._place]

    def _transformed(self, outputs: Any) -> Array:
        return np.asarray(self.transform(outputs))

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of the ensemble, and which output it is."""
        return {**super().get_config(), "output": self.output_name}
