"""Members of a batch ensemble are Keras models whose kernels are W * (r s^T); W gets the mean of their gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6, 6, 2)).astype(np.float32)
Y = RNG.integers(0, 3, 12)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
M = 3


def build():
    return keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3, strides=2, activation="tanh", use_bias=False),
            layers.Reshape((4, 3)),
            layers.Dense(4, "relu", bias_initializer="normal"),
            layers.Flatten(),
            layers.Dense(3, kernel_regularizer=keras.regularizers.L2(0.1)),
        ]
    )


def _moved(model, num_members=M, **kwargs):
    """A batch ensemble whose factors are more than signs."""
    batch = tfe.BatchEnsemble(model, num_members, seed=2, **kwargs)
    for layer in batch.network.layers:
        for name in ("r", "s", "bias"):
            if getattr(layer, name, None) is not None:
                factor = getattr(layer, name)
                factor.assign(np.asarray(factor) + 0.3 * RNG.normal(size=factor.shape))
    return batch


def _alone(batch, model, member):
    """A plain Keras model with one member's kernels, made by NumPy."""
    alone = keras.models.clone_model(model)
    weighted = [layer for layer in batch.network.layers if layer.variables]
    for ours, plain in zip(weighted, [layer for layer in alone.layers if layer.variables], strict=True):
        outer = np.outer(np.asarray(ours.r)[member], np.asarray(ours.s)[member])
        bias = [np.asarray(ours.bias)[member]] if ours.use_bias else []
        plain.set_weights([np.asarray(ours.layer.kernel) * outer, *bias])  # [..., inputs, outputs] times its last axes
    return alone


def test_members_are_keras_models_and_share_the_mean_of_their_gradients(tmp_path):
    model = build()
    batch = _moved(model)
    alone = [_alone(batch, model, m) for m in range(M)]
    outputs = batch.predict(X, verbose=0, batch_size=5)
    for m, one in enumerate(alone):
        np.testing.assert_allclose(outputs[:, m], one(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.member(1)(X), outputs[:, 1], rtol=1e-4, atol=1e-5)

    kernels = [layer.layer.kernel for layer in batch.network.layers if layer.variables]
    before, expected, values = [np.array(kernel) for kernel in kernels], [0.0] * len(kernels), []
    factors = [(np.array(layer.r), np.array(layer.s)) for layer in batch.network.layers if layer.variables]
    for m, one in enumerate(alone):
        with tf.GradientTape() as tape:
            value = LOSS(Y, one(X))
        values.append(float(value))
        found = tape.gradient(value, [layer.kernel for layer in one.layers if layer.variables])
        # d loss / d W = (d loss / d kernel of the member) * r s^T, and the mean over members.
        for place, (gradient, (r, s)) in enumerate(zip(found, factors, strict=True)):
            expected[place] = expected[place] + np.asarray(gradient) * np.outer(r[m], s[m]) / M
    expected[-1] = expected[-1] + 0.2 * before[-1]  # L2 of the shared kernel, once
    batch.compile(keras.optimizers.SGD(0.1), LOSS, metrics=[tfe.metrics.JointNLL(tau=3)], run_eagerly=True)
    reported = batch.train_on_batch(X, Y, return_dict=True)
    assert reported["loss"] == pytest.approx(np.mean(values) + 0.1 * np.square(before[-1]).sum(), rel=1e-5)
    for kernel, old, gradient in zip(kernels, before, expected, strict=True):
        np.testing.assert_allclose(kernel, old - 0.1 * gradient, rtol=1e-4, atol=1e-6)

    batch.fit(X, Y, batch_size=5, epochs=2, verbose=0)
    batch.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(X), batch(X))
    np.testing.assert_allclose(loaded.predict_proba(X).sum(axis=1), 1.0, rtol=1e-5)
    assert np.isfinite(loaded.evaluate_joint(X, Y, tau=3)["joint_nll"])


def test_signs_are_a_function_of_the_seed_and_kernels_are_counted_once():
    one, other, third = (tfe.BatchEnsemble(build, 50, seed=seed) for seed in (1, 1, 2))
    signs = [np.asarray(batch.network.layers[-1].s) for batch in (one, other, third)]
    assert set(np.unique(signs[0])) == {-1.0, 1.0}
    assert abs(signs[0].mean()) < 5 / np.sqrt(signs[0].size)
    np.testing.assert_array_equal(signs[0], signs[1])
    np.testing.assert_array_equal(one(X), other(X))  # The kernels are, too.
    assert (signs[0] != signs[2]).any()
    # Kernels once, and per member 2 + 3, 3 + 4 + 4 and 16 + 3 + 3 numbers.
    assert one.count_params() == 3 * 3 * 2 * 3 + 3 * 4 + 16 * 3 + 50 * (5 + 11 + 22)


@pytest.mark.slow
def test_it_is_an_ensemble_to_decisions_assessment_and_export(tmp_path):
    inner = keras.Sequential([keras.Input((6, 6, 2)), layers.Conv2D(3, 3), layers.SpatialDropout2D(0.3)])
    image = keras.Input((6, 6, 2))
    model = keras.Model(image, layers.Dense(3)(layers.Flatten()(inner(image))))
    batch = tfe.BatchEnsemble(model, M)
    batch.compile("adam", LOSS)
    batch.fit(X, Y, epochs=2, validation_split=0.25, sample_weight=np.ones(12), verbose=0)
    outputs = batch.predict(X, verbose=0)
    tfe.export_saved_model(batch, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["members"]
    np.testing.assert_allclose(served(inputs=X)["logits"], outputs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(batch.member(2)(X), outputs[:, 2], rtol=1e-4, atol=1e-5)
    assert tfe.calibrate(batch, X, Y).predict_proba(X).shape == (12, 3)
    expected = tfe.metrics.marginal_nll(outputs, Y)
    assert tfe.assess(batch, X, Y).score("nll")[0] == pytest.approx(expected, rel=1e-4)


def _flat(*parts):
    return keras.Sequential([keras.Input((4,)), *parts])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tfe.BatchEnsemble(_flat(layers.Dense(2), layers.BatchNormalization())), "a BatchNormalization$"),
        (lambda: tfe.BatchEnsemble(_flat(layers.Dense(2), layers.PReLU())), "a PReLU$"),
        (lambda: tfe.BatchEnsemble(_flat(layers.Dense(2, bias_regularizer="l2"))), "a Dense$"),
        (lambda: tfe.BatchEnsemble(_flat(layers.Dropout(0.5))), "Expected a model with Dense"),
        (lambda: tfe.BatchEnsemble(keras.Sequential([layers.Dense(2)])), "Expected a Keras model that knows"),
        (lambda: tfe.BatchEnsemble(_flat(layers.Dense(2)), 2, bootstrap=tfe.Poisson()), "Expected neither prior nor"),
        (lambda: setattr(tfe.BatchEnsemble(_flat(layers.Dense(2)), 2), "num_members", 3), "Expected the 2 members"),
        (lambda: tfe.BatchEnsemble(_flat(layers.Dense(2)), 2).member(2), "Expected a member in"),
    ],
)
def test_what_cannot_be(make, text):
    with pytest.raises(ValueError, match=text):
        make()
