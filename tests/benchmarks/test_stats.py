"""Intervals against closed forms and coverage; tables of seeds against NumPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from benchmarks import stats


def test_interval_agrees_with_student_for_many_normal_values():
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    interval = stats.mean_interval(values)
    low, high = scipy_stats.t.interval(0.95, 399, values.mean(), scipy_stats.sem(values))
    assert interval.estimate == pytest.approx(values.mean())
    # 9,999 resamples place a 2.5% quantile within about 0.04 standard errors.
    tolerance = 0.15 * scipy_stats.sem(values)
    assert interval.low == pytest.approx(low, abs=tolerance)
    assert interval.high == pytest.approx(high, abs=tolerance)
    assert interval.count == 400


def test_pairing_removes_what_is_common():
    chance = np.random.default_rng(1)
    hard = chance.normal(0.0, 10.0, 30)
    first, second = hard + chance.normal(-0.5, 0.1, 30), hard
    interval = stats.paired_difference(first, second)
    assert interval.estimate == pytest.approx(np.mean(first - second))
    assert interval.excludes(0.0)
    assert interval.high - interval.low < 0.2


def test_coverage_of_the_difference():
    """About 95% of intervals hold the truth; with 20 seeds the bootstrap is known to reach somewhat less."""
    chance = np.random.default_rng(2)
    hits = 0
    for _ in range(150):
        first, second = chance.normal(1.0, 1.0, 20), chance.normal(0.0, 1.0, 20)
        hits += not stats.paired_difference(first, second).excludes(1.0)
    # Five standard deviations of a binomial below 93%.
    assert 150 * 0.93 - 5 * np.sqrt(150 * 0.93 * 0.07) < hits
    assert hits < 150


def test_relative_difference_of_means():
    chance = np.random.default_rng(3)
    second = chance.uniform(1.0, 3.0, 50)
    interval = stats.relative_difference(2.0 * second, second)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((1.0, 1.0, 1.0))
    noisy = stats.relative_difference(second + chance.normal(0, 0.1, 50), second)
    assert noisy.low < noisy.estimate < noisy.high


def test_few_seeds_have_students_interval():
    chance = np.random.default_rng(0)
    one, other = chance.normal(1.0, 0.2, 6), chance.normal(2.0, 0.2, 6)
    expected = scipy_stats.ttest_rel(one, other).confidence_interval(0.95)
    found = stats.relative_difference(one, other)
    np.testing.assert_allclose((found.low, found.high), np.array(expected) / other.mean(), rtol=1e-12)
    found = stats.paired_difference(one, other)
    np.testing.assert_allclose((found.low, found.high), expected, rtol=1e-12)


def test_intervals_of_five_seeds_cover():
    """95% of the intervals hold the truth, to five standard errors of the count."""
    chance, trials, held = np.random.default_rng(0), 2000, 0
    for values in chance.normal(0.3, 1.0, (trials, 5)):
        interval = stats.mean_interval(values)
        held += interval.low < 0.3 < interval.high
    assert held / trials == pytest.approx(0.95, abs=5 * np.sqrt(0.95 * 0.05 / trials))


def test_a_difference_of_independent_intervals_is_that_of_normal_distributions():
    first, second = stats.Interval(1.0, 0.7, 1.3, 5), stats.Interval(3.0, 2.6, 3.4, 7)
    gap = stats.independent_difference(first, second)
    assert (gap.estimate, gap.low, gap.high) == pytest.approx((2.0, 1.5, 2.5))
    assert gap.count == 5


def test_words_for_what_an_interval_says():
    assert stats.direction(stats.Interval(-1.0, -2.0, -0.5, 5)) == stats.LOWER
    assert stats.direction(stats.Interval(1.0, 0.5, 2.0, 5)) == stats.HIGHER
    assert stats.direction(stats.Interval(0.1, -0.5, 2.0, 5)) == stats.NO_DIFFERENCE
    assert stats.direction(stats.Interval(-1.0, -2.0, -0.5, 4)) == stats.TOO_FEW


def test_few_and_equal_values():
    assert np.isnan(stats.mean_interval([1.0]).low)
    assert not stats.mean_interval([1.0]).excludes(0.0)
    assert stats.mean_interval([2.0, 2.0, 2.0]) == stats.Interval(2.0, 2.0, 2.0, 3)
    with pytest.raises(ValueError, match="paired by seed"):
        stats.paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="finite"):
        stats.mean_interval([1.0, np.nan])


def test_the_same_values_give_the_same_interval():
    values = np.random.default_rng(4).normal(size=10)
    assert stats.mean_interval(values) == stats.mean_interval(values.copy())


def test_by_seed_keeps_complete_seeds_only():
    rows = [
        {"seed": seed, "setting": setting, "agent": agent, "kl": 10.0 * seed + (agent == "b") + (setting == "y")}
        for seed in range(3)
        for setting in "xy"
        for agent in "ab"
        if (seed, setting, agent) != (1, "y", "b")
    ]
    found = stats.by_seed(pd.DataFrame(rows), "kl")
    assert found["a"].to_dict() == {0: 0.5, 2: 20.5}
    assert found["b"].to_dict() == {0: 1.5, 2: 21.5}
    one, other = stats.paired(pd.DataFrame(rows), "kl", "a", "b")
    np.testing.assert_array_equal(other - one, [1.0, 1.0])
    with pytest.raises(stats.NoDataError, match="no rows of c"):
        stats.paired(pd.DataFrame(rows), "kl", "a", "c")
