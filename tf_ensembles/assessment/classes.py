"""The scores, curves and slices of class predictions.

Shapes: logits `[examples, members, classes]`, labels `[examples]`, sets `[examples, classes]` of bool.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles.assessment import intervals
from tf_ensembles.assessment.intervals import Statistic, Weights
from tf_ensembles.decisions import foreign
from tf_ensembles.metrics import functions, likelihood, ranking
from tf_ensembles.metrics.likelihood import Floats

BINS = 15  # of the calibration error
_CURVE_POINTS = 100


@dataclasses.dataclass(frozen=True)
class Subject:
    """What predicts: the model, the model before calibration, or a member alone."""

    name: str
    logits: NDArray[Any]
    sets: NDArray[np.bool_] | None = None  # those it promises; None: the most probable labels that reach the level


def scores(subject: Subject, labels: NDArray[np.int64], level: float) -> dict[str, Statistic]:
    """Returns the scores that belong to examples, all but the joint one."""
    logits = subject.logits
    probabilities = likelihood.mixture_probabilities(logits)
    confidence, right = probabilities.max(axis=1), functions.predicted(probabilities) == labels
    sets = probable_sets(probabilities, level) if subject.sets is None else subject.sets
    truth = np.eye(probabilities.shape[1])[labels]
    return {
        "accuracy": intervals.mean(right),
        "nll": intervals.mean(nll(logits, labels), 0.0),
        "brier": intervals.mean(np.square(probabilities - truth).sum(axis=1), 0.0, 2.0),
        "ece": calibration_error(confidence, right, float(functions.ece(logits, labels, BINS, kind="logits"))),
        "aurc": area(confidence, right),
        "coverage": intervals.mean(sets[np.arange(len(labels)), labels]),
        "set_size": intervals.mean(sets.sum(axis=1), 0.0, float(probabilities.shape[1])),
    }


def nll(logits: NDArray[Any], labels: NDArray[np.int64]) -> Floats:
    """Returns the mixture's NLL of each example, `[examples]`."""
    return -likelihood.log_mean_exp(likelihood.log_likelihood(logits, labels))


def joint(log_likelihood: Floats, tau: int, seed: int) -> Floats:
    """Returns the joint NLL of each group of `tau` different examples of a random order, `[examples // tau]`.

    Args:
        log_likelihood: of each example by each member, `[examples, members]`.
        tau: labels per joint prediction.
        seed: of the order.
    """
    order = np.random.default_rng(seed).permutation(len(log_likelihood))
    return -likelihood.log_mean_exp(likelihood.joint(log_likelihood[order], tau))


def dyadic(log_likelihood: Floats, tau: int, seed: int) -> Floats:
    """Returns the dyadic NLL of each pair of a random order, `[examples // 2]`, per `tau` labels.

    Args:
        log_likelihood: of each example by each member, `[examples, members]`.
        tau: labels per joint prediction.
        seed: of the order.
    """
    pairs = len(log_likelihood) // 2
    order = np.random.default_rng(seed).permutation(len(log_likelihood))[: 2 * pairs].reshape(pairs, 2)
    return functions.dyadic_values(log_likelihood, order, tau, seed)


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


def curves(subject: Subject, labels: NDArray[np.int64]) -> dict[str, Any]:
    """Returns the reliability diagram and the risk-coverage curve."""
    probabilities = likelihood.mixture_probabilities(subject.logits)
    confidence, right = probabilities.max(axis=1), functions.predicted(probabilities) == labels
    bins = functions.confidence_bins(confidence, BINS)
    reliability = [
        {
            "confidence": float(confidence[bins == one].mean()),
            "accuracy": float(right[bins == one].mean()),
            "count": int((bins == one).sum()),
        }
        for one in np.unique(bins)
    ]
    found = ranking.risk_coverage(confidence, right)
    places = np.unique(np.linspace(0, len(labels) - 1, _CURVE_POINTS).astype(int))
    risks = {"coverage": found.coverage[places].tolist(), "risk": found.risk[places].tolist()}
    return {"reliability": reliability, "risk_coverage": risks}


def foreign_scores(known: Any, strange: Any) -> dict[str, tuple[Floats, Floats]]:
    """Returns how foreign known and foreign examples look, by each method, of logits `[examples, members, classes]`."""
    methods = ["max_probability", "entropy"] + (["mutual_information"] if known.shape[1] > 1 else [])
    return {
        method: (
            foreign.ood_score(known, method, kind="logits"),  # type: ignore[arg-type]
            foreign.ood_score(strange, method, kind="logits"),  # type: ignore[arg-type]
        )
        for method in methods
    }


def detection(known: Floats, strange: Floats, count: int, seed: int) -> dict[str, intervals.Estimate]:
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
        name: intervals.interval(function(known, strange), np.array(drawn[name]), 0.0, 1.0)
        for name, function in functions_of.items()
    }
