"""Bootstrapped DQN on TF-Agents: the numbers of the compiled loop, stock parts around it, and what is wrong named."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.lazy import Lazy, dynamic_step_driver, policy_saver, tf_uniform_replay_buffer
from tf_ensembles import draws
from tf_ensembles.bandit_env import buffer
from tf_ensembles.bandit_env.dqn import environments, export, training

agent_lib = Lazy("tf_ensembles.bandit_env.agents.dqn.agent")
environment_lib = Lazy("tf_ensembles.bandit_env.agents.dqn.environment")
trajectory = Lazy("tf_agents.trajectories.trajectory")
policy_step = Lazy("tf_agents.trajectories.policy_step")
tf_metrics = Lazy("tf_agents.metrics.tf_metrics")
common = Lazy("tf_agents.utils.common")
dynamic_episode_driver = Lazy("tf_agents.drivers.dynamic_episode_driver")

SEA = environments.DeepSea(3, stochastic=True)
AGENT = training.Agent(2, 1.5, tfe.Bernoulli(0.5), epsilon=0.2)
LEARNER = training.Learner((6, 5), 0.01, batch_size=8, capacity=12, min_transitions=5, target_period=3)


def make(sea=SEA, agent=AGENT, learner=LEARNER, seeds=(0,)):
    """An environment and an agent whose members are those of the compiled loop before its first step."""
    run = training.Run(agent, sea, seeds, learner)
    ensemble = export.make_ensemble(run.result(), sea, learner, 0, agent.bootstrap)
    env = environment_lib.GraphEnvironment(sea, seeds)
    made = agent_lib.EnsembleDqnAgent(
        env.time_step_spec(),
        env.action_spec(),
        ensemble,
        discount=learner.discount,
        epsilon=agent.epsilon,
        target_update_period=learner.target_period,
    )
    return run, env, made


def pair(step, decision, after):
    """Two consecutive steps as a replay buffer gives them, `[2, ...]`."""
    first = trajectory.from_transition(step, decision, after)
    second = trajectory.from_transition(after, decision, after)
    return tf.nest.map_structure(lambda one, other: tf.concat([one, other], axis=0), first, second)


@pytest.mark.slow
def test_the_numbers_of_the_compiled_loop():
    """From the same state, by one step of the environment at a time: the same actions, rewards and weights."""
    run, env, agent = make()
    happened = run.advance(24)
    key, row = draws.key(0, draws.Purpose.DQN_BATCH), tf.zeros([1], tf.int64)
    act, go = (tf.function(one, autograph=False) for one in (agent.collect_policy.action, env.step))
    train = tf.function(agent.train, autograph=False)
    state, step = agent.collect_policy.get_initial_state(1), env.current_time_step()
    stored, actions, rewards, updates = [], [], [], 0
    while len(actions) < 24:
        decision = act(step, state)
        after, state = go(decision.action), decision.state
        if not step.is_last():
            stored.append(pair(step, decision._replace(state=()), after))
            actions.append(int(decision.action[0]))
            rewards.append(float(after.reward[0]))
            if len(stored) >= LEARNER.min_transitions:
                numbers = range(max(0, len(stored) - LEARNER.capacity), len(stored))
                ring = sorted(numbers, key=lambda number: number % LEARNER.capacity)
                place = buffer.draw_places(key, tf.constant(updates), row, LEARNER.batch_size, len(ring))[0].numpy()
                train(tf.nest.map_structure(lambda *parts: tf.stack(parts), *[stored[ring[one]] for one in place]))
                updates += 1
        step = after
    np.testing.assert_array_equal(actions, happened.action[:, 0])
    np.testing.assert_allclose(rewards, happened.reward[:, 0], atol=1e-6)
    expected = export.make_ensemble(run.result(), SEA, LEARNER)
    for found, other in zip(agent.ensemble.members.variables, expected.members.variables, strict=True):
        np.testing.assert_allclose(found, other, atol=2e-4)  # 20 steps of Adam of 0.01, up to rounding


@pytest.mark.slow
def test_stock_driver_buffer_metrics_checkpointer_and_saver(tmp_path):
    sea = environments.DeepSea(4)
    agent_settings = training.Agent(5, 1.0)
    learner = dataclasses.replace(LEARNER, hidden_sizes=(20, 20), learning_rate=3e-3)
    _, env, agent = make(sea, agent_settings, learner)
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(agent.collect_data_spec, 1, max_length=1000)
    returns = tf_metrics.AverageReturnMetric(buffer_size=20)
    driver = dynamic_step_driver.DynamicStepDriver(env, agent.collect_policy, [buffer.add_batch, returns], num_steps=10)
    data = iter(buffer.as_dataset(sample_batch_size=32, num_steps=2))
    train, step, state = tf.function(agent.train, autograph=False), None, agent.collect_policy.get_initial_state(1)
    for _ in range(60):
        step, state = driver.run(step, state)
        for _ in range(4):
            loss = train(next(data)[0]).loss
    assert np.isfinite(loss)
    assert float(returns.result()) > 0.5  # The chest is found, and found again.
    ids = buffer.gather_all().policy_info.id.numpy()
    boundary = buffer.gather_all().is_boundary().numpy()
    assert len(np.unique(ids[~boundary])) == np.sum(~boundary)
    checkpointer = common.Checkpointer(str(tmp_path / "checkpoint"), max_to_keep=1, agent=agent, env=env)
    checkpointer.save(global_step=agent.train_step_counter)
    observed = tf.random.stateless_uniform([3, 4, 4], [1, 2])
    values, target = agent.collect_policy.values(observed), agent.target_values(observed)
    _, other_env, other = make(sea, agent_settings, learner)
    assert not np.allclose(other.collect_policy.values(observed), values)
    common.Checkpointer(str(tmp_path / "checkpoint"), max_to_keep=1, agent=other, env=other_env)
    np.testing.assert_array_equal(other.collect_policy.values(observed), values)
    np.testing.assert_array_equal(other.target_values(observed), target)
    np.testing.assert_array_equal(other_env.current_time_step().observation, env.current_time_step().observation)
    policy_saver.PolicySaver(agent.collect_policy, batch_size=1).save(str(tmp_path / "policy"))
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    time_step = env.reset()
    found = loaded.action(time_step, loaded.get_initial_state())
    expected = agent.collect_policy.action(time_step, agent.collect_policy.get_initial_state(1))
    np.testing.assert_array_equal(found.action, expected.action)
    np.testing.assert_array_equal(found.info.id, expected.info.id)


@pytest.mark.slow
def test_heads_on_a_trunk_and_other_environments():
    pole = environments.CartPoleSwingUp()
    env = environment_lib.GraphEnvironment(pole, (3, 4))

    def trunk():
        return keras.Sequential([keras.Input([8]), keras.layers.Dense(16, "relu")])

    def head(features=16):
        return keras.Sequential([keras.Input([features]), keras.layers.Dense(3)])

    ensemble = tfe.Ensemble(
        head, 4, tfe.PriorFunction(head, 0.5, normalize=False, on="features"), trunk=trunk(), seed=2
    )
    ensemble.compile(keras.optimizers.Adam(1e-2), "mse", jit_compile=False)
    agent = agent_lib.EnsembleDqnAgent(env.time_step_spec(), env.action_spec(), ensemble)
    episodes = tf_metrics.NumberOfEpisodes()
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(agent.collect_data_spec, 2, max_length=3000)
    dynamic_episode_driver.DynamicEpisodeDriver(
        env, agent.collect_policy, [episodes, buffer.add_batch], num_episodes=2
    ).run()
    assert int(episodes.result()) >= 2
    data = iter(buffer.as_dataset(sample_batch_size=16, num_steps=2))
    before = [np.array(variable) for variable in ensemble.trainable_variables]
    target = agent.target_values(tf.ones([2, 8]))
    train = tf.function(agent.train, autograph=False)
    for _ in range(3):
        assert np.isfinite(train(next(data)[0]).loss)
    assert all(np.abs(np.array(a) - b).max() > 0 for a, b in zip(ensemble.trainable_variables, before, strict=True))
    np.testing.assert_allclose(agent.target_values(tf.ones([2, 8])), target, rtol=1e-5)  # copied before the first


def test_errors_say_what_to_do():
    env = environment_lib.GraphEnvironment(SEA)
    _, _, agent = make()
    specs, ensemble = (env.time_step_spec(), env.action_spec()), agent.ensemble
    wide = environment_lib.GraphEnvironment(environments.MountainCar(5))
    build = agent_lib.EnsembleDqnAgent
    with pytest.raises(ValueError, match="Expected discount in"):
        build(*specs, ensemble, discount=2.0)
    with pytest.raises(ValueError, match=r"Expected a tfe.Ensemble that has been compiled\. Received: None"):
        build(*specs, None)
    with pytest.raises(ValueError, match="Expected target_update_period >= 1"):
        build(*specs, ensemble, target_update_period=0)
    with pytest.raises(ValueError, match=r"Expected members with 3 outputs, one per action\. Received: 2"):
        build(specs[0], wide.action_spec(), ensemble)
    step = env.current_time_step()
    decision = agent.collect_policy.action(step, agent.collect_policy.get_initial_state(1))._replace(state=())
    batch = tf.nest.map_structure(lambda part: part[tf.newaxis], pair(step, decision, env.step(decision.action)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected finite rewards"):
        agent.train(batch._replace(reward=batch.reward * np.nan))
    with pytest.raises(ValueError, match=r"Expected 2 consecutive steps, \[batch, 2\]"):
        agent.train(tf.nest.map_structure(lambda part: part[:, :1], batch))
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected actions in"):
        env.step(tf.constant([5]))
