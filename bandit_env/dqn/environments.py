"""Environments that need deep exploration, as graph code: deep sea, cart-pole swing-up and mountain car.

Each one is a frozen description; many copies of it, one for each of S seeds, are stepped at once. The definitions are
those of bsuite (Osband et al. 2020): rewards, horizons and observations. Draws are a pure function of (seed, the
copy's own seed, episode or transition), so a run that is resumed meets the same ones.

Shapes: all parts of a state, actions, rewards and ends are `[S]`; observations are `[S, features]`.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.problems import check_sizes
from tf_ensembles.linear.inputs import Tensor


class World(NamedTuple):
    """S copies of an environment: what stays as it is while they run."""

    rows: Tensor  # the copies' seeds, [S] int64
    start_key: Tensor
    noise_key: Tensor
    mapping: Tensor  # deep sea: the action that goes right in each cell, [S, cells] int32; others: [S, 0]


class Outcome(NamedTuple):
    """What a step leads to."""

    state: Any
    reward: Tensor  # [S] float32
    done: Tensor  # [S] bool: the episode has ended, and there is no value after it
    mark: Tensor  # [S] float32: what is worth knowing of the episode so far; see each environment


class Environment(abc.ABC):
    """What the compiled loop and TF-Agents ask of an environment."""

    num_actions: int

    @property
    @abc.abstractmethod
    def horizon(self) -> int:
        """Steps of an episode at most."""

    @property
    @abc.abstractmethod
    def observation_shape(self) -> tuple[int, ...]:
        """Of one observation; networks see it flat."""

    @property
    def num_cells(self) -> int:
        """States of an environment that has finitely many and shows them one-hot; 0: observations are features."""
        return 0

    def make_world(self, seeds: Sequence[int], seed: int = 0) -> World:
        """Returns a copy for each of the seeds; `seed` is that of all their draws."""
        rows = np.asarray(seeds)
        if rows.ndim != 1 or not len(rows) or rows.dtype.kind not in "iu" or rows.min() < 0 or rows.max() >= 2**32:
            raise ValueError(f"Expected seeds in [0, 2**32), at least one. Received: {list(seeds)}")
        return World(
            tf.constant(rows, tf.int64),
            tf.constant(draws.key(seed, draws.Purpose.DQN_START), tf.int64),
            tf.constant(draws.key(seed, draws.Purpose.DQN_NOISE), tf.int64),
            tf.zeros([len(rows), 0], tf.int32),
        )

    @abc.abstractmethod
    def start(self, world: World, episode: Tensor) -> Any:
        """Returns the first state of the copies' episodes of these numbers, `[S]` int64."""

    @abc.abstractmethod
    def step(self, world: World, state: Any, action: Tensor, count: Tensor) -> Outcome:
        """Returns what actions `[S]` int32 lead to; `count` `[S]` int64 numbers the copies' transitions."""

    @abc.abstractmethod
    def observe(self, state: Any) -> Tensor:
        """Returns observations `[S, features]`; zeros after the end of deep sea."""

    def cell(self, state: Any) -> Tensor:
        """Returns the number of the state `[S]` int32, where there are finitely many; else 0."""
        return tf.zeros_like(state.time)


class SeaState(NamedTuple):
    """Where a diver is."""

    row: Tensor
    column: Tensor
    bad: Tensor  # whether it left the only way to the chest by a choice of its own


@dataclasses.dataclass(frozen=True)
class DeepSea(Environment):
    """Deep sea: a diver starts at the top left of N x N cells, goes down a row per step, and left or right.

    The chest, 1, lies at the bottom right; each step to the right costs 0.01 / N; the only way to the chest is N times
    right. Which of two actions goes right is drawn for each cell. The mark of an episode is 1 where the diver chose
    left on that way: bsuite's "bad episode".

    Args:
      size: N, rows, columns and steps of an episode.
      stochastic: a step to the right fails, and the diver stays in its column, with probability 1 / N, and rewards in
        the two corners at the bottom have noise N(0, 1).
      move_cost: of N steps to the right.
    """

    size: int = 10
    stochastic: bool = False
    move_cost: float = 0.01

    num_actions = 2

    def __post_init__(self) -> None:
        check_sizes(size=self.size)
        if not math.isfinite(self.move_cost):
            raise ValueError(f"Expected a finite move_cost. Received: {self.move_cost}")

    @property
    def horizon(self) -> int:
        """Steps of an episode."""
        return self.size

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """Rows and columns, one of which is 1 where the diver is."""
        return self.size, self.size

    @property
    def num_cells(self) -> int:
        """Cells that can be reached: those on the diagonal and left of it."""
        return self.size * (self.size + 1) // 2

    @property
    def places(self) -> Any:
        """The place of each cell in a flat observation, `[num_cells]`."""
        rows, columns = np.tril_indices(self.size)
        return rows * self.size + columns

    @property
    def best_return(self) -> float:
        """The expected return of always going right."""
        chance = (1.0 - 1.0 / self.size) ** (self.size - 1) if self.stochastic else 1.0
        return chance - self.move_cost

    def make_world(self, seeds: Sequence[int], seed: int = 0) -> World:
        """Returns a copy for each of the seeds, each with a mapping of its own."""
        world = super().make_world(seeds, seed)
        key = draws.key(seed, draws.Purpose.DQN_MAPPING)
        drawn = draws.uniform(key, self.places, world.rows)[..., 0]
        return world._replace(mapping=tf.cast(tf.transpose(drawn) < 0.5, tf.int32))

    def start(self, world: World, episode: Tensor) -> SeaState:
        """Returns divers at the top left."""
        zeros = tf.zeros(tf.shape(world.rows), tf.int32)
        return SeaState(zeros, zeros, tf.zeros(tf.shape(world.rows), tf.bool))

    def step(self, world: World, state: SeaState, action: Tensor, count: Tensor) -> Outcome:
        """Goes down a row; see the class."""
        last = self.size - 1
        right = tf.equal(action, tf.gather(world.mapping, self.cell(state), batch_dims=1))
        reward = tf.where(right & tf.equal(state.column, last), 1.0, 0.0)
        moved = right
        if self.stochastic:
            drawn = steps.uniforms_of(world.noise_key, steps.make_ids(count, world.rows), 2)
            corner = tf.equal(state.row, last) & (tf.equal(state.column, 0) | tf.equal(state.column, last))
            reward += tf.where(corner, draws.to_normal(drawn[0]), 0.0)
            moved &= drawn[1] >= 1.0 / self.size
        reward -= tf.where(right, self.move_cost / self.size, 0.0)
        column = tf.where(moved, state.column + 1, tf.where(right, state.column, state.column - 1))
        bad = state.bad | (~right & tf.equal(state.row, state.column))
        after = SeaState(state.row + 1, tf.clip_by_value(column, 0, last), bad)
        return Outcome(after, reward, tf.equal(after.row, self.size), tf.cast(bad, tf.float32))

    def observe(self, state: SeaState) -> Tensor:
        """Returns flat one-hot cells, `[S, N * N]`; zeros after the last row."""
        return tf.one_hot(state.row * self.size + state.column, self.size * self.size)

    def cell(self, state: SeaState) -> Tensor:
        """Returns the number of the cell among those that can be reached; the last one after the last row."""
        number = state.row * (state.row + 1) // 2 + state.column
        return tf.minimum(number, self.size * (self.size + 1) // 2 - 1)


class PoleState(NamedTuple):
    """Of cart and pole."""

    position: Tensor
    velocity: Tensor
    angle: Tensor  # 0 is upright
    turn: Tensor  # its velocity
    time: Tensor  # int32, steps so far


@dataclasses.dataclass(frozen=True)
class CartPoleSwingUp(Environment):
    """Cart-pole swing-up with a sparse reward: the pole hangs down, pushing costs, standing upright pays.

    A step pays 1 while the cosine of the angle is above `height_threshold`, the pole turns slower than
    `turn_threshold` and the cart is within `position_threshold` of the middle; a push costs `move_cost`. Actions push
    left, not at all, and right. An episode ends after 10 seconds of 0.01, or where the cart leaves the track of 3. The
    mark is 1 where a step paid.
    """

    height_threshold: float = 0.5
    position_threshold: float = 1.0
    turn_threshold: float = 1.0
    move_cost: float = 0.1

    num_actions = 3
    observation_shape = (8,)

    _MASS_CART, _MASS_POLE, _LENGTH, _FORCE, _GRAVITY = 1.0, 0.1, 0.5, 10.0, 9.8
    _TRACK, _STEP, _SECONDS, _RANGE = 3.0, 0.01, 10.0, 0.05

    @property
    def horizon(self) -> int:
        """Steps until the time, added up in float64, is above 10 seconds."""
        time, count = 0.0, 0
        while time <= self._SECONDS:
            time, count = time + self._STEP, count + 1
        return count

    def start(self, world: World, episode: Tensor) -> PoleState:
        """Returns hanging poles, all four numbers within 0.05 of rest."""
        drawn = steps.uniforms_of(world.start_key, steps.make_ids(episode, world.rows), 4)
        x, velocity, angle, turn = tf.unstack((2.0 * drawn - 1.0) * self._RANGE)
        return PoleState(x, velocity, math.pi + angle, turn, tf.zeros(tf.shape(x), tf.int32))

    def step(self, world: World, state: PoleState, action: Tensor, count: Tensor) -> Outcome:
        """Returns an Euler step of the equations of Barto, Sutton and Anderson (1983)."""
        push = tf.cast(action - 1, tf.float32)
        cos, sin = tf.cos(state.angle), tf.sin(state.angle)
        mass, pole = self._MASS_CART + self._MASS_POLE, self._MASS_POLE * self._LENGTH
        common = (push * self._FORCE + pole * tf.square(state.turn) * sin) / mass
        inertia = self._LENGTH * (4.0 / 3.0 - self._MASS_POLE * tf.square(cos) / mass)
        turning = (self._GRAVITY * sin - cos * common) / inertia
        pushing = common - pole * turning * cos / mass
        after = PoleState(
            state.position + self._STEP * state.velocity,
            state.velocity + self._STEP * pushing,
            tf.math.floormod(state.angle + self._STEP * state.turn, 2.0 * math.pi),
            state.turn + self._STEP * turning,
            state.time + 1,
        )
        upright = (
            (tf.cos(after.angle) > self.height_threshold)
            & (tf.abs(after.turn) < self.turn_threshold)
            & (tf.abs(after.position) < self.position_threshold)
        )
        paid = tf.cast(upright, tf.float32)
        done = (after.time >= self.horizon) | (tf.abs(after.position) > self._TRACK)
        return Outcome(after, paid - self.move_cost * tf.abs(push), done, paid)

    def observe(self, state: PoleState) -> Tensor:
        """Returns position, velocity, sine, cosine, turn, time, and whether position and turn would be paid (±1)."""
        central = tf.abs(state.position) < self.position_threshold
        slow = tf.abs(state.turn) < self.turn_threshold
        parts = [
            state.position / self._TRACK,
            state.velocity / self._TRACK,
            tf.sin(state.angle),
            tf.cos(state.angle),
            state.turn,
            tf.cast(state.time, tf.float32) * (self._STEP / self._SECONDS),
            tf.where(central, 1.0, -1.0),
            tf.where(slow, 1.0, -1.0),
        ]
        return tf.stack(parts, axis=-1)


class CarState(NamedTuple):
    """Of a car in a valley."""

    position: Tensor
    velocity: Tensor
    time: Tensor  # int32, steps so far


@dataclasses.dataclass(frozen=True)
class MountainCar(Environment):
    """Mountain car: an engine too weak for the hill, -1 for each step until the car is at 0.5 (Moore 1990).

    Actions push left, not at all, and right. The mark is 1 where the top is reached.

    Args:
      max_steps: of an episode.
    """

    max_steps: int = 1000

    num_actions = 3
    observation_shape = (3,)

    _LOW, _HIGH, _FAST, _GOAL, _FORCE, _GRAVITY = -1.2, 0.6, 0.07, 0.5, 0.001, 0.0025

    def __post_init__(self) -> None:
        check_sizes(max_steps=self.max_steps)

    @property
    def horizon(self) -> int:
        """Steps of an episode at most."""
        return self.max_steps

    def start(self, world: World, episode: Tensor) -> CarState:
        """Returns cars at rest, between -0.6 and -0.4."""
        position = -0.6 + 0.2 * steps.uniforms_of(world.start_key, steps.make_ids(episode, world.rows), 1)[0]
        return CarState(position, tf.zeros_like(position), tf.zeros(tf.shape(position), tf.int32))

    def step(self, world: World, state: CarState, action: Tensor, count: Tensor) -> Outcome:
        """Pushes; the wall on the left stops the car."""
        velocity = state.velocity + tf.cast(action - 1, tf.float32) * self._FORCE
        velocity = tf.clip_by_value(velocity - self._GRAVITY * tf.cos(3.0 * state.position), -self._FAST, self._FAST)
        position = tf.clip_by_value(state.position + velocity, self._LOW, self._HIGH)
        velocity = tf.where(position <= self._LOW, tf.maximum(velocity, 0.0), velocity)
        after, top = CarState(position, velocity, state.time + 1), position >= self._GOAL
        done = top | (after.time >= self.max_steps)
        return Outcome(after, -tf.ones_like(position), done, tf.cast(top, tf.float32))

    def observe(self, state: CarState) -> Tensor:
        """Returns position, velocity and time, as a share of the episode's."""
        return tf.stack([state.position, state.velocity, tf.cast(state.time, tf.float32) / self.max_steps], axis=-1)
