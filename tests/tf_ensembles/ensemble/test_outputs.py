"""What outputs are is read from types, carried along, and the same for metrics, mixtures and exports."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles import draws
from tf_ensembles.ensemble import losses
from tf_ensembles.metrics.kinds import Kind

of = keras.losses
MEMBERS, EXAMPLES = 4, 20
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, 6)).astype(np.float32)
CLASSES = RNG.integers(0, 3, EXAMPLES)
BIT = RNG.integers(0, 2, EXAMPLES)
BITS = RNG.integers(0, 2, (EXAMPLES, 4))


def _sigmoid(z):
    return 1.0 / (1.0 + np.exp(-np.asarray(z, np.float64)))


def _softmax(z):
    z = np.asarray(z, np.float64)
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


def _ensemble(loss, columns, activation=None, metrics=None, prior=None, **kwargs):
    def build():
        initializer = keras.initializers.RandomNormal(stddev=1.5)
        dense = keras.layers.Dense(columns, activation, kernel_initializer=initializer)
        return keras.Sequential([keras.Input((6,)), dense])

    ensemble = tfe.Ensemble(build, MEMBERS, **kwargs)
    ensemble.compile("sgd", loss, metrics=metrics)
    return ensemble


@pytest.mark.parametrize(
    ("loss", "columns", "kind"),
    [
        (of.SparseCategoricalCrossentropy(from_logits=True, name="ce"), 3, "logits"),
        (of.CategoricalCrossentropy(from_logits=True), 3, "logits"),
        (functools.partial(of.categorical_crossentropy, from_logits=True), 3, "logits"),
        ("sparse_categorical_crossentropy", 3, "probabilities"),
        (of.sparse_categorical_crossentropy, 3, "probabilities"),
        (of.BinaryCrossentropy(from_logits=True, name="x"), 1, "binary_logits"),
        (of.BinaryFocalCrossentropy(from_logits=True), 4, "multilabel_logits"),
        ("binary_crossentropy", 1, "probabilities"),
        ("bce", 4, "multilabel_probabilities"),
        (of.KLDivergence(), 3, "probabilities"),
        (of.MeanSquaredError(name="sparse_categorical_crossentropy"), 3, "values"),
        (of.Huber, 1, "values"),
        (of.Dice(), 3, None),
        (lambda t, p: keras.ops.abs(t - p), 1, None),
        (type("Mine", (of.SparseCategoricalCrossentropy,), {})(from_logits=True), 3, None),
    ],
)
def test_the_kind_is_read_from_the_type_of_a_loss(loss, columns, kind):
    found = losses.kind_of(losses.as_loss(loss), columns)
    assert found == (kind and Kind(kind))


def test_what_cannot_be_known_is_asked_for_where_it_is_needed(tmp_path):
    def sparse_categorical_crossentropy(t, p):  # A name says nothing.
        return keras.ops.mean(keras.ops.square(t - p), axis=-1)

    ensemble = _ensemble(sparse_categorical_crossentropy, 3)
    assert ensemble.kind is None
    y = np.eye(3)[CLASSES]
    ensemble.fit(X, y, verbose=0)
    assert ensemble.evaluate(X, y, verbose=0) > 0
    assert ensemble.predict(X, verbose=0).kind is None
    asks = r"the loss sparse_categorical_crossentropy does not say. Give .*outputs=.* one of 'logits', .*'values'"
    for call in (
        lambda: ensemble.predict_proba(X),
        lambda: ensemble.evaluate_joint(X, CLASSES),
        lambda: tfe.export_saved_model(ensemble, tmp_path / "saved"),
        lambda: _ensemble(sparse_categorical_crossentropy, 3, metrics=["mae"]),
    ):
        with pytest.raises(ValueError, match=asks):
            call()
    with pytest.raises(ValueError, match="compile has not said"):
        tfe.Ensemble(lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)]), 2).predict_proba(X)
    told = _ensemble(sparse_categorical_crossentropy, 3, outputs="values", metrics=["mae"])
    np.testing.assert_allclose(told.predict_proba(X), told.predict(X, verbose=0).mean(axis=1), rtol=1e-6)


def test_keras_metrics_see_what_they_were_built_for():
    """The mixture's NLL, whether a metric takes logits or probabilities."""
    scce = keras.metrics.SparseCategoricalCrossentropy
    ensemble = _ensemble(
        of.SparseCategoricalCrossentropy(from_logits=True),
        3,
        metrics=[
            scce(from_logits=True, name="logits"),
            scce(name="probabilities"),
            of.SparseCategoricalCrossentropy(from_logits=True, name="loss_object"),
            tfe.metrics.MarginalNLL(),
            "accuracy",
        ],
    )
    result = ensemble.evaluate(X, CLASSES, batch_size=7, return_dict=True, verbose=0)
    mixture = _softmax(ensemble.predict(X, verbose=0)).mean(axis=1)
    nll = -np.log(mixture[np.arange(EXAMPLES), CLASSES])
    batches = [nll[i : i + 7].mean() for i in (0, 7, 14)]
    for name in ("logits", "probabilities", "marginal_nll"):
        assert result[name] == pytest.approx(nll.mean(), rel=1e-5), name
    assert result["loss_object"] == pytest.approx(np.mean(batches), rel=1e-5)  # Keras's mean of batches.
    assert result["accuracy"] == pytest.approx(np.mean(mixture.argmax(-1) == CLASSES))
    one = _ensemble(
        of.BinaryCrossentropy(from_logits=True),
        1,
        metrics=[
            keras.metrics.BinaryCrossentropy(from_logits=True, name="nll"),
            keras.metrics.BinaryAccuracy(threshold=0.0, name="of_logits"),
            keras.metrics.BinaryAccuracy(name="of_probabilities"),
            keras.metrics.Recall(thresholds=0, name="recall"),
        ],
    )
    result = one.evaluate(X, BIT[:, None], return_dict=True, verbose=0)
    p = _sigmoid(one.predict(X, verbose=0)).mean(axis=1)[:, 0]
    assert result["nll"] == pytest.approx(-np.log(np.where(BIT == 1, p, 1 - p)).mean(), rel=1e-5)
    assert result["of_logits"] == result["of_probabilities"] == pytest.approx(np.mean((p > 0.5) == BIT))
    assert result["recall"] == pytest.approx(np.mean(p[BIT == 1] > 0.5))
    with pytest.raises(ValueError, match="weighted_metrics that take the mixture's probabilities"):
        one.compile("sgd", of.BinaryCrossentropy(from_logits=True), weighted_metrics=[tfe.metrics.JointNLL()])
    with pytest.raises(ValueError, match="the ensemble tells joint_nll"):
        one.compile("sgd", of.BinaryCrossentropy(from_logits=True), metrics=[tfe.metrics.JointNLL(kind="logits")])


# The loss, columns and last activation of members, labels, and their probabilities of one: [batch, members, labels].
FIRST_CLASS = {
    "one_logit": (of.BinaryCrossentropy(from_logits=True), 1, None, BIT),
    "one_sigmoid": ("binary_crossentropy", 1, "sigmoid", BIT),
    "labels": (of.BinaryCrossentropy(from_logits=True), 4, None, BITS),
    "sigmoids": (of.BinaryCrossentropy(), 4, "sigmoid", BITS),
}


def _joint(p, labels, tau):
    """By brute force, of probabilities of one `[batch, members, labels]`."""
    labels = labels.reshape(EXAMPLES, 1, -1)
    each = np.where(labels == 1, p, 1 - p).prod(axis=-1)
    return -np.log(each.reshape(-1, tau, MEMBERS).prod(axis=1).mean(axis=1)).mean()


@pytest.mark.parametrize("name", FIRST_CLASS)
def test_one_logit_and_many_labels_are_first_class(name, tmp_path):
    loss, columns, activation, y = FIRST_CLASS[name]
    ensemble = _ensemble(loss, columns, activation, metrics=[tfe.metrics.JointNLL(tau=5), tfe.metrics.Entropy()])
    result = ensemble.evaluate(X, y, return_dict=True, verbose=0)
    raw = ensemble.predict(X, verbose=0)
    p = np.asarray(raw, np.float64) if activation else _sigmoid(raw)
    mixture = p.mean(axis=1)
    entropy = [-q * np.log(q) - (1 - q) * np.log(1 - q) for q in (mixture, p)]
    total, aleatoric = entropy[0].sum(axis=-1), entropy[1].sum(axis=-1).mean(axis=1)
    # Three ways to the same numbers: arrays from predict, the model's own, and metrics in evaluate.
    joint = _joint(p, y, 5)
    assert tfe.metrics.joint_nll(raw, y, tau=5) == pytest.approx(joint, rel=1e-5)
    assert tfe.metrics.joint_nll(np.asarray(raw), y, tau=5, kind=ensemble) == pytest.approx(joint, rel=1e-5)
    assert result["joint_nll"] == pytest.approx(joint, rel=1e-5)
    assert result["entropy"] == pytest.approx(total.mean(), rel=1e-5)
    scores = ensemble.evaluate_joint(X, y, tau=5, dyadic=True)
    assert scores["joint_nll"] == pytest.approx(joint, rel=1e-5)
    assert scores["marginal_nll"] == pytest.approx(_joint(p, y, 1), rel=1e-5)
    assert scores["dyadic_nll"] == pytest.approx(tfe.metrics.dyadic_nll(raw, y, tau=5))
    expected = np.concatenate([1 - mixture, mixture], axis=1) if columns == 1 else mixture
    np.testing.assert_allclose(ensemble.predict_proba(X), expected, atol=1e-6)
    if name in ("one_sigmoid", "labels"):
        _check_export(ensemble, raw, expected, total, aleatoric, p, tmp_path)


def _check_export(ensemble, raw, mixture, total, aleatoric, p, tmp_path):
    ensemble.export(tmp_path / "saved")
    signatures = tf.saved_model.load(str(tmp_path / "saved")).signatures
    x = tf.constant(X)
    np.testing.assert_allclose(signatures["serving_default"](inputs=x)["probabilities"], mixture, atol=1e-6)
    np.testing.assert_allclose(signatures["members"](inputs=x)["logits"], raw, atol=1e-6)
    split = signatures["uncertainty"](inputs=x)
    np.testing.assert_allclose(split["total"], total, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(split["aleatoric"], aleatoric, rtol=1e-4, atol=1e-5)
    each = np.concatenate([1 - p, p], axis=-1) if p.shape[-1] == 1 else p
    sample = signatures["sample"](inputs=x, key=tf.constant(5, tf.int64))["probabilities"]
    assert min(np.abs(sample - each[:, m]).max() for m in range(MEMBERS)) < 1e-6


@pytest.mark.slow
def test_every_signature_runs_in_tensorflow_lite(tmp_path):
    ensemble = _ensemble(of.SparseCategoricalCrossentropy(from_logits=True), 3)
    path = str(tfe.export_saved_model(ensemble, tmp_path / "saved"))
    signatures = tf.saved_model.load(path).signatures
    assert set(signatures) == {"serving_default", "members", "sample", "uncertainty"}
    for name, signature in signatures.items():
        lite = tf.lite.TFLiteConverter.from_saved_model(path, signature_keys=[name]).convert()
        given = {"inputs": X, **({"key": np.int64(-3)} if name == "sample" else {})}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The interpreter will move to a package of its own.
            got = tf.lite.Interpreter(model_content=lite).get_signature_runner(name)(**given)
        expected = signature(**{key: tf.constant(value) for key, value in given.items()})
        assert set(got) == set(expected)
        for key, value in expected.items():
            np.testing.assert_allclose(got[key], value, atol=1e-5)


def test_the_draw_of_an_exported_sample_is_that_of_draws():
    keys = [*range(-3, 20), *np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 30), 2**63 - 1, -(2**63)]
    purpose = draws.Purpose.SERVED_MEMBER
    for seed in (0, 2**40 + 3):
        expected = draws.uniform(seed, np.array(keys, np.int64), [0], purpose=purpose)[:, 0, 0]
        draw = tf.function(functools.partial(draws.portable_uniform, seed, purpose=purpose))
        np.testing.assert_array_equal([draw(tf.constant(key, tf.int64)) for key in keys], expected)


def test_softmax_members_with_a_loss_of_many_labels_are_asked_about():
    ensemble = _ensemble("binary_crossentropy", 3, "softmax")
    with pytest.raises(ValueError, match="rows that sum to 1: give outputs='probabilities'"):
        ensemble.fit(X, np.eye(3)[CLASSES], verbose=0)
    told = _ensemble("binary_crossentropy", 3, "softmax", outputs="probabilities")
    scores = told.evaluate_joint(X, np.eye(3)[CLASSES], tau=2)
    expected = tfe.metrics.joint_nll(np.log(told.predict(X, verbose=0)), CLASSES, tau=2)
    assert scores["joint_nll"] == pytest.approx(expected, rel=1e-5)
    batches = tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(6)
    assert told.evaluate_joint(batches, tau=2)["joint_nll"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("last", "loss"),
    [
        (keras.layers.Dense(3, "softmax"), of.SparseCategoricalCrossentropy(from_logits=True)),
        (keras.layers.Softmax(), of.CategoricalCrossentropy(from_logits=True)),
        (keras.layers.Dense(1, "sigmoid"), of.BinaryCrossentropy(from_logits=True)),
    ],
)
@pytest.mark.parametrize("prior", [False, True])
def test_probabilities_that_are_taken_for_logits_are_warned_about(last, loss, prior):
    def build(activation=True):
        parts = [keras.layers.Dense(3), last.from_config(last.get_config())] if activation else [keras.layers.Dense(3)]
        return keras.Sequential([keras.Input((6,)), *parts])

    def build_prior():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(build().output_shape[-1])])

    ensemble = tfe.Ensemble(build, 2, prior=tfe.PriorFunction(build_prior, 1.0) if prior else None)
    text = r"from_logits=True and a prior that is added to logits" if prior else "from_logits=True: remove"
    with pytest.warns(UserWarning, match=text):
        ensemble.compile("sgd", loss)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfe.Ensemble(lambda: build(activation=False), 2).compile("sgd", loss)
