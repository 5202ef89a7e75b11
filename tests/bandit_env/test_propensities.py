"""Propensities of one action, within the errors that `bandit_env.propensities` states."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles.bandit_env import choice, propensities

DRAWS = 400_000


def brute_force(mean, factor, mask=None, seed=0):
    values = mean + np.random.default_rng(seed).normal(size=[DRAWS, factor.shape[-1]]) @ factor.T
    if mask is not None:
        values[:, ~mask] = -np.inf
    return np.bincount(values.argmax(1), minlength=len(mean)) / DRAWS


def of_all_actions(mean, factor, rank, mask=None):
    """The probability of each action of one problem, each asked for by itself."""
    count = len(mean)
    masks = None if mask is None else tf.constant(np.tile(mask, [count, 1]))
    tiled = tf.constant(np.tile(mean, [count, 1])), tf.constant(np.tile(factor, [count, 1, 1]))
    return propensities.correlated(*tiled, tf.range(count), rank, masks).numpy()


def assert_close(found, expected, relative, absolute=0.0):
    error = 4.5 * np.sqrt(np.maximum(expected, 1.0 / DRAWS) / DRAWS)  # of the draws; of 100 numbers, none is beyond
    np.testing.assert_array_less(np.abs(found - expected), relative * expected + absolute + error)


@pytest.mark.parametrize(("count", "dim"), [(2, 3), (3, 1), (3, 2), (4, 2), (4, 3), (4, 7)])
def test_few_correlated_values_within_a_hundredth_of_each_probability(count, dim):
    rng = np.random.default_rng(count + dim)
    for spread in (1.0, [0.1] * (count - 1) + [1.0]):
        mean, factor = rng.normal(size=count), rng.normal(size=[count, dim]) * np.reshape(spread, [-1, 1])
        assert_close(of_all_actions(mean, factor, dim), brute_force(mean, factor), 0.01)


@pytest.mark.parametrize(("count", "dim"), [(6, 3), (8, 8), (10, 4), (30, 3)])
def test_many_correlated_values_within_a_hundredth(count, dim):
    rng = np.random.default_rng(count)
    mean, factor = rng.normal(size=count), rng.normal(size=[count, dim])
    assert_close(of_all_actions(mean, factor, dim), brute_force(mean, factor), 0.0, 0.01)


def test_equal_values_go_to_the_first_and_masked_ones_to_nobody():
    mean, factor = np.array([0.0, 0.0, 0.5, 0.1]), np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = of_all_actions(mean, factor, 2)
    assert found[1] < 1e-6
    assert_close(found, brute_force(mean, factor), 0.01)
    mask = np.array([False, True, False, True])
    found = of_all_actions(mean, factor, 2, mask)
    assert_close(found[mask], brute_force(mean, factor, mask)[mask], 0.01)
    whole = propensities.all_correlated(
        tf.constant(mean[None]), tf.constant(factor[None]), 2, tf.constant(mask[None])
    ).numpy()[0]
    np.testing.assert_allclose(whole, np.where(mask, found, 0.0), rtol=1e-3)
    np.testing.assert_allclose(whole.sum(), 1.0)


def test_of_two_values_it_is_the_closed_form():
    mean, factor = np.array([0.4, 0.1]), np.array([[1.0, 0.5], [0.2, -0.3]])
    gap = (mean[0] - mean[1]) / np.linalg.norm(factor[0] - factor[1])
    expected = 0.5 * math.erfc(-gap / math.sqrt(2.0))
    np.testing.assert_allclose(of_all_actions(mean, factor, 2), [expected, 1.0 - expected], rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [2, 5, 20])
def test_independent_values_within_a_thousandth_of_each_probability(count, masked):
    """Against the quadrature of all actions at once in float64, which `test_choice` holds against brute force."""
    rng = np.random.default_rng(count)
    mean, deviation = rng.normal(size=[200, count]), 10.0 ** rng.uniform(-3.0, 1.0, size=[200, count])
    mask = tf.constant(rng.random([200, count]) < 0.7) if masked else None
    action = rng.integers(count, size=200)
    if masked:
        mask = mask | tf.one_hot(action, count, True, False)
    whole = choice.best_of_independent(tf.constant(mean), tf.constant(deviation), mask).numpy()
    expected = whole[np.arange(200), action]
    found = propensities.independent(tf.constant(mean), tf.constant(deviation), tf.constant(action), mask).numpy()
    likely = expected > 1e-6
    np.testing.assert_allclose(found[likely], expected[likely], rtol=1e-3)
    assert (found[~likely] < 2e-6).all()
