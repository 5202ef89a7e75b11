"""Conformal prediction: sets and intervals that contain the truth as often as promised, whatever the model.

A score says how strange a label is for an input. Of n calibration examples, the k-th smallest score is the threshold,
`k = ceil((n + 1) level)`. A new example like them has a score at or below it with a probability of `k / (n + 1)`
exactly, if scores have no ties: not more, not less, over draws of the calibration data.

Shapes: probabilities `[batch, classes]`, sets `[batch, classes]` of bool, bounds `[batch, targets]`.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks, draws
from tf_ensembles.base import Array
from tf_ensembles.decisions.wrapped import Wrapped
from tf_ensembles.ensemble import outputs as outputs_lib
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.regression import components, heads

ClassScore = Literal["lac", "aps", "raps"]
ValueScore = Literal["absolute", "normalized", "quantiles"]
_CLASS_SCORES, _VALUE_SCORES = get_args(ClassScore), get_args(ValueScore)
OPTIONS = ("level", "score", "by", "groups", "regularization", "randomized", "seed")  # of `tfe.calibrate`


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Conformal(Wrapped):
    """An ensemble that promises sets, `predict_set(x)`, or intervals, `predict_interval(x)`.

    Made by `tfe.calibrate(model, x, y, method="conformal", ...)`, whose further options are `level`, `score`, `by`,
    `groups`, `regularization` and `seed`.

    Args:
        model: the ensemble.
        level: how often the truth is to be in the set or the interval, in (0, 1).
        score: for classes `"lac"`, one minus the label's probability: the smallest sets; `"aps"`, the probability of
            all labels that are more probable: sets that are large where the model is unsure; `"raps"`, the same with a
            penalty on many labels. For a regression `"absolute"`, the distance to the mean: intervals of one width;
            `"normalized"`, that distance in standard deviations of the mixture; `"quantiles"`, the distance beyond the
            mixture's own interval of that level.
        by: `"all"`; `"class"`, for which each class has its own threshold and keeps the promise by itself; or
            `"group"`, the same for groups that are given with the examples.
        names: the groups that were seen, in order; None for `by != "group"`.
        regularization: `(penalty, labels)` of `"raps"`: every label beyond so many costs as much probability.
        randomized: whether `"aps"` and `"raps"` take the last label in with a probability, which is what makes their
            coverage exact; drawn from `seed` and a key of the call.
        set_seed: that seed.
        size: how many thresholds there are.
    """

    def __init__(
        self,
        model: Any,
        level: float,
        score: str,
        by: str = "all",
        names: Any = None,
        regularization: tuple[float, int] = (0.01, 5),
        randomized: bool = True,
        set_seed: int = 0,
        size: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, **kwargs)
        self.level, self.score, self.by = level, score, by
        self.names = None if names is None else np.asarray(names)
        self.regularization, self.randomized, self.set_seed = tuple(regularization), randomized, set_seed
        self.thresholds = self.add_weight(shape=(size,), initializer="zeros", trainable=False, name="thresholds")

    @classmethod
    def fitted(
        cls,
        model: Any,
        x: Any,
        y: ArrayLike,
        level: float = 0.9,
        score: str | None = None,
        by: str = "all",
        groups: ArrayLike | None = None,
        regularization: tuple[float, int] = (0.01, 5),
        randomized: bool = True,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> Conformal:
        """Returns the ensemble with thresholds from calibration data; see `tfe.calibrate`.

        Args:
            model: the ensemble.
            x: inputs that no member was trained on.
            y: labels `[batch]`, or targets.
            level: how often the truth is to be in the set.
            score: see the class; `"lac"` or `"normalized"` where nothing is said.
            by: `"all"`, `"class"` or `"group"`.
            groups: `[batch]` integers or strings, for `by="group"`.
            regularization: of `"raps"`.
            randomized: of `"aps"` and `"raps"`.
            seed: decides what these draw.
            batch_size: examples per prediction.
        """
        heads.check_level(level)
        is_classes = Wrapped(model).head is None
        known = _CLASS_SCORES if is_classes else _VALUE_SCORES
        score = ("lac" if is_classes else "normalized") if score is None else score
        ways = ("all", "class", "group") if is_classes else ("all", "group")
        checks.option("score", score, known)
        checks.option("by", by, ways)
        checks.seed(seed)
        if (by == "group") != (groups is not None):
            raise ValueError(f"Expected groups with by='group', and only then. Received: by={by!r}, groups={groups!r}")
        if not isinstance(regularization, tuple | list) or len(regularization) != 2:
            raise ValueError(
                f"Expected regularization (penalty >= 0, labels >= 0). Received: {checks.shown(regularization)}"
            )
        checks.number("regularization's penalty", regularization[0], "[0, 1e+30]")
        checks.integer("number of labels in regularization", regularization[1], 0, 2**31 - 1)
        members = np.asarray(model.predict(x, batch_size=batch_size, verbose=0))
        names = None if groups is None else np.unique(np.asarray(groups))
        size = members.shape[-1] if by == "class" else 1 if names is None else len(names)
        if by == "class" and members.shape[-1] == 1:
            size = 2
        made = cls(model, level, score, by, names, regularization, randomized, seed, size, name="conformal")
        places, values = made._calibration_scores(members, y, groups)
        made.thresholds.assign(_thresholds(values, places, size, level, made._what))
        return made

    def _what(self, place: int) -> str:
        """A threshold's name, for errors."""
        return "" if self.by == "all" else f" of {self.by} {place if self.names is None else self.names[place]!r}"

    def _calibration_scores(self, members: Array, y: Any, groups: Any) -> tuple[NDArray[np.int64], Array]:
        """Returns each example's threshold and score, `[batch]`."""
        outputs = tf.convert_to_tensor(members)
        if self.head is None:
            kind = outputs_lib.require(self.kind, self._member_loss)
            if kind.is_multilabel:
                raise ValueError("Expected one label per example for sets. Received: outputs of several labels")
            given = np.asarray(kinds.labels_tensor(tf.convert_to_tensor(y), kind, members.shape[-1]))
            labels = likelihood.check_labels(kinds.read(members, kind)[0], given)
            # Keys of calls are not negative, so no call ever draws these.
            scores = np.asarray(self._class_scores(outputs, tf.constant(-1, tf.int64)))
            values = scores[np.arange(len(labels)), labels]
            places = labels if self.by == "class" else self._places(groups, len(labels))
            return places, values
        checks.check_range("member outputs", members[:, self._healthy()], checks.LARGEST_VALUE)
        low, high, width = (np.asarray(part) for part in self._value_parts(outputs))
        targets = checks.floats("targets", y, checks.LARGEST_VALUE)
        if targets.size != low.size or len(targets) != len(low):
            raise ValueError(f"Expected finite targets {low.shape}. Received: shape {targets.shape}")
        targets = targets.reshape(low.shape)
        # Of several targets, the strangest counts: all are in their intervals together.
        beyond = np.maximum(low - targets, targets - high) / width
        checks.check_result("scores", beyond, outputs=members, y=targets)
        return self._places(groups, len(members)), beyond.max(axis=1)

    def _places(self, groups: Any, batch: int) -> NDArray[np.int64]:
        """Returns the number of each example's threshold, `[batch]`."""
        if self.names is None:
            return np.zeros(batch, np.int64)
        if groups is None:
            raise ValueError(f"Expected groups [{batch}], as in calibration. Received: None")
        given = np.asarray(groups)
        if given.shape != (batch,):
            raise ValueError(f"Expected groups of shape [{batch}]. Received: {given.shape}")
        places = np.clip(np.searchsorted(self.names, given), 0, len(self.names) - 1)
        unknown = self.names[places] != given
        if unknown.any():
            raise ValueError(f"Expected groups in {self.names.tolist()}. Received: {given[unknown][0]!r}")
        return places

    def _class_scores(self, outputs: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
        """Returns how strange each label is, `[batch, classes]`."""
        kind = outputs_lib.require(self.kind, self._member_loss)
        probabilities = outputs_lib.two_columns(kind, outputs_lib.mixture(kind, outputs, self._healthy()))
        if self.score == "lac":
            return 1.0 - probabilities
        # Labels from the most probable on; ties keep their order.
        order = tf.argsort(probabilities, axis=-1, direction="DESCENDING", stable=True)
        ranks = tf.argsort(order, axis=-1, stable=True)
        ordered = tf.gather(probabilities, order, batch_dims=1)
        before = tf.gather(tf.cumsum(ordered, axis=-1, exclusive=True), ranks, batch_dims=1)
        share = tf.ones([tf.shape(probabilities)[0], 1])
        if self.randomized:
            rows = tf.range(tf.shape(probabilities)[0], dtype=tf.int64)
            seed = draws.key(self.set_seed, draws.Purpose.PREDICTION_SETS)
            share = draws.uniform(seed, tf.reshape(key, [1]), rows)[0]
        scores = before + tf.cast(share, probabilities.dtype) * probabilities
        if self.score == "raps":
            penalty, free = self.regularization
            scores += penalty * tf.cast(tf.maximum(ranks + 1 - free, 0), scores.dtype)
        return scores

    def _value_parts(self, outputs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what scores measure from, below and above, and in which unit; each `[batch, targets]`."""
        raw = outputs_lib.of_members(outputs, self._healthy())
        if self.score == "absolute":
            mean = tf.reduce_mean(self.head.means(raw), axis=1)
            return mean, mean, tf.ones_like(mean)
        if self.score == "quantiles" and isinstance(self.head, heads.Quantiles):
            quantiles = tf.reduce_mean(self.head.quantiles(raw), axis=1)  # [batch, levels, targets]
            return quantiles[:, 0], quantiles[:, -1], tf.ones_like(quantiles[:, 0])
        parts = self.head.components(raw)
        if self.score == "quantiles":
            levels = tf.constant([(1.0 - self.level) / 2, (1.0 + self.level) / 2], tf.float32)
            found = tf.cast(components.quantile(parts, levels), tf.float32)  # [batch, targets, levels]
            return found[..., 0], found[..., 1], tf.ones_like(found[..., 0])
        mean, aleatoric, epistemic = components.moments(self.head.means(raw), components.member_variances(parts))
        return mean, mean, tf.sqrt(aleatoric + epistemic)

    # Predictions.

    def predict_set(
        self, x: Any, groups: ArrayLike | None = None, key: int = 0, batch_size: int | None = None
    ) -> NDArray[np.bool_]:
        """Returns which labels are in each example's set, `[batch, classes]` of bool. A set may be empty.

        Args:
            x: inputs `[batch, ...]`.
            groups: `[batch]`, for `by="group"`.
            key: decides what randomized sets draw, together with the row: give another at every call.
            batch_size: examples per prediction.
        """
        if self.head is not None:
            raise ValueError("Expected predict_interval for a regression. Received: predict_set")
        if not 0 <= int(key) < 2**63:
            raise ValueError(f"Expected a key in [0, 2**63). Received: {key}")
        members = tf.convert_to_tensor(np.asarray(self.predict(x, batch_size=batch_size, verbose=0)))
        places = tf.constant(self._places(groups, len(members)))
        return np.asarray(self._sets(members, tf.constant(int(key), tf.int64), places))

    def _sets(self, outputs: tf.Tensor, key: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        thresholds = (
            self.thresholds.value[None] if self.by == "class" else tf.gather(self.thresholds.value, places)[:, None]
        )
        return self._class_scores(outputs, key) <= thresholds

    def predict_interval(
        self, x: Any, groups: ArrayLike | None = None, batch_size: int | None = None
    ) -> tuple[Array, Array]:
        """Returns lower and upper bounds, each `[batch, targets]`: all targets of an example are within, as promised.

        Args:
            x: inputs `[batch, ...]`.
            groups: `[batch]`, for `by="group"`.
            batch_size: examples per prediction.
        """
        if self.head is None:
            raise ValueError("Expected predict_set for classes. Received: predict_interval")
        members = tf.convert_to_tensor(np.asarray(self.predict(x, batch_size=batch_size, verbose=0)))
        low, high = self._intervals(members, tf.constant(self._places(groups, len(members))))
        return np.asarray(low), np.asarray(high)

    def _intervals(self, outputs: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        low, high, unit = self._value_parts(outputs)
        reach = tf.gather(self.thresholds.value, places)[:, None] * unit
        middle = (low + high) / 2  # A threshold below zero draws bounds in; they meet at most.
        return tf.minimum(low - reach, middle), tf.maximum(high + reach, middle)

    def more_signatures(self) -> list[tuple[str, Any, list[tf.TensorSpec]]]:
        """Returns the signatures that a SavedModel has besides an ensemble's: `set` or `interval`."""
        place = [tf.TensorSpec([None], tf.int64, name="group")] if self.by == "group" else []

        def numbered(outputs: tf.Tensor, given: Any) -> tf.Tensor:
            return given[0] if given else tf.zeros([tf.shape(outputs)[0]], tf.int64)

        def interval(x: Any, *given: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = self(x, training=False)
            low, high = self._intervals(outputs, numbered(outputs, given))
            return {"lower": low, "upper": high}

        def sets(x: Any, key: tf.Tensor, *given: tf.Tensor) -> dict[str, tf.Tensor]:
            outputs = self(x, training=False)
            return {"set": self._sets(outputs, key, numbered(outputs, given))}

        if self.head is not None:
            return [*super().more_signatures(), ("interval", interval, place)]
        return [*super().more_signatures(), ("set", sets, [tf.TensorSpec([], tf.int64, name="key"), *place])]

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of the ensemble, and the options."""
        return {
            **super().get_config(),
            "level": self.level,
            "score": self.score,
            "by": self.by,
            "names": None if self.names is None else self.names.tolist(),
            "regularization": list(self.regularization),
            "randomized": self.randomized,
            "set_seed": self.set_seed,
            "size": int(self.thresholds.shape[0]),
        }


def _thresholds(scores: Array, places: NDArray[np.int64], size: int, level: float, what: Any) -> Array:
    """Returns the threshold of each place, or raises where there are too few scores for the level."""
    least = math.ceil(level / (1.0 - level) - 1e-9)
    found = np.empty(size)
    for place in range(size):
        own = np.sort(scores[places == place])
        # A hair below the product: 0.9 * 10 is 9, whatever its last bit says.
        rank = math.ceil((len(own) + 1) * level - 1e-9)
        if rank > len(own):
            raise ValueError(
                f"Expected at least {least} calibration examples{what(place)} for level={level}. Received: {len(own)}"
            )
        found[place] = own[rank - 1]
    return found
