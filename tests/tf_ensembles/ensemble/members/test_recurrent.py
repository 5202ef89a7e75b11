"""Recurrent layers that do more than the rule knows are left to a map over members."""

import keras
import pytest
from keras import layers

from tf_ensembles.ensemble.members import recurrent


def _called(layer, **kwargs):
    x = keras.Input((5, 3))
    layer(x, **kwargs)
    return layer


def _own(x):
    return x - keras.ops.mean(x, axis=0)


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
        lambda: _called(layers.GRU(2)),
        lambda: layers.LSTM(2),
    ],
    ids=["state", "mask", "states", "backwards", "dropout", "recurrent dropout", "own", "own gate", "gru", "unbuilt"],
)
def test_what_the_rule_does_not_know(make):
    assert recurrent.rule_of(make()) is None
    assert recurrent.rule_of(_called(layers.LSTM(2, return_sequences=True))) is not None
