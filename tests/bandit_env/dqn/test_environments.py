"""Environments against steps written from bsuite's definitions in NumPy, float64, one copy at a time."""

import dataclasses
import math

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.dqn import environments

SEEDS = (0, 5, 11)
COUNT = tf.constant([7, 8, 9], tf.int64)


def numbers(state):
    return [np.asarray(part, np.float64) for part in state]


def sea_step(size, mapping, row, column, action, noise, wind, cost=0.01):
    """Deep sea's step: reward, column and whether the way to the chest was left; noise and wind None: none."""
    right = action == mapping[row, column]
    reward = 1.0 if right and column == size - 1 else 0.0
    if noise is not None and row == size - 1 and column in (0, size - 1):
        reward += noise
    if right:
        reward -= cost / size
        column = min(column + (1 if wind is None or wind >= 1 / size else 0), size - 1)
        return reward, column, False
    return reward, max(column - 1, 0), row == column


@pytest.mark.parametrize("stochastic", [pytest.param(False, marks=pytest.mark.slow), True])
def test_deep_sea(stochastic):
    size, chance = 4, np.random.default_rng(0)
    sea = environments.DeepSea(size, stochastic)
    world = sea.make_world(SEEDS)
    assert (sea.num_actions, sea.horizon, sea.observation_shape, sea.num_cells) == (2, 4, (4, 4), 10)
    mapping = np.full([len(SEEDS), size * size], -1)
    mapping[:, sea.places] = world.mapping
    mapping = mapping.reshape(-1, size, size)
    for episode in range(2):
        state = sea.start(world, tf.zeros([3], tf.int64))
        bad = np.zeros(3, bool)
        for row in range(size):
            column = state.column.numpy()
            expected = np.zeros([3, size, size])
            expected[np.arange(3), row, column] = 1.0
            np.testing.assert_array_equal(sea.observe(state), expected.reshape(3, -1))
            np.testing.assert_array_equal(sea.places[sea.cell(state)], row * size + column)
            right = np.take_along_axis(mapping[:, row], column[:, None], 1)[:, 0]
            action = np.where(chance.random(3) < 0.7, right, chance.integers(2, size=3))
            count = tf.constant(episode * size + row + np.arange(3), tf.int64)
            ids = steps.make_ids(count, world.rows)
            drawn = draws.uniform(draws.key(0, draws.Purpose.DQN_NOISE), ids, [0], 2)[:, 0]
            noise, wind = draws.to_normal(drawn[:, 0]).numpy(), drawn[:, 1].numpy()
            outcome = sea.step(world, state, tf.constant(action, tf.int32), count)
            for s in range(3):
                own = (noise[s], wind[s]) if stochastic else (None, None)
                reward, after, wrong = sea_step(size, mapping[s], row, column[s], action[s], *own)
                bad[s] |= wrong
                assert float(outcome.reward[s]) == pytest.approx(reward, abs=1e-6)
                assert int(outcome.state.column[s]) == after
            np.testing.assert_array_equal(outcome.mark, bad)
            np.testing.assert_array_equal(outcome.done, row == size - 1)
            state = outcome.state
        np.testing.assert_array_equal(sea.observe(state), 0.0)


def test_deep_sea_pays_only_on_the_diagonal():
    """All 2^N plans of all copies: only the one without a bad move has a return above 0."""
    sea = environments.DeepSea(5)
    world = sea.make_world(range(32))
    for right in ([True] * 5, [True, True, False, True, True]):
        state, total = sea.start(world, None), 0.0
        for go in right:
            mapped = tf.gather(world.mapping, sea.cell(state), batch_dims=1)
            outcome = sea.step(world, state, mapped if go else 1 - mapped, tf.zeros([32], tf.int64))
            state, total = outcome.state, total + outcome.reward.numpy()
        np.testing.assert_allclose(total, sea.best_return if all(right) else -0.008, atol=1e-6)
        np.testing.assert_array_equal(outcome.mark, float(not all(right)))
    assert sea.best_return == pytest.approx(0.99)
    assert environments.DeepSea(10, stochastic=True).best_return == pytest.approx(0.9**9 - 0.01)


def test_mappings_and_wind_are_fair():
    world = environments.DeepSea(20).make_world(range(50))
    half, flips = world.mapping.numpy().mean(), world.mapping.shape[0] * world.mapping.shape[1]
    assert abs(half - 0.5) < 5 * 0.5 / math.sqrt(flips)
    assert not np.array_equal(world.mapping[0], world.mapping[1])
    np.testing.assert_array_equal(environments.DeepSea(20).make_world([7]).mapping[0], world.mapping[7])
    sea, many = environments.DeepSea(4, stochastic=True), 4000
    world = sea.make_world(range(many))
    outcome = sea.step(world, sea.start(world, None), world.mapping[:, 0], tf.zeros([many], tf.int64))
    assert abs(float(np.mean(outcome.state.column)) - 0.75) < 5 * math.sqrt(0.75 * 0.25 / many)


def pole_step(x, v, theta, omega, action, height, position, turn, cost):
    """Cart-pole swing-up's step by bsuite: the state after it, reward, and whether the cart left the track."""
    force, cos, sin = 10.0 * (action - 1), np.cos(theta), np.sin(theta)
    both, pole = 1.1, 0.1 * 0.5
    temp = (force + pole * omega**2 * sin) / both
    turning = (9.8 * sin - cos * temp) / (0.5 * (4 / 3 - 0.1 * cos**2 / both))
    pushing = temp - pole * turning * cos / both
    after = x + 0.01 * v, v + 0.01 * pushing, (theta + 0.01 * omega) % (2 * np.pi), omega + 0.01 * turning
    upright = (np.cos(after[2]) > height) & (np.abs(after[3]) < turn) & (np.abs(after[0]) < position)
    return after, upright - cost * np.abs(action - 1), np.abs(after[0]) > 3


def test_cart_pole():
    pole = environments.CartPoleSwingUp(height_threshold=0.4, position_threshold=0.9)
    assert (pole.num_actions, pole.observation_shape, pole.num_cells) == (3, (8,), 0)
    assert pole.horizon == 1001  # 0.01 added a thousand times stays below 10 in float64.
    world, chance = pole.make_world(range(60)), np.random.default_rng(1)
    state = pole.start(world, tf.zeros([60], tf.int64))
    x, v, theta, omega, _ = numbers(state)
    assert np.abs(np.stack([x, v, theta - np.pi, omega])).max() <= 0.05 + 1e-6
    assert np.std([x, v, theta - np.pi, omega]) == pytest.approx(0.05 / math.sqrt(3), rel=0.15)
    # Anywhere: upright, turning, at the end of the track.
    far = [chance.uniform(-low, low, 60) for low in (3.0, 2.0, 7.0, 2.0)]
    far[0][:10] = 2.999
    far[2] %= 2 * np.pi
    state = environments.PoleState(*(tf.constant(part, tf.float32) for part in far), tf.range(941, 1001))
    action = chance.integers(3, size=60)
    before = numbers(state)[:4]
    after, reward, left = pole_step(*before, action, 0.4, 0.9, 1.0, 0.1)
    outcome = pole.step(world, state, tf.constant(action, tf.int32), COUNT)
    # One step in float32: rounding of numbers up to 7, and of accelerations up to 60 times 0.01.
    for found, expected in zip(outcome.state[:4], after, strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-6)
    np.testing.assert_allclose(outcome.reward, reward, atol=1e-6)
    assert 0 < reward.max() <= 1
    time = np.arange(942, 1002)
    np.testing.assert_array_equal(outcome.done, left | (time >= 1001))
    assert 0 < outcome.done.numpy().sum() < 60
    x, v, theta, omega = after
    seen = [x / 3, v / 3, np.sin(theta), np.cos(theta), omega, time * 0.01 / 10]
    seen += [np.where(np.abs(x) < 0.9, 1, -1), np.where(np.abs(omega) < 1, 1, -1)]
    np.testing.assert_allclose(pole.observe(outcome.state), np.stack(seen, 1), atol=5e-6)


def test_mountain_car():
    car, chance = environments.MountainCar(50), np.random.default_rng(2)
    assert (car.num_actions, car.observation_shape, car.horizon) == (3, (3,), 50)
    world = car.make_world(range(40))
    state = car.start(world, tf.zeros([40], tf.int64))
    start = state.position.numpy()
    assert np.abs(start + 0.5).max() <= 0.1 + 1e-6
    assert start.std() > 0.03
    assert not np.array_equal(start, car.start(world, tf.ones([40], tf.int64)).position)
    position, velocity = chance.uniform(-1.2, 0.55, 40), chance.uniform(-0.07, 0.07, 40)
    position[:5], velocity[:5], position[5:9], velocity[5:9] = -1.19, -0.06, 0.49, 0.05
    time = np.r_[np.full(30, 3), np.full(10, 49)]
    state = environments.CarState(*(tf.constant(part, tf.float32) for part in (position, velocity)), tf.constant(time))
    position, velocity = numbers(state)[:2]
    action = chance.integers(3, size=40)
    velocity = np.clip(velocity + 0.001 * (action - 1) - 0.0025 * np.cos(3 * position), -0.07, 0.07)
    position = np.clip(position + velocity, -1.2, 0.6)
    velocity = np.where(position == -1.2, np.maximum(velocity, 0), velocity)
    outcome = car.step(world, state, tf.constant(action, tf.int32), COUNT)
    np.testing.assert_allclose(outcome.state.position, position, atol=1e-6)
    np.testing.assert_allclose(outcome.state.velocity, velocity, atol=1e-7)
    np.testing.assert_array_equal(outcome.reward, -1.0)
    np.testing.assert_array_equal(outcome.done, (position >= 0.5) | (time + 1 >= 50))
    np.testing.assert_array_equal(outcome.mark, position >= 0.5)
    seen = np.stack([position, velocity, (time + 1) / 50], 1)
    np.testing.assert_allclose(car.observe(outcome.state), seen, atol=1e-6)
    assert position.min() == -1.2
    assert position.max() >= 0.5


def test_errors_say_what_to_do():
    with pytest.raises(ValueError, match=r"Expected size >= 1, an integer\. Received: 0"):
        environments.DeepSea(0)
    with pytest.raises(ValueError, match=r"Expected seeds in \[0, 2\*\*32\), at least one. Received: \[-1\]"):
        environments.DeepSea(3).make_world([-1])
    with pytest.raises(ValueError, match="Expected max_steps >= 1"):
        environments.MountainCar(0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        environments.DeepSea(3).size = 4
