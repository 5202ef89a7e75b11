"""Rankings against every pair, every threshold and every order, counted one by one."""

import itertools

import numpy as np
import pytest

import tf_ensembles as tfe

RNG = np.random.default_rng(0)
KNOWN, FOREIGN = RNG.integers(0, 8, 30) / 8, RNG.integers(2, 10, 20) / 8  # with ties
CONFIDENCE, CORRECT = np.array([0.9, 0.7, 0.7, 0.7, 0.2, 0.1]), np.array([1, 0, 1, 1, 0, 0], bool)


def test_auroc_counts_pairs():
    pairs = [(f > k) + 0.5 * (f == k) for f, k in itertools.product(FOREIGN, KNOWN)]
    assert tfe.metrics.auroc(KNOWN, FOREIGN) == pytest.approx(np.mean(pairs), abs=1e-15)
    assert tfe.metrics.auroc(KNOWN, KNOWN) == 0.5
    assert tfe.metrics.auroc([0.0], [1.0]) == 1.0


def test_aupr_is_the_area_of_steps_over_thresholds():
    area, recall_before = 0.0, 0.0
    for threshold in sorted({*KNOWN, *FOREIGN}, reverse=True):
        found, flagged = np.sum(threshold <= FOREIGN), np.sum(threshold <= np.concatenate([KNOWN, FOREIGN]))
        recall = found / len(FOREIGN)
        area, recall_before = area + (recall - recall_before) * found / flagged, recall
    assert tfe.metrics.aupr(KNOWN, FOREIGN) == pytest.approx(area, abs=1e-15)


@pytest.mark.parametrize("tpr", [0.05, 0.5, 0.95, 1.0])
def test_fpr_at_is_the_lowest_of_all_thresholds_that_find_enough(tpr):
    rates = [np.mean(t <= KNOWN) for t in {*KNOWN, *FOREIGN} if np.sum(t <= FOREIGN) >= round(tpr * len(FOREIGN), 9)]
    assert tfe.metrics.fpr_at(KNOWN, FOREIGN, tpr) == min(rates)


def test_risk_coverage_is_the_mean_over_all_orders_of_equal_confidences():
    risks = []
    for tied in itertools.permutations([1, 2, 3]):
        wrong = ~CORRECT[[0, *tied, 4, 5]]
        risks.append(np.cumsum(wrong) / np.arange(1, 7))
    curve = tfe.metrics.risk_coverage(CONFIDENCE, CORRECT)
    np.testing.assert_allclose(curve.risk, np.mean(risks, axis=0), atol=1e-15)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 7) / 6)
    assert tfe.metrics.aurc(CONFIDENCE, CORRECT) == pytest.approx(np.mean(risks), abs=1e-15)
    assert tfe.metrics.risk_at_coverage(CONFIDENCE, CORRECT, 4 / 6) == pytest.approx(1 / 4)
    assert tfe.metrics.risk_at_coverage(CONFIDENCE, CORRECT, 1.0) == pytest.approx(1 / 2)
    shuffled = RNG.permutation(6)
    np.testing.assert_allclose(tfe.metrics.risk_coverage(CONFIDENCE[shuffled], CORRECT[shuffled]).risk, curve.risk)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="Expected finite score_out"):
        tfe.metrics.auroc(KNOWN, [])
    with pytest.raises(ValueError, match="Expected finite score_in"):
        tfe.metrics.aupr([np.nan], FOREIGN)
    with pytest.raises(ValueError, match=r"Expected tpr in \(0, 1\]. Received: 1.5"):
        tfe.metrics.fpr_at(KNOWN, FOREIGN, 1.5)
    with pytest.raises(ValueError, match=r"Expected correct of shape \(6,\), true or false"):
        tfe.metrics.aurc(CONFIDENCE, CONFIDENCE)
    with pytest.raises(ValueError, match=r"Expected coverage in \(0, 1\]"):
        tfe.metrics.risk_at_coverage(CONFIDENCE, CORRECT, 0.0)
