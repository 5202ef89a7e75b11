"""The one interval type against closed forms and SciPy."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats as scipy_stats

from tf_ensembles import intervals


def test_a_normal_interval_has_levels_and_p_values():
    interval = intervals.normal(1.0, 0.4, 100)
    for level in (0.1, 0.05, 0.001):
        at = interval.at(level)
        assert (at.low, at.high) == pytest.approx(scipy_stats.norm.interval(1.0 - level, 1.0, 0.4), rel=1e-12)
    assert interval.p_value(0.0) == pytest.approx(2 * scipy_stats.norm.sf(2.5), rel=1e-9)
    assert interval.plus(3.0).p_value(3.0) == pytest.approx(interval.p_value(0.0))
    wide = interval.widened(2.0)
    assert (wide.low, wide.high) == pytest.approx(scipy_stats.norm.interval(0.95, 1.0, 0.8))
    assert wide.p_value(0.0) == pytest.approx(2 * scipy_stats.norm.sf(1.25), rel=1e-9)


def test_an_exact_value_excludes_all_others():
    assert intervals.exact(1.0).p_value(0.0) == 0.0
    assert intervals.exact(1.0).p_value(1.0) == 1.0
    with pytest.raises(ValueError, match="every level"):
        intervals.Interval(1.0, 0.5, 1.5).at(0.1)


def test_bootstrap_draws_give_the_width_around_the_estimate():
    draws = np.append(np.random.default_rng(0).normal(7.0, 1.0, 10_000), [np.nan])
    interval = intervals.resampled(2.0, draws, most=3.5)
    # A 2.5% quantile of 10,000 normal draws is known to about 0.027.
    assert (interval.low, interval.high) == (pytest.approx(2.0 - 1.96, abs=0.1), 3.5)
    assert intervals.resampled(2.0, draws).at(0.1).high == pytest.approx(2.0 + 1.645, abs=0.1)
    assert np.isnan(intervals.resampled(2.0, draws[:1]).low)


def test_printing():
    assert str(intervals.Interval(0.5, 0.25, 1.0)) == "0.500 [0.250, 1.000]"
    assert f"{intervals.Interval(0.5, 0.25, 1.0):.1g}" == "0.5 [0.2, 1]"


def test_the_library_makes_intervals_without_scipy():
    code = "from tf_ensembles import intervals as i; i.normal(1.0, 0.4).p_value(0.0); import sys; "
    subprocess.run([sys.executable, "-c", f"{code}sys.exit('scipy' in sys.modules)"], check=True)


def test_an_interval_of_a_normal_estimate_can_be_pickled():
    interval = intervals.normal(1.0, 0.5, count=7)
    again = pickle.loads(pickle.dumps(interval))
    assert (again.low, again.high, again.p_value(0.0)) == (interval.low, interval.high, interval.p_value(0.0))
