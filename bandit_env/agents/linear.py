"""`EnsembleThompsonAgent`: bandits with a linear ensemble, infinite or finite, for any TF-Agents bandit environment."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.agents import tf_agent

from tf_ensembles.bandit_env import linear_models, problems, steps, thompson
from tf_ensembles.bandit_env.agents import experience as experience_lib
from tf_ensembles.bandit_env.agents import features, observations
from tf_ensembles.bandit_env.agents import policy as policy_lib
from tf_ensembles.bandit_env.agents.linear_policy import LinearThompsonPolicy
from tf_ensembles.bandit_env.choice import Choice
from tf_ensembles.bandit_env.thompson import AgentParameters
from tf_ensembles.linear.agents import LinearAgent
from tf_ensembles.linear.inputs import Tensor

# Up to this many numbers, about 160 MB, sums are kept arm by arm to estimate the noise of each.
_MOST_NUMBERS = 20_000_000


class ThompsonAgent(tf_agent.TFAgent):
    """What all ensembles share as agents: one policy to act and to collect, and data with the ids of its decisions."""

    def __init__(self, policy: policy_lib.ThompsonPolicy, train_step_counter: Any = None) -> None:
        super().__init__(
            policy.time_step_spec,
            policy.action_spec,
            policy,
            policy,
            train_sequence_length=None,
            training_data_spec=experience_lib.training_spec(policy),
            train_step_counter=make_counter() if train_step_counter is None else train_step_counter,
        )

    def exploit_policy(self) -> policy_lib.ThompsonPolicy:
        """Returns a policy that takes the best action by the mean of the members as they are when it acts."""
        options = dataclasses.replace(self.policy.options, choice=Choice.GREEDY)
        return self._make_policy(self.policy.time_step_spec, self.policy.action_spec, options)

    @abc.abstractmethod
    def _make_policy(self, time_step_spec: Any, action_spec: Any, options: Any) -> policy_lib.ThompsonPolicy:
        """Returns a policy of the members."""


class EnsembleThompsonAgent(ThompsonAgent):
    """Decides with the linear ensembles of the paper's Table 2.

    Which features an action has is chosen from the observation spec, and said by `summary()`:

    - global observations: **disjoint**, one model per action of the features and a constant;
    - arm features alone: **shared**, one model of them;
    - both: **hybrid**, one model of both and of their products, so that the context may change the choice.

    With `num_members=None` the ensemble is infinite: each decision draws a new member from the exact distribution
    `N(mu_hat, Sigma_hat)`. With M members, each keeps its own anchor and its own fixed perturbation of every reward,
    updated as data arrive. Each row of a batch draws a member of its own.

    Experience is keyed by the id that the policy put into `policy_info`, not by its place in a batch: it may come late,
    in any order, in batches of any size, in parts, or not at all. A row of weight zero counts as not delivered. The
    distribution is the same as if all had come in order; the same id delivered twice counts twice.

    **Noise that is not known** (`noise_variance=None`) is estimated as data come: the variance of an arm is the sum of
    its squared residuals over its data less those that the fit used up, with the mean over arms as 4 observations more.
    Agents that weigh all data the same (ensemble-n, ensemble-p) take the mean over arms. Where one model has so many
    features that sums arm by arm would not fit into memory, it is one variance over all data.
    With known noise the distribution does not depend on the order of data; with estimated noise it does a little,
    because estimates are renewed step by step.

    Args:
        time_step_spec: of the environment.
        action_spec: of the environment: a scalar integer from 0.
        agent_name: "ensemble-n", "ensemble-p", "ensemble-p-weighted" or "ensemble-bp".
        noise_variance: sigma^2 of the rewards: a number, `[actions]` or `[problems, actions]`; None to estimate it.
        prior_scale: s0, the scale of the prior of theta*. None: the standard deviation of all rewards so far, for
            rewards whose unit is not known; noise has to be estimated then.
        num_problems: 1: all rows of a batch are decisions of one problem. J: row j belongs to problem j.
        num_members: None for the infinite ensemble, or M.
        parameters: tuned parameters; None for Table 2's.
        seed: decides the agent's draws.
        first_problem: the environment's `first_problem`, for equal draws under any split of the problems.
        form: "auto", "shared", "disjoint" or "hybrid".
        choice: "thompson", "greedy" (exploits only), "ucb" (mean + `ucb_width` standard deviations) or "ids"
            (information-directed sampling).
        ucb_width: of "ucb".
        discount: what of older data is kept at each call of `train` or `observe`; below 1 for rewards that drift.
        window: of each problem, how many of the latest rewards count, in the order of their arrival; None for all.
        emit_propensity: whether `policy_info` carries the probability of the action taken, for off-policy evaluation.
            Exact for M members; of infinitely many within 0.1% of itself for disjoint models of up to 64 actions,
            within 1% for up to four actions with features of their own, and within 0.01 for more, where arms have up to
            eight features; else by 1,024 evenly spread points.
        observation_and_action_constraint_splitter: from an observation to features and a mask `[actions]` of what is
            allowed, as in TF-Agents.
        train_step_counter: a variable that counts calls of `train`, as in TF-Agents; None for a new one.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        agent_name: str = "ensemble-bp",
        noise_variance: Any = 1.0,
        prior_scale: float | None = 1.0,
        num_problems: int = 1,
        num_members: int | None = None,
        parameters: AgentParameters | None = None,
        seed: int = 0,
        first_problem: int = 0,
        *,
        form: str = "auto",
        choice: str = "thompson",
        ucb_width: float = 2.0,
        discount: float = 1.0,
        window: int | None = None,
        emit_propensity: bool = False,
        observation_and_action_constraint_splitter: Any = None,
        train_step_counter: Any = None,
    ) -> None:
        problems.check_sizes(num_problems=num_problems, **({} if num_members is None else {"num_members": num_members}))
        if not 0.0 < discount <= 1.0:
            raise ValueError(f"Expected discount in (0, 1]. Received: {discount}")
        if window is not None:
            problems.check_sizes(window=window)
            if discount < 1.0:
                raise ValueError(f"Expected a discount or a window. Received: {discount} and {window}")
        num_actions = observations.check_action_spec(action_spec)
        options = policy_lib.Options(
            seed, first_problem, choice, ucb_width, emit_propensity, observation_and_action_constraint_splitter
        )
        self.design = features.make_design(options.features_of(time_step_spec.observation), num_actions, form)
        if prior_scale is None and noise_variance is not None:
            raise ValueError("Expected noise_variance=None where prior_scale is None. Received: a noise_variance")
        table = np.ones([num_problems, num_actions]) if noise_variance is None else noise_variance
        loss = thompson.make_loss(
            agent_name, _as_table(table, num_problems, num_actions), prior_scale or 1.0, parameters
        )
        estimated = None
        if noise_variance is None:
            if parameters is not None and parameters.noise_variance is not None:
                raise ValueError(
                    "Expected noise_variance in one place. Received: one in parameters, and None to estimate"
                )
            weighs = agent_name in (LinearAgent.ENSEMBLE_BP, LinearAgent.WEIGHTED_P)
            estimated = "arm" if weighs else "mean"
            if self.design.num_models == 1 and num_problems * num_actions * self.design.dim**2 > _MOST_NUMBERS:
                estimated = "pooled"
        self.agent_name, self.num_problems, self.num_members = agent_name, num_problems, num_members
        sizes = linear_models.Sizes(num_problems, num_actions, self.design.num_models, self.design.dim, num_members)
        self.models = linear_models.LinearModels(
            sizes, loss, estimated, prior_scale is None, discount, seed, first_problem, window
        )
        super().__init__(self._make_policy(time_step_spec, action_spec, options), train_step_counter)

    @property
    def sums(self) -> thompson.Sums:
        """Precision `[problems * models, d, d]` and right-hand sides `[problems * models, (members,) d]`."""
        return thompson.Sums(self.models.precision(), self.models.targets())

    def theta_mean(self) -> Tensor:
        """Returns the mean of the members' parameters, `[problems * models, features]`."""
        return self.models.means(self.models.roots())

    def noise_variance(self) -> Tensor:
        """Returns the noise variances that are used, given or estimated so far, `[problems, actions]`."""
        return self.models.noise_variance()

    def summary(self) -> str:
        """Returns in words what the agent is: its features, members and noise."""
        members = "infinitely many" if self.num_members is None else str(self.num_members)
        same = "estimated, the same for all arms: "
        noise = {None: "known", "arm": "estimated per arm", "mean": f"{same}their mean", "pooled": f"{same}of all data"}
        return "\n".join(
            [
                f"{self.agent_name}, {members} members, choice by {self.policy.options.choice}",
                self.design.describe(),
                f"noise: {noise[self.models.estimated]}",
                f"scale of the prior: {'known' if self.models.unit is None else 'that of the rewards'}",
            ]
        )

    def observe(self, trajectory: Any) -> Any:
        """Learns from one step of the driver: for use as an observer where rewards come at once."""
        self._learn(self._rows(experience_lib.from_trajectory(trajectory, self.policy)))
        return trajectory

    def _train(self, experience: Any, weights: Any = None) -> Any:  # The base class calls it by this name.
        rows = self._rows(experience_lib.from_training(experience, self.policy, weights))
        loss = self._squared(rows)  # before the update, as TF-Agents has it
        self._learn(rows)
        return loss

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> Any:
        return self._squared(self._rows(experience_lib.from_training(experience, self.policy, weights)))

    def _squared(self, rows: linear_models.Rewards) -> Any:
        """The weighted mean of squared errors of the members' mean."""
        theta = tf.reshape(self.theta_mean(), [self.num_problems, self.design.num_models, self.design.dim])
        model = rows.action if self.design.num_models > 1 else tf.zeros_like(rows.action)
        own = tf.gather_nd(theta, tf.stack([rows.problem, model], axis=1))
        error = tf.square(rows.reward - tf.reduce_sum(own * rows.features, axis=1))
        total = tf.maximum(tf.reduce_sum(rows.keep), 1e-300)
        return tf_agent.LossInfo(tf.cast(tf.reduce_sum(rows.keep * error) / total, tf.float32), ())

    def _learn(self, rows: linear_models.Rewards) -> None:
        self.models.learn(rows)
        with tf.control_dependencies([rows.reward]):
            self.train_step_counter.assign_add(1)

    def _rows(self, rows: experience_lib.Rows) -> linear_models.Rewards:
        rows = experience_lib.checked(rows, self.policy, self.num_problems)
        row = steps.split_ids(rows.id)[1]
        problem = row if self.num_problems > 1 else tf.zeros_like(row)
        action = tf.cast(rows.action, tf.int64)
        x = self.design.expand(rows.features)
        return linear_models.Rewards(problem, action, x, rows.reward, rows.weight, tf.cast(rows.id, tf.int64))

    def _make_policy(self, time_step_spec: Any, action_spec: Any, options: Any) -> LinearThompsonPolicy:
        return LinearThompsonPolicy(time_step_spec, action_spec, self.models, self.design, options)


def make_counter() -> Any:
    """Returns a variable that counts updates."""
    return tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step")


def _as_table(noise_variance: Any, num_problems: int, num_actions: int) -> Any:
    table = np.asarray(noise_variance, np.float64)
    try:
        return np.broadcast_to(table, (num_problems, num_actions))
    except ValueError:
        raise ValueError(
            f"Expected noise_variance to be a number, [{num_actions}] or [{num_problems}, {num_actions}]. "
            f"Received: shape {table.shape}"
        ) from None
