"""Monte Carlo dropout: each member is a sub-network, the same for all examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tf_ensembles import draws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 20)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def build(*others):
    parts = [layers.Dense(8, "relu"), layers.BatchNormalization(), layers.Dropout(0.25), *others, layers.Dense(3)]
    return keras.Sequential([keras.Input((4,)), *parts])


def test_members_are_sub_networks_of_the_model(tmp_path):
    model = build()
    model.compile("sgd", LOSS, run_eagerly=True)
    model.fit(X, Y, verbose=0)
    dropout = tfe.MCDropout(model, num_members=5, seed=3)
    outputs = dropout.predict(X, verbose=0, batch_size=7)
    hidden = np.asarray(model.layers[1](model.layers[0](X), training=False))
    drawn = draws.uniform(3, [1], np.arange(5), 8, draws.Purpose.DROPPED)[0].numpy()
    for member in range(5):
        alone = model.layers[-1](hidden * (drawn[member] >= 0.25) / 0.75)
        np.testing.assert_allclose(outputs[:, member], np.asarray(alone), rtol=1e-5, atol=1e-5)
    dropout.num_members = 4000  # Units are left out as often as the layer says.
    kept = (draws.uniform(3, [1], np.arange(4000), 8, draws.Purpose.DROPPED)[0].numpy() >= 0.25).mean()
    assert abs(kept - 0.75) < 5 * np.sqrt(0.25 * 0.75 / 32000)
    dropout.num_members = 5
    assert dropout.kind.value == "logits"
    dropout.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(X), dropout(X))
    np.testing.assert_allclose(loaded.predict_proba(X).sum(axis=1), 1.0, rtol=1e-5)
    assert np.isfinite(loaded.evaluate_joint(X, Y, tau=3)["joint_nll"])
    dropout.compile(loss=LOSS, metrics=[tfe.metrics.JointNLL(tau=3)], run_eagerly=True)
    found = dropout.evaluate(X, Y, verbose=0, return_dict=True)
    assert found["joint_nll"] == pytest.approx(tfe.metrics.joint_nll(outputs, Y, tau=3), rel=1e-4)


@pytest.mark.slow
def test_channels_of_an_image_and_the_export(tmp_path):
    image = keras.Input((4, 4, 2))
    inner = keras.Sequential([keras.Input((4, 4, 2)), layers.Conv2D(3, 2), layers.SpatialDropout2D(0.5)])
    model = keras.Model(image, layers.Dense(2)(layers.Dropout(0.1)(layers.Flatten()(inner(image)))))
    dropout = tfe.MCDropout(model, num_members=4, outputs="logits")
    x = RNG.normal(size=(6, 4, 4, 2)).astype(np.float32)
    outputs = dropout.predict(x, verbose=0)
    assert outputs.std(axis=1).min() > 0.0
    np.testing.assert_allclose(dropout.predict(x[2:3], verbose=0)[0], outputs[2], rtol=1e-5, atol=1e-6)
    tfe.export_saved_model(dropout, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["members"]
    np.testing.assert_allclose(served(inputs=x)["logits"], outputs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: tfe.MCDropout(keras.Sequential([keras.Input((4,)), layers.Dense(2)])),
            "Expected a model with Dropout",
        ),
        (lambda: tfe.MCDropout(build(layers.GaussianDropout(0.2))), "a GaussianDropout, whose noise"),
        (
            lambda: tfe.MCDropout(keras.Sequential([keras.Input((5, 4)), layers.LSTM(3, dropout=0.2)])),
            "a LSTM, whose noise",
        ),
        (lambda: tfe.MCDropout(keras.Sequential([layers.Dropout(0.5)])), "Expected a trained Keras model"),
        (lambda: tfe.MCDropout(build()).fit(X, Y), "Expected fit on the Keras model"),
        (lambda: tfe.MCDropout(build()).predict_proba(X), "Expected to know what member outputs are"),
    ],
)
def test_what_cannot_be(make, text):
    with pytest.raises(ValueError, match=text):
        make()
