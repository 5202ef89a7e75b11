"""Calibrated noise of a regression: wider or narrower, or of another shape.

Both are ways to read the ensemble's outputs, `heads`, so that moments, quantiles, draws and exports follow.

Shapes: member outputs `[batch, members, outputs]`, targets `[batch, targets]`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import checks
from tf_ensembles.base import Array
from tf_ensembles.decisions import fitting
from tf_ensembles.decisions.fitting import Objective
from tf_ensembles.decisions.wrapped import Wrapped
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import components, heads

PARTS = 3  # of a new shape
_MOST_FACTOR = math.log(1000.0)  # of standard deviations, as a logarithm
_MOST_LOG, _MOST_SHIFT = 30.0, 1000.0  # of weights and factors of a new shape, and of its shifts
LEAST = 0.2  # A part is at least so many standard deviations wide: none shrinks to a point.


def fitted(model: Any, members: Array, y: Any, method: str, objective: Objective, tau: int) -> Wrapped:
    """Returns the ensemble with the noise of least NLL.

    Args:
        model: the ensemble.
        members: outputs of its healthy members on the calibration inputs.
        y: their targets.
        method: `"temperature"`, one factor, or `"quantiles"`, another shape.
        objective: `"marginal"` or `"joint"`.
        tau: examples per joint prediction.
    """
    checks.check_range("member outputs", members, checks.LARGEST_VALUE)
    parts = model.head.components(tf.constant(members, tf.float64))
    given, wanted = checks.floats("targets", y, checks.LARGEST_VALUE), (len(members), int(parts.loc.shape[-1]))
    if given.size != wanted[0] * wanted[1] or len(given) != len(members):
        raise ValueError(f"Expected finite targets {list(wanted)}. Received: shape {given.shape}")
    targets = tf.constant(given.reshape(wanted))

    def loss_of(change: Any) -> Any:
        return lambda parameters: fitting.nll(components.log_likelihood(change(parameters), targets), objective, tau)

    if method == "temperature":
        widened = loss_of(lambda parameters: parts._replace(scale=parts.scale * tf.exp(parameters)))
        found, undetermined = fitting.minimize(widened, np.zeros(1), np.array([_MOST_FACTOR]))
        factor = float(np.exp(found)[0])
        what = f"the size of the noise: the NLL falls the {'more' if factor > 1.0 else 'less'} there is"
        fitting.warn_of_chance(
            len(members), 4, what if undetermined[0] else None, f"{factor:.3g} times the members' own"
        )
        calibrated = CalibratedNoise(model, name="calibrated")
        calibrated.factor.assign(factor)
        return calibrated
    if parts.df is not None:
        raise ValueError("Expected normal members for method='quantiles'. Received: Student's t; use 'temperature'")
    # From a wide part in the middle and one on either side; their order does not matter.
    begin = np.concatenate([[1.0, 0.0, 0.0], [0.0, -1.0, 1.0], np.log([1.0 - LEAST, 0.5, 0.5])])
    limit = np.repeat([_MOST_LOG, _MOST_SHIFT, _MOST_LOG], PARTS)
    shape = _shape(fitting.minimize(loss_of(lambda parameters: reshaped(parts, *_shape(parameters))), begin, limit)[0])
    fitting.warn_of_chance(len(members), 4)
    made = CalibratedShape(model, name="calibrated")
    for variable, value in zip((made.log_weights, made.shifts, made.factors), shape, strict=True):
        variable.assign(np.asarray(value))
    return made


def _shape(parameters: Any) -> tuple[Any, Any, Any]:
    """Returns log-weights, shifts and factors, `[parts]` each, of free numbers `[3 * parts]`."""
    weights, shifts, factors = tf.split(tf.convert_to_tensor(parameters), 3)
    return tf.nn.log_softmax(weights), shifts, LEAST + tf.exp(factors)


def reshaped(c: components.Components, log_weights: Any, shifts: Any, factors: Any) -> components.Components:
    """Returns each normal part as several: moved and widened in units of its standard deviation.

    Args:
        c: of a model, `[..., parts, targets]`.
        log_weights: of the new parts, `[new]`.
        shifts: in standard deviations, `[new]`.
        factors: of the standard deviation, `[new]`.
    """
    log_weights, shifts, factors = (
        tf.cast(part, c.loc.dtype)[:, None] for part in (log_weights, shifts, factors)
    )  # [new, 1]
    before = tf.zeros_like(c.loc) if c.log_weight is None else c.log_weight

    def side_by_side(values: Any) -> Any:
        shape = tf.shape(values)  # [..., parts, new, targets]
        return tf.reshape(values, tf.concat([shape[:-3], [shape[-3] * shape[-2]], shape[-1:]], axis=0))

    loc, scale, weight = (part[..., None, :] for part in (c.loc, c.scale, before))
    return components.Components(
        side_by_side(loc + shifts * scale), side_by_side(factors * scale), side_by_side(weight + log_weights)
    )


@dataclasses.dataclass(frozen=True)
class _Over(heads.Head):
    """Reads outputs as another head does, but for the noise."""

    base: heads.Head

    @property
    def kind(self) -> Kind:
        """That of the base."""
        return self.base.kind

    @property
    def blocks(self) -> tuple[int, int]:
        """Those of the base."""
        return self.base.blocks

    @property
    def columns(self) -> str:
        """Those of the base."""
        return self.base.columns


@dataclasses.dataclass(frozen=True)
class Widened(_Over):
    """Reads outputs as another head does, with standard deviations multiplied by a factor."""

    factor: float

    def components(self, outputs: tf.Tensor) -> components.Components:
        """Returns the distribution of each member, wider or narrower."""
        found = self.base.components(outputs)
        return found._replace(scale=found.scale * tf.constant(self.factor, found.scale.dtype))

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the means of the base."""
        return self.base.means(outputs)


@keras.saving.register_keras_serializable(package="tf_ensembles")
class CalibratedNoise(Wrapped):
    """A regression ensemble whose members' standard deviations are multiplied by `factor`."""

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.factor = self.add_weight(shape=(), initializer="ones", trainable=False, name="factor")

    @property
    def head(self) -> Any:
        """How outputs are read: as the ensemble's, with wider or narrower noise."""
        with tf.init_scope():  # A number, while something is traced, too.
            factor = float(self.factor)
        return Widened(self.model.head, factor)


@dataclasses.dataclass(frozen=True)
class Reshaped(_Over):
    """Reads outputs as another head does, with noise of another shape."""

    log_weights: tuple[float, ...]
    shifts: tuple[float, ...]
    factors: tuple[float, ...]

    def components(self, outputs: tf.Tensor) -> components.Components:
        """Returns the distribution of each member, of the new shape."""
        return reshaped(self.base.components(outputs), self.log_weights, self.shifts, self.factors)

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the means of the members' new distributions."""
        return components.part_means(self.components(outputs))


@keras.saving.register_keras_serializable(package="tf_ensembles")
class CalibratedShape(Wrapped):
    """A regression ensemble whose members' noise has the shape of a few normal parts, in units of its own width."""

    def __init__(self, model: Any, **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.log_weights, self.shifts, self.factors = (
            self.add_weight(shape=(PARTS,), initializer=start, trainable=False, name=name)
            for name, start in (("log_weights", "zeros"), ("shifts", "zeros"), ("factors", "ones"))
        )

    @property
    def head(self) -> Any:
        """How outputs are read: as the ensemble's, with noise of the new shape."""
        with tf.init_scope():  # Numbers, while something is traced, too.
            shape = [tuple(np.asarray(part).tolist()) for part in (self.log_weights, self.shifts, self.factors)]
        return Reshaped(self.model.head, *shape)
