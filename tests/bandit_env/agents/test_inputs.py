"""What does not fit is named before the state changes, and no size of batch is traced anew."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.lazy import Lazy
from tf_ensembles import bandit_env

policy_lib = Lazy("tf_ensembles.bandit_env.agents.policy")
tensor_spec = Lazy("tf_agents.specs.tensor_spec")
time_steps = Lazy("tf_agents.trajectories.time_step")
trajectories = Lazy("tf_agents.trajectories.trajectory")
ERRORS = (ValueError, tf.errors.InvalidArgumentError)


def specs(observation=None, actions=3):
    observation = tf.TensorSpec([2], tf.float32) if observation is None else observation
    return time_steps.time_step_spec(observation), tensor_spec.BoundedTensorSpec([], tf.int32, 0, actions - 1, "action")


def build(width=5):
    return keras.Sequential([keras.Input([width]), keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])


def make_agent(kind, **options):
    if kind == "linear":
        return bandit_env.EnsembleThompsonAgent(*specs(), **options)
    ensemble = tfe.Ensemble(build, 4, tfe.PriorFunction(build, 1.0), seed=1)
    ensemble.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    return bandit_env.NeuralThompsonAgent(*specs(), ensemble, **options)


def observe(rows, seed=0):
    return tf.constant(np.random.default_rng(seed).normal(size=[rows, 2]), tf.float32)


def experience(agent, rows, seed=0):
    """Decisions of the agent's policy with rewards, `[rows, 1, ...]`."""
    step = time_steps.restart(observe(rows, seed), rows)
    taken = agent.policy.action(step)
    made = trajectories.single_step(step.observation, taken.action, taken.info, tf.ones([rows]), step.discount)
    return tf.nest.map_structure(lambda part: part[:, tf.newaxis], made)


def state(agent):
    found = [*agent.policy.variables(), agent.train_step_counter]
    if isinstance(agent, bandit_env.NeuralThompsonAgent):
        found += [variable.value for variable in agent.ensemble.optimizer.variables]
    return [variable.numpy() for variable in found]


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_bad_experience_is_named_before_the_state_changes(kind):
    agent = make_agent(kind)
    good = experience(agent, 3)
    agent.train(good)
    before = state(agent)
    spoiled = tf.tensor_scatter_nd_update(good.observation, [[1, 0, 0]], [np.nan])
    for change, weights, message in [
        ({"reward": good.reward * np.inf}, None, "Expected finite rewards"),
        ({"observation": spoiled}, None, "Expected finite features"),
        ({"observation": spoiled[..., :1]}, None, r"observations of 2 global features\. Received: 1"),
        ({"policy_info": ()}, None, "policy_info of this agent's policy"),
        ({"action": good.action + 3}, None, r"Expected actions in \[0, 3\)"),
        ({}, [1.0, np.nan, 1.0], "Expected finite weights >= 0"),
        ({}, [1.0, -1.0, 1.0], "Expected finite weights >= 0"),
        ({}, [1.0, 1.0], "one for each of 3 rewards"),
    ]:
        with pytest.raises(ERRORS, match=message):
            agent.train(good._replace(**change), weights=None if weights is None else tf.constant(weights))
    with pytest.raises(ValueError, match=r"Expected experience of shape \[batch, time\]"):
        agent.train(tf.nest.map_structure(lambda part: part[:, 0], good))
    for one, other in zip(before, state(agent), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.isfinite(float(agent.loss(good).loss))


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_bad_observations_are_named_before_the_step_is_counted(kind):
    policy = make_agent(kind).policy
    for observation, message in [
        (observe(3) * np.nan, "Expected finite features"),
        (tf.zeros([3, 5]), r"observation of shape \[batch, 2\]"),
    ]:
        with pytest.raises(ERRORS, match=message):
            policy.action(time_steps.restart(observation, 3))
    assert int(policy.step) == 0


def test_specs_that_cannot_be_read_are_named():
    mask = tf.TensorSpec([3], tf.int32)
    arms = {"global": tf.TensorSpec([0], tf.float32), "per_arm": tf.TensorSpec([4, 2], tf.float32)}
    for observation, message in [
        ((tf.TensorSpec([2], tf.float32), mask), "observation_and_action_constraint_splitter"),
        (arms, r"shape \[3, features\], a row for each action"),
        ({"global": tf.TensorSpec([2], tf.float32), "other": mask}, "Expected observations with keys"),
        ({"global": {"user": mask, "hour": mask}}, "'global' features .* Received: 2 of them: hour, user"),
        ({"global": mask, "per_arm": (mask, mask)}, "'per_arm' features .* Received: 2 of them: part 0, part 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            bandit_env.EnsembleThompsonAgent(*specs(observation))
    for change, message in [
        ({"choice": "best"}, "Expected choice to be one of"),
        ({"form": "shared"}, 'form="disjoint" for observations without arm features'),
        ({"discount": 0.0}, "Expected discount in"),
        ({"ucb_width": np.nan}, "ucb_width >= 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            bandit_env.EnsembleThompsonAgent(*specs(), **change)


@pytest.mark.parametrize("kind", ["linear", "neural"])
def test_no_size_of_batch_is_traced_beyond_the_second(kind):
    agent = make_agent(kind)
    for rows in (1, 2, 3, 5):
        agent.train(experience(agent, rows))
    assert agent.policy._decide_any.experimental_get_tracing_count() == 1
    learn = agent.models._learn_any if kind == "linear" else agent.ensemble.train_function
    if kind == "linear":
        assert learn.experimental_get_tracing_count() == 1
    else:
        assert not agent.ensemble.jit_compile
