"""`EnsembleDqnAgent`: Bootstrapped DQN with a `tfe.Ensemble` of any Keras model, for any TF-Agents environment."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent

from tf_ensembles.bandit_env.agents import members, observations
from tf_ensembles.bandit_env.agents.dqn.policy import EnsembleDqnPolicy
from tf_ensembles.bandit_env.agents.linear import make_counter
from tf_ensembles.bandit_env.dqn import loop
from tf_ensembles.bandit_env.problems import check_sizes
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import Tensor


class EnsembleDqnAgent(tf_agent.TFAgent):
    """Deep Q-learning with an ensemble, one of whose members acts in each episode.

    Members map an observation to a value for each action; a prior function, with its scale in units of value, is part
    of the ensemble, and so is a trunk that members share. Every member has double-Q targets of its own, from its own
    copy in the target network. Bootstrap weights belong to the id that the collect policy gave to a transition.

    It is trained, as TF-Agents' `DqnAgent`, on consecutive steps, `[batch, n_step_update + 1, ...]`: what a replay
    buffer gives with `num_steps=n_step_update + 1`. `policy` takes the best action by the mean of members;
    `collect_policy` explores.

    Args:
        time_step_spec: of the environment.
        action_spec: of the environment: a scalar integer from 0.
        ensemble: compiled, with an optimizer and one of Keras's losses for values, such as `"mse"` or `"huber"`.
        discount: of later rewards, beside the environment's own.
        epsilon: how often the collect policy draws an action by chance.
        target_update_period: updates per copy to the target network.
        seed: decides which members act.
        n_step_update: rewards of this many steps are summed before a value is looked up. Steps that would cross from
            an episode that was cut off into the next one count for nothing.
        observation_and_action_constraint_splitter: from an observation to what members see and a mask `[actions]` of
            what is allowed, as in TF-Agents; in targets, too, the best action is one that is allowed.
        train_step_counter: a variable that counts calls of `train`, as in TF-Agents; None for a new one.
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
        n_step_update: int = 1,
        observation_and_action_constraint_splitter: Any = None,
        train_step_counter: Any = None,
    ) -> None:
        check_sizes(target_update_period=target_update_period, n_step_update=n_step_update)
        members.check_compiled(ensemble)
        self._values_loss = members.values_loss(ensemble)
        if not 0.0 <= discount <= 1.0:
            raise ValueError(f"Expected discount in [0, 1]. Received: {discount}")
        if not 0.0 <= epsilon <= 1.0:
            raise ValueError(f"Expected epsilon in [0, 1]. Received: {epsilon}")
        self.num_actions = observations.check_action_spec(action_spec)
        spec, splitter = time_step_spec.observation, observation_and_action_constraint_splitter
        spec = spec if splitter is None else splitter(spec)[0]
        if not isinstance(spec, tf.TensorSpec):
            raise ValueError(
                "Expected an observation that is one tensor; for (features, mask), give "
                f"observation_and_action_constraint_splitter=lambda pair: (pair[0], pair[1]). Received: {spec}"
            )
        shape = list(spec.shape)
        members.check_inputs(ensemble, shape, f"an observation of shape {shape}")
        outputs = ensemble(tf.zeros([1, *spec.shape], spec.dtype)).shape[-1]  # builds it
        if outputs != self.num_actions:
            raise ValueError(f"Expected members with {self.num_actions} outputs, one per action. Received: {outputs}")
        self.ensemble, self._discount, self._period = ensemble, discount, target_update_period
        self._num_steps = n_step_update
        # Counted apart from `train_step_counter`, which others may share and count on.
        self._updates = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")
        ensemble._make_update()  # The optimizer's variables exist before a checkpoint is restored.
        self._target = [tf.Variable(variable.value, trainable=False) for variable in ensemble.trainable_variables]
        # What Keras keeps is a part of checkpoints of the agent.
        kept = {id(v): v for v in (*ensemble.variables, *ensemble.optimizer.variables)}
        self._kept = [variable.value for variable in kept.values()]
        specs = time_step_spec, action_spec
        collect = EnsembleDqnPolicy(*specs, ensemble, seed, epsilon, splitter=splitter)
        super().__init__(
            time_step_spec,
            action_spec,
            EnsembleDqnPolicy(*specs, ensemble, seed, by_member=False, splitter=splitter),
            collect,
            train_sequence_length=n_step_update + 1,
            training_data_spec=collect.trajectory_spec,
            train_step_counter=make_counter() if train_step_counter is None else train_step_counter,
        )

    def target_values(self, observation: Tensor) -> Tensor:
        """Returns what the target network says about each action, `[batch, members, actions]`."""
        fixed = [variable.value for variable in self.ensemble.non_trainable_variables]
        return self.ensemble.stateless_call([one.value() for one in self._target], fixed, observation)[0]

    def _train(self, experience: Any, weights: Any = None) -> Any:
        rows = self._checked(experience)
        due = tf.equal(self._updates % self._period, 0)
        with tf.control_dependencies([tf.identity(rows.reward)]):
            copies = [
                tf.where(due, tf.convert_to_tensor(new.value), old)
                for new, old in zip(self.ensemble.trainable_variables, self._target, strict=True)
            ]
            copied = [variable.assign(value) for variable, value in zip(self._target, copies, strict=True)]
        with tf.control_dependencies(copied):
            goal, weight = self._goals(rows, weights)
        loss = self.ensemble.minimize_in_graph(
            self._seen(rows, 0)[0], lambda out: self._losses(out, rows, goal, weight)
        )
        with tf.control_dependencies([loss]):
            self._updates.assign_add(1)
            self.train_step_counter.assign_add(1)
        return tf_agent.LossInfo(tf.cast(loss, tf.float32), ())

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> Any:
        rows = self._checked(experience)
        goal, weight = self._goals(rows, weights)
        outputs = self.ensemble(self._seen(rows, 0)[0], training=False)
        return tf_agent.LossInfo(tf.reduce_mean(self._losses(outputs, rows, goal, weight)), ())

    def _losses(self, outputs: Tensor, rows: Any, goal: Tensor, weight: Tensor) -> Tensor:
        """Returns members' losses `[members]`, from outputs `[batch, members, actions]`."""
        taken = tf.one_hot(rows.action[:, 0], self.num_actions)[:, tf.newaxis]
        value = tf.reduce_sum(outputs * taken, axis=2)
        return tf.reduce_mean(weight * self._values_loss(goal, value), axis=0)

    def _seen(self, rows: Any, step: int) -> tuple[Tensor, Tensor | None]:
        """Returns what members see at one of the steps of each row, and which actions are allowed."""
        observation = tf.nest.map_structure(lambda part: part[:, step], rows.observation)
        return self.collect_policy.split(observation)

    def _goals(self, rows: Any, weights: Any) -> tuple[Tensor, Tensor]:
        """Returns double-Q targets and weights of each row for each member, both `[batch, members]`."""
        number = self._num_steps
        after, mask = self._seen(rows, number)
        online, target = self.ensemble(after, training=False), self.target_values(after)
        if mask is not None:
            online = tf.where(mask[:, tf.newaxis], online, online.dtype.min)
        later = loop.double_q(tf.transpose(online, [1, 2, 0]), tf.transpose(target, [1, 2, 0]))  # [members, batch]
        discount = self._discount * tf.cast(rows.discount[:, :number], tf.float32)
        reached = tf.math.cumprod(discount, axis=1, exclusive=True)  # what a reward of each step counts
        reward = tf.reduce_sum(reached * tf.cast(rows.reward[:, :number], tf.float32), axis=1, keepdims=True)
        goal = reward + tf.reduce_prod(discount, axis=1, keepdims=True) * tf.transpose(later)
        # An episode's last step and the next one's first are no transition; after a discount of 0 they do not matter.
        crosses = tf.reduce_any(rows.is_boundary()[:, :number] & (reached > 0.0), axis=1, keepdims=True)
        weight = tf.cast(~crosses, tf.float32)
        if weights is not None:
            weight *= tf.reshape(tf.cast(weights, tf.float32), [-1, 1])
        weight *= members.bootstrap_weights(self.ensemble, rows.policy_info.id[:, 0])
        return tf.stop_gradient(goal), weight

    def _checked(self, experience: Any) -> Any:
        """Returns experience, or raises on what would spoil members."""
        info = experience.policy_info
        if not hasattr(info, "id"):
            raise ValueError(
                "Expected experience with the policy_info of this agent's collect_policy. Received: "
                f"{type(info).__name__}"
            )
        length = self._num_steps + 1
        if experience.reward.shape.rank != 2 or experience.reward.shape[1] != length:
            raise ValueError(
                f"Expected {length} consecutive steps, [batch, {length}], as a replay buffer gives with "
                f"num_steps={length}. Received: rewards of shape {list(experience.reward.shape)}"
            )
        reward, action = experience.reward[:, :-1], experience.action[:, 0]
        finite = tf.reduce_all(tf.math.is_finite(reward))
        checks = (
            (finite, ["Expected finite rewards. Received:", reward]),
            observations.actions_fit(action, self.num_actions),
        )
        return experience._replace(reward=observations.where_all_hold(experience.reward, *checks))
