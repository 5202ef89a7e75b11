"""The second computations of exact statements: against brute force, and able to fail."""

import decimal

import numpy as np
import pytest

from tests.needs import needs
from tf_ensembles import linear
from tf_ensembles.linear import identities, theory
from tf_ensembles.linear import problems as linear_problems

SETTING = linear_problems.make_setting(3, 8, 10.0, 10.0, seed=1)


def test_unclipped_bound_in_high_precision():
    gamma = identities.random_spectra(20, 4, 5.0, seed=0)
    counts = np.arange(1, 21)
    found = identities.unclipped_bounds(gamma, counts)
    with decimal.localcontext(prec=50):
        for row, count, value in zip(gamma, counts, found, strict=True):
            scaled = [1 + int(count) * decimal.Decimal(float(one)) for one in row]
            exact = sum((sum(scaled) / 4 / one).ln() for one in scaled) / 2
            # Logarithms of up to 20, each with the rounding of float64.
            assert value == pytest.approx(float(exact), abs=4 * 20 * 2.3e-16)
    np.testing.assert_allclose(found, linear.lower_bound(gamma, counts.astype(float)), atol=1e-12)
    assert identities.unclipped_bounds(identities.random_spectra(5, 4, 0.0, 0), counts[:5]) == pytest.approx(
        0, abs=1e-15
    )


def test_bias_is_that_of_two_ridge_regressions():
    problems = linear_problems.sample_problems(SETTING, 6, seed=0)
    chance = np.random.default_rng(0)
    weight, regularizer = chance.uniform(0.5, 2.0, (6, 8)), chance.uniform(0.5, 2.0, 6)
    found = identities.bias(problems, weight, regularizer)
    x, y, noise = (np.asarray(one) for one in (problems.x, problems.y, problems.noise_variance))
    for i in range(6):
        precision = (x[i].T / noise[i]) @ x[i] + np.eye(3)
        mean = np.linalg.solve(precision, (x[i].T / noise[i]) @ y[i])
        other = np.linalg.solve((x[i].T * weight[i]) @ x[i] + regularizer[i] * np.eye(3), (x[i].T * weight[i]) @ y[i])
        assert found[i] == pytest.approx(np.sqrt((other - mean) @ precision @ (other - mean)), rel=1e-8)


@pytest.mark.parametrize("num_data", [1, 2, 8])
def test_no_other_choice_is_unbiased_for_all_targets(num_data):
    setting = linear_problems.make_setting(3, num_data, 10.0, 10.0, seed=1)
    problems = linear_problems.sample_problems(setting, 30, seed=0)
    known, others = identities.unbiased_choices(problems)
    assert known.max() < 1e-12
    assert others.min() > 1e-6


def test_other_choices_are_found_where_there_are_some():
    """Data that are all zero say nothing: any weights will do."""
    problems = linear_problems.sample_problems(SETTING, 4, seed=0)
    x = np.asarray(problems.x).copy()
    x[:, 0] = 0.0
    blind = linear_problems.Problems(x, problems.y, problems.noise_variance, problems.prior_variance, problems.theta)
    known, others = identities.unbiased_choices(blind)
    assert max(known.max(), others.max()) < 1e-12


@needs("tensorflow_probability")
def test_drawn_likelihoods_average_to_the_exact_kl():
    problems = linear_problems.sample_problems(SETTING, 5_000, seed=3)
    posterior, n = problems.posterior(), problems.distribution("ensemble-n")
    x = linear_problems.sample_inputs(SETTING, (5_000, 4), seed=3, stream=40)
    noise = SETTING.noise(x)
    truth, found = identities.outcome_log_likelihoods(problems, {"n": n, "exact": posterior}, x, noise, seed=5)
    gain = theory.information_gain(posterior, x, noise).numpy()
    for name, one in (("n", n), ("exact", posterior)):
        apart = truth - found[name] - (gain + theory.predictive_kl(posterior, one, x, noise).numpy())
        assert abs(apart.mean()) < 4.0 * theory.standard_error(apart)
        assert theory.standard_error(apart) < 0.2 * gain.mean()
    # Coefficients of another problem are no environment.
    wrong = identities.outcome_log_likelihoods(
        linear_problems.Problems(problems.x, problems.y, problems.noise_variance, 1.0, problems.theta[::-1]),
        {"exact": posterior},
        x,
        noise,
        seed=5,
    )
    apart = wrong[0] - wrong[1]["exact"] - gain
    assert apart.mean() > 20.0 * theory.standard_error(apart)


def test_spectra_are_checked():
    with pytest.raises(ValueError, match="spread >= 0"):
        identities.random_spectra(3, 2, -1.0, 0)
