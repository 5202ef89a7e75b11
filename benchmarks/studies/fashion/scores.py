"""Scores of ensembles on every set of images, and differences of two ensembles with what of them may be due to chance.

Chance has two sources: the images, which agents share, and the members, which each ensemble drew for itself. Both are
measured by a jackknife: the score without some of the images, and without each of the members. The interval of a
difference is Student's with as many degrees of freedom as an ensemble has members, less one.

Shapes: logits `[images, members, classes]`, by the name of the set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import metrics
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.studies.fashion import data
from tf_ensembles.decisions import ood

TAU = 10  # labels per joint prediction
OVER_MEMBERS = "nll, over members"  # the NLL with its error over members, on these images: as published ones are
IMAGE_GROUPS = 20  # of neighbors, left out one group at a time; joint scores pair neighbors, so their size is even
FOREIGN: tuple[Literal["max_probability", "entropy", "mutual_information"], ...] = (
    "max_probability",
    "entropy",
    "mutual_information",
)

LINE = ("agent", "images", "score", "value", "error")  # of the table

Labels = NDArray[np.int64]
Logits = Mapping[str, NDArray[np.float32]]
Score = Callable[[Logits, NDArray[np.int64]], float]  # of some rows of each set


class Value(NamedTuple):
    """A score and its standard error over images; NaN where it has none."""

    value: float
    error: float


def heldout(logits: Logits, images: Mapping[str, data.Images]) -> float:
    """Returns the dyadic NLL on held-out images, by which scales and rates are chosen."""
    return float(metrics.dyadic_nll(logits["heldout"], images["heldout"].y, tau=TAU))


def score(logits: Logits, labels: Labels) -> dict[tuple[str, str], Value]:
    """Returns the scores of an ensemble by images and score, those of one model without what needs several."""
    values = {}
    for name in ("test", *data.shift_names()):
        part = logits[name]
        right = float(metrics.accuracy(part, labels))
        values[name, "accuracy"] = Value(right, math.sqrt(right * (1.0 - right) / len(labels)))
        values[name, "nll"] = Value(*metrics.marginal_nll(part, labels, standard_error=True))
        values[name, "dyadic_nll"] = Value(*metrics.dyadic_nll(part, labels, tau=TAU, standard_error=True))
        values[name, "ece"] = Value(float(metrics.ece(part, labels)), math.nan)
    for method in FOREIGN[: None if logits["test"].shape[1] > 1 else 2]:
        known, strange = (ood.ood_score(logits[name], method) for name in ("test", "mnist"))
        for name, value in (
            ("auroc", metrics.auroc(known, strange)),
            ("aupr", metrics.aupr(known, strange)),
            ("fpr95", metrics.fpr_at(known, strange)),
        ):
            values["mnist", f"{name}, {method}"] = Value(float(value), math.nan)
    return values


def score_alone(logits: Logits, labels: Labels) -> dict[tuple[str, str], Value]:
    """Returns the mean over members of the scores that each has alone, with its error over members."""
    members = range(logits["test"].shape[1])
    return mean([score({name: part[:, [m]] for name, part in logits.items()}, labels) for m in members])


def mean(scores: Sequence[Mapping[tuple[str, str], Value]]) -> dict[tuple[str, str], Value]:
    """Returns means of scores, and the standard errors of these means."""
    values = {}
    for key in scores[0]:
        numbers = [one[key].value for one in scores]
        error = float(np.std(numbers, ddof=1)) / math.sqrt(len(numbers)) if len(numbers) > 1 else math.nan
        values[key] = Value(float(np.mean(numbers)), error)
    return values


def differences(one: Logits, other: Logits, labels: Labels) -> dict[tuple[str, str], stats.Interval]:
    """Returns what one ensemble scores more than another, by images and score."""
    scores: dict[tuple[str, str], Score] = {}
    for name in ("test", *data.shift_names()):
        scores[name, "nll"] = nll(labels, name)
        scores[name, "dyadic_nll"] = _dyadic_nll(labels, name)
    for method in (FOREIGN[0], FOREIGN[2]):
        scores["mnist", f"auroc, {method}"] = _auroc(method)
    return {key: difference(function, one, other) for key, function in scores.items()}


def nll(labels: Labels, name: str = "test") -> Score:
    """Returns the NLL on a set as a function of logits and rows."""
    return lambda logits, rows: float(metrics.marginal_nll(logits[name][rows], labels[rows]))


def _dyadic_nll(labels: Labels, name: str) -> Score:
    return lambda logits, rows: float(metrics.dyadic_nll(logits[name][rows], labels[rows], tau=TAU))


def _auroc(method: Any) -> Score:
    def auroc(logits: Logits, rows: NDArray[np.int64]) -> float:
        known, strange = (ood.ood_score(logits[name][rows], method) for name in ("test", "mnist"))
        return float(metrics.auroc(known, strange))

    return auroc


def difference(function: Score, one: Logits, other: Logits) -> stats.Interval:
    """Returns the score of the first ensemble less that of the second."""
    count, num_members = one["test"].shape[:2]
    rows = np.arange(count)
    size = 2 * math.ceil(count / (2 * IMAGE_GROUPS))
    kept = [np.delete(rows, slice(start, start + size)) for start in range(0, count, size)]
    variance = _jackknife([function(one, some) - function(other, some) for some in kept])
    variance += sum(member_variance(function, logits) for logits in (one, other))
    value = function(one, rows) - function(other, rows)
    return stats.normal_interval(value, math.sqrt(variance), count, degrees=num_members - 1)


def member_variance(function: Score, logits: Logits) -> float:
    """Returns the variance of an ensemble's score over members: by how much other members would change it."""
    count, num_members = logits["test"].shape[:2]
    without = [{name: np.delete(part, m, axis=1) for name, part in logits.items()} for m in range(num_members)]
    return _jackknife([function(parts, np.arange(count)) for parts in without])


def _jackknife(values: Sequence[float]) -> float:
    """Returns the variance of a score from its values without one part each."""
    return (len(values) - 1) * float(np.var(values))
