"""Models without rules are traced once for all members, inside compiled steps, and train as if each were alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tf_ensembles as tfe
from tests import ensemble_contract
from tests.tf_ensembles.ensemble import test_contract as contract
from tests.tf_ensembles.ensemble.test_contract import FLAT, IMAGE, LOOPED, MODELS, SEQUENCE, TOKENS


def _attentive():
    """Masks, draws of each member's own, batch statistics, losses that layers add, rows of embeddings.

    Without biases that the loss does not feel, before batch norm and in attention: Adam would make steps of rounding.
    """
    tokens = keras.Input((None,), dtype="int32")
    x = layers.Embedding(5, 4, mask_zero=True)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2, dropout=0.3, use_bias=False)(x, x))
    x = layers.GRU(3, dropout=0.3)(layers.Dropout(0.3)(x))
    dense = layers.Dense(4, use_bias=False, activity_regularizer="l2", kernel_regularizer="l1")
    x = layers.BatchNormalization()(dense(x))
    return keras.Model(tokens, layers.Dense(2)(x))


def _convolutional():
    """Convolutions of each form, between layers that are vectorized, folded and mapped."""
    x = keras.Input((6, 6, 2))
    first = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    y = layers.Dropout(0.3)(layers.BatchNormalization()(first))
    y = layers.Conv2D(4, 2, strides=2, dilation_rate=1, use_bias=False)(y) + layers.Conv2D(4, 1, strides=2)(first)
    y = layers.DepthwiseConv2D(2)(y)
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(y)))


def _temporal():
    x = keras.Input((None, 3))
    y = layers.Conv1D(4, 3, padding="causal", dilation_rate=2, activation="relu")(x)
    y = layers.Conv1D(3, 3, strides=2, padding="same")(layers.SpatialDropout1D(0.3)(y))
    return keras.Model(x, layers.Dense(2)(layers.GlobalAveragePooling1D()(layers.Conv1D(2, 2)(y))))


@keras.saving.register_keras_serializable(package="mapping")
class Tied(keras.Model):
    """Looks rows up and multiplies by the whole table, too; another table is only looked up, twice."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.tied, self.rows, self.out = layers.Embedding(5, 3), layers.Embedding(5, 3), layers.Dense(2)

    def call(self, tokens):
        x = ops.mean(self.tied(tokens) + self.rows(tokens) * self.rows(4 - tokens), axis=1)
        return self.out(ops.matmul(x, ops.transpose(ops.convert_to_tensor(self.tied.embeddings))))


@keras.saving.register_keras_serializable(package="mapping")
class Rows(Tied):
    """Only looks rows up."""

    def call(self, tokens):
        return self.out(ops.mean(self.tied(tokens) + self.rows(tokens) * self.rows(4 - tokens), axis=1))


WHOLE, SLOW = "looped over members: whole model [vectorized_map]", pytest.mark.slow


@pytest.mark.parametrize(
    ("build", "x", "execution"),
    [
        pytest.param(_attentive, TOKENS, WHOLE, id="attentive", marks=SLOW),
        pytest.param(_convolutional, IMAGE, "looped over members: conv2d", id="convolutional"),
        pytest.param(_temporal, SEQUENCE, "looped over members: spatial_dropout1d", id="temporal", marks=SLOW),
        pytest.param(Tied, TOKENS, WHOLE, id="tied"),
        pytest.param(Rows, TOKENS, WHOLE, id="rows", marks=SLOW),
    ],
)
def test_one_trace_trains_what_separate_models_train(build, x, execution, tmp_path):
    optimizer = lambda: keras.optimizers.Adam(0.01)  # noqa: E731
    ensemble_contract.check(
        build, x, tmp_path, execution=execution, optimizer=optimizer, run_eagerly=False, tolerance=5e-5
    )


COMPILED = [name for name, (_, _, execution) in MODELS.items() if execution == LOOPED or "conv" in name]


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_every_model_without_rules_is_its_members_in_compiled_steps(name, tmp_path):
    build, x, execution = MODELS[name]
    optimizer = keras.optimizers.Adam if name in contract.ADAM else keras.optimizers.SGD
    ensemble_contract.check(
        build, x, tmp_path, execution=execution, optimizer=lambda: optimizer(0.05), run_eagerly=False, tolerance=2e-5
    )


def test_what_has_no_converter_runs_in_a_loop_that_is_traced_once(tmp_path):
    build, x, _ = MODELS["transposed conv"]
    ensemble = ensemble_contract.check(build, x, tmp_path, run_eagerly=False, tolerance=2e-5)
    assert ensemble.execution == "looped over members: whole model [while_loop]"
    assert "while_loop" in _printed(ensemble)


def _printed(model):
    lines = []
    model.summary(print_fn=lines.append)
    return lines[-1]


def test_the_number_of_members_and_of_calls_adds_nothing_to_what_is_traced():
    calls, steps = [], []

    @keras.saving.register_keras_serializable(package="mapping")
    class Counted(layers.Dense):
        def call(self, x):
            calls.append(tf.executing_eagerly())
            return super().call(x)

    def loss(y, outputs):
        steps.append(None)
        return keras.losses.mean_squared_error(y, outputs)

    def build():
        return keras.Sequential([keras.Input((None, 3)), Counted(2), layers.GlobalAveragePooling1D()])

    x, y = SEQUENCE, np.zeros((len(SEQUENCE), 2), np.float32)
    ensemble = tfe.Ensemble(build, 9)
    ensemble.compile("sgd", loss)
    calls.clear()
    ensemble.fit(x, y, batch_size=4, verbose=0)
    ensemble.evaluate(x[:5], y[:5], batch_size=4, verbose=0)  # A smaller last batch: any size from now on.
    assert calls.count(False) == 2  # once in training, once in inference
    traced = len(steps)
    for rows in (x, x[:5]):
        ensemble.fit(rows, y[: len(rows)], batch_size=4, epochs=2, verbose=0)
        ensemble.evaluate(rows, y[: len(rows)], batch_size=4, verbose=0)
        ensemble.predict(x[:3], verbose=0)
    assert calls.count(False) == 2
    assert len(steps) == traced  # Neither are the steps themselves.
    ensemble.fit(np.concatenate([x, x], axis=1), y, batch_size=4, verbose=0)
    assert calls.count(False) == 3  # any length from now on
    ensemble.fit(np.concatenate([x] * 3, axis=1), y, batch_size=4, verbose=0)
    assert calls.count(False) == 3


def test_layers_that_are_frozen_later_are_traced_again():
    ensemble = tfe.Ensemble(MODELS["group norm"][0], 2)
    ensemble.compile("sgd", "mse")
    y = np.zeros((len(FLAT), 2), np.float32)
    ensemble.fit(FLAT, y, verbose=0)
    ensemble.members.template.layers[0].trainable = False
    kept = ensemble.members.member_values(0)
    ensemble.fit(FLAT, y, verbose=0)
    moved = [not np.array_equal(old, new) for old, new in zip(kept, ensemble.members.member_values(0), strict=True)]
    names = [variable.path for variable in ensemble.members.template.variables]
    assert [name for name, has in zip(names, moved, strict=True) if has] == [n for n in names if "dense" in n]
