"""`EnsembleDqnAgent` where TF-Agents' own agents can be asked the same: losses, masks, steps without a state."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.lazy import Lazy, policy_saver

agent_lib = Lazy("tf_ensembles.bandit_env.agents.dqn.agent")
common = Lazy("tf_agents.utils.common")
dqn_agent = Lazy("tf_agents.agents.dqn.dqn_agent")
epsilon_greedy_policy = Lazy("tf_agents.policies.epsilon_greedy_policy")
sequential = Lazy("tf_agents.networks.sequential")
tensor_spec = Lazy("tf_agents.specs.tensor_spec")
time_steps = Lazy("tf_agents.trajectories.time_step")
trajectories = Lazy("tf_agents.trajectories.trajectory")

FIRST, MID, LAST = 0, 1, 2
ACTIONS, WIDTH, DISCOUNT = 3, 4, 0.9
SPLIT = {"observation_and_action_constraint_splitter": lambda pair: (pair[0], pair[1])}


def make_specs(masked=False):
    observation = tf.TensorSpec([WIDTH], tf.float32, "observation")
    if masked:
        observation = (observation, tf.TensorSpec([ACTIONS], tf.int32, "mask"))
    action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, ACTIONS - 1, "action")
    return time_steps.time_step_spec(observation), action


def build(width=WIDTH):
    return keras.Sequential([keras.Input([width]), keras.layers.Dense(ACTIONS)])


def make(num_members=1, masked=False, loss="mse", width=WIDTH, **options):
    ensemble = tfe.Ensemble(lambda: build(width), num_members, seed=3)
    ensemble.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False)
    options = {**(SPLIT if masked else {}), **options}
    return agent_lib.EnsembleDqnAgent(*make_specs(masked), ensemble, discount=DISCOUNT, **options)


def make_stock(loss, num_steps, masked):
    """TF-Agents' double DQN with a linear network, and weights for it and for its target network."""
    rng = np.random.default_rng(1)
    weights = [[rng.normal(size=[WIDTH, ACTIONS]), rng.normal(size=ACTIONS)] for _ in range(2)]
    layer = tf.compat.v1.keras.layers.Dense(ACTIONS)
    agent = dqn_agent.DdqnAgent(
        *make_specs(masked), sequential.Sequential([layer]), optimizer=None, gamma=DISCOUNT, n_step_update=num_steps,
        td_errors_loss_fn=loss, **(SPLIT if masked else {}),
    )  # fmt: skip
    for network, values in zip((agent._q_network, agent._target_q_network), weights, strict=True):
        for variable, value in zip(network.variables, values, strict=True):
            variable.assign(value)
    return agent, weights


def give(agent, weights):
    """Puts the weights into the online network and the target of our agent, for all members."""
    for online, target, *values in zip(agent.ensemble.trainable_variables, agent._target, *weights, strict=True):
        for variable, value in zip((online, target), values, strict=True):
            variable.assign(np.broadcast_to(value, variable.shape))


def make_experience(num_steps, masked=False, rows=6):
    """Consecutive steps `[rows, num_steps + 1]`: one row ends on the way, one starts at the end of an episode."""
    rng, shape = np.random.default_rng(0), [rows, num_steps + 1]
    kind, discount = np.full(shape, MID), np.ones(shape, np.float32)
    after = np.full(shape, MID)
    after[1, 0], discount[1, 0], kind[1, 1] = LAST, 0.0, LAST
    after[1, 1:2] = FIRST
    kind[2, 0], after[2, 0] = LAST, FIRST
    seen = tf.constant(rng.normal(size=[*shape, WIDTH]), tf.float32)
    mask = tf.constant(rng.permuted(np.tile([1, 1, 0], [*shape, 1]), axis=-1), tf.int32)
    return trajectories.Trajectory(
        step_type=tf.constant(kind, tf.int32),
        observation=(seen, mask) if masked else seen,
        action=tf.constant(rng.integers(ACTIONS, size=shape), tf.int32),
        policy_info=(),
        next_step_type=tf.constant(after, tf.int32),
        reward=tf.constant(2.0 * rng.normal(size=shape), tf.float32),
        discount=tf.constant(discount),
    )


def with_ids(agent, data):
    info = agent.collect_policy.info_spec.__class__(tf.zeros_like(data.action, tf.int64))
    return data._replace(policy_info=info)


@pytest.mark.parametrize(("name", "stock_loss"), [("mse", "element_wise_squared_loss"), ("huber", None)])
@pytest.mark.parametrize(("num_steps", "masked"), [(1, False), (1, True), (3, False), (3, True)])
def test_as_in_tf_agents_the_loss_of_several_steps_and_of_masked_actions(name, stock_loss, num_steps, masked):
    function = common.element_wise_huber_loss if stock_loss is None else getattr(common, stock_loss)
    stock, weights = make_stock(function, num_steps, masked)
    agent = make(masked=masked, loss=name, n_step_update=num_steps)
    give(agent, weights)
    data = make_experience(num_steps, masked)
    expected = stock._loss(data, td_errors_loss_fn=function, gamma=DISCOUNT).loss
    np.testing.assert_allclose(agent.loss(with_ids(agent, data)).loss, expected, rtol=1e-5)


def test_what_would_cross_into_the_next_episode_counts_for_nothing():
    agent, data = make(n_step_update=3), make_experience(3)
    whole = float(agent.loss(with_ids(agent, data)).loss)
    for step in (1, 2):  # An episode that was cut off there: its discount is 1, and it says nothing of what follows.
        kind, after = data.step_type.numpy(), data.next_step_type.numpy()
        after[3, step - 1], kind[3, step], after[3, step] = LAST, LAST, FIRST
        cut = data._replace(step_type=tf.constant(kind), next_step_type=tf.constant(after))
        alone = tf.nest.map_structure(lambda part: part[3:4], data)
        expected = whole - float(agent.loss(with_ids(agent, alone)).loss) / 6.0
        np.testing.assert_allclose(agent.loss(with_ids(agent, cut)).loss, expected, rtol=1e-5)


def test_huber_is_what_members_learn():
    """One step of plain gradient descent, against the derivative of Huber's loss written out."""
    agent, data = make(loss=keras.losses.Huber(0.5), num_members=2), make_experience(1)
    data = with_ids(agent, data)
    kernel = agent.ensemble.trainable_variables[0].numpy()
    goal, weight = agent._goals(data, None)
    x, action = data.observation[:, 0].numpy(), data.action[:, 0].numpy()
    value = np.einsum("bi,mia->bma", x, kernel)[np.arange(6), :, action]  # Biases start at 0.
    slope = weight * np.clip(value - goal, -0.5, 0.5) / 6.0
    expected = kernel - 0.1 * np.einsum("bi,bm,ba->mia", x, slope, np.eye(ACTIONS)[action])
    tf.function(agent.train, autograph=False)(data)
    np.testing.assert_allclose(agent.ensemble.trainable_variables[0], expected, atol=1e-6)


def test_losses_and_widths_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"losses for values, such as .* Received: binary_crossentropy"):
        make(loss="binary_crossentropy")
    with pytest.raises(ValueError, match=r"an observation of shape \[4\]\. Received: members with inputs \[5\]"):
        make(width=5)
    ensemble = make().ensemble
    with pytest.raises(ValueError, match="observation_and_action_constraint_splitter"):
        agent_lib.EnsembleDqnAgent(*make_specs(masked=True), ensemble)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_without_a_state_is_a_fresh_one(compiled):
    agent = make(5)
    step = time_steps.restart(tf.random.stateless_normal([7, WIDTH], [1, 2]), 7)
    mean = agent.policy.values(step.observation).numpy().mean(axis=1)
    act = tf.function(agent.policy.action, autograph=False) if compiled else agent.policy.action
    found = act(step)
    np.testing.assert_array_equal(found.action, mean.argmax(axis=1))
    assert found.state == agent.policy.get_initial_state(7) == ()
    again = agent.policy.action(step, found.state)
    assert not set(found.info.id.numpy()) & set(again.info.id.numpy())
    other = make(5)
    states = other.collect_policy.get_initial_state(7), ()
    first, second = (other.collect_policy.action(step, state) for state in states)
    assert not set(first.info.id.numpy()) & set(second.info.id.numpy())
    wrapped = epsilon_greedy_policy.EpsilonGreedyPolicy(agent.policy, 0.0)
    np.testing.assert_array_equal(wrapped.action(step).action, mean.argmax(axis=1))


@pytest.mark.parametrize("epsilon", [0.0, 0.7])
def test_masked_actions_are_not_taken(epsilon, tmp_path):
    agent = make(5, masked=True, epsilon=epsilon)
    mask = np.random.default_rng(0).permuted(np.tile([1, 1, 0], [300, 1]), axis=1)
    step = time_steps.restart((tf.random.stateless_normal([300, WIDTH], [1, 2]), tf.constant(mask, tf.int32)), 300)
    taken = agent.collect_policy.action(step).action.numpy()
    assert (mask[np.arange(300), taken] == 1).all()
    best = np.where(mask, agent.policy.values(step.observation[0]).numpy().mean(axis=1), -np.inf).argmax(axis=1)
    np.testing.assert_array_equal(agent.policy.action(step).action, best)
    if epsilon:  # Of what is drawn by chance, each of the two that are allowed has half.
        allowed = np.array([np.flatnonzero(row) for row in mask])
        share = np.mean(agent.collect_policy.action(step).action.numpy() == allowed[:, 0])
        assert abs(share - 0.5) < 4.0 * 0.5 / np.sqrt(300.0)
        return
    policy_saver.PolicySaver(agent.policy, batch_size=None).save(str(tmp_path / "policy"))
    loaded = tf.saved_model.load(str(tmp_path / "policy"))
    np.testing.assert_array_equal(loaded.action(step).action, best)


def test_a_shared_train_step_counter_does_not_change_when_targets_are_copied():
    counter = tf.Variable(3, dtype=tf.int64)
    agent, data = make(train_step_counter=counter, target_update_period=2), make_experience(1)
    data, train = with_ids(agent, data), tf.function(agent.train, autograph=False)
    copied = []
    for _ in range(4):
        before = agent._target[0].numpy()
        train(data)
        counter.assign_add(1)  # by another user of it
        copied.append(not np.array_equal(before, agent._target[0].numpy()))
    assert copied == [False, False, True, False]  # The first copy is of the weights that are there already.
    assert int(counter) == 3 + 8
