"""Experience on its way to an agent: rows keyed by the id of the decision they belong to."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf
from tf_agents.bandits.specs import utils as bandit_spec_utils

from bandit_env import steps
from bandit_env.agents import policy as policy_lib
from tf_ensembles.linear.inputs import DTYPE, Tensor


class Rows(NamedTuple):
    """Decisions with their rewards, in any order."""

    id: Tensor  # [rows]
    action: Tensor  # [rows]
    features: Tensor  # of the chosen actions, [rows, features]
    reward: Tensor  # [rows] float64


def training_spec(policy: policy_lib.ThompsonPolicy) -> Any:
    """Returns the spec of experience for training: the features of actions not taken are left out."""
    spec = policy.trajectory_spec
    if isinstance(spec.observation, dict) and policy_lib.PER_ARM in spec.observation:
        return bandit_spec_utils.drop_arm_observation(spec)
    return spec


def from_trajectory(trajectory: Any) -> Rows:
    """Reads a driver's trajectory, `[batch, ...]`."""
    info = trajectory.policy_info
    return Rows(info.id, trajectory.action, info.chosen_arm_features, tf.cast(trajectory.reward, DTYPE))


def from_training(experience: Any) -> Rows:
    """Reads training data, `[batch, time, ...]`: what a replay buffer gives."""
    return Rows(*(tf.reshape(part, [-1, *part.shape[2:]]) for part in from_trajectory(experience)))


def checked(rows: Rows, num_actions: int, num_problems: int) -> Rows:
    """Raises on actions out of range, on rewards that are not finite and on ids of other agents."""
    finite = tf.reduce_all(tf.math.is_finite(rows.reward))
    fits = tf.reduce_all((rows.action >= 0) & (rows.action < num_actions))
    row = steps.split_ids(rows.id)[1]
    known = tf.reduce_all(row < num_problems) if num_problems > 1 else tf.constant(True)
    low, high = tf.reduce_min(rows.action), tf.reduce_max(rows.action)
    checks = [
        (finite, ["Expected finite rewards; leave out what is missing. Received:", rows.reward]),
        (fits, [f"Expected actions in [0, {num_actions}). Received:", low, "to", high]),
        (known, [f"Expected ids of {num_problems} problems. Received: row", tf.reduce_max(row)]),
    ]
    operations = [tf.debugging.Assert(condition, data) for condition, data in checks]
    with tf.control_dependencies([operation for operation in operations if operation is not None]):
        return rows._replace(reward=tf.identity(rows.reward))
