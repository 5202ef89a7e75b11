"""Sets and intervals: thresholds and scores by hand, and coverage over many splits against its exact value."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.tf_ensembles.decisions.fixed import Fixed
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import heads

RNG = np.random.default_rng(0)
M, CLASSES, CALIBRATED, TESTED, SPLITS, LEVEL = 2, 5, 49, 100, 100, 0.9


def _softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _classes(num, random):
    """Members that know something, and labels that they only partly predict."""
    truth = 1.5 * random.normal(size=(num, CLASSES))
    labels = np.array([random.choice(CLASSES, p=row) for row in _softmax(truth)])
    return (truth[:, None] + random.normal(size=(num, M, CLASSES))).astype("float32"), labels


def _values(num, random):
    """Members' means and raw scales, and targets whose noise they underestimate."""
    mean, std = random.normal(size=(num, M, 1)), random.uniform(0.2, 1.0, size=(num, 1, 1)) * np.ones((1, M, 1))
    outputs = np.concatenate([mean, np.log(np.expm1(std - 1e-3))], axis=-1).astype("float32")
    return outputs, mean.mean(axis=1) + 2.0 * std[:, 0] * random.normal(size=(num, 1))


def _check_coverage(covered):
    """The mean over splits of the fraction covered is k / (n + 1), within four of its standard errors."""
    rank = math.ceil((CALIBRATED + 1) * LEVEL)
    error = np.std(covered, ddof=1) / np.sqrt(SPLITS)
    assert abs(np.mean(covered) - rank / (CALIBRATED + 1)) < 4 * error
    assert error < 0.01  # so that a level of 0.86 or 0.94 would not pass


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_sets_cover_exactly_as_often_as_promised(score):
    covered, random = [], np.random.default_rng(1)
    for split in range(SPLITS):
        outputs, labels = _classes(CALIBRATED + TESTED, random)
        options = dict(method="conformal", level=LEVEL, score=score, seed=split)
        conformal = tfe.calibrate(Fixed(M), outputs[:CALIBRATED], labels[:CALIBRATED], **options)
        sets = conformal.predict_set(outputs[CALIBRATED:])
        covered.append(sets[np.arange(TESTED), labels[CALIBRATED:]].mean())
    _check_coverage(covered)


@pytest.mark.parametrize("score", ["absolute", "normalized", "quantiles"])
def test_intervals_cover_exactly_as_often_as_promised(score):
    covered, random = [], np.random.default_rng(2)
    # Quantiles of members that predict these; those of a mixture take a search, which the test of signatures has.
    quantiles = score == "quantiles"
    model = Fixed(M, Kind.QUANTILES, heads.Quantiles()) if quantiles else Fixed(M, Kind.GAUSSIAN, heads.Gaussian())
    for _ in range(SPLITS):
        outputs, y = _values(CALIBRATED + TESTED, random)
        outputs = outputs[..., :1] + np.array([-0.5, 0.0, 0.7], "float32") if quantiles else outputs
        options = dict(method="conformal", level=LEVEL, score=score)
        conformal = tfe.calibrate(model, outputs[:CALIBRATED], y[:CALIBRATED], **options)
        low, high = conformal.predict_interval(outputs[CALIBRATED:])
        covered.append(((low <= y[CALIBRATED:]) & (y[CALIBRATED:] <= high)).mean())
    _check_coverage(covered)


def test_scores_and_thresholds_are_those_of_the_definition():
    outputs, labels = _classes(60, RNG)
    probabilities = _softmax(outputs).mean(axis=1)
    rank = math.ceil(61 * 0.8)
    lac = tfe.calibrate(Fixed(M), outputs, labels, method="conformal", level=0.8)
    expected = np.sort(1 - probabilities[np.arange(60), labels])[rank - 1]
    np.testing.assert_allclose(lac.thresholds, [expected], atol=1e-6)
    np.testing.assert_array_equal(lac.predict_set(outputs), 1 - probabilities <= np.float32(expected) + 1e-7)
    plain = tfe.calibrate(
        Fixed(M),
        outputs,
        labels,
        method="conformal",
        level=0.8,
        score="raps",
        randomized=False,
        regularization=(0.1, 2),
    )
    scores = np.zeros_like(probabilities)
    for row, own in enumerate(probabilities):
        for label in range(CLASSES):
            above = own > own[label]
            scores[row, label] = own[above].sum() + own[label] + 0.1 * max(0, above.sum() + 1 - 2)
    expected = np.sort(scores[np.arange(60), labels])[rank - 1]
    np.testing.assert_allclose(plain.thresholds, [expected], atol=1e-6)
    np.testing.assert_array_equal(plain.predict_set(outputs), scores <= expected + 1e-6)


def test_classes_and_groups_keep_the_promise_by_themselves():
    outputs, labels = _classes(4000, RNG)
    by_class = tfe.calibrate(Fixed(M), outputs[:2000], labels[:2000], method="conformal", by="class")
    sets = by_class.predict_set(outputs[2000:])
    for label in range(CLASSES):
        rows = labels[2000:] == label
        # 1,000 or so of each: binomial error of both halves.
        assert abs(sets[rows, label].mean() - 0.9) < 4 * math.sqrt(2 * 0.09 / rows.sum())
    groups = np.where(outputs[:, 0, 0] > 0, "yes", "no")
    by_group = tfe.calibrate(
        Fixed(M), outputs[:2000], labels[:2000], method="conformal", by="group", groups=groups[:2000]
    )
    sets = by_group.predict_set(outputs[2000:], groups=groups[2000:])
    for name in ("yes", "no"):
        rows = groups[2000:] == name
        assert abs(sets[rows, labels[2000:][rows]].mean() - 0.9) < 4 * math.sqrt(2 * 0.09 / rows.sum())
    with pytest.raises(ValueError, match=r"Expected groups in \['no', 'yes'\]. Received: .*maybe"):
        by_group.predict_set(outputs[:1], groups=["maybe"])


def test_randomized_sets_are_drawn_anew_for_another_key_only():
    outputs, labels = _classes(300, RNG)
    conformal = tfe.calibrate(Fixed(M), outputs, labels, method="conformal", score="aps")
    first = conformal.predict_set(outputs, key=3)
    np.testing.assert_array_equal(conformal.predict_set(outputs, key=3), first)
    assert (conformal.predict_set(outputs, key=4) != first).any()


def _build(columns):
    return lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(columns)])


@pytest.mark.parametrize("task", ["classes", "values"])
def test_it_saves_loads_and_the_signature_gives_the_same_sets(task, tmp_path):
    x = RNG.normal(size=(80, 3)).astype("float32")
    groups = np.arange(80) % 2 + 5
    if task == "classes":
        model = tfe.Ensemble(_build(4), 3)
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        y, score = RNG.integers(0, 4, 80), "raps"
    else:
        model = tfe.Ensemble(_build(2), 3)
        model.compile("sgd", tfe.losses.GaussianNLL())
        y, score = x[:, :1], "quantiles"
    options = dict(method="conformal", level=0.8, score=score, by="group", groups=groups)
    conformal = tfe.calibrate(tfe.calibrate(model, x, y), x, y, **options)  # calibrated first
    conformal.save(tmp_path / "conformal.keras")
    loaded = keras.saving.load_model(tmp_path / "conformal.keras")
    tfe.export_saved_model(conformal, tmp_path / "saved")
    signatures = tf.saved_model.load(tmp_path / "saved").signatures
    given = {"inputs": tf.constant(x), "group": tf.constant(groups - 5, tf.int64)}
    if task == "classes":
        expected = conformal.predict_set(x, groups=groups, key=7)
        np.testing.assert_array_equal(loaded.predict_set(x, groups=groups, key=7), expected)
        served = signatures["set"](**given, key=tf.constant(7, tf.int64))["set"]
        np.testing.assert_array_equal(served, expected)
    else:
        expected = conformal.predict_interval(x, groups=groups)
        served = signatures["interval"](**given)
        for one, other, name in zip(
            expected, loaded.predict_interval(x, groups=groups), ("lower", "upper"), strict=True
        ):
            np.testing.assert_array_equal(other, one)
            np.testing.assert_allclose(served[name], one, rtol=1e-5)
    assert {"serving_default", "members", "sample", "uncertainty"} <= set(signatures)


def test_bad_input_is_named():
    outputs, labels = _classes(20, RNG)
    with pytest.raises(ValueError, match=r"Expected at least 19 calibration examples for level=0.95. Received: 18"):
        tfe.calibrate(Fixed(M), outputs[:18], labels[:18], method="conformal", level=0.95)
    tfe.calibrate(Fixed(M), outputs[:19], labels[:19], method="conformal", level=0.95)
    with pytest.raises(ValueError, match=r"Expected at least 9 calibration examples of class \d for level=0.9"):
        tfe.calibrate(Fixed(M), outputs, labels, method="conformal", by="class")
    with pytest.raises(ValueError, match=r"Expected level in \(0, 1\). Received: 1.0"):
        tfe.calibrate(Fixed(M), outputs, labels, method="conformal", level=1.0)
    with pytest.raises(ValueError, match=r"Expected score in \['lac', 'aps', 'raps'\]"):
        tfe.calibrate(Fixed(M), outputs, labels, method="conformal", score="absolute")
    with pytest.raises(ValueError, match=r"Expected regularization's penalty in \[0, 1e\+30\]"):
        tfe.calibrate(Fixed(M), outputs, labels, method="conformal", score="raps", regularization=(-1.0, 2))
    conformal = tfe.calibrate(Fixed(M), outputs, labels, method="conformal")
    with pytest.raises(ValueError, match="Expected predict_set for classes"):
        conformal.predict_interval(outputs)
    with pytest.raises(ValueError, match=r"Expected a key in \[0, 2\*\*63\). Received: -1"):
        conformal.predict_set(outputs, key=-1)
    with pytest.raises(ValueError, match="Expected groups with by='group', and only then"):
        tfe.calibrate(Fixed(M), outputs, labels, method="conformal", by="group")
