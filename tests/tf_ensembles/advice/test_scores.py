"""Scores against the metrics and brute force, their errors against repetition, and the rule that chooses."""

import dataclasses
import math

import numpy as np
import pytest

import tf_ensembles as tfe
from tf_ensembles.advice import scores as advisor_scores
from tf_ensembles.advice.comparison import compare
from tf_ensembles.advice.scores import DYADIC, JOINT, Choice

TAU = 10


def random_logits(seed, examples=200, members=6, classes=3, spread=1.5):
    """Members that share most of what they say about an example."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(examples, 1, classes)) + spread * rng.normal(size=(examples, members, classes))
    return logits, rng.integers(0, classes, examples)


# Scores.


def test_whole_ensemble_scores_equal_the_metrics():
    logits, labels = random_logits(0)
    likelihood = tfe.metrics.member_log_likelihood(logits, labels)
    values, _ = advisor_scores.score_members(likelihood, (6,), TAU)
    np.testing.assert_allclose(values[JOINT, 0].mean(), tfe.metrics.joint_nll(logits, labels, TAU), rtol=1e-12)
    np.testing.assert_allclose(values[DYADIC, 0].mean(), tfe.metrics.dyadic_nll(logits, labels, TAU), rtol=1e-12)


def test_smaller_sizes_are_means_over_disjoint_parts():
    logits, labels = random_logits(1, members=7)
    likelihood = tfe.metrics.member_log_likelihood(logits, labels)
    values, _ = advisor_scores.score_members(likelihood, (1, 3, 7), TAU)
    for row, size in enumerate((1, 3, 7)):
        parts = [logits[:, start : start + size] for start in range(0, 7 // size * size, size)]
        for metric, function in ((JOINT, tfe.metrics.joint_nll), (DYADIC, tfe.metrics.dyadic_nll)):
            expected = np.mean([function(part, labels, TAU) for part in parts])
            np.testing.assert_allclose(values[metric, row].mean(), expected, rtol=1e-12)


def test_influence_is_the_jackknife_by_brute_force():
    logits, labels = random_logits(2, members=5)
    half = len(labels) // 2
    _, influence = advisor_scores.score_members(tfe.metrics.member_log_likelihood(logits, labels), (5,), TAU)
    for fold, rows in enumerate((slice(0, half), slice(half, None))):
        for metric, function in ((JOINT, tfe.metrics.joint_nll), (DYADIC, tfe.metrics.dyadic_nll)):
            whole = function(logits[rows], labels[rows], TAU)
            without = [function(np.delete(logits[rows], m, axis=1), labels[rows], TAU) for m in range(5)]
            pseudo = 5 * whole - 4 * np.array(without)
            np.testing.assert_allclose(influence[metric, 0, fold], pseudo - pseudo.mean(), atol=1e-9)


def test_a_member_that_alone_explains_an_example_gives_finite_scores():
    likelihood = np.full((40, 3), -5000.0)
    likelihood[:, 0] = -0.1
    values, influence = advisor_scores.score_members(likelihood, (1, 3), TAU)
    assert np.isfinite(values).all()
    assert np.isfinite(influence).all()


def test_errors_are_the_spread_over_new_examples_and_new_members():
    """200 repetitions know a standard deviation to 5%; a test at 20% is four times that."""
    members, examples = 12, 200

    def draw(rng):
        # Examples differ in difficulty, members in skill: both must count.
        difficulty, skill = rng.normal(size=(examples, 1)), 0.6 * rng.normal(size=(1, members))
        likelihood = -np.logaddexp(0.0, difficulty + skill + 0.3 * rng.normal(size=(examples, members)))
        values, influence = advisor_scores.score_members(likelihood, (4, members), TAU)
        return [
            [advisor_scores.mean_estimate(values[m, s], influence[m, s].mean(axis=0)) for s in (0, 1)] for m in (0, 1)
        ]

    rng = np.random.default_rng(0)
    estimates = [draw(rng) for _ in range(200)]
    for metric in (JOINT, DYADIC):
        for size in (0, 1):
            seen = np.std([one[metric][size].estimate for one in estimates], ddof=1)
            told = np.sqrt(np.mean([one[metric][size].error ** 2 for one in estimates]))
            assert 0.8 * seen < told < 1.25 * seen


# The rule.


def make_scores(joint, dyadic, noise=0.1, seed=0, blocks=40, members=8):
    """Scores with means `[arms, scales, sizes]`, and independent noise of that much per block."""
    means = np.array([joint, dyadic], float)
    rng = np.random.default_rng(seed)
    values = noise * rng.normal(size=(*means.shape, blocks))
    values -= values.mean(axis=-1, keepdims=True)
    return advisor_scores.Scores(
        means[..., None] + values, np.zeros((*means.shape, 2, members)), np.ones(means.shape[1:3], bool)
    )


def test_the_scale_with_the_lowest_joint_nll_is_the_best():
    scores = make_scores([[[9.0], [5.001], [5.0], [8.0]]], [[[6.0], [3.0], [4.0], [1.0]]])
    assert advisor_scores.best_scale(scores, 0, scores.means()) == 2


def test_the_smallest_size_that_is_as_good():
    # The error of a difference of two means of 40 blocks is about 0.1 * sqrt(2 / 40) = 0.022.
    scores = make_scores([[[9.0, 5.01, 5.0]]], [[[4.0, 3.01, 3.0]]])
    assert advisor_scores.choose_size(scores, 0, 0, scores.means()) == Choice(0, 0, 1)
    scores = make_scores([[[9.0, 5.01, 5.0]]], [[[4.0, 3.2, 3.0]]])
    assert advisor_scores.choose_size(scores, 0, 0, scores.means()) == Choice(0, 0, 2)


@pytest.mark.parametrize(
    ("joint", "dyadic", "beaten"),
    [
        (-1.0, 0.5, True),  # Shown by the joint NLL.
        (-0.01, -1.0, True),  # Shown by the dyadic NLL, and the joint NLL agrees.
        (0.01, -1.0, False),  # The dyadic NLL alone may only see label noise.
        (-0.01, -0.01, False),  # Nothing shown.
        (1.0, 1.0, False),
    ],
)
def test_the_plain_ensemble_is_taken_unless_it_is_shown_to_be_beaten(joint, dyadic, beaten):
    # The error of a difference is about 0.022, and its interval 0.044 to each side.
    scores = make_scores([[[5.0], [5.0 + joint]]], [[[3.0], [3.0 + dyadic]]])
    comparison = compare(scores, 0)
    assert comparison.joint.estimate == pytest.approx(joint, abs=1e-9)
    assert comparison.joint.error == pytest.approx(0.1 * math.sqrt(2 / 40), rel=0.35)
    assert comparison.beaten == beaten
    assert advisor_scores.make_rule(scores, 0, comparison.beaten)(scores.means()) == Choice(0, int(beaten), 0)


def test_the_best_of_many_that_are_alike_rarely_beats_the_plain_ensemble():
    """At 2.5% a side for each of two metrics, 5 of 100 is expected at most; more than 12 has a chance below 0.1%."""
    beaten = 0
    for seed in range(100):
        values = 5.0 + np.random.default_rng(seed).normal(size=(2, 1, 20, 1, 40))
        scores = advisor_scores.Scores(values, np.zeros((2, 1, 20, 1, 2, 8)), np.ones((1, 20), bool))
        beaten += compare(scores, 0).beaten
    assert beaten <= 12


def test_without_a_baseline_there_is_no_comparison():
    scores = make_scores([[[1.0], [5.0]]], [[[1.0], [5.0]]])
    assert compare(dataclasses.replace(scores, usable=np.array([[False, True]])), 0) is None
    assert compare(make_scores([[[1.0]]], [[[1.0]]]), 0) is None


def test_a_diverged_configuration_is_never_chosen():
    scores = make_scores([[[1.0], [5.0]]], [[[1.0], [5.0]]])
    scores = dataclasses.replace(scores, usable=np.array([[False, True]]))
    assert advisor_scores.make_rule(scores, 0, None)(scores.means()).scale == 1
    assert advisor_scores.agreement(scores, Choice(0, 1, 0), 20, seed=0) == (1.0, 1.0)


def test_what_noise_chose_is_judged_by_other_examples():
    """20 candidates that are all alike: the best looks better than it is, the cross-fitted estimate does not."""
    flattered, judged = [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        values = 5.0 + rng.normal(size=(2, 1, 20, 1, 40))
        scores = advisor_scores.Scores(values, np.zeros((2, 1, 20, 1, 2, 8)), np.ones((1, 20), bool))
        flattered.append(scores.means()[JOINT].min() - 5.0)
        judged.append(advisor_scores.crossed(scores, JOINT, advisor_scores.make_rule(scores, 0, None)).estimate - 5.0)
    error = 1.0 / math.sqrt(40 * 30)
    assert np.mean(flattered) < -6 * error
    assert abs(np.mean(judged)) < 4 * error


def test_the_arms_are_compared_at_scales_that_other_examples_chose():
    """Arm 1 is better by 2 at its best scale, which is not arm 0's."""
    scores = make_scores([[[9.0], [6.0]], [[4.0], [8.0]]], [[[6.0], [3.0]], [[2.0], [5.0]]], noise=1.0)
    difference = advisor_scores.bootstrap_difference(scores, JOINT)
    assert difference.estimate == pytest.approx(-2.0, abs=1e-9)
    # Two independent means of 40 blocks with unit variance.
    assert difference.error == pytest.approx(math.sqrt(2 / 40), rel=0.35)


def test_agreement_tells_a_clear_choice_from_a_toss_up():
    clear = make_scores([[[9.0], [5.0]]], [[[6.0], [3.0]]])
    toss_up = make_scores([[[5.0], [5.0]]], [[[3.0], [3.0]]])
    assert advisor_scores.agreement(clear, Choice(0, 1, 0), 200, seed=0)[0] == 1.0
    assert 0.3 < advisor_scores.agreement(toss_up, Choice(0, 1, 0), 200, seed=0)[0] < 0.7
