"""What members' outputs mean, the mixture of all members' predictions, and what metrics see of them.

An output may have positions, as a map `[height, width]` or a sequence `[time]` has; columns are last.

Shapes: outputs `[batch, members, ..., outputs]`, mixtures `[batch, ..., outputs]`.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import keras_private, losses
from tf_ensembles.ensemble.members import layer_rules, structure
from tf_ensembles.ensemble.members.structure import Structure
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.metrics.streaming import MemberMetric
from tf_ensembles.regression import heads
from tf_ensembles.regression import losses as regression
from tf_ensembles.regression.heads import Head

_ASK = "Give tfe.Ensemble(..., outputs=...) one of " + ", ".join(repr(kind.value) for kind in Kind)

_LOGITS = (Kind.LOGITS, Kind.BINARY_LOGITS, Kind.MULTILABEL_LOGITS)


@dataclasses.dataclass(frozen=True)
class Output:
    """What is known of one output of members."""

    name: str
    shape: tuple[int | None, ...] | None  # of one member's, without the batch; None: not known yet
    kind: Kind | None
    head: Head | None = None  # what the columns of a regression mean
    loss: keras.losses.Loss | None = None
    weight: float = 1.0  # of its loss in what a member minimizes
    argument: str = "auto"  # as the ensemble was told

    @property
    def num_outputs(self) -> int:
        """A member's columns."""
        return 0 if self.shape is None else int(self.shape[-1] or 0)

    @property
    def positions(self) -> int | None:
        """How many rows of columns an example has: 1, or those of a map or a sequence; None where that is open."""
        sizes = (self.shape or ())[:-1]
        return None if None in sizes else math.prod(size or 0 for size in sizes)

    @property
    def num_targets(self) -> int | None:
        """How many numbers an example's target has, where it is as wide as a member's prediction; None if open."""
        each = self.num_outputs if self.head is None else self.head.num_targets(self.num_outputs)
        return None if self.positions is None else each * self.positions

    @property
    def has_positions(self) -> bool:
        """Whether an example has more than one row of columns."""
        return self.shape is not None and len(self.shape) > 1

    def require(self) -> Kind:
        """Returns the kind, or asks for it: at the first call that needs it."""
        return require(self.kind, self.loss)

    def refuse_positions(self, what: str) -> None:
        """Raises where an example has positions, for what reads one row of columns per example."""
        if self.has_positions:
            raise ValueError(
                f"Expected outputs [batch, members, outputs] for {what}. Received: {self.name!r}, with positions: "
                f"{(None, *(self.shape or ()))} of each member"
            )


def describe(
    said: Structure, argument: Any, found: Sequence[Any], weights: Sequence[float], known: Sequence[Any]
) -> list[Output]:
    """Returns what is known of each output.

    Args:
        said: their structure.
        argument: the ensemble's `outputs`: one for all, or by output.
        found: the loss of each, None before `compile`, and for outputs without one.
        weights: of the losses.
        known: what the ensemble remembers of each: the noise of values, or what a file says.
    """
    listed = []
    compiled = any(loss is not None for loss in found)
    parts = zip(said.names, said.shapes, split_argument(said, argument), found, weights, known, strict=True)
    for name, shape, own, loss, weight, head in parts:
        kind = kind_of(own, loss, None if shape is None else shape[-1])
        if kind is None and not compiled and head is not None:
            kind = head.kind
        listed.append(Output(name, shape, kind, head_of(kind, loss, head), loss, weight, own))
    return listed


def split_argument(said: Structure, argument: Any) -> list[str]:
    """Returns what the ensemble's `outputs` says of each output: a kind, or `"auto"`."""
    if isinstance(argument, str):
        return [argument] * len(said)
    return [part or "auto" for part in said.split(argument, "a kind of outputs", missing=True)]


def check_argument(argument: Any) -> None:
    """Raises unless `outputs` is a kind, or a structure of kinds."""
    for part in structure.leaves(argument):
        Kind.parse(part)


def the_one(model: Any, what: str) -> Output:
    """Returns the one output of a model, or raises: for what is asked of one output at a time."""
    if not model._structure.is_one:
        names = list(model._structure.names)
        raise ValueError(
            f"Expected a model with one output for {what}: give model.only({names[0]!r}), for example. "
            f"Received: outputs {names}"
        )
    return model.outputs_said()[0]


def check_seen(said: Structure, loss: Any) -> None:
    """Raises on losses by output where nobody knows yet which outputs members have."""
    if said.shapes == (None,) and isinstance(loss, dict | list | tuple):
        raise ValueError(
            "Expected members that know their outputs before they get several losses: start them with keras.Input, or "
            "call model.adapt(x), then compile. Received: members, or priors, that wait for data"
        )


def check_class_weight(listed: Sequence[Output], class_weight: Any) -> None:
    """Raises on weights of classes where labels have positions: Keras would read their last axis as classes."""
    if class_weight is not None and any(output.has_positions for output in listed):
        raise ValueError("Expected sample_weight by position for outputs with positions. Received: class_weight")


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


def require(kind: Kind | None, loss: Any) -> Kind:
    """Returns the kind, or asks for it: at the first call that needs it."""
    if kind is None:
        name = getattr(loss, "name", getattr(loss, "__name__", loss))
        why = "compile has not said yet" if loss is None else f"the loss {name} does not say"
        raise ValueError(f"Expected to know what member outputs are, which {why}. {_ASK}. Received: 'auto'")
    return kind


def check_compiled(output: Output, prior: Any, weighted_metrics: Any) -> None:
    """Raises if a prior would be added to probabilities, or if a weighted metric cannot see what it was built for."""
    kind, loss = output.kind, output.loss
    if output.argument == "auto" and prior is not None and kind is not None and kind.is_probability:
        raise ValueError(
            "Expected a loss with from_logits=True: a prior is added to logits, not to probabilities. "
            f"Received: {getattr(loss, 'name', loss)} with from_logits=False"
        )
    if output.shape is not None and output.head is not None:
        output.head.num_targets(output.num_outputs)  # Raises where columns do not fit the loss.
    _, ours, of_logits, _ = split_metrics(output, weighted_metrics)
    if ours or of_logits:
        raise ValueError(
            "Expected weighted_metrics that take the mixture's probabilities. Received: "
            f"{[*ours, *of_logits][0].name}, which does not: list it in metrics, or use from_logits=False"
        )


def check_activations(member: keras.Model, listed: Sequence[Output], scales: Sequence[Any]) -> None:
    """Warns if outputs are taken for logits though the layer that makes them ends in a softmax or a sigmoid."""
    if not layer_rules.has_graph(member):
        return
    made = structure.leaves(keras_private.output_structure(member))
    for output, tensor, scale in zip(listed, made, scales, strict=True):
        layer = keras_private.maker(tensor)
        activation = getattr(
            layer, "activation", keras.activations.softmax if type(layer) is keras.layers.Softmax else None
        )
        if output.kind in _LOGITS and activation in (keras.activations.softmax, keras.activations.sigmoid):
            prior = "" if scale is None else " and a prior that is added to logits"
            warnings.warn(
                f"Members end in {layer.name} with a {activation.__name__} activation, but are trained with "
                f"from_logits=True{prior}: remove the activation.",
                stacklevel=3,
            )


def check_members(model: Any, x: Any) -> None:
    """Checks what members say of the first examples, if they are taken to end in a softmax or in sigmoids."""
    listed = model.outputs_said()
    if not any(output.kind is not None and output.kind.is_probability for output in listed):
        return
    said = structure.leaves(model(tf.nest.map_structure(lambda v: v[:8], x)))
    for output, rows in zip(listed, said, strict=True):
        if output.kind is not None and output.kind.is_probability:
            _check_rows(np.asarray(rows, np.float64), output.kind, output.loss, output.argument)


def _check_rows(rows: Array, kind: Kind, loss: Any, argument: str) -> None:
    """Raises unless what members say of some examples are probabilities, as the loss or the user says."""
    why = f", since {loss.name} has from_logits=False; if they are logits, use from_logits=True" if loss else ""
    kinds.check_probabilities(rows, kind, why if argument == "auto" else "")
    if argument == "auto" and kind.is_multilabel and np.abs(rows.sum(axis=-1) - 1.0).max() < 1e-4:
        raise ValueError(
            f"Expected one probability per label, as {loss.name} takes them. Received: rows that sum to 1: give "
            "outputs='probabilities' if members end in a softmax, else outputs='multilabel_probabilities'"
        )


# Metrics.


def by_output(said: Structure, metrics: Any, what: str) -> list[Any]:
    """Returns the metrics of `compile` of each output: those of the one, or by name, or a list with one entry each."""
    if said.is_one and not (isinstance(metrics, dict) and set(metrics) == set(said.names)):
        return [metrics]
    if metrics is None:
        return [None] * len(said)
    return said.split(metrics, f"{what} (a list of them, or None)", missing=True)


def metrics_by_name(said: Structure, metrics: Any) -> dict[str, Any] | None:
    """Returns the metrics of each output as Keras takes them by name; None where there are none."""
    pairs = [(name, own) for name, own in zip(said.names, metrics, strict=True) if own]
    return {name: list(own) if isinstance(own, list | tuple) else [own] for name, own in pairs} or None


def split_metrics(output: Output, metrics: Any) -> tuple[list[Any], list[MemberMetric], list[Any], list[Any]]:
    """Returns the metrics of an output as a list; those of them that see members, logits and the mixture."""
    listed = list(metrics) if isinstance(metrics, list | tuple) else [] if metrics is None else [metrics]
    if listed:
        output.require()
    kind = output.kind
    ours = [metric for metric in listed if isinstance(metric, MemberMetric)]
    for metric in ours:
        metric.check_kind(output.require())
        if metric.kind not in (None, kind):
            raise ValueError(f"Expected kind=None: the ensemble tells {metric.name}. Received: {metric.kind}")
    others = [metric for metric in listed if not isinstance(metric, MemberMetric)]
    return listed, ours, *split_logits(others, kind)


def update_metrics(
    output: Output,
    ours: Sequence[MemberMetric],
    of_logits: Sequence[Any],
    y: Any,
    outputs: tf.Tensor,
    healthy: Array,
    mask: tf.Tensor | None = None,
) -> tf.Tensor:
    """Updates the metrics that see more than the mixture's prediction, and returns that, `[batch, ..., outputs]`.

    Args:
        output: what is known of the output; its kind is None only if there are no metrics at all.
        ours: metrics of members.
        of_logits: Keras metrics that were built for logits.
        y: labels `[batch]` or `[batch, ...]`.
        outputs: `[batch, members, ..., outputs]`.
        healthy: indices of the members that count.
        mask: the positions that count, `[batch, ...]` of bool, where Keras's layers say so.
    """
    kind, head = output.kind, output.head
    if kind is None:
        return keras_private.with_mask(tf.identity(outputs[:, 0]), mask)
    if ours:
        members = of_members(outputs, healthy)
        labels = tf.convert_to_tensor(y)
        if not kind.is_regression:
            labels = kinds.labels_tensor(labels, kind, outputs.shape[-1], len(outputs.shape) - 3)
        kept = counted(output, labels, mask)
        for metric in ours:
            metric.update_members(labels, members, kind, head=head, counted=kept)
    if of_logits:
        logits = keras_private.with_mask(mixture_logits(kind, outputs, healthy), mask)
        for metric in of_logits:
            metric.update_state(y, logits)
    return keras_private.with_mask(tf.identity(mixture(kind, outputs, healthy, head)), mask)


def counted(output: Output, labels: tf.Tensor, mask: Any) -> tf.Tensor | None:
    """Returns which positions of an example count, `[batch, positions]` of bool: not masked, and not an ignored class.

    None: all.
    """
    if not output.has_positions:
        return None
    unmasked = None if mask is None else tf.reshape(mask, [tf.shape(mask)[0], -1])
    ignored = None if output.loss is None else losses.ignored_class(output.loss)
    if ignored is None:
        return unmasked
    kept = tf.not_equal(tf.cast(labels, tf.int64), ignored)
    return kept if unmasked is None else kept & unmasked


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
    """Returns the ensemble's marginal prediction, `[batch, ..., outputs]` or `[batch, ..., targets]`: the mean of its
    healthy members'.

    Args:
        kind: what member outputs are.
        outputs: `[batch, members, ..., outputs]`.
        healthy: indices of the members that count.
        head: what the columns of a regression mean.
    """
    return tf.reduce_mean(member_probabilities(kind, of_members(outputs, healthy), head), axis=1)


def mixture_logits(kind: Kind, outputs: tf.Tensor, healthy: Array) -> tf.Tensor:
    """Returns logits of the mixture, `[batch, ..., outputs]`: log-probabilities; log-odds for one column or labels."""
    logits = kinds.as_logits_tensor(of_members(outputs, healthy), kind)
    axes = [0, 2, 1] if len(logits.shape) == 3 else [0, 2, 3, 1]
    logs = likelihood.log_mean_exp_tensor(tf.transpose(tf.nn.log_softmax(logits), axes))
    if kind.is_multilabel or outputs.shape[-1] == 1:
        logs = logs[..., 1] - logs[..., 0]
    return tf.reshape(logs, tf.concat([tf.shape(outputs)[:1], tf.shape(outputs)[2:]], axis=0))


def of_members(outputs: tf.Tensor, indices: Array) -> tf.Tensor:
    """Returns the outputs of these members, `[batch, indices, ..., outputs]`."""
    return outputs if np.array_equal(indices, np.arange(outputs.shape[1])) else tf.gather(outputs, indices, axis=1)


def two_columns(kind: Kind, probabilities: Any) -> Any:
    """One probability of class 1 as those of classes 0 and 1; everything else as it is. `[..., outputs]`."""
    if kind in (Kind.BINARY_LOGITS, Kind.PROBABILITIES) and probabilities.shape[-1] == 1:
        return tf.concat([1.0 - probabilities, probabilities], axis=-1)
    return probabilities
