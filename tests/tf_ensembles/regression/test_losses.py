"""Losses of distributions, against formulas in NumPy and against what their minimum must be."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe


def some(columns, batch=6, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(batch, columns)).astype(np.float32), random


def softplus(x):
    return np.log1p(np.exp(np.asarray(x, np.float64)))


def test_gaussian_nll_is_the_formula():
    outputs, random = some(4)
    y = random.normal(size=(6, 2))
    std = softplus(outputs[:, 2:]) + 0.01
    values = 0.5 * ((y - outputs[:, :2]) / std) ** 2 + np.log(std) + 0.5 * math.log(2 * math.pi)
    loss = tfe.losses.GaussianNLL(min_std=0.01)
    # float32, some ten operations.
    np.testing.assert_allclose(loss.call(y, outputs), values.sum(1), rtol=2e-6)
    np.testing.assert_allclose(loss(y, outputs), values.sum(1).mean(), rtol=2e-6)
    np.testing.assert_allclose(
        tfe.losses.GaussianNLL(beta=0.5, min_std=0.01).call(y, outputs), (values * std).sum(1), rtol=2e-6
    )


def test_beta_weighs_gradients_without_one_of_its_own():
    outputs = tf.Variable([[0.3, 0.7]])
    y = tf.constant([[1.0]])
    std = softplus(0.7) + 1e-3

    def gradient(beta):
        with tf.GradientTape() as tape:
            value = tfe.losses.GaussianNLL(beta=beta)(y, outputs)
        return np.asarray(tape.gradient(value, outputs))

    np.testing.assert_allclose(gradient(0.5), gradient(0.0) * std, rtol=1e-5)
    np.testing.assert_allclose(gradient(1.0)[0, 0], -(1.0 - 0.3), rtol=1e-5)  # That of half the squared error.


@pytest.mark.parametrize("std", [1e-6, 1e6])
def test_gaussian_nll_is_finite_at_any_width(std):
    raw = math.log(math.expm1(std)) if std < 1 else std
    outputs = tf.Variable([[std, raw]])
    with tf.GradientTape() as tape:
        value = tfe.losses.GaussianNLL(min_std=1e-12)([[3 * std]], outputs)
    np.testing.assert_allclose(float(value), 2.0 + math.log(std) + 0.5 * math.log(2 * math.pi), rtol=1e-4)
    assert np.isfinite(np.asarray(tape.gradient(value, outputs))).all()


def test_student_t_and_mixture_are_the_formulas():
    outputs, random = some(6)
    y = random.normal(size=6)
    scale, df = softplus(outputs[:, 1]) + 1e-3, 5.0
    z = (y - outputs[:, 0]) / scale
    constant = math.gamma(3.0) / (math.gamma(2.5) * math.sqrt(5.0 * math.pi))
    density = constant / scale * (1 + z**2 / df) ** -3.0
    np.testing.assert_allclose(tfe.losses.StudentTNLL(df=5.0).call(y, outputs[:, :2]), -np.log(density), rtol=5e-6)
    mean, std, logits = outputs[:, :2], softplus(outputs[:, 2:4]) + 1e-3, np.float64(outputs[:, 4:])
    weight = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    parts = np.exp(-0.5 * ((y[:, None] - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    np.testing.assert_allclose(tfe.losses.MixtureNLL(2).call(y, outputs), -np.log((weight * parts).sum(1)), rtol=5e-6)


def test_the_minimum_of_the_pinball_loss_are_quantiles():
    y = np.sort(np.random.default_rng(0).normal(size=101)).astype(np.float32)
    loss = tfe.losses.Pinball((0.1, 0.5, 0.9))
    for k, level in enumerate((0.1, 0.5, 0.9)):
        values = [float(loss(y, np.eye(3, dtype=np.float32)[[k] * 101] * c)) for c in y]
        assert np.argmin(values) == round(level * 100)
    np.testing.assert_allclose(
        loss.call(np.array([1.0], np.float32), np.zeros((1, 3), np.float32)), [(0.1 + 0.5 + 0.9) / 3]
    )


LOSSES = [
    tfe.losses.GaussianNLL(beta=0.5, min_std=0.1),
    tfe.losses.StudentTNLL(df=3.0, min_std=0.1),
    tfe.losses.MixtureNLL(num_parts=3, min_std=0.1),
    tfe.losses.Pinball(levels=(0.2, 0.8)),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_round_trip_and_wrong_columns(loss):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert type(again) is type(loss)
    assert again.head == loss.head
    assert again.get_config() == loss.get_config()
    columns = loss.head.blocks[0]
    outputs = np.zeros((4, columns), np.float32)
    assert loss.call(np.zeros(4), outputs).shape == (4,)
    with pytest.raises(ValueError, match=r"Expected targets \[batch, 1\].*Received: \(4, 2\)"):
        loss.call(np.zeros((4, 2)), outputs)
    with pytest.raises(
        ValueError, match=rf"Expected members with outputs \[batch, {columns} \* targets\].*Received: 1 c"
    ):
        loss.call(np.zeros(4), outputs[:, :1])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: tfe.losses.GaussianNLL(beta=-1.0), r"Expected beta in \[0, 1\]. Received: -1.0"),
        (lambda: tfe.losses.GaussianNLL(min_std=0.0), "Expected a finite min_std > 0"),
        (lambda: tfe.losses.GaussianNLL(min_std=-1.0), "Expected a finite min_std > 0"),
        (lambda: tfe.losses.StudentTNLL(df=2.0), "Expected a finite df > 2"),
        (lambda: tfe.losses.MixtureNLL(0), "Expected num_parts >= 1, an integer"),
        (lambda: tfe.losses.Pinball((0.5, 1.0)), r"Expected every level in \(0, 1\). Received: 1.0"),
        (lambda: tfe.losses.Pinball((0.5, 0.1)), "Expected levels in ascending order"),
        (lambda: tfe.losses.Pinball(()), "Expected levels, a sequence that is not empty"),
    ],
)
def test_bad_settings(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_a_plain_keras_model_trains_with_it():
    random = np.random.default_rng(0)
    x = random.normal(size=(256, 1)).astype(np.float32)
    y = 2.0 * x[:, 0] + 0.5 * random.normal(size=256)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, kernel_initializer="zeros")])
    model.compile(keras.optimizers.Adam(0.1), tfe.losses.GaussianNLL())
    loss = model.fit(x, y, epochs=30, batch_size=64, verbose=0).history["loss"][-1]
    # The least that the truth allows is log 0.5 + 1.419 = 0.726; the standard error of 256 such values is 0.044.
    assert abs(loss - (math.log(0.5) + 0.5 + 0.5 * math.log(2 * math.pi))) < 0.2
