"""Initial weights are the ensemble's: a function of (seed, member, place), whatever seeds initializers carry."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe

SHARED = keras.initializers.GlorotUniform()
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def _model(hidden, out=None):
    parts = [layers.Dense(5, "relu", kernel_initializer=hidden), layers.Dense(2, kernel_initializer=out or hidden)]
    return keras.Sequential([keras.Input((4,)), *parts])


def _shared():
    return _model(SHARED)


def _seeded():
    return _model(keras.initializers.GlorotUniform(seed=3))


def _set_inside():
    keras.utils.set_random_seed(1)
    return _model("glorot_uniform")


def _generator():
    return _model(keras.initializers.GlorotUniform(seed=keras.random.SeedGenerator(7)))


@pytest.mark.parametrize("build", [_shared, _seeded, _set_inside, _generator])
def test_members_and_priors_start_apart_whatever_seeds_the_builder_has(build):
    ensemble = tfe.Ensemble(build, 3, prior=tfe.PriorFunction(build), seed=5)
    kernels = [np.asarray(v) for v in (*ensemble.members.variables, *ensemble.priors.variables) if "kernel" in v.name]
    assert len(kernels) == 4
    for kernel in kernels:
        assert len({row.tobytes() for row in kernel}) == 3
        limit = np.sqrt(6 / sum(kernel.shape[1:]))  # Glorot's
        assert 0.5 * limit < np.abs(kernel).max() <= limit
    assert len({row.tobytes() for kernel in (kernels[0], kernels[2]) for row in kernel}) == 6  # priors are no members
    again = tfe.Ensemble(build, 3, prior=tfe.PriorFunction(build), seed=5)
    np.testing.assert_array_equal(np.asarray(again(X)), np.asarray(ensemble(X)))
    other = tfe.Ensemble(build, 3, prior=tfe.PriorFunction(build), seed=6)
    assert np.abs(np.asarray(other(X)) - np.asarray(ensemble(X))).min() > 0


def test_what_is_drawn_for_a_member_does_not_depend_on_the_others():
    small, large = tfe.Ensemble(_seeded, 2), tfe.Ensemble(_seeded, 4)
    for few, many in zip(small.members.variables, large.members.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(few), np.asarray(many)[:2])


def test_seeds_that_a_builder_sets_do_not_leak():
    def draw():
        keras.utils.set_random_seed(11)
        yield
        own = random.random(), np.random.random(), tf.random.uniform([]).numpy()  # noqa: NPY002
        yield *own, keras.random.uniform([]).numpy()

    (_, expected), (_, again) = draw(), draw()
    after = draw()
    next(after)
    tfe.Ensemble(_set_inside, 2)
    # An older Keras does not start its own generator anew.
    counted = slice(None) if again == expected else slice(3)
    assert next(after)[counted] == expected[counted]


def test_masks_of_seeded_dropout_differ_where_members_are_looped():
    def build():
        return keras.Sequential([keras.Input((5, 2)), layers.GRU(4), layers.Dropout(0.5, seed=1), layers.Dense(2)])

    ensemble = tfe.Ensemble(build, 2)
    states = [np.asarray(v) for v in ensemble.members.variables if "seed" in v.name]
    assert len(states) == 2  # the GRU has a generator, too
    assert all((state[0] != state[1]).any() for state in states)


def test_constants_stay_constant_and_identical_members_are_told():
    with pytest.warns(UserWarning, match="members 0 and 1 with the same.*all of them are constants"):
        ensemble = tfe.Ensemble(lambda: _model("zeros"), 2)
    assert not any(np.asarray(v).any() for v in ensemble.members.variables)
    ensemble = tfe.Ensemble(lambda: _model("zeros", SHARED), 2)
    assert not np.asarray(ensemble.members.variables[0]).any()
    with pytest.raises(ValueError, match=r"build_prior to draw other weights.*members 0 and 1"):
        tfe.Ensemble(_shared, 2, prior=tfe.PriorFunction(lambda: _model("ones")))


def test_trained_weights_are_left_as_they_are():
    trained = _model("glorot_uniform").get_weights()

    def build(head=True):
        model = _model("glorot_uniform")
        model.set_weights(trained)
        if head:
            model.layers[-1].set_weights(_model("glorot_uniform").layers[-1].get_weights())
        return model

    ensemble = tfe.Ensemble(build, 2)
    for kernel in ensemble.members.member_values(0)[0], ensemble.members.member_values(1)[0]:
        np.testing.assert_array_equal(kernel, trained[0])
    with pytest.raises(ValueError, match=r"give trained models to tfe\.Ensemble\.from_models"):
        tfe.Ensemble(lambda: build(head=False), 2)
    models = [build(head=False) for _ in range(2)]
    np.testing.assert_allclose(tfe.Ensemble.from_models(models)(X)[:, 1], _call(trained), atol=1e-6)


def _call(weights):
    kernel, bias, out, out_bias = weights
    return np.maximum(X @ kernel + bias, 0) @ out + out_bias
