"""Bootstrap weights: moments, purity in (seed, id, member), independence."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles import bootstrap

BOOTSTRAPS = [bootstrap.Bernoulli(0.5), bootstrap.Bernoulli(0.9), bootstrap.Exponential(), bootstrap.Poisson()]
IDS, MEMBERS = np.arange(5000), np.arange(40)


@pytest.mark.parametrize("boot", BOOTSTRAPS, ids=repr)
def test_weights_have_mean_one_and_the_right_variance(boot):
    weights = boot.weights(0, IDS, MEMBERS).numpy().astype(np.float64)
    variance = 1.0 / boot.p - 1.0 if isinstance(boot, bootstrap.Bernoulli) else 1.0
    n = weights.size
    assert abs(weights.mean() - 1.0) < 5 * np.sqrt(variance / n)
    # The variance of a sample variance is (fourth central moment - variance^2) / n.
    fourth = np.mean((weights - 1.0) ** 4)
    # That is 0 for Bernoulli(0.5), where the error of the mean, squared, is what remains.
    assert abs(weights.var() - variance) < 5 * np.sqrt(max(fourth - variance**2, 0.0) / n) + 25 * variance / n


def _equal_but_for_the_last_bits(got, expected):
    np.testing.assert_allclose(got, expected, rtol=5e-7, atol=1e-7)


@pytest.mark.parametrize("boot", BOOTSTRAPS, ids=repr)
def test_weights_are_a_pure_function_of_seed_id_and_member(boot):
    weights = boot.weights(3, IDS, MEMBERS).numpy()
    order = np.random.default_rng(0).permutation(len(IDS))
    # Counts and indicators are exact; a logarithm may round its last bit by where it stands in a vector register.
    same = (
        np.testing.assert_array_equal if not isinstance(boot, bootstrap.Exponential) else _equal_but_for_the_last_bits
    )
    same(boot.weights(3, IDS[order], MEMBERS).numpy(), weights[order])
    same(boot.weights(3, IDS[17:19], [12]).numpy(), weights[17:19, 12:13])
    compiled = tf.function(lambda ids: boot.weights(3, ids, MEMBERS), jit_compile=True)
    np.testing.assert_allclose(compiled(tf.constant(IDS)).numpy(), weights, rtol=1e-5, atol=1e-6)
    assert np.mean(boot.weights(4, IDS, MEMBERS).numpy() != weights) > 0.1


@pytest.mark.parametrize("boot", BOOTSTRAPS, ids=repr)
def test_weights_are_independent_between_members_and_between_examples(boot):
    for matrix in (boot.weights(1, IDS, MEMBERS).numpy().T, boot.weights(1, MEMBERS, IDS).numpy()):
        correlation = np.corrcoef(matrix)
        off_diagonal = correlation[~np.eye(len(correlation), dtype=bool)]
        assert np.abs(off_diagonal).max() < 5 / np.sqrt(len(IDS))


def test_bernoulli_takes_two_values():
    assert set(np.unique(bootstrap.Bernoulli(0.25).weights(0, IDS, MEMBERS).numpy())) == {0.0, 4.0}
    assert set(np.unique(bootstrap.Bernoulli(1.0).weights(0, IDS, MEMBERS).numpy())) == {1.0}


def test_gaussian_noise_has_the_moments_of_a_gaussian():
    noise = bootstrap.GaussianNoise(2.0).target_noise(0, IDS, MEMBERS, 3).numpy() / 2.0
    n = noise.size
    assert abs(noise.mean()) < 5 / np.sqrt(n)
    assert abs((noise**2).mean() - 1.0) < 5 * np.sqrt(2.0 / n)
    assert abs((noise**4).mean() - 3.0) < 5 * np.sqrt(96.0 / n)
    assert abs(np.corrcoef(noise.reshape(-1, 3).T)[0, 1]) < 5 / np.sqrt(n / 3)


@pytest.mark.parametrize("boot", [*BOOTSTRAPS, bootstrap.GaussianNoise(0.3)], ids=repr)
def test_they_round_trip_through_keras_serialization(boot):
    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(boot))
    assert repr(copy) == repr(boot)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: bootstrap.Bernoulli(0.0), r"\(0, 1\]. Received: 0"),
        (lambda: bootstrap.Bernoulli(1.5), "Received: 1.5"),
        (lambda: bootstrap.GaussianNoise(-1.0), "Received: -1"),
    ],
)
def test_bad_parameters_are_named(make, text):
    with pytest.raises(ValueError, match=text):
        make()
