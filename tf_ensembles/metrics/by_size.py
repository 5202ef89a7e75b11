"""How good an ensemble is, for every size up to M at once, from one pass over its members' stored logits.

Members come one at a time and only running sums over them are kept, so the memory needed does not depend on M. Values
equal those of `tfe.metrics` on the logits of the first members, `[examples, members, classes]`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import checks
from tf_ensembles.metrics import functions
from tf_ensembles.metrics import likelihood as formulas
from tf_ensembles.metrics.likelihood import Floats


@dataclasses.dataclass(frozen=True)
class Scores:
    """An ensemble on a labeled test set; likelihoods in nats, with standard errors over test examples."""

    size: int  # members
    nll_marginal: float  # per label
    nll_marginal_error: float
    nll_joint: float  # dyadic: per tau labels
    nll_joint_error: float
    accuracy: float
    ece: float


def score_sizes(members: Iterable[NDArray[np.float32]], labels: NDArray[np.int32], tau: int = 10) -> list[Scores]:
    """Returns the scores of the first member, of the first two, and so on.

    Args:
        members: logits `[examples, classes]` of one member after the other.
        labels: `[examples]` integers, in random order: neighbors are the anchors of the joint likelihood.
        tau: labels per joint prediction.
    """
    tau, _, _ = formulas.check_dyadic(tau, 2, 0)
    counts = np.asarray(formulas.count_probabilities(tau, 2))
    drawn = np.arange(len(counts))
    # Running sums over members: logarithms of their likelihoods, `[examples]` and `[pairs of anchors, how often the
    # first is drawn]`, and their probabilities `[examples, classes]`.
    marginal: Floats = np.full((), -math.inf)
    joint: Floats = np.full((), -math.inf)
    mixture: Floats = np.zeros(())
    scores = []
    for size, logits in enumerate(members, start=1):
        member = checks.array("logits", logits)
        if member.ndim != 2:
            raise ValueError(f"Expected logits of a member, [examples, classes]. Received: {member.shape}")
        checked = formulas.check_logits(member[:, None])
        classes = formulas.check_labels(checked, labels)
        log_probabilities = np.concatenate([part for _, part in formulas.log_softmax_slices(checked)])[:, 0]
        likelihood = log_probabilities[np.arange(len(classes)), classes]
        pairs = likelihood[: len(likelihood) // 2 * 2].reshape(-1, 2)
        both = formulas.dyadic(pairs[:, :1], pairs[:, 1:], drawn, tau)
        marginal = np.logaddexp(marginal, likelihood)
        joint = np.logaddexp(joint, both)
        mixture = mixture + np.exp(log_probabilities)
        nll, nll_error = functions.with_error(math.log(size) - marginal, standard_error=True)
        dyadic, dyadic_error = functions.with_error((math.log(size) - joint) @ counts, standard_error=True)
        # The log of the mixture is a member whose probabilities are those of the ensemble.
        as_one = np.log(np.maximum(mixture / size, np.finfo(np.float64).tiny))[:, None]
        accuracy, ece = functions.accuracy(as_one, labels), functions.ece(as_one, labels)
        scores.append(Scores(size, nll, nll_error, dyadic, dyadic_error, accuracy, ece))
    if not scores:
        raise ValueError("Expected at least one member. Received: none")
    return scores
