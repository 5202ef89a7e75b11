"""When to abstain: a threshold on confidence, below which a model had better not answer, with a guarantee."""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import ArrayLike

from tf_ensembles import checks
from tf_ensembles.metrics import ranking

# How many thresholds are tried. Each has to hold by itself with probability 1 - delta / _TRIED.
_TRIED = 32


def selective_threshold(confidence: ArrayLike, correct: ArrayLike, risk: float = 0.01, delta: float = 0.05) -> float:
    """Returns a low threshold t such that predictions with `confidence >= t` are wrong at a rate of at most `risk`.

    That holds with probability `1 - delta` over the examples given, for new examples like them. Thresholds are the k-th
    largest of the confidences, for 32 values of k that do not look at the data. Given such a threshold, the examples
    above it are independent draws of those that will be answered, so the exact binomial test of their error rate
    holds; with `delta / 32` for each, it holds for whichever is chosen.

    If none can be guaranteed, it is infinity, with a warning: the model would have to abstain from everything.

    Args:
        confidence: `[batch]`, higher for surer, such as `probabilities.max(axis=-1)`; examples not used in training.
        correct: `[batch]` of bool: whether the prediction was right.
        risk: the largest error rate to accept among answers, in (0, 1).
        delta: the probability with which the guarantee may fail, in (0, 1).
    """
    scores, right = ranking.check_confidences(confidence, correct)
    checks.number("risk", risk, "(0, 1)")
    checks.number("delta", delta, "(0, 1)")
    # So many without one error are needed, and the threshold itself is one more.
    log_delta = math.log(delta) - math.log(_TRIED)
    least = math.ceil(min(log_delta / math.log1p(-risk), 1e18))
    if len(scores) < least + 1:
        raise ValueError(
            f"Expected at least {least + 1} examples for risk={risk} and delta={delta}. Received: {len(scores)}"
        )
    order = np.argsort(-scores, kind="stable")
    scores, errors = scores[order], np.concatenate([[0.0], np.cumsum(1.0 - right[order])])
    found = math.inf
    for place in np.unique(np.geomspace(least, len(scores) - 1, _TRIED).astype(np.int64)):
        above = int(np.searchsorted(-scores, -scores[place], side="left"))
        if _log_at_most(int(errors[above]), above, risk) <= log_delta:
            found = float(np.nextafter(scores[place], math.inf))
    if found == math.inf:
        warnings.warn(
            f"No threshold is known to keep errors at a rate of {risk}: abstain from everything, or accept more.",
            stacklevel=2,
        )
    return found


def _log_at_most(errors: int, trials: int, rate: float) -> float:
    """Returns `log P(Binomial(trials, rate) <= errors)`: how probable so few errors are if that is their rate."""
    k = np.arange(errors + 1)
    choose = np.concatenate([[0.0], np.cumsum(np.log((trials - k[1:] + 1) / k[1:]))])
    terms = choose + k * math.log(rate) + (trials - k) * math.log1p(-rate)
    return float(terms.max() + np.log(np.exp(terms - terms.max()).sum()))
