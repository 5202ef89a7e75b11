"""What to label next: joint entropies against sums over all labelings, picks against exhaustive search."""

import itertools

import numpy as np
import pytest

import tf_ensembles as tfe
from tf_ensembles.decisions import acquisition

RNG = np.random.default_rng(0)
LOGITS = 2.0 * RNG.normal(size=(8, 5, 3))  # [pool, members, classes]


def _probabilities(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _information(logits):
    """I(y_1..y_k; m) by a sum over all labelings, in float64."""
    probabilities, entropy = _probabilities(logits), 0.0
    for labels in itertools.product(range(logits.shape[2]), repeat=len(logits)):
        joint = np.mean(np.prod([probabilities[i, :, label] for i, label in enumerate(labels)], axis=0))
        entropy -= joint * np.log(joint)
    return entropy + np.sum(probabilities * np.log(probabilities)) / logits.shape[1]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_joint_information_is_the_sum_over_all_labelings(size):
    # float32 probabilities: 2^-24 of relative error each, in a sum of at most size * log(3).
    assert tfe.joint_information(LOGITS[:size]) == pytest.approx(_information(LOGITS[:size]), abs=1e-6)


def test_drawn_labelings_agree_with_all(monkeypatch):
    monkeypatch.setattr(acquisition, "_EXACT_LABELINGS", 9)
    values = [tfe.joint_information(LOGITS[:5], num_samples=500, seed=seed) for seed in range(20)]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert error < 0.01
    assert abs(np.mean(values) - _information(LOGITS[:5])) < 4 * error


def test_joint_information_knows_that_copies_tell_nothing_new():
    certain = np.where(np.eye(2)[[0, 1, 0, 1]] > 0, 50.0, -50.0)[None]  # two opinions of two members each
    assert tfe.joint_information(certain) == pytest.approx(np.log(2), abs=1e-6)
    assert tfe.joint_information(np.repeat(certain, 3, axis=0)) == pytest.approx(np.log(2), abs=1e-6)


def _greedy(logits, num):
    chosen = []
    for _ in range(num):
        gains = [-np.inf if i in chosen else _information(logits[[*chosen, i]]) for i in range(len(logits))]
        chosen.append(int(np.argmax(gains)))
    return chosen


@pytest.mark.parametrize("seed", range(3))
def test_batchbald_picks_what_a_search_over_all_candidates_picks(seed):
    logits = 2.0 * np.random.default_rng(seed).normal(size=(8, 5, 3))
    assert tfe.acquire(logits, 4).tolist() == _greedy(logits, 4)


def test_batchbald_skips_only_candidates_that_cannot_win(monkeypatch):
    logits = RNG.normal(size=(300, 6, 3)) * RNG.gamma(1.0, 2.0, size=(300, 1, 1))
    lazy = tfe.acquire(logits, 6)
    monkeypatch.setattr(acquisition._Labelings, "is_exact", False)  # Bounds stay those of the single examples.
    np.testing.assert_array_equal(tfe.acquire(logits, 6), lazy)


def test_batchbald_is_near_the_best_of_all_batches():
    best = max(_information(LOGITS[list(batch)]) for batch in itertools.combinations(range(8), 3))
    # Greedy choices of a submodular function reach 1 - 1/e of the best; here much more.
    assert _information(LOGITS[tfe.acquire(LOGITS, 3)]) > 0.95 * best


def test_a_batch_does_not_ask_one_question_twice():
    twins = np.concatenate([LOGITS, LOGITS])
    batch = tfe.acquire(twins, 3, "batchbald")
    assert len({index % 8 for index in batch}) == 3
    bald = tfe.acquire(twins, 2, "bald")
    assert bald[0] % 8 == bald[1] % 8


def test_drawn_picks_go_on_beyond_the_exact_ones(monkeypatch):
    monkeypatch.setattr(acquisition, "_EXACT_LABELINGS", 9)
    picks = tfe.acquire(LOGITS, 8, num_samples=5000)
    assert sorted(picks) == list(range(8))
    assert picks[:3].tolist() == _greedy(LOGITS, 3)


def test_single_scores():
    probabilities = _probabilities(LOGITS)
    mean = probabilities.mean(axis=1)
    entropy = -np.sum(mean * np.log(mean), axis=-1)
    members = -np.sum(probabilities * np.log(probabilities), axis=-1).mean(axis=1)
    top = np.sort(mean, axis=-1)
    for method, score in [
        ("entropy", entropy),
        ("bald", entropy - members),
        ("margin", top[:, -2] - top[:, -1]),
    ]:
        assert tfe.acquire(LOGITS, 8, method).tolist() == np.argsort(-score).tolist()
    assert sorted(tfe.acquire(LOGITS, 8, "random", seed=1)) == list(range(8))
    assert tfe.acquire(LOGITS, 8, "random", seed=1).tolist() != tfe.acquire(LOGITS, 8, "random", seed=2).tolist()


def test_power_bald_draws_in_proportion_to_the_scores():
    score = tfe.metrics.uncertainty(LOGITS).epistemic
    first = [tfe.acquire(LOGITS, 1, "powerbald", seed=seed)[0] for seed in range(2000)]
    expected = score / score.sum()
    error = np.sqrt(expected * (1 - expected) / 2000)
    assert np.all(np.abs(np.bincount(first, minlength=8) / 2000 - expected) < 4 * error)


def test_epig_is_the_mean_information_about_targets():
    target = 2.0 * RNG.normal(size=(4, 5, 3))
    scores = []
    for row in LOGITS:
        alone = [_information(part[None]) for part in (row, *target)]
        both = [_information(np.stack([row, other])) for other in target]
        # I(y; y*) = H(y) + H(y*) - H(y, y*), and the members' entropies cancel.
        scores.append(np.mean([alone[0] + own - joint for own, joint in zip(alone[1:], both, strict=True)]))
    picks = tfe.acquire(LOGITS, 8, "epig", logits_target=target)
    assert picks.tolist() == np.argsort(-np.array(scores)).tolist()


def test_coreset_covers():
    features = np.array([[0.0], [0.1], [5.0], [9.0], [5.1], [2.0], [2.1], [9.1]])
    picks = tfe.acquire(LOGITS, 3, "coreset", features=features, features_labeled=[[0.0]])
    assert picks.tolist() == [7, 2, 6]  # farthest from 0 is 9.1; from both 5, at 4.1 from 9.1; from these 2.1
    assert tfe.acquire(LOGITS, 1, "coreset", features=features).tolist() == [2]  # nearest to their mean, 4.05


def test_other_kinds_of_outputs_are_read():
    logit = RNG.normal(size=(6, 4, 1))
    both = np.concatenate([np.zeros_like(logit), logit], axis=-1)
    probabilities = _probabilities(both)
    picks = tfe.acquire(both, 3)
    np.testing.assert_array_equal(tfe.acquire(logit, 3, kind="binary_logits"), picks)
    np.testing.assert_array_equal(tfe.acquire(probabilities, 3, kind="probabilities"), picks)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"Expected method in .*batchbald.*Received: 'best'"):
        tfe.acquire(LOGITS, 1, "best")
    with pytest.raises(ValueError, match=r"Expected num <= 8, the size of the pool. Received: 9"):
        tfe.acquire(LOGITS, 9)
    with pytest.raises(ValueError, match="Expected logits_target"):
        tfe.acquire(LOGITS, 1, "epig")
    with pytest.raises(ValueError, match=r"Expected features \[pool, features\]"):
        tfe.acquire(LOGITS, 1, "coreset")
    with pytest.raises(ValueError, match=r"Expected features \[8, features\]"):
        tfe.acquire(LOGITS, 1, "coreset", features=np.zeros((7, 2)))
    with pytest.raises(ValueError, match="Received: rows that sum to 1"):
        tfe.acquire(_probabilities(LOGITS), 1)
    with pytest.raises(ValueError, match="Expected one label per example"):
        tfe.acquire(LOGITS, 1, kind="multilabel_logits")
