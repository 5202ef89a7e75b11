"""Pictures of decisions, as `tfe.plot` has them. Each function draws into Matplotlib axes and returns them.

axes = tfe.plot.reliability(logits, labels)                   # also tfe.plot.risk_coverage(confidence, correct)
axes = tfe.plot.ood_scores(score_in, score_out)                  # and tfe.plot.set_sizes(sets, labels)
axes.figure.savefig("reliability.png")
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tf_ensembles.metrics import functions, ranking
from tf_ensembles.regression.plot import add_series, new_axes

# Okabe and Ito's colors, which stay apart for color-blind readers.
_FIRST, _SECOND, _GRAY = "#0072B2", "#E69F00", "0.6"


def reliability(
    logits: ArrayLike, labels: ArrayLike, *, num_bins: int = 15, kind: Any = None, label: str = "", axes: Any = None
) -> Any:
    """Draws how often predictions are right against how sure they are; returns the axes.

    Args:
        logits: member outputs `[batch, members, classes]`.
        labels: `[batch]` integers.
        num_bins: bins of confidence, as of `tfe.metrics.ece`.
        kind: what the outputs are, if they are no logits: a name or the ensemble.
        label: in the legend.
        axes: to draw into; None makes new ones.
    """
    axes = new_axes(axes)
    error = functions.ece(logits, labels, num_bins, kind=kind)
    probabilities = functions.mixture(logits, kind=kind)
    if probabilities.ndim != 2:
        raise ValueError(f"Expected one label per example. Received: probabilities of shape {probabilities.shape}")
    confidence, right = probabilities.max(axis=1), functions.predicted(probabilities) == np.asarray(labels)
    bins = functions.confidence_bins(confidence, num_bins)
    places = np.unique(bins)
    x, y = ([part[bins == place].mean() for place in places] for part in (confidence, right))
    axes.plot([0, 1], [0, 1], color=_GRAY, lw=1, ls="--")
    add_series(axes, x, y, label, f"ECE {error:.3f}", marker="o", ms=4)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", ylabel="share right")
    axes.legend(frameon=False, fontsize=9)
    return axes


def risk_coverage(confidence: ArrayLike, correct: ArrayLike, *, label: str = "", axes: Any = None) -> Any:
    """Draws the share of wrong answers among the most confident ones, for every number of them; returns the axes.

    Args:
        confidence: `[batch]`, higher for surer.
        correct: `[batch]` of bool: whether the prediction was right.
        label: in the legend.
        axes: to draw into; None makes new ones.
    """
    axes = new_axes(axes)
    curve, area = ranking.risk_coverage(confidence, correct), ranking.aurc(confidence, correct)
    add_series(axes, curve.coverage, curve.risk, label, f"area {area:.3g}")
    axes.set(xlim=(0, 1), xlabel="share answered", ylabel="share of answers wrong")
    axes.set_ylim(bottom=0.0)
    axes.legend(frameon=False, fontsize=9)
    return axes


def ood_scores(score_in: ArrayLike, score_out: ArrayLike, *, num_bins: int = 30, axes: Any = None) -> Any:
    """Draws scores of in-distribution and out-of-distribution examples as two histograms; returns the axes.

    Args:
        score_in: scores of in-distribution examples, `[examples]`, such as `tfe.ood_score` gives.
        score_out: scores of out-of-distribution examples, `[examples]`.
        num_bins: of the histograms.
        axes: to draw into; None makes new ones.
    """
    axes = new_axes(axes)
    area = ranking.auroc(score_in, score_out)
    known, strange = np.asarray(score_in, np.float64), np.asarray(score_out, np.float64)
    edges = np.histogram_bin_edges(np.concatenate([known, strange]), num_bins)
    for scores, color, label in ((known, _FIRST, "in-distribution"), (strange, _SECOND, "out-of-distribution")):
        share = np.full(len(scores), 1.0 / len(scores))
        axes.hist(scores, edges, weights=share, color=color, alpha=0.5, label=label)
    axes.set(xlabel="score", ylabel="share of examples", title=f"AUROC {area:.3f}")
    axes.legend(frameon=False, fontsize=9)
    return axes


def set_sizes(sets: ArrayLike, labels: ArrayLike, *, axes: Any = None) -> Any:
    """Draws how many sets have each number of labels, and how many of these hold the truth; returns the axes.

    Args:
        sets: `[batch, classes]` of bool, as `predict_set` returns them.
        labels: `[batch]` integers.
        axes: to draw into; None makes new ones.
    """
    axes = new_axes(axes)
    given, truth = np.asarray(sets), np.asarray(labels)
    if given.ndim != 2 or given.dtype != np.bool_ or truth.shape != given.shape[:1]:
        raise ValueError(
            f"Expected sets [batch, classes] of bool and labels [batch]. Received: {given.dtype} {given.shape} and "
            f"{truth.shape}"
        )
    covered, sizes = given[np.arange(len(truth)), truth], given.sum(axis=1)
    places = np.arange(sizes.max() + 1)
    counts = [[np.mean((sizes == place) & part) for place in places] for part in (covered, ~covered)]
    axes.bar(places, counts[0], color=_FIRST, label="with the truth")
    axes.bar(places, counts[1], bottom=counts[0], color=_SECOND, label="without")
    axes.set(xlabel="labels in the set", ylabel="share of examples", title=f"{covered.mean():.1%} hold the truth")
    axes.set_xticks(places)
    axes.legend(frameon=False, fontsize=9)
    return axes
