"""The steps of training and evaluation: one batch for all members, compiled for those that are frozen or diverged now.

Shapes: outputs `[batch, members, outputs]`, inside a step `[members, batch, outputs]`; losses `[members]`.
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
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.updates import SHARED, MemberwiseUpdate


class Steps(Settings):
    """The part of an `Ensemble` that has its steps, which are compiled with who is frozen and what is trainable."""

    num_members: int
    optimizer: Any
    trainable_variables: list[Any]
    distribute_strategy: Any
    compiled: bool
    _built_members: Callable[[], Any]
    _forward: Callable[..., tuple[tf.Tensor, tf.Tensor]]
    _seen: Callable[..., data.Inputs]
    _num_outputs: int
    _member_loss: Any
    _member_mean: losses.MemberMean
    _member_metrics: list[Any]
    _logit_metrics: list[Any]
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
            self.make_train_function(force=True)
            self.make_test_function(force=True)

    # One step.

    def train_step(self, batch: Any) -> dict[str, Any]:
        """One step of all members on one batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        result, each = self._update_members(data.split(x), y, sample_weight)
        return self._report(x, y, result, each, sample_weight)

    def train_in_graph(self, x: Any, y: Any, sample_weight: Any = None) -> tf.Tensor:
        """One step of all members within a `tf.function` of yours; returns the mean of their losses, `[]`.

        As `train_on_batch`, without metrics. Members that are frozen when it is traced stay so in that graph.
        """
        with tf.init_scope():  # Marks are read, not traced.
            self._remember_marks()
        self._make_update().follow(cast(Any, self).trainable_variables)
        return losses.finite_mean(self._update_members(data.split(x), y, sample_weight)[1])

    def minimize_in_graph(self, x: Any, loss: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """One step of all members on losses that you compute; returns the mean of them with penalties, `[]`.

        For targets that are each member's own, as in Q-learning. As `train_in_graph`, it is called within a
        `tf.function` of yours. Neither the compiled loss nor the bootstrap is used.

        Args:
            x: a batch of inputs.
            loss: from outputs `[batch, members, outputs]` to losses `[members]`.
        """
        with tf.init_scope():  # Marks are read, not traced.
            self._remember_marks()
        self._make_update().follow(cast(Any, self).trainable_variables)
        return losses.finite_mean(self._update_members(data.split(x), None, None, loss)[1])

    def _update_members(
        self,
        parts: data.Inputs,
        y: Any,
        sample_weight: Any,
        own_loss: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Makes the step; returns members' outputs before it, and their losses `[members]`, penalties included."""
        with frozen_members_kept(self._built_members().owned_variables(), self._frozen.in_step()):
            with tf.GradientTape() as tape:
                parts = self._seen(parts, training=True)
                result, penalty = self._forward(parts, training=True)
                if own_loss is None:
                    mine = self._batch_losses(parts, y, result, sample_weight, training=True)
                else:
                    mine = own_loss(tf.transpose(result, [1, 0, 2]))
                # This replica's share of what all members minimize.
                total = tf.reduce_sum(mine) + tf.reduce_sum(penalty) / replicas.count()
                total = self.optimizer.scale_loss(total)
            each, update = replicas.total(mine), self._make_update()
            update.apply(update.gradients(tape, total, self._built_members().tables()), each)
        return result, each + penalty

    def test_step(self, batch: Any) -> dict[str, Any]:
        """Evaluates one batch, without bootstrap weights."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        parts = data.split(x)
        parts = self._seen(parts, training=False)
        result, penalty = self._forward(parts, training=False)
        each = replicas.total(self._batch_losses(parts, y, result, sample_weight, training=False))
        return self._report(x, y, result, each + penalty, sample_weight)

    def _batch_losses(
        self, parts: data.Inputs, y: Any, result: tf.Tensor, sample_weight: Any, training: bool
    ) -> tf.Tensor:
        """Returns each member's loss on a batch, `[members]`: of several replicas, this one's share of it."""
        members, bootstrap = self._built_members(), self.bootstrap if training else None
        if bootstrap is not None:
            data.require_ids(parts.ids)
        sizes = self.num_members, outputs.num_targets(cast(Any, self).head, self._num_outputs)
        batch = losses.make_batch(y, sample_weight, bootstrap, self.seed, parts.ids, *sizes)
        if members.has_own_losses:
            x = parts.x if parts.features is None else parts.features
            return losses.own_losses(members.templates, x, batch, result, training)
        each = losses.member_losses(self._member_loss, batch, result, one_by_one=bool(members.separate))
        return replicas.share(self._member_loss, each, batch)

    def _report(self, x: Any, y: Any, result: tf.Tensor, each: tf.Tensor, sample_weight: Any) -> dict[str, Any]:
        """Updates the running losses and metrics and returns them."""
        batch = tf.shape(result)[1]
        keras_private.track_loss(self, losses.finite_mean(each), batch)
        self._member_mean.update_state(each, batch)
        return self.compute_metrics(x, y, tf.transpose(result, [1, 0, 2]), sample_weight)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        """Returns the mean over members of their losses, without regularization."""
        result = tf.transpose(y_pred, [1, 0, 2])
        parts = self._seen(data.split(x), training=False)
        return tf.reduce_mean(self._batch_losses(parts, y, result, sample_weight, training=False))

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates metrics: ours with the members `[batch, members, outputs]`, Keras's with the mixture."""
        apart, model = (self._member_metrics, self._logit_metrics), cast(Any, self)
        seen = outputs.update_metrics(*apart, model.kind, y, y_pred, self._healthy(), model.head)
        return super().compute_metrics(x, y, seen, sample_weight)  # type: ignore[misc]

    def _healthy(self) -> Array:
        """Returns the indices of members that have not diverged; of all, if none is left."""
        diverged = self._diverged.in_step()
        return np.flatnonzero(~diverged) if not diverged.all() else np.arange(self.num_members)

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns the scalar metrics; `member_losses` has the losses by member."""
        result = super().get_metrics_result()  # type: ignore[misc]
        result.pop("member_losses", None)
        return result
