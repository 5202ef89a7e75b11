"""The coverage study, small: our intervals hold the truth as often as they say, and others do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchmarks.studies import coverage

CASES = {case.name: case for case in coverage.CASES}
SIMULATIONS = 400


@pytest.mark.parametrize("name", ["mean, normal", "mean, lognormal 0.5", "ratio of means, normal"])
@pytest.mark.parametrize("count", [5, 10])
def test_our_intervals_cover(name, count):
    found = coverage.coverage(CASES[name], count, SIMULATIONS, resamples=99)
    # The goal is 93 to 97%; five standard errors of a count of 400 around its ends.
    error = np.sqrt(0.95 * 0.05 / SIMULATIONS)
    assert coverage.GOAL[0] - 5 * error < found["ours"]
    assert found["plain bootstrap"] < found["ours"]
    assert found[coverage.NONE] == 0.0


def test_the_methods_beside_ours_are_what_they_are_called():
    case = CASES["mean, exponential"]
    chance = np.random.default_rng(0)
    sample = case.draw(chance, 30)
    found = dict(zip(coverage.METHODS, coverage.intervals(case, sample, chance, 4999), strict=True))
    values = sample[:, 0]
    student = scipy_stats.t.interval(0.95, 29, values.mean(), scipy_stats.sem(values))
    assert found["Student"] == pytest.approx(student)
    for name, method in (("BCa", "BCa"), ("plain bootstrap", "percentile")):
        expected = scipy_stats.bootstrap([values], np.mean, n_resamples=4999, method=method, rng=1).confidence_interval
        # 4,999 resamples place a 2.5% quantile within about 0.04 standard errors.
        assert found[name] == pytest.approx(tuple(expected), abs=0.25 * scipy_stats.sem(values))
    assert found["before"] == found["BCa"]


def test_truths_are_the_limits_of_the_statistics():
    for case in coverage.CASES:
        sample = case.draw(np.random.default_rng(1), 200_000)
        assert float(case.statistic(sample)) == pytest.approx(case.truth, abs=0.02)
        assert case.by_seed(sample).mean() == pytest.approx(float(case.statistic(sample)))
