import itertools
import math
import warnings

import keras
import numpy as np
import pytest

from tests.lazy import Lazy
from tests.needs import needs
from tf_ensembles import metrics

sklearn_metrics = Lazy("sklearn.metrics")

# All functions compute in float64: a few dozen roundings of 1e-16 stay far below this.
EXACT = {"rtol": 1e-12, "atol": 1e-12}


def make(batch=103, members=5, classes=4, scale=3.0, seed=0):
    random = np.random.default_rng(seed)
    logits = scale * random.normal(size=(batch, members, classes))
    return logits, random.integers(classes, size=batch)


def probabilities(logits):
    """Plain softmax in extended precision, one number at a time."""
    out = np.empty(logits.shape, np.longdouble)
    for index in np.ndindex(logits.shape[:2]):
        powers = [np.exp(np.longdouble(z) - np.longdouble(max(logits[index]))) for z in logits[index]]
        out[index] = np.array(powers) / sum(powers)
    return out


def brute_force_joint(p, labels, rows):
    """-log of the mean over members of the product of label probabilities, for the given examples."""
    products = [np.prod([p[row, m, labels[row]] for row in rows]) for m in range(p.shape[1])]
    return float(-np.log(sum(products) / len(products)))


@needs("sklearn")
def test_marginal_nll_equals_scikit_learn_and_keras():
    logits, labels = make()
    mixture = metrics.mixture(logits)
    np.testing.assert_allclose(mixture, probabilities(logits).mean(axis=1).astype(float), **EXACT)
    value = metrics.marginal_nll(logits, labels)
    assert isinstance(value, float)
    np.testing.assert_allclose(value, sklearn_metrics.log_loss(labels, mixture, labels=range(4)), rtol=1e-9)
    single = logits[:, :1]
    keras_value = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, single[:, 0])
    np.testing.assert_allclose(metrics.marginal_nll(single, labels), float(keras_value), rtol=1e-6)


@pytest.mark.parametrize("tau", [1, 3, 10])
def test_joint_nll_equals_brute_force_and_leaves_the_remainder_out(tau):
    logits, labels = make(batch=32)
    p = probabilities(logits)
    batches = [range(start, start + tau) for start in range(0, 32 - tau + 1, tau)]
    values = [brute_force_joint(p, labels, rows) for rows in batches]
    value, error = metrics.joint_nll(logits, labels, tau=tau, standard_error=True)
    np.testing.assert_allclose(value, np.mean(values), **EXACT)
    np.testing.assert_allclose(error, np.std(values, ddof=1) / np.sqrt(len(values)), rtol=1e-9)
    used = 32 // tau * tau
    np.testing.assert_allclose(metrics.joint_nll(logits[:used], labels[:used], tau=tau), value, **EXACT)


def test_tau_one_is_the_marginal_nll():
    logits, labels = make()
    for function in (metrics.joint_nll, metrics.dyadic_nll):
        values = function(logits[:102], labels[:102], tau=1, standard_error=True)
        np.testing.assert_allclose(values[0], metrics.marginal_nll(logits[:102], labels[:102]), **EXACT)
    both = (
        metrics.joint_nll(logits, labels, 1, standard_error=True),
        metrics.marginal_nll(logits, labels, standard_error=True),
    )
    np.testing.assert_allclose(*both, **EXACT)


@pytest.mark.parametrize(("tau", "kappa"), [(1, 2), (4, 1), (4, 2), (7, 2)])
def test_dyadic_nll_equals_the_mean_over_every_sequence_of_draws(tau, kappa):
    logits, labels = make(batch=9)
    p = probabilities(logits)
    values = []
    for start in range(0, 9 - kappa + 1, kappa):
        sequences = itertools.product(range(start, start + kappa), repeat=tau)
        values.append(np.mean([brute_force_joint(p, labels, rows) for rows in sequences]))
    value, error = metrics.dyadic_nll(logits, labels, tau=tau, kappa=kappa, standard_error=True)
    np.testing.assert_allclose(value, np.mean(values), **EXACT)
    np.testing.assert_allclose(error, np.std(values, ddof=1) / np.sqrt(len(values)), rtol=1e-9)
    assert metrics.dyadic_nll(logits, labels, tau=tau, kappa=kappa, seed=5) == value


def test_dyadic_nll_with_three_anchors_is_unbiased_over_seeds():
    logits, labels = make(batch=9, scale=1.5)
    p = probabilities(logits)
    sequences = [s for start in (0, 3, 6) for s in itertools.product(range(start, start + 3), repeat=4)]
    expected = np.mean([brute_force_joint(p, labels, rows) for rows in sequences])
    values = [metrics.dyadic_nll(logits, labels, tau=4, kappa=3, seed=seed) for seed in range(400)]
    assert abs(np.mean(values) - expected) < 5 * np.std(values) / np.sqrt(len(values))
    assert len(set(values)) > 200
    assert values[7] == metrics.dyadic_nll(logits, labels, tau=4, kappa=3, seed=7)


def test_random_anchors_are_seeded_and_agree_with_all_pairs():
    logits, labels = make(batch=15, scale=1.0)
    pairs = [
        metrics.dyadic_nll(logits[list(pair)], labels[list(pair)]) for pair in itertools.combinations(range(15), 2)
    ]
    options = {"anchors": "random", "num_batches": 50_000, "seed": 3}
    value = metrics.dyadic_nll(logits, labels, **options)
    assert value == metrics.dyadic_nll(logits, labels, **options)
    assert abs(value - np.mean(pairs)) < 5 * np.std(pairs) / np.sqrt(50_000)
    few = [metrics.dyadic_nll(logits, labels, anchors="random", seed=seed) for seed in range(4)]
    assert len(set(few)) == 4


def test_one_member_predicts_labels_independently():
    logits, labels = make(batch=100, members=1)
    marginal = metrics.marginal_nll(logits, labels)
    np.testing.assert_allclose(metrics.joint_nll(logits, labels, tau=10), 10 * marginal, **EXACT)
    np.testing.assert_allclose(metrics.dyadic_nll(logits, labels, tau=7), 7 * marginal, **EXACT)


@pytest.mark.parametrize("classes", [2, 10])
def test_uniform_logits_give_tau_log_classes(classes):
    logits, labels = np.full((60, 7, classes), -3.0), make(batch=60, classes=classes)[1]
    assert metrics.marginal_nll(logits, labels) == pytest.approx(math.log(classes), rel=1e-12)
    for options in ({"kappa": 1}, {"kappa": 2}, {"kappa": 5}, {"anchors": "random"}):
        assert metrics.dyadic_nll(logits, labels, **options) == pytest.approx(10 * math.log(classes), rel=1e-12)
    value, error = metrics.joint_nll(logits, labels, tau=20, standard_error=True)
    assert value == pytest.approx(20 * math.log(classes), rel=1e-12)
    assert error == pytest.approx(0.0, abs=1e-12)
    assert metrics.entropy(logits) == pytest.approx(math.log(classes), rel=1e-12)
    assert metrics.mutual_information(logits) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_of_ten_thousand_have_exact_scores(dtype):
    # Two members sure of opposite classes, at a log-odds of 2e4: each label costs one of them 2e4 nats.
    logits = np.tile(np.array([[1e4, -1e4], [-1e4, 1e4]], dtype), (4, 1, 1))
    labels = np.array([0, 0, 0, 1])
    assert metrics.marginal_nll(logits, labels) == pytest.approx(math.log(2), rel=1e-12)
    # First pair: the first member is right twice. Second pair: each member is wrong once, and both pay 2e4.
    assert metrics.joint_nll(logits, labels, tau=2) == pytest.approx((math.log(2) + 2e4) / 2, rel=1e-12)
    # Counts 2-0 and 0-2 (probability 1/4 each) cost log 2, a count of 1-1 costs 2e4.
    second = 0.5 * math.log(2) + 0.5 * 2e4
    assert metrics.dyadic_nll(logits, labels, tau=2) == pytest.approx((math.log(2) + second) / 2, rel=1e-12)
    assert metrics.entropy(logits) == pytest.approx(math.log(2), rel=1e-12)
    assert metrics.aleatoric(logits) == 0.0
    assert metrics.mutual_information(logits) == pytest.approx(math.log(2), rel=1e-12)
    assert metrics.brier(logits, labels) == pytest.approx(0.5, rel=1e-12)
    assert metrics.marginal_nll(logits[:, :1], labels) == pytest.approx(2e4 / 4, rel=1e-12)


@needs("sklearn")
def test_accuracy_and_brier_equal_scikit_learn():
    logits, labels = make(batch=200, scale=1.0)
    mixture = probabilities(logits).mean(axis=1).astype(float)
    assert metrics.accuracy(logits, labels) == sklearn_metrics.accuracy_score(labels, mixture.argmax(axis=1))
    by_hand = np.mean([sum((row[k] - (k == y)) ** 2 for k in range(4)) for row, y in zip(mixture, labels, strict=True)])
    assert metrics.brier(logits, labels) == pytest.approx(by_hand, rel=1e-12)
    logits, labels = make(batch=200, classes=2, scale=1.0)
    binary = sklearn_metrics.brier_score_loss(labels, metrics.mixture(logits)[:, 1])
    assert metrics.brier(logits, labels) == pytest.approx(2 * binary, rel=1e-12)


@pytest.mark.parametrize("num_bins", [1, 7, 15])
def test_ece_equals_a_loop_over_bins(num_bins):
    logits, labels = make(batch=500, scale=2.0)
    mixture = probabilities(logits).mean(axis=1).astype(float)
    expected = 0.0
    for b in range(num_bins):
        inside = [i for i in range(500) if b / num_bins < mixture[i].max() <= (b + 1) / num_bins]
        if inside:
            hits = np.mean([mixture[i].argmax() == labels[i] for i in inside])
            expected += len(inside) / 500 * abs(hits - np.mean([mixture[i].max() for i in inside]))
    assert metrics.ece(logits, labels, num_bins=num_bins) == pytest.approx(expected, rel=1e-10)


def test_ece_puts_an_edge_into_the_bin_below():
    # Confidences 0.5 (right) and 0.6 (wrong): one bin of two would mix them, apart they cost 0.5 and 0.6.
    logits = np.log([[[0.5, 0.5]], [[0.6, 0.4]]])
    assert metrics.ece(logits, [0, 1], num_bins=2) == pytest.approx((0.5 + 0.6) / 2, rel=1e-12)
    assert metrics.ece(logits, [0, 1], num_bins=1) == pytest.approx(0.1 / 2, rel=1e-12)


def test_uncertainty_splits_the_entropy():
    logits, _ = make()
    p = probabilities(logits)
    total = -np.sum(p.mean(axis=1) * np.log(p.mean(axis=1)), axis=-1)
    members = -np.mean(np.sum(p * np.log(p), axis=-1), axis=1)
    # The epistemic part by its own definition: how far members are from the mixture, on average.
    divergence = np.mean(np.sum(p * np.log(p / p.mean(axis=1, keepdims=True)), axis=-1), axis=1)
    split = metrics.uncertainty(logits)
    for value, expected in zip(split, (total, members, divergence), strict=True):
        assert value.shape == (103,)
        np.testing.assert_allclose(value, expected.astype(float), **EXACT)
    means = (metrics.entropy(logits), metrics.aleatoric(logits), metrics.mutual_information(logits))
    np.testing.assert_allclose(means, [part.mean() for part in split], **EXACT)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (metrics.marginal_nll, {}),
        (metrics.joint_nll, {"tau": 5}),
        (metrics.dyadic_nll, {"tau": 5}),
        (metrics.dyadic_nll, {"tau": 5, "kappa": 3}),
        (metrics.dyadic_nll, {"tau": 5, "anchors": "random"}),
        (metrics.dyadic_nll, {"tau": 5, "anchors": "random", "num_batches": 400}),
    ],
)
def test_standard_errors_are_the_spread_over_data_sets(function, options):
    repeats, results = 500, []
    for seed in range(repeats):
        logits, labels = make(batch=120, members=3, classes=3, scale=1.5, seed=seed)
        results.append(function(logits, labels, **options, standard_error=True))
    values, errors = np.array(results).T
    # The standard deviation of n normal values has a relative error of 1 / sqrt(2 n); 6 sigma leave room for tails.
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(np.std(values, ddof=1), rel=6 / math.sqrt(2 * repeats))


def test_a_single_group_has_no_standard_error():
    logits, labels = make(batch=10)
    assert math.isnan(metrics.joint_nll(logits, labels, standard_error=True)[1])
    assert math.isnan(metrics.dyadic_nll(logits, labels, kappa=10, standard_error=True)[1])


def test_sorted_labels_are_warned_about_unless_anchors_are_random():
    logits, labels = make(batch=120)
    for function in (metrics.joint_nll, metrics.dyadic_nll):
        with pytest.warns(UserWarning, match="sorted"):
            function(logits, np.sort(labels))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.dyadic_nll(logits, np.sort(labels), anchors="random")
        metrics.joint_nll(logits, labels)


def test_slices_do_not_change_the_values(monkeypatch):
    logits, labels = make()
    functions = (metrics.joint_nll, metrics.dyadic_nll, metrics.brier, lambda z, _: metrics.mutual_information(z))
    whole = [function(logits, labels) for function in functions]
    whole.append(metrics.dyadic_nll(logits, labels, kappa=3))
    monkeypatch.setattr("tf_ensembles.metrics.likelihood.SLICE_ELEMENTS", 70)
    sliced = [function(logits, labels) for function in functions]
    sliced.append(metrics.dyadic_nll(logits, labels, kappa=3))
    np.testing.assert_allclose(sliced, whole, **EXACT)


def test_integral_float_and_boolean_labels_are_classes():
    logits, labels = make(classes=2)
    expected = metrics.marginal_nll(logits, labels)
    assert metrics.marginal_nll(logits, labels.astype(np.float32)) == expected
    assert metrics.marginal_nll(logits, labels.astype(bool)) == expected
    assert metrics.marginal_nll(logits.tolist(), labels.tolist()) == expected


@pytest.mark.parametrize(
    "function", [metrics.marginal_nll, metrics.dyadic_nll, metrics.accuracy, metrics.brier, metrics.ece]
)
@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((4, 3)), np.zeros(4, int), r"\[batch, members, classes\].*Received: \(4, 3\)"),
        (np.zeros((0, 2, 3)), np.zeros(0, int), r"non-empty.*Received: \(0, 2, 3\)"),
        (np.zeros((4, 0, 3)), np.zeros(4, int), "non-empty"),
        (np.zeros((4, 2, 3)), np.zeros(5, int), r"shape \[4\].*Received: \(5,\)"),
        (np.zeros((4, 2, 3)), np.zeros((4, 1), int), r"Received: \(4, 1\)"),
        (np.zeros((4, 2, 3)), np.array([0, 1, 3, 0]), r"\[0, 3\)\. Received: 0 to 3"),
        (np.zeros((4, 2, 3)), np.array([0, -1, 1, 0]), r"\[0, 3\)\. Received: -1 to 1"),
        (np.zeros((4, 2, 3)), np.array([0, 1.5, 1, 0]), r"integer labels\. Received: 1\.5"),
        (np.zeros((4, 2, 3)), np.array([0, np.nan, 1, 0]), r"integer labels\. Received: nan"),
        (np.zeros((4, 2, 3)), np.array(list("abcd")), "integer labels"),
        (np.full((4, 2, 3), np.nan), np.zeros(4, int), "finite logits. Received: NaN"),
        (np.full((4, 2, 3), np.inf), np.zeros(4, int), "finite logits"),
        (np.zeros((4, 2, 3), complex), np.zeros(4, int), "real dtype"),
    ],
)
def test_bad_arrays_are_refused(function, logits, labels, message):
    with pytest.raises(ValueError, match=message):
        function(logits, labels)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z, y: metrics.joint_nll(z, y, tau=0), "tau >= 1, an integer. Received: 0"),
        (lambda z, y: metrics.joint_nll(z, y, tau=2.5), "tau >= 1, an integer"),
        (lambda z, y: metrics.joint_nll(z, y, tau=13), "at least tau=13 examples. Received: 12"),
        (lambda z, y: metrics.dyadic_nll(z, y, tau=0), "tau >= 1"),
        (lambda z, y: metrics.dyadic_nll(z, y, kappa=0), "kappa >= 1"),
        (lambda z, y: metrics.dyadic_nll(z, y, kappa=13), "at least kappa=13 examples"),
        (lambda z, y: metrics.dyadic_nll(z, y, seed=-1), "seed >= 0"),
        (
            lambda z, y: metrics.dyadic_nll(z, y, anchors="Random"),
            "anchors in .*'consecutive', 'random'.*Received: 'Random'",
        ),
        (lambda z, y: metrics.dyadic_nll(z, y, num_batches=5), "num_batches=None with consecutive"),
        (lambda z, y: metrics.dyadic_nll(z, y, anchors="random", num_batches=0), "num_batches >= 1"),
        (lambda z, y: metrics.ece(z, y, num_bins=0), "num_bins >= 1"),
    ],
)
def test_bad_options_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(*make(batch=12))
