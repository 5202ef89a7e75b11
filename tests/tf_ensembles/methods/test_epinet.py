"""An epinet is the formula of its paper, and an ensemble to everybody who asks."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tf_ensembles import draws
from tf_ensembles.ensemble.members import stack

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 30)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_trunk():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(5, "relu")])


def small_prior():
    return keras.Sequential([keras.Input((4,)), layers.Dense(5, "relu"), layers.Dense(3)])


def _epinet(**kwargs):
    options = dict(num_outputs=3, hidden=(7,), prior=tfe.PriorFunction(small_prior, 2.0), num_members=6, seed=2)
    return tfe.Epinet(make_trunk(), 4, **{**options, **kwargs})


def test_the_formula():
    made = []
    prior = tfe.PriorFunction(lambda: made.append(small_prior()) or made[-1], 2.0)
    epinet = _epinet(prior=prior)
    features = np.asarray(epinet.trunk(X), np.float64)
    index = np.asarray(epinet.indices(), np.float64)
    (w1, b1), (w2, b2) = [[np.asarray(v, np.float64) for v in layer.variables] for layer in epinet.small]
    w0, b0 = (np.asarray(v, np.float64) for v in epinet.base.variables)
    expected = np.empty((30, 6, 3))
    for m, z in enumerate(index):
        hidden = np.maximum(np.concatenate([features, np.tile(z, (30, 1))], axis=1) @ w1 + b1, 0.0)
        learned = (hidden @ w2 + b2).reshape(30, 3, 4) @ z
        frozen = sum(z[i] * np.asarray(p(X), np.float64) for i, p in enumerate(made)) / np.sqrt(4)
        expected[:, m] = features @ w0 + b0 + learned + 2.0 * frozen
    np.testing.assert_allclose(epinet.predict(X, verbose=0), expected, rtol=1e-4, atol=1e-4)
    # Indices are standard normal, a function of the seed, and more members leave the first as they are.
    epinet.num_members = 2000
    many = np.asarray(epinet.indices())
    np.testing.assert_array_equal(many[:6], index.astype(np.float32))
    assert np.abs(many.mean(0)).max() < 5 / np.sqrt(2000)
    assert np.abs(many.std(0) - 1.0).max() < 5 / np.sqrt(2 * 2000)


def test_a_step_is_that_of_the_mean_loss_over_its_indices():
    epinet = _epinet(l2=0.01, train_indices=3)
    epinet.compile(keras.optimizers.SGD(0.1), LOSS, run_eagerly=True)
    index = draws.to_normal(draws.uniform(2, [0], np.arange(3), 4, draws.Purpose.EPINET_STEP)[0])
    variables = epinet.trainable_variables
    frozen = [np.array(v) for v in epinet.priors.variables]
    with tf.GradientTape() as tape:
        features = epinet.trunk(X)
        added = epinet._learned(tf.stop_gradient(features), index)
        prior = tf.einsum("mi,ibo->mbo", index, epinet.priors.run(X, False)[0]) * 2.0 / 2.0
        logits = epinet.base(features)[None] + added + prior
        loss = tf.add_n([LOSS(Y, logits[m]) for m in range(3)]) / 3.0
        loss += 0.01 * tf.add_n([tf.reduce_sum(v.value**2) for v in variables])
    expected = [
        np.asarray(v) - 0.1 * np.asarray(g) for v, g in zip(variables, tape.gradient(loss, variables), strict=True)
    ]
    reported = epinet.train_on_batch(X, Y)
    assert float(np.asarray(reported).ravel()[0]) == pytest.approx(float(loss), rel=1e-5)
    for variable, value in zip(variables, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-4, atol=1e-6)
    for old, variable in zip(frozen, epinet.priors.variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(variable))


def test_a_prior_that_is_kept_trains_as_one_that_is_asked_each_time(monkeypatch):
    found, asked = [], []
    ask = tfe.Epinet._prior_outputs
    monkeypatch.setattr(tfe.Epinet, "_prior_outputs", lambda self, *seen: asked.append(seen) or ask(self, *seen))
    for size in (stack._PRIOR_CACHE_BYTES, 0):
        asked.clear()
        monkeypatch.setattr(stack, "_PRIOR_CACHE_BYTES", size)
        epinet = _epinet()
        epinet.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=False)
        epinet.fit(X, Y, batch_size=8, epochs=3, verbose=0)
        assert bool(asked) == (size == 0)
        found.append(epinet.get_weights())
    for kept, again in zip(*found, strict=True):
        np.testing.assert_allclose(kept, again, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_it_goes_where_an_ensemble_goes(tmp_path):
    epinet = _epinet(prior="auto")
    epinet.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy", tfe.metrics.JointNLL(tau=3)])
    first = epinet.fit(X, Y, epochs=2, batch_size=10, verbose=0, validation_data=(X, Y))
    again = _epinet(prior="auto")
    again.compile(keras.optimizers.Adam(0.01), LOSS)
    again.fit(X, Y, epochs=2, batch_size=10, verbose=0)
    logits = epinet.predict(X, verbose=0)
    np.testing.assert_allclose(again.predict(X, verbose=0), logits, rtol=1e-4, atol=1e-5)
    assert first.history["val_joint_nll"][-1] == pytest.approx(tfe.metrics.joint_nll(logits, Y, tau=3), rel=1e-4)
    epinet.save(tmp_path / "epinet.keras")
    loaded = keras.saving.load_model(tmp_path / "epinet.keras")
    np.testing.assert_array_equal(loaded(X), epinet(X))
    assert loaded.evaluate_joint(X, Y, tau=3)["joint_nll"] == pytest.approx(tfe.metrics.joint_nll(logits, Y, tau=3))
    tfe.export_saved_model(loaded, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served")).signatures
    np.testing.assert_allclose(served["members"](inputs=X)["logits"], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(served["serving_default"](inputs=X)["probabilities"], epinet.predict_proba(X), atol=1e-5)
    calibrated = tfe.calibrate(epinet, X, Y)
    assert calibrated.predict(X, verbose=0).shape == (30, 6, 3)
    assert len(tfe.acquire(logits, num=2, method="bald")) == 2


@pytest.mark.slow
def test_a_regression():
    epinet = tfe.Epinet(make_trunk(), 3, num_outputs=2, num_members=5)
    epinet.compile("adam", tfe.losses.GaussianNLL(), run_eagerly=True)
    y = X[:, :1]
    epinet.fit(X, y, verbose=0)
    assert epinet.predict_distribution(X).mean.shape == (30, 1)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tfe.Epinet(small_prior, num_outputs=3), "Expected trunk to be a keras.Model"),
        (lambda: _epinet(hidden=(0,)), r"Expected hidden\[0\] >= 1"),
        (lambda: _epinet(num_members=0), "Expected num_members >= 1"),
        (lambda: _epinet(seed=-1), "Expected an integer seed in"),
        (lambda: _epinet(prior=small_prior), "Expected prior to be a tfe.PriorFunction"),
        (lambda: _epinet().fit(X, Y), "compile"),
        (lambda: _epinet().predict_proba(X), "Expected to know what member outputs are"),
        (
            lambda: tfe.Epinet(keras.Sequential([keras.Input((4, 2)), layers.Dense(3)]), num_outputs=3),
            r"one output \[batch, features\]",
        ),
    ],
)
def test_what_cannot_be(make, text):
    with pytest.raises(ValueError, match=text):
        make()
