"""Losses: each member's own, as Keras would compute it for that member alone.

Keras's own losses that treat examples one by one see all members' examples as one batch. Any other loss is called with
one member's batch, in the shapes that `keras.Model.fit` would give it, so that it may look across the batch. A member
that has a `compute_loss` of its own is asked for its loss.

Shapes: outputs `[members, batch, outputs]`, losses `[members]`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import keras_private
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import losses as regression

_of = keras.losses

# Up to so many members a loop over losses is unrolled. For a hundred, XLA compiles ten times as long as for a loop of
# its own. (`tf.vectorized_map` would run as fast, but XLA compiles it anew at every step.)
_UNROLLED = 16


@dataclasses.dataclass(frozen=True)
class _Known:
    """What we know of one of Keras's losses."""

    kind: Kind | None  # what it takes member outputs to be, if it takes no logits; None: more than one kind
    logits: Kind | None = None  # what it takes them to be with `from_logits=True`
    per_example: bool = True  # whether an example's value depends on that example alone
    class_indices: bool = False  # whether labels are class numbers


# By function: each of Keras's loss classes wraps one. A loss of ours that says what outputs are gets a line here, too.
_KNOWN: dict[Any, _Known] = {
    _of.sparse_categorical_crossentropy: _Known(Kind.PROBABILITIES, Kind.LOGITS, class_indices=True),
    _of.categorical_crossentropy: _Known(Kind.PROBABILITIES, Kind.LOGITS),
    _of.categorical_focal_crossentropy: _Known(Kind.PROBABILITIES, Kind.LOGITS),
    _of.categorical_generalized_cross_entropy: _Known(Kind.PROBABILITIES, class_indices=True),
    _of.binary_crossentropy: _Known(Kind.MULTILABEL_PROBABILITIES, Kind.MULTILABEL_LOGITS),
    _of.binary_focal_crossentropy: _Known(Kind.MULTILABEL_PROBABILITIES, Kind.MULTILABEL_LOGITS),
    _of.kl_divergence: _Known(Kind.PROBABILITIES),
    _of.dice: _Known(None, per_example=False),
    _of.tversky: _Known(None, per_example=False),
    _of.circle: _Known(Kind.VALUES, per_example=False),
    _of.ctc: _Known(Kind.VALUES, per_example=False),
    **dict.fromkeys(
        (
            *(_of.mean_squared_error, _of.mean_absolute_error, _of.mean_absolute_percentage_error),
            *(_of.mean_squared_logarithmic_error, _of.cosine_similarity, _of.huber, _of.log_cosh, _of.poisson),
            *(_of.hinge, _of.squared_hinge, _of.categorical_hinge),
        ),
        _Known(Kind.VALUES),
    ),
}


def as_loss(loss: Any, loss_weights: Any = None) -> keras.losses.Loss:
    """Returns the one Keras loss of an ensemble, from a name, a function or a loss object."""
    if loss_weights is not None:
        raise ValueError(f"Expected loss_weights=None: an ensemble has one output. Received: {loss_weights!r}")
    if loss is None or isinstance(loss, list | tuple | dict):
        raise ValueError(f"Expected one Keras loss: a name, a function or a keras.losses.Loss. Received: {loss!r}")
    found = keras.losses.get(loss)
    if not isinstance(found, keras.losses.Loss):
        found = keras_private.function_loss(found)
    if found.reduction in (None, "none"):
        raise ValueError(
            f"Expected a loss that is reduced over the batch, such as reduction='sum_over_batch_size'. "
            f"Received: {found.name} with reduction={found.reduction!r}"
        )
    return found


class OwnLoss(keras.losses.Loss):
    """Stands for what members' own `compute_loss` says, where `compile` was given no loss: nothing is known of it."""

    def __init__(self) -> None:
        super().__init__(name="compute_loss")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Raises: only members can be asked."""
        raise ValueError(f"Expected to ask members for their loss. Received: targets {y_true.shape}, {y_pred.shape}")


def of_members(models: Sequence[keras.Model], loss: Any, loss_weights: Any) -> keras.losses.Loss:
    """Returns the one loss of an ensemble of these members, who get to know it if they compute their own.

    Args:
        models: members, or the one that stands for all.
        loss: as `compile` has it; may be None if members compute their own.
        loss_weights: as `compile` has it.
    """
    if not _compute_their_own(models):
        return as_loss(loss, loss_weights)
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            "Expected members without a compute_loss of their own on several replicas, since nothing says how its "
            f"values are to be added up; use one replica or compile(loss=...). Received: {replicas} replicas"
        )
    if loss is None:
        return OwnLoss()
    found = as_loss(loss, loss_weights)
    for model in models:
        keras_private.give_loss(model, found)
    return found


def _compute_their_own(models: Sequence[keras.Model]) -> bool:
    return any(keras_private.overrides(model, "compute_loss") for model in models)


def _settings(loss: keras.losses.Loss) -> tuple[_Known | None, dict[str, Any]]:
    """Returns what we know of a loss, by its exact type and never by its name, and its settings."""
    function, settings = keras_private.loss_function(loss)
    if isinstance(function, functools.partial) and not function.args:
        function, settings = function.func, {**function.keywords, **settings}
    try:
        return _KNOWN.get(function), settings
    except TypeError:  # A callable that cannot be hashed is none of Keras's.
        return None, settings


def kind_of(loss: keras.losses.Loss | None, num_outputs: int | None) -> Kind | None:
    """Returns what member outputs mean to this loss; None where it does not say.

    Args:
        loss: from `as_loss`, or None before `compile`.
        num_outputs: a member's, None if not known yet: a binary cross-entropy of one output is that of two classes, of
            more, that of as many labels.
    """
    head = regression.head_of(loss)
    if head is not None:
        return head.kind
    known, settings = (None, {}) if loss is None else _settings(loss)
    if known is None:
        return None
    kind = known.logits if known.logits and settings.get("from_logits") else known.kind
    if kind is not None and kind.is_multilabel and num_outputs in (None, 1):
        return Kind.BINARY_LOGITS if kind is Kind.MULTILABEL_LOGITS else Kind.PROBABILITIES
    return kind


def takes_class_indices(loss: keras.losses.Loss) -> bool:
    """Whether labels are class numbers."""
    known, _ = _settings(loss)
    return known is not None and known.class_indices


def ignored_class(loss: keras.losses.Loss) -> int | None:
    """Returns the class number whose examples do not count, if there is one."""
    return _settings(loss)[1].get("ignore_class") if takes_class_indices(loss) else None


def is_per_example(loss: keras.losses.Loss) -> bool:
    """Whether each example's value is known to depend on that example alone, so that members can be folded."""
    if regression.is_known(loss):
        return True
    known, settings = _settings(loss)
    if known is None or not known.per_example:
        return False
    # Along another axis it looks across the batch; with an ignored class it divides by how many are left.
    return settings.get("axis", -1) in (-1, 1) and settings.get("ignore_class") is None


@dataclasses.dataclass(frozen=True)
class Batch:
    """What members' losses compare outputs with."""

    y: tf.Tensor  # targets [batch, ...], or [members, batch, ...] if `perturbed`
    perturbed: bool = False
    weights: tf.Tensor | None = None  # [members, batch]; None for ones
    bootstrapped: bool = False  # whether a bootstrap has decided the weights


def make_batch(
    y: Any, sample_weight: Any, bootstrap: Bootstrap | None, seed: int, ids: Any, num_members: int, num_targets: int
) -> Batch:
    """Returns the targets and loss weights of all members.

    Args:
        y: targets `[batch, ...]`.
        sample_weight: `[batch]`, or None.
        bootstrap: perturbs either the targets or the weights; None for neither.
        seed: the ensemble's.
        ids: example ids `[batch]`, for a bootstrap.
        num_members: M.
        num_targets: numbers per example that noise is added to.
    """
    y, weights, perturbed = tf.convert_to_tensor(y), None, False
    if bootstrap is not None:
        all_members = tf.range(num_members)
        noise = bootstrap.target_noise(seed, ids, all_members, num_targets)
        if noise is None:
            weights = tf.transpose(bootstrap.weights(seed, ids, all_members))
        else:
            noise = tf.reshape(tf.transpose(noise, [1, 0, 2]), tf.concat([[num_members], tf.shape(y)], axis=0))
            y, perturbed = tf.cast(y, tf.float32)[None] + noise, True
    bootstrapped = weights is not None
    if sample_weight is not None:
        own = tf.reshape(tf.cast(sample_weight, tf.float32), [1, -1])
        weights = own * (tf.ones([num_members, 1]) if weights is None else weights)
    return Batch(y, perturbed, weights, bootstrapped)


def member_losses(loss: keras.losses.Loss, batch: Batch, outputs: tf.Tensor, one_by_one: bool = False) -> tf.Tensor:
    """Returns each member's own loss, `[members]`, reduced over the batch as the loss asks.

    Args:
        loss: from `as_loss`.
        batch: targets and weights.
        outputs: `[members, batch, outputs]`.
        one_by_one: calls the loss once per member, with the very operations of a model trained alone.
    """
    if one_by_one or not is_per_example(loss):
        return _by_member(loss, batch, outputs, one_by_one)
    members, size, weights = outputs.shape[0], tf.shape(outputs)[1], batch.weights
    y = batch.y if batch.perturbed else tf.repeat(batch.y[None], members, axis=0)
    values = tf.reshape(tf.cast(loss.call(_fold(y), _fold(outputs)), tf.float32), [members, size])
    if weights is not None:
        values *= weights
    total = tf.reduce_sum(values, axis=1)
    if loss.reduction == "sum":
        return total
    if loss.reduction == "mean_with_sample_weight" and weights is not None:
        return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1))
    return total / tf.cast(size, tf.float32)


def own_losses(models: Sequence[keras.Model], x: Any, batch: Batch, outputs: tf.Tensor, training: bool) -> tf.Tensor:
    """Returns what each member's own `compute_loss` says of its batch, `[members]`.

    Args:
        models: all members, which have just been called.
        x: inputs `[batch, ...]`.
        batch: targets and weights, which members get as `sample_weight`.
        outputs: `[members, batch, outputs]`, priors included.
        training: whether it is a step of training.
    """
    values = []
    for m, model in enumerate(models):
        y = batch.y[m] if batch.perturbed else batch.y
        weights = None if batch.weights is None else batch.weights[m]
        with tf.GradientTape() as tape:
            tape.watch([] if weights is None else weights)
            value = keras_private.compute_loss(model, x, y, outputs[m], weights, training)
        if batch.bootstrapped and tape.gradient(value, weights) is None:
            raise ValueError(
                "Expected a compute_loss that weighs examples by sample_weight, since a bootstrap does. Received: that "
                f"of {type(model).__name__}, which does not: weigh there, or use bootstrap=None or tfe.GaussianNoise"
            )
        if value is None or len(tf.convert_to_tensor(value).shape):
            raise ValueError(f"Expected {type(model).__name__}.compute_loss to return one number. Received: {value}")
        values.append(tf.cast(value, tf.float32))
    return tf.stack(values)


def _by_member(loss: keras.losses.Loss, batch: Batch, outputs: tf.Tensor, one_by_one: bool) -> tf.Tensor:
    """Calls the loss with each member's batch."""
    members = outputs.shape[0]
    # Keras divides by the number of replicas; we do that later.
    replicas = 1.0 if loss.reduction == "sum" else float(tf.distribute.get_strategy().num_replicas_in_sync)

    @tf.autograph.experimental.do_not_convert
    def of_member(part: dict[str, tf.Tensor]) -> tf.Tensor:
        y, result = part.get("y", batch.y), part["result"]
        weights = _fit_weights(loss, y, result, part["weights"], batch.bootstrapped) if "weights" in part else None
        return tf.cast(loss(y, result, sample_weight=weights), tf.float32) * replicas

    parts = {"result": outputs}
    if batch.perturbed:
        parts["y"] = batch.y
    if batch.weights is not None:
        parts["weights"] = batch.weights
    if one_by_one or members <= _UNROLLED:
        return tf.stack([of_member({name: part[m] for name, part in parts.items()}) for m in range(members)])
    return tf.map_fn(of_member, parts, fn_output_signature=tf.float32)


def _fit_weights(loss: Any, y: tf.Tensor, result: tf.Tensor, weights: tf.Tensor, bootstrapped: bool) -> tf.Tensor:
    """Returns weights `[batch]` in a shape that weighs examples, whatever the shape of the loss's values."""
    values = loss.call(tf.cast(y, loss.dtype), tf.cast(result, loss.dtype))
    rank = len(values.shape)
    if rank == 0 and bootstrapped:
        raise ValueError(_no_values_per_example(loss))
    if rank < 2:
        return weights  # As Keras takes them; a scalar loss is multiplied by their mean.
    return tf.reshape(weights, [-1, *([1] * (rank - 1))]) * tf.ones_like(values)


def _no_values_per_example(loss: keras.losses.Loss) -> str:
    return (
        "Expected a loss that returns one value per example, since a bootstrap weighs examples. "
        f"Received: {loss.name}, which returns one for the whole batch: use bootstrap=None or tfe.GaussianNoise"
    )


def check_bootstrap(
    loss: keras.losses.Loss, bootstrap: Bootstrap | None, y: Any, num_outputs: int, num_targets: int, own: bool
) -> None:
    """Raises, before training, if a bootstrap's weights would have no example to weigh, or its noise no target.

    Args:
        loss: from `of_members`.
        bootstrap: the ensemble's, if it has one.
        y: targets `[batch, ...]`.
        num_outputs: a member's columns.
        num_targets: numbers per example that noise is added to.
        own: whether members compute their own loss, which is seen to weigh examples when it is called.
    """
    if bootstrap is None:
        return
    if type(bootstrap).target_noise is not Bootstrap.target_noise:
        if y.size != len(y) * num_targets:
            raise ValueError(f"Expected targets [{len(y)}, {num_targets}] for {bootstrap!r}. Received: {y.shape}")
        return
    if own or is_per_example(loss):
        return
    rows = tf.cast(tf.convert_to_tensor(y[: 3 if num_outputs == 2 else 2]), loss.dtype)
    if loss.call(rows, tf.zeros([len(rows), num_outputs], loss.dtype)).shape[:1] != rows.shape[:1]:
        raise ValueError(_no_values_per_example(loss))


def finite_mean(losses: tf.Tensor) -> tf.Tensor:
    """Returns the mean of the members' losses `[members]` that are finite, NaN if none is."""
    finite = tf.math.is_finite(losses)
    count = tf.maximum(tf.reduce_sum(tf.cast(finite, tf.float32)), 1.0)
    mean = tf.reduce_sum(tf.where(finite, losses, 0.0)) / count
    return tf.where(tf.reduce_any(finite), mean, tf.constant(float("nan")))


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


def _fold(tensor: tf.Tensor) -> tf.Tensor:
    """`[members, batch, ...]` as one batch, `[members * batch, ...]`."""
    return tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))
