"""The metrics of `metrics` as `keras.metrics.Metric`s, for `compile(metrics=[...])` and for loops of one's own.

They see labels `[batch]` (or `[batch, 1]`) and member logits `[batch, members, classes]`, and equal the functions of
the same name on all examples seen since `reset_state`, whatever the batch sizes: joint metrics carry unfinished groups
of examples over to the next update. An ensemble tells them what its outputs are; outside of one, `kind` says which
outputs other than logits they are given, `"multilabel_logits"` with labels `[batch, labels]` for example. Those of a
likelihood take regressions as well, `"gaussian"` with targets `[batch, targets]`.

They run eagerly, in graphs and under XLA, in the metric's dtype (default float32) with compensated sums, whose error
does not grow with the number of updates. NaN means that there is no value: nothing seen yet (fewer examples than one
group, for joint metrics), NaN logits, or a label that is not a class. Under a `tf.distribute` strategy groups form
within each replica, and totals are summed over replicas.
"""

from __future__ import annotations

import abc
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles import checks
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.metrics.functions import EDGE_TOLERANCE, MOST_BINS, TIE_TOLERANCE
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import components, heads

_register = keras.saving.register_keras_serializable(package="tf_ensembles")


class MemberMetric(keras.metrics.Metric, abc.ABC):
    """A metric of member logits `[batch, members, classes]`; `Ensemble` gives any other metric the mixture.

    Keeps compensated sums (Kahan's, with Knuth's two-sum): a plain float32 sum of a million terms is off by 0.6%.
    """

    _direction = "down"  # Keras's name for which way is better; callbacks that monitor the metric read it.
    _reads: tuple[str, ...] = ("classes",)  # "classes", "distributions" of numbers, "means" of them
    _default_kind = Kind.LOGITS
    _default_name: str | None = None
    _options: tuple[str, ...] = ()  # arguments of the constructor beside the name, the dtype and the kind
    _carry: Any = None  # of joint metrics, [group_size, members]: made when the number of members is known

    def __init__(self, num_sums: int, name: str | None, dtype: Any, kind: Any = None) -> None:
        super().__init__(name=name or self._default_name, dtype=dtype)
        self.kind = kinds.named(kind)
        self._sums = self.add_variable((num_sums,), "zeros", dtype=self.dtype, name="sums")
        self._lost = self.add_variable((num_sums,), "zeros", dtype=self.dtype, name="lost")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Takes in one batch.

        Args:
            y_true: `[batch]` or `[batch, 1]` integer labels; `[batch, labels]` of zeros and ones for many labels.
            y_pred: `[batch, members, classes]` member logits, or what `kind` says.
            sample_weight: `[batch]`, for metrics that are means over examples. Joint metrics raise: a group of examples
                has no weight of its own. (Keras passes weights to `weighted_metrics` only, never to `metrics`.)
        """
        self.update_members(y_true, y_pred, self.kind or self._default_kind, sample_weight)

    def check_kind(self, kind: Kind) -> None:
        """Raises unless this metric can be computed from outputs of a kind."""
        if not kind.is_regression and "classes" not in self._reads:
            raise ValueError(f"Expected a regression for {self.name}. Received: outputs of kind {kind.value!r}")
        if kind.is_regression and set(self._reads) == {"classes"}:
            raise ValueError(f"Expected class predictions for {self.name}. Received: a regression")
        if kind in (Kind.VALUES, Kind.QUANTILES) and "means" not in self._reads:
            raise ValueError(
                f"Expected a loss of distributions for {self.name}, such as tfe.losses.GaussianNLL(). "
                f"Received: outputs of kind {kind.value!r}"
            )

    def update_members(
        self,
        y_true: Any,
        y_pred: Any,
        kind: Kind,
        sample_weight: Any = None,
        head: heads.Head | None = None,
        counted: tf.Tensor | None = None,
    ) -> None:
        """Takes in one batch of an ensemble's outputs of this kind; else as `update_state`.

        Args:
            y_true: labels, or targets.
            y_pred: `[batch, members, outputs]`, or with positions before the last axis.
            kind: what the outputs are.
            sample_weight: `[batch]`.
            head: what the columns of a regression mean; None: as its kind says.
            counted: which positions of an example count, `[batch, positions]` of bool; None: all.
        """
        outputs = tf.cast(tf.convert_to_tensor(y_pred), self.dtype)
        if outputs.shape.rank is None or outputs.shape.rank < 3:
            raise ValueError(f"Expected member logits of shape [batch, members, classes]. Received: {outputs.shape}")
        self.check_kind(kind)
        if kind.is_regression:
            known: Any = head or heads.of_kind(kind)
            if counted is not None:
                raise ValueError(f"Expected a regression without masks for {self.name}. Received: a masked output")
            known, outputs = known.over_positions(outputs)
            targets = tf.reshape(tf.cast(y_true, self.dtype), [-1, known.num_targets(outputs.shape[-1])])
            self._accumulate_values(targets, outputs, known, self._weights(sample_weight))
            return
        labels = tf.convert_to_tensor(y_true)
        several = kind.is_multilabel or outputs.shape.rank > 3
        if outputs.shape.rank > 3:
            labels = kinds.labels_tensor(labels, kind, outputs.shape[-1], outputs.shape.rank - 3)
        if several and labels.shape.rank == 1:
            labels = labels[:, None]
        if not several and labels.shape.rank == 2 and labels.shape[1] == 1:
            labels = labels[:, 0]
        if labels.shape.rank != 1 + several:
            shapes = "[batch, labels]" if several else "[batch] or [batch, 1]"
            raise ValueError(f"Expected integer labels of shape {shapes}. Received: {labels.shape}")
        self._accumulate(labels, kinds.as_logits_tensor(outputs, kind), self._weights(sample_weight), counted)

    def forget_members(self) -> None:
        """Forgets all that was seen, and how many members there were."""
        self.reset_state()
        self._carry = None

    def _weights(self, sample_weight: Any) -> tf.Tensor | None:
        if sample_weight is None:
            return None
        return tf.reshape(tf.cast(tf.convert_to_tensor(sample_weight), self.dtype), [-1])

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        kind = {"kind": self.kind.value} if self.kind else {}
        return {**super().get_config(), **kind, **{name: getattr(self, name) for name in self._options}}

    @abc.abstractmethod
    def _accumulate(self, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor | None, counted: Any) -> None:
        """Adds one batch: labels and logits in the shapes of `likelihood`, weights `[batch]` or None.

        Where an example has positions, `counted` says which of them count, `[batch, positions]` of bool.
        """

    def _accumulate_values(
        self, targets: tf.Tensor, outputs: tf.Tensor, head: heads.Head, weights: tf.Tensor | None
    ) -> None:
        """Adds one batch of a regression: targets `[batch, targets]`, outputs `[batch, members, outputs]`."""

    def _add(self, terms: tf.Tensor) -> None:
        """Adds `terms` `[num_sums]` and what the last addition lost to the sums; keeps what this one loses."""
        old = tf.convert_to_tensor(self._sums)
        terms = terms + tf.convert_to_tensor(self._lost)
        new = old + terms
        added = new - old
        self._lost.assign((old - (new - added)) + (terms - added))
        self._sums.assign(new)

    def _totals(self) -> tf.Tensor:
        return tf.convert_to_tensor(self._sums) + tf.convert_to_tensor(self._lost)

    def result(self) -> tf.Tensor:
        """Returns the value over all that was seen since the last reset."""
        totals = self._totals()
        return totals[0] / totals[1]


class _ExampleMean(MemberMetric):
    """The (weighted) mean of one value per example."""

    def __init__(self, name: str | None = None, dtype: Any = None, kind: Any = None) -> None:
        super().__init__(2, name, dtype, kind)

    @abc.abstractmethod
    def _values(self, labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
        """Returns one value per example, `[batch]`."""

    def _accumulate(self, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor | None, counted: Any) -> None:
        self._add_mean(self._values(labels, logits, counted), weights)

    def _add_mean(self, values: tf.Tensor, weights: tf.Tensor | None) -> None:
        """Adds one value per example, `[batch]`."""
        weights = tf.ones_like(values) if weights is None else weights + tf.zeros_like(values)
        self._add(tf.stack([tf.reduce_sum(weights * values), tf.reduce_sum(weights)]))


@_register
class MarginalNLL(_ExampleMean):
    """`metrics.marginal_nll`, streaming. Nats per label; of a regression `metrics.gaussian_nll`, nats per example."""

    _reads = ("classes", "distributions")
    _default_name = "marginal_nll"

    def _values(self, labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
        return -likelihood.log_mean_exp_tensor(likelihood.log_likelihood_tensor(logits, labels, counted))

    def _accumulate_values(
        self, targets: tf.Tensor, outputs: tf.Tensor, head: heads.Head, weights: tf.Tensor | None
    ) -> None:
        values = components.log_likelihood(head.components(outputs), targets)
        self._add_mean(-likelihood.log_mean_exp_tensor(values), weights)


@_register
class Accuracy(_ExampleMean):
    """`metrics.accuracy`, streaming: of the mixture's most probable class."""

    _direction = "up"
    _default_name = "accuracy"

    def _values(self, labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
        return _mean_over_labels(_correct(labels, likelihood.mixture_tensor(logits)), counted)


@_register
class Brier(_ExampleMean):
    """`metrics.brier`, streaming: between 0 and 2."""

    _default_name = "brier"

    def _values(self, labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
        probabilities = likelihood.mixture_tensor(logits)
        indices, valid = likelihood.class_indices_tensor(labels, logits.shape[-1])
        errors = probabilities - tf.one_hot(indices, logits.shape[-1], dtype=logits.dtype)
        return _mean_over_labels(likelihood.nan_unless_tensor(valid, tf.reduce_sum(errors**2, axis=-1)), counted)


@_register
class Entropy(_ExampleMean):
    """`metrics.entropy`, streaming: total predictive uncertainty in nats. Labels are not used."""

    _default_name = "entropy"

    def _values(self, labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
        return likelihood.entropies_tensor(logits, counted)[0]


@_register
class Aleatoric(_ExampleMean):
    """`metrics.aleatoric`, streaming: the members' mean entropy in nats. Labels are not used."""

    _default_name = "aleatoric"

    def _values(self, labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
        return likelihood.entropies_tensor(logits, counted)[1]


@_register
class MutualInformation(_ExampleMean):
    """`metrics.mutual_information`, streaming: epistemic uncertainty in nats. Labels are not used."""

    _default_name = "mutual_information"

    def _values(self, labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
        total, aleatoric = likelihood.entropies_tensor(logits, counted)
        return tf.maximum(total - aleatoric, 0.0)


@_register
class ECE(MemberMetric):
    """`metrics.ece`, streaming: expected calibration error of the mixture over `num_bins` equal bins."""

    _options = ("num_bins",)

    def __init__(self, num_bins: int = 15, name: str | None = "ece", dtype: Any = None, kind: Any = None) -> None:
        self.num_bins = checks.integer("num_bins", num_bins, 1, MOST_BINS)
        super().__init__(self.num_bins + 1, name, dtype, kind)

    def _accumulate(self, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor | None, counted: Any) -> None:
        probabilities = likelihood.mixture_tensor(logits)
        confidence = tf.reduce_max(probabilities, axis=-1)
        gaps = _correct(labels, probabilities) - confidence
        if weights is not None and len(gaps.shape) == 2:
            weights = weights[:, None]  # Each label of an example counts.
        weights = tf.ones_like(gaps) if weights is None else weights + tf.zeros_like(gaps)
        if counted is not None:
            gaps, weights = tf.where(counted, gaps, tf.zeros_like(gaps)), weights * tf.cast(counted, weights.dtype)
        bins = tf.cast(tf.math.ceil(confidence * self.num_bins - EDGE_TOLERANCE), tf.int32) - 1
        bins = tf.clip_by_value(bins, 0, self.num_bins - 1)
        sums = tf.math.unsorted_segment_sum(weights * gaps, bins, self.num_bins)
        self._add(tf.concat([sums, [tf.reduce_sum(weights)]], axis=0))

    def result(self) -> tf.Tensor:
        """Returns `sum_b |sum of (correct - confidence) in bin b| / n`."""
        totals = self._totals()
        return tf.reduce_sum(tf.abs(totals[:-1])) / totals[-1]


class _GroupMean(MemberMetric):
    """The mean of one value per group of consecutive examples, with an unfinished group carried between updates."""

    _reads = ("classes", "distributions")

    def __init__(self, group_size: int, name: str | None, dtype: Any, kind: Any) -> None:
        super().__init__(2, name, dtype, kind)
        self._group_size = group_size
        self._num_seen = self.add_variable((), "zeros", dtype="int64", name="num_seen")

    @abc.abstractmethod
    def _group_values(self, groups: tf.Tensor, first_group: tf.Tensor) -> tf.Tensor:
        """Returns one value per group, `[groups]`, of log-likelihoods `[groups, group_size, members]`."""

    def _accumulate(self, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor | None, counted: Any) -> None:
        self._add_groups(likelihood.log_likelihood_tensor(logits, labels, counted), weights)

    def _accumulate_values(
        self, targets: tf.Tensor, outputs: tf.Tensor, head: heads.Head, weights: tf.Tensor | None
    ) -> None:
        self._add_groups(components.log_likelihood(head.components(outputs), targets), weights)

    def _add_groups(self, values: tf.Tensor, weights: tf.Tensor | None) -> None:
        """Adds log-likelihoods `[batch, members]`."""
        if weights is not None:
            raise ValueError(
                f"Expected no sample_weight: groups of examples have no weight. Received: {weights.shape} weights for "
                f"'{self.name}'. List it in compile(metrics=...), not in weighted_metrics."
            )
        size, num_members = self._group_size, values.shape[1]
        if self._carry is None:
            self._carry = self.add_variable((size, num_members), "zeros", dtype=self.dtype, name="carry")
        if self._carry.shape[1] != num_members:
            raise ValueError(f"Expected {self._carry.shape[1]} members, as before. Received: {num_members}")
        seen = tf.convert_to_tensor(self._num_seen)
        num_carried, batch = tf.cast(seen % size, tf.int32), tf.shape(values)[0]
        num_groups = (num_carried + batch) // size
        # Examples waiting in the carry come first, then the batch. XLA wants shapes that do not depend on how many
        # wait: the last rows may be repeats, and belong to no whole group.
        rows = tf.range((batch // size + 2) * size)
        rows = tf.where(rows < num_carried, rows, tf.minimum(rows - num_carried, batch - 1) + size)
        waiting = tf.gather(tf.concat([tf.convert_to_tensor(self._carry), values], axis=0), rows)
        groups = tf.reshape(waiting, [-1, size, num_members])
        joint = self._group_values(groups, seen // size)
        whole = tf.range(tf.shape(groups)[0]) < num_groups
        total = tf.reduce_sum(tf.where(whole, joint, tf.zeros_like(joint)))
        self._add(tf.stack([total, tf.cast(num_groups, total.dtype)]))
        # gather, not an index: XLA would compile a slice anew for every value of its start.
        self._carry.assign(tf.gather(groups, num_groups))
        self._num_seen.assign(seen + tf.cast(batch, seen.dtype))


@_register
class JointNLL(_GroupMean):
    """`metrics.joint_nll`, streaming: nats per tau labels, over consecutive batches of tau examples.

    Remembers at most tau examples, `[tau, members]` numbers. Examples left over when the value is read count for
    nothing yet. Data should come in random order, as `fit` makes it.
    """

    _options = ("tau",)

    def __init__(self, tau: int = 10, name: str | None = "joint_nll", dtype: Any = None, kind: Any = None) -> None:
        self.tau = checks.integer("tau", tau, 1)
        super().__init__(self.tau, name, dtype, kind)

    def _group_values(self, groups: tf.Tensor, first_group: tf.Tensor) -> tf.Tensor:
        return -likelihood.log_mean_exp_tensor(tf.reduce_sum(groups, axis=1))


@_register
class DyadicNLL(_GroupMean):
    """`metrics.dyadic_nll` with consecutive anchors, streaming: nats per tau labels drawn from kappa anchors.

    Anchors are disjoint groups of kappa consecutive examples, so only `[kappa, members]` numbers are remembered; data
    should come in random order, as `fit` makes it. The expectation over how often each anchor is drawn is exact for
    kappa <= 2; for larger kappa it is one draw per group, a pure function of (seed, group index).
    """

    _options = ("tau", "kappa", "seed")

    def __init__(
        self,
        tau: int = 10,
        kappa: int = 2,
        seed: int = 0,
        name: str | None = "dyadic_nll",
        dtype: Any = None,
        kind: Any = None,
    ) -> None:
        self.tau, self.kappa, self.seed = likelihood.check_dyadic(tau, kappa, seed)
        super().__init__(self.kappa, name, dtype, kind)

    def _group_values(self, groups: tf.Tensor, first_group: tf.Tensor) -> tf.Tensor:
        if self.kappa > 2:
            indices = first_group + tf.range(tf.shape(groups)[0], dtype=first_group.dtype)
            counts = tf.cast(likelihood.draw_counts_tensor(self.seed, indices, self.tau, self.kappa), groups.dtype)
            return -likelihood.log_mean_exp_tensor(tf.reduce_sum(counts[:, :, None] * groups, axis=1))
        terms = likelihood.count_probabilities(self.tau, self.kappa)
        probabilities = tf.constant(terms, groups.dtype)

        def add(index: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            count = tf.cast(index, groups.dtype)
            joint = likelihood.dyadic(groups[:, 0], groups[:, -1], count, self.tau)
            return index + 1, values - probabilities[index] * likelihood.log_mean_exp_tensor(joint)

        # A loop, because all counts at once would take tau + 1 times the memory of a batch.
        start = (tf.constant(0), tf.zeros_like(groups[:, 0, 0]))
        _, values = tf.while_loop(lambda index, _: index < len(terms), add, start)
        return values


def _mean_over_labels(values: tf.Tensor, counted: tf.Tensor | None) -> tf.Tensor:
    """`[batch]` as it is, `[batch, labels]` as the means of examples, over the labels that count."""
    if counted is None:
        return tf.reduce_mean(values, axis=1) if len(values.shape) == 2 else values
    total = tf.reduce_sum(tf.where(counted, values, tf.zeros_like(values)), axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(counted, values.dtype), axis=1))


def _correct(labels: tf.Tensor, probabilities: tf.Tensor) -> tf.Tensor:
    indices, valid = likelihood.class_indices_tensor(labels, probabilities.shape[-1])
    largest = tf.reduce_max(probabilities, axis=-1, keepdims=True)
    tied = tf.cast(probabilities >= largest - TIE_TOLERANCE, tf.int32)
    hits = tf.cast(tf.argmax(tied, axis=-1, output_type=tf.int32) == indices, probabilities.dtype)
    return likelihood.nan_unless_tensor(valid, hits)
