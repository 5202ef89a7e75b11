"""Two replicas train as one device does: bootstrap weights, uneven and empty shares, shuffling, norms; several outputs,
masks, trunks and epinets."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import tf_ensembles as tfe

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
NAMED = """
from tests.tf_ensembles.ensemble import test_replicas as cases
def run(case):
    model, x, y, weights = cases.NAMED_CASES[case]()
    history = model.fit(x, y, batch_size=10, epochs=2, sample_weight=weights, verbose=0).history
    for key in history:
        out[f"{name}_history_{key}_{case}"] = history[key]
    some = tf.nest.map_structure(lambda part: None if part is None else part[:11], (x, y, weights))
    found = model.evaluate(*some[:2], sample_weight=some[2], batch_size=10, verbose=0, return_dict=True)
    out[f"{name}_evaluate_{case}"] = [found[key] for key in sorted(found)]
    for place, part in enumerate(tf.nest.flatten(model.predict(x, verbose=0))):
        out[f"{name}_output{place}_{case}"] = part

refused = []
for name, strategy in strategies.items():
    for case in sys.argv[2:]:
        with strategy.scope():
            try:
                run(case)
            except ValueError as error:
                assert name == "two"
                refused.append(str(error))
np.savez(sys.argv[1], refused=refused, **out)
"""


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


# What follows is made in the child process: 11 examples in batches of 10, so that one replica has none of the last.
ROWS = 11
RNG = np.random.default_rng(0)
X, LABELS = RNG.normal(size=(ROWS, 4)).astype(np.float32), RNG.integers(0, 3, ROWS)
SIZES, TAGS = RNG.normal(size=(ROWS, 1)).astype(np.float32), RNG.integers(0, 3, (ROWS, 6))
TOKENS = RNG.integers(0, 5, (ROWS, 6))
# Whatever the order, some replica gets no position that counts in some batch.
TOKENS[::2], TAGS[1::4] = 0, 2
EACH = np.linspace(0.5, 2.0, ROWS)
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _tagger():
    """Tags of the tokens that are not masked, and a number of them all."""
    x = keras.Input((6,), dtype="int32")
    hidden = layers.Embedding(5, 4, mask_zero=True)(x)
    return keras.Model(x, {"tags": layers.Dense(3)(hidden), "size": layers.Dense(2)(layers.Flatten()(hidden))})


def _outputs(weights=True, **settings):
    """A loss of its own for each output, with positions that are masked, ignored and weighed."""
    model = tfe.Ensemble(_tagger, 2, bootstrap=tfe.Exponential(), l2=1e-3, seed=1)
    tags = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **settings)
    losses = {"tags": tags, "size": tfe.losses.GaussianNLL()}
    metrics = {"tags": ["accuracy"], "size": [tfe.metrics.MarginalNLL()]}
    model.compile(keras.optimizers.SGD(0.1), losses, {"tags": 2.0, "size": 0.3}, metrics, jit_compile=False)
    own = {"tags": np.linspace(0.1, 1.0, TAGS.size).reshape(TAGS.shape), "size": EACH} if weights else None
    return model, TOKENS, {"tags": TAGS, "size": SIZES}, own


def _small(inputs=4):
    return keras.Sequential([keras.Input((inputs,)), layers.Dense(3)])


def _make_trunk(trainable, norm=None):
    keras.utils.set_random_seed(3)
    layer = layers.Dense(6, "relu", kernel_regularizer=keras.regularizers.L2(0.02))
    trunk = keras.Sequential([keras.Input((4,)), layer, *([norm] if norm else []), layers.Dense(5, "tanh")])
    trunk.trainable = trainable
    return trunk


def _on_trunk(trainable, norm=None, optimizer=None):
    prior = tfe.PriorFunction(_small if trainable else lambda: _small(5), 2.0)
    trunk = _make_trunk(trainable, norm)
    model = tfe.Ensemble(lambda: _small(5), 2, prior, tfe.Bernoulli(0.5), trunk=trunk, l2=1e-3, seed=1)
    model.compile(optimizer or keras.optimizers.Adam(0.01), CROSS_ENTROPY, jit_compile=False)
    return model, X, LABELS, EACH


def _epinet(trainable, norm=None, optimizer=None):
    options = dict(num_outputs=3, hidden=(7,), prior=tfe.PriorFunction(_small, 2.0, on="inputs"), num_members=5)
    model = tfe.Epinet(_make_trunk(trainable, norm), 4, l2=1e-3, seed=2, **options)
    metrics = ["accuracy", tfe.metrics.MarginalNLL()]
    model.compile(optimizer or keras.optimizers.Adam(0.01), CROSS_ENTROPY, metrics=metrics, jit_compile=False)
    return model, X, LABELS, EACH


def _batch_ensemble():
    model = tfe.BatchEnsemble(_small, 3, seed=2)
    model.compile(keras.optimizers.SGD(0.1), CROSS_ENTROPY, metrics=["accuracy"], jit_compile=False)
    return model, X, LABELS, EACH


def _whole_batch():
    model = tfe.Ensemble(lambda: _small(), 2)
    model.compile("sgd", lambda y, p: keras.ops.mean(keras.ops.square(y - p)), jit_compile=False)
    return model, X, np.zeros((ROWS, 3), np.float32), None


def _clipped():
    return keras.optimizers.SGD(1.0, global_clipnorm=0.1)


NAMED_CASES = {
    "outputs": _outputs,
    "ignored": lambda: _outputs(ignore_class=2),
    "unweighed": lambda: _outputs(False, ignore_class=2),
    "sum": lambda: _outputs(reduction="sum"),
    "weighted mean": lambda: _outputs(reduction="mean_with_sample_weight", ignore_class=2),
    "frozen trunk": lambda: _on_trunk(False, layers.BatchNormalization()),
    "trained trunk": lambda: _on_trunk(True, layers.BatchNormalization(synchronized=True)),
    "clipped trunk": lambda: _on_trunk(True, optimizer=_clipped()),
    "epinet": lambda: _epinet(True, layers.BatchNormalization(synchronized=True)),
    "frozen epinet": lambda: _epinet(False, layers.BatchNormalization()),
    "batch ensemble": _batch_ensemble,
    "clipped epinet": lambda: _epinet(True, optimizer=_clipped()),
}
REFUSED_CASES = {
    "trunk alone": lambda: _on_trunk(True, layers.BatchNormalization()),
    "epinet alone": lambda: _epinet(True, layers.BatchNormalization()),
    "whole batch": _whole_batch,
}
NAMED_CASES.update(REFUSED_CASES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["outputs"],
        ["ignored", "unweighed", "sum", "weighted mean"],
        ["frozen trunk", "trained trunk", "clipped trunk"],
        ["epinet", "frozen epinet", "clipped epinet", "batch ensemble"],
    ],
    ids=["outputs", "masks", "trunks", "epinets"],
)
def test_two_logical_devices_equal_one_for_outputs_trunks_and_epinets(tmp_path, names):
    out = run(HEAD + NAMED, tmp_path / "out.npz", *names)
    assert not len(out["refused"])
    found = [key for key in out if key.startswith("one_")]
    assert {key.rsplit("_", 1)[1] for key in found} == set(names)
    for key in found:
        # Sums in two halves: float32 rounding.
        np.testing.assert_allclose(out[key.replace("one_", "two_")], out[key], rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_what_replicas_cannot_do_is_said_at_once(tmp_path):
    out = run(HEAD + NAMED, tmp_path / "out.npz", *REFUSED_CASES)
    trunk, epinet, whole = out["refused"]
    for said in (trunk, epinet):
        assert "use BatchNormalization(synchronized=True), or a batch_size that divides 11. Received: " in said
    assert "Expected a loss with a value for each example on several replicas" in whole
