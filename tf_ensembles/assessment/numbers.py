"""The scores and curves of a regression's predictions.

Shapes: member outputs `[examples, members, outputs]`, targets `[examples, targets]`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles.assessment import intervals
from tf_ensembles.assessment.intervals import Statistic, Weights
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.regression import components, heads, scores
from tf_ensembles.regression.distribution import PredictiveDistribution

_LEVELS = 19
_ROWS = 1024
_MOST_POINTS = 500  # in the picture of predictions and targets


@dataclasses.dataclass(frozen=True)
class Subject:
    """What predicts: the model, the model before calibration, or a member alone."""

    name: str
    head: Any
    outputs: NDArray[Any]
    bounds: tuple[Any, Any] | None = None  # the intervals it promises; None: the mixture's own

    @property
    def has_noise(self) -> bool:
        """Whether it predicts a distribution, rather than values alone."""
        return not (isinstance(self.head, heads.Values) and self.head.noise is None)

    @property
    def is_normal(self) -> bool:
        """Whether its parts are normal, so that the CRPS has a closed form."""
        return self.head.components(tf.constant(self.outputs[:1], tf.float64)).df is None

    def distribution(self) -> PredictiveDistribution:
        """Returns the mixture."""
        return PredictiveDistribution.of_outputs(self.head, self.outputs)


def check(outputs: Any, head: Any, y: Any) -> Floats:
    """Returns targets `[examples, targets]`, or raises."""
    if isinstance(head, heads.Quantiles):
        raise ValueError("Expected members that predict a distribution or values. Received: kind 'quantiles'")
    width = int(head.means(tf.zeros([1, 1, outputs.shape[-1]])).shape[-1])
    targets = np.asarray(y, np.float64).reshape(len(outputs), -1)
    if targets.shape[1] != width or not np.isfinite(targets).all():
        raise ValueError(f"Expected finite targets [{len(outputs)}, {width}]. Received: shape {np.shape(y)}")
    return targets


def statistics(subject: Subject, targets: Floats, level: float) -> dict[str, Statistic]:
    """Returns the scores that belong to examples, all but the joint one."""
    distribution = subject.distribution()
    errors = np.square(distribution.mean - targets).mean(axis=1)
    found = {"rmse": rmse(errors), "mae": intervals.mean(np.abs(distribution.mean - targets).mean(axis=1), 0.0)}
    if not subject.has_noise and subject.bounds is None:
        return found
    if subject.has_noise:
        found["nll"] = intervals.mean(-distribution.log_prob(targets))
        if subject.is_normal:
            found["crps"] = intervals.mean(_crps(subject, targets), 0.0)
    low, high = distribution.interval(level) if subject.bounds is None else subject.bounds
    inside = (targets >= low) & (targets <= high)  # A promise is about all targets together.
    covered = inside.mean(axis=1) if subject.bounds is None else inside.all(axis=1)
    return found | {
        "coverage": intervals.mean(covered, 0.0, 1.0),
        "width": intervals.mean((high - low).mean(axis=1), 0.0),
    }


def rmse(errors: Floats) -> Statistic:
    """Returns the root of the mean of squared errors `[examples]`."""

    def of(weights: Weights) -> Floats:
        return np.sqrt(weights @ errors / weights.sum(axis=1))

    return Statistic(float(np.sqrt(errors.mean())), of, 0.0)


def _crps(subject: Subject, targets: Floats) -> Floats:
    parts = []
    for start in range(0, len(targets), _ROWS):
        rows = slice(start, start + _ROWS)
        outputs = tf.constant(subject.outputs[rows], tf.float64)
        values = components.crps(subject.head.components(outputs), tf.constant(targets[rows]))
        parts.append(np.asarray(values).mean(axis=1))
    return np.concatenate(parts)


def curves(subject: Subject, targets: Floats) -> dict[str, Any]:
    """Returns how often targets lay below each quantile, and some predictions beside their targets."""
    distribution = subject.distribution()
    rows = np.unique(np.linspace(0, len(targets) - 1, _MOST_POINTS).astype(int))
    found: dict[str, Any] = {
        "predictions": {"predicted": distribution.mean[rows, 0].tolist(), "observed": targets[rows, 0].tolist()}
    }
    if subject.has_noise:
        levels = scores.calibration_levels(_LEVELS)
        observed = np.mean(distribution.cdf(targets).ravel()[:, None] <= levels, axis=0)
        found["calibration"] = {"promised": levels.tolist(), "observed": observed.tolist()}
    return found


def foreign_scores(known: Subject, strange: Subject) -> dict[str, tuple[Floats, Floats]]:
    """Returns how much members disagree on known and on foreign examples."""
    if known.outputs.shape[1] == 1:
        return {}
    one, two = (np.square(part.distribution().epistemic_std).sum(axis=1) for part in (known, strange))
    return {"variance": (one, two)}
