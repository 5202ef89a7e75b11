"""`EnsembleThompsonAgent`: Thompson sampling with a linear ensemble, infinite or finite, for TF-Agents."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent

from bandit_env import problems, steps, thompson
from bandit_env.agents import experience as experience_lib
from bandit_env.agents import policy as policy_lib
from bandit_env.thompson import AgentParameters
from tf_ensembles import draws
from tf_ensembles.linear.inputs import DTYPE, Tensor


class ThompsonAgent(tf_agent.TFAgent):
    """What all ensembles share as agents: one policy to act and to collect, and data with the ids of its decisions."""

    def __init__(self, policy: policy_lib.ThompsonPolicy) -> None:
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            policy,
            policy,
            train_sequence_length=None,
            training_data_spec=experience_lib.training_spec(policy),
            train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step"),
        )


class EnsembleThompsonAgent(ThompsonAgent):
    """Thompson sampling with the linear ensembles of the paper's Table 2.

    Rewards are linear in the features that the policy reads: global ones, then the arm's. With `num_members=None` the
    ensemble is infinite: each decision draws a new member from the exact distribution `N(mu_hat, Sigma_hat)`. With M
    members, each keeps its own anchor and its own fixed perturbation of every reward, updated as data arrive.

    Experience is keyed by the id that the policy put into `policy_info`, not by its place in a batch: it may come late,
    in any order, in batches of any size, in parts, or not at all. A row of weight zero counts as not delivered. The
    distribution is the same as if all had come in order; the same id delivered twice counts twice.

    Args:
        time_step_spec: of the environment.
        action_spec: of the environment: a scalar integer from 0.
        agent_name: "ensemble-n", "ensemble-p", "ensemble-p-weighted" or "ensemble-bp".
        noise_variance: sigma^2 of the rewards: a number, `[actions]` or `[problems, actions]`.
        prior_scale: s0, the scale of the prior of theta*.
        num_problems: 1: all rows of a batch are decisions of one problem. J: row j belongs to problem j.
        num_members: None for the infinite ensemble, or M.
        parameters: tuned parameters; None for Table 2's.
        seed: decides the agent's draws.
        first_problem: the environment's `first_problem`, for equal draws under any split of the problems.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        agent_name: str = "ensemble-bp",
        noise_variance: Any = 1.0,
        prior_scale: float = 1.0,
        num_problems: int = 1,
        num_members: int | None = None,
        parameters: AgentParameters | None = None,
        seed: int = 0,
        first_problem: int = 0,
    ) -> None:
        problems.check_sizes(num_problems=num_problems, **({} if num_members is None else {"num_members": num_members}))
        num_actions = policy_lib.check_action_spec(action_spec)
        dim = policy_lib.num_features(time_step_spec.observation, num_actions)
        loss = thompson.make_loss(
            agent_name, _as_table(noise_variance, num_problems, num_actions), prior_scale, parameters
        )
        self.agent_name, self.num_problems, self.num_members = agent_name, num_problems, num_members
        self._weight = tf.constant(loss.weight, DTYPE)
        self._target_noise = tf.constant(loss.target_noise, DTYPE)
        self._first, self._noise_key = first_problem, draws.key(seed, draws.Purpose.BANDIT_TARGET)
        anchors = None
        if num_members is not None:
            rows = tf.range(first_problem, first_problem + num_problems, dtype=tf.int64)
            anchors = thompson.initial_anchors(num_members, rows, dim, loss.anchor_scale, seed)
        start = thompson.initial_sums(dim, num_problems, loss.regularizer, anchors)
        self._sums = thompson.Sums(
            tf.Variable(start.precision, trainable=False, name="precision"),
            tf.Variable(start.target, trainable=False, name="target"),
        )
        policy = policy_lib.LinearThompsonPolicy(
            time_step_spec,
            action_spec,
            self._sums,
            loss.spread,
            loss.regularizer * loss.anchor_scale,
            num_problems,
            num_members,
            seed,
            first_problem,
        )
        super().__init__(policy)
        self._add = tf.function(self._added, jit_compile=True, autograph=False)

    @property
    def sums(self) -> thompson.Sums:
        """The sufficient statistics, as variables."""
        return self._sums

    def theta_mean(self) -> Tensor:
        """Returns the mean of the members' parameters, `[problems, features]`."""
        target = self._sums.target.read_value()
        if self.num_members is not None:
            target = tf.reduce_mean(target, axis=1)
        return tf.transpose(thompson.mean(thompson.Sums(self._sums.precision.read_value(), target)))

    def observe(self, trajectory: Any) -> Any:
        """Learns from one step of the driver: for use as an observer where rewards come at once."""
        self._learn(experience_lib.from_trajectory(trajectory), None)
        return trajectory

    def _train(self, experience: Any, weights: Any = None) -> Any:  # The base class calls it by this name.
        rows = experience_lib.from_training(experience)
        self._learn(rows, weights)
        return tf_agent.LossInfo(tf.zeros([]), ())

    def _learn(self, rows: experience_lib.Rows, weights: Any) -> None:
        rows = experience_lib.checked(rows, self.policy.num_actions, self.num_problems)
        keep = tf.ones_like(rows.reward) if weights is None else tf.reshape(tf.cast(weights, DTYPE), [-1])
        compiled = rows.reward.shape[0] is not None
        new = (self._add if compiled else self._added)(rows, keep * tf.ones_like(rows.reward))
        self._sums.precision.assign_add(new.precision)
        self._sums.target.assign_add(new.target)
        self.train_step_counter.assign_add(1)

    def _added(self, rows: experience_lib.Rows, keep: Tensor) -> thompson.Sums:
        """Returns what the rows add to the sums of all problems."""
        row = steps.split_ids(rows.id)[1]
        problem = row if self.num_problems > 1 else tf.zeros_like(row)
        place = tf.stack([problem, tf.cast(rows.action, tf.int64)], axis=1)
        weight = keep * tf.gather_nd(self._weight, place)
        reward = rows.reward
        if self.num_members is not None:
            noise = steps.member_normals(self._noise_key, rows.id + self._first, self.num_members)
            reward = reward + tf.gather_nd(self._target_noise, place) * tf.cast(noise, DTYPE)
        new = thompson.added(tf.transpose(tf.cast(rows.features, DTYPE)), reward, weight)
        if self.num_problems == 1:
            return thompson.Sums(*(tf.reduce_sum(part, axis=-1, keepdims=True) for part in new))
        return thompson.Sums(*(_by_problem(part, problem, self.num_problems) for part in new))


def _by_problem(part: Tensor, problem: Tensor, num_problems: int) -> Tensor:
    """Adds up the last axis by problem: `[..., rows]` to `[..., problems]`."""
    axes = list(range(len(part.shape)))
    summed = tf.math.unsorted_segment_sum(tf.transpose(part, [axes[-1], *axes[:-1]]), problem, num_problems)
    return tf.transpose(summed, [*axes[1:], 0])


def _as_table(noise_variance: Any, num_problems: int, num_actions: int) -> Any:
    table = np.asarray(noise_variance, np.float64)
    try:
        return np.broadcast_to(table, (num_problems, num_actions))
    except ValueError:
        raise ValueError(
            f"Expected noise_variance to be a number, [{num_actions}] or [{num_problems}, {num_actions}]. "
            f"Received: shape {table.shape}"
        ) from None
