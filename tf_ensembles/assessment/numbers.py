"""The scores and curves of a regression's predictions.

Shapes: member outputs `[examples, members, outputs]`, targets `[examples, targets]`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles.assessment import statistics
from tf_ensembles.assessment.statistics import Statistic, Weights
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.regression import components, heads, scores
from tf_ensembles.regression.distribution import PredictiveDistribution

_LEVELS = 19
_ROWS = 1024
_MOST_POINTS = 500  # in the picture of predictions and targets


@dataclasses.dataclass(frozen=True)
class Numbers:
    """A regression's predictions by the model, the model before calibration, or a member alone, beside the truth."""

    head: Any
    outputs: NDArray[Any]
    targets: Floats
    level: float
    bounds: tuple[Any, Any] | None = None  # the intervals it promises; None: the mixture's own

    task, covers = "regression", "interval"
    least_nll = -math.inf  # densities have no bound

    @classmethod
    def read(cls, outputs: NDArray[Any], head: Any, y: Any, level: float, bounds: Any = None) -> Numbers:
        """Returns predictions from member outputs and targets `[examples, targets]`, or raises."""
        if isinstance(head, heads.Quantiles):
            raise ValueError("Expected members that predict a distribution or values. Received: kind 'quantiles'")
        width = int(head.means(tf.zeros([1, 1, outputs.shape[-1]])).shape[-1])
        targets = np.asarray(y, np.float64).reshape(len(outputs), -1)
        if targets.shape[1] != width or not np.isfinite(targets).all():
            raise ValueError(f"Expected finite targets [{len(outputs)}, {width}]. Received: shape {np.shape(y)}")
        return cls(head, outputs, targets, level, bounds)

    @property
    def num_members(self) -> int:
        """How many members the mixture has."""
        return self.outputs.shape[1]

    def member(self, index: int) -> Numbers:
        """Returns the predictions of a member alone."""
        return dataclasses.replace(self, outputs=self.outputs[:, [index]], bounds=None)

    @property
    def has_noise(self) -> bool:
        """Whether it predicts a distribution, rather than values alone."""
        return not (isinstance(self.head, heads.Values) and self.head.noise is None)

    @functools.cached_property
    def distribution(self) -> PredictiveDistribution:
        """The mixture."""
        return PredictiveDistribution.of_outputs(self.head, self.outputs)

    def log_likelihoods(self) -> Floats | None:
        """Returns that of each target by each member, `[examples, members]`; None where there is no density."""
        return self.distribution.member_log_prob(self.targets) if self.has_noise else None

    def values(self) -> dict[str, NDArray[Any]]:
        """Returns the scores that are means over examples and are given by slices, `[examples]` each."""
        errors = np.abs(self.distribution.mean - self.targets).mean(axis=1)
        return {"mae": errors} | ({"nll": -self.distribution.log_prob(self.targets)} if self.has_noise else {})

    def scores(self) -> dict[str, Statistic]:
        """Returns the scores that belong to examples, all but those of several together."""
        values, targets = self.values(), self.targets
        result = {
            "rmse": rmse(np.square(self.distribution.mean - targets).mean(axis=1)),
            "mae": statistics.mean(values["mae"], 0.0),
        }
        if not self.has_noise and self.bounds is None:
            return result
        if self.has_noise:
            result["nll"] = statistics.mean(values["nll"])
            if self.head.components(tf.constant(self.outputs[:1], tf.float64)).df is None:  # Else no closed form.
                result["crps"] = statistics.mean(_crps(self), 0.0)
        low, high = self.distribution.interval(self.level) if self.bounds is None else self.bounds
        inside = (targets >= low) & (targets <= high)  # A promise is about all targets together.
        covered = inside.mean(axis=1) if self.bounds is None else inside.all(axis=1)
        return result | {
            "coverage": statistics.mean(covered, 0.0, 1.0),
            "width": statistics.mean((high - low).mean(axis=1), 0.0),
        }

    def curves(self) -> dict[str, Any]:
        """Returns how often targets lay below each quantile, and some predictions beside their targets."""
        rows = np.unique(np.linspace(0, len(self.targets) - 1, _MOST_POINTS).astype(int))
        predicted, observed = self.distribution.mean[rows, 0], self.targets[rows, 0]
        result: dict[str, Any] = {"predictions": {"predicted": predicted.tolist(), "observed": observed.tolist()}}
        if self.has_noise:
            levels = scores.calibration_levels(_LEVELS)
            shares = np.mean(self.distribution.cdf(self.targets).ravel()[:, None] <= levels, axis=0)
            result["calibration"] = {"promised": levels.tolist(), "observed": shares.tolist()}
        return result

    def ood_scores(self, outputs: NDArray[Any], kind: Any) -> dict[str, tuple[Floats, Floats]]:
        """Returns how much members disagree on these examples and, by their outputs, on out-of-distribution ones."""
        if self.num_members == 1:
            return {}
        other = PredictiveDistribution.of_outputs(self.head, outputs)
        known, strange = (np.square(part.epistemic_std).sum(axis=1) for part in (self.distribution, other))
        return {"variance": (known, strange)}


def rmse(errors: Floats) -> Statistic:
    """Returns the root of the mean of squared errors `[examples]`."""

    def of(weights: Weights) -> Floats:
        return np.sqrt(weights @ errors / weights.sum(axis=1))

    return Statistic(float(np.sqrt(errors.mean())), of, 0.0)


def _crps(predictions: Numbers) -> Floats:
    parts = []
    for start in range(0, len(predictions.targets), _ROWS):
        rows = slice(start, start + _ROWS)
        outputs = tf.constant(predictions.outputs[rows], tf.float64)
        values = components.crps(predictions.head.components(outputs), tf.constant(predictions.targets[rows]))
        parts.append(np.asarray(values).mean(axis=1))
    return np.concatenate(parts)
