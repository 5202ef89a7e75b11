"""`EnsembleDqnAgent`: Bootstrapped DQN with a `tfe.Ensemble` of any Keras model, for any TF-Agents environment."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent

from bandit_env.agents import observations
from bandit_env.agents.dqn.policy import EnsembleDqnPolicy
from bandit_env.dqn import loop
from bandit_env.problems import check_sizes
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import Tensor


class EnsembleDqnAgent(tf_agent.TFAgent):
    """Deep Q-learning with an ensemble, one of whose members acts in each episode.

    Members map an observation to a value for each action; a prior function, with its scale in units of value, is part
    of the ensemble, and so is a trunk that members share. Every member has double-Q targets of its own, from its own
    copy in the target network. Bootstrap weights belong to the id that the collect policy gave to a transition.

    It is trained, as TF-Agents' `DqnAgent`, on pairs of consecutive steps, `[batch, 2, ...]`: what a replay buffer
    gives with `num_steps=2`. `policy` takes the best action by the mean of members; `collect_policy` explores.

    Args:
        time_step_spec: of the environment.
        action_spec: of the environment: a scalar integer from 0.
        ensemble: compiled, with an optimizer and a loss for values (mean squared error, which is what is minimized).
        discount: of later rewards, beside the environment's own.
        epsilon: how often the collect policy draws an action by chance.
        target_update_period: updates per copy to the target network.
        seed: decides which members act.
    """

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        ensemble: Ensemble,
        *,
        discount: float = 0.99,
        epsilon: float = 0.0,
        target_update_period: int = 4,
        seed: int = 0,
    ) -> None:
        check_sizes(target_update_period=target_update_period)
        if not isinstance(ensemble, Ensemble) or not ensemble.compiled:
            raise ValueError(f"Expected a tfe.Ensemble that has been compiled. Received: {ensemble!r}")
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"Expected discount in [0, 1]. Received: {discount}")
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"Expected epsilon in [0, 1]. Received: {epsilon}")
        if ensemble.bootstrap is not None and ensemble.bootstrap.target_noise(0, [0], [0], 1) is not None:
            raise ValueError(f"Expected a bootstrap by weights. Received: {ensemble.bootstrap}")
        self.num_actions = observations.check_action_spec(action_spec)
        spec = time_step_spec.observation
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(f"Expected an observation that is one tensor. Received: {spec}")
        outputs = ensemble(tf.zeros([1, *spec.shape], spec.dtype)).shape[-1]  # builds it
        if outputs != self.num_actions:
            raise ValueError(f"Expected members with {self.num_actions} outputs, one per action. Received: {outputs}")
        self.ensemble, self._discount, self._period = ensemble, discount, target_update_period
        ensemble._make_update()  # The optimizer's variables exist before a checkpoint is restored.
        self._target = [tf.Variable(variable.value, trainable=False) for variable in ensemble.trainable_variables]
        # What Keras keeps is a part of checkpoints of the agent.
        kept = {id(v): v for v in (*ensemble.variables, *ensemble.optimizer.variables)}
        self._kept = [variable.value for variable in kept.values()]
        collect = EnsembleDqnPolicy(time_step_spec, action_spec, ensemble, seed, epsilon)
        super().__init__(
            time_step_spec,
            action_spec,
            EnsembleDqnPolicy(time_step_spec, action_spec, ensemble, seed, by_member=False),
            collect,
            train_sequence_length=2,
            training_data_spec=collect.trajectory_spec,
            train_step_counter=tf.Variable(0, dtype=tf.int64, trainable=False, name="train_step"),
        )

    def target_values(self, observation: Tensor) -> Tensor:
        """Returns what the target network says about each action, `[batch, members, actions]`."""
        fixed = [variable.value for variable in self.ensemble.non_trainable_variables]
        return self.ensemble.stateless_call([one.value() for one in self._target], fixed, observation)[0]

    def _train(self, experience: Any, weights: Any = None) -> Any:
        rows = self._checked(experience)
        due = tf.equal(self.train_step_counter % self._period, 0)
        with tf.control_dependencies([tf.identity(rows.reward)]):
            copies = [
                tf.where(due, tf.convert_to_tensor(new.value), old)
                for new, old in zip(self.ensemble.trainable_variables, self._target, strict=True)
            ]
            copied = [variable.assign(value) for variable, value in zip(self._target, copies, strict=True)]
        with tf.control_dependencies(copied):
            goal, weight = self._goals(rows, weights)
        loss = self.ensemble.minimize_in_graph(
            rows.observation[:, 0], lambda out: self._losses(out, rows, goal, weight)
        )
        with tf.control_dependencies([loss]):
            self.train_step_counter.assign_add(1)
        return tf_agent.LossInfo(tf.cast(loss, tf.float32), ())

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> Any:
        rows = self._checked(experience)
        goal, weight = self._goals(rows, weights)
        outputs = self.ensemble(rows.observation[:, 0], training=False)
        return tf_agent.LossInfo(tf.reduce_mean(self._losses(outputs, rows, goal, weight)), ())

    def _losses(self, outputs: Tensor, rows: Any, goal: Tensor, weight: Tensor) -> Tensor:
        """Returns members' losses `[members]`, from outputs `[batch, members, actions]`."""
        taken = tf.one_hot(rows.action[:, 0], self.num_actions)[:, tf.newaxis]
        value = tf.reduce_sum(outputs * taken, axis=2)
        return tf.reduce_mean(weight * tf.square(value - goal), axis=0)

    def _goals(self, rows: Any, weights: Any) -> tuple[Tensor, Tensor]:
        """Returns double-Q targets and weights of each row for each member, both `[batch, members]`."""
        after = rows.observation[:, 1]
        online, target = self.ensemble(after, training=False), self.target_values(after)
        later = loop.double_q(tf.transpose(online, [1, 2, 0]), tf.transpose(target, [1, 2, 0]))  # [members, batch]
        go = self._discount * tf.cast(rows.discount[:, 0], tf.float32)
        goal = tf.cast(rows.reward[:, 0], tf.float32)[:, tf.newaxis] + go[:, tf.newaxis] * tf.transpose(later)
        # The pair of an episode's last step and the next one's first is no transition.
        weight = tf.cast(~rows.is_boundary()[:, :1], tf.float32)
        if weights is not None:
            weight *= tf.reshape(tf.cast(weights, tf.float32), [-1, 1])
        names = tf.range(self.ensemble.num_members, dtype=tf.int64)
        if self.ensemble.bootstrap is not None:
            weight *= self.ensemble.bootstrap.weights(self.ensemble.seed, rows.policy_info.id[:, 0], names)
        return tf.stop_gradient(goal), weight * tf.ones_like(goal)

    def _checked(self, experience: Any) -> Any:
        """Returns experience, or raises on what would spoil members."""
        info = experience.policy_info
        if not hasattr(info, "id"):
            raise ValueError(
                "Expected experience with the policy_info of this agent's collect_policy. Received: "
                f"{type(info).__name__}"
            )
        if experience.reward.shape.rank != 2 or experience.reward.shape[1] != 2:
            raise ValueError(
                "Expected pairs of steps, [batch, 2], as a replay buffer gives with num_steps=2. Received: rewards of "
                f"shape {list(experience.reward.shape)}"
            )
        reward, action = experience.reward[:, 0], experience.action[:, 0]
        finite = tf.reduce_all(tf.math.is_finite(reward))
        fits = tf.reduce_all((action >= 0) & (action < self.num_actions))
        low, high = tf.reduce_min(action), tf.reduce_max(action)
        checks = [
            tf.debugging.Assert(finite, ["Expected finite rewards. Received:", reward]),
            tf.debugging.Assert(fits, [f"Expected actions in [0, {self.num_actions}). Received:", low, "to", high]),
        ]
        with tf.control_dependencies([check for check in checks if check is not None]):
            return experience._replace(reward=tf.identity(experience.reward))
