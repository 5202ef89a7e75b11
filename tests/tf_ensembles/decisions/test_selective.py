"""Thresholds for abstaining: the binomial tail against its terms, and the guarantee over many data sets."""

import math

import numpy as np
import pytest

import tf_ensembles as tfe
from tf_ensembles.decisions import selective


@pytest.mark.parametrize(("errors", "trials", "rate"), [(0, 10, 0.1), (3, 20, 0.3), (20, 20, 0.5), (7, 400, 0.01)])
def test_the_binomial_tail_is_the_sum_of_its_terms(errors, trials, rate):
    terms = [math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(errors + 1)]
    assert math.exp(selective._log_at_most(errors, trials, rate)) == pytest.approx(sum(terms), rel=1e-11)


def _data(size, random):
    """Confidences in [0, 1] whose predictions are wrong with probability `0.3 (1 - c)^2`."""
    confidence = random.random(size)
    return confidence, random.random(size) >= 0.3 * (1 - confidence) ** 2


def test_the_guarantee_holds_over_data_sets_and_answers_much():
    random, failures, coverages, repeats, risk = np.random.default_rng(0), 0, [], 300, 0.05
    for _ in range(repeats):
        threshold = tfe.selective_threshold(*_data(2000, random), risk=risk, delta=0.1)
        # The error rate of all answers: the mean of 0.3 (1 - c)^2 over c >= threshold, in closed form.
        failures += 0.3 * (1 - threshold) ** 2 / 3 > risk
        coverages.append(1 - threshold)
    # 30 failures in 300 would be what is allowed; more than 30 + 3 * sqrt(300 * 0.1 * 0.9) are no accident.
    assert failures <= 30 + 3 * math.sqrt(repeats * 0.09)
    best = math.sqrt(3 * risk / 0.3)  # The coverage of somebody who knows the truth.
    assert 0.75 * best < np.mean(coverages) < best


def test_equal_confidences_are_answered_all_or_none():
    confidence = np.repeat([0.9, 0.5], 500)
    correct = np.repeat([True, False], 500)
    threshold = tfe.selective_threshold(confidence, correct, risk=0.05)
    assert 0.5 < threshold <= 0.9


def test_what_cannot_be_guaranteed_is_said():
    with pytest.raises(ValueError, match=r"Expected at least 644 examples for risk=0.01 and delta=0.05. Received: 643"):
        tfe.selective_threshold(np.ones(643), np.ones(643))
    confidence = np.linspace(0, 1, 1000)
    with pytest.warns(UserWarning, match="No threshold is known to keep errors at a rate of 0.01"):
        assert tfe.selective_threshold(confidence, np.arange(1000) % 2) == math.inf
    with pytest.raises(ValueError, match=r"Expected risk in \(0, 1\). Received: 1.0"):
        tfe.selective_threshold(confidence, np.ones(1000), risk=1.0)
