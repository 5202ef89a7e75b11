"""Proposition 1 through the front door: linear members that `fit` trains are draws from the exact posterior."""

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests.needs import needs

ROWS, DIM = 200, 3
NOISE, PRIOR = 2.0, 0.25  # standard deviations


def linear_member(initializer):
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer=initializer)
    return keras.Sequential([keras.Input((DIM,)), dense])


@needs("tensorflow_probability")
@pytest.mark.parametrize("num_members", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_members_are_draws_from_the_posterior(num_members):
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, DIM)).astype(np.float32)
    y = (x @ (PRIOR * random.normal(size=DIM)) + NOISE * random.normal(size=ROWS)).astype(np.float32)
    # A member minimizes sum (theta x - y - z)^2 / noise^2 + |theta - anchor|^2 / prior^2, times noise^2 / rows.
    model = tfe.Ensemble(
        lambda: linear_member("glorot_uniform"),
        num_members,
        prior=tfe.PriorFunction(lambda: linear_member(keras.initializers.RandomNormal(stddev=1.0)), scale=PRIOR),
        bootstrap=tfe.GaussianNoise(NOISE),
        l2=NOISE**2 / (PRIOR**2 * ROWS),
        seed=0,
    )
    # Second derivatives lie between 1.9 and 3.3: every step leaves at most a third of the distance.
    model.compile(keras.optimizers.SGD(0.4), "mse", jit_compile=False)
    model.fit(x, y, batch_size=ROWS, epochs=25, verbose=0)
    members = model.predict(np.eye(DIM, dtype=np.float32), verbose=0)[..., 0].T.astype(np.float64)

    exact = tfe.linear.posterior(x, y, NOISE**2, PRIOR**2)
    root = np.linalg.inv(np.linalg.cholesky(np.asarray(exact.cov)))
    white = (members - np.asarray(exact.mean)) @ root.T  # [members, dim]: draws from N(0, I), if the proposition holds
    # A mean of M standard normal numbers has a standard deviation of sqrt(1 / M); a variance of sqrt(2 / M), a
    # covariance of sqrt(1 / M). Nine numbers, each within four and a half of them: red once in 15,000 seeds.
    assert np.abs(white.mean(axis=0)).max() < 4.5 * np.sqrt(1.0 / num_members)
    errors = np.cov(white.T) - np.eye(DIM)
    assert np.abs(np.diag(errors)).max() < 4.5 * np.sqrt(2.0 / num_members)
    assert np.abs(errors - np.diag(np.diag(errors))).max() < 4.5 * np.sqrt(1.0 / num_members)
    # And the test can tell: without noise on targets, members would vary less than half as much.
    without = tfe.linear.ensemble_distribution(x, y, NOISE**-2, PRIOR**-2, PRIOR**2, 0.0)
    assert np.diag(root @ np.asarray(without.cov) @ root.T).max() < 1.0 - 4.5 * np.sqrt(2.0 / num_members)
