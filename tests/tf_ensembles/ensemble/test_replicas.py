"""Two replicas train as one device does, bootstrap weights included."""

import subprocess
import sys

import numpy as np

SCRIPT = """
import sys
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import tf_ensembles as tfe
from tests import builders

x, y = builders.make_inputs(builders.dense, 40), builders.make_labels(40)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
out = {}
strategies = {"one": tf.distribute.get_strategy(), "two": tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])}
for name, strategy in strategies.items():
    with strategy.scope():
        model = tfe.Ensemble(
            builders.dense, 3, tfe.PriorFunction(builders.dense, 2.0), tfe.Bernoulli(0.5), l2=1e-3, seed=1
        )
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    for attempt in ("arrays", "dataset"):
        if attempt == "arrays":
            history = model.fit(x, y, batch_size=10, epochs=3, shuffle=False, verbose=0)
        else:
            data = tfe.number_examples(tf.data.Dataset.from_tensor_slices((x, y))).batch(10)
            history = model.fit(data, epochs=2, verbose=0)
        out[name + "_loss_" + attempt] = history.history["loss"]
        out[name + "_members_" + attempt] = model.member_losses
        out[name + "_logits_" + attempt] = model.predict(x, verbose=0)
np.savez(sys.argv[1], **out)
"""


def test_two_logical_devices_equal_one(tmp_path):
    path = tmp_path / "out.npz"
    result = subprocess.run([sys.executable, "-c", SCRIPT, str(path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    out = np.load(path)
    for kind in ("loss", "members", "logits"):
        for attempt in ("arrays", "dataset"):
            # Sums over the batch are taken in two halves: float32 rounding, grown a little by 20 steps of Adam.
            np.testing.assert_allclose(out[f"two_{kind}_{attempt}"], out[f"one_{kind}_{attempt}"], rtol=1e-3, atol=1e-4)
