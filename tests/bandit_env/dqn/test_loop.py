"""The compiled loop against a DQN written out: M separate networks, a list of transitions, the chain rule in NumPy."""

import dataclasses
import resource

import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tf_ensembles import draws, files
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.dqn import environments, training
from tf_ensembles.trainers.mlp import network

SMALL = training.Learner(hidden_sizes=(6, 5), batch_size=8, capacity=12, min_transitions=5, target_period=3)
SEEDS = (3, 8)


class OneHot(environments.DeepSea):
    """Deep sea whose cells are not counted: networks see observations."""

    num_cells = 0


def layers(weights, x):
    """What a network computes at x, layer by layer."""
    found = [np.asarray(x, np.float64)]
    for kernel in weights[:-1]:
        found.append(np.maximum(found[-1] @ kernel[:, :-1].T + kernel[:, -1], 0.0))
    return [*found, found[-1] @ weights[-1][:, :-1].T + weights[-1][:, -1]]


def gradients(weights, x, by_output):
    """The chain rule, from the gradient by the outputs to those by weights and biases."""
    below, found = layers(weights, x)[:-1], []
    for kernel, inputs in zip(weights[::-1], below[::-1], strict=True):
        found.insert(0, np.column_stack([by_output.T @ inputs, by_output.sum(0)]))
        by_output = (by_output @ kernel[:, :-1]) * (inputs > 0)
    return found


class Adam:
    """Adam of Kingma and Ba (2015), with Keras's epsilon."""

    def __init__(self, rate):
        self.rate, self.time, self.first, self.second = rate, 0, 0.0, 0.0

    def __call__(self, weights, found):
        self.time += 1
        square = [one**2 for one in found]
        self.first = [0.9 * a + 0.1 * b for a, b in zip(self.first or [0.0] * 9, found, strict=False)]
        self.second = [0.999 * a + 0.001 * b for a, b in zip(self.second or [0.0] * 9, square, strict=False)]
        rate = self.rate * np.sqrt(1 - 0.999**self.time) / (1 - 0.9**self.time)
        moved = zip(weights, self.first, self.second, strict=True)
        return [w - rate * m / (np.sqrt(v) + 1e-7) for w, m, v in moved]


def plain(kernels, seed, member):
    """One member's kernels."""
    return [kernel[seed, member] for kernel in kernels]


def written_out(agent, environment, learner, place, start, num_steps):
    """One seed's run: actions, rewards and members' weights at the end."""
    seed, size = SEEDS[place], environment.size
    row, members = tf.constant([seed], tf.int64), agent.num_members
    world = environment.make_world([seed])
    nets = [[one.astype(np.float64) for one in plain(start.kernels, place, m)] for m in range(members)]
    priors = [plain(start.prior_kernels, place, m) if start.prior_kernels else None for m in range(members)]
    targets, adams = nets, [Adam(learner.learning_rate) for _ in range(members)]
    stored, actions, rewards, updates, episode = [], [], [], 0, 0
    keys = {name: draws.key(0, draws.Purpose[f"DQN_{name}"]) for name in ("MEMBER", "EXPLORE", "BATCH")}

    def total(weights, member, x):
        return layers(weights, x)[-1] + (layers(priors[member], x)[-1] if priors[member] else 0.0)

    numbers = tf.range(num_steps, dtype=tf.int64)
    ids = steps.make_ids(numbers, row)
    who, (whether, which) = (
        steps.uniforms_of(key, ids, streams).numpy() for key, streams in ((keys["MEMBER"], 1), (keys["EXPLORE"], 2))
    )
    places = steps.uniforms_at(keys["BATCH"], numbers, steps.places(row, learner.batch_size)).numpy()
    state = environment.start(world, tf.zeros([1], tf.int64))
    for step in range(num_steps):
        member = int(who[0, episode] * members)
        here = environment.observe(state).numpy()
        action = int(np.argmax(total(nets[member], member, here)))
        action = int(which[step] * 2) if whether[step] < agent.epsilon else action
        outcome = environment.step(world, state, tf.constant([action]), tf.constant([step], tf.int64))
        done = bool(outcome.done[0])
        stored.append(
            (step, here[0], action, float(outcome.reward[0]), done, environment.observe(outcome.state).numpy()[0])
        )
        actions.append(action)
        rewards.append(float(outcome.reward[0]))
        episode += done
        state = environment.start(world, None) if done else outcome.state
        if step + 1 < learner.min_transitions:
            continue
        ring = sorted(stored[-learner.capacity :], key=lambda one: one[0] % learner.capacity)
        if updates % learner.target_period == 0:
            targets = list(nets)
        batch = [ring[int(one * len(ring))] for one in places[updates]]
        x, after = np.stack([one[1] for one in batch]), np.stack([one[5] for one in batch])
        for m in range(members):
            best = np.argmax(total(nets[m], m, after), axis=1)
            later = total(targets[m], m, after)[np.arange(len(batch)), best]
            goal = [one[3] + learner.discount * (0.0 if one[4] else v) for one, v in zip(batch, later, strict=True)]
            weight = np.ones(len(batch))
            if agent.bootstrap is not None:
                ids = [(one[0] << 32) + seed for one in batch]
                weight = agent.bootstrap.weights(0, ids, [m]).numpy()[:, 0]
            by_output, taken = np.zeros([len(batch), 2]), (np.arange(len(batch)), [one[2] for one in batch])
            by_output[taken] = 2.0 * weight * (total(nets[m], m, x)[taken] - goal) / len(batch)
            nets[m] = adams[m](nets[m], gradients(nets[m], x, by_output))
        updates += 1
    assert size * episode <= num_steps
    return actions, rewards, nets


BP = training.Agent(2, 1.5, tfe.Bernoulli(0.5))
DEEP = dataclasses.replace(SMALL, learning_rate=0.01)
LEARNER = dataclasses.replace(DEEP, hidden_sizes=(8,))  # compiles sooner
SEA = environments.DeepSea(3)


def check_against_written_out(agent, environment, num_steps, learner, places=(0, 1)):
    """Actions, rewards and weights. Each step of Adam moves a weight by 0.01 at most, and rounding by a share of it."""
    run = training.Run(agent, environment, SEEDS, learner)
    start = run.result()
    happened = [run.advance(9), run.advance(num_steps - 9)]
    end = run.result()
    sea = environments.DeepSea(environment.size, environment.stochastic)
    for place in places:
        actions, rewards, nets = written_out(agent, sea, learner, place, start, num_steps)
        np.testing.assert_array_equal(np.concatenate([part.action[:, place] for part in happened]), actions)
        np.testing.assert_allclose(np.concatenate([part.reward[:, place] for part in happened]), rewards, atol=1e-6)
        for member, net in enumerate(nets):
            for found, expected in zip(plain(end.kernels, place, member), net, strict=True):
                np.testing.assert_allclose(found, expected, atol=2e-4)
    moved = [np.abs(a - b).max() for a, b in zip(end.kernels, start.kernels, strict=True)]
    assert min(moved) > 0.05


def test_the_loop_is_a_dqn_of_separate_members():
    check_against_written_out(
        BP, SEA, 20, LEARNER, places=(1,)
    )  # A ring of 12 is overwritten, and the target network copied.


@pytest.mark.slow
@pytest.mark.parametrize("agent", [training.Agent(1, epsilon=0.3), training.Agent(3), BP], ids=["epsilon", "n", "bp"])
@pytest.mark.parametrize("kind", [environments.DeepSea, OneHot])
def test_all_agents_with_cells_and_with_observations(agent, kind):
    check_against_written_out(agent, kind(4, stochastic=True), 49, DEEP)


def test_a_full_disk_is_one_line_and_leaves_what_was_saved(tmp_path):
    run = training.Run(BP, SEA, SEEDS, LEARNER)
    run.save(tmp_path / "run.npz")
    before, limits = (tmp_path / "run.npz").read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))  # A file cannot grow beyond that.
    try:
        with pytest.raises(
            OSError, match=r"Expected to write the run to .*run\.npz\. Received: File too large; what was"
        ):
            run.save(tmp_path / "run.npz")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "run.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"]


def test_kill_and_resume_gives_the_same_bits(tmp_path):
    whole = training.Run(BP, SEA, SEEDS, LEARNER)
    happened = whole.advance(40)
    first = training.Run(BP, SEA, SEEDS, LEARNER)
    first.advance(17)  # within an episode
    first.save(tmp_path / "run.npz")
    resumed = training.run_dqn(BP, SEA, 40, SEEDS, LEARNER, checkpoint=tmp_path / "run.npz", checkpoint_every=10)
    expected = whole.result()
    for found, other in zip(tf.nest.flatten(resumed.episodes), tf.nest.flatten(expected.episodes), strict=True):
        np.testing.assert_array_equal(found, other)
    for found, other in zip(resumed.kernels, expected.kernels, strict=True):
        np.testing.assert_array_equal(found, other)
    again = training.Run(BP, SEA, SEEDS, LEARNER)
    again.restore(tmp_path / "run.npz")
    for found, other in zip(tf.nest.flatten(again.states), tf.nest.flatten(whole.states), strict=True):
        np.testing.assert_array_equal(found, other)
    # Episodes are what their steps say.
    for place, seed in enumerate(SEEDS):
        own = expected.of(seed)
        np.testing.assert_array_equal(own.length, 3)
        np.testing.assert_allclose(own.total, happened.reward[:39, place].reshape(-1, 3).sum(1), atol=1e-6)
        np.testing.assert_array_equal(own.mark, happened.mark[2:39:3, place])
    other = training.Run(BP, SEA, SEEDS, dataclasses.replace(LEARNER, discount=0.5))
    with pytest.raises(ValueError, match="Expected a run of the same agent, environment, seeds and learner"):
        other.restore(tmp_path / "run.npz")
    (tmp_path / "run.npz").write_bytes((tmp_path / "run.npz").read_bytes()[:-7])
    with pytest.raises(files.DamagedError, match="no whole archive"):
        again.restore(tmp_path / "run.npz")


def test_what_is_not_finite_is_told():
    run = training.Run(BP, SEA, SEEDS, LEARNER)
    rewards = run.states[0].ring.reward
    with pytest.raises(ValueError, match=r"Expected finite rewards\. Received: nan in transition 11 of seed 8"):
        training._check_finite(np.array([[0.0, 1.0], [0.0, np.nan]]), run.states[0], SEEDS, 10)
    broken = run.states[0]._replace(kernels=(run.states[0].kernels[0] * np.nan, *run.states[0].kernels[1:]))
    with pytest.raises(ValueError, match="Expected networks that stay finite; lower the learning rate"):
        training._check_finite(rewards.numpy(), broken, SEEDS, 0)


def test_learning_time_is_bsuites():
    """The first episode up to which less than 90% were bad."""
    bad = np.array([1.0] * 17 + [0.0] * 3)
    by_hand = [k for k in range(1, 21) if sum(bad[:k]) / k < 0.9]
    assert training.learning_time(bad) == by_hand[0] == 19
    assert training.learning_time(np.array([0.0, 1.0])) == 1
    assert np.isnan(training.learning_time(np.array([0.0] + [1.0] * 11), least=10))
    assert np.isnan(training.learning_time(np.array([1.0] * 9 + [0.0])))  # Just 90%.
    assert np.isnan(training.learning_time(np.zeros([0])))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: training.make_agent("ensemble"), "Expected an agent of .* Received: 'ensemble'"),
        (lambda: training.Agent(0), "Expected num_members >= 1"),
        (lambda: training.Agent(2, -1.0), "Expected a finite prior_scale >= 0. Received: -1.0"),
        (lambda: training.Agent(2, epsilon=2.0), r"Expected epsilon in \[0, 1\]. Received: 2.0"),
        (lambda: training.Agent(2, bootstrap=0.5), r"Expected a bootstrap such as tfe.Bernoulli\(0.5\), or None"),
        (lambda: training.Learner(hidden_sizes=()), "Expected hidden_sizes of one layer at least"),
        (lambda: training.Learner(discount=1.5), r"Expected discount in \[0, 1\]. Received: 1.5"),
        (lambda: training.Learner(batch_size=0), "Expected batch_size >= 1"),
        (lambda: training.Learner(learning_rate=0.0), "Expected a finite learning_rate > 0"),
        (lambda: training.Run(BP, SEA, [1, 1]), "Expected seeds that differ"),
        (lambda: training.run_dqn(BP, SEA, 0), "Expected num_steps >= 1"),
    ],
)
def test_errors_say_what_to_do(make, said):
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("environment", [environments.CartPoleSwingUp(), environments.MountainCar(60)], ids=str)
def test_environments_without_cells_are_learned_on(environment):
    """Episodes of seeds end at different times; priors have their scale over random play."""
    # Fewer units may all be off over the narrow range that random play sees.
    learner = dataclasses.replace(SMALL, hidden_sizes=(20, 20))
    run = training.Run(training.Agent(3, 2.0), environment, SEEDS, learner)
    happened = run.advance(1300)
    episodes = run.result().episodes
    assert (episodes.length <= environment.horizon).all()
    assert len(episodes.seed) == happened.done.sum()
    for place, seed in enumerate(SEEDS):
        own = run.result().of(seed)
        ended = int(own.length.sum())
        np.testing.assert_allclose(own.total.sum(), happened.reward[:ended, place].sum(), rtol=1e-4)
    priors = tuple(tf.constant(kernel[:1]) for kernel in run.result().prior_kernels)
    examples = training._examples(environment, environment.make_world(SEEDS[:1]), 0)
    outputs = network.outputs(priors, tf.constant(examples)).numpy()
    np.testing.assert_allclose(outputs.std(-1), 2.0, rtol=1e-3)


@pytest.mark.slow
def test_priors_learn_deep_sea_and_epsilon_greedy_does_not():
    learned = training.run_dqn(training.make_agent("ensemble-bp", 10), environments.DeepSea(10), 2500, range(3))
    assert (learned.learning_times() < 250).all()
    dithered = training.run_dqn("epsilon-greedy", environments.DeepSea(20), 5000, range(3))
    assert np.isnan(dithered.learning_times()).all()
