"""An ensemble trained together equals its members trained alone, whatever the member."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests import builders
from tests.builders import make_inputs, make_labels

MEMBERS, EXAMPLES, BATCH = 5, 40, 10
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _take(x, rows):
    return tf.nest.map_structure(lambda v: v[rows], x)


def _train_alone(ensemble, build, x, y, optimizer, epochs, weights=None, build_prior=None, scale=0.0):
    """Logits of a plain Keras model trained once per member, from its initial weights and with its frozen prior inside.

    One model takes the members' values in turn, its optimizer those it was built with, so that Keras compiles once.
    """
    g = build()
    pairs, model = [(g, ensemble.members)], g
    if build_prior is not None:
        p = build_prior()
        p.trainable = False
        pairs.append((p, ensemble.priors))
        model = keras.Model(g.inputs, g.outputs[0] + scale * p(g.inputs))
    model.compile(optimizer, LOSS)
    optimizer.build(model.trainable_variables)
    start = [np.array(variable) for variable in optimizer.variables]
    values = [[stack.member_values(member) for _, stack in pairs] for member in range(ensemble.num_members)]
    logits = []
    for member, mine in enumerate(values):
        for (network, _), arrays in zip(pairs, mine, strict=True):
            for variable, value in zip(network.variables, arrays, strict=True):
                variable.assign(value)
        for variable, value in zip(optimizer.variables, start, strict=True):
            variable.assign(value)
        weight = None if weights is None else weights[:, member]
        model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, sample_weight=weight, verbose=0)
        logits.append(np.asarray(model(x, training=False)))
    return np.stack(logits, axis=1)


def _descend(ensemble, x, y, steps):
    """Full-batch steps in one long epoch."""
    data = tfe.number_examples(tf.data.Dataset.from_tensor_slices((x, y))).batch(len(x)).cache().repeat()
    ensemble.fit(data, steps_per_epoch=steps, verbose=0)


OPTIMIZERS = {"sgd": lambda: keras.optimizers.SGD(0.05), "adam": lambda: keras.optimizers.Adam(1e-3)}


@pytest.mark.xla
@pytest.mark.parametrize(
    ("build", "optimizer"),
    [
        (builders.dense, "sgd"),
        (builders.dense, "adam"),
        (builders.conv_batch_norm, "adam"),
        (builders.recurrent, "adam"),
        pytest.param(builders.conv_batch_norm, "sgd", marks=pytest.mark.slow),
        pytest.param(builders.recurrent, "sgd", marks=pytest.mark.slow),
    ],
)
def test_training_together_equals_training_alone(build, optimizer):
    x, y = make_inputs(build, EXAMPLES), make_labels(EXAMPLES)
    ensemble = tfe.Ensemble(build, MEMBERS, bootstrap=tfe.Bernoulli(0.5), seed=3)
    weights = tfe.Bernoulli(0.5).weights(3, np.arange(EXAMPLES), np.arange(MEMBERS)).numpy()
    epochs = 50 * BATCH // EXAMPLES + 1  # at least 50 steps
    alone = _train_alone(ensemble, build, x, y, OPTIMIZERS[optimizer](), epochs, weights)
    before = ensemble.predict(x, verbose=0)
    ensemble.compile(OPTIMIZERS[optimizer](), LOSS)
    ensemble.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)
    together = ensemble.predict(x, verbose=0)
    assert np.abs(together - alone).max() < 1e-4
    assert np.abs(together - before).max() > 1e-2  # something was learned


@pytest.mark.xla
def test_priors_are_added_frozen_and_equal_to_separate_models_with_priors():
    x, y = make_inputs(builders.dense, EXAMPLES), make_labels(EXAMPLES)
    ensemble = tfe.Ensemble(builders.dense, MEMBERS, prior=tfe.PriorFunction(builders.dense, 2.5))
    priors = [np.array(v) for v in ensemble.priors.variables]
    assert not any(np.array_equal(priors[0][0], priors[0][m]) for m in range(1, MEMBERS))
    alone = _train_alone(ensemble, builders.dense, x, y, OPTIMIZERS["adam"](), 12, None, builders.dense, 2.5)
    ensemble.compile(OPTIMIZERS["adam"](), LOSS)
    ensemble.fit(x, y, batch_size=BATCH, epochs=12, shuffle=False, verbose=0)
    assert np.abs(ensemble.predict(x, verbose=0) - alone).max() < 1e-4
    for before, variable in zip(priors, ensemble.priors.variables, strict=True):
        np.testing.assert_array_equal(before, np.asarray(variable))
    assert not ensemble.priors.trainable_variables


@pytest.mark.parametrize("build", builders.BUILDERS)
def test_any_member_runs_trains_and_says_how(build):
    x, y = make_inputs(build, EXAMPLES), make_labels(EXAMPLES)
    ensemble = tfe.Ensemble(build, 3, prior=tfe.PriorFunction(build, 0.5))
    ensemble.compile(keras.optimizers.Adam(0.01), LOSS, metrics=["accuracy", tfe.metrics.JointNLL(tau=4)])
    history = ensemble.fit(x, y, batch_size=BATCH, epochs=4, verbose=0).history
    assert np.isfinite(history["loss"]).all()
    assert history["loss"][-1] < history["loss"][0]
    assert (ensemble.execution == "vectorized") == (build in builders.VECTORIZED)
    logits = ensemble.predict(x, verbose=0)
    assert logits.shape == (EXAMPLES, 3, 3)
    # Each member by itself: the template with that member's weights, called by Keras alone.
    for member in range(3):
        total = 0.0
        for stack, scale in ((ensemble.members, 1.0), (ensemble.priors, 0.5)):
            for variable, value in zip(stack.template.variables, stack.member_values(member), strict=True):
                variable.assign(value)
            rows = [np.asarray(stack.template(_take(x, slice(i, i + 32)), training=False)) for i in (0, 32)]
            total = total + scale * np.concatenate(rows)
        np.testing.assert_allclose(logits[:, member], total, rtol=1e-4, atol=1e-5)


def test_members_get_different_dropout_masks_and_batch_statistics():
    def build():
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.BatchNormalization(), keras.layers.Dense(2)]
        )

    ensemble = tfe.Ensemble(build, 4)
    ones = np.ones((64, 4), np.float32)
    masked = np.asarray(ensemble(ones, training=True))
    assert len({masked[0, m].tobytes() for m in range(4)}) == 4
    ensemble.compile("sgd", LOSS)
    ensemble.fit(np.random.default_rng(0).normal(size=(64, 4)), make_labels(64, 2), verbose=0)
    means = np.asarray(next(v for v in ensemble.members.variables if "moving_mean" in v.name))
    assert len({row.tobytes() for row in means}) == 4
    np.testing.assert_array_equal(ensemble.predict(ones, verbose=0), ensemble.predict(ones, verbose=0))


def test_seed_decides_everything_and_global_randomness_is_left_alone():
    def fit(seed):
        ensemble = tfe.Ensemble(builders.dense, 3, prior=tfe.PriorFunction(builders.dense), seed=seed)
        return ensemble.predict(make_inputs(builders.dense, 7), verbose=0)

    random.seed(5)
    expected = random.random()
    random.seed(5)
    first = fit(0)
    assert random.random() == expected
    np.testing.assert_array_equal(first, fit(0))
    assert np.abs(first - fit(1)).min() > 0


def test_convex_problem_collapses_without_priors_and_not_with_them():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=60)).astype(np.float32)

    def spread(prior, bootstrap):
        def build():
            return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])

        ensemble = tfe.Ensemble(build, 8, tfe.PriorFunction(build, 2.0) if prior else None, bootstrap, l2=0.1)
        ensemble.compile(keras.optimizers.SGD(0.2), "mse")
        _descend(ensemble, x, y, steps=80)
        return ensemble.predict(x, verbose=0).std(axis=1).max()

    # Gradient descent contracts by 1 - 0.2 * 2 * (0.1 + smallest eigenvalue) < 0.8 a step: 0.8^80 < 2e-8.
    assert spread(False, None) < 1e-5
    assert spread(True, None) > 0.05
    assert spread(True, tfe.Bernoulli(0.5)) > 0.05
    assert spread(False, tfe.GaussianNoise(1.0)) > 0.05


@pytest.mark.parametrize(
    "bootstrap", [tfe.Bernoulli(0.5), tfe.Exponential(), tfe.Poisson(), tfe.GaussianNoise(0.5)], ids=repr
)
def test_regression_minimizes_each_members_own_weighted_loss(bootstrap):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    y = x @ np.array([[1.0, 0.2], [-1.0, 2.0]]) + rng.normal(size=(30, 2))

    def build():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False)])

    ensemble = tfe.Ensemble(build, 3, bootstrap=bootstrap, l2=0.05, seed=9)
    ensemble.compile(keras.optimizers.SGD(0.2), "mse")
    _descend(ensemble, x, y, steps=300)
    weights = bootstrap.weights(9, np.arange(30), np.arange(3)).numpy()
    noise = bootstrap.target_noise(9, np.arange(30), np.arange(3), 2)
    for member in range(3):
        # mse averages over the 2 targets: (1/T) sum_t w_t |y - x theta|^2 / 2 + l2 |theta|^2.
        w = weights[:, member, None]
        target = y if noise is None else y + noise.numpy()[:, member]
        solution = np.linalg.solve(x.T @ (w * x) + 30 * 2 * 0.05 * np.eye(2), x.T @ (w * target))
        np.testing.assert_allclose(ensemble.members.member_values(member)[0], solution, atol=2e-4)


def test_l2_reaches_the_rows_of_an_embedding_that_a_batch_does_not_take():
    def build(**kwargs):
        decayed = keras.layers.Embedding(6, 2, **{f"embeddings_{key}": value for key, value in kwargs.items()})
        return keras.Sequential([keras.Input((3,)), decayed, keras.layers.Flatten()])

    x, y = np.array([[0, 1, 1], [2, 1, 0]]), np.ones((2, 6), np.float32)
    ensemble = tfe.Ensemble(build, 2, l2=0.1, seed=1)
    ensemble.compile(keras.optimizers.SGD(0.5), "mse", run_eagerly=True)
    alone = build(regularizer=keras.regularizers.L2(0.1))
    alone.compile(keras.optimizers.SGD(0.5), "mse", run_eagerly=True)
    alone.set_weights(ensemble.members.member_values(1))
    for model in (ensemble, alone):
        model.train_on_batch(x, y)
    np.testing.assert_allclose(ensemble.members.member_values(1)[0], alone.get_weights()[0], rtol=1e-5, atol=1e-7)


def test_dataset_with_ids_equals_arrays_whatever_the_order_and_batch():
    x, y = make_inputs(builders.dense, EXAMPLES), make_labels(EXAMPLES)

    def loss_on(data, **kwargs):
        ensemble = tfe.Ensemble(builders.dense, 3, bootstrap=tfe.Bernoulli(0.5))
        ensemble.compile(keras.optimizers.SGD(0.0), LOSS)
        ensemble.fit(data, epochs=1, verbose=0, **kwargs)
        return ensemble.member_losses

    dataset = tfe.number_examples(tf.data.Dataset.from_tensor_slices((x, y)))
    expected = loss_on(x, y=y, batch_size=EXAMPLES)
    np.testing.assert_allclose(loss_on(dataset.shuffle(40, seed=1).batch(8)), expected, rtol=1e-5)
    order = np.random.default_rng(0).permutation(EXAMPLES)
    np.testing.assert_allclose(loss_on(tfe.with_ids(x[order], order), y=y[order], batch_size=8), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="number_examples"):
        loss_on(tf.data.Dataset.from_tensor_slices((x, y)).batch(8))


def test_sample_and_class_weights_multiply_in():
    x, y = make_inputs(builders.dense, EXAMPLES), make_labels(EXAMPLES)
    ensemble = tfe.Ensemble(builders.dense, 3, bootstrap=tfe.Bernoulli(0.5))
    ensemble.compile(keras.optimizers.SGD(0.0), LOSS)
    logits = ensemble.predict(x, verbose=0).astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    ce = -np.take_along_axis(log_p, y[:, None, None], axis=-1)[..., 0]
    boot = tfe.Bernoulli(0.5).weights(0, np.arange(EXAMPLES), np.arange(3)).numpy()
    own = np.random.default_rng(0).uniform(0.5, 2, EXAMPLES)
    by_class = {0: 1.0, 1: 3.0, 2: 0.5}
    ensemble.fit(x, y, batch_size=EXAMPLES, sample_weight=own, verbose=0)
    np.testing.assert_allclose(ensemble.member_losses, (ce * boot * own[:, None]).mean(axis=0), rtol=1e-5)
    ensemble.fit(x, y, batch_size=EXAMPLES, class_weight=by_class, verbose=0)
    weight = np.array([by_class[label] for label in y])[:, None]
    np.testing.assert_allclose(ensemble.member_losses, (ce * boot * weight).mean(axis=0), rtol=1e-5)


def test_keras_metrics_see_the_mixture_and_ours_the_members():
    x, y = make_inputs(builders.dense, EXAMPLES), make_labels(EXAMPLES)
    ensemble = tfe.Ensemble(builders.dense, 4, prior=tfe.PriorFunction(builders.dense, 3.0))
    ensemble.compile("sgd", LOSS, metrics=["accuracy", tfe.metrics.JointNLL(tau=5), tfe.metrics.MarginalNLL()])
    result = ensemble.evaluate(x, y, batch_size=7, return_dict=True, verbose=0)
    logits, mixture = ensemble.predict(x, verbose=0), ensemble.predict_proba(x)
    assert result["accuracy"] == pytest.approx(np.mean(mixture.argmax(-1) == y))
    assert result["joint_nll"] == pytest.approx(tfe.metrics.joint_nll(logits, y, tau=5), rel=1e-5)
    assert result["marginal_nll"] == pytest.approx(-np.log(mixture[np.arange(EXAMPLES), y]).mean(), rel=1e-5)
    assert result["loss"] == pytest.approx(ensemble.member_losses.mean(), rel=1e-5)


def test_binary_logits_give_two_columns_and_auc():
    x, y = make_inputs(builders.dense, EXAMPLES), make_labels(EXAMPLES, 2)

    def build():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])

    ensemble = tfe.Ensemble(build, 4, prior=tfe.PriorFunction(build))
    ensemble.compile(
        "adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=["AUC", tfe.metrics.MarginalNLL()]
    )
    result = ensemble.evaluate(x, y, return_dict=True, verbose=0)
    outputs = ensemble.predict(x, verbose=0)
    mixture = (1 / (1 + np.exp(-outputs))).mean(axis=1)
    np.testing.assert_allclose(ensemble.predict_proba(x), np.concatenate([1 - mixture, mixture], 1), atol=1e-6)
    likelihood = np.where(y == 1, mixture[:, 0], 1 - mixture[:, 0])
    assert result["marginal_nll"] == pytest.approx(-np.log(likelihood).mean(), rel=1e-5)
    assert 0 <= result["AUC"] <= 1
