"""Choices and their probabilities, against brute force."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles.bandit_env import choice

MEAN = np.array([[0.0, 0.3, -0.2, 0.1], [1.0, 0.0, 0.0, 0.99], [0.0, 0.0, 0.0, 0.0]])
DEVIATION = np.array([[1.0, 0.2, 2.0, 0.5], [1e-3, 1.0, 0.5, 1e-6], [1.0, 1.0, 1.0, 1.0]])


def brute_force(mean, factor, count=100_000, mask=None):
    z = np.random.default_rng(0).normal(size=[count, factor.shape[-1]])
    values = mean + z @ factor.T
    if mask is not None:
        values[:, ~mask] = -np.inf
    return np.bincount(values.argmax(1), minlength=len(mean)) / count


@pytest.mark.parametrize("mask", [None, np.array([True, False, True, True])])
def test_independent_values_by_quadrature(mask):
    masks = None if mask is None else tf.constant(np.tile(mask, [3, 1]))
    found = choice.best_of_independent(tf.constant(MEAN), tf.constant(DEVIATION), masks).numpy()
    np.testing.assert_allclose(found.sum(1), 1.0)
    for row in range(3):
        expected = brute_force(MEAN[row], np.diag(DEVIATION[row]), mask=mask)
        np.testing.assert_allclose(found[row], expected, atol=5.0 * 0.5 / np.sqrt(100_000))
    if mask is None:
        np.testing.assert_allclose(found[2], 0.25, atol=1e-6)  # exactly, by symmetry


def test_two_independent_values_are_the_closed_form():
    mean, deviation = np.array([[0.3, 0.1], [5.0, 0.0], [0.0, 1e-9]]), np.array([[1.0, 0.01], [1.0, 2.0], [1e-9, 1e-9]])
    found = choice.best_of_independent(tf.constant(mean), tf.constant(deviation)).numpy()
    first = [
        0.5 * math.erfc(-(m[0] - m[1]) / np.hypot(*d) / math.sqrt(2.0)) for m, d in zip(mean, deviation, strict=True)
    ]
    np.testing.assert_allclose(found[:, 0], first, atol=1e-6)


@pytest.mark.parametrize("dim", [2, 9])
def test_correlated_values_by_evenly_spread_points(dim):
    rng = np.random.default_rng(1)
    factor = rng.normal(size=[2, 4, dim])
    samples = choice.normal_samples(tf.constant(MEAN[:2]), tf.constant(factor))
    found = choice.best_shares(samples).numpy()
    for row in range(2):
        # 1,024 points, evenly spread: closer than 1,024 random ones, whose error is up to 0.016.
        np.testing.assert_allclose(found[row], brute_force(MEAN[row], factor[row]), atol=0.012)


def test_information_directed_sampling_minimizes_its_ratio():
    rng = np.random.default_rng(2)
    samples = rng.normal(size=[1, 300, 3]) * np.array([1.0, 0.3, 2.0]) + np.array([0.2, 0.3, -1.0])
    found = choice.information_directed(tf.constant(samples)).numpy()[0]
    values, best = samples[0], samples[0].argmax(1)
    regret = values.max(1).mean() - values.mean(0)
    information = sum(
        (best == a).mean() * (values[best == a].mean(0) - values.mean(0)) ** 2 for a in range(3) if (best == a).any()
    )

    def ratio(policy):
        return (policy @ regret) ** 2 / (policy @ information)

    others = rng.dirichlet(np.ones(3) * 0.5, size=20_000)
    assert ratio(found) <= min(ratio(policy) for policy in others) * (1.0 + 1e-3)  # of a grid of 101 mixtures
    np.testing.assert_allclose(found.sum(), 1.0)


def test_information_directed_sampling_takes_what_is_surely_best_and_allowed():
    samples = np.random.default_rng(0).normal(size=[2, 50, 3]) + np.array([0.0, 100.0, 0.0])
    mask = tf.constant([[True, True, True], [True, False, True]])
    found = choice.information_directed(choice.allowed(tf.constant(samples), mask)).numpy()
    np.testing.assert_allclose(found[0], [0.0, 1.0, 0.0])
    assert found[1, 1] == 0.0
    np.testing.assert_allclose(found.sum(1), 1.0)


def test_draws_follow_probabilities():
    probabilities = tf.constant(np.tile([0.2, 0.0, 0.8], [5, 1]))
    uniforms = tf.constant([0.0, 0.19, 0.21, 0.99, 0.9999999], tf.float32)
    np.testing.assert_array_equal(choice.pick(probabilities, uniforms), [0, 0, 2, 2, 2])
