"""Members that a stack cannot speak for run each with its own graph, and train as if alone."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tests.tf_ensembles.ensemble.test_contract import Constants

N, MEMBERS = 12, 3
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 4)).astype(np.float32), RNG.normal(size=(N, 2)).astype(np.float32)
WARNING = "run each with its own graph"


def _depths():
    count = itertools.count(1)
    return lambda: keras.Sequential(
        [keras.Input((4,)), *(layers.Dense(5, "tanh") for _ in range(next(count))), layers.Dense(2)]
    )


def _activations():
    names = itertools.cycle(["relu", "tanh", "elu"])
    return lambda: keras.Sequential([keras.Input((4,)), layers.Dense(5, next(names)), layers.Dense(2)])


def _constants():
    return lambda: keras.Sequential([keras.Input((4,)), Constants(), layers.Dense(2)])


def _closures():
    scales = iter([0.5, 1.0, 2.0, 0.3, 0.4, 0.6])

    def build():
        scale = next(scales)
        x = keras.Input((4,))
        return keras.Model(x, layers.Dense(2)(layers.Dense(5, activation=lambda z: keras.ops.tanh(scale * z))(x)))

    return build


def _rates():
    rates = itertools.cycle([0.1, 0.2, 0.5])
    return lambda: keras.Sequential([keras.Input((4,)), layers.Dropout(next(rates)), layers.Dense(2)])


def _wiring():
    count = itertools.count()

    def build():
        x = keras.Input((4,))
        one, two = layers.Dense(4, "relu")(x), layers.Dense(4, "tanh")(x)
        return keras.Model(x, layers.Dense(2)(layers.Subtract()([one, two] if next(count) % 2 else [two, one])))

    return build


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_activations, "activation differs between members 0 and 1"),
        (_constants, "layer constants.*: frequencies differs between members 0 and 1"),
        (_closures, "activation differs"),
        (_rates, "rate differs"),
        (_wiring, "layer .* differs between members 0 and 1"),
        (_depths, r"variable .*kernel of member 1 has shape \(5, 5\), not \(5, 2\)"),
    ],
)
def test_members_that_differ_say_what_each_says_alone(make, reason):
    models, make = [], make()

    def build():
        models.append(make())
        return models[-1]

    with pytest.warns(UserWarning, match=f"Members {WARNING}.*{reason}"):
        ensemble = tfe.Ensemble(build, MEMBERS)
    assert ensemble.execution.startswith("separate members: ")
    np.testing.assert_array_equal(ensemble(X), np.stack([model(X) for model in models], axis=1))


def _ensemble(make=_depths, **kwargs):
    prior = tfe.PriorFunction(_constants(), 0.7)
    with pytest.warns(UserWarning, match=WARNING):
        return tfe.Ensemble(make(), MEMBERS, prior, tfe.Bernoulli(0.5), l2=0.01, seed=4, **kwargs)


def _fit(model, epochs=2, **kwargs):
    model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **kwargs)


def _twin(model):
    """A model of its own with the same weights and arrays."""
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    twin.set_weights(model.get_weights())
    for ours, layer in zip(twin.layers, model.layers, strict=True):
        if isinstance(layer, Constants):
            vars(ours).update(_frequencies=vars(layer)["_frequencies"])
    return twin


@pytest.mark.parametrize(
    "optimizer", [lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.2), lambda: keras.optimizers.Lamb(0.05)]
)
def test_training_together_equals_training_alone_with_priors_weights_and_decay(optimizer):
    ensemble = _ensemble()
    weights = tfe.Bernoulli(0.5).weights(4, np.arange(N), np.arange(MEMBERS)).numpy()
    alone = []
    for member in range(MEMBERS):
        own, prior = _twin(ensemble.members.models[member]), _twin(ensemble.priors.models[member])
        prior.trainable = False
        model = keras.Model(own.inputs, own.outputs[0] + 0.7 * prior(own.inputs))
        for layer in own.layers:
            for name in ("kernel_regularizer", "bias_regularizer"):
                vars(layer).update({name: None})
        for variable in own.trainable_variables:
            variable.regularizer = keras.regularizers.L2(0.01)
        model.compile(optimizer(), "mse", run_eagerly=True)
        model.fit(X, Y, sample_weight=weights[:, member], batch_size=4, epochs=2, shuffle=False, verbose=0)
        alone.append(np.asarray(model(X)))
    before = np.asarray(ensemble(X))
    ensemble.compile(optimizer(), "mse", run_eagerly=True)
    _fit(ensemble)
    np.testing.assert_allclose(ensemble(X), np.stack(alone, axis=1), atol=1e-5)
    assert np.abs(np.asarray(ensemble(X)) - before).min(axis=0).min() > 1e-5


def test_saved_and_loaded_training_goes_on_and_the_export_says_the_same(tmp_path):
    whole, half = _ensemble(), _ensemble()
    for model in (whole, half):
        model.compile("adam", "mse", run_eagerly=True)
    np.testing.assert_array_equal(whole(X), half(X))
    _fit(whole, 4)
    _fit(half)
    half.save(tmp_path / "half.keras")
    loaded = keras.saving.load_model(tmp_path / "half.keras")
    assert loaded.execution == half.execution
    np.testing.assert_array_equal(loaded(X), half(X))
    _fit(loaded)
    np.testing.assert_array_equal(loaded(X), whole(X))
    tfe.export_saved_model(loaded, tmp_path / "exported")
    served = tf.saved_model.load(str(tmp_path / "exported")).signatures["members"](inputs=tf.constant(X))
    np.testing.assert_allclose(served["logits"], loaded(X), atol=1e-6)


def test_frozen_members_and_early_stopping():
    ensemble = _ensemble()
    ensemble.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=True)
    ensemble.freeze_members([1])
    before = [ensemble.members.member_values(member) for member in range(MEMBERS)]
    stopping = tfe.MemberEarlyStopping(patience=0, restore_best_weights=True)
    _fit(ensemble, 5, validation_data=(X[:4], -Y[:4]), callbacks=[stopping])
    for member in range(MEMBERS):
        after = ensemble.members.member_values(member)
        assert (member == 1) == all(np.array_equal(old, new) for old, new in zip(before[member], after, strict=True))
    losses = np.array(ensemble.member_history["val_loss"])
    final = ((np.asarray(ensemble(X[:4])) + Y[:4, None]) ** 2).mean(axis=(0, 2))
    decay = [0.01 * sum((v**2).sum() for v in ensemble.members.member_values(m)) for m in range(MEMBERS)]
    for member in (0, 2):
        if stopping.stopped_epoch[member] >= 0:
            assert final[member] + decay[member] == pytest.approx(losses[:, member].min(), rel=1e-4)


def test_outputs_of_several_shapes_are_refused():
    sizes = itertools.count(2)
    with pytest.warns(UserWarning, match=WARNING), pytest.raises(ValueError, match="outputs of one shape"):
        tfe.Ensemble(lambda: keras.Sequential([keras.Input((4,)), layers.Dense(next(sizes))]), 2)


def test_a_prior_is_never_trained_whatever_flags_say():
    ensemble = _ensemble(_activations)
    ensemble.trainable = False
    assert not ensemble.trainable_variables
    ensemble.trainable = True
    assert len(ensemble.trainable_variables) == 4 * MEMBERS
    assert not ensemble.priors.trainable_variables


def test_a_second_fit_traces_the_priors_no_more():
    def build():
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    model = tfe.Ensemble(build, 2, prior=tfe.PriorFunction(build, 3.0))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = np.ones((8, 3), np.float32), np.zeros(8, int)
    for _ in range(3):
        model.fit(x, y, verbose=0)
    assert model.priors.compiled().experimental_get_tracing_count() == 1


def test_members_with_other_vocabularies_run_each_with_its_own():
    orders = iter((["a", "b"], ["b", "a"]))

    def build():
        text = keras.Input((1,), dtype="string")
        ids = layers.StringLookup(vocabulary=next(orders))(text)
        return keras.Model(text, layers.Dense(1)(layers.Flatten()(layers.CategoryEncoding(3, "one_hot")(ids))))

    with pytest.warns(UserWarning, match=r"its own graph.*vocabulary"):
        model = tfe.Ensemble(build, 2)
    weights = [np.array([[0.0], [1.0], [2.0]]), np.zeros(1)]
    for member in model.members.models:
        member.set_weights(weights)
    outputs = np.asarray(model.predict(tf.constant([["a"], ["b"]]), verbose=0))[..., 0]
    np.testing.assert_array_equal(outputs, [[1.0, 2.0], [2.0, 1.0]])
