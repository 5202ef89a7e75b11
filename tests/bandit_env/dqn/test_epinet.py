"""Epinets in the compiled loop: against `tfe.Epinet`, and against a DQN of one index at a time, written out."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.bandit_env.dqn.test_loop import DEEP, LEARNER, SEEDS, Adam, OneHot, plain
from tf_ensembles import draws
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.dqn import environments, export, training

AGENT = training.Agent(2, 1.5, index_dim=3, index_hidden=(4,))
SEA = environments.DeepSea(3)


def by_hand(weights, x):
    """What a network computes at x, and its last hidden layer."""
    for kernel in weights[:-1]:
        x = tf.nn.relu(x @ tf.transpose(kernel[:, :-1]) + kernel[:, -1])
    return x @ tf.transpose(weights[-1][:, :-1]) + weights[-1][:, -1], x


def value(base, small, priors, x, index):
    """What an epinet says at x with one index, `[rows, actions]`."""
    known, features = by_hand(base, tf.constant(x, tf.float64))
    beside = tf.concat([tf.stop_gradient(features), tf.repeat(index[None], len(x), 0)], axis=1)
    matrix = tf.reshape(by_hand(small, beside)[0], [len(x), 2, len(index)])
    added = sum(z * by_hand(one, tf.constant(x, tf.float64))[0] for z, one in zip(index, priors, strict=True))
    return known + tf.linalg.matvec(matrix, index) + added / np.sqrt(len(index))


def written_out(agent, environment, learner, place, start, num_steps):
    """One seed's run: actions, and the weights of both networks at the end."""
    seed, row, split = SEEDS[place], tf.constant([SEEDS[place]], tf.int64), len(learner.hidden_sizes) + 1
    world, dim = environment.make_world([seed]), agent.index_dim
    nets = [tf.constant(one, tf.float64) for one in plain(start.kernels, place, 0)]
    priors = [[tf.constant(one, tf.float64) for one in plain(start.prior_kernels, place, i)] for i in range(dim)]
    keys = {name: draws.key(0, draws.Purpose[f"DQN_{name}"]) for name in ("MEMBER", "BATCH", "INDEX")}
    numbers = tf.range(num_steps, dtype=tf.int64)
    acting = draws.to_normal(steps.uniforms_of(keys["MEMBER"], steps.make_ids(numbers, row), dim)).numpy().T
    learning = steps.normals(keys["INDEX"], numbers, row, agent.num_members * dim).numpy().reshape(-1, 2, dim)
    places = steps.uniforms_at(keys["BATCH"], numbers, steps.places(row, learner.batch_size)).numpy()
    stored, actions, targets, adam, updates, episode = [], [], nets, Adam(learner.learning_rate), 0, 0
    state = environment.start(world, tf.zeros([1], tf.int64))

    def total(weights, x, index):
        return value(weights[:split], weights[split:], priors, x, index.astype(np.float64))

    for step in range(num_steps):
        here = environment.observe(state).numpy()
        actions.append(int(np.argmax(total(nets, here, acting[episode]))))
        outcome = environment.step(world, state, tf.constant(actions[-1:]), tf.constant([step], tf.int64))
        done, after = bool(outcome.done[0]), environment.observe(outcome.state).numpy()[0]
        stored.append((step, here[0], actions[-1], float(outcome.reward[0]), done, after))
        episode += done
        state = environment.start(world, None) if done else outcome.state
        if step + 1 < learner.min_transitions:
            continue
        ring = sorted(stored[-learner.capacity :], key=lambda one: one[0] % learner.capacity)
        if updates % learner.target_period == 0:
            targets = nets
        batch = [ring[int(one * len(ring))] for one in places[updates]]
        x, after = np.stack([one[1] for one in batch]), np.stack([one[5] for one in batch])
        go = np.array([0.0 if one[4] else learner.discount for one in batch])
        with tf.GradientTape() as tape:
            tape.watch(nets)
            losses = []
            for index in learning[updates]:
                best = np.argmax(total(nets, after, index), axis=1)
                later = total(targets, after, index).numpy()[np.arange(len(batch)), best]
                goal = np.array([one[3] for one in batch]) + go * later
                own = tf.gather(total(nets, x, index), [one[2] for one in batch], batch_dims=1)
                losses.append(tf.reduce_mean((own - goal) ** 2))
            loss = tf.reduce_mean(losses)
        moved = adam([one.numpy() for one in nets], [one.numpy() for one in tape.gradient(loss, nets)])
        nets = [tf.constant(one) for one in moved]
        updates += 1
    return actions, nets


def check_against_written_out(environment, learner, num_steps, places):
    run = training.Run(AGENT, environment, SEEDS, learner)
    start, happened = run.result(), run.advance(num_steps)
    end = run.result()
    for place in places:
        actions, nets = written_out(AGENT, environments.DeepSea(environment.size), learner, place, start, num_steps)
        np.testing.assert_array_equal(happened.action[:, place], actions)
        for one, expected in zip(plain(end.kernels, place, 0), nets, strict=True):
            np.testing.assert_allclose(one, expected, atol=2e-4)  # as for ensembles
    moved = [np.abs(a - b).max() for a, b in zip(end.kernels, start.kernels, strict=True)]
    assert min(moved) > 0.05
    return end


def test_the_loop_is_a_dqn_of_an_epinet():
    end = check_against_written_out(SEA, LEARNER, 20, (1,))
    made = export.make_epinet(end, SEA, LEARNER, place=1, num_members=4)
    x = np.stack([one.reshape(3, 3) for one in np.eye(9, dtype=np.float32)[:6]])
    split = len(LEARNER.hidden_sizes) + 1
    parts = [plain(end.kernels[own], 1, 0) for own in (slice(split), slice(split, None))]
    base, small = ([tf.constant(one, tf.float64) for one in part] for part in parts)
    priors = [[tf.constant(one, tf.float64) for one in plain(end.prior_kernels, 1, i)] for i in range(3)]
    for member, index in enumerate(made.indices().numpy().astype(np.float64)):
        expected = value(base, small, priors, x.reshape(6, 9), index)
        np.testing.assert_allclose(made.predict(x, verbose=0)[:, member], expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"Expected a run of an ensemble with .* 2 layers; make_epinet is for epinets"):
        export.make_ensemble(end, SEA, LEARNER)
    with pytest.raises(ValueError, match=r"Expected a run of an epinet with .* 4 layers, .*Received: 4 kernels"):
        export.make_epinet(end, SEA, dataclasses.replace(LEARNER, hidden_sizes=(8, 8, 8)))


def test_kill_and_resume_gives_the_same_bits(tmp_path):
    whole, first, again = (training.Run(AGENT, SEA, SEEDS, LEARNER) for _ in range(3))
    whole.advance(20)
    first.advance(11)
    first.save(tmp_path / "run.npz")
    again.restore(tmp_path / "run.npz")
    again.advance(9)
    for found, expected in zip(tf.nest.flatten(again.states), tf.nest.flatten(whole.states), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_with_observations_as_with_cells():
    check_against_written_out(OneHot(4), DEEP, 49, (0, 1))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: dataclasses.replace(AGENT, index_hidden=()), "Expected index_hidden of one layer at least"),
        (lambda: dataclasses.replace(AGENT, index_dim=-1), "Expected index_dim >= 1"),
        (lambda: dataclasses.replace(AGENT, bootstrap=tfe.Bernoulli(0.5)), "Expected no bootstrap for an epinet"),
    ],
)
def test_errors_say_what_to_do(make, said):
    with pytest.raises(ValueError, match=said):
        make()
