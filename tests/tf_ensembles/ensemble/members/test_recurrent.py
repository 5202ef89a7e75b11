"""Rules of recurrent layers give what Keras's layers give; those that do more than a rule knows are left to a map."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tf_ensembles.ensemble.members import recurrent


def _called(layer, **kwargs):
    x = keras.Input((5, 3))
    layer(x, **kwargs)
    return layer


def _own(x):
    return x - keras.ops.mean(x, axis=0)


def test_outputs_and_gradients_are_those_of_keras():
    def build():
        parts = [layers.LSTM(3, return_sequences=True), layers.GRU(3, return_sequences=True), layers.GRU(2)]
        return keras.Sequential([keras.Input((None, 3)), *parts])

    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32)
    ensemble = tfe.Ensemble(build, 2)
    assert ensemble.execution == "vectorized"
    stacked = [variable for variable in ensemble.stacked_variables if variable.trainable]
    with tf.GradientTape() as tape:
        said = ensemble(x)
        total = tf.reduce_sum(tf.square(said))
    gradients = tape.gradient(total, [variable.value for variable in stacked])
    for m in range(2):
        alone = ensemble.member(m)
        with tf.GradientTape() as tape:
            one = alone(x)
            total = tf.reduce_sum(tf.square(one))
        np.testing.assert_allclose(said[:, m], one, rtol=1e-5, atol=1e-6)
        own = tape.gradient(total, [variable.value for variable in alone.trainable_variables])
        for ours, expected in zip(gradients, own, strict=True):
            np.testing.assert_allclose(ours[m], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: _called(layers.LSTM(2), initial_state=[keras.Input((2,)), keras.Input((2,))]),
        lambda: _called(layers.LSTM(2), mask=keras.Input((5,), dtype="bool")),
        lambda: _called(layers.LSTM(2, return_state=True)),
        lambda: _called(layers.LSTM(2, go_backwards=True)),
        lambda: _called(layers.LSTM(2, dropout=0.1)),
        lambda: _called(layers.LSTM(2, recurrent_dropout=0.1)),
        lambda: _called(layers.LSTM(2, activation=_own)),
        lambda: _called(layers.LSTM(2, recurrent_activation=_own)),
        lambda: _called(layers.GRU(2, reset_after=False)),
        lambda: layers.LSTM(2),
    ],
    ids=[
        "state",
        "mask",
        "states",
        "backwards",
        "dropout",
        "recurrent dropout",
        "own",
        "own gate",
        "reset before",
        "unbuilt",
    ],
)
def test_what_the_rule_does_not_know(make):
    assert recurrent.rule_of(make()) is None
    for known in (layers.LSTM, layers.GRU):
        assert recurrent.rule_of(_called(known(2, return_sequences=True))) is not None
