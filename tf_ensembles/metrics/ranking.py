"""How well a score ranks examples: out-of-distribution above known ones, and wrong predictions below right ones.

Out-of-distribution (OOD) examples have the higher scores, entropy for example. They are the positives, as in
`sklearn.metrics.roc_auc_score` with labels 0 for known and 1 for OOD. Confidences are higher for what is surer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tf_ensembles import checks
from tf_ensembles.metrics.likelihood import Floats


class RiskCoverage(NamedTuple):
    """What is wrong of the most confident predictions, for every number of them; both `[batch]`."""

    coverage: Floats  # 1/batch, 2/batch, ..., 1
    risk: Floats  # fraction of wrong predictions among as many, the most confident ones


def auroc(score_in: ArrayLike, score_out: ArrayLike) -> float:
    """Returns the probability that an OOD example has the higher score, ties counting half: 0.5 is chance.

    Args:
        score_in: scores of known examples, `[known]`.
        score_out: scores of OOD examples, `[ood]`.
    """
    known, ood = np.sort(_scores("score_in", score_in)), _scores("score_out", score_out)
    below, up_to = np.searchsorted(known, ood, side="left"), np.searchsorted(known, ood, side="right")
    return float(np.mean(below + up_to) / (2 * len(known)))


def aupr(score_in: ArrayLike, score_out: ArrayLike) -> float:
    """Returns the average precision of finding OOD examples: chance is their fraction.

    It is the mean, over OOD examples, of the fraction of OOD ones among all that score at least as high.

    Args:
        score_in: scores of known examples, `[known]`.
        score_out: scores of OOD examples, `[ood]`.
    """
    known, ood = np.sort(_scores("score_in", score_in)), np.sort(_scores("score_out", score_out))
    found = len(ood) - np.searchsorted(ood, ood, side="left")
    flagged = found + len(known) - np.searchsorted(known, ood, side="left")
    return float(np.mean(found / flagged))


def fpr_at(score_in: ArrayLike, score_out: ArrayLike, tpr: float = 0.95) -> float:
    """Returns which fraction of known examples is flagged by the threshold that flags `tpr` of the OOD ones.

    Args:
        score_in: scores of known examples, `[known]`.
        score_out: scores of OOD examples, `[ood]`.
        tpr: the fraction of OOD examples to find, at least.
    """
    known, ood = _scores("score_in", score_in), np.sort(_scores("score_out", score_out))
    checks.number("tpr", tpr, "(0, 1]")
    # A hair below the product: 0.95 * 20 is 19, whatever its last bit says.
    threshold = ood[len(ood) - math.ceil(tpr * len(ood) * (1 - 1e-12))]
    return float(np.mean(known >= threshold))


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Returns the fraction of wrong predictions among the most confident ones, for every number of them.

    Predictions of equal confidence are taken in random order: the risk is the expected one.

    Args:
        confidence: `[batch]`, higher for surer.
        correct: `[batch]` of bool: whether the prediction was right.
    """
    scores, right = check_confidences(confidence, correct)
    order = np.argsort(-scores, kind="stable")
    scores, wrong = scores[order], 1.0 - right[order]
    _, first, counts = np.unique(-scores, return_index=True, return_counts=True)
    # Within equals, errors come at their mean rate.
    wrong = np.repeat(np.add.reduceat(wrong, first) / counts, counts)
    sizes = np.arange(1, len(wrong) + 1)
    return RiskCoverage(sizes / len(wrong), np.cumsum(wrong) / sizes)


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Returns the area under the risk-coverage curve: the mean risk over all coverages. Lower is better.

    Args:
        confidence: `[batch]`, higher for surer.
        correct: `[batch]` of bool: whether the prediction was right.
    """
    return float(risk_coverage(confidence, correct).risk.mean())


def risk_at_coverage(confidence: ArrayLike, correct: ArrayLike, coverage: float) -> float:
    """Returns the fraction of wrong predictions among the most confident `coverage` of them.

    Args:
        confidence: `[batch]`, higher for surer.
        correct: `[batch]` of bool: whether the prediction was right.
        coverage: the fraction of examples that is predicted at least, in (0, 1].
    """
    curve = risk_coverage(confidence, correct)
    checks.number("coverage", coverage, "(0, 1]")
    return float(curve.risk[math.ceil(coverage * len(curve.risk) * (1 - 1e-12)) - 1])


def check_confidences(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """Returns confidences `[batch]` and ones where predictions were right, or raises."""
    scores, right = _scores("confidence", confidence), checks.array("correct", correct)
    if right.shape != scores.shape or not np.isin(right, (0, 1)).all():
        raise ValueError(
            f"Expected correct of shape {scores.shape}, true or false. Received: {right.dtype} of shape {right.shape}"
        )
    return scores, right.astype(np.float64)


def _scores(name: str, values: ArrayLike) -> Floats:
    array = checks.floats(name, values)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"Expected finite {name} of shape [batch], not empty. Received: {name} of shape {array.shape}")
    return array
