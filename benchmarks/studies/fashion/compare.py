"""Two agents on the same images: the difference of their scores, and what of it may be due to chance.

Chance has two sources: the images, which both agents share, and the members, which each ensemble drew for itself. Both
are told by a jackknife: the score without some of the images, and without each of the members. The interval is
Student's with as many degrees of freedom as an ensemble has members, less one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import stats
from benchmarks.studies.fashion import data, preset
from benchmarks.studies.fashion.preset import BP, N, P
from tf_ensembles import metrics
from tf_ensembles.decisions import ood

PAIRS = ((P, N), (BP, P))
SCORES = {"nll": "NLL", "dyadic_nll": "dyadic NLL"}
FOREIGN = {"max_probability": "AUROC, max. probability", "mutual_information": "AUROC, mutual information"}
IMAGE_GROUPS = 20  # of neighbors, left out one group at a time; joint scores pair neighbors, so their size is even

Logits = NDArray[np.float32]
Score = Callable[[Sequence[Logits], NDArray[np.int64]], float]  # of logits per set, and the rows of all of them


def differences(
    logits: Mapping[str, Mapping[str, Logits]], labels: NDArray[np.int64]
) -> dict[tuple[str, str, str, str], stats.Interval]:
    """Returns what one agent scores more than another, by (agent, other, images, score), for `PAIRS` that are there.

    Args:
        logits: by agent and by set, `[images, members, classes]`.
        labels: of the test images.
    """
    found = {}
    for pair in PAIRS:
        if not all(agent in logits for agent in pair):
            continue
        for name in ("test", *data.shift_names()):
            for score in SCORES:
                parts = [[logits[agent][name]] for agent in pair]
                found[*pair, name, score] = _difference(_of_labels(score, labels), parts)
        for method in FOREIGN:
            parts = [[logits[agent]["test"], logits[agent]["mnist"]] for agent in pair]
            found[*pair, "mnist", f"auroc, {method}"] = _difference(_of_foreign(method), parts)
    return found


def _of_labels(name: str, labels: NDArray[np.int64]) -> Score:
    def score(parts: Sequence[Logits], rows: NDArray[np.int64]) -> float:
        if name == "nll":
            return float(metrics.marginal_nll(parts[0][rows], labels[rows]))
        return float(metrics.dyadic_nll(parts[0][rows], labels[rows], tau=preset.TAU))

    return score


def _of_foreign(method: Any) -> Score:
    def score(parts: Sequence[Logits], rows: NDArray[np.int64]) -> float:
        known, strange = (ood.ood_score(part[rows], method) for part in parts)
        return float(metrics.auroc(known, strange))

    return score


def _difference(score: Score, pair: Sequence[Sequence[Logits]]) -> stats.Interval:
    """Returns the score of the first agent less that of the second; an agent is its logits per set."""
    one, other = pair
    count, num_members = one[0].shape[:2]
    rows = np.arange(count)
    size = 2 * math.ceil(count / (2 * IMAGE_GROUPS))
    kept = [np.delete(rows, slice(start, start + size)) for start in range(0, count, size)]
    variance = _jackknife([score(one, some) - score(other, some) for some in kept])
    variance += sum(_over_members(score, parts) for parts in pair)
    value = score(one, rows) - score(other, rows)
    return stats.normal_interval(value, math.sqrt(variance), count, degrees=num_members - 1)


def member_error(logits: Logits, labels: NDArray[np.int64]) -> float:
    """Returns the standard error of an ensemble's NLL on given images: by how much other members would change it."""
    return math.sqrt(_over_members(_of_labels("nll", labels), [logits]))


def _over_members(score: Score, parts: Sequence[Logits]) -> float:
    rows, members = np.arange(len(parts[0])), range(parts[0].shape[1])
    return _jackknife([score([np.delete(part, m, axis=1) for part in parts], rows) for m in members])


def _jackknife(values: Sequence[float]) -> float:
    """Returns the variance of a score from its values without one part each."""
    return (len(values) - 1) * float(np.var(values))


def markdown(found: Mapping[tuple[str, str, str, str], stats.Interval]) -> str:
    """Returns the table: a row per set of images, a column per pair of agents and score."""
    pairs = [pair for pair in PAIRS if any(key[:2] == pair for key in found)]
    columns = [(*pair, score) for pair in pairs for score in SCORES]
    names = " | ".join(f"{agent} less {other}, {SCORES[score]}" for agent, other, score in columns)
    lines = [f"| images | {names} |", "|---" * (len(columns) + 1) + "|"]
    for name in ("test", *data.shift_names()):
        cells = [_cell(found[agent, other, name, score]) for agent, other, score in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for method, label in FOREIGN.items():
        told = [f"{one} less {other}: {_cell(found[one, other, 'mnist', f'auroc, {method}'])}" for one, other in pairs]
        lines.append(f"\n{label}: " + "; ".join(told))
    return "\n".join(lines)


def _cell(interval: stats.Interval) -> str:
    bold = "**" if interval.excludes(0.0) else ""
    return f"{bold}{interval.estimate:+.3f}{bold} [{interval.low:+.3f}, {interval.high:+.3f}]"
