"""One member by itself: what `predict` says of it, at one member's price; and members one after the other."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles.ensemble import export
from tf_ensembles.ensemble.members import runner

RNG = np.random.default_rng(0)
FLAT, IMAGES = RNG.normal(size=(12, 4)).astype("float32"), RNG.normal(size=(12, 8, 8, 2)).astype("float32")
LABELS = RNG.integers(0, 3, 12)
KEYS = range(-3, 9)


def mlp(inputs=4, outputs=3):
    return keras.Sequential([keras.Input((inputs,)), keras.layers.Dense(5, "relu"), keras.layers.Dense(outputs)])


def convolutional(regularizer=None, activity=None):
    first = keras.layers.Conv2D(3, 3, activation="relu", kernel_regularizer=regularizer, activity_regularizer=activity)
    rest = [keras.layers.BatchNormalization(), keras.layers.Conv2D(2, 3), keras.layers.Flatten(), keras.layers.Dense(3)]
    return keras.Sequential([keras.Input((8, 8, 2)), first, *rest])


def trained(build, x, **options):
    model = tfe.Ensemble(build, 4, **options)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, LABELS, epochs=1, verbose=0)
    return model


def with_trunk(on):
    trunk = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu")])
    trunk.trainable = False
    prior = tfe.PriorFunction(lambda: mlp(6 if on == "features" else 4), 2.0, on=on)
    return trained(lambda: mlp(6), FLAT, trunk=trunk, prior=prior)


def with_dropout():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
    return tfe.MCDropout(model, num_members=4, outputs="logits")


MODELS = {
    "prior": lambda: trained(mlp, FLAT, prior=tfe.PriorFunction(mlp, 2.0), bootstrap=tfe.Bernoulli(0.5)),
    "prior on inputs beside a trunk": lambda: with_trunk("inputs"),
    "prior on features of a trunk": lambda: with_trunk("features"),
    "separate": lambda: tfe.Ensemble.from_models([mlp(), keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])]),
    "dropout": with_dropout,
    "temperature": lambda: tfe.calibrate(trained(mlp, FLAT), FLAT, LABELS, method="temperature"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_sample_is_what_the_drawn_member_predicts(name, tmp_path):
    model = MODELS[name]()
    if model.kind is None:
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    each = np.asarray(tf.nn.softmax(model.predict(FLAT, verbose=0)))
    served = tf.saved_model.load(str(tfe.export_saved_model(model, tmp_path / "served"))).signatures["sample"]
    drawn = []
    for key in KEYS:
        sample = model.sample(FLAT, key)
        drawn.append(int(np.abs(each - sample[:, None]).max(axis=(0, 2)).argmin()))
        np.testing.assert_allclose(sample, each[:, drawn[-1]], atol=1e-5)
        by_export = served(inputs=tf.constant(FLAT), key=tf.constant(key, tf.int64))["probabilities"]
        np.testing.assert_allclose(by_export, sample, atol=1e-5)
    assert len(set(drawn)) > 1


def test_isotonic_calibration_follows_the_mixture_of_all_members():
    model = tfe.Ensemble(lambda: mlp(outputs=1), 3)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    labels = RNG.integers(0, 2, 12)
    model.fit(FLAT, labels, verbose=0)
    calibrated = tfe.calibrate(model, FLAT, labels, method="isotonic")
    each = calibrated.predict(FLAT, verbose=0)
    for key in KEYS:
        sample = calibrated.sample(FLAT, key)
        assert np.abs(each - sample[:, None]).max(axis=(0, 2)).min() < 1e-5


def test_members_that_diverged_are_never_drawn():
    model = trained(mlp, FLAT)
    model.mark_diverged([0, 2])
    left = np.asarray(tf.nn.softmax(model.predict(FLAT, verbose=0)))[:, [1, 3]]
    for key in KEYS:
        assert np.abs(left - model.sample(FLAT, key)[:, None]).max(axis=(0, 2)).min() < 1e-5


def test_several_outputs_and_means_come_as_predict_proba_gives_them():
    model = tfe.Ensemble(lambda: mlp(outputs=2), 3)
    model.compile("adam", "mse")
    means = model.predict(FLAT, verbose=0)
    assert min(np.abs(means[:, m] - model.sample(FLAT, 5)).max() for m in range(3)) < 1e-6
    with pytest.raises(ValueError, match=r"Expected key >= .* Received: 1\.5"):
        model.sample(FLAT, 1.5)


def _convolutions(function, *arguments):
    graph = tf.function(function).get_concrete_function(*arguments).graph.as_graph_def()
    nodes = [*graph.node, *(node for body in graph.library.function for node in body.node_def)]
    return sum(node.op == "Conv2D" for node in nodes)


def test_a_sample_computes_one_member():
    model = trained(convolutional, IMAGES)
    endpoints = export._Endpoints(model)
    key = tf.TensorSpec([], tf.int64)
    assert _convolutions(endpoints.sample, tf.TensorSpec(IMAGES.shape), key) == 2


@pytest.mark.parametrize("rows", [12, None])
@pytest.mark.parametrize("regularizers", [{}, {"regularizer": "l2"}, {"activity": "l2"}])
def test_large_batches_of_images_are_predicted_member_by_member(rows, regularizers, monkeypatch):
    build = lambda: convolutional(**regularizers)  # noqa: E731
    model = trained(build, IMAGES, prior=tfe.PriorFunction(convolutional, 2.0))
    spec, outputs, losses = tf.TensorSpec([rows, 8, 8, 2]), [], []
    for limit in (runner._CACHED_ACTIVATIONS, 1):
        monkeypatch.setattr(runner, "_CACHED_ACTIVATIONS", limit)
        predict = tf.function(lambda x: model(x)).get_concrete_function(spec)
        outputs.append(predict(tf.constant(IMAGES)).numpy())
        model.make_test_function(force=True)
        losses.append(model.evaluate(IMAGES, LABELS, verbose=0))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-5)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


def test_samples_of_images_convert_to_tensorflow_lite(tmp_path):
    model = tfe.Ensemble(convolutional, 3, outputs="logits")
    path = str(tfe.export_saved_model(model, tmp_path / "saved"))
    for name, more in (("sample", {"key": np.int64(4)}), ("members", {})):
        converter = tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=[name])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        run = tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner(name)
        expected = tf.saved_model.load(path).signatures[name](inputs=tf.constant(IMAGES), **more)
        for key, value in run(inputs=IMAGES, **more).items():
            np.testing.assert_allclose(value, expected[key], atol=1e-5)
