"""What members' outputs mean, the mixture of all members' predictions, and what metrics see of them.

Shapes: outputs `[batch, members, outputs]`, mixtures `[batch, outputs]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import keras_private, losses
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.metrics.streaming import MemberMetric
from tf_ensembles.regression import heads
from tf_ensembles.regression import losses as regression
from tf_ensembles.regression.heads import Head

_ASK = "Give tfe.Ensemble(..., outputs=...) one of " + ", ".join(repr(kind.value) for kind in Kind)


def kind_of(argument: str, loss: keras.losses.Loss | None, num_outputs: int | None) -> Kind | None:
    """Returns what member outputs are: as the argument `outputs` says, or, if `"auto"`, as the loss does; else None.

    Args:
        argument: the ensemble's.
        loss: from `losses.as_loss`, or None before `compile`.
        num_outputs: a member's, None if not known yet.
    """
    kind = Kind.parse(argument)
    if kind is None:
        return losses.kind_of(loss, num_outputs)
    # Before there was a kind for labels, binary logits were those of one or of many.
    return Kind.MULTILABEL_LOGITS if kind is Kind.BINARY_LOGITS and num_outputs not in (None, 1) else kind


def head_of(kind: Kind | None, loss: keras.losses.Loss | None, known: Head | None) -> Head | None:
    """Returns what the columns of a regression mean; None for classes, and where nothing is known.

    Args:
        kind: what outputs are.
        loss: of the ensemble; None before `compile`.
        known: what the ensemble remembers: the noise of values, or what a file says.
    """
    if kind is None or not kind.is_regression:
        return None
    said = regression.head_of(loss)
    if said is not None and said.kind is kind:
        return said
    return known if known is not None and known.kind is kind else heads.of_kind(kind)


def num_targets(head: Head | None, num_outputs: int) -> int:
    """Returns how many numbers an example's target has, where it is as wide as a member's prediction."""
    return num_outputs if head is None else head.num_targets(num_outputs)


def require(kind: Kind | None, loss: Any) -> Kind:
    """Returns the kind, or asks for it: at the first call that needs it."""
    if kind is None:
        name = getattr(loss, "name", getattr(loss, "__name__", loss))
        why = "compile has not said yet" if loss is None else f"the loss {name} does not say"
        raise ValueError(f"Expected to know what member outputs are, which {why}. {_ASK}. Received: 'auto'")
    return kind


def check_compiled(
    argument: str, kind: Kind | None, loss: keras.losses.Loss, prior: Any, weighted_metrics: Any
) -> None:
    """Raises if a prior would be added to probabilities, or if a weighted metric cannot see what it was built for."""
    if argument == "auto" and prior is not None and kind is not None and kind.is_probability:
        raise ValueError(
            "Expected a loss with from_logits=True: a prior is added to logits, not to probabilities. "
            f"Received: {loss.name} with from_logits=False"
        )
    _, ours, of_logits, _ = split_metrics(weighted_metrics, kind, loss)
    if ours or of_logits:
        raise ValueError(
            "Expected weighted_metrics that take the mixture's probabilities. Received: "
            f"{[*ours, *of_logits][0].name}, which does not: list it in metrics, or use from_logits=False"
        )


def check_members(model: Any, x: Any, loss: keras.losses.Loss, argument: str) -> None:
    """Checks what members say of the first examples, if they are taken to end in a softmax or in sigmoids."""
    kind = model.kind
    if kind is None or not kind.is_probability:
        return
    rows = np.asarray(model(tf.nest.map_structure(lambda v: v[:8], x)), np.float64)
    why = f", since {loss.name} has from_logits=False; if they are logits, use from_logits=True"
    kinds.check_probabilities(rows, kind, why if argument == "auto" else "")
    if argument == "auto" and kind.is_multilabel and np.abs(rows.sum(axis=-1) - 1.0).max() < 1e-4:
        raise ValueError(
            f"Expected one probability per label, as {loss.name} takes them. Received: rows that sum to 1: give "
            "outputs='probabilities' if members end in a softmax, else outputs='multilabel_probabilities'"
        )


# Metrics.


def split_metrics(
    metrics: Any, kind: Kind | None, loss: keras.losses.Loss
) -> tuple[list[Any], list[MemberMetric], list[Any], list[Any]]:
    """Returns the metrics of `compile` as a list; those of them that see members, logits and the mixture."""
    listed = list(metrics) if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]
    if listed:
        require(kind, loss)
    ours = [metric for metric in listed if isinstance(metric, MemberMetric)]
    for metric in ours:
        metric.check_kind(require(kind, loss))
        if metric.kind not in (None, kind):
            raise ValueError(f"Expected kind=None: the ensemble tells {metric.name}. Received: {metric.kind}")
    others = [metric for metric in listed if not isinstance(metric, MemberMetric)]
    return listed, ours, *split_logits(others, kind)


def update_metrics(
    ours: Sequence[MemberMetric],
    of_logits: Sequence[Any],
    kind: Kind | None,
    y: Any,
    outputs: tf.Tensor,
    healthy: Array,
    head: Head | None = None,
) -> tf.Tensor:
    """Updates the metrics that see more than the mixture's prediction, and returns that, `[batch, outputs]`.

    Args:
        ours: metrics of members.
        of_logits: Keras metrics that were built for logits.
        kind: what member outputs are; None only if there are no metrics at all.
        y: labels `[batch]` or `[batch, ...]`.
        outputs: `[batch, members, outputs]`.
        healthy: indices of the members that count.
        head: what the columns of a regression mean.
    """
    if kind is None:
        return outputs[:, 0]
    if ours:
        # As many as ever, so that what a metric remembers keeps its shape.
        members = tf.gather(outputs, np.resize(healthy, outputs.shape[1]), axis=1)
        labels = tf.convert_to_tensor(y)
        if not kind.is_regression:
            labels = kinds.labels_tensor(labels, kind, outputs.shape[-1])
        for metric in ours:
            metric.update_members(labels, members, kind, head=head)
    if of_logits:
        logits = mixture_logits(kind, outputs, healthy)
        for metric in of_logits:
            metric.update_state(y, logits)
    return mixture(kind, outputs, healthy, head)


def split_logits(metrics: Sequence[Any], kind: Kind | None) -> tuple[list[Any], list[Any]]:
    """Returns the Keras metrics that were built for logits, and the others."""
    of_logits, others = [], []
    for metric in metrics:
        if (kind is not None and kind.is_regression) or not _is_built_for_logits(metric, kind):
            others.append(metric)
        elif isinstance(metric, keras.metrics.Metric):
            of_logits.append(metric)
        else:  # A loss, or a function with its settings, as a metric.
            name = getattr(metric, "name", type(metric).__name__)
            of_logits.append(keras.metrics.MeanMetricWrapper(metric, name=name))
    return of_logits, others


def _is_built_for_logits(metric: Any, kind: Kind | None) -> bool:
    """Whether a metric says that it takes logits."""
    settings = keras_private.settings(metric)
    if settings.get("from_logits"):
        return True
    # A threshold of zero is how Keras says that accuracies, precision and recall are of logits.
    threshold = settings.get("threshold", settings.get("thresholds"))
    logits = kind in (Kind.BINARY_LOGITS, Kind.MULTILABEL_LOGITS)
    return bool(logits and threshold is not None and np.all(np.asarray(threshold, float) == 0.0))


# Predictions.


def member_probabilities(kind: Kind, outputs: tf.Tensor, head: Head | None = None) -> tf.Tensor:
    """Returns what each member predicts: probabilities, or means for a regression. Any shape `[..., outputs]`."""
    if head is not None:
        return head.means(outputs)
    if kind is Kind.LOGITS:
        return tf.nn.softmax(outputs)
    if kind in (Kind.BINARY_LOGITS, Kind.MULTILABEL_LOGITS):
        return tf.sigmoid(outputs)
    return outputs


def mixture(kind: Kind, outputs: tf.Tensor, healthy: Array, head: Head | None = None) -> tf.Tensor:
    """Returns the ensemble's marginal prediction, `[batch, outputs]` or `[batch, targets]`: its healthy members' mean.

    Args:
        kind: what member outputs are.
        outputs: `[batch, members, outputs]`.
        healthy: indices of the members that count.
        head: what the columns of a regression mean.
    """
    return tf.reduce_mean(member_probabilities(kind, of_members(outputs, healthy), head), axis=1)


def mixture_logits(kind: Kind, outputs: tf.Tensor, healthy: Array) -> tf.Tensor:
    """Returns logits of the mixture, `[batch, outputs]`: log-probabilities; log-odds for one column or many labels."""
    logits = kinds.as_logits_tensor(of_members(outputs, healthy), kind)
    axes = [0, 2, 1] if len(logits.shape) == 3 else [0, 2, 3, 1]
    logs = likelihood.log_mean_exp_tensor(tf.transpose(tf.nn.log_softmax(logits), axes))
    if logs.shape[-1] == outputs.shape[-1] and len(logs.shape) == 2:
        return logs
    odds = logs[..., 1] - logs[..., 0]
    return odds if len(odds.shape) == 2 else odds[:, None]


def of_members(outputs: tf.Tensor, indices: Array) -> tf.Tensor:
    """Returns the outputs of these members, `[batch, indices, outputs]`."""
    return outputs if np.array_equal(indices, np.arange(outputs.shape[1])) else tf.gather(outputs, indices, axis=1)


def two_columns(kind: Kind, probabilities: Any) -> Any:
    """One probability of class 1 as those of classes 0 and 1; everything else as it is. `[..., outputs]`."""
    if kind in (Kind.BINARY_LOGITS, Kind.PROBABILITIES) and probabilities.shape[-1] == 1:
        return tf.concat([1.0 - probabilities, probabilities], axis=-1)
    return probabilities
