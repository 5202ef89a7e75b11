"""Two replicas train as one device does: bootstrap weights, uneven and empty shares, shuffling, norms."""

import subprocess
import sys

import numpy as np
import pytest

HEAD = """
import sys
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_ensembles as tfe
from tests import builders

# The last of 41 examples makes a batch of its own, which leaves a replica without any.
x, y = builders.make_inputs(builders.dense, 41), builders.make_labels(41)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
out = {}
strategies = {"one": tf.distribute.get_strategy(), "two": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])}
"""
SCRIPT = """
for name, strategy in strategies.items():
    with strategy.scope():
        model = tfe.Ensemble(
            builders.dense, 3, tfe.PriorFunction(builders.dense, 2.0), tfe.Bernoulli(0.5), l2=1e-3, seed=1
        )
        model.compile(keras.optimizers.Adam(0.01, global_clipnorm=0.1), loss, metrics=["accuracy"])
    for attempt in sys.argv[2:]:
        if attempt == "arrays":
            history = model.fit(x, y, batch_size=10, epochs=3, verbose=0)
        else:
            data = tfe.number_examples(tf.data.Dataset.from_tensor_slices((x, y))).batch(10)
            history = model.fit(data, epochs=2, verbose=0)
        out[name + "_loss_" + attempt] = history.history["loss"]
        out[name + "_members_" + attempt] = model.member_losses
        out[name + "_logits_" + attempt] = model.predict(x, verbose=0)
    assert model.optimizer.global_clipnorm == 0.1
np.savez(sys.argv[1], **out)
"""
MORE = """
cases = {
    "sum": dict(optimizer=lambda: keras.optimizers.SGD(0.01), reduction="sum"),
    "weights": dict(optimizer=lambda: keras.optimizers.SGD(0.1), reduction="mean_with_sample_weight"),
    "norm": dict(optimizer=lambda: keras.optimizers.SGD(1.0, clipnorm=0.05)),
}
for case, settings in cases.items():
    loss = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=settings.get("reduction", "sum_over_batch_size")
    )
    for name, strategy in strategies.items():
        with strategy.scope():
            model = tfe.Ensemble(builders.dense, 3, bootstrap=tfe.Bernoulli(0.5), l2=1e-3, seed=1)
            model.compile(settings["optimizer"](), loss)
        weights = np.linspace(0.5, 2.0, 41) if case == "weights" else None
        history = model.fit(x, y, batch_size=10, epochs=2, sample_weight=weights, verbose=0)
        out[f"{name}_loss_{case}"] = [*history.history["loss"], model.evaluate(x[:21], y[:21], 10, verbose=0)]
        out[f"{name}_logits_{case}"] = model.predict(x, verbose=0)
        out[f"{name}_members_{case}"] = model.member_losses
        assert model.optimizer.clipnorm == (0.05 if case == "norm" else None)

def normalized(synchronized):
    def build():
        norm = keras.layers.BatchNormalization(synchronized=synchronized)
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3), norm, keras.layers.Dense(3)])

    model = tfe.Ensemble(build, 2, seed=1)
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(x, y, batch_size=10, epochs=2, verbose=0)
    return model.predict(x, verbose=0)

for name, strategy in strategies.items():
    with strategy.scope():
        out[f"{name}_logits_norm"] = normalized(True)
        if name == "two":
            try:
                normalized(False)
            except ValueError as error:
                out["said"] = str(error)
np.savez(sys.argv[1], **out)
"""
CASES = ("sum", "weights", "norm")


def run(script, path, *arguments):
    command = [sys.executable, "-c", script, str(path), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return np.load(path)


@pytest.mark.parametrize("attempt", ["arrays", pytest.param("dataset", marks=pytest.mark.slow)])
def test_two_logical_devices_equal_one(tmp_path, attempt):
    out = run(HEAD + SCRIPT, tmp_path / "out.npz", attempt)
    for kind in ("loss", "members", "logits"):
        # Sums over the batch are taken in two halves: float32 rounding, grown a little by 15 steps of Adam.
        np.testing.assert_allclose(out[f"two_{kind}_{attempt}"], out[f"one_{kind}_{attempt}"], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_two_logical_devices_equal_one_for_every_reduction_and_norm(tmp_path):
    out = run(HEAD + MORE, tmp_path / "out.npz")
    for kind in ("loss", "members", "logits"):
        for case in CASES:
            np.testing.assert_allclose(out[f"two_{kind}_{case}"], out[f"one_{kind}_{case}"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["two_logits_norm"], out["one_logits_norm"], rtol=1e-4, atol=1e-5)
    assert "use BatchNormalization(synchronized=True), or a batch_size that divides 41. Received: " in str(out["said"])
