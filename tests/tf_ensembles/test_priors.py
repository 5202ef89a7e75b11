"""Ready-made priors, priors with units, and what an ensemble makes of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles import priors

RANDOM = np.random.default_rng(0)
VECTORS = RANDOM.normal([5.0, -100.0, 0.0], [3.0, 0.1, 1.0], (200, 3)).astype(np.float32)
IMAGES = RANDOM.uniform(0.0, 255.0, (60, 8, 8, 3)).astype(np.float32)
SERIES = RANDOM.normal(size=(60, 7, 2)).astype(np.float32)
TOKENS = RANDOM.integers(0, 11, (60, 5)).astype(np.int32)
NAMED = {"b": VECTORS[:60], "a": RANDOM.normal(size=(60, 4)).astype(np.float32)}


def dense(inputs):
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(inputs)))


def build_vectors():
    return dense(keras.Input((3,)))


def build_images():
    return dense(keras.Input((8, 8, 3)))


def build_series():
    return dense(keras.Input((7, 2)))


def build_tokens():
    inputs = keras.Input((5,), dtype="int32")
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(keras.layers.Embedding(11, 3)(inputs))))


def build_named():
    inputs = {name: keras.Input(value.shape[1:], name=name) for name, value in NAMED.items()}
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()([inputs["a"], inputs["b"]])))


CASES = {
    "vectors": (build_vectors, VECTORS),
    "images": (build_images, IMAGES),
    "series": (build_series, SERIES),
    "tokens": (build_tokens, TOKENS),
    "named": (build_named, NAMED),
}


def prior_alone(model, x):
    """What the priors alone add, `[examples, members, outputs]`: the outputs at the scale minus those without."""
    with_prior = np.asarray(model.predict(x, verbose=0), np.float64)
    scale = model.prior.scale
    model.prior = tfe.PriorFunction(model.prior.build, 0.0, model.prior.normalize)
    without = np.asarray(model.predict(x, verbose=0), np.float64)
    model.prior = tfe.PriorFunction(model.prior.build, scale, model.prior.normalize)
    return with_prior - without


@pytest.mark.parametrize("name", CASES)
def test_auto_has_the_unit_of_the_output_and_survives_files(name, tmp_path):
    build, x = CASES[name]
    model = tfe.Ensemble(build, 3, prior=tfe.PriorFunction("auto", 2.5), outputs="values")
    model.adapt(x)
    added = prior_alone(model, x)
    # Outputs are float32, so that means are 0 up to a few roundings of the scale.
    np.testing.assert_allclose(added.mean(0), 0.0, atol=1e-4)
    np.testing.assert_allclose(added.std(0), 2.5, rtol=1e-4)
    pairs = [np.corrcoef(added[:, 0, 0], added[:, other, 0])[0, 1] for other in (1, 2)]
    assert max(pairs) < 0.999
    model.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    tfe.export_saved_model(model, tmp_path / "saved")
    served = tf.saved_model.load(str(tmp_path / "saved"))
    inputs = tf.nest.map_structure(tf.constant, x)
    shown = served.signatures["members"](**inputs) if isinstance(x, dict) else served.members(inputs)
    np.testing.assert_allclose(tf.nest.flatten(shown)[0], model.predict(x, verbose=0), rtol=1e-5, atol=1e-5)


def test_a_prior_of_ones_own_is_normalized_as_by_hand():
    def build_prior():
        start = keras.initializers.RandomNormal(stddev=3.0)
        return keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(7, "tanh", kernel_initializer=start), keras.layers.Dense(2)]
        )

    x = RANDOM.normal(size=(100, 3)).astype(np.float32)
    plain = tfe.Ensemble(build_vectors, 3, prior=tfe.PriorFunction(build_prior, 1.0), seed=4)
    unit = tfe.Ensemble(build_vectors, 3, prior=tfe.PriorFunction(build_prior, 1.0, normalize=True), seed=4)
    unit.adapt(x)
    raw, normalized = (prior_alone(model, x) for model in (plain, unit))
    np.testing.assert_allclose(normalized, (raw - raw.mean(0)) / raw.std(0), rtol=1e-3, atol=1e-4)
    assert unit.execution == "vectorized"


def test_constants_stay_those_of_the_first_data():
    model = tfe.Ensemble(build_vectors, 2, prior=tfe.PriorFunction("auto", 1.0))
    model.compile("sgd", "mse")
    model.fit(VECTORS, np.zeros((200, 2)), verbose=0)
    before = [np.asarray(value) for value in model.priors.variables]
    model.fit(10.0 * VECTORS, np.zeros((200, 2)), epochs=2, verbose=0)
    model.predict(VECTORS[:1], verbose=0)
    for old, new in zip(before, model.priors.variables, strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(ValueError, match="Expected adapt before anything else"):
        model.adapt(VECTORS)


def test_a_dataset_shows_as_much_as_its_arrays():
    models = []
    for x in (VECTORS, tf.data.Dataset.from_tensor_slices((VECTORS, np.zeros((200, 2), np.float32))).batch(32)):
        models.append(tfe.Ensemble(build_vectors, 2, prior=tfe.PriorFunction("auto", 1.0), outputs="values"))
        models[-1].adapt(x)
    first, second = (model.predict(VECTORS, verbose=0) for model in models)
    np.testing.assert_array_equal(first, second)


def test_fourier_features_are_a_gaussian_process_of_that_length():
    """The covariance of many priors is `exp(-|x - y|^2 / (2 l^2 d))` in standardized inputs."""
    x = np.linspace(-2.0, 2.0, 9)[:, None].astype(np.float32)
    # The outputs of one prior share their frequencies, and have amplitudes of their own.
    sight = priors.see(x, 20, build_vectors())
    values = []
    for seed in range(20):
        keras.utils.set_random_seed(seed)
        values.append(np.asarray(priors.fourier(length_scale=0.7)(sight)(x)))
    covariance = np.cov(np.concatenate(values, axis=1))
    inputs = x[:, 0] / x.std()
    expected = np.exp(-((inputs[:, None] - inputs[None]) ** 2) / (2 * 0.7**2))
    # Entries of a covariance of 400 draws have standard errors of at most sqrt(2 / 400) = 0.07.
    np.testing.assert_allclose(covariance, expected, atol=5 * 0.071)
    assert np.abs(covariance - expected).mean() < 0.07


def fitted_to_a_gap(prior, seed):
    """Members fitted to points left and right of a gap; returns them with the points and inputs in the gap."""

    def build():
        layers = [keras.layers.Dense(50, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(1)])

    random = np.random.default_rng(seed)
    x = np.concatenate([random.uniform(-2, -0.7, 40), random.uniform(0.7, 2, 40)])[:, None].astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + 0.1 * random.normal(size=80)).astype(np.float32)
    model = tfe.Ensemble(build, 20, prior=prior, seed=seed)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    # All points at once: an epoch is a step.
    model.fit(x, y, epochs=EPOCHS, batch_size=80, verbose=0)
    return model, x, np.linspace(-0.5, 0.5, 50)[:, None].astype(np.float32)


EPOCHS = 300


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 4))])
def test_a_prior_with_units_spreads_where_there_are_no_data(seed, tmp_path):
    spread = []
    for prior in (None, tfe.PriorFunction("auto", 1.0)):
        model, x, gap = fitted_to_a_gap(prior, seed)
        spread.append([np.asarray(model(where, training=False)).std(1).mean() for where in (gap, x)])
    (gap_without, _), (gap_with, data_with) = spread
    assert gap_with > 3 * gap_without
    assert gap_with > 3 * data_with
    if seed == 0:  # What is loaded and what is served says the same, to the bit.
        said = model(gap, training=False)
        model.save(tmp_path / "m.keras")
        np.testing.assert_array_equal(keras.saving.load_model(tmp_path / "m.keras")(gap, training=False), said)
        tfe.export_saved_model(model, tmp_path / "saved")
        served = tf.saved_model.load(str(tmp_path / "saved"))
        np.testing.assert_array_equal(tf.nest.flatten(served.members(tf.constant(gap)))[0], said)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tfe.PriorFunction("magic"), "Expected a function that returns a Keras model, a prior of tfe.priors"),
        (lambda: tfe.PriorFunction(build_vectors, normalize="yes"), "Expected normalize to be True, False or None"),
        (lambda: priors.fourier(0.0), r"Expected length_scale in \[1e-30, 1e\+30\]. Received: 0.0"),
        (lambda: priors.mlp(()), "Expected hidden, a sequence that is not empty"),
        (lambda: priors.conv((0,)), r"Expected channels\[0\] >= 1, an integer"),
    ],
)
def test_wrong_arguments_are_told(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_data_that_tell_no_unit_are_told():
    def model():
        return tfe.Ensemble(build_vectors, 2, prior=tfe.PriorFunction("auto", 1.0))

    with pytest.raises(ValueError, match=r"at least 2 examples.*model.adapt\(x\) first.*Received: 1"):
        model().predict(VECTORS[:1], verbose=0)
    with pytest.raises(ValueError, match="Expected a prior that varies over the data in every output"):
        model().adapt(np.ones((10, 3), np.float32))
    with pytest.raises(ValueError, match=r"Received: symbolic tensors; call model.adapt\(x\) first"):
        model()(keras.Input((3,)))
