"""Propensities, masks, replicas, exploit-only policies and other choices, of linear and of neural ensembles."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.bandit_env.agents.test_inputs import build, experience, make_agent, observe, specs
from tests.lazy import Lazy, policy_saver
from tf_ensembles import bandit_env

driver = Lazy("tf_ensembles.bandit_env.agents.driver")
greedy_policy = Lazy("tf_agents.policies.greedy_policy")
policy_lib = Lazy("tf_ensembles.bandit_env.agents.policy")
time_steps = Lazy("tf_agents.trajectories.time_step")
trajectories = Lazy("tf_agents.trajectories.trajectory")


def trained(kind, **options):
    agent = make_agent(kind, **options)
    data = experience(agent, 12)
    agent.train(data._replace(reward=tf.constant(np.random.default_rng(1).normal(size=[12, 1]), tf.float32)))
    return agent


@pytest.mark.parametrize(("kind", "options"), [("linear", {}), ("linear", {"num_members": 5}), ("neural", {})])
def test_propensities_are_how_often_actions_are_taken(kind, options):
    agent = trained(kind, emit_propensity=True, **options)
    rows = 2000
    one = tf.repeat(observe(1, seed=5), rows, axis=0)
    taken = agent.policy.action(time_steps.restart(one, rows))  # each row draws a member of its own
    shares = np.bincount(taken.action, minlength=3) / rows
    claimed = taken.info.propensity.numpy()
    for action in range(3):
        own = claimed[taken.action.numpy() == action]
        np.testing.assert_allclose(own, shares[action], atol=5.0 * 0.5 / np.sqrt(rows))
    np.testing.assert_allclose(agent.policy.arm_values(one[:1]).probability[0], shares, atol=5.0 * 0.5 / np.sqrt(rows))


def test_arm_values_are_the_closed_form():
    agent = trained("linear", noise_variance=0.5)
    x = observe(4, seed=2)
    found = agent.policy.arm_values(x)
    features = np.concatenate([x.numpy().astype(np.float64), np.ones([4, 1])], axis=1)
    precision, target = (part.numpy() for part in agent.sums)
    for arm in range(3):
        mean = features @ np.linalg.solve(precision[arm], target[arm])
        variance = np.einsum("ri,ij,rj->r", features, np.linalg.inv(precision[arm]), features)
        np.testing.assert_allclose(found.mean[:, arm], mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.deviation[:, arm], np.sqrt(variance), rtol=1e-9)


def test_probabilities_of_rare_arms_are_those_of_many_draws():
    """Four arms of three features, with a context: the closed form's 400,000 members, and each arm's share of them."""
    spec = {"global": tf.TensorSpec([2], tf.float32), "per_arm": tf.TensorSpec([4, 3], tf.float32)}
    agent = bandit_env.EnsembleThompsonAgent(*specs(spec, 4), emit_propensity=True)
    rng = np.random.default_rng(0)
    observation = {name: tf.constant(rng.normal(size=[40, *part.shape]), tf.float32) for name, part in spec.items()}
    step = time_steps.restart(observation, 40)
    for _ in range(3):
        taken = agent.policy.action(step)
        reward = 2.0 * taken.info.chosen_arm_features[:, 0]
        data = trajectories.single_step({"global": observation["global"]}, taken.action, taken.info, reward, reward)
        agent.train(tf.nest.map_structure(lambda part: part[:5, tf.newaxis], data))
    found = agent.policy.arm_values(observation).probability.numpy()
    row = np.argmin(np.abs(found.min(axis=1) - 0.015))
    precision, target = (part.numpy()[0] for part in agent.sums)
    draws = np.linalg.solve(np.linalg.cholesky(precision).T, rng.normal(size=[len(target), 400_000]))
    theta = np.linalg.solve(precision, target)[:, None] + draws
    own, shared = (observation[name][row].numpy().astype(np.float64) for name in ("per_arm", "global"))
    pairs = np.einsum("i,nj->nij", shared, own).reshape(4, -1)
    values = np.concatenate([np.tile(shared, [4, 1]), own, pairs], axis=1) @ theta
    expected = np.bincount(values.argmax(axis=0), minlength=4) / 400_000
    assert 0.005 < expected.min() < 0.03
    error = 4.5 * np.sqrt(expected / 400_000)  # of the draws
    np.testing.assert_array_less(np.abs(found[row] - expected), 0.01 * expected + error)
    one = tf.nest.map_structure(lambda part: tf.repeat(part[row : row + 1], 50, axis=0), observation)
    again = agent.policy.action(time_steps.restart(one, 50))
    np.testing.assert_allclose(again.info.propensity, found[row][again.action], rtol=0.01)


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_exploiting_policies_take_the_best_mean(kind):
    agent = trained(kind)
    x = observe(20, seed=3)
    best = agent.policy.arm_values(x).mean.numpy().argmax(1)
    step = time_steps.restart(x, 20)
    wrapped = greedy_policy.GreedyPolicy(agent.policy)
    for policy in (agent.exploit_policy(), wrapped, wrapped):
        np.testing.assert_array_equal(policy.action(step).action, best)


def test_upper_bounds_and_information_choose_from_the_same_members():
    x = observe(20, seed=3)
    for choice in ("ucb", "ids"):
        agent = trained("linear", choice=choice, ucb_width=1.5, emit_propensity=True)
        taken = agent.policy.action(time_steps.restart(x, 20))
        values = agent.policy.arm_values(x)
        if choice == "ucb":
            np.testing.assert_array_equal(taken.action, (values.mean + 1.5 * values.deviation).numpy().argmax(1))
            np.testing.assert_array_equal(taken.info.propensity, 1.0)
        else:
            assert ((taken.info.propensity.numpy() > 0.0) & (taken.info.propensity.numpy() <= 1.0)).all()


def test_masks_forbid_actions_and_change_probabilities():
    spec = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([3], tf.int32))
    options = {"observation_and_action_constraint_splitter": lambda pair: (pair[0], pair[1])}
    agent = bandit_env.EnsembleThompsonAgent(*specs(spec), emit_propensity=True, **options)
    mask = tf.constant(np.tile([1, 0, 1], [60, 1]), tf.int32)
    step = time_steps.restart((observe(60), mask), 60)
    taken = agent.policy.action(step)
    assert set(taken.action.numpy()) == {0, 2}
    np.testing.assert_allclose(taken.info.propensity, 0.5, atol=1e-5)  # nothing is known yet
    before = int(agent.policy.step)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="a row that allows none"):
        agent.policy.action(time_steps.restart((observe(60), tf.zeros_like(mask)), 60))
    assert int(agent.policy.step) == before


def test_replicas_of_a_saved_policy_have_ids_and_draws_of_their_own(tmp_path):
    agent = trained("linear")
    step = time_steps.restart(observe(30), 30)
    policy_saver.PolicySaver(agent.policy, batch_size=None).save(str(tmp_path / "policy"))
    loaded = [tf.saved_model.load(str(tmp_path / "policy")) for _ in range(2)]
    policy_lib.set_replica(loaded[1], 3)
    agent.policy.set_replica(3)
    first, second, same = (one.action(step) for one in (*loaded, agent.policy))
    assert not set(first.info.id.numpy()) & set(second.info.id.numpy())
    assert (first.action.numpy() != second.action.numpy()).any()
    np.testing.assert_array_equal(second.action, same.action)
    np.testing.assert_array_equal(second.info.id, same.info.id)
    with pytest.raises(ValueError, match="Expected a replica"):
        agent.policy.set_replica(5000)


def test_replicas_are_given_at_call_too(tmp_path):
    agent, other = trained("linear"), trained("linear")
    step = time_steps.restart(observe(30), 30)
    other.policy.set_replica(3)
    saver = policy_saver.PolicySaver(agent.policy, batch_size=None)
    policy_lib.add_replicas(saver, agent.policy)
    saver.save(str(tmp_path / "policy"))
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    expected = other.policy.action(step)
    for found in (
        agent.policy.action_as(step, 3),
        loaded.action_for_replica((step, tf.fill([30], tf.constant(3, tf.int64)))),
    ):
        np.testing.assert_array_equal(found.action, expected.action)
        np.testing.assert_array_equal(found.info.id, expected.info.id)
    mixed = agent.policy.action_as(step, np.repeat([0, 5], 15))  # Each row its own.
    rows = mixed.info.id.numpy() % 2**32
    np.testing.assert_array_equal(rows, np.arange(30) + np.repeat([0, 5 << 20], 15))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected replicas in"):
        agent.policy.action_as(step, -1)
    many = bandit_env.EnsembleThompsonAgent(*specs(tf.TensorSpec([2], tf.float32)), num_problems=2)
    with pytest.raises(ValueError, match="one problem"):
        many.policy.action_as(time_steps.restart(observe(2), 2), 1)


def test_the_neural_agent_learns_step_by_step_and_resumes(tmp_path):
    def run(steps, folder):
        env = bandit_env.HeteroscedasticLinearBandit(1, num_actions=3, dim=5)
        ensemble = tfe.Ensemble(build, 2, seed=1)
        ensemble.compile("adam", "mse")
        agent = bandit_env.NeuralThompsonAgent(env.time_step_spec(), env.action_spec(), ensemble)
        regret = bandit_env.CumulativeRegret(env.mean_rewards, 1)
        driver.run_resumable(env, agent, steps, tmp_path / folder, every=3, observers=[regret])
        return int(env.step_count), [variable.numpy() for variable in ensemble.trainable_variables]

    assert run(3, "twice")[0] == 3
    steps, weights = run(6, "twice")  # three more, from the checkpoint
    assert steps == 6
    for one, other in zip(weights, run(6, "once")[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
