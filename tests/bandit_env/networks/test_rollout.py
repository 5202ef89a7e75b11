"""Whole rollouts with networks: results, what is refused, and what is learned."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles.bandit_env.networks import export, problems, rollout
from tf_ensembles.bandit_env.networks.rollout import Agent, Learner
from tf_ensembles.trainers.mlp import network

SMALL = Learner(hidden_sizes=(8,), learning_rate=1e-2, batch_size=16, refit_every=20)


def test_priors_have_the_scale_that_is_asked_for_on_the_contexts():
    made = problems.make_wheel([4, 9], 300, 0.5)
    agent = Agent(num_members=3, prior_scale=np.array([0.5, 2.0]))
    prior = rollout.make_setting(agent, made, SMALL, 0, True).prior
    x = np.concatenate([made.contexts[:, : rollout.EXAMPLES, 0], np.ones([2, rollout.EXAMPLES, 1])], axis=-1)
    outputs = network.outputs(prior, tf.constant(x, tf.float32)).numpy()  # [J, M, H, rows]
    np.testing.assert_allclose(outputs.mean(-1), 0.0, atol=1e-5)
    np.testing.assert_allclose(outputs.std(-1), np.broadcast_to([[[0.5]], [[2.0]]], [2, 3, 5]), rtol=1e-4)
    assert np.abs(np.corrcoef(outputs[0, :, 0])[0, 1:]).max() < 0.999  # Members have priors of their own.


def test_uniform_play_is_what_chance_loses():
    made = problems.make_random_network([0, 1], num_actions=3, dim=2)
    gaps = made.means[:, 0].max(1) - made.means[:, 0].mean(1)
    np.testing.assert_allclose(rollout.uniform_play(made, 10), 10 * gaps, rtol=1e-5)


def test_what_cannot_be_run_is_told():
    with pytest.raises(ValueError, match="for ensembles alone"):
        Agent("dropout", num_members=3)
    with pytest.raises(ValueError, match=r"Expected kind in .*Received: 'greedy'"):
        Agent("greedy")
    with pytest.raises(ValueError, match=r"epsilon in \[0, 1\)"):
        Agent(epsilon=2.0)
    with pytest.raises(ValueError, match="Expected prior_scale"):
        Agent(num_members=2, prior_scale=-1.0)
    with pytest.raises(ValueError, match="whole number or 1 / k"):
        Learner(updates_per_decision=0.4)
    assert [Learner(updates_per_decision=rate).pace for rate in (3, 1, 0.25)] == [(3, 1), (1, 1), (1, 4)]
    noisy = Agent(num_members=2, bootstrap=tfe.bootstrap.GaussianNoise(1.0))
    with pytest.raises(ValueError, match="bootstrap by weights"):
        rollout.run(noisy, problems.make_random_network([0], 3, 2), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent",
    [
        Agent(epsilon=0.1),
        Agent(num_members=3, prior_scale=0.3, bootstrap=tfe.bootstrap.GaussianNoise(0.1)),
        Agent("dropout", dropout=0.1),
        Agent("linear", noise=0.1),
        Agent("last-layer", noise=0.1),
    ],
    ids=lambda agent: agent.kind.value,
)
def test_every_agent_learns_the_wheel_on_any_number_of_workers(agent):
    made = problems.make_wheel(range(4), 400, 0.5)
    found = rollout.run(agent, made, 400, SMALL, num_workers=1)
    assert found.regret.shape == found.action.shape == found.reward.shape == (400, 4)
    assert found.total.mean() < 0.6 * rollout.uniform_play(made, 400).mean()
    means = np.take_along_axis(made.means, found.action.T[..., None], axis=2)[..., 0]
    np.testing.assert_allclose(found.regret.T, made.means.max(2) - means, rtol=1e-5)
    assert np.abs(found.reward.T - means).max() < 0.06  # five standard deviations of the noise
    # Parts are other shapes for XLA, so that rounding may change a choice late in the run, and all that follows.
    parted = rollout.run(agent, made, 400, SMALL, num_workers=2)
    np.testing.assert_array_equal(parted.action[:20], found.action[:20])


@pytest.mark.slow
def test_a_predictive_says_what_the_keras_ensemble_says():
    made = problems.make_random_network([0, 1], num_actions=3, dim=2)
    found = rollout.run(Agent(num_members=2, prior_scale=1.0), made, 20, SMALL, num_workers=1)
    x = np.random.default_rng(0).normal(size=[5, 2]).astype(np.float32)
    mixed = Agent(num_members=2, prior_scale=[0.0, 1.0])
    assert rollout.run(mixed, made, 3, SMALL, num_workers=2).total.shape == (2,)
    logits = export.make_predictive(found, 1)(x)
    ensemble = export.make_ensemble(found, 1, True, SMALL)
    np.testing.assert_allclose(logits[..., 1:] - logits[..., :1], ensemble.predict(x, verbose=0), atol=1e-5)
