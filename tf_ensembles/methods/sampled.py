"""A Keras model that says several things of an input, drawn by a seed, under the contract of `tfe.Ensemble`.

Shapes: outputs `[batch, members, outputs]`, losses `[members]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import checks
from tf_ensembles.base import Array
from tf_ensembles.ensemble import batches, callbacks, data, keras_private, losses, outputs, replicas
from tf_ensembles.ensemble.members import stack
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.members.structure import Structure
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.ensemble.trunk import Of
from tf_ensembles.ensemble.updates import SHARED, MemberwiseUpdate
from tf_ensembles.metrics.kinds import Kind, tagged
from tf_ensembles.regression import heads


class Sampled(Served):
    """Draws K members, each a function of the inputs: the same for the same seed, whatever the batch.

    Args:
        num_members: K; may be set again.
        seed: decides the draws.
        outputs: what a member returns, as `tfe.Ensemble` takes it.
    """

    _source: keras.Model  # knows the inputs
    _num_outputs: int
    _update: Hidden | None = None

    def __init__(self, num_members: int, seed: int, outputs: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        Kind.parse(outputs)
        self.num_members, self._seed, self._outputs_argument = num_members, checks.seed(seed), outputs
        self._member_metrics: list[Any] = []
        self._logit_metrics: list[Any] = []

    def _has_columns(self, num_outputs: int) -> None:
        """Takes in how many columns a member has."""
        self._num_outputs, self._structure = num_outputs, Structure(shapes=((num_outputs,),))

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: all variables are there."""

    @property
    def num_members(self) -> int:
        """K, how many members are drawn; may be set again, which changes none of the first."""
        return self._num_members

    @num_members.setter
    def num_members(self, value: int) -> None:
        self._num_members = checks.integer("num_members", value, 1)
        self.train_function = self.test_function = self.predict_function = None

    @property
    def seed(self) -> int:
        """The seed of all draws."""
        return self._seed

    @property
    def diverged(self) -> Array:
        """No member is ever left out, `[members]` of bool."""
        return np.zeros(self.num_members, bool)

    def input_specs(self) -> Any:
        """The shape, batch first, and dtype of each input, in the structure that the model takes."""
        source: Any = Of(self._source)
        return stack.input_specs(source, None)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Array:
        """Returns member outputs `[batch, members, outputs]`, which `tfe.metrics` know."""
        return tagged(super().predict(data.strings_as_tensors(x), *args, **kwargs), self.kind)

    # Losses and metrics: what every member says, beside what the mixture does.

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Configures training and evaluation, as `keras.Model.compile` does; metrics are as for `tfe.Ensemble`."""
        self._output_losses = tuple(losses.as_losses(self._structure, loss, loss_weights)[0])
        output = self.outputs_said()[0]
        outputs.check_compiled(output, getattr(self, "prior", None), weighted_metrics)
        listed, members, logits, others = outputs.split_metrics(output, metrics)
        if self.compiled:
            keras_private.forget_metrics(self, [*self._member_metrics, *self._logit_metrics])
        self._member_metrics, self._logit_metrics, self._all_metrics = members, logits, Hidden(listed)
        self._update = None
        kwargs.update(weighted_metrics=weighted_metrics)
        super().compile(optimizer=optimizer, loss=loss, metrics=others or None, **kwargs)

    def get_compile_config(self) -> dict[str, Any]:
        """Returns what `compile` was given."""
        config = super().get_compile_config()
        if config:
            config["metrics"] = keras.saving.serialize_keras_object(self._all_metrics.value)
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved model was."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.trainable_variables:
            self.optimizer.build(self.trainable_variables)

    # Steps on several replicas: each has a share of the loss, and norms are those of the whole gradient.

    def make_train_function(self, force: bool = False) -> Any:
        """Compiles the training step."""
        if self._update is None and self.distribute_strategy.num_replicas_in_sync > 1:
            with self.distribute_strategy.scope():
                owned = [(variable, SHARED) for variable in self.trainable_variables]
                self._update = Hidden(MemberwiseUpdate(self.optimizer, owned, 1))
        return super().make_train_function(force)

    def train_step(self, batch: Any) -> dict[str, Any]:
        """One step on one batch."""
        if self._update is None:
            return super().train_step(batch)
        update = self._update.value
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            said = self(x, training=True)
            mine = self.compute_loss(x, y, said, sample_weight, training=True)
            scaled = self.optimizer.scale_loss(mine)
        update.apply(update.gradients(tape, scaled), mine)
        return self._report(x, y, said, mine, sample_weight)

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Evaluates one batch."""
        if replicas.count() == 1:
            return super().test_step(batch)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        said = self(x, training=False)
        return self._report(x, y, said, self.compute_loss(x, y, said, sample_weight, training=False), sample_weight)

    def _report(self, x: Any, y: Any, said: tf.Tensor, mine: tf.Tensor, sample_weight: Any) -> dict[str, Any]:
        """Takes in the loss of the whole batch, which Keras would take to be that of a replica, times their number."""
        keras_private.track_loss(self, replicas.total(mine), tf.shape(said)[0])
        return self.compute_metrics(x, y, said, sample_weight)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> tf.Tensor:
        """Returns the mean of members' losses, and what regularizes them."""
        result = tf.transpose(y_pred, [1, 0, 2])
        count = int(result.shape[0])
        batch = losses.make_batches([y], [sample_weight], None, self.seed, None, count, [0])[0]
        mine = tf.reduce_sum(replicas.member_losses(self._member_loss, batch, result)) / count
        return mine + self._penalty() / replicas.count()

    def _penalty(self) -> tf.Tensor:
        own = [tf.cast(loss, tf.float32) for loss in self.losses]
        return tf.add_n(own) if own else tf.zeros([])

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates metrics of what `predict` says: ours with the members, Keras's with the mixture."""
        apart = self._member_metrics, self._logit_metrics
        if y_pred.shape[1] != self.num_members and self._all_metrics.value:
            y_pred = self(x, training=False)  # A step of training has fewer members, and others.
        healthy = np.arange(y_pred.shape[1])
        seen = outputs.update_metrics(self.outputs_said()[0], *apart, y, y_pred, healthy)
        return super().compute_metrics(x, y, seen, sample_weight)

    def _checked(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Returns arrays as they will be read, after checks; everything else as it is."""
        if not data.is_arrays(data.split(x).x):
            return x, y
        inputs, y = data.as_arrays(data.split(x).x), None if y is None else np.asarray(y)
        length = data.check_inputs(inputs)
        data.check_targets(y, length, self.outputs_said()[0])
        outputs.check_members(self, inputs)
        return inputs, y

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Trains as `keras.Model.fit` does; arrays are checked, and shuffled by the seed."""
        keras_private.require_compiled(self, "fit")
        x, y = self._checked(x, y)
        if isinstance(validation_data, tuple) and data.is_arrays(validation_data[0]):
            validation_data = (*self._checked(*validation_data[:2]), *validation_data[2:])
        given = dict(x=x, y=y, batch_size=batch_size, shuffle=shuffle, sample_weight=sample_weight)
        given.update(validation_split=validation_split, validation_data=validation_data)
        kwargs = {name: value for name, value in kwargs.items() if (name, value) != ("steps_per_epoch", None)}
        if y is not None and data.is_arrays(x) and "steps_per_epoch" not in kwargs:
            length = batches.num_trained_on(len(y), 0.0 if validation_data else validation_split)
            replicas.check_batches([self], length, batch_size or 32, self.distribute_strategy.num_replicas_in_sync)
            counter = callbacks.StepCounter(self.steps_per_execution != 1)
            kwargs["callbacks"] = callbacks.with_ours(kwargs.get("callbacks"), counter, {})
            given["x"] = self._with_known(x, len(y))
            given.update(first_step=counter.first_step, steps_per_execution=self.steps_per_execution)
            given = batches.fit_on_arrays(**given, seed=self.seed)
        self._forget_noise()
        history = super().fit(**given, **kwargs)
        self._estimate_noise_of_fit(given)
        return history

    def _with_known(self, x: Any, length: int) -> Any:
        """Returns arrays of inputs `[length, ...]`, with what is known of them before training."""
        return x

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.evaluate` does."""
        if not keras_private.is_validation_of_fit(kwargs):
            keras_private.require_compiled(self, "evaluate")
            x, y = self._checked(x, y)
        return super().evaluate(x, y, *args, **kwargs)


class OfNetwork(Sampled):
    """Members that are one Keras network, which takes them folded into its batch: `[members * batch, ...]`."""

    network: keras.Model

    def _take(self, model: Any, what: str, copy: Callable[[keras.Model], keras.Model]) -> None:
        """Takes in a copy of a model with outputs `[batch, outputs]`, and what its loss says of them.

        Args:
            model: as users give it.
            what: is expected.
            copy: returns a network that tells members apart.
        """
        if not isinstance(model, keras.Model) or not model.built or not hasattr(model, "output_shape"):
            raise ValueError(
                f"Expected {what} that knows its inputs and outputs: start it with keras.Input. "
                f"Received: {type(model).__name__}"
            )
        if not isinstance(model.output_shape, tuple) or len(model.output_shape) != 2:
            raise ValueError(f"Expected a model with outputs [batch, outputs]. Received: {model.output_shape}")
        self._has_columns(int(model.output_shape[-1]))
        self.network = self._source = copy(model)
        loss = getattr(model, "loss", None)
        if loss is not None and self._outputs_argument == "auto":
            self._output_losses = (losses.as_loss(loss),)
        self.built = True

    def _folded(self, inputs: Any, training: bool) -> tf.Tensor:
        """Returns member outputs `[batch, members, outputs]`."""
        x, count = data.split(inputs).x, self.num_members
        tiled = tf.nest.map_structure(lambda v: _tiled(tf.convert_to_tensor(v), count), x)
        result = tf.cast(self.network(tiled, training=training), tf.float32)
        return tf.transpose(tf.reshape(result, [count, -1, self._num_outputs]), [1, 0, 2])

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture and the other arguments."""
        given = {"name": self.name, "num_members": self.num_members, "seed": self.seed}
        known = {"head": heads.write(self.head)} if self.head else {}
        kind = self._outputs_argument if self.kind is None else self.kind.value
        return {**given, **known, "outputs": kind, "model": keras.saving.serialize_keras_object(self.network)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Returns a model of that architecture; its variables are filled from the file."""
        given = dict(config)
        known = given.pop("head", None)
        given["model"] = keras.saving.deserialize_keras_object(given["model"], custom_objects=custom_objects)
        model = cls(**given)
        model._read_heads(known)
        return model


def _tiled(tensor: tf.Tensor, count: int) -> tf.Tensor:
    return tf.tile(tensor, [count, *([1] * (len(tensor.shape) - 1))])
