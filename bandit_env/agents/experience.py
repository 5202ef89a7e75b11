"""Experience on its way to an agent: rows keyed by the id of the decision they belong to."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.bandits.specs import utils as bandit_spec_utils

from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.agents import observations
from tf_ensembles.bandit_env.agents import policy as policy_lib
from tf_ensembles.bandit_env.agents.observations import PER_ARM
from tf_ensembles.linear.inputs import DTYPE, Tensor


class Rows(NamedTuple):
    """Decisions with their rewards, in any order."""

    id: Tensor  # [rows]
    action: Tensor  # [rows]
    features: Tensor  # of the chosen actions, [rows, features]
    reward: Tensor  # [rows] float64
    weight: Tensor  # [rows] float64


def training_spec(policy: policy_lib.ThompsonPolicy) -> Any:
    """Returns the spec of experience for training: the features of actions not taken are left out."""
    spec = policy.trajectory_spec
    if isinstance(spec.observation, dict) and PER_ARM in spec.observation:
        return bandit_spec_utils.drop_arm_observation(spec)
    return spec


def from_trajectory(trajectory: Any, policy: policy_lib.ThompsonPolicy) -> Rows:
    """Reads a driver's trajectory, `[batch, ...]`."""
    _check(trajectory, policy, 1, "[batch]")
    return _read(trajectory, policy)


def from_training(experience: Any, policy: policy_lib.ThompsonPolicy, weights: Any = None) -> Rows:
    """Reads training data, `[batch, time, ...]`: what a replay buffer gives; weights are a number or `[batch]`."""
    _check(experience, policy, 2, "[batch, time]")
    rows = _read(tf.nest.map_structure(_flat, experience), policy)
    if weights is None:
        return rows
    weights = tf.cast(tf.convert_to_tensor(weights), DTYPE)
    time = tf.shape(experience.reward)[1]
    if len(weights.shape) == 1:
        weights = tf.repeat(weights, time) if experience.reward.shape[1] != 1 else weights
    weights = tf.reshape(weights, [-1])
    number, expected = weights.shape[0], rows.reward.shape[0]
    if number not in (None, 1, expected) and expected is not None:
        raise ValueError(f"Expected one weight, or one for each of {expected} rewards. Received: {number} weights")
    return rows._replace(weight=weights * tf.ones_like(rows.reward))


def checked(rows: Rows, policy: policy_lib.ThompsonPolicy, num_problems: int = 1) -> Rows:
    """Raises on what would spoil the state: numbers not finite, weights below zero, actions or ids of others."""
    row = steps.split_ids(rows.id)[1]
    checks = [
        (_finite(rows.reward), ["Expected finite rewards; leave out what is missing. Received:", rows.reward]),
        (_finite(rows.features), ["Expected finite features. Received: NaN or infinite ones in experience"]),
        (
            tf.reduce_all(tf.math.is_finite(rows.weight) & (rows.weight >= 0.0)),
            ["Expected finite weights >= 0. Received:", rows.weight],
        ),
        observations.actions_fit(rows.action, policy.num_actions),
    ]
    if num_problems > 1:
        known = tf.reduce_all(row < num_problems)
        checks.append((known, [f"Expected ids of {num_problems} problems. Received: row", tf.reduce_max(row)]))
    return observations.where_all_hold(rows, *checks)


def _finite(values: Tensor) -> Tensor:
    return tf.reduce_all(tf.math.is_finite(values))


def _check(experience: Any, policy: policy_lib.ThompsonPolicy, rank: int, shape: str) -> None:
    info = experience.policy_info
    if not hasattr(info, "id") or not hasattr(info, "chosen_arm_features"):
        raise ValueError(
            f"Expected experience with the policy_info of this agent's policy. Received: {type(info).__name__}"
        )
    if len(experience.reward.shape) != rank:
        raise ValueError(
            f"Expected experience of shape {shape}: rewards of {rank} axes. Received: rewards of shape "
            f"{list(experience.reward.shape)}"
        )
    if policy.num_arm:
        expected = [*([None] * rank), policy.num_arm]
        if not tf.TensorShape(expected).is_compatible_with(getattr(info.chosen_arm_features, "shape", [])):
            raise ValueError(
                f"Expected chosen_arm_features of width {policy.num_arm}. Received: {info.chosen_arm_features}; "
                "experience has to carry the policy_info that this agent's policy gave"
            )


def _read(experience: Any, policy: policy_lib.ThompsonPolicy) -> Rows:
    """Reads experience `[rows, ...]`; global features are those of its own observation."""
    observation = policy.split(experience.observation)[0]
    width = observations.flat_global(observation).shape[-1]
    if width != policy.num_global:
        raise ValueError(
            f"Expected experience with observations of {policy.num_global} global features. Received: {width}"
        )
    features = policy.taken_features(observation, experience.action, experience.policy_info.chosen_arm_features)
    reward = tf.cast(experience.reward, DTYPE)
    return Rows(experience.policy_info.id, experience.action, features, reward, tf.ones_like(reward))


def _flat(part: Tensor) -> Tensor:
    return tf.reshape(part, [-1, *part.shape[2:]])
