"""Calibration: predictions that are as often right as they say, fitted on data that no member was trained on.

Shapes: logits `[batch, members, classes]`, or `[batch, members, labels, 2]` where an example has several labels.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from tf_ensembles import checks
from tf_ensembles.base import Array
from tf_ensembles.decisions import fitting, noise
from tf_ensembles.decisions.fitting import Objective
from tf_ensembles.decisions.wrapped import Wrapped
from tf_ensembles.ensemble import outputs as outputs_lib
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.metrics import kinds, likelihood
from tf_ensembles.metrics.kinds import Kind

# Logarithm of the largest size of calibrated logits, their mean distance from the mean over classes; the smallest is
# one over it. And how far a class may be moved.
_MOST_SIZE, _MOST_OFFSET = math.log(100.0), 15.0

Method = Literal["temperature", "vector", "isotonic", "quantiles", "conformal"]


def calibrate(
    model: Any,
    x: Any,
    y: ArrayLike,
    method: Method = "temperature",
    *,
    per_member: bool = False,
    objective: Objective = "marginal",
    tau: int = 10,
    batch_size: int | None = None,
    **conformal: Any,
) -> Wrapped:
    """Returns the ensemble calibrated: a Keras model that predicts, saves, loads and exports as the ensemble does.

    Examples that are all predicted right, or no better than by chance, cannot determine a temperature: it stops where
    calibrated logits are 100 or 1/100 in size, or where the NLL falls no more, and a warning says so.

    Args:
        model: a trained `tfe.Ensemble`; `tfe.Ensemble.from_models([model])` of one Keras model; or a calibrated one.
        x: inputs that no member was trained on, `[batch, ...]`.
        y: their labels `[batch]`, one-hot rows, or `[batch, labels]`; targets `[batch, targets]` for a regression.
        method: `"temperature"` divides members' logits by one number; for a regression it multiplies the standard
            deviations of members' noise by one. `"vector"` has a factor and an offset per class. `"isotonic"`, for two
            classes, maps the mixture's probability by a monotone function, and members' along with it.
            `"quantiles"`, for a regression, gives members' noise another shape, skewed or with heavier tails: three
            normal parts in units of each member's standard deviation, so that quantiles, intervals and draws follow.
            `"conformal"` leaves predictions as they are and promises sets or intervals; see `tfe.Conformal` for
            `level`, `score`, `by` and `groups`.
        per_member: whether each member has a temperature of its own.
        objective: `"marginal"` minimizes the mixture's NLL of single labels, `"joint"` that of `tau` labels together,
            in random order.
        tau: labels per joint prediction, for `objective="joint"`.
        batch_size: examples per prediction.
        **conformal: the options of `method="conformal"`.
    """
    checks.option("method", method, get_args(Method))
    checks.option("objective", objective, get_args(Objective))
    own = Wrapped(model)  # Checks that it is an ensemble, of one output.
    y = checks.array("y", y)
    if y.ndim == 0 or not y.size:
        raise ValueError(f"Expected calibration data, which no member was trained on. Received: y of shape {y.shape}")
    if method == "conformal":
        from tf_ensembles.decisions.conformal import OPTIONS, Conformal

        if unknown := sorted(set(conformal) - set(OPTIONS)):
            raise ValueError(f"Expected options of method='conformal' among {list(OPTIONS)}. Received: {unknown}")
        return Conformal.fitted(model, x, y, batch_size=batch_size, **conformal)
    if conformal:
        raise ValueError(f"Expected {sorted(conformal)} with method='conformal' only. Received: method={method!r}")
    checks.integer("tau", tau, 1)
    kind = outputs_lib.require(own.kind, own._member_loss)
    members = np.asarray(model.predict(x, batch_size=batch_size, verbose=0))
    healthy = np.flatnonzero(~model.diverged)
    if len(y) != len(members):
        raise ValueError(f"Expected labels or targets of {len(members)} examples, as x has. Received: {len(y)}")
    if objective == "joint" and len(members) < tau:
        raise ValueError(f"Expected at least tau={tau} examples. Received: {len(members)}")
    if own.head is not None:
        if method not in ("temperature", "quantiles") or per_member:
            raise ValueError(
                "Expected method='temperature', one for all members, 'quantiles' or 'conformal' for a regression. "
                f"Received: method={method!r}, per_member={per_member}"
            )
        return noise.fitted(model, members[:, healthy], y, method, objective, tau)
    if method == "quantiles":
        raise ValueError("Expected method='quantiles' for a regression only. Received: classes")
    labels = np.asarray(kinds.labels_tensor(tf.convert_to_tensor(y), kind, members.shape[-1]))
    logits, _ = kinds.read(members[:, healthy], kind)
    labels = likelihood.check_labels(logits, labels)
    if method == "isotonic":
        return _calibrate_isotonic(model, logits, labels)
    vector = method == "vector"
    if vector and (per_member or kind.is_multilabel):
        raise ValueError(
            "Expected method='temperature' for temperatures per member or several labels per example. "
            f"Received: method='vector', per_member={per_member}, kind {kind.value!r}"
        )
    rows, width = len(healthy) if per_member else 1, logits.shape[-1] if vector else 1
    # In units of their own size, so that a temperature has the same range whatever the logits are.
    wide = logits.astype(np.float64)
    unit = float(np.abs(wide - wide.mean(axis=-1, keepdims=True)).mean()) or 1.0
    tensor, truth = tf.constant(wide / unit), tf.constant(labels)

    def loss(parameters: tf.Tensor) -> tf.Tensor:
        factors, offsets = (
            tf.exp(parameters[: rows * width]),
            parameters[rows * width :] if vector else tf.zeros(1, tf.float64),
        )
        calibrated = scaled(tensor, tf.reshape(factors, [rows, width]), offsets)
        return fitting.nll(likelihood.log_likelihood_tensor(calibrated, truth), objective, tau)

    limit = np.full(rows * width, _MOST_SIZE)
    limit = np.append(limit, np.full(width, _MOST_OFFSET)) if vector else limit
    found, undetermined = fitting.minimize(loss, np.zeros(len(limit)), limit)
    direction = int(np.sign(found[undetermined].sum()))
    found[: rows * width] -= math.log(unit)
    words = {1: "falls the more certain predictions are", -1: "falls the less certain predictions are"}
    what = f"the temperature: the NLL {words.get(direction, 'is the same for all')}"
    temperatures = np.unique(np.exp(-found[: rows * width]).round(12))
    stopped = " to ".join(f"{value:.3g}" for value in temperatures[[0, -1][: len(temperatures)]])
    fitting.warn_of_chance(len(labels), 3, what if undetermined.any() else None, stopped)
    calibrated = Calibrated(model, (model.num_members if per_member else 1, width), name="calibrated")
    factors = np.ones(calibrated.factors.shape)
    factors[healthy if per_member else slice(None)] = np.exp(found[: rows * width]).reshape(rows, width)
    calibrated.factors.assign(factors)
    if vector:
        calibrated.offsets.assign(found[width:] - found[width:].mean())  # A shift of all classes says nothing.
    return calibrated


def scaled(logits: tf.Tensor, factors: tf.Tensor, offsets: tf.Tensor) -> tf.Tensor:
    """Returns `factor * logit + offset`.

    Args:
        logits: `[batch, members, classes]` or `[batch, members, labels, 2]`.
        factors: `[members, classes]`, either of which may be 1.
        offsets: `[classes]`, or `[1]`.
    """
    if len(logits.shape) == 4:
        factors = factors[:, None]
    return logits * factors[None] + offsets


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Calibrated(Wrapped):
    """An ensemble whose members' logits are multiplied by `factors`, inverse temperatures, and shifted by `offsets`.

    Its outputs are logits, also where the ensemble's are probabilities or one logit.

    Args:
        model: the ensemble.
        shape: of the factors, `[members, classes]`, either of which may be 1.
    """

    def __init__(self, model: Any, shape: Any, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.factors = self.add_weight(shape=tuple(shape), initializer="ones", trainable=False, name="factors")
        self.offsets = self.add_weight(shape=(shape[1],), initializer="zeros", trainable=False, name="offsets")

    @property
    def kind(self) -> Kind:
        """What member outputs are: logits of the classes, or of the labels."""
        of_model = self.model.kind
        return Kind.MULTILABEL_LOGITS if of_model is not None and of_model.is_multilabel else Kind.LOGITS

    @property
    def temperature(self) -> Array:
        """The temperatures, `[1]` or `[members]`; of a vector scaling, of each class `[1, classes]`."""
        return 1.0 / np.asarray(self.factors).squeeze(1 if self.factors.shape[1] == 1 else ())

    def transform(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns calibrated logits `[batch, members, classes]`, or `[batch, members, labels]`."""
        logits = scaled(
            kinds.as_logits_tensor(outputs, outputs_lib.require(self.model.kind, None)),
            self.factors.value,
            self.offsets.value,
        )
        return logits if len(logits.shape) == 3 else logits[..., 1] - logits[..., 0]

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of the ensemble and the shape of the factors."""
        return {**super().get_config(), "shape": list(self.factors.shape)}


# Two classes.


def _calibrate_isotonic(model: Any, logits: Array, labels: Array) -> IsotonicCalibrated:
    if logits.ndim != 3 or logits.shape[-1] != 2:
        raise ValueError(f"Expected two classes for method='isotonic'. Received: logits of shape {logits.shape}")
    probability = likelihood.mixture_probabilities(logits)[:, 1]
    points, values = isotonic(probability, labels.astype(np.float64))
    # Nothing is impossible after so many examples.
    values = np.clip(values, 1.0 / (len(labels) + 2), 1.0 - 1.0 / (len(labels) + 2))
    calibrated = IsotonicCalibrated(model, len(points), name="calibrated")
    calibrated.points.assign(points)
    calibrated.values.assign(values)
    return calibrated


def isotonic(x: Array, y: Array) -> tuple[Array, Array]:
    """Returns the monotone function nearest to (x, y), in squares, as corners `[corners]` of a piecewise linear one.

    Pool-adjacent-violators: neighbors that are out of order share their mean. Each pool gives the corners at its ends.
    """
    order = np.argsort(x, kind="stable")
    places, first, counts = np.unique(x[order], return_index=True, return_counts=True)
    pools: list[list[float]] = []  # [mean, weight, number of places]
    for total, weight in zip(np.add.reduceat(y[order], first), counts, strict=True):
        pools.append([total / weight, float(weight), 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            mean, size, number = pools.pop()
            before = pools[-1]
            before[0] = (before[0] * before[1] + mean * size) / (before[1] + size)
            before[1] += size
            before[2] += number
    ends = np.cumsum([int(pool[2]) for pool in pools])
    corners = np.stack([np.concatenate([[0], ends[:-1]]), ends - 1], axis=1)
    values = np.repeat([pool[0] for pool in pools], 2)
    chosen = corners.reshape(-1)
    kept = np.concatenate([[True], np.diff(chosen) > 0])  # a pool of one place has one corner
    return places[chosen[kept]], values[kept]


@keras.saving.register_keras_serializable(package="tf_ensembles")
class IsotonicCalibrated(Wrapped):
    """An ensemble of two classes whose mixture's probability is mapped by a monotone function.

    Members follow: where the mixture's probability p goes down to g, those of members are multiplied by `g / p`; where
    it goes up, those of the other class by `(1 - g) / (1 - p)`. So their mean is g, and they keep their order.

    Args:
        model: the ensemble.
        corners: how many corners the function has.
    """

    def __init__(self, model: Any, corners: int, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        weights = [self.add_weight(shape=(corners,), trainable=False, name=name) for name in ("points", "values")]
        self.points, self.values = weights

    @property
    def kind(self) -> Kind:
        """What member outputs are: probabilities of both classes."""
        return Kind.PROBABILITIES

    _call_member = Served._call_member  # A member's probabilities follow the mixture's, which all members make.

    def transform(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns calibrated probabilities `[batch, members, 2]`."""
        members = tf.nn.softmax(kinds.as_logits_tensor(outputs, outputs_lib.require(self.model.kind, None)))[..., 1]
        healthy = self._healthy()
        mixture = tf.reduce_mean(outputs_lib.of_members(members, healthy), axis=1, keepdims=True)
        goal = _interpolate(mixture, self.points.value, self.values.value)
        down = members * tf.math.divide_no_nan(goal, mixture)
        up = 1.0 - (1.0 - members) * tf.math.divide_no_nan(1.0 - goal, 1.0 - mixture)
        mapped = tf.where(goal <= mixture, down, up)
        return tf.stack([1.0 - mapped, mapped], axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of the ensemble and the number of corners."""
        return {**super().get_config(), "corners": int(self.points.shape[0])}


def _interpolate(x: tf.Tensor, points: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns the piecewise linear function through (points, values) at x, constant beyond its ends."""
    count = points.shape[0]
    place = tf.searchsorted(points, tf.reshape(x, [-1]), side="right")
    right = tf.clip_by_value(place, 0, count - 1)
    left = tf.clip_by_value(place - 1, 0, count - 1)
    low, high = tf.gather(points, left), tf.gather(points, right)
    share = tf.clip_by_value(tf.math.divide_no_nan(tf.reshape(x, [-1]) - low, high - low), 0.0, 1.0)
    found = tf.gather(values, left) * (1.0 - share) + tf.gather(values, right) * share
    return tf.reshape(found, tf.shape(x))
