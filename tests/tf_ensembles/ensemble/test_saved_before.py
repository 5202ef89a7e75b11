"""A file that version 0.1.0 wrote still loads: the same names, predictions and training that goes on.

`tests/data/ensemble_0_1_0.keras` was saved by `_trained()` before `Ensemble` became one class; the `.npz` beside it
holds the inputs, the predictions of that model, and those after two more epochs.
"""

import io
import json
import pathlib
import zipfile

import h5py
import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests.needs import needs_keras

DATA = pathlib.Path(__file__).parents[2] / "data"
FILE = DATA / "ensemble_0_1_0.keras"


def _build():
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(3),
        ]
    )


def _data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 5)).astype(np.float32), rng.integers(0, 3, 40)


def _fit(model, epochs):
    model.fit(*_data(), batch_size=8, epochs=epochs, verbose=0)


def _trained():
    model = tfe.Ensemble(_build, 3, tfe.PriorFunction(_build, 2.0), tfe.Bernoulli(0.5), l2=1e-3, seed=7)
    model.compile(
        keras.optimizers.Adam(0.01, name="adam"),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", tfe.metrics.JointNLL(tau=4)],
        jit_compile=False,
    )
    _fit(model, 2)
    return model


def _contents(path):
    """The variables of a file, by their place in it, and the configuration of its model."""
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
        arrays = {}
        with h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
            file.visititems(
                lambda name, part: arrays.update({name: part[()]}) if isinstance(part, h5py.Dataset) else None
            )
    return arrays, config


@pytest.fixture(scope="module")
def expected():
    return np.load(FILE.with_suffix(".npz"))


@needs_keras("3.15")  # That wrote the file: an older one does not know all of its words.
def test_predictions_and_training_go_on(expected):
    model = keras.saving.load_model(FILE)
    x, y = _data()
    np.testing.assert_array_equal(x, expected["x"])
    # Float32 sums of at most 8 terms, on a machine whose order of summation may differ.
    np.testing.assert_allclose(model.predict(x, verbose=0), expected["logits"], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(x), expected["probabilities"], rtol=1e-5, atol=1e-6)
    assert set(model.evaluate(x, y, return_dict=True, verbose=0)) == {"loss", "accuracy", "joint_nll"}
    _fit(model, 2)
    # The same rounding, grown by ten steps of Adam at 0.01.
    np.testing.assert_allclose(model.predict(x, verbose=0), expected["later_logits"], rtol=1e-3, atol=1e-3)


def test_a_file_written_now_has_the_same_variables_at_the_same_places(tmp_path):
    model = _trained()
    model.save(tmp_path / "now.keras")
    before, before_config = _contents(FILE)
    now, now_config = _contents(tmp_path / "now.keras")
    assert list(now) == list(before)
    for name, values in before.items():
        assert now[name].shape == values.shape
        assert now[name].dtype == values.dtype
        np.testing.assert_allclose(now[name], values, rtol=1e-3, atol=1e-3, err_msg=name)
    assert now_config["registered_name"] == before_config["registered_name"] == "tf_ensembles>Ensemble"
    assert set(now_config["config"]) == set(before_config["config"])
    assert now_config["compile_config"] == before_config["compile_config"]
