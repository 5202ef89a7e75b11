"""The steps of training and evaluation: one batch for all members, compiled for those that are frozen or diverged now.

Shapes: outputs `[batch, members, ...]`, inside a step a list of them, each `[members, batch, ...]`; losses `[members]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import data, keras_private, losses, outputs, replicas
from tf_ensembles.ensemble.arguments import Settings
from tf_ensembles.ensemble.callbacks import Marks, frozen_members_kept
from tf_ensembles.ensemble.members import own_losses, structure
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.members.structure import Structure
from tf_ensembles.ensemble.updates import SHARED, MemberwiseUpdate


class Steps(Settings):
    """The part of an `Ensemble` that has its steps, which are compiled with who is frozen and what is trainable."""

    num_members: int
    optimizer: Any
    trainable_variables: list[Any]
    distribute_strategy: Any
    compiled: bool
    trunk: Any
    _build_from: Callable[[Any], None]
    _with_priors: Callable[..., list[tf.Tensor]]
    _built_members: Callable[[], Any]
    _forward: Callable[..., tuple[list[tf.Tensor], tf.Tensor]]
    _seen: Callable[..., data.Inputs]
    _structure: Structure
    outputs_said: Callable[[], list[outputs.Output]]
    _member_mean: MemberMean
    _output_means: list[Any]  # the running loss of each of several outputs
    _member_metrics: list[Any]
    _logit_metrics: list[Any]
    _metric_places: Any  # of these two: which output each belongs to
    _frozen: Marks
    _diverged: Marks
    _update: Hidden | None
    _auto_jit: bool
    _flags: Any = None

    @property
    def frozen(self) -> Array:
        """Which members are no longer trained, `[members]` of bool."""
        return self._frozen.read()

    @property
    def diverged(self) -> Array:
        """Which members' loss has become NaN or infinite, `[members]` of bool. Mixtures and metrics leave them out."""
        return self._diverged.read()

    def _make_update(self) -> MemberwiseUpdate:
        if self._update is None:
            with self.distribute_strategy.scope():
                owners = {id(variable): owner for variable, owner in self._built_members().owned_variables()}
                owned = [(variable, owners.get(id(variable), SHARED)) for variable in self.trainable_variables]
                tables = self._built_members().tables()
                update = MemberwiseUpdate(self.optimizer, owned, self.num_members, tables)
            self._update = Hidden(update)
        return self._update.value

    def _remember_marks(self) -> None:
        """Which members are marked is part of the compiled steps, so that an ensemble without any pays nothing."""
        self._frozen.remember()
        self._diverged.remember()

    def make_train_function(self, force: bool = False) -> Any:
        """Compiles the training step for the members that are marked now, and the layers that are trainable now."""
        self._remember_marks()
        flags = self._built_members().flags()
        self._make_update().follow(self.trainable_variables)
        changed, self._flags = flags != self._flags, flags
        if changed or force:
            self._built_members().forget_traces()
        return super().make_train_function(force or changed)  # type: ignore[misc]

    def make_test_function(self, force: bool = False) -> Any:
        """Compiles the evaluation step for the members that are marked now."""
        self._remember_marks()
        model: Any = self
        with keras_private.jit_left_off(model, self._auto_jit):
            return super().make_test_function(force)  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> Any:
        """Compiles prediction."""
        model: Any = self
        with keras_private.jit_left_off(model, self._auto_jit):
            return super().make_predict_function(force)  # type: ignore[misc]

    def freeze_members(self, indices: Sequence[int]) -> None:
        """Stops training these members; the others go on."""
        self._mark(indices, self._frozen)

    def mark_diverged(self, indices: Sequence[int]) -> None:
        """Stops training these members and leaves them out of mixtures and metrics."""
        self._mark(indices, self._frozen, self._diverged)

    def _mark(self, indices: Sequence[int], *marks: Marks) -> None:
        for mark in marks:
            mark.add(indices)
        if self.compiled:  # The marks are part of the compiled steps.
            for metric in self._member_metrics:
                metric.forget_members()  # They see fewer from now on.
            self.make_train_function(force=True)
            self.make_test_function(force=True)

    def set_layer_trainable(self, name: str, trainable: bool) -> None:
        """Freezes or unfreezes a layer of all members, as `layer.trainable` does in Keras; call `compile()` afterwards.

        Args:
            name: the layer's name in the first member, a model within it included.
            trainable: whether to train it, and all layers within it.
        """
        layers = [keras_private.all_layers(model) for model in self._built_members().templates]
        places = [place for place, layer in enumerate(layers[0]) if layer.name == name]
        if len(places) != 1:
            names = ", ".join(layer.name for layer in layers[0] if layer.variables)
            raise ValueError(
                f"Expected the name of one layer of a member, of {names}. Received: {name!r}, which {len(places)} have"
            )
        if any(len(each) != len(layers[0]) for each in layers):
            raise ValueError("Expected members with the same layers. Received: different numbers of layers")
        for each in layers:
            each[places[0]].trainable = trainable

    # One step.

    def train_step(self, batch: Any) -> dict[str, Any]:
        """One step of all members on one batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        said, each, by_output = self._update_members(data.split(x), y, sample_weight)
        return self._report(x, y, said, each, by_output, sample_weight)

    def train_in_graph(self, x: Any, y: Any, sample_weight: Any = None) -> tf.Tensor:
        """One step of all members within a `tf.function` of yours; returns the mean of their losses, `[]`.

        As `train_on_batch`, without metrics. Members that are frozen when it is traced stay so in that graph.
        """
        with tf.init_scope():  # Marks are read, not traced.
            self._remember_marks()
        self._make_update().follow(cast(Any, self).trainable_variables)
        return finite_mean(self._update_members(data.split(x), y, sample_weight)[1])

    def minimize_in_graph(self, x: Any, loss: Callable[[Any], tf.Tensor]) -> tf.Tensor:
        """One step of all members on losses that you compute; returns the mean of them with penalties, `[]`.

        For targets that are each member's own, as in Q-learning. As `train_in_graph`, it is called within a
        `tf.function` of yours. Neither the compiled loss nor the bootstrap is used.

        Args:
            x: a batch of inputs.
            loss: from outputs `[batch, members, outputs]`, or the structure of them, to losses `[members]`.
        """
        with tf.init_scope():  # Marks are read, not traced.
            self._remember_marks()
        self._make_update().follow(cast(Any, self).trainable_variables)
        return finite_mean(self._update_members(data.split(x), None, None, loss)[1])

    def _update_members(
        self,
        parts: data.Inputs,
        y: Any,
        sample_weight: Any,
        own_loss: Callable[[Any], tf.Tensor] | None = None,
    ) -> tuple[Any, tf.Tensor, list[tf.Tensor]]:
        """Makes the step; returns members' outputs before it, their losses `[members]`, penalties included, and those
        of each output."""
        with frozen_members_kept(self._built_members().owned_variables(), self._frozen.in_step()):
            with tf.GradientTape() as tape:
                parts = self._seen(parts, training=True)
                said, penalty = self._forward(parts, training=True)
                if own_loss is None:
                    mine, by_output = self._batch_losses(parts, y, said, sample_weight, training=True)
                else:
                    mine, by_output = own_loss(self._packed(said)), []
                # This replica's share of what all members minimize.
                total = tf.reduce_sum(mine) + tf.reduce_sum(penalty) / replicas.count()
                total = self.optimizer.scale_loss(total)
            each, update = replicas.total(mine), self._make_update()
            # The decay of an embedding is of all its rows, not of those that were taken.
            tables = {} if self.l2 else self._built_members().tables()
            update.apply(update.gradients(tape, total, tables), each)
        return said, each + penalty, replicas.total(by_output)

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Evaluates one batch, without bootstrap weights."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        parts = data.split(x)
        parts = self._seen(parts, training=False)
        said, penalty = self._forward(parts, training=False)
        mine, by_output = self._batch_losses(parts, y, said, sample_weight, training=False)
        return self._report(x, y, said, replicas.total(mine) + penalty, replicas.total(by_output), sample_weight)

    def _batch_losses(
        self, parts: data.Inputs, y: Any, said: Sequence[tf.Tensor], sample_weight: Any, training: bool
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns each member's loss on a batch, `[members]`, and, of several outputs, those of each.

        Of several replicas, this one's share of it.
        """
        members, bootstrap = self._built_members(), self.bootstrap if training else None
        if bootstrap is not None:
            data.require_ids(parts.ids)
        listed = self.outputs_said()
        targets, weights = self._split_targets(y), self._split_weights(sample_weight)
        sizes = [0 if one.loss is None else one.num_targets or 0 for one in listed]
        batches = losses.make_batches(targets, weights, bootstrap, self.seed, parts.ids, self.num_members, sizes)
        if members.has_own_losses:
            x = parts.x if parts.features is None else parts.features
            return own_losses.compute(members.templates, x, batches[0], said[0], training), []
        found, total = [], None
        for output, batch, result in zip(listed, batches, said, strict=True):
            if output.loss is None:
                continue
            mask = keras_private.mask_of(result)
            found.append(replicas.member_losses(output.loss, batch, result, bool(members.separate), mask))
            weighted = found[-1] if output.weight == 1.0 else found[-1] * output.weight
            total = weighted if total is None else total + weighted
        return total, found if len(found) > 1 else []

    def _split_targets(self, y: Any) -> list[Any]:
        """Returns the targets of each output; None for those without a loss that have none."""
        found = self._structure.split(y, "targets y", missing=True)
        for part, output in zip(found, self.outputs_said(), strict=True):
            if part is None and output.loss is not None and not self._structure.is_one:
                raise ValueError(f"Expected targets for the output {output.name!r}, which has a loss. Received: none")
        return found

    def _split_weights(self, sample_weight: Any) -> list[Any]:
        """Returns the sample weights of each output: one for all of them, or of each its own."""
        if not isinstance(sample_weight, dict | list | tuple):
            return [sample_weight] * len(self._structure)
        found = self._structure.split(sample_weight, "sample weights", missing=True)
        for part, output in zip(found, self.outputs_said(), strict=True):
            if part is None and output.loss is not None:
                raise ValueError(f"Expected sample weights for the output {output.name!r} as well. Received: none")
        return found

    def _report(
        self, x: Any, y: Any, said: Sequence[tf.Tensor], each: tf.Tensor, by_output: Sequence[Any], sample_weight: Any
    ) -> dict[str, Any]:
        """Updates the running losses and metrics and returns them."""
        batch = tf.shape(said[0])[1]
        keras_private.track_loss(self, finite_mean(each), batch)
        self._member_mean.update_state(each, batch)
        for mean, own in zip(self._output_means, by_output, strict=True):
            mean.update_state(finite_mean(own), sample_weight=batch)
        return self.compute_metrics(x, y, self._packed(said), sample_weight)

    def _call_member(self, inputs: Any, member: tf.Tensor) -> Any:
        """Returns what `call` does of one member in inference, `[batch, 1, ...]`, at about the price of one model."""
        data.refuse_ragged(inputs)
        parts = data.split(inputs)
        self._build_from(parts.x)
        parts = self._seen(parts, training=False)
        outputs = self._built_members().run_member(parts.x if self.trunk is None else parts.features, member)
        return self._packed(self._with_priors(outputs, parts, member))

    def _packed(self, said: Sequence[tf.Tensor]) -> Any:
        """Returns outputs `[members, batch, ...]` as users see them: `[batch, members, ...]`, masks alike."""
        return self._structure.pack([structure.transposed_with_mask(part) for part in said])

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        """Returns the mean over members of their losses, without regularization."""
        said = [structure.transposed_with_mask(part) for part in structure.leaves(y_pred)]
        parts = self._seen(data.split(x), training=False)
        return tf.reduce_mean(self._batch_losses(parts, y, said, sample_weight, training=False)[0])

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates metrics: ours with the members `[batch, members, ...]`, Keras's with the mixture."""
        targets, weights = self._split_targets(y), self._split_weights(sample_weight)
        names, seen = [], []
        said = zip(self.outputs_said(), targets, structure.leaves(y_pred), strict=True)
        for place, (output, own, result) in enumerate(said):
            if own is None:
                continue
            mask = keras_private.mask_of(result)
            apart = self._member_metrics_of(place), self._logit_metrics_of(place)
            of_all = None if mask is None else mask[:, 0]
            names.append(place)
            seen.append(outputs.update_metrics(output, *apart, own, result, self._healthy(), of_all))
        if self._structure.is_one:
            return super().compute_metrics(x, targets[0], seen[0], weights[0])  # type: ignore[misc]
        y, y_pred, by_name = (
            {self._structure.names[place]: part for place, part in zip(names, parts, strict=True)}
            for parts in ([targets[place] for place in names], seen, [weights[place] for place in names])
        )
        return super().compute_metrics(x, y, y_pred, None if sample_weight is None else by_name)  # type: ignore[misc]

    def _healthy(self) -> Array:
        """Returns the indices of members that have not diverged; of all, if none is left."""
        diverged = self._diverged.in_step()
        return np.flatnonzero(~diverged) if not diverged.all() else np.arange(self.num_members)

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns the scalar metrics, those of several outputs by their names; `member_losses` has losses by member."""
        result = super().get_metrics_result()  # type: ignore[misc]
        result.pop("member_losses", None)
        if len(self._structure) == 1:
            return result
        apart = [self._member_metrics, self._logit_metrics]
        for metric in (metric for metrics in apart for metric in metrics):
            result.pop(metric.name, None)
        for places, metrics in zip(self._metric_places.value, apart, strict=True):
            for place, metric in zip(places, metrics, strict=True):
                result[f"{self._structure.names[place]}_{metric.name}"] = _number(metric.result())
        return result

    def metric_names(self) -> dict[str, Any]:
        """Returns our metrics by the names that they are reported under."""
        if len(self._structure) == 1:
            return {metric.name: metric for metric in self._member_metrics}
        names = [self._structure.names[place] for place in self._metric_places.value[0]]
        return {f"{name}_{metric.name}": metric for name, metric in zip(names, self._member_metrics, strict=True)}

    def _member_metrics_of(self, place: int) -> list[Any]:
        return [m for at, m in zip(self._metric_places.value[0], self._member_metrics, strict=True) if at == place]

    def _logit_metrics_of(self, place: int) -> list[Any]:
        return [m for at, m in zip(self._metric_places.value[1], self._logit_metrics, strict=True) if at == place]


def finite_mean(losses: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the members' losses `[members]` that are finite, NaN if none is."""
    finite = tf.math.is_finite(losses)
    count = tf.maximum(tf.reduce_sum(tf.cast(finite, tf.float32)), 1.0)
    mean = tf.reduce_sum(tf.where(finite, losses, 0.0)) / count
    return tf.where(tf.reduce_any(finite), mean, tf.constant(float("nan")))


def _number(value: Any) -> Any:
    """A number outside a graph, as Keras reports metrics."""
    return float(value) if tf.executing_eagerly() else value


class MemberMean(keras.metrics.Metric):
    """The running mean of each member's loss, `[members]`."""

    def __init__(self, num_members: int) -> None:
        super().__init__(name="member_losses")
        self._sum = self.add_variable((num_members,), initializer="zeros", name="sum")
        self._count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, losses: Any, count: Any) -> None:
        """Takes in the losses `[members]` of a batch of `count` examples."""
        count = tf.cast(count, tf.float32)
        self._sum.assign(self._sum + losses * count)
        self._count.assign(self._count + count)

    def result(self) -> Any:
        """Returns the means `[members]`."""
        return tf.math.divide_no_nan(self._sum.value, self._count.value)
