"""The scores, curves and slices of class predictions.

Shapes: logits `[examples, members, classes]`, labels `[examples]`, sets `[examples, classes]` of bool.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles import intervals
from tf_ensembles.assessment import statistics
from tf_ensembles.assessment.statistics import Statistic, Weights
from tf_ensembles.decisions import ood
from tf_ensembles.intervals import Interval
from tf_ensembles.metrics import functions, kinds, likelihood, ranking
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.metrics.likelihood import Floats

BINS = 15  # of the calibration error
_CURVE_POINTS = 100


@dataclasses.dataclass(frozen=True)
class Classes:
    """Class predictions of the model, of the model before calibration, or of a member alone, beside the truth."""

    logits: NDArray[Any]
    labels: NDArray[np.int64]
    level: float
    sets: NDArray[np.bool_] | None = None  # those it promises; None: the most probable labels that reach the level

    task, covers = "classification", "set"
    least_nll = 0.0

    @classmethod
    def read(cls, outputs: NDArray[Any], kind: Kind, y: Any, level: float, sets: Any = None) -> Classes:
        """Returns predictions from member outputs of a kind, and labels in any form that a loss takes."""
        if kind.is_multilabel:
            raise ValueError("Expected one label per example. Received: outputs of several labels")
        logits = kinds.read(outputs, kind)[0]
        labels = np.asarray(kinds.labels_tensor(tf.convert_to_tensor(np.asarray(y)), kind, outputs.shape[-1]))
        return cls(logits, likelihood.check_labels(logits, labels), level, sets)

    @property
    def num_members(self) -> int:
        """How many members the mixture has."""
        return self.logits.shape[1]

    def member(self, index: int) -> Classes:
        """Returns the predictions of a member alone."""
        return dataclasses.replace(self, logits=self.logits[:, [index]], sets=None)

    def _covering_sets(self, probabilities: Floats) -> NDArray[np.bool_]:
        return probable_sets(probabilities, self.level) if self.sets is None else self.sets

    def _correct(self, probabilities: Floats) -> NDArray[np.bool_]:
        return functions.predicted(probabilities) == self.labels

    def log_likelihoods(self) -> Floats:
        """Returns that of each label by each member, `[examples, members]`."""
        return likelihood.log_likelihood(self.logits, self.labels)

    def values(self) -> dict[str, NDArray[Any]]:
        """Returns the scores that are means over examples and are given by slices, `[examples]` each."""
        probabilities = likelihood.mixture_probabilities(self.logits)
        return {
            "accuracy": self._correct(probabilities),
            "nll": -likelihood.log_mean_exp(self.log_likelihoods()),
            "coverage": self._covering_sets(probabilities)[np.arange(len(self.labels)), self.labels],
        }

    def scores(self) -> dict[str, Statistic]:
        """Returns the scores that belong to examples, all but those of several together."""
        probabilities, values = likelihood.mixture_probabilities(self.logits), self.values()
        confidence, correct = probabilities.max(axis=1), values["accuracy"]
        truth = np.eye(probabilities.shape[1])[self.labels]
        sizes = self._covering_sets(probabilities).sum(axis=1)
        ece = float(functions.ece(self.logits, self.labels, BINS, kind="logits"))
        return {
            "accuracy": statistics.mean(correct),
            "nll": statistics.mean(values["nll"], 0.0),
            "brier": statistics.mean(np.square(probabilities - truth).sum(axis=1), 0.0, 2.0),
            "ece": calibration_error(confidence, correct, ece),
            "aurc": area(confidence, correct),
            "coverage": statistics.mean(values["coverage"]),
            "set_size": statistics.mean(sizes, 0.0, float(probabilities.shape[1])),
        }

    def curves(self) -> dict[str, Any]:
        """Returns the reliability diagram and the risk-coverage curve."""
        probabilities = likelihood.mixture_probabilities(self.logits)
        confidence, correct = probabilities.max(axis=1), self._correct(probabilities)
        bins = functions.confidence_bins(confidence, BINS)
        reliability = [
            {
                "confidence": float(confidence[bins == one].mean()),
                "accuracy": float(correct[bins == one].mean()),
                "count": int((bins == one).sum()),
            }
            for one in np.unique(bins)
        ]
        curve = ranking.risk_coverage(confidence, correct)
        rows = np.unique(np.linspace(0, len(self.labels) - 1, _CURVE_POINTS).astype(int))
        risks = {"coverage": curve.coverage[rows].tolist(), "risk": curve.risk[rows].tolist()}
        return {"reliability": reliability, "risk_coverage": risks}

    def ood_scores(self, outputs: NDArray[Any], kind: Kind) -> dict[str, tuple[Floats, Floats]]:
        """Returns scores of these examples and of the members' outputs on out-of-distribution ones, by method."""
        other = kinds.read(outputs, kind)[0]
        methods: list[ood.Method] = ["max_probability", "entropy"]
        methods += ["mutual_information"] if self.num_members > 1 else []
        return {
            method: (ood.ood_score(self.logits, method, kind="logits"), ood.ood_score(other, method, kind="logits"))
            for method in methods
        }


def probable_sets(probabilities: Floats, level: float) -> NDArray[np.bool_]:
    """Returns the smallest sets of labels whose probabilities reach the level, `[examples, classes]`."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ordered = np.take_along_axis(probabilities, order, axis=1)
    taken = np.cumsum(ordered, axis=1) - ordered < level  # whatever came before did not reach it
    sets = np.empty_like(taken)
    np.put_along_axis(sets, order, taken, axis=1)
    return sets


def calibration_error(confidence: Floats, right: NDArray[np.bool_], value: float) -> Statistic:
    """Returns the expected calibration error, whose value is given."""
    bins = functions.confidence_bins(confidence, BINS)
    gaps = np.zeros((len(confidence), BINS), np.float32)
    gaps[np.arange(len(confidence)), bins] = confidence - right

    def of(weights: Weights) -> Floats:
        return np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)

    return Statistic(value, of, 0.0, 1.0)


def area(confidence: Floats, right: NDArray[np.bool_]) -> Statistic:
    """Returns the area under the risk-coverage curve."""
    order = np.argsort(-confidence, kind="stable")
    wrong = (~right[order]).astype(np.float32)

    def of(weights: Weights) -> Floats:
        ordered = weights[:, order]
        risk = np.cumsum(ordered * wrong, axis=1) / np.maximum(np.cumsum(ordered, axis=1), 1.0)
        return (risk * ordered).sum(axis=1) / ordered.sum(axis=1)

    return Statistic(ranking.aurc(confidence, right), of, 0.0, 1.0)


def detection(known: Floats, strange: Floats, count: int, seed: int) -> dict[str, Interval]:
    """Returns AUROC, AUPR and the false alarms at 95% found, with intervals of `count` draws of either set."""
    random = np.random.default_rng(seed)
    functions_of: dict[str, Callable[[Floats, Floats], float]] = {
        "auroc": ranking.auroc,
        "aupr": ranking.aupr,
        "fpr95": ranking.fpr_at,
    }
    drawn: dict[str, list[float]] = {name: [] for name in functions_of}
    for _ in range(count):
        one, two = (part[random.integers(0, len(part), len(part))] for part in (known, strange))
        for name, function in functions_of.items():
            drawn[name].append(function(one, two))
    return {
        name: intervals.resampled(function(known, strange), np.array(drawn[name]), 0.0, 1.0)
        for name, function in functions_of.items()
    }
