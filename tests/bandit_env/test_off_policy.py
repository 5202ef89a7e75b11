"""Off-policy estimates against the truth of simulated logs, and policies that are made from logs."""

import numpy as np
import pytest

from tf_ensembles.bandit_env import off_policy, replay


def simulate(count, seed=0, features=3, actions=3):
    """A log of a softmax policy with linear rewards; returns it with the mean rewards `[n, N]`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=[count, features])
    theta = rng.normal(size=[features, actions])
    means = x @ theta + np.array([0.5, 0.0, -0.5])
    logits = x @ rng.normal(size=[features, actions]) * 0.5
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    action = (shares.cumsum(1) > rng.uniform(size=[count, 1])).argmax(1)
    reward = means[np.arange(count), action] + 0.3 * rng.normal(size=count)
    return replay.Log(x, action, reward, shares[np.arange(count), action], actions), means


def test_estimates_are_the_formulas():
    rng = np.random.default_rng(0)
    action, reward = np.array([0, 1, 1, 0]), np.array([1.0, 2.0, -1.0, 0.5])
    propensity, policy = np.array([0.5, 0.25, 0.5, 1.0]), np.array([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1], [1.0, 0.0]])
    values = rng.normal(size=[4, 2])
    found = off_policy.evaluate(action, reward, propensity, policy, values)
    weight = np.array([1.0, 3.2, 0.2, 1.0])
    np.testing.assert_allclose(found["IPS"].estimate, np.mean(weight * reward))
    np.testing.assert_allclose(found["IPS"].error, np.std(weight * reward, ddof=1) / 2.0)
    np.testing.assert_allclose(found["SNIPS"].estimate, np.sum(weight * reward) / weight.sum())
    taken = values[np.arange(4), action]
    np.testing.assert_allclose(found["DR"].estimate, np.mean((policy * values).sum(1) + weight * (reward - taken)))
    np.testing.assert_allclose(found.effective_size, weight.sum() ** 2 / (weight**2).sum())
    assert any("effective decisions" in note for note in found.warnings)


def test_intervals_hold_the_truth_and_the_model_narrows_them():
    inside, widths = [], []
    for seed in range(40):
        log, means = simulate(800, seed)
        policy = np.eye(3)[(means + 0.5).argmax(1)] * 0.8 + 0.2 / 3
        found = off_policy.evaluate(log.action, log.reward, log.propensity, policy, means)
        # Given the contexts, whose values the model knows, rewards and actions are random.
        truth = (policy * means).sum(1).mean()
        inside.append([abs(found[name].estimate - truth) < 2.0 * found[name].error for name in ("IPS", "SNIPS")])
        widths.append([found[name].error for name in ("IPS", "DR")])
    assert np.mean(inside, axis=0).min() > 0.95 - 3.0 * np.sqrt(0.05 * 0.95 / 40)
    assert np.mean(widths, axis=0)[1] < np.mean(widths, axis=0)[0]


def test_wrong_propensities_and_unseen_policies_are_said():
    log, _ = simulate(2000)
    uniform = np.full([2000, 3], 1.0 / 3.0)
    assert not off_policy.evaluate(log.action, log.reward, log.propensity, uniform).warnings
    wrong = off_policy.evaluate(log.action, log.reward, np.full(2000, 0.9), uniform)
    assert any("propensities are wrong" in note for note in wrong.warnings)
    other = np.eye(3)[(log.action + 1) % 3]
    assert "says nothing" in off_policy.evaluate(log.action, log.reward, log.propensity, other).warnings[0]
    clipped = off_policy.evaluate(log.action, log.reward, log.propensity, uniform, clip=1.0)
    assert clipped.largest_weight == 1.0
    assert any("biased" in note for note in clipped.warnings)


def test_policies_of_a_log_are_valued_as_they_would_earn():
    log, means = simulate(3000, seed=1)
    found = replay.evaluate(log)
    best = means.max(1).mean()
    greedy, thompson = found["greedy"]["DR"], found["Thompson sampling"]["DR"]
    # The linear model is right: greedy and Thompson sampling come close to the best, uniform does not.
    assert abs(greedy.estimate - best) < 4.0 * greedy.error + 0.02
    assert abs(thompson.estimate - best) < 4.0 * thompson.error + 0.05
    uniform = found["uniform"]["DR"]
    assert abs(uniform.estimate - means.mean()) < 4.0 * uniform.error
    assert found["the log's own"]["IPS"].estimate == pytest.approx(log.reward.mean())
    assert any(name.startswith("always action") for name in found)


def test_bad_logs_are_named():
    good = (np.array([0, 1]), np.ones(2), np.full(2, 0.5), np.full([2, 2], 0.5))
    for place, value, message in [
        (0, np.array([0, 2]), r"actions in \[0, 2\)"),
        (0, np.array([0.0, 1.0]), "2 actions, integers"),
        (1, np.array([1.0, np.nan]), "finite rewards"),
        (2, np.array([0.5, 0.0]), r"propensities in \(0, 1\]"),
        (2, np.array([0.5, 1.5]), r"propensities in \(0, 1\]"),
        (3, np.full([2, 2], 0.4), "add up to 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            off_policy.evaluate(*(value if k == place else part for k, part in enumerate(good)))
    with pytest.raises(ValueError, match="folds"):
        off_policy.folds(3, 4)
