"""Scores of every ensemble size from one pass, against the metrics of each size."""

import numpy as np
import pytest

from tf_ensembles import metrics
from tf_ensembles.metrics import by_size as member_scores

RANDOM = np.random.default_rng(0)
LOGITS = RANDOM.normal(0.0, 4.0, (51, 6, 5)).astype(np.float32)
LABELS = RANDOM.integers(5, size=51).astype(np.int32)


@pytest.mark.parametrize("tau", [1, 10])
def test_every_size_equals_its_metrics(tau):
    scores = member_scores.score_sizes((LOGITS[:, m] for m in range(6)), LABELS, tau)
    assert [one.size for one in scores] == [1, 2, 3, 4, 5, 6]
    for one in scores:
        logits = LOGITS[:, : one.size]
        marginal, marginal_error = metrics.marginal_nll(logits, LABELS, standard_error=True)
        joint, joint_error = metrics.dyadic_nll(logits, LABELS, tau=tau, standard_error=True)
        assert one.nll_marginal == pytest.approx(marginal, rel=1e-12)
        assert one.nll_marginal_error == pytest.approx(marginal_error, rel=1e-9)
        assert one.nll_joint == pytest.approx(joint, rel=1e-12)
        assert one.nll_joint_error == pytest.approx(joint_error, rel=1e-9)
        assert one.accuracy == metrics.accuracy(logits, LABELS)
        assert one.ece == pytest.approx(metrics.ece(logits, LABELS), abs=1e-12)


def test_uniform_members_cost_the_log_of_the_classes():
    (score,) = member_scores.score_sizes([np.zeros((40, 8), np.float32)], np.arange(40) % 8)
    assert score.nll_marginal == pytest.approx(np.log(8))
    assert score.nll_joint == pytest.approx(10 * np.log(8))


def test_extreme_logits_stay_finite():
    logits = np.full((4, 3), -1e4, np.float32)
    logits[:, 0] = 1e4
    scores = member_scores.score_sizes([logits, logits[:, ::-1]], np.array([0, 1, 2, 0]))
    assert all(np.isfinite([one.nll_marginal, one.nll_joint, one.ece]).all() for one in scores)


def test_mistakes():
    with pytest.raises(ValueError, match="at least one member"):
        member_scores.score_sizes([], LABELS)
    with pytest.raises(ValueError, match="Expected finite logits"):
        member_scores.score_sizes([np.full((51, 5), np.nan, np.float32)], LABELS)
