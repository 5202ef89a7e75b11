"""Members with several outputs, and with outputs of any rank, are what M separate Keras models are."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tf_ensembles as tfe
from tf_ensembles.ensemble import losses
from tf_ensembles.ensemble.members.structure import Structure
from tf_ensembles.metrics.kinds import Kind

M, ROWS, BATCH = 2, 12, 6
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype(np.float32)
Y = {"kind": RNG.integers(0, 3, ROWS), "size": RNG.normal(size=(ROWS, 1)).astype(np.float32)}
LOSS = {"kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "size": tfe.losses.GaussianNLL()}
WEIGHTS = {"kind": 2.0, "size": 0.3}


def _heads(x, hidden):
    return {"kind": layers.Dense(3, name="kind")(hidden), "size": layers.Dense(2, name="size")(hidden)}


def _member():
    x = keras.Input((4,))
    return keras.Model(x, _heads(x, layers.Dense(5, "relu")(x)))


def _prior():
    x = keras.Input((4,))
    return keras.Model(x, {"kind": layers.Dense(3)(x), "size": layers.Dense(1)(x)})


def _member_weights(ensemble, ids, sample_weight):
    """Bootstrap weights times sample weights, `[members, batch]`, as a model trained alone is given them."""
    drawn = np.asarray(ensemble.bootstrap.weights(ensemble.seed, ids, np.arange(M)))
    return (drawn * sample_weight[:, None]).T


def _compiled():
    """Two losses and their weights, a prior per output, and weights of examples."""
    priors = {
        "kind": tfe.PriorFunction(lambda: _prior_of(3), 2.0),
        "size": tfe.PriorFunction(lambda: _prior_of(1), 0.5),
    }
    ensemble = tfe.Ensemble(_member, M, prior=priors, bootstrap=tfe.Exponential(), seed=3)
    metrics = {"kind": [tfe.metrics.JointNLL(tau=3), "accuracy"], "size": [tfe.metrics.JointNLL(tau=3)]}
    ensemble.compile(keras.optimizers.SGD(0.1), LOSS, WEIGHTS, metrics, run_eagerly=True)
    return ensemble


OWN = {"kind": np.linspace(0.5, 2.0, ROWS), "size": np.linspace(2.0, 0.1, ROWS)}


def test_several_losses_train_as_separate_keras_models_do():
    """With sample weights by output, and one bootstrap weight per example."""
    ensemble = _compiled()
    assert ensemble.kind == {"kind": Kind.LOGITS, "size": Kind.GAUSSIAN}
    alone = [ensemble.member(m) for m in range(M)]
    ensemble.fit(X, Y, batch_size=BATCH, shuffle=False, sample_weight=OWN, verbose=0)
    for m, model in enumerate(alone):
        given = {name: _member_weights(ensemble, np.arange(ROWS), part)[m] for name, part in OWN.items()}
        model.compile(keras.optimizers.SGD(0.1), LOSS, loss_weights=WEIGHTS, run_eagerly=True)
        model.fit(X, Y, batch_size=BATCH, shuffle=False, sample_weight=given, verbose=0)
    said = {name: np.asarray(part) for name, part in ensemble(X).items()}
    for m, model in enumerate(alone):
        for name, part in model(X).items():
            np.testing.assert_allclose(said[name][:, m], part, rtol=2e-5, atol=2e-6)
    result = ensemble.test_on_batch(X, Y, sample_weight=OWN, return_dict=True)
    expected = [model.test_on_batch(X, Y, sample_weight=OWN, return_dict=True) for model in alone]
    for name in ("loss", "kind_loss", "size_loss"):
        assert result[name] == pytest.approx(np.mean([one[name] for one in expected]), rel=1e-5), name
    likelihoods = _likelihoods(said)
    for name, values in likelihoods.items():
        assert result[f"{name}_joint_nll"] == pytest.approx(_joint(values, 3), rel=1e-4)
    assert result["kind_accuracy"] == pytest.approx(np.mean(_probabilities(said).mean(1).argmax(-1) == Y["kind"]))


def _probabilities(said):
    logits = np.asarray(said["kind"], np.float64)
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def _likelihoods(said):
    """Members' log-likelihoods of both outputs, `[batch, members]`."""
    mean, std = said["size"][..., :1], 1e-3 + np.log1p(np.exp(said["size"][..., 1:]))
    density = -0.5 * ((Y["size"][:, None] - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return {"kind": np.log(_probabilities(said)[np.arange(ROWS), :, Y["kind"]]), "size": density[..., 0]}


def _joint(likelihoods, tau):
    return -np.log(np.exp(likelihoods.reshape(-1, tau, M).sum(axis=1)).mean(axis=1)).mean()


@pytest.mark.slow
def test_several_outputs_are_asked_saved_and_served_by_their_names(tmp_path):
    ensemble = _compiled()
    ensemble.fit(X, Y, batch_size=BATCH, verbose=0)
    said, likelihoods = ensemble.predict(X, verbose=0), _likelihoods(ensemble.predict(X, verbose=0))
    scores, p, found = ensemble.evaluate_joint(X, Y, tau=3), _probabilities(said), ensemble.predict_distribution(X)
    for name, values in likelihoods.items():
        assert scores[name]["joint_nll"] == pytest.approx(_joint(values, 3), rel=1e-4)
    greedy = min(range(M), key=lambda m: -sum(values[:, m].sum() for values in likelihoods.values()))
    np.testing.assert_array_equal(ensemble.best_members(X, Y, 1, tau=3), [greedy])
    np.testing.assert_allclose(ensemble.predict_proba(X)["kind"], p.mean(axis=1), atol=1e-6)
    assert found["kind"] is None
    np.testing.assert_allclose(found["size"].mean, said["size"][..., :1].mean(axis=1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ensemble.only("kind").predict_proba(X), p.mean(axis=1), atol=1e-6)
    np.testing.assert_array_equal(ensemble.select([1])(X)["size"], said["size"][:, 1:])
    result = ensemble.evaluate(X, Y, batch_size=ROWS, sample_weight=OWN, return_dict=True, verbose=0)
    ensemble.save(tmp_path / "two.keras")
    loaded = keras.saving.load_model(tmp_path / "two.keras")
    again = loaded.evaluate(X, Y, batch_size=ROWS, sample_weight=OWN, return_dict=True, verbose=0)
    assert again == pytest.approx(result, rel=1e-6)
    calibrated = tfe.calibrate(loaded.only("kind"), X, Y["kind"])
    calibrated.save(tmp_path / "calibrated.keras")
    kept = keras.saving.load_model(tmp_path / "calibrated.keras")
    np.testing.assert_allclose(kept.predict_proba(X), calibrated.predict_proba(X), atol=1e-6)
    tfe.export_saved_model(ensemble, tmp_path / "saved")
    served = tf.saved_model.load(str(tmp_path / "saved")).signatures
    mixed = served["serving_default"](inputs=tf.constant(X))
    assert set(mixed) == {"kind_probabilities", "size_mean", "size_std"}
    np.testing.assert_allclose(mixed["kind_probabilities"], p.mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(mixed["size_std"], found["size"].std, rtol=1e-4)
    assert set(served["quantiles"](inputs=tf.constant(X), levels=tf.constant([0.5]))) == {"size_quantiles"}


def _prior_of(columns):
    return keras.Sequential([keras.Input((4,)), layers.Dense(columns)])


def test_priors_of_outputs_differ_and_are_added_to_their_own():
    ensemble = tfe.Ensemble(_member, M, prior=tfe.PriorFunction(_prior, {"kind": 3.0}), seed=1)
    without = tfe.Ensemble(_member, M, seed=1)
    with_prior, plain, raw = ensemble(X), without(X), ensemble.priors(X)
    np.testing.assert_allclose(with_prior["kind"], plain["kind"] + 3.0 * np.swapaxes(raw["kind"], 0, 1), atol=1e-5)
    np.testing.assert_array_equal(with_prior["size"], plain["size"])  # It has no scale, and so no prior.
    twins = {name: tfe.PriorFunction(lambda: _prior_of(3)) for name in ("a", "b")}
    x = keras.Input((4,))
    two = tfe.Ensemble(lambda: keras.Model(x, {n: layers.Dense(3)(x) for n in "ab"}), M, prior=twins)
    drawn = two.priors(X)
    assert np.abs(drawn["a"] - drawn["b"]).max() > 0.1  # One architecture, and draws of its own for each output.


def test_noise_on_targets_is_drawn_for_each_output_by_itself():
    ids, noise = np.arange(5), tfe.GaussianNoise(0.5)
    targets = [np.zeros((5, 2), np.float32), np.zeros(5, np.float32)]
    one, two = losses.make_batches(targets, [None, None], noise, 3, ids, M, [2, 1])
    drawn = noise.target_noise(3, ids, np.arange(M), 3).numpy().swapaxes(0, 1)
    np.testing.assert_allclose(one.y, drawn[..., :2], atol=1e-6)
    np.testing.assert_allclose(two.y, drawn[..., 2], atol=1e-6)


def test_a_structure_is_split_by_names_or_in_order():
    listed, named = Structure(("a", "b"), form=list), Structure(("a", "b"), form=dict)
    assert (
        listed.split([1, 2], "x") == listed.split({"b": 2, "a": 1}, "x") == named.split({"b": 2, "a": 1}, "x") == [1, 2]
    )
    assert named.split({"b": 2}, "x", missing=True) == [None, 2]
    assert (listed.pack([1, 2]), named.pack([1, 2]), Structure().pack([1])) == ([1, 2], {"a": 1, "b": 2}, 1)
    for said, given in ((named, [1, 2]), (named, {"a": 1}), (listed, [1]), (listed, 1)):
        with pytest.raises(ValueError, match="Expected x for each"):
            said.split(given, "x")


# Positions.

TOKENS = RNG.integers(0, 5, (ROWS, 6))
TAGS = RNG.integers(0, 3, (ROWS, 6))


def _tagger():
    x = keras.Input((None,), dtype="int32")
    return keras.Model(x, layers.Dense(3)(layers.Embedding(5, 4, mask_zero=True)(x)))


def _masked_joint(said, y, counted, tau):
    """By brute force: an example is an input with all its positions that count."""
    logits = np.asarray(said, np.float64)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = np.take_along_axis(logs, y[:, None, :, None], axis=-1)[..., 0] * counted[:, None]
    return -np.log(np.exp(each.sum(-1).reshape(-1, tau, M).sum(axis=1)).mean(axis=1)).mean()


@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", pytest.param("mean_with_sample_weight", marks=pytest.mark.slow)]
)
def test_masked_sequences_with_weights_by_position(reduction):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    ensemble = tfe.Ensemble(_tagger, M)
    metrics = [tfe.metrics.JointNLL(tau=2), tfe.metrics.Accuracy(name="ours")]
    ensemble.compile(keras.optimizers.SGD(0.5), loss, metrics=metrics, run_eagerly=True)
    weights = RNG.uniform(0.1, 2.0, (ROWS, 6)).astype(np.float32)
    alone = [ensemble.member(m) for m in range(M)]
    ensemble.fit(TOKENS, TAGS, batch_size=BATCH, shuffle=False, sample_weight=weights, verbose=0)
    for model in alone:
        model.compile(keras.optimizers.SGD(0.5), loss, run_eagerly=True)
        model.fit(TOKENS, TAGS, batch_size=BATCH, shuffle=False, sample_weight=weights, verbose=0)
    said = np.asarray(ensemble(TOKENS))
    for m, model in enumerate(alone):
        np.testing.assert_allclose(said[:, m], model(TOKENS), rtol=2e-5, atol=2e-6)
    result = ensemble.evaluate(TOKENS, TAGS, batch_size=5, return_dict=True, verbose=0)
    counted = TOKENS > 0
    joint = _masked_joint(said, TAGS, counted, 2)
    assert result["joint_nll"] == pytest.approx(joint, rel=1e-5)
    assert ensemble.evaluate_joint(TOKENS, TAGS, tau=2)["joint_nll"] == pytest.approx(joint, rel=1e-5)
    hits = np.where(counted, (np.exp(said) / np.exp(said).sum(-1, keepdims=True)).mean(1).argmax(-1) == TAGS, 0.0)
    assert result["ours"] == pytest.approx((hits.sum(1) / counted.sum(1)).mean(), rel=1e-5)


def test_weights_of_examples_weigh_all_their_positions():
    """Also where Keras would take them for weights of positions, because there are as many."""
    values = RNG.normal(size=(M, 4, 4, 3)).astype(np.float32)
    y, weights = RNG.normal(size=(4, 4, 3)).astype(np.float32), RNG.uniform(size=4).astype(np.float32)
    (batch,) = losses.make_batches([y], [weights], None, 0, None, M, [0])
    for one_by_one in (False, True):
        got = losses.member_losses(losses.as_loss("mse"), batch, tf.constant(values), one_by_one)
        expected = (((values - y) ** 2).mean(-1) * weights[:, None]).mean(axis=(1, 2))
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    (batch,) = losses.make_batches([y], [np.ones((4, 4, 3))], None, 0, None, M, [0])
    with pytest.raises(ValueError, match="Expected sample weights"):
        losses.member_losses(losses.as_loss("mse"), batch, tf.constant(values))


def test_maps_of_classes_are_read_as_labels_of_an_example():
    logits = RNG.normal(size=(6, M, 2, 3, 4))
    y = RNG.integers(0, 4, (6, 2, 3))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    each = np.log(np.take_along_axis(p, y[:, None, ..., None], -1)).sum(axis=(2, 3, 4))
    joint = -np.log(np.exp(each.reshape(3, 2, M).sum(1)).mean(1)).mean()
    assert tfe.metrics.joint_nll(logits, y, tau=2) == pytest.approx(joint)
    assert tfe.metrics.accuracy(logits, y) == pytest.approx(np.mean(p.mean(1).argmax(-1) == y))
    np.testing.assert_allclose(tfe.metrics.mixture(logits), p.mean(1))
    metric = tfe.metrics.JointNLL(tau=2)
    metric.update_state(y, logits)
    assert float(metric.result()) == pytest.approx(joint, rel=1e-5)
    with pytest.raises(ValueError, match="positions"):
        tfe.acquire(logits, 2, method="bald")


def test_a_map_is_served_and_refused_where_one_row_is_asked_for(tmp_path):
    def build():
        return keras.Sequential([keras.Input((3, 3, 2)), layers.Dense(4)])

    x, y = RNG.normal(size=(4, 3, 3, 2)).astype(np.float32), RNG.integers(0, 4, (4, 3, 3))
    ensemble = tfe.Ensemble(build, M)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3)
    ensemble.compile("sgd", loss, metrics=[tfe.metrics.MarginalNLL()], run_eagerly=True)
    result = ensemble.evaluate(x, y, return_dict=True, verbose=0)
    said = np.asarray(ensemble(x))
    assert said.shape == (4, M, 3, 3, 4)
    flat, labels = said.reshape(4, M, 9, 4), y.reshape(4, 9)
    assert result["marginal_nll"] == pytest.approx(_masked_joint(flat, labels, labels != 3, 1), rel=1e-5)
    p = np.exp(said) / np.exp(said).sum(-1, keepdims=True)
    np.testing.assert_allclose(ensemble.predict_proba(x), p.mean(1), atol=1e-6)
    for call in (lambda: tfe.calibrate(ensemble, x, y), lambda: tfe.calibrate(ensemble, x, y, method="conformal")):
        with pytest.raises(ValueError, match=r"Expected outputs \[batch, members, outputs\] for tfe.calibrate"):
            call()
    with pytest.raises(ValueError, match="sample_weight by position"):
        ensemble.fit(x, y, class_weight={0: 1.0, 1: 2.0}, verbose=0)
    with pytest.raises(ValueError, match="targets for each position"):
        ensemble.fit(x, y[:, 0], verbose=0)
