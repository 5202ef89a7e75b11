"""Members split over devices train as on one; what cannot be split is said before anything is trained."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests import builders
from tests.tf_ensembles.ensemble.test_trunk import head, make_trunk

X, Y = builders.make_inputs(builders.dense, 40), builders.make_labels(40)


SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_ensembles as tfe
from tests.tf_ensembles.methods import test_sharding as sharding

one, two = sharding.make(), sharding.make()
one.fit(sharding.X, sharding.Y, batch_size=10, epochs=3, verbose=0)
tfe.fit_sharded(two, sharding.X, sharding.Y, devices=["CPU:0", "CPU:1"], batch_size=10, epochs=3, verbose=0)
out = {name: np.array(model.predict(sharding.X, verbose=0)) for name, model in (("one", one), ("two", two))}
np.savez(sys.argv[1], **out)
"""
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make(**options):
    """An ensemble whose members differ in all they can."""
    prior, bootstrap = tfe.PriorFunction(builders.dense, 2.0), tfe.Bernoulli(0.5)
    model = tfe.Ensemble(builders.dense, 3, prior, bootstrap, l2=1e-3, seed=1)
    model.compile(keras.optimizers.Adam(0.01), LOSS, **{"jit_compile": False, **options})
    return model


@pytest.mark.slow
def test_two_logical_devices_train_the_members_of_one(tmp_path):
    path = tmp_path / "out.npz"
    result = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    out = np.load(path)
    # float32 rounding of sums, grown a little by twelve steps of Adam.
    np.testing.assert_allclose(out["two"], out["one"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_members_on_a_device_are_those_of_fit():
    one, other = make(run_eagerly=True), make(run_eagerly=True)
    one.fit(X, Y, batch_size=20, verbose=0)
    history = tfe.fit_sharded(other, X, Y, devices=["CPU:0"], batch_size=20, verbose=0)
    np.testing.assert_allclose(other.predict(X, verbose=0), one.predict(X, verbose=0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(history["loss"], one.member_history["loss"], rtol=1e-4)


def _compiled(*args, **kwargs):
    model = tfe.Ensemble(*args, **kwargs)
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tfe.fit_sharded(tfe.Ensemble(builders.dense, 2), X, Y, devices=["CPU:0"]), "Expected a compiled"),
        (lambda: tfe.fit_sharded(_compiled(builders.dense, 2), X, Y, devices=["CPU:7"]), "Expected different devices"),
        (lambda: tfe.fit_sharded(_compiled(builders.dense, 2), X, Y, devices=["CPU:0"] * 2), "different devices"),
        (
            lambda: tfe.fit_sharded(_compiled(builders.dense, 2), X, Y, devices=["CPU:0"], callbacks=[1]),
            "Expected no callbacks",
        ),
        (
            lambda: tfe.fit_sharded(_compiled(head, 2, trunk=make_trunk(frozen=False)), X, Y, devices=["CPU:0"]),
            "Expected a frozen trunk .* for fit_sharded",
        ),
    ],
)
def test_what_cannot_be_split(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.slow
def test_members_with_graphs_of_their_own_come_back_to_their_places():
    def other():
        return builders.subclassed()

    models = [builders.dense(), other(), builders.dense()]
    models[1](X)
    ensemble = tfe.Ensemble.from_models(models, outputs="values")
    with pytest.warns(UserWarning, match="own graph"):
        before = ensemble.predict(X, verbose=0)
    ensemble.compile("sgd", "mse", run_eagerly=True)
    targets = np.zeros((40, 3), np.float32)
    history = tfe.fit_sharded(ensemble, X, targets, devices=["CPU:0"], verbose=0)
    assert history["loss"][0].shape == (3,)
    after = ensemble.predict(X, verbose=0)
    assert (np.square(after).mean(axis=(0, 2)) < np.square(before).mean(axis=(0, 2))).all()
