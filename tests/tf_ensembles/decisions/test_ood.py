"""Out-of-distribution scores against their formulas, and on inputs that are known to be out of distribution."""

import numpy as np
import pytest

import tf_ensembles as tfe

RNG = np.random.default_rng(0)
LOGITS = 2.0 * RNG.normal(size=(12, 5, 3))


def _softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def test_scores_are_their_formulas():
    probabilities = _softmax(LOGITS)
    mean = probabilities.mean(axis=1)
    entropy = -np.sum(mean * np.log(mean), axis=-1)
    members = -np.sum(probabilities * np.log(probabilities), axis=-1).mean(axis=1)
    for method, expected in [
        ("max_probability", 1 - mean.max(axis=-1)),
        ("entropy", entropy),
        ("mutual_information", entropy - members),
        ("variance", probabilities.var(axis=1).sum(axis=-1)),
    ]:
        np.testing.assert_allclose(tfe.ood_score(LOGITS, method), expected, atol=1e-12)
    np.testing.assert_allclose(tfe.ood_score(LOGITS, "variance", kind="values"), LOGITS.var(axis=1).sum(axis=-1))
    several = tfe.ood_score(LOGITS, "max_probability", kind="multilabel_logits")
    sigmoid = (1 / (1 + np.exp(-LOGITS))).mean(axis=1)
    np.testing.assert_allclose(several, 1 - np.maximum(sigmoid, 1 - sigmoid).prod(axis=-1), atol=1e-12)


def test_batches_have_their_joint_scores():
    scores = tfe.batch_ood_score(LOGITS, 5)
    expected = [tfe.joint_information(LOGITS[:5]) / 5, tfe.joint_information(LOGITS[5:10]) / 5]
    np.testing.assert_allclose(scores, expected, atol=1e-12)
    labels = _softmax(LOGITS).mean(axis=1).argmax(axis=-1)
    likelihood = _softmax(LOGITS)[np.arange(12), :, labels]
    joint = [-np.log(likelihood[rows].prod(axis=0).mean()) / 6 for rows in (slice(0, 6), slice(6, 12))]
    np.testing.assert_allclose(tfe.batch_ood_score(LOGITS, 6, "joint_surprise"), joint, atol=1e-12)


def test_a_batch_tells_dependence_from_noise_where_single_inputs_cannot():
    """Members that disagree as one, and members that disagree by chance, have the same single predictions."""
    opinions = np.array([[3.0, -3.0], [-3.0, 3.0]])
    together = np.repeat(opinions[None], 8, axis=0)
    apart = opinions[RNG.integers(0, 2, (8, 1)) ^ np.arange(2)[None]]
    np.testing.assert_allclose(tfe.ood_score(together), tfe.ood_score(apart), atol=1e-12)
    informed = 2.0 * RNG.normal(size=(8, 64, 2))  # many members, each with a mind of its own on each input
    assert tfe.batch_ood_score(informed, 8)[0] > 3 * tfe.batch_ood_score(together, 8)[0]


def test_mahalanobis_is_the_distance_to_the_nearest_class():
    known, labels = RNG.normal(size=(60, 3)) @ RNG.normal(size=(3, 3)), np.repeat([4, 7, 9], 20)
    known += labels[:, None]
    new = RNG.normal(size=(5, 3)) + 5
    means = [known[labels == label].mean(axis=0) for label in (4, 7, 9)]
    centered = known - np.repeat(means, 20, axis=0)
    inverse = np.linalg.inv(centered.T @ centered / 60)
    expected = [min((row - mean) @ inverse @ (row - mean) for mean in means) for row in new]
    np.testing.assert_allclose(tfe.mahalanobis_score(new, known, labels), expected, rtol=1e-3)
    flat = np.concatenate([known, np.zeros((60, 1))], axis=1)  # a feature that never moves
    moved = np.concatenate([new, np.ones((5, 1))], axis=1)
    assert tfe.metrics.auroc(tfe.mahalanobis_score(flat, flat, labels), tfe.mahalanobis_score(moved, flat, labels)) == 1


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"Expected method in \['max_probability'"):
        tfe.ood_score(LOGITS, "energy")
    with pytest.raises(ValueError, match="Expected method='variance' for a regression"):
        tfe.ood_score(LOGITS, "entropy", kind="values")
    with pytest.raises(ValueError, match=r"Expected at least size=13 inputs. Received: 12"):
        tfe.batch_ood_score(LOGITS, 13)
    with pytest.raises(ValueError, match=r"Expected features \[batch, features\]"):
        tfe.mahalanobis_score(np.zeros((2, 3)), np.zeros((2, 4)), [0, 1])
    with pytest.raises(ValueError, match="Expected finite features"):
        tfe.mahalanobis_score(np.full((2, 3), np.nan), np.zeros((2, 3)), [0, 1])
