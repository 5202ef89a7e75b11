"""What is set after an ensemble was made takes effect, or raises in one line."""

import dataclasses
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tests import builders
from tests.builders import make_inputs, make_labels

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = make_inputs(builders.dense, 20), make_labels(20)


def _ensemble(**kwargs):
    ensemble = tfe.Ensemble(builders.dense, 2, **kwargs)
    ensemble.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=False)
    return ensemble


def _fit(ensemble, x=X, y=Y):
    ensemble.fit(x, y, batch_size=20, verbose=0)


def test_a_prior_of_another_scale_takes_effect_and_another_prior_raises():
    ensemble = _ensemble(prior=tfe.PriorFunction(builders.dense, 1.0))
    once = ensemble.predict(X, verbose=0)
    ensemble.prior = dataclasses.replace(ensemble.prior, scale=3.0)
    thrice = ensemble.predict(X, verbose=0)
    ensemble.prior = dataclasses.replace(ensemble.prior, scale=0.0)
    np.testing.assert_allclose(thrice - once, 2 * (once - ensemble.predict(X, verbose=0)), atol=1e-5)
    for other in (None, tfe.PriorFunction(builders.nested), 2.0):
        with pytest.raises(ValueError, match="Expected the prior that the ensemble was made with"):
            ensemble.prior = other


def test_bootstrap_and_l2_take_effect():
    ensemble = _ensemble()
    _fit(ensemble)
    changed, fresh = _ensemble(), _ensemble(bootstrap=tfe.Bernoulli(0.5), l2=0.1)
    changed.optimizer.learning_rate = 0.0
    _fit(changed)
    changed.optimizer.learning_rate = 0.1
    changed.bootstrap, changed.l2 = tfe.Bernoulli(0.5), 0.1
    for model in (changed, fresh):
        _fit(model)
    np.testing.assert_allclose(changed.member_losses, fresh.member_losses, rtol=1e-5)
    np.testing.assert_allclose(changed.predict(X, verbose=0), fresh.predict(X, verbose=0), atol=1e-6)
    with pytest.raises(ValueError, match="Expected bootstrap to be"):
        changed.bootstrap = 0.5
    with pytest.raises(ValueError, match="Expected a finite l2"):
        changed.l2 = -1.0
    with pytest.raises(AttributeError):
        changed.seed = 3


def test_trainable_flags_take_effect_or_ask_for_compile():
    ensemble = _ensemble()
    _fit(ensemble)
    first = ensemble.members.template.layers[0]
    first.trainable = False
    before = ensemble.members.member_values(0)
    _fit(ensemble)
    after = ensemble.members.member_values(0)
    assert [np.array_equal(old, new) for old, new in zip(before, after, strict=True)] == [True, True] + [False] * 4
    ensemble.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=False)
    _fit(ensemble)
    first.trainable = True
    with pytest.raises(ValueError, match=r"Call compile\(\) again after making layers trainable"):
        _fit(ensemble)
    ensemble.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=False)
    _fit(ensemble)
    assert not np.array_equal(ensemble.members.member_values(0)[0], after[0])


def test_other_arrays_without_ids_are_told_once():
    ensemble = _ensemble(bootstrap=tfe.Bernoulli(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _fit(ensemble)
        _fit(ensemble, X.copy())
    with pytest.warns(UserWarning, match=r"not the arrays of the first fit.*tfe.number_examples"):
        _fit(ensemble, X[:10], Y[:10])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _fit(ensemble, X[5:], Y[5:])
        _fit(_ensemble(), X[5:], Y[5:])
        _fit(ensemble, tfe.with_ids(X[:10], np.arange(20, 30)), Y[:10])


@pytest.mark.parametrize("method", ["train_step", "test_step", "predict_step"])
def test_members_with_steps_of_their_own_are_refused_at_compile(method):
    def own(self, *args, **kwargs):
        return getattr(keras.Model, method)(self, *args, **kwargs)

    member = type("Member", (keras.Model,), {method: own})

    def build():
        x = keras.Input((6,))
        return member(x, layers.Dense(3)(x))

    with pytest.raises(ValueError, match=f"Received: Member with a {method} of its own"):
        tfe.Ensemble(build, 2).compile("sgd", LOSS)


def _frozen_first():
    first = layers.Dense(4, name="first")
    model = keras.Sequential([keras.Input((6,)), first, layers.Dense(3, name="second")])
    first.trainable = False
    return model


def _differing():
    """Members whose activations differ, so that they run apart."""
    activations = iter(["relu", "tanh"])

    def build():
        first = layers.Dense(4, next(activations), name="first")
        model = keras.Sequential([keras.Input((6,)), first, layers.Dense(3, name="second")])
        first.trainable = False
        return model

    return build


@pytest.mark.filterwarnings("ignore:Members run each with its own graph")
@pytest.mark.parametrize("build", [_frozen_first, _differing()])
def test_layers_are_unfrozen_as_in_keras(build):
    ensemble = tfe.Ensemble(build, 2)
    loss = {"optimizer": keras.optimizers.SGD(0.1), "loss": LOSS, "jit_compile": False}
    ensemble.compile(**loss)
    _fit(ensemble)
    frozen = ensemble.members.member_values(1)[0]
    ensemble.set_layer_trainable("first", True)
    with pytest.raises(ValueError, match=r"Call compile\(\) again after making layers trainable"):
        _fit(ensemble)
    ensemble.compile(**loss | {"optimizer": keras.optimizers.SGD(0.1)})
    _fit(ensemble)
    assert not np.array_equal(ensemble.members.member_values(1)[0], frozen)
    ensemble.set_layer_trainable("first", False)
    ensemble.compile(**loss | {"optimizer": keras.optimizers.SGD(0.1)})
    frozen = ensemble.members.member_values(1)[0]
    _fit(ensemble)
    np.testing.assert_array_equal(ensemble.members.member_values(1)[0], frozen)
    with pytest.raises(ValueError, match=r"the name of one layer of a member, of .*first.*'third', which 0 have"):
        ensemble.set_layer_trainable("third", True)


@pytest.mark.filterwarnings("ignore:Members run each with its own graph")
@pytest.mark.parametrize("make_build", [lambda: _frozen_first, _differing])
@pytest.mark.parametrize("trainable", [(True,), (False,), (False, True)])
def test_what_is_frozen_or_unfrozen_is_saved_and_loaded(make_build, trainable, tmp_path):
    ensemble = tfe.Ensemble(make_build(), 2)
    for flag in trainable:
        ensemble.set_layer_trainable("first", flag)
    ensemble.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=False)
    _fit(ensemble)
    ensemble.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), ensemble.predict(X, verbose=0))
    assert len(loaded.trainable_variables) == len(ensemble.trainable_variables)


def test_a_name_that_two_layers_have_is_refused():
    def build():
        parts = [keras.Sequential([keras.Input((6,)), layers.Dense(6, name="same")]) for _ in range(2)]
        return keras.Sequential([keras.Input((6,)), *parts, layers.Dense(3)])

    with pytest.raises(ValueError, match="Received: 'same', which 2 have"):
        tfe.Ensemble(build, 2).set_layer_trainable("same", False)


def test_custom_loops_get_gradients_of_layers_that_were_unfrozen():
    ensemble = tfe.Ensemble(_frozen_first, 2)
    ensemble.set_layer_trainable("first", True)
    ensemble.compile("sgd", LOSS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(ensemble(X, training=True) ** 2)
    assert all(g is not None for g in tape.gradient(loss, [v.value for v in ensemble.trainable_variables]))


def test_an_ensemble_is_frozen_and_unfrozen_as_a_whole_as_in_keras():
    ensemble, alone = tfe.Ensemble(_frozen_first, 2), _frozen_first()
    for trainable in (False, True):
        ensemble.trainable = alone.trainable = trainable
        ensemble.compile(keras.optimizers.SGD(0.1), LOSS, jit_compile=False)
        assert len(ensemble.trainable_variables) == len(alone.trainable_variables)
    before = [np.array(variable) for variable in ensemble.trainable_variables]
    _fit(ensemble)
    assert len(before) == 4
    assert not any(np.array_equal(old, new) for old, new in zip(before, ensemble.trainable_variables, strict=True))
