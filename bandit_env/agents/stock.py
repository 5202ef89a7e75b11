"""TF-Agents' own bandit environments, with the mean rewards of their actions, so that regret can be told.

Environments draw from NumPy's global generator and TensorFlow's: seeds of a task make its parameters and its noise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.bandits.environments import (
    non_stationary_stochastic_environment,
    piecewise_stochastic_environment,
    stationary_stochastic_per_arm_py_environment,
    stationary_stochastic_py_environment,
    wheel_py_environment,
)
from tf_agents.environments import tf_py_environment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts
from tf_agents.trajectories import trajectory

from tf_ensembles.bandit_env.agents import tasks
from tf_ensembles.bandit_env.agents.observations import GLOBAL, PER_ARM
from tf_ensembles.base import Array

_NUM_ARMS, _NUM_FEATURES = 5, 4
_UNEVEN = np.array([0.1, 0.3, 1.0, 2.0, 3.0])  # standard deviations of the noise of arms


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, and what its actions pay on average."""

    env: Any
    mean_rewards: Callable[[Any], Array]  # from an observation to [batch, actions]


def make_stationary(seed: int, batch_size: int, uneven: bool = False) -> Task:
    """Returns `StationaryStochasticPyEnvironment`: linear in 4 global features, 5 arms, noise even or uneven."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=[_NUM_ARMS, _NUM_FEATURES])
    deviation = rng.permutation(_UNEVEN) if uneven else np.full(_NUM_ARMS, 0.5)

    def reward(arm: int) -> Callable[[Array], float]:
        return lambda x: float(x @ theta[arm] + deviation[arm] * rng.normal())

    def context() -> Array:
        return rng.normal(size=[batch_size, _NUM_FEATURES]).astype(np.float32)

    inner = stationary_stochastic_py_environment.StationaryStochasticPyEnvironment(
        context, [reward(arm) for arm in range(_NUM_ARMS)], batch_size=batch_size
    )
    return Task(tf_py_environment.TFPyEnvironment(inner), lambda x: x.numpy() @ theta.T)


def make_per_arm(seed: int, batch_size: int, interactions: bool = True) -> Task:
    """Returns `StationaryStochasticPerArmPyEnvironment`: 3 global and 3 arm features, with or without interactions."""
    rng = np.random.default_rng(seed)
    theta, pairs = rng.normal(size=6), rng.normal(size=[3, 3]) * float(interactions)

    def mean(shared: Array, own: Array) -> Array:
        both = np.concatenate([shared, own], axis=-1) @ theta
        return both + np.einsum("...i,ij,...j->...", shared, pairs, own)

    inner = stationary_stochastic_per_arm_py_environment.StationaryStochasticPerArmPyEnvironment(
        lambda: rng.normal(size=3).astype(np.float32),
        lambda: rng.normal(size=3).astype(np.float32),
        _NUM_ARMS,
        lambda x: float(mean(x[:3], x[3:]) + 0.5 * rng.normal()),
        batch_size=batch_size,
    )

    def mean_rewards(observation: Any) -> Array:
        own = observation[PER_ARM].numpy()
        shared = np.broadcast_to(observation[GLOBAL].numpy()[:, None], [*own.shape[:2], 3])
        return mean(shared, own)

    return Task(tf_py_environment.TFPyEnvironment(inner), mean_rewards)


def make_wheel(seed: int, batch_size: int, delta: float = 0.5) -> Task:
    """Returns `WheelPyEnvironment`: the first of 5 arms is the best within radius delta, one of four others beyond."""
    base, high = np.array([1.2, 1.0, 1.0, 1.0, 1.0]), 50.0
    np.random.seed(seed)  # noqa: NPY002 The environment draws from the global generator.
    inner = wheel_py_environment.WheelPyEnvironment(delta, base, [0.01] * 5, high, 0.01, batch_size)

    def mean_rewards(observation: Any) -> Array:
        x = observation.numpy()
        means = np.tile(base, [len(x), 1])
        best = [wheel_py_environment._SIGNS_TO_OPT_ACTION[tuple(signs)] for signs in np.sign(x)]
        far = np.linalg.norm(x, axis=1) > delta
        means[far, np.array(best)[far]] = high
        return means

    return Task(tf_py_environment.TFPyEnvironment(inner), mean_rewards)


def make_piecewise(seed: int, batch_size: int, interval: int = 30) -> Task:
    """Returns a `NonStationaryStochasticEnvironment` whose linear rewards are drawn anew every `interval` steps."""
    tf.random.set_seed(seed)
    normal = tfp.distributions.Normal
    dynamics = piecewise_stochastic_environment.PiecewiseStationaryDynamics(
        normal(tf.zeros([batch_size, _NUM_FEATURES]), tf.ones([batch_size, _NUM_FEATURES])),
        tfp.distributions.Deterministic(float(interval)),
        normal(tf.zeros([_NUM_FEATURES, _NUM_ARMS]), tf.ones([_NUM_FEATURES, _NUM_ARMS])),
        normal(tf.zeros([_NUM_ARMS]), tf.ones([_NUM_ARMS])),
    )
    env = non_stationary_stochastic_environment.NonStationaryStochasticEnvironment(dynamics)

    def mean_rewards(observation: Any) -> Array:
        slope, start = dynamics._current_observation_to_reward, dynamics._current_additive_reward
        return (observation @ slope + start).numpy()

    return Task(env, mean_rewards)


def make_classification(x: Array, y: Array, seed: int, batch_size: int) -> Task:
    """Returns `ClassificationBanditEnvironment`: naming the class of an example pays 1; rows of x must differ."""
    env = tasks.make_classification(x, y, batch_size, seed)
    classes = {np.asarray(row, np.float32).tobytes(): label for row, label in zip(x, y, strict=True)}

    def mean_rewards(observation: Any) -> Array:
        labels = [classes[row.tobytes()] for row in observation.numpy()]
        return np.eye(int(np.max(y)) + 1)[labels]

    return Task(env, mean_rewards)


def run(task: Task, agent: Any, num_steps: int) -> Array:
    """Takes steps, the agent learning after each; returns the mean regret of each step's decisions, `[steps]`.

    Works with any TF-Agents bandit agent.
    """
    act, train = (tf.function(part, autograph=False) for part in (agent.collect_policy.action, agent.train))
    step, regret = task.env.reset(), []
    for _ in range(num_steps):
        means = task.mean_rewards(step.observation)
        taken = act(step)
        regret.append(np.mean(means.max(1) - np.take_along_axis(means, taken.action.numpy()[:, None], 1)[:, 0]))
        after = task.env.step(taken.action)
        train(tf.nest.map_structure(lambda part: part[:, tf.newaxis], experience(step, taken, after)))
        step = task.env.reset()
    return np.array(regret)


def make_specs(dim: int, num_actions: int) -> tuple[Any, Any]:
    """Returns the specs of time steps with `dim` global features, and of actions."""
    action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, num_actions - 1, "action")
    return ts.time_step_spec(tf.TensorSpec([dim], tf.float32)), action


def make_time_step(features: Array) -> Any:
    """Returns a time step of global features `[batch, dim]`."""
    return ts.restart(tf.constant(features, tf.float32), len(features))


def experience(step: Any, taken: Any, after: Any) -> Any:
    """Returns a decision with its reward, `[batch, ...]`, without the features of arms not taken."""
    observation = step.observation
    if isinstance(observation, dict):
        observation = {key: value for key, value in observation.items() if key != PER_ARM}
    return trajectory.Trajectory(
        step_type=step.step_type,
        observation=observation,
        action=taken.action,
        policy_info=taken.info,
        next_step_type=after.step_type,
        reward=after.reward,
        discount=after.discount,
    )
