"""The steps of the compiled rollout: the choices and the updates of `NeuralThompsonAgent`, and of Keras."""

import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.lazy import Lazy
from tests.needs import needs
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.networks import export, problems, rollout, simulation
from tf_ensembles.ensemble.data import with_ids

bandit_env = Lazy("bandit_env")
stock = Lazy("tf_ensembles.bandit_env.agents.stock")
environment = Lazy("tf_ensembles.bandit_env.agents.environment")
LEARNER = rollout.Learner(hidden_sizes=(6, 5), learning_rate=1e-2, batch_size=8)
AGENT = rollout.Agent(num_members=3, prior_scale=0.7, bootstrap=tfe.Bernoulli(0.5))


def make_wheel(count=3, horizon=40):
    return problems.make_wheel(range(count), horizon, 0.5)


def make_arms(count=3):
    return problems.make_random_network(range(count), num_actions=7, dim=4)


class Eager:
    """The rollout's own steps, one by one and not compiled."""

    def __init__(self, agent, made, learner=LEARNER, seed=5, capacity=20):
        self.agent, self.made, self.learner, self.seed = agent, made, learner, seed
        has_prior = agent.prior_scale > 0
        self.plan = rollout.make_plan(agent, made, learner, has_prior)
        self.setting = rollout.make_setting(agent, made, learner, seed, has_prior)
        start = rollout._start(agent, made, learner)
        self.state = simulation.initial_state(self.plan, self.setting, start, capacity)
        self.time, self.actions = 0, []

    def run(self, count):
        for _ in range(count):
            now = tf.constant(self.time, tf.int64)
            self.state, happened = simulation.take_step(self.plan, self.state, self.setting, now)
            self.actions.append(happened[1].numpy())
            self.time += 1

    def ensemble(self, problem):
        """The Keras ensemble of one problem, as it is now."""
        kernels = [tuple(kernel.numpy() for kernel in part) for part in (self.state.kernels, self.setting.prior)]
        empty = np.zeros([0, 0])
        found = rollout.Result(empty, empty, empty, *kernels)
        bootstrap = self.agent.bootstrap
        return export.make_ensemble(found, problem, self.made.binary, self.learner, bootstrap, self.seed)


@needs("tf_agents")
@pytest.mark.parametrize("make", [make_wheel, pytest.param(make_arms, marks=pytest.mark.slow)])
def test_the_agent_of_tf_agents_makes_the_same_choices_from_the_same_weights(make):
    made = make()
    game = Eager(AGENT, made)
    game.run(8)
    game.plan, count = game.plan._replace(every=1000), len(made.seeds)  # Nothing more is learned.
    first, ensembles = game.time, [game.ensemble(problem) for problem in range(count)]
    game.run(10)
    contexts = made.contexts[:, np.arange(first, first + 10) % made.contexts.shape[1]]
    for problem, ensemble in enumerate(ensembles):
        if made.heads > 1:
            specs = stock.make_specs(contexts.shape[-1], made.heads)
            shown = [stock.make_time_step(np.repeat(row, count, axis=0)) for row in contexts[problem]]
        else:
            specs, shown = per_arm(contexts[problem], count)
        policy = bandit_env.NeuralThompsonAgent(*specs, ensemble, seed=game.seed).policy
        policy.step.assign(first)
        # Row j of a batch belongs to problem j: the others see this problem's weights, too, and are not looked at.
        taken = [policy.action(step).action.numpy()[problem] for step in shown]
        assert taken == [actions[problem] for actions in game.actions[first:]]
    assert len({tuple(actions) for actions in game.actions[first:]}) > 1


def per_arm(contexts, count):
    num_actions, dim = contexts.shape[1:]
    env = bandit_env.HeteroscedasticLinearBandit(1, num_actions, dim)
    blank = env.reset()
    shown = []
    for arms in contexts:
        observation = {
            environment.GLOBAL: tf.zeros([count, 0]),
            environment.PER_ARM: tf.constant(np.repeat(arms[None], count, axis=0)),
        }
        rest = {name: tf.repeat(getattr(blank, name), count) for name in ("step_type", "reward", "discount")}
        shown.append(blank._replace(observation=observation, **rest))
    return (env.time_step_spec(), env.action_spec()), shown


@pytest.mark.parametrize("make", [pytest.param(make_wheel, marks=pytest.mark.slow), make_arms])
def test_updates_are_those_that_keras_makes(make):
    """Real rewards and binary ones, an output per arm and features per arm: priors, bootstrap weights, Adam."""
    made = make(2)
    game = Eager(AGENT, made)
    # Decisions are made without learning, so that the networks of both are at their start.
    learning, game.plan = game.plan, game.plan._replace(every=1000)
    game.run(12)
    ensembles = [game.ensemble(problem) for problem in range(2)]
    places = np.random.default_rng(0).integers(12, size=[3, 2, 8])
    ring = game.state.ring
    for now in places:
        game.state = simulation.update(learning, game.state, game.setting, tf.constant(now, tf.int32))
        for problem, ensemble in enumerate(ensembles):
            x, head, reward = (part.numpy()[now[problem], problem] for part in (ring.x, ring.head, ring.reward))
            inputs = x[:, :-1] if made.heads == 1 else np.concatenate([x[:, :-1], np.eye(made.heads)[head]], axis=1)
            ids = steps.make_ids(tf.gather(ring.step, now[problem]), tf.constant(problem, tf.int64))
            ensemble.train_on_batch(with_ids(tf.constant(inputs, tf.float32), ids), reward[:, None])
    for problem, ensemble in enumerate(ensembles):
        ours = export.dense_weights([kernel.numpy()[problem] for kernel in game.state.kernels])
        started = export.dense_weights([kernel[problem] for kernel in rollout._start(AGENT, made, LEARNER)])
        for mine, start, variable in zip(ours, started, ensemble.members.variables, strict=True):
            # Three steps of Adam move a weight by up to 0.03; rounding is about 1e-7 of it.
            np.testing.assert_allclose(mine, variable.numpy(), atol=2e-5)
            assert np.abs(mine - start).max() > 5e-3


def test_the_compiled_loop_makes_the_steps_one_by_one():
    made = make_wheel()
    game = Eager(AGENT, made, capacity=15)  # The ring goes round.
    game.run(20)
    graph = simulation.make_graph(game.plan, 24)
    start = simulation.initial_state(game.plan, game.setting, rollout._start(AGENT, made, LEARNER), 15)
    state, (_, action, _) = graph(start, game.setting, tf.constant(0, tf.int64), tf.constant(20))
    np.testing.assert_array_equal(action[:20], game.actions)
    for one, other in zip(state.kernels, game.state.kernels, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert sorted(state.ring.step.numpy()) == list(range(5, 20))


def test_dropout_that_drops_nothing_is_greedy():
    made = make_wheel()
    games = [Eager(rollout.Agent(**options), made) for options in ({}, {"kind": "dropout", "dropout": 0.0})]
    for game in games:
        game.run(5)
    np.testing.assert_array_equal(*(game.actions for game in games))


def test_dropout_draws_its_units_anew():
    game = Eager(rollout.Agent("dropout", dropout=0.5), make_wheel())
    masks = [simulation._masks(game.state.kernels, game.setting, tf.constant(t, tf.int64), 200) for t in (0, 1)]
    for first, second in zip(*masks, strict=True):
        assert set(np.unique(first)) == {0.0, 2.0}
        assert np.mean(first == second) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(3 * 5 * 200))


def test_epsilon_is_how_often_chance_decides():
    game = Eager(rollout.Agent("linear", epsilon=0.3), problems.make_wheel(range(4000), 1, 0.5))
    action = simulation.explored(tf.zeros([4000], tf.int32), game.setting, 5, tf.constant(0, tf.int64)).numpy()
    error = np.sqrt(0.3 * 0.7 / 4000)
    assert np.mean(action > 0) == pytest.approx(0.3 * 4 / 5, abs=5 * error)
    assert np.bincount(action)[1:] / 4000 == pytest.approx(np.full(4, 0.06), abs=5 * error)


def test_a_problem_runs_alike_alone():
    made = make_wheel()
    together, alone = Eager(AGENT, made), Eager(AGENT, made.rows([2]))
    for game in (together, alone):
        game.run(5)
    np.testing.assert_array_equal(np.array(together.actions)[:, 2:], alone.actions)
