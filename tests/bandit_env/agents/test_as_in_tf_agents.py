"""Stock wrappers and mixtures around our agents, and what TF-Agents tests of its own agents, asked of ours.

The tests named `test_as_in_tf_agents_...` ask what TF-Agents' `linear_bandit_agent_test`, `mixture_agent_test` and
`greedy_reward_prediction_agent_test` ask, with answers computed here in NumPy.
"""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.bandit_env.agents.test_inputs import build, specs
from tests.lazy import Lazy, policy_saver
from tests.lazy import experience as experience_lib
from tf_ensembles import bandit_env

absl_logging = Lazy("absl.logging")
epsilon_greedy_policy = Lazy("tf_agents.policies.epsilon_greedy_policy")
greedy_policy = Lazy("tf_agents.policies.greedy_policy")
static_mixture_agent = Lazy("tf_agents.bandits.agents.static_mixture_agent")
tfp = Lazy("tensorflow_probability")
time_steps = Lazy("tf_agents.trajectories.time_step")
trajectories = Lazy("tf_agents.trajectories.trajectory")

ARMS = {"global": ([2], tf.float32), "per_arm": ([3, 2], tf.float32)}


def observation_spec(per_arm):
    if not per_arm:
        return tf.TensorSpec([2], tf.float32)
    return {name: tf.TensorSpec(shape, dtype) for name, (shape, dtype) in ARMS.items()}


def observe(rows, per_arm, seed=0):
    rng = np.random.default_rng(seed)
    draw = {name: tf.constant(rng.normal(size=[rows, *shape]), dtype) for name, (shape, dtype) in ARMS.items()}
    return draw if per_arm else draw["global"]


def make(kind, per_arm, **options):
    given = specs(observation_spec(per_arm))
    if kind == "linear":
        return bandit_env.EnsembleThompsonAgent(*given, **options)
    ensemble = tfe.Ensemble(lambda: build(4 if per_arm else 5), 3, seed=1)
    ensemble.compile(keras.optimizers.SGD(0.1), "mse")
    return bandit_env.NeuralThompsonAgent(*given, ensemble, **options)


def features_of(observation, action):
    """What an agent should learn from, `[rows, features]`: linear ones of global observations have models by action."""
    if not isinstance(observation, dict):
        return np.concatenate([observation, np.eye(3)[action]], axis=1)
    own = observation["per_arm"].numpy()[np.arange(len(action)), action]
    return np.concatenate([observation["global"], own], axis=1)


def experience(observation, taken, reward):
    kept = {"global": observation["global"]} if isinstance(observation, dict) else observation
    made = trajectories.single_step(kept, taken.action, taken.info, reward, tf.ones_like(reward))
    return tf.nest.map_structure(lambda part: part[:, tf.newaxis], made)


def decide(policy, observation, rows):
    taken = policy.action(time_steps.restart(observation, rows))
    reward = tf.constant(np.random.default_rng(7).normal(size=rows), tf.float32)
    return taken, reward


def assert_linear_learned(agent, observation, action, reward):
    """Sums in NumPy: a model per action of features and a constant, or one of features and their products."""
    action, reward = np.asarray(action), np.asarray(reward, np.float64)
    x = features_of(observation, action).astype(np.float64)
    if isinstance(observation, dict):
        pairs = np.einsum("ri,rj->rij", x[:, :2], x[:, 2:]).reshape(len(x), -1)
        x, model = np.concatenate([x, pairs], axis=1), np.zeros_like(action)
    else:
        x, model = np.concatenate([x[:, :2], np.ones([len(x), 1])], axis=1), action
    precision, target = (part.numpy() for part in agent.sums)
    for number in range(len(precision)):
        own = x[model == number]
        np.testing.assert_allclose(precision[number], np.eye(x.shape[1]) + own.T @ own, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(target[number], own.T @ reward[model == number], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("per_arm", [False, True])
@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_actions_that_a_wrapper_draws_are_learned_with_their_own_features(kind, per_arm):
    agent = make(kind, per_arm, emit_propensity=True)
    wrapped = epsilon_greedy_policy.EpsilonGreedyPolicy(agent.collect_policy, 0.5)
    observation = observe(200, per_arm)
    taken, reward = decide(wrapped, observation, 200)
    propensity = taken.info.propensity.numpy()
    assert ((propensity >= 0.0) & (propensity <= 1.0)).all()
    assert (taken.info.id.numpy() >= 0).all()
    data = experience(observation, taken, reward)
    if kind == "linear":
        agent.train(data)
        assert_linear_learned(agent, observation, taken.action, reward)
    else:
        found = experience_lib.from_training(data, agent.policy).features
        np.testing.assert_allclose(found, features_of(observation, taken.action.numpy()), rtol=1e-6)
        assert np.isfinite(float(agent.train(data).loss))


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_what_a_greedy_wrapper_records_belongs_to_its_action(kind):
    agent = make(kind, True, emit_propensity=True)
    observation = observe(100, True)
    taken, _ = decide(greedy_policy.GreedyPolicy(agent.collect_policy), observation, 100)
    own = observation["per_arm"].numpy()[np.arange(100), taken.action]
    np.testing.assert_array_equal(taken.info.chosen_arm_features, own)
    np.testing.assert_array_equal(taken.info.propensity, 1.0)


def test_features_of_another_width_are_named():
    agent = make("linear", True)
    observation = observe(4, True)
    data = experience(observation, *decide(agent.policy, observation, 4))
    info = data.policy_info._replace(chosen_arm_features=data.policy_info.chosen_arm_features[..., :1])
    with pytest.raises(ValueError, match="Expected chosen_arm_features of width 2"):
        agent.train(data._replace(policy_info=info))
    with pytest.raises(ValueError, match="Expected chosen_arm_features of width 2"):
        agent.train(data._replace(policy_info=info._replace(chosen_arm_features=())))


@pytest.mark.parametrize("width", [4, 6])
def test_members_of_the_wrong_width_are_counted(width):
    ensemble = tfe.Ensemble(lambda: build(width), 2)
    ensemble.compile("sgd", "mse")
    words = rf"5 features \(2 global \+ 3 one-hot of the action\)\. Received: members with inputs \[{width}\]"
    with pytest.raises(ValueError, match=words):
        bandit_env.NeuralThompsonAgent(*specs(), ensemble)
    if width != 4:
        with pytest.raises(ValueError, match=r"4 features \(2 global \+ 2 of the arm\)"):
            bandit_env.NeuralThompsonAgent(*specs(observation_spec(True)), ensemble)


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_a_train_step_counter_is_counted(kind):
    counter = tf.Variable(5, dtype=tf.int64)
    agent = make(kind, False, train_step_counter=counter)
    observation = observe(4, False)
    agent.train(experience(observation, *decide(agent.policy, observation, 4)))
    assert int(counter) == 6
    assert agent.train_step_counter is counter


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_saving_a_policy_warns_of_nothing_and_others_are_warned_of(kind, tmp_path, caplog):
    agent = make(kind, True)
    logging.getLogger("absl").addHandler(caplog.handler)  # It does not pass records on.
    try:
        policy_saver.PolicySaver(agent.policy, batch_size=None).save(str(tmp_path / "policy"))
        found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert [text for text in found if "Sanitizing to" not in text] == []  # TensorFlow's, of any policy, once
        absl_logging.warning('WARNING: Could not serialize policy.distribution() for policy "%s".', "another")
        assert 'for policy "another"' in caplog.text
    finally:
        logging.getLogger("absl").removeHandler(caplog.handler)
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="not a composite tensor"):
        loaded.distribution(time_steps.restart(observe(3, True), 3))


def test_as_in_tf_agents_a_linear_agent_is_updated_with_per_arm_features():
    agent = make("linear", True)
    observation = observe(9, True)
    taken, reward = decide(agent.policy, observation, 9)
    agent.train(experience(observation, taken, reward))
    assert_linear_learned(agent, observation, taken.action, reward)


def test_as_in_tf_agents_a_linear_agent_is_updated_with_masked_actions():
    spec = (tf.TensorSpec([2], tf.float32), tf.TensorSpec([3], tf.int32))
    split = {"observation_and_action_constraint_splitter": lambda pair: (pair[0], pair[1])}
    agent = bandit_env.EnsembleThompsonAgent(*specs(spec), **split)
    mask = np.random.default_rng(0).permuted(np.tile([1, 1, 0], [50, 1]), axis=1)
    observation = (observe(50, False), tf.constant(mask, tf.int32))
    wrapped = epsilon_greedy_policy.EpsilonGreedyPolicy(agent.collect_policy, 0.5)
    for policy in (agent.policy, wrapped):
        taken, reward = decide(policy, observation, 50)
        assert (mask[np.arange(50), taken.action] == 1).all()
    agent.train(experience(observation, taken, reward))
    assert_linear_learned(agent, observation[0], taken.action, reward)


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_as_in_tf_agents_a_mixture_updates_the_agent_that_decided(kind, rows):
    agents, alone = ([make(kind, False, seed=seed) for seed in (0, 1)] for _ in range(2))
    mixture = static_mixture_agent.StaticMixtureAgent(tfp.distributions.Categorical(probs=[0.5, 0.5]), agents)
    observation = observe(rows, False)
    taken, reward = decide(mixture.collect_policy, observation, rows)
    data = experience(observation, taken, reward)
    assert np.isfinite(float(mixture.train(data).loss))
    chosen = taken.info["mixture_agent_id"].numpy()
    for number, agent in enumerate(alone):
        own = data._replace(policy_info=data.policy_info["subpolicy_info"])
        own = tf.nest.map_structure(lambda part, number=number: part[chosen == number], own)
        if (chosen == number).any():
            agent.train(own)
        for one, other in zip(variables(agent), variables(agents[number]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def variables(agent):
    if isinstance(agent, bandit_env.EnsembleThompsonAgent):
        return [part.numpy() for part in agent.sums]
    return [np.array(variable) for variable in agent.ensemble.trainable_variables]


@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 2.0, 0.5]])
@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_as_in_tf_agents_loss_info_is_the_loss_before_the_update(kind, weights):
    agent = make(kind, False)
    observation = observe(4, False)
    taken, reward = decide(agent.policy, observation, 4)
    data = experience(observation, taken, reward)
    given = None if weights is None else tf.constant(weights)
    if kind == "linear":
        squares, total = np.square(reward)[:, None], 4.0 if weights is None else sum(weights)  # Means start at 0.
    else:
        x = features_of(observation, taken.action.numpy()).astype(np.float32)
        squares, total = np.square(agent.ensemble.predict(x, verbose=0)[:, :, 0] - reward[:, None]), 4.0
    expected = np.sum(np.mean(squares, axis=1) * (np.ones(4) if weights is None else weights)) / total
    info = agent.train(data, weights=given)
    assert info.loss.shape == []
    assert info.loss.dtype == tf.float32
    np.testing.assert_allclose(info.loss, expected, rtol=1e-5)
    assert float(agent.loss(data, weights=given).loss) < expected


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_as_in_tf_agents_variables_are_restored_from_a_checkpoint(kind, tmp_path):
    agent, other = (make(kind, False) for _ in range(2))
    observation = observe(6, False)
    agent.train(experience(observation, *decide(agent.policy, observation, 6)))
    path = tf.train.Checkpoint(agent=agent).save(str(tmp_path / "checkpoint"))
    agent.initialize()
    tf.train.Checkpoint(agent=other).restore(path).assert_existing_objects_matched()
    for one, restored in zip(variables(agent), variables(other), strict=True):
        np.testing.assert_array_equal(one, restored)
    assert int(other.train_step_counter) == 1
