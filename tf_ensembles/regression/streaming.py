"""The scores of `scores` as `keras.metrics.Metric`s, for `compile(metrics=[...])` and for loops of one's own.

They see targets `[batch]` or `[batch, targets]` and members' outputs `[batch, members, outputs]`, as an ensemble of
kind `"gaussian"` or another of a distribution returns them, and equal the functions on all examples seen since
`reset_state`, whatever the batch sizes. Likelihoods stream as `tfe.metrics.MarginalNLL`, `JointNLL` and `DyadicNLL`.
"""

from __future__ import annotations

import abc
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.metrics.streaming import MemberMetric
from tf_ensembles.regression import components, heads, scores

_register = keras.saving.register_keras_serializable(package="tf_ensembles")


class ValueMetric(MemberMetric):
    """The (weighted) mean over examples and targets of sums, `[sums]` of them and one of the weights."""

    _reads: tuple[str, ...] = ("distributions",)
    _default_kind = Kind.GAUSSIAN

    def __init__(self, name: str | None = None, dtype: Any = None, kind: Any = None, num_values: int = 1) -> None:
        super().__init__(num_values + 1, name, dtype, kind)

    @abc.abstractmethod
    def _values(self, y: tf.Tensor, outputs: tf.Tensor, head: heads.Head) -> tf.Tensor:
        """Returns values of examples and targets, `[batch, targets]` or `[batch, targets, values]`."""

    def _accumulate(self, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor | None, counted: Any) -> None:
        """Classes never come here: `check_kind` refuses them."""

    def _accumulate_values(
        self, targets: tf.Tensor, outputs: tf.Tensor, head: heads.Head, weights: tf.Tensor | None
    ) -> None:
        values = self._values(targets, outputs, head)
        values = values[..., None] if len(values.shape) == 2 else values
        weights = tf.ones_like(values[:, :1, :1]) if weights is None else weights[:, None, None]
        count = tf.reduce_sum(weights) * tf.cast(tf.shape(values)[1], values.dtype)
        self._add(tf.concat([tf.reduce_sum(weights * values, axis=[0, 1]), [count]], axis=0))

    def _means(self) -> tf.Tensor:
        totals = self._totals()
        return totals[:-1] / totals[-1]

    def result(self) -> tf.Tensor:
        """Returns the value over all that was seen since the last reset."""
        return self._means()[0]


@_register
class CRPS(ValueMetric):
    """`metrics.crps`, streaming: in units of the target."""

    _default_name = "crps"

    def _values(self, y: tf.Tensor, outputs: tf.Tensor, head: heads.Head) -> tf.Tensor:
        return components.crps(head.components(outputs), y)


@_register
class RMSE(ValueMetric):
    """`metrics.rmse`, streaming: of the mixture's mean. Ensembles that predict values alone have it, too."""

    _reads = ("distributions", "means")
    _default_name = "rmse"

    def _values(self, y: tf.Tensor, outputs: tf.Tensor, head: heads.Head) -> tf.Tensor:
        return (tf.reduce_mean(head.means(outputs), axis=1) - y) ** 2

    def result(self) -> tf.Tensor:
        """Returns the root of the mean squared error."""
        return tf.sqrt(self._means()[0])


@_register
class Coverage(ValueMetric):
    """`metrics.coverage`, streaming: the share of targets within the central interval of probability `level`."""

    _direction = "up"
    _options = ("level",)

    def __init__(self, level: float = 0.9, name: str | None = "coverage", dtype: Any = None, kind: Any = None) -> None:
        super().__init__(name, dtype, kind)
        self.level = heads.check_level(level)

    def _values(self, y: tf.Tensor, outputs: tf.Tensor, head: heads.Head) -> tf.Tensor:
        inside = tf.abs(components.cdf(head.components(outputs), y) - 0.5) <= 0.5 * self.level
        return tf.cast(inside, y.dtype)


@_register
class IntervalScore(ValueMetric):
    """`metrics.interval_score`, streaming: in units of the target."""

    _options = ("level",)

    def __init__(
        self, level: float = 0.9, name: str | None = "interval_score", dtype: Any = None, kind: Any = None
    ) -> None:
        super().__init__(name, dtype, kind)
        self.level = heads.check_level(level)

    def _values(self, y: tf.Tensor, outputs: tf.Tensor, head: heads.Head) -> tf.Tensor:
        return scores.interval_scores(head.components(outputs), y, self.level)


@_register
class CalibrationError(ValueMetric):
    """`metrics.calibration_error`, streaming: mean distance of promised and observed probability over levels."""

    _options = ("num_levels",)

    def __init__(
        self, num_levels: int = 19, name: str | None = "calibration_error", dtype: Any = None, kind: Any = None
    ) -> None:
        self.num_levels = len(scores.calibration_levels(num_levels))
        super().__init__(name, dtype, kind, self.num_levels)

    def _values(self, y: tf.Tensor, outputs: tf.Tensor, head: heads.Head) -> tf.Tensor:
        levels = tf.constant(scores.calibration_levels(self.num_levels), y.dtype)
        return tf.cast(components.cdf(head.components(outputs), y)[..., None] <= levels, y.dtype)

    def result(self) -> tf.Tensor:
        """Returns the mean over levels of the distance."""
        return tf.reduce_mean(tf.abs(self._means() - scores.calibration_levels(self.num_levels)))


@_register
class Sharpness(ValueMetric):
    """`metrics.sharpness`, streaming: the mixture's mean standard deviation. Targets are not used."""

    _default_name = "sharpness"

    def _values(self, y: tf.Tensor, outputs: tf.Tensor, head: heads.Head) -> tf.Tensor:
        parts = head.components(outputs)
        _, aleatoric, epistemic = components.moments(components.part_means(parts), components.member_variances(parts))
        return tf.sqrt(aleatoric + epistemic)
