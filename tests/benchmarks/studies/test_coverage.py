"""The coverage study, small: our intervals hold the truth as often as they say,."""

from __future__ import annotations

import numpy as np
import pytest

from tf_ensembles.benchmarks.studies import coverage

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


def test_truths_are_the_limits_of_the_statistics():
    for case in coverage.CASES:
        sample = case.draw(np.random.default_rng(1), 200_000)
        assert float(case.statistic(sample)) == pytest.approx(case.truth, abs=0.02)
