"""What is frozen stays frozen in files, layers within layers included; what is thawed is trained again."""

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tf_ensembles.ensemble.members import frozen

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(20, 4)).astype(np.float32), RANDOM.integers(0, 3, 20)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@keras.saving.register_keras_serializable(package="tests")
class Block(keras.layers.Layer):
    """A layer that holds others."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.Sequential([keras.layers.Dense(5, "relu"), keras.layers.BatchNormalization()])

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def compute_output_shape(self, shape):
        return (shape[0], 5)


def make_trunk():
    x = keras.Input((4,))
    return keras.Model(x, Block()(x))


def make_head():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])


def make_member():
    x = keras.Input((4,))
    block = Block()
    model = keras.Model(x, keras.layers.Dense(3)(block(x)))
    block.trainable = False
    return model


def test_a_keras_file_forgets_it_and_ours_do_not():
    trunk = make_trunk()
    trunk.trainable = False
    config = keras.saving.serialize_keras_object(trunk)
    forgotten = keras.saving.deserialize_keras_object(config)
    assert [v.trainable for v in forgotten.variables] != [v.trainable for v in trunk.variables]  # else: not needed
    again = frozen.read(frozen.write(trunk))
    for one in (again, forgotten):
        frozen.freeze(one)
        assert not any(v.trainable for v in one.variables)
        one.trainable = True
        assert sum(v.trainable for v in one.variables) == 4  # moving statistics never are
    assert "tfe" not in str(frozen.write(make_trunk()))


@pytest.mark.parametrize("with_trunk", [True, False])
def test_a_loaded_ensemble_trains_what_the_first_did(with_trunk, tmp_path):
    if with_trunk:
        trunk = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(make_trunk()))
        trunk.trainable = False
        model = tfe.Ensemble(make_head, 3, trunk=trunk)
    else:
        model = tfe.Ensemble(make_member, 3)
    model.compile(keras.optimizers.Adam(0.1), LOSS)
    model.fit(X, Y, verbose=0)
    model.save(tmp_path / "m.keras")
    again = keras.saving.load_model(tmp_path / "m.keras")
    names = [variable.name for variable in model.trainable_variables]
    assert len(names) == 2
    assert [variable.name for variable in again.trainable_variables] == names
    for one in (model, again):
        one.fit(X, Y, verbose=0)
    for first, second in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)
