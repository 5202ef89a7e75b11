"""Bootstrap intervals against closed forms and coverage; tables of seeds against NumPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks import stats as statistics


def test_interval_agrees_with_student_for_many_normal_values():
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    interval = statistics.mean_interval(values)
    low, high = stats.t.interval(0.95, 399, values.mean(), stats.sem(values))
    assert interval.estimate == pytest.approx(values.mean())
    # 9,999 resamples place a 2.5% quantile within about 0.04 standard errors.
    tolerance = 0.15 * stats.sem(values)
    assert interval.low == pytest.approx(low, abs=tolerance)
    assert interval.high == pytest.approx(high, abs=tolerance)
    assert interval.count == 400


def test_pairing_removes_what_is_common():
    chance = np.random.default_rng(1)
    hard = chance.normal(0.0, 10.0, 30)
    first, second = hard + chance.normal(-0.5, 0.1, 30), hard
    interval = statistics.paired_difference(first, second)
    assert interval.estimate == pytest.approx(np.mean(first - second))
    assert interval.excludes(0.0)
    assert interval.high - interval.low < 0.2


def test_coverage_of_the_difference():
    """About 95% of intervals hold the truth; with 20 seeds the bootstrap is known to reach somewhat less."""
    chance = np.random.default_rng(2)
    hits = 0
    for _ in range(150):
        first, second = chance.normal(1.0, 1.0, 20), chance.normal(0.0, 1.0, 20)
        hits += not statistics.paired_difference(first, second).excludes(1.0)
    # Five standard deviations of a binomial below 93%.
    assert 150 * 0.93 - 5 * np.sqrt(150 * 0.93 * 0.07) < hits
    assert hits < 150


def test_ratio_of_means():
    chance = np.random.default_rng(3)
    second = chance.uniform(1.0, 3.0, 50)
    interval = statistics.paired_ratio(2.0 * second, second)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((2.0, 2.0, 2.0))
    noisy = statistics.paired_ratio(second + chance.normal(0, 0.1, 50), second)
    assert noisy.low < noisy.estimate < noisy.high


def test_few_and_equal_values():
    assert np.isnan(statistics.mean_interval([1.0]).low)
    assert not statistics.mean_interval([1.0]).excludes(0.0)
    assert statistics.mean_interval([2.0, 2.0, 2.0]) == statistics.Interval(2.0, 2.0, 2.0, 3)
    with pytest.raises(ValueError, match="paired by seed"):
        statistics.paired_difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="finite"):
        statistics.mean_interval([1.0, np.nan])


def test_same_seed_same_interval():
    values = np.random.default_rng(4).normal(size=10)
    assert statistics.mean_interval(values) == statistics.mean_interval(values)
    assert statistics.mean_interval(values, seed=1) != statistics.mean_interval(values)


def test_by_seed_keeps_complete_seeds_only():
    rows = [
        {"seed": seed, "setting": setting, "agent": agent, "kl": 10.0 * seed + (agent == "b") + (setting == "y")}
        for seed in range(3)
        for setting in "xy"
        for agent in "ab"
        if (seed, setting, agent) != (1, "y", "b")
    ]
    table = statistics.by_seed(pd.DataFrame(rows), "kl")
    assert table.index.tolist() == [0, 2]
    assert table.a.tolist() == [0.5, 20.5]
    assert table.b.tolist() == [1.5, 21.5]
