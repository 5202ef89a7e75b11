"""Outputs of every kind are read as what they are, or refused."""

import keras
import numpy as np
import pytest

from tf_ensembles import metrics
from tf_ensembles.metrics import kinds
from tf_ensembles.metrics.kinds import Kind

BATCH, MEMBERS, LABELS = 23, 4, 3
RNG = np.random.default_rng(0)
LOGITS = 2.0 * RNG.normal(size=(BATCH, MEMBERS, LABELS))
CLASSES = RNG.integers(0, LABELS, BATCH)
BITS = RNG.integers(0, 2, (BATCH, LABELS))


def _sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def _softmax(z):
    return np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)


def _brute_force(p, labels, tau):
    """Joint NLL of probabilities of one, `[batch, members, labels]`, product by product."""
    totals = []
    for start in range(0, len(p) // tau * tau, tau):
        products = []
        for member in range(p.shape[1]):
            rows = p[start : start + tau, member]
            products.append(np.prod(np.where(labels[start : start + tau] == 1, rows, 1.0 - rows)))
        totals.append(-np.log(np.mean(products)))
    return np.mean(totals)


def _bernoulli_entropy(p):
    return -p * np.log(p) - (1 - p) * np.log(1 - p)


@pytest.mark.parametrize(
    ("kind", "outputs"),
    [("multilabel_logits", LOGITS), ("multilabel_probabilities", _sigmoid(LOGITS))],
    ids=["logits", "probabilities"],
)
def test_many_labels_against_products_of_bernoullis(kind, outputs):
    p = _sigmoid(LOGITS)
    mixture = p.mean(axis=1)
    assert metrics.joint_nll(outputs, BITS, tau=5, kind=kind) == pytest.approx(_brute_force(p, BITS, 5), rel=1e-12)
    assert metrics.marginal_nll(outputs, BITS, kind=kind) == pytest.approx(_brute_force(p, BITS, 1), rel=1e-12)
    # One label of two anchors: the mean over all that fill pairs.
    assert metrics.dyadic_nll(outputs, BITS, tau=1, kind=kind) == pytest.approx(_brute_force(p[:22], BITS[:22], 1))
    np.testing.assert_allclose(metrics.mixture(outputs, kind=kind), mixture, rtol=1e-12)
    split = metrics.uncertainty(outputs, kind=kind)
    np.testing.assert_allclose(split.total, _bernoulli_entropy(mixture).sum(axis=-1), rtol=1e-10)
    np.testing.assert_allclose(split.aleatoric, _bernoulli_entropy(p).sum(axis=-1).mean(axis=1), rtol=1e-10)
    assert metrics.accuracy(outputs, BITS, kind=kind) == pytest.approx(np.mean((mixture > 0.5) == BITS))
    assert metrics.brier(outputs, BITS, kind=kind) == pytest.approx(2 * np.mean((mixture - BITS) ** 2))
    # Each label is an example of two classes.
    pairs = np.stack([np.log(1 - mixture), np.log(mixture)], axis=-1).reshape(-1, 1, 2)
    assert metrics.ece(outputs, BITS, kind=kind) == pytest.approx(metrics.ece(pairs, BITS.ravel()))


def test_the_entropy_of_four_even_labels_is_four_bits():
    assert metrics.entropy(np.zeros((2, 3, 4)), kind="multilabel_logits") == pytest.approx(4 * np.log(2))


def test_one_logit_and_probabilities_equal_two_logits():
    z, bits = LOGITS[..., :1], BITS[:, 0]
    two = np.concatenate([np.zeros_like(z), z], axis=-1)
    for outputs, kind in (
        (z, None),
        (z, "binary_logits"),
        (_sigmoid(z), "probabilities"),
        (_softmax(two), "probabilities"),
    ):
        for function in (metrics.marginal_nll, metrics.joint_nll, metrics.accuracy, metrics.brier, metrics.ece):
            assert function(outputs, bits, kind=kind) == pytest.approx(function(two, bits), rel=1e-9)
        assert metrics.mutual_information(outputs, kind=kind) == pytest.approx(
            metrics.mutual_information(two), rel=1e-9
        )
    sharp = np.array([[[0.0, 1.0]], [[1.0, 0.0]]])  # Probabilities of zero have a logarithm as well.
    assert metrics.marginal_nll(sharp, [1, 0], kind="probabilities") == pytest.approx(0.0, abs=1e-12)


def test_probabilities_and_labels_that_would_be_misread_raise():
    p = _softmax(LOGITS)
    with pytest.raises(ValueError, match='rows that sum to 1: say kind="probabilities"'):
        metrics.joint_nll(p, CLASSES)
    with pytest.raises(ValueError, match='say kind="probabilities", or kind="binary_logits"'):
        metrics.marginal_nll(p[..., :1], BITS[:, 0])
    with pytest.raises(ValueError, match="Expected outputs of kind 'probabilities'"):
        metrics.joint_nll(LOGITS, CLASSES, kind="probabilities")
    with pytest.raises(ValueError, match="say kind='multilabel_logits'"):
        metrics.joint_nll(LOGITS, BITS, kind="binary_logits")
    with pytest.raises(ValueError, match="say kind='binary_logits'"):
        metrics.joint_nll(LOGITS[..., :1], BITS[:, 0], kind="logits")
    with pytest.raises(ValueError, match=r'labels.argmax\(-1\); say kind="multilabel_logits"'):
        metrics.joint_nll(LOGITS, BITS)
    with pytest.raises(ValueError, match="Expected class predictions"):
        metrics.joint_nll(LOGITS, CLASSES, kind="values")
    with pytest.raises(ValueError, match=r"Expected labels of shape \(23, 3\)"):
        metrics.joint_nll(LOGITS, CLASSES, kind="multilabel_logits")
    for unknown in ("logit", 3):
        with pytest.raises(ValueError, match="Expected kind"):
            metrics.joint_nll(LOGITS, CLASSES, kind=unknown)
    # No false alarms: logits of one row, of one-hot rows that are said to be logits, of small numbers.
    metrics.marginal_nll(p[:1, :1], CLASSES[:1])
    metrics.marginal_nll(np.eye(3)[CLASSES][:, None], CLASSES, kind="logits")
    metrics.marginal_nll(np.abs(LOGITS) * 0.1, CLASSES)


def test_what_predict_returns_knows_its_kind_until_it_is_computed_with():
    outputs = kinds.tagged(_softmax(LOGITS), Kind.PROBABILITIES)
    expected = metrics.joint_nll(_softmax(LOGITS), CLASSES, kind="probabilities")
    assert metrics.joint_nll(outputs, CLASSES) == pytest.approx(expected)
    assert metrics.joint_nll(outputs[::-1], CLASSES[::-1]) > 0
    assert outputs[:, 1:].kind is Kind.PROBABILITIES
    assert type(np.log(outputs)) is np.ndarray
    assert type(outputs.mean(axis=1)) is np.ndarray
    assert type(outputs + 1.0) is np.ndarray
    assert outputs[..., :2].kind is None  # Some of the classes are no distribution.
    plain = np.zeros(outputs.shape)
    np.add(outputs, 1.0, out=plain)
    outputs += 0.0  # In place it stays what it is.
    assert np.asarray(outputs).sum() == pytest.approx(BATCH * MEMBERS)


STREAMED = {
    "marginal_nll": (metrics.MarginalNLL, metrics.marginal_nll),
    "joint_nll": (
        lambda **k: metrics.JointNLL(tau=4, **k),
        lambda z, y, kind: metrics.joint_nll(z, y, tau=4, kind=kind),
    ),
    "dyadic_nll": (metrics.DyadicNLL, metrics.dyadic_nll),
    "accuracy": (metrics.Accuracy, metrics.accuracy),
    "brier": (metrics.Brier, metrics.brier),
    "ece": (metrics.ECE, metrics.ece),
    "entropy": (metrics.Entropy, lambda z, y, kind: metrics.entropy(z, kind=kind)),
    "aleatoric": (metrics.Aleatoric, lambda z, y, kind: metrics.aleatoric(z, kind=kind)),
    "mutual_information": (metrics.MutualInformation, lambda z, y, kind: metrics.mutual_information(z, kind=kind)),
}
OUTPUTS = {
    "multilabel_logits": (LOGITS, BITS),
    "multilabel_probabilities": (_sigmoid(LOGITS), BITS),
    "binary_logits": (LOGITS[..., :1], BITS[:, 0]),
    "probabilities": (_softmax(LOGITS), CLASSES),
}


@pytest.mark.parametrize("name", STREAMED)
def test_streaming_equals_the_functions_for_every_kind(name):
    make, function = STREAMED[name]
    for kind, (outputs, labels) in OUTPUTS.items():
        metric = make(kind=kind)
        metric = type(metric).from_config(metric.get_config())
        for start in range(0, BATCH, 7):
            metric.update_state(labels[start : start + 7], outputs[start : start + 7].astype(np.float32))
        expected = function(outputs, labels, kind=kind)
        assert float(metric.result()) == pytest.approx(expected, rel=3e-6, abs=3e-6), kind
    if name in ("marginal_nll", "accuracy", "brier"):
        weights = RNG.uniform(size=BATCH).astype(np.float32)
        metric = make(kind="multilabel_logits")
        metric.update_state(BITS, LOGITS, sample_weight=weights)
        each = [function(LOGITS[i : i + 1], BITS[i : i + 1], kind="multilabel_logits") for i in range(BATCH)]
        assert float(metric.result()) == pytest.approx(np.average(each, weights=weights), rel=1e-5)


def test_streaming_refuses_labels_of_another_shape():
    with pytest.raises(ValueError, match=r"shape \[batch, labels\]"):
        metrics.JointNLL(kind="multilabel_logits").update_state(np.zeros((2, 3, 1)), np.zeros((2, 2, 3)))
    assert keras.metrics.deserialize(keras.metrics.serialize(metrics.JointNLL())).kind is None
