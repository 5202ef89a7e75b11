"""The neural ensemble as a bandit agent: learns, restores, exports, names what is wrong."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.bandit_env.agents.test_inputs import experience as experience_of
from tests.bandit_env.agents.test_inputs import specs
from tests.lazy import Lazy, dynamic_step_driver, experience, policy_saver, tf_uniform_replay_buffer
from tf_ensembles import bandit_env
from tf_ensembles.bandit_env import problems

stationary_stochastic_py_environment = Lazy("tf_agents.bandits.environments.stationary_stochastic_py_environment")
time_steps = Lazy("tf_agents.trajectories.time_step")
tf_py_environment = Lazy("tf_agents.environments.tf_py_environment")


def make_ensemble(num_features, loss=None, num_members=5, outputs=1):
    def build():
        layers = [keras.Input([num_features]), keras.layers.Dense(16, "relu"), keras.layers.Dense(outputs)]
        return keras.Sequential(layers)

    ensemble = tfe.Ensemble(build, num_members, tfe.PriorFunction(build, 1.0), tfe.Bernoulli(0.5), seed=1)
    ensemble.compile(keras.optimizers.Adam(1e-2), loss or keras.losses.MeanSquaredError(), jit_compile=False)
    return ensemble


class Loop:
    """An environment, the agent and a replay buffer of all that happened."""

    def __init__(self, env, agent, seed=0):
        self.env, self.agent = env, agent
        spec = agent.training_data_spec
        self.buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(spec, env.batch_size, max_length=500)
        self.driver = dynamic_step_driver.DynamicStepDriver(
            env, agent.collect_policy, [self._keep], num_steps=env.batch_size
        )
        self.rewards, self.rng = [], np.random.default_rng(seed)

    def _keep(self, traj):
        self.rewards.append(float(tf.reduce_mean(traj.reward)))
        if isinstance(traj.observation, dict):
            traj = experience.bandit_spec_utils.drop_arm_observation(traj)
        self.buffer.add_batch(traj)

    def everything(self):
        """All decisions so far, `[decisions, 1, ...]`."""
        return tf.nest.map_structure(lambda part: flatten(part), self.buffer.gather_all())

    def run(self, steps, batch=32):
        for _ in range(steps):
            self.driver.run()
            data = self.everything()
            for _ in range(2):
                self.agent.train(pick(data, self.rng.integers(len(data.reward), size=batch)))


def flatten(part):
    return tf.reshape(part, [part.shape[0] * part.shape[1], 1, *part.shape[2:]])


def pick(data, rows):
    return tf.nest.map_structure(lambda part: tf.gather(part, rows), data)


def make_linear(seed=3):
    env = bandit_env.HeteroscedasticLinearBandit(1, num_actions=5, seed=seed, noise=problems.constant_noise(0.01))
    return env, bandit_env.NeuralThompsonAgent(env.time_step_spec(), env.action_spec(), make_ensemble(2))


def test_learns_from_per_arm_features_and_real_rewards():
    env, agent = make_linear()
    loop = Loop(env, agent)
    env.reset()
    loop.run(40)
    means = env.problems.mean_reward[0]
    assert np.mean(loop.rewards[-15:]) > means.max() - 0.25 * (means.max() - means.mean())


def test_learns_from_global_features_and_binary_rewards():
    rng = np.random.default_rng(0)

    def reward(action):
        return lambda x: float(rng.uniform() < (0.9 if (x[0] > 0) == bool(action) else 0.1))

    inner = stationary_stochastic_py_environment.StationaryStochasticPyEnvironment(
        lambda: rng.normal(size=[4, 2]).astype(np.float32), [reward(0), reward(1)], batch_size=4
    )
    env = tf_py_environment.TFPyEnvironment(inner)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    agent = bandit_env.NeuralThompsonAgent(env.time_step_spec(), env.action_spec(), make_ensemble(4, loss))
    loop = Loop(env, agent)
    loop.run(50)
    assert np.mean(loop.rewards[-20:]) > 0.72  # Guessing gives 0.5, the best policy 0.9; the error of 80 is 0.05.
    data = loop.everything()
    with pytest.raises(ValueError, match=r"rewards in \[0, 1\]"):
        agent.train(data._replace(reward=data.reward + 1.0))


def test_a_restored_agent_continues_alike(tmp_path):
    env, agent = make_linear()
    loop = Loop(env, agent)
    env.reset()
    loop.run(4)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(agent=agent, env=env), tmp_path, max_to_keep=1)
    manager.save()
    other_env, other = make_linear()
    other_loop = Loop(other_env, other)
    other_env.reset()
    other_loop.run(1)
    tf.train.Checkpoint(agent=other, env=other_env).restore(manager.latest_checkpoint).expect_partial()
    data = loop.buffer.gather_all()
    for learner in (agent, other):
        learner.train(data)
        learner.train(data)
    features = tf.random.stateless_normal([7, 5, 2], [0, 1])
    np.testing.assert_allclose(agent.policy.predict(features), other.policy.predict(features), atol=1e-6)
    step = env.current_time_step()
    actions = [[int(p.action(step).action[0]) for _ in range(20)] for p in (agent.policy, other.policy)]
    assert actions[0] == actions[1]


def test_a_saved_policy_acts_alike(tmp_path):
    env, agent = make_linear()
    step = env.reset()
    policy_saver.PolicySaver(agent.policy, batch_size=1).save(str(tmp_path / "policy"))
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    actions = [[int(p.action(step).action[0]) for _ in range(20)] for p in (loaded, agent.policy)]
    assert actions[0] == actions[1]
    assert len(set(actions[0])) > 1  # It does draw.


def test_ids_and_not_places_decide_bootstrap_weights():
    env, agent = make_linear()
    _, other = make_linear()
    loop = Loop(env, agent)
    env.reset()
    for _ in range(12):
        loop.driver.run()
    data = loop.everything()
    agent.train(data)
    other.train(tf.nest.map_structure(lambda part: tf.reverse(part, [0]), data))  # arrived in another order
    features = tf.random.stateless_normal([3, 5, 2], [0, 1])
    np.testing.assert_allclose(agent.policy.predict(features), other.policy.predict(features), atol=1e-5)


def test_training_within_a_function_is_that_outside_of_it():
    env, agent = make_linear()
    _, other = make_linear()
    loop = Loop(env, agent)
    env.reset()
    for _ in range(8):
        loop.driver.run()
    data = loop.everything()
    train = tf.function(other.train, autograph=False)
    for _ in range(2):
        losses = [float(step(data).loss) for step in (agent.train, train)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    features = tf.random.stateless_normal([3, 5, 2], [0, 1])
    np.testing.assert_allclose(agent.policy.predict(features), other.policy.predict(features), atol=1e-6)
    assert int(other.train_step_counter) == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected finite rewards"):
        train(data._replace(reward=data.reward * np.nan))
    np.testing.assert_allclose(agent.policy.predict(features), other.policy.predict(features), atol=1e-6)


def test_bad_ensembles_and_rewards_are_named():
    env, agent = make_linear()
    specs = env.time_step_spec(), env.action_spec()
    with pytest.raises(ValueError, match="has been compiled"):
        bandit_env.NeuralThompsonAgent(*specs, tfe.Ensemble(lambda: keras.Sequential([keras.layers.Dense(1)]), 2))
    with pytest.raises(ValueError, match="members with one output"):
        bandit_env.NeuralThompsonAgent(*specs, make_ensemble(2, outputs=2))
    loop = Loop(env, agent)
    env.reset()
    loop.driver.run()
    data = loop.buffer.gather_all()
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="Expected finite rewards"):
        agent.train(data._replace(reward=data.reward * np.nan))


def make_all_actions(bootstrap=None, actions=3):
    def build():
        return keras.Sequential([keras.Input([2]), keras.layers.Dense(actions)])

    ensemble = tfe.Ensemble(build, 4, tfe.PriorFunction(build, 1.0), bootstrap, seed=1)
    ensemble.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    return bandit_env.NeuralThompsonAgent(*specs(), ensemble, all_actions=True)


@pytest.mark.parametrize("compiled", [False, True])
def test_members_of_all_actions_learn_the_one_that_was_taken(compiled):
    """One step of gradient descent against the derivative written out; decisions are those of single members."""
    agent = make_all_actions(tfe.Bernoulli(0.5))
    data = experience_of(agent, 30)
    x, action = data.observation[:, 0].numpy(), data.action[:, 0].numpy()
    kernel = agent.ensemble.members.variables[0].numpy()
    said = agent.ensemble.predict(x, verbose=0)  # [30, 4, 3]
    weight = tfe.Bernoulli(0.5).weights(1, data.policy_info.id[:, 0], np.arange(4)).numpy()
    error = said[np.arange(30), :, action] - 1.0  # Rewards are 1.
    slope = 2.0 * weight * error / 30.0
    train = tf.function(agent.train, autograph=False) if compiled else agent.train
    loss = train(data).loss
    np.testing.assert_allclose(loss, np.mean(weight * error**2), rtol=1e-5)
    expected = kernel - 0.1 * np.einsum("bi,bm,ba->mia", x, slope, np.eye(3)[action])
    np.testing.assert_allclose(agent.ensemble.members.variables[0], expected, atol=1e-6)
    assert int(agent.train_step_counter) == 1
    assert float(agent.loss(data).loss) < loss
    best = agent.ensemble.predict(x, verbose=0).argmax(axis=2)  # [30, 4]
    taken = agent.policy.action(time_steps.restart(data.observation[:, 0], 30)).action.numpy()
    assert (best == taken[:, None]).any(axis=1).all()
    mean = agent.ensemble.predict(x, verbose=0).mean(axis=1)
    np.testing.assert_allclose(agent.policy.arm_values(x).mean, mean, rtol=1e-5, atol=1e-6)


def test_members_of_all_actions_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"Expected members with 3 outputs, one per action\. Received: 2"):
        make_all_actions(actions=2)
    env, agent = make_linear()
    with pytest.raises(ValueError, match="Expected all_actions=False for features of arms"):
        bandit_env.NeuralThompsonAgent(env.time_step_spec(), env.action_spec(), agent.ensemble, all_actions=True)
