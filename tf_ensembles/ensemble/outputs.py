"""What a member's output means, its loss, and the mixture of all members' predictions.

Shapes inside: outputs `[members, batch, outputs]`, losses `[members]`; public ones are batch first.
"""

from __future__ import annotations

import enum
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.metrics.streaming import MemberMetric


class Kind(enum.Enum):
    """What a member's output is."""

    LOGITS = "logits"  # one logit per class, softmax
    BINARY_LOGITS = "binary_logits"  # one logit for class 1, or one per label of a multi-label problem, sigmoid
    PROBABILITIES = "probabilities"  # the member ends in a softmax or sigmoid of its own
    VALUES = "values"  # regression

    @classmethod
    def parse(cls, value: str) -> Kind:
        """Returns the kind of that name."""
        if value not in {kind.value for kind in cls}:
            raise ValueError(f"Expected outputs in {['auto', *(k.value for k in cls)]}. Received: {value!r}")
        return cls(value)


_SOFTMAX = ("sparse_categorical_crossentropy", "categorical_crossentropy", "categorical_focal_crossentropy")
_SIGMOID = ("binary_crossentropy", "binary_focal_crossentropy")


def as_loss(loss: Any) -> keras.losses.Loss:
    """Returns the one Keras loss of an ensemble, from a name, a function or a loss object."""
    if loss is None or isinstance(loss, list | tuple | dict):
        raise ValueError(f"Expected one Keras loss: a name, a function or a keras.losses.Loss. Received: {loss!r}")
    found = keras.losses.get(loss)
    if not isinstance(found, keras.losses.Loss):
        found = _FunctionLoss(found)
    if found.reduction in (None, "none"):
        raise ValueError(
            f"Expected a loss that is reduced over the batch, such as reduction='sum_over_batch_size'. "
            f"Received: {found.name} with reduction={found.reduction!r}"
        )
    return found


class _FunctionLoss(keras.losses.Loss):
    """A plain function of (y_true, y_pred) as a loss object."""

    def __init__(self, function: Any) -> None:
        super().__init__(name=getattr(function, "__name__", "loss"))
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Returns one loss per example."""
        return self._function(y_true, y_pred)


def infer_kind(loss: keras.losses.Loss) -> Kind:
    """Returns what member outputs mean to this loss; a loss that is no cross-entropy takes values."""
    if loss.name not in (*_SOFTMAX, *_SIGMOID):
        return Kind.VALUES
    if not getattr(loss, "from_logits", False):
        return Kind.PROBABILITIES
    return Kind.LOGITS if loss.name in _SOFTMAX else Kind.BINARY_LOGITS


def kind_of(argument: str, loss: keras.losses.Loss, has_prior: bool) -> Kind:
    """Returns what member outputs are: as the ensemble's argument `outputs` says, or, if `"auto"`, as the loss does."""
    if argument != "auto":
        return Kind.parse(argument)
    kind = infer_kind(loss)
    if kind is Kind.PROBABILITIES and has_prior:
        raise ValueError(
            "Expected a loss with from_logits=True: a prior is added to logits, not to probabilities. "
            f"Received: {loss.name} with from_logits=False"
        )
    return kind


def takes_class_indices(loss: keras.losses.Loss) -> bool:
    """Whether labels are class numbers."""
    return loss.name == "sparse_categorical_crossentropy"


def split_metrics(metrics: Any, kind: Kind) -> tuple[list[Any], list[MemberMetric], list[Any]]:
    """Returns the metrics of `compile` as a list, those of them that see members, and those that see the mixture."""
    listed = list(metrics) if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]
    ours = [metric for metric in listed if isinstance(metric, MemberMetric)]
    if ours and kind is Kind.VALUES:
        raise ValueError(f"Expected class predictions for {ours[0].name}. Received: a regression")
    return listed, ours, [metric for metric in listed if not isinstance(metric, MemberMetric)]


def targets_and_weights(
    y: Any,
    sample_weight: Any,
    bootstrap: Bootstrap | None,
    seed: int,
    ids: Any,
    num_members: int,
    num_outputs: int,
) -> tuple[tf.Tensor, tf.Tensor | None]:
    """Returns the targets and loss weights `[members, batch]` of members; None for weights that are all ones.

    Args:
        y: targets `[batch, ...]`; those that a bootstrap perturbs become `[members, batch, outputs]`.
        sample_weight: `[batch]`, or None.
        bootstrap: perturbs either the targets or the weights; None for neither.
        seed: the ensemble's.
        ids: example ids `[batch]`, for a bootstrap.
        num_members: M.
        num_outputs: numbers per target.
    """
    y, weights = tf.convert_to_tensor(y), None
    if bootstrap is not None:
        all_members = tf.range(num_members)
        noise = bootstrap.target_noise(seed, ids, all_members, num_outputs)
        if noise is None:
            weights = tf.transpose(bootstrap.weights(seed, ids, all_members))
        else:
            y = tf.reshape(tf.cast(y, tf.float32), [1, -1, num_outputs]) + tf.transpose(noise, [1, 0, 2])
    if sample_weight is not None:
        own = tf.reshape(tf.cast(sample_weight, tf.float32), [1, -1])
        weights = own * (tf.ones([num_members, 1]) if weights is None else weights)
    return y, weights


def member_losses(
    loss: keras.losses.Loss, y: tf.Tensor, outputs: tf.Tensor, weights: tf.Tensor | None, one_by_one: bool = False
) -> tf.Tensor:
    """Returns each member's own loss, `[members]`, reduced over the batch as the loss asks.

    Args:
        loss: from `as_loss`.
        y: targets `[batch, ...]`, or `[members, batch, targets]` where they differ between members.
        outputs: `[members, batch, outputs]`.
        weights: `[members, batch]`, or None for ones.
        one_by_one: calls the loss once per member, with the very operations of a model trained alone.
    """
    members, batch = outputs.shape[0], tf.shape(outputs)[1]
    if len(y.shape) < 3:
        y = tf.repeat(y[None], members, axis=0)
    values = None if one_by_one else loss.call(_fold(y), _fold(outputs))
    if values is None or len(values.shape) != 1:  # Not one value per example: the loss looks across the batch.
        weight = [None] * members if weights is None else tf.unstack(weights, num=members)
        targets, results = tf.unstack(y, num=members), tf.unstack(outputs, num=members)
        parts = [loss(targets[m], results[m], sample_weight=weight[m]) for m in range(members)]
        replicas = 1 if loss.reduction == "sum" else tf.distribute.get_strategy().num_replicas_in_sync
        return tf.stack(parts) * float(replicas)  # Keras has divided by the number of replicas; we do that later.
    values = tf.reshape(tf.cast(values, tf.float32), [members, batch])
    if weights is not None:
        values *= weights
    total = tf.reduce_sum(values, axis=1)
    if loss.reduction == "sum":
        return total
    if loss.reduction == "mean_with_sample_weight" and weights is not None:
        return tf.math.divide_no_nan(total, tf.reduce_sum(weights, axis=1))
    return total / tf.cast(batch, tf.float32)


def total_loss(loss: keras.losses.Loss, losses: tf.Tensor, penalty: tf.Tensor) -> tf.Tensor:
    """Returns this replica's share of what all members minimize: the sum of their losses and penalties `[members]`."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    shares = 1.0 if loss.reduction == "sum" else 1.0 / replicas
    return tf.reduce_sum(losses) * shares + tf.reduce_sum(penalty) / replicas


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
    return (
        tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))
        if len(tensor.shape) > 2
        else tf.reshape(tensor, [-1])
    )


def member_probabilities(kind: Kind, outputs: tf.Tensor) -> tf.Tensor:
    """Returns what each member predicts: probabilities, or values for a regression. Any shape `[..., outputs]`."""
    if kind is Kind.LOGITS:
        return tf.nn.softmax(outputs)
    if kind is Kind.BINARY_LOGITS:
        return tf.sigmoid(outputs)
    return outputs


def mixture(kind: Kind, outputs: tf.Tensor, healthy: Array) -> tf.Tensor:
    """Returns the ensemble's marginal prediction `[batch, outputs]`: the mean of its healthy members'.

    Args:
        kind: what member outputs are.
        outputs: `[batch, members, outputs]`.
        healthy: indices of the members that count.
    """
    if len(healthy) < outputs.shape[1]:
        outputs = tf.gather(outputs, healthy, axis=1)
    return tf.reduce_mean(member_probabilities(kind, outputs), axis=1)


def two_columns(kind: Kind, probabilities: Any) -> Any:
    """One probability of class 1 as those of classes 0 and 1; everything else as it is. `[..., outputs]`."""
    if kind in (Kind.BINARY_LOGITS, Kind.PROBABILITIES) and probabilities.shape[-1] == 1:
        return tf.concat([1.0 - probabilities, probabilities], axis=-1)
    return probabilities


def class_logits(kind: Kind, outputs: tf.Tensor) -> tf.Tensor:
    """Returns logits whose softmax is what the members predict, `[..., classes]`: what our metrics read."""
    if kind is Kind.LOGITS:
        return outputs
    if kind is Kind.BINARY_LOGITS and outputs.shape[-1] == 1:
        return tf.concat([tf.zeros_like(outputs), outputs], axis=-1)
    if kind is Kind.PROBABILITIES:
        return tf.math.log(tf.maximum(two_columns(kind, outputs), 1e-37))
    raise ValueError(f"Expected class predictions for a member metric. Received: outputs of kind {kind.value!r}")


def class_labels(y: tf.Tensor, num_classes: int) -> tf.Tensor:
    """Returns class numbers `[batch]` from class numbers `[batch]` or `[batch, 1]`, or from one-hot rows."""
    if len(y.shape) == 2 and y.shape[-1] == num_classes and num_classes > 1:
        return tf.argmax(y, axis=-1)
    return tf.cast(tf.reshape(y, [-1]), tf.int64)
