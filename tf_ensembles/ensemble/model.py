"""`Ensemble`: M Keras models, their priors and bootstrap weights, as one Keras model.

Shapes: inputs `[batch, ...]`, outputs `[batch, members, outputs]`, losses `[members]`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import batches, checks, example_ids, network, outputs, updates
from tf_ensembles.ensemble import callbacks as callbacks_lib
from tf_ensembles.ensemble.layer_rules import Hidden
from tf_ensembles.ensemble.outputs import Kind
from tf_ensembles.metrics.streaming import MemberMetric
from tf_ensembles.prior import PriorFunction


class _MemberMean(keras.metrics.Metric):
    """The running mean of each member's loss, `[members]`."""

    def __init__(self, num_members: int) -> None:
        super().__init__(name="member_losses")
        self._sum = self.add_variable((num_members,), initializer="zeros", name="sum")
        self._count = self.add_variable((), initializer="zeros", name="count")

    def update_state(self, losses: Any, count: Any) -> None:
        count = tf.cast(count, tf.float32)
        self._sum.assign(self._sum + losses * count)
        self._count.assign(self._count + count)

    def result(self) -> Any:
        return tf.math.divide_no_nan(self._sum.value, self._count.value)


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Ensemble(network.EnsembleNetwork):
    """An ensemble of any Keras model, with optional random prior functions and bootstrapping.

    Member m minimises `mean(W[t, m] * loss(f_m(x_t), y_t)) + l2 * ||theta_m||^2` with
    `f_m(x) = g_m(x) + scale * p_m(x)`; only `g_m` is trained. Members share no gradient: the loss that is minimised is
    the sum of theirs, so training M together equals training M alone. Reported losses are means over members.

    Args:
        build_member: returns a new Keras model, inputs to `[batch, outputs]`, at each call.
        num_members: M.
        prior: a frozen random function added to each member's output; None for ensemble-n.
        bootstrap: the law of each example's weight in each member's loss; None for equal weights.
        l2: weight decay per member, in the mean form: the paper's `lambda / T`.
        seed: decides initial weights, priors and bootstrap weights.
        outputs: what a member returns: `"logits"`, `"binary_logits"`, `"probabilities"` or `"values"`. `"auto"` reads
            it from the loss at `compile`.
    """

    def __init__(
        self,
        build_member: Callable[[], keras.Model],
        num_members: int,
        prior: PriorFunction | None = None,
        bootstrap: Bootstrap | None = None,
        l2: float = 0.0,
        seed: int = 0,
        outputs: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(build_member, num_members, prior, bootstrap, l2, seed, outputs, **kwargs)
        self.member_history: dict[str, list[Array]] = {}
        self._auto_jit = True
        self._update: Hidden | None = None
        self._frozen_now = self._diverged_now = np.zeros(num_members, bool)

    def _build_from(self, x: Any) -> None:
        """Builds from data, and decides on XLA, which depends on what was built."""
        if self.members is None:
            super()._build_from(x)
            if self.compiled and self._auto_jit:
                self.jit_compile = self._resolve_auto_jit_compile()

    @property
    def member_losses(self) -> Array:
        """Each member's loss over the current epoch or the last evaluation, `[members]`."""
        return np.asarray(self._member_mean.result())

    def freeze_members(self, indices: Sequence[int]) -> None:
        """Stops training these members; the others go on."""
        self._mark(self._frozen, indices)

    def mark_diverged(self, indices: Sequence[int]) -> None:
        """Stops training these members and leaves them out of mixtures and metrics."""
        self._mark(self._frozen, indices)
        self._mark(self._diverged, indices)

    def _mark(self, variable: Any, indices: Sequence[int]) -> None:
        flags = np.array(variable)
        flags[np.asarray(indices, int)] = 1.0
        variable.assign(flags)
        # Which members are marked is part of the compiled steps, so that an ensemble without any pays nothing.
        for make in (self.make_train_function, self.make_test_function):
            if self.compiled:
                make(force=True)

    # Training.

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: None = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        jit_compile: Any = "auto",
        **kwargs: Any,
    ) -> None:
        """Configures training, as `keras.Model.compile` does.

        Args:
            optimizer: any Keras optimizer.
            loss: one Keras loss, computed for each member.
            loss_weights: None: there is one output.
            metrics: Keras metrics, which see the mixture's prediction `[batch, outputs]`, and metrics of
                `tfe.metrics`, which see the members.
            weighted_metrics: Keras metrics that take sample weights.
            jit_compile: as in Keras; `"auto"` uses XLA where all layers are vectorised.
            **kwargs: what else `keras.Model.compile` takes.
        """
        if loss_weights is not None:
            raise ValueError(f"Expected loss_weights=None: an ensemble has one output. Received: {loss_weights!r}")
        self._member_loss = outputs.as_loss(loss)
        self.kind = self._infer_kind()
        listed = list(metrics) if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]
        self._member_metrics = [metric for metric in listed if isinstance(metric, MemberMetric)]
        if self._member_metrics and self.kind is Kind.VALUES:
            raise ValueError(f"Expected class predictions for {self._member_metrics[0].name}. Received: a regression")
        others = [metric for metric in listed if not isinstance(metric, MemberMetric)]
        self._auto_jit = jit_compile == "auto"
        super().compile(
            optimizer=optimizer,
            loss=loss,
            metrics=others or None,
            weighted_metrics=weighted_metrics,
            jit_compile=jit_compile,
            **kwargs,
        )
        self._all_metrics = Hidden(listed)
        self._member_mean = _MemberMean(self.num_members)
        self._update = None

    def _infer_kind(self) -> Kind:
        if self._outputs_argument != "auto":
            return Kind.parse(self._outputs_argument)
        kind = outputs.infer_kind(self._member_loss)
        if kind is Kind.PROBABILITIES and self.prior is not None:
            raise ValueError(
                "Expected a loss with from_logits=True: a prior is added to logits, not to probabilities. "
                f"Received: {self._member_loss.name} with from_logits=False"
            )
        return kind

    def get_compile_config(self) -> dict[str, Any]:
        """Returns what `compile` was given."""
        config = super().get_compile_config()
        if config:
            config["metrics"] = keras.saving.serialize_keras_object(self._all_metrics.value)
            config["jit_compile"] = "auto" if self._auto_jit else config["jit_compile"]
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles as a saved ensemble was."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.members is not None:
            self._make_update()

    def _make_update(self) -> updates.MemberwiseUpdate:
        if self._update is None:
            with self.distribute_strategy.scope():
                update = updates.MemberwiseUpdate(self.optimizer, self.trainable_variables, self.num_members)
            self._update = Hidden(update)
        return self._update.value

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step of all members on one batch."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        parts = example_ids.split(x)
        frozen = self.frozen if tf.executing_eagerly() else self._frozen_now
        stacked = self.stacked_variables if frozen.any() else []
        before = [tf.identity(v.value) for v in stacked]
        with tf.GradientTape() as tape:
            result, penalty = self._forward(parts, training=True)
            losses = self._batch_losses(parts.ids, y, result, sample_weight, training=True)
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            shares = 1.0 if self._member_loss.reduction == "sum" else 1.0 / replicas
            total = tf.reduce_sum(losses) * shares + tf.reduce_sum(penalty) / replicas
            total = self.optimizer.scale_loss(total)
        gradients = tape.gradient(total, self.trainable_variables)
        self._make_update().apply(gradients, losses)
        updates.keep_frozen(stacked, before, tf.constant(frozen))
        return self._report(x, y, result, losses + penalty, sample_weight)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Evaluates one batch, without bootstrap weights."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        result, penalty = self._forward(example_ids.split(x), training=False)
        losses = self._batch_losses(None, y, result, sample_weight, training=False)
        return self._report(x, y, result, losses + penalty, sample_weight)

    def _batch_losses(self, ids: Any, y: Any, result: tf.Tensor, sample_weight: Any, training: bool) -> tf.Tensor:
        """Returns each member's loss on a batch, `[members]`."""
        y = tf.convert_to_tensor(y)
        weights = None
        if self.bootstrap is not None and training:
            checks.require_ids(ids)
            everyone = tf.range(self.num_members)
            noise = self.bootstrap.target_noise(self.seed, ids, everyone, self._num_outputs)
            if noise is None:
                weights = tf.transpose(self.bootstrap.weights(self.seed, ids, everyone))
            else:
                y = tf.reshape(tf.cast(y, tf.float32), [1, -1, self._num_outputs]) + tf.transpose(noise, [1, 0, 2])
        if sample_weight is not None:
            own = tf.reshape(tf.cast(sample_weight, tf.float32), [1, -1])
            weights = own * (tf.ones([self.num_members, 1]) if weights is None else weights)
        assert self.members is not None
        return outputs.member_losses(self._member_loss, y, result, weights, one_by_one=bool(self.members.looped))

    def _report(self, x: Any, y: Any, result: tf.Tensor, losses: tf.Tensor, sample_weight: Any) -> dict[str, Any]:
        """Updates the running losses and metrics and returns them."""
        batch = tf.shape(result)[1]
        finite = tf.math.is_finite(losses)
        some = tf.maximum(tf.reduce_sum(tf.cast(finite, tf.float32)), 1.0)
        mean = tf.reduce_sum(tf.where(finite, losses, 0.0)) / some
        mean = tf.where(tf.reduce_any(finite), mean, tf.constant(float("nan")))
        self._loss_tracker.update_state(mean, sample_weight=batch)
        self._member_mean.update_state(losses, batch)
        return self.compute_metrics(x, y, tf.transpose(result, [1, 0, 2]), sample_weight)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
    ) -> Any:
        """Returns the mean over members of their losses, without regularisation."""
        return tf.reduce_mean(
            self._batch_losses(None, y, tf.transpose(y_pred, [1, 0, 2]), sample_weight, training=False)
        )

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Updates metrics: ours with the members `[batch, members, outputs]`, Keras's with the mixture."""
        healthy = self._healthy()
        if self._member_metrics:
            logits = outputs.class_logits(self.kind, tf.gather(y_pred, np.resize(healthy, self.num_members), axis=1))
            labels = outputs.class_labels(tf.convert_to_tensor(y), logits.shape[-1])
            for metric in self._member_metrics:
                metric.update_state(labels, logits)
        return super().compute_metrics(x, y, self._mixture(y_pred), sample_weight)

    def _healthy(self) -> Array:
        """Returns the indices of members that have not diverged; of all, if none is left."""
        diverged = self.diverged if tf.executing_eagerly() else self._diverged_now
        return np.flatnonzero(~diverged) if not diverged.all() else np.arange(self.num_members)

    def _mixture(self, y_pred: Any) -> tf.Tensor:
        """The ensemble's marginal prediction `[batch, outputs]`: the mean of its members'."""
        healthy = self._healthy()
        if len(healthy) < self.num_members:
            y_pred = tf.gather(y_pred, healthy, axis=1)
        return tf.reduce_mean(outputs.member_probabilities(self.kind, y_pred), axis=1)

    def get_metrics_result(self) -> dict[str, Any]:
        """Returns the scalar metrics; `member_losses` has the losses by member."""
        result = super().get_metrics_result()
        result.pop("member_losses", None)
        return result

    def make_train_function(self, force: bool = False) -> Any:
        """Compiles the training step for the members that are marked now."""
        self._remember_marks()
        return super().make_train_function(force)

    def make_test_function(self, force: bool = False) -> Any:
        """Compiles the evaluation step for the members that are marked now."""
        self._remember_marks()
        with self._auto_jit_off():
            return super().make_test_function(force)

    def make_predict_function(self, force: bool = False) -> Any:
        """Compiles prediction."""
        with self._auto_jit_off():
            return super().make_predict_function(force)

    def _resolve_auto_jit_compile(self) -> bool:
        """XLA pays for vectorised members on every device; Keras by itself leaves it off on CPUs.

        Under a strategy with several replicas XLA cannot reach the other devices' variables, except on TPUs, which
        compile by themselves.
        """
        return bool(self.members and self.supports_jit and self.distribute_strategy.num_replicas_in_sync == 1)

    @contextlib.contextmanager
    def _auto_jit_off(self) -> Iterator[None]:
        """XLA compiles anew for each batch size, which forward passes alone do not pay back."""
        kept = self.jit_compile
        if self._auto_jit:
            self.jit_compile = False
        try:
            yield
        finally:
            self.jit_compile = kept

    def _remember_marks(self) -> None:
        self._frozen_now, self._diverged_now = self.frozen, self.diverged

    # The Keras entry points, with checks and example ids added.

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Any = None,
        sample_weight: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Trains as `keras.Model.fit` does, and returns its `History`.

        Arrays are checked and numbered by position, and shuffled by the ensemble's seed. A `tf.data.Dataset` needs ids
        from `tfe.number_examples` when the ensemble has a bootstrap. Each member's losses are kept in `member_history`.
        """
        self._assert_compile_called("fit")
        x, y = self._prepare(x, y, training=True)
        if validation_data is not None and isinstance(validation_data, tuple) and checks.is_arrays(validation_data[0]):
            val_x, val_y = self._prepare(validation_data[0], validation_data[1], training=False)
            validation_data = (val_x, val_y, *validation_data[2:])
        self._make_update()
        monitor = callbacks_lib.MemberMonitor()
        if isinstance(callbacks, keras.callbacks.CallbackList):
            callbacks.append(monitor)
        else:
            given = callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
            callbacks = [monitor, *given]
            callbacks_lib.tell_direction(given, self._member_metrics)
        arguments = {
            "epochs": epochs,
            "verbose": verbose,
            "callbacks": callbacks,
            "class_weight": class_weight,
            **kwargs,
        }
        one_device = self.distribute_strategy.num_replicas_in_sync == 1
        if y is None or not one_device or kwargs.get("steps_per_epoch"):
            return super().fit(
                x,
                y,
                batch_size=batch_size,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=shuffle,
                sample_weight=sample_weight,
                **arguments,
            )
        data = (x, y) if sample_weight is None else (x, y, np.asarray(sample_weight))
        if validation_split and validation_data is None:
            data, validation_data = checks.split_off(data, validation_split)
        arguments.setdefault("validation_batch_size", batch_size)
        return super().fit(
            batches.epochs(data, len(data[1]), batch_size or 32, self.seed, monitor.first_step, bool(shuffle)),
            steps_per_epoch=-(-len(data[1]) // (batch_size or 32)),
            validation_data=validation_data,
            shuffle=False,  # It is shuffled already.
            **arguments,
        )

    def _prepare(self, x: Any, y: Any, training: bool) -> tuple[Any, Any]:
        """Checks data; numbers arrays and adds what their priors say, computed once."""
        parts = example_ids.split(x)
        if not checks.is_arrays(parts.x):
            self._build_from(x)
            if self.bootstrap is not None and training:
                checks.check_dataset_has_ids(x)
            return x, y
        inputs, y = checks.as_arrays(parts.x), None if y is None else np.asarray(y)
        length = checks.check_inputs(inputs)
        self._build_from(inputs)
        checks.check_targets(y, length, self._num_outputs, self._member_loss, self.kind)
        if self.kind is Kind.PROBABILITIES:
            checks.check_probabilities(self(tf.nest.map_structure(lambda v: v[:8], inputs)))
        ids = np.arange(length) if parts.ids is None else np.asarray(parts.ids)
        if ids.shape != (length,) or not np.issubdtype(ids.dtype, np.integer):
            raise ValueError(f"Expected integer ids of shape [{length}]. Received: {ids.dtype} of shape {ids.shape}")
        return example_ids.with_ids(inputs, ids if training else None, self._cached_prior(inputs, length)), y

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates as `keras.Model.evaluate` does; bootstrap weights play no part."""
        if not kwargs.get("_use_cached_eval_dataset"):
            x, y = self._prepare(x, y, training=False)
        return super().evaluate(x, y, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Array:
        """Returns member outputs `[batch, members, outputs]`: logits for a classifier."""
        self._build_from(x)
        return super().predict(x, *args, **kwargs)

    def predict_proba(self, x: Any, batch_size: int | None = None) -> Array:
        """Returns the mixture's prediction: probabilities `[batch, classes]`, or means `[batch, targets]`."""
        mixture = self._mixture(tf.convert_to_tensor(self.predict(x, batch_size=batch_size, verbose=0)))
        return np.asarray(outputs.two_columns(self.kind, mixture))
