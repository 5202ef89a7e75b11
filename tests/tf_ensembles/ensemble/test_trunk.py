"""Heads on a shared trunk are heads alone on its features; a trained trunk gets the mean of their gradients."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 5, 5, 2)).astype(np.float32)
Y = RNG.integers(0, 3, 24)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def make_trunk(frozen=True, dropout=0.5, seed=3):
    """Convolution, batch norm with statistics of its own, dropout: `[batch, 5, 5, 2]` to `[batch, 4]`."""
    keras.utils.set_random_seed(seed)
    trunk = keras.Sequential(
        [
            keras.Input((5, 5, 2)),
            # No bias, which batch norm would cancel.
            layers.Conv2D(4, 3, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.02)),
            layers.BatchNormalization(momentum=0.8),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dropout(dropout),
        ]
    )
    trunk.layers[1].moving_mean.assign([0.1, -0.2, 0.3, 0.0])
    trunk.layers[1].moving_variance.assign([0.5, 1.5, 1.0, 2.0])
    trunk.trainable = not frozen
    return trunk


def head():
    return keras.Sequential([keras.Input((4,)), layers.Dense(6, "relu"), layers.Dense(3)])


def prior_of_images():
    return keras.Sequential([keras.Input((5, 5, 2)), layers.Flatten(), layers.Dense(3)])


def _compiled(*args, optimizer=None, **kwargs):
    model = tfe.Ensemble(head, *args, **kwargs)
    model.compile(optimizer or keras.optimizers.Adam(0.05), LOSS, run_eagerly=True)
    return model


@pytest.mark.slow
def test_heads_on_a_frozen_trunk_are_heads_on_its_features():
    trunk = make_trunk()
    before = [np.array(v) for v in trunk.variables]
    features = np.asarray(trunk(X, training=False))
    options = dict(prior=tfe.PriorFunction(head, 2.0), bootstrap=tfe.Bernoulli(0.5), l2=1e-3, seed=4)
    ours, alone = _compiled(3, trunk=trunk, **options), _compiled(3, **options)
    ours.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    alone.fit(features, Y, batch_size=8, epochs=2, verbose=0)
    # The features are the same up to the order of sums in a convolution over another batch.
    np.testing.assert_allclose(ours.predict(X, verbose=0), alone.predict(features, verbose=0), rtol=1e-4, atol=1e-5)
    for old, variable in zip(before, trunk.variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(variable))
    # A dataset, whose features are computed batch by batch.
    streamed = _compiled(3, trunk=trunk, **options)
    data = tfe.number_examples(tf.data.Dataset.from_tensor_slices((X, Y))).batch(8)
    streamed.fit(data, epochs=2, verbose=0)
    ordered = _compiled(3, **options)
    ordered.fit(features, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(streamed(X), ordered(features), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_head_is_a_keras_model_trained_alone_on_the_features():
    trunk = make_trunk()
    features = np.asarray(trunk(X, training=False))
    built = []
    ensemble = tfe.Ensemble(lambda: built.append(head()) or built[-1], 2, trunk=trunk)
    ensemble.compile(keras.optimizers.SGD(0.1), LOSS, run_eagerly=True)
    starts = [[np.array(v) for v in model.variables] for model in built]
    ensemble.fit(X, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
    for member, start in enumerate(starts):
        model = head()
        model.set_weights(start)
        model.compile(keras.optimizers.SGD(0.1), LOSS, run_eagerly=True)
        model.fit(features, Y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        np.testing.assert_allclose(ensemble(X)[:, member], model(features), rtol=1e-5, atol=1e-6)


def test_a_trained_trunk_gets_the_mean_of_the_heads_gradients():
    trunk = make_trunk(frozen=False, dropout=0.0)
    ensemble = _compiled(3, trunk=trunk, optimizer=keras.optimizers.SGD(0.5), seed=1)
    heads, other = [head() for _ in range(3)], make_trunk(frozen=False, dropout=0.0)
    for member, model in enumerate(heads):
        model.set_weights(ensemble.members.member_values(member))
    for step in range(3):
        x, y = X[8 * step : 8 * step + 8], Y[8 * step : 8 * step + 8]
        with tf.GradientTape(persistent=True) as tape:
            features = other(x, training=True)
            each = [LOSS(y, model(features, training=True)) for model in heads]
            mean = tf.add_n(each) / 3.0 + tf.add_n(other.losses)
        for loss, model in zip(each, heads, strict=True):
            for gradient, v in zip(tape.gradient(loss, model.trainable_variables), model.variables, strict=True):
                v.assign_sub(0.5 * gradient)
        pairs = zip(tape.gradient(mean, other.trainable_variables), other.trainable_variables, strict=True)
        for gradient, v in list(pairs):
            v.assign_sub(0.5 * gradient)
        ensemble.reset_metrics()  # An older Keras does not do so by itself.
        reported = ensemble.train_on_batch(x, y)
        assert float(reported) == pytest.approx(float(mean), rel=1e-5)
    for ours, theirs in zip(trunk.variables, other.variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6, err_msg=ours.path)
    expected = np.stack([np.asarray(model(other(X, training=False))) for model in heads], axis=1)
    np.testing.assert_allclose(ensemble(X), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lamb", "adam"])
def test_one_head_and_its_trunk_train_as_one_keras_model_does(optimizer):
    def make():
        # Lamb looks at whole variables; a norm that clips is taken of heads and trunk apart, so none does here.
        return keras.optimizers.Lamb(0.05) if optimizer == "lamb" else keras.optimizers.Adam(0.05)

    trunk, other = make_trunk(frozen=False, dropout=0.0), make_trunk(frozen=False, dropout=0.0)
    ensemble = _compiled(1, trunk=trunk, optimizer=make())
    top = head()
    top.set_weights(ensemble.members.member_values(0))
    model = keras.Sequential([other, top])
    model.compile(make(), LOSS, run_eagerly=True)
    ours = ensemble.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    theirs = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    np.testing.assert_allclose(ensemble(X)[:, 0], model(X), rtol=1e-3, atol=1e-4)  # Adam divides by small numbers.


@pytest.mark.slow
@pytest.mark.parametrize("place", ["inputs", "features", "both"])
def test_priors_on_inputs_on_features_or_both(place, tmp_path):
    def both():
        image, features = keras.Input((5, 5, 2)), keras.Input((4,))
        joined = layers.Concatenate()([layers.Flatten()(image), features])
        return keras.Model([image, features], layers.Dense(3)(joined))

    build, trunk, made = {"inputs": prior_of_images, "features": head, "both": both}[place], make_trunk(), []
    prior = tfe.PriorFunction(lambda: made.append(build()) or made[-1], 2.0, on=place)
    ensemble = tfe.Ensemble(head, 2, prior=prior, trunk=trunk, outputs="logits")
    features = np.asarray(trunk(X, training=False))
    given = {"inputs": X, "features": features, "both": [X, features]}[place]
    plain = np.stack(tf.unstack(ensemble.members.run(features, training=False)[0]), axis=1)
    expected = plain + 2.0 * np.stack([np.asarray(model(given)) for model in made], axis=1)
    np.testing.assert_allclose(ensemble.predict(X, verbose=0), expected, rtol=1e-4, atol=1e-5)
    ensemble.compile("sgd", LOSS, run_eagerly=True)
    loss = ensemble.evaluate(X, Y, verbose=0, batch_size=24)  # With what was computed once.
    each = [float(LOSS(Y, expected[:, member])) for member in range(2)]
    assert loss == pytest.approx(np.mean(each), rel=1e-4)
    ensemble.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(loaded(X), ensemble(X))
    assert not loaded.trunk.trainable


@pytest.mark.slow
def test_a_prior_that_looks_at_data_sees_features_or_inputs():
    frozen = tfe.Ensemble(head, 2, prior=tfe.PriorFunction("auto", 1.5), trunk=make_trunk(), outputs="logits")
    frozen.predict(X, verbose=0)
    assert frozen.priors.template.input_shape == (None, 4)
    prior = np.asarray(frozen.priors.run(frozen.trunk(X, training=False), training=False)[0])
    np.testing.assert_allclose(prior.std(axis=1), 1.0, rtol=1e-4)
    trained = tfe.Ensemble(
        head, 2, prior=tfe.PriorFunction("auto", 1.5), trunk=make_trunk(frozen=False), outputs="logits"
    )
    trained.predict(X, verbose=0)
    assert trained.priors.template.input_shape == (None, 5, 5, 2)
    both = tfe.PriorFunction(tfe.priors.mlp((5,)), on="both")
    both = tfe.Ensemble(head, 2, prior=both, trunk=make_trunk(), outputs="logits")
    assert both.predict(X, verbose=0).shape == (24, 2, 3)
    assert [t.shape[1:] for t in both.priors.template.inputs] == [(5, 5, 2), (4,)]


@pytest.mark.slow
def test_saved_exported_counted_once(tmp_path):
    trunk = make_trunk(frozen=False)
    trunk.layers[0].trainable = False
    ensemble = tfe.Ensemble(head, 4, prior=tfe.PriorFunction(prior_of_images, 0.5), trunk=trunk)
    each = head().count_params() + prior_of_images().count_params()
    marks = 2 * 4 + 2  # which members are marked, and the state of dropout
    assert ensemble.count_params() == make_trunk().count_params() + 4 * each + marks
    ensemble.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy", tfe.metrics.JointNLL(tau=3)])
    ensemble.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    ensemble.save(tmp_path / "m.keras")
    loaded = keras.saving.load_model(tmp_path / "m.keras")
    assert loaded.trunk.trainable
    assert [layer.trainable for layer in loaded.trunk.layers[:2]] == [False, True]
    np.testing.assert_array_equal(loaded(X), ensemble(X))
    for model in (ensemble, loaded):  # The optimizer goes on where it was, dropout too.
        model.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    np.testing.assert_allclose(loaded(X), ensemble(X), rtol=1e-4, atol=1e-5)
    tfe.export_saved_model(ensemble, tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.signatures["members"](inputs=X)["logits"], ensemble(X), rtol=1e-4, atol=1e-5)
    calibrated = tfe.calibrate(ensemble, X, Y)
    assert calibrated.predict(X, verbose=0).shape == (24, 4, 3)
    assert np.isfinite(ensemble.evaluate_joint(X, Y, tau=3)["joint_nll"])


@pytest.mark.slow
def test_a_regression_on_a_trunk_has_a_distribution():
    def two():
        return keras.Sequential([keras.Input((4,)), layers.Dense(2)])

    targets = RNG.normal(size=(24, 1)).astype(np.float32)
    ensemble = tfe.Ensemble(
        two, 3, prior=tfe.PriorFunction("auto", 1.0), bootstrap=tfe.Bernoulli(0.5), trunk=make_trunk()
    )
    ensemble.compile("adam", tfe.losses.GaussianNLL(), run_eagerly=True)
    ensemble.fit(X, targets, epochs=1, verbose=0)
    distribution = ensemble.predict_distribution(X)
    assert distribution.mean.shape == (24, 1)
    assert np.isfinite(distribution.log_prob(targets)).all()


@pytest.mark.slow
def test_a_trunk_of_several_inputs_and_outputs():
    one, two = keras.Input((3,), name="one"), keras.Input((2,), name="two")
    hidden = layers.Dense(4)(layers.Concatenate()([one, two]))
    trunk = keras.Model({"one": one, "two": two}, [hidden, layers.Dense(2)(hidden)])
    trunk.trainable = False

    def both():
        wide, narrow = keras.Input((4,)), keras.Input((2,))
        return keras.Model([wide, narrow], layers.Dense(3)(layers.Concatenate()([wide, narrow])))

    x = {"one": RNG.normal(size=(24, 3)).astype(np.float32), "two": RNG.normal(size=(24, 2)).astype(np.float32)}
    ensemble = tfe.Ensemble(both, 2, prior=tfe.PriorFunction(both), trunk=trunk)
    ensemble.compile("sgd", LOSS, run_eagerly=True)
    ensemble.fit(x, Y, epochs=1, verbose=0)
    assert ensemble.predict(x, verbose=0).shape == (24, 2, 3)


def test_a_member_that_diverges_leaves_the_trunk_alone():
    trunk = make_trunk(frozen=False, dropout=0.0)
    ensemble = _compiled(3, trunk=trunk, optimizer=keras.optimizers.SGD(0.1))
    kernel = ensemble.stacked_variables[0]
    kernel.assign(np.where(np.arange(3)[:, None, None] == 1, np.nan, np.asarray(kernel)))
    with pytest.warns(UserWarning, match="diverged"):
        ensemble.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    assert ensemble.diverged.tolist() == [False, True, False]
    middle = np.array(trunk.layers[0].kernel)
    assert np.isfinite(middle).all()
    ensemble.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    after = np.array(trunk.layers[0].kernel)
    assert np.isfinite(after).all()
    assert np.abs(after - middle).max() > 1e-4


@pytest.mark.slow
def test_freezing_and_thawing_between_fits():
    trunk = make_trunk(frozen=False, dropout=0.0)
    ensemble = _compiled(2, trunk=trunk, optimizer=keras.optimizers.SGD(0.1))
    ensemble.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    trunk.trainable = False
    kept = [np.array(v) for v in trunk.variables]
    ensemble.fit(X, Y, batch_size=8, epochs=1, verbose=0)
    for old, variable in zip(kept, trunk.variables, strict=True):
        np.testing.assert_array_equal(old, np.asarray(variable))
    ensemble.freeze_members([0])  # With a frozen trunk, members may stop one by one.


def _two_outputs_of_heads():
    return keras.Sequential([keras.Input((7,)), layers.Dense(3)])


class Subclassed(keras.Model):
    """Knows neither inputs nor outputs."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tfe.Ensemble(head, 2, trunk=make_trunk), "Expected trunk to be a keras.Model"),
        (lambda: tfe.Ensemble(head, 2, trunk=Subclassed()), "Expected a trunk that knows its inputs and outputs"),
        (
            lambda: tfe.Ensemble(_two_outputs_of_heads, 2, trunk=make_trunk()),
            r"heads on the trunk's output.*\(None, 7\)",
        ),
        (lambda: tfe.Ensemble(head, 2, tfe.PriorFunction(head, on="features")), "Expected trunk=.*'features'"),
        (lambda: tfe.PriorFunction(head, on="feature"), "Expected on to be 'inputs'"),
        (
            lambda: tfe.Ensemble(head, 2, tfe.PriorFunction(head, on="inputs"), trunk=make_trunk()),
            "Expected a prior on 'inputs'",
        ),
        (
            lambda: _compiled(2, trunk=make_trunk(frozen=False)).freeze_members([0]),
            "Expected a frozen trunk .* for freeze_members",
        ),
        (
            lambda: tfe.Ensemble(Subclassed, 2, trunk=make_trunk()).predict(X, verbose=0),
            "Expected heads and priors that know their inputs",
        ),
    ],
)
def test_what_a_trunk_cannot_be(make, text):
    with pytest.raises(ValueError, match=text):
        make()


def test_a_head_that_contains_the_trunk():
    trunk = make_trunk()
    shared = layers.Dense(4)
    features = keras.Model(trunk.inputs, shared(trunk.outputs[0]))
    calls = []

    def build():
        calls.append(1)
        first = shared if len(calls) == 1 else layers.Dense(4)
        return keras.Sequential([keras.Input((4,)), first, layers.Dense(3)])

    with pytest.raises(ValueError, match="layers of the trunk in a head"):
        tfe.Ensemble(build, 2, trunk=features)
