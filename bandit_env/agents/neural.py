"""`NeuralThompsonAgent`: Thompson sampling with a `tfe.Ensemble` of any Keras model, for any TF-Agents bandit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent

from tf_ensembles.bandit_env import steps, thompson
from tf_ensembles.bandit_env.agents import experience as experience_lib
from tf_ensembles.bandit_env.agents import members, observations
from tf_ensembles.bandit_env.agents import policy as policy_lib
from tf_ensembles.bandit_env.agents.linear import ThompsonAgent
from tf_ensembles.ensemble.data import with_ids
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import DTYPE, Tensor


class NeuralThompsonPolicy(policy_lib.ThompsonPolicy):
    """For each row of a batch: picks one member at random and takes the action for which it predicts most."""

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        ensemble: Ensemble,
        options: policy_lib.Options,
        all_actions: bool = False,
    ) -> None:
        self._ensemble, self.all_actions = ensemble, all_actions
        super().__init__(time_step_spec, action_spec, options, "neural_thompson_policy")
        if all_actions and self.num_arm:
            raise ValueError(f"Expected all_actions=False for features of arms. Received: {self.num_arm} of each arm")
        self.num_features = self.num_global + (0 if all_actions else self.num_arm or self.num_actions)
        own = f" + {self.num_arm} of the arm" if self.num_arm else f" + {self.num_actions} one-hot of the action"
        words = f"{self.num_features} features ({self.num_global} global{'' if all_actions else own})"
        members.check_inputs(ensemble, [self.num_features], words)
        examples = [1] if all_actions else [1, self.num_actions]
        outputs = self.predict(tf.zeros([*examples, self.num_features]))  # builds it
        self._one_member = members.OneMember(ensemble)
        # TF-Agents asks `tf.Module` for variables, which does not look into Keras 3 models.
        self._ensemble_variables = [variable.value for variable in ensemble.variables]
        if all_actions and outputs.shape[1] != self.num_actions:
            raise ValueError(
                f"Expected members with {self.num_actions} outputs, one per action. Received: {outputs.shape[1]}"
            )
        if outputs.shape[-1] != ensemble.num_members:
            raise ValueError(
                "Expected members with one output, the reward of an action or its logit. "
                f"Received: {outputs.shape[-1] // ensemble.num_members} outputs"
            )

    def predict(self, features: Tensor) -> Tensor:
        """Returns what each member predicts for each action, `[batch, actions, members]`."""
        flat = tf.reshape(features, [-1, self.num_features])
        outputs = self._ensemble(flat, training=False)
        if self.all_actions:
            return tf.transpose(outputs, [0, 2, 1])
        wide = outputs.shape[1] * outputs.shape[2]
        return tf.reshape(outputs, [-1, self.num_actions, wide])

    def _features(self, observation: Any) -> Tensor:
        if self.all_actions:
            return observations.flat_global(observation)
        return observations.arm_features(observation, self.num_actions)

    def taken_features(self, observation: Any, action: Tensor, chosen_arm_features: Any) -> Tensor:
        """Returns the members' inputs for decisions that come back with their rewards, `[batch, features]`."""
        if self.all_actions:
            return observations.flat_global(observation)
        return observations.taken_features(observation, action, chosen_arm_features, self.num_actions)

    def _draw(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> Tensor:
        member = thompson.pick_members(steps.uniform(key, step, rows, 1)[0], self._ensemble.num_members)
        # A logit and its probability have the same order, so binary rewards need nothing more.
        if self.options.emit_propensity:  # All members are asked anyway.
            return tf.gather(tf.transpose(self.predict(features), [0, 2, 1]), member, batch_dims=1)
        if self.all_actions:
            return self._one_member(features[:, tf.newaxis], member)[:, 0]
        return self._one_member(features, member)[..., 0]

    def _samples(self, features: Tensor) -> Tensor:
        predicted = tf.cast(tf.transpose(self.predict(features), [0, 2, 1]), DTYPE)
        return tf.sigmoid(predicted) if is_binary(self._ensemble) else predicted

    def _moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        values = self._samples(features)
        return tf.reduce_mean(values, axis=1), tf.math.reduce_std(values, axis=1)


def is_binary(ensemble: Ensemble) -> bool:
    """Whether members' outputs are logits of rewards of 0 or 1."""
    return ensemble.kind is not None and ensemble.kind.value == "binary_logits"


class NeuralThompsonAgent(ThompsonAgent):
    """Thompson sampling with an ensemble of neural networks, trained on what a replay buffer gives.

    Members map the features of one action to one output: its reward, or the logit of a binary reward; or, with
    `all_actions=True`, the global features to the rewards of all actions, in one pass. Per-arm
    environments give them global features followed by the arm's; others the observation followed by the action as a
    one-hot vector. Bootstrap weights belong to the id that the policy gave to a decision, so experience may come late,
    in any order and repeatedly, as it does from a replay buffer.

    Args:
        time_step_spec: of the environment.
        action_spec: of the environment: a scalar integer from 0.
        ensemble: compiled, with members `[features] -> [1]`. A loss for values (mean squared error) takes real rewards,
            binary cross-entropy from logits takes rewards in [0, 1]. XLA compiles for each size of batch anew, and is
            left off unless it was compiled with `jit_compile=True`.
        seed: decides which members are picked.
        choice: "thompson", "greedy", "ucb" or "ids", as for `EnsembleThompsonAgent`.
        ucb_width: of "ucb", in standard deviations over members.
        emit_propensity: whether `policy_info` carries the share of members that would take the action.
        observation_and_action_constraint_splitter: from an observation to features and a mask, as in TF-Agents.
        train_step_counter: a variable that counts calls of `train`, as in TF-Agents; None for a new one.
        all_actions: whether members map global features alone to an output for each action, `[global] -> [actions]`:
            one pass for all actions. They are trained on the output of the action taken, by a loss for values.
    """

    compiles_training = True  # Outside of other functions, `train` runs Keras's own compiled step.

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        ensemble: Ensemble,
        seed: int = 0,
        *,
        choice: str = "thompson",
        ucb_width: float = 2.0,
        emit_propensity: bool = False,
        observation_and_action_constraint_splitter: Any = None,
        train_step_counter: Any = None,
        all_actions: bool = False,
    ) -> None:
        members.check_compiled(ensemble)
        self.ensemble, self._binary = ensemble, is_binary(ensemble)
        self._values_loss: Any = members.values_loss(ensemble) if all_actions else None
        self._compiled_step = tf.function(self._step, reduce_retracing=True, autograph=False)
        options = policy_lib.Options(
            seed, 0, choice, ucb_width, emit_propensity, observation_and_action_constraint_splitter
        )
        self._all_actions = all_actions
        super().__init__(self._make_policy(time_step_spec, action_spec, options), train_step_counter)
        ensemble._make_update()  # The optimizer's variables exist before a checkpoint is restored.
        if ensemble._auto_jit:  # XLA would compile anew for each size of batch.
            ensemble.jit_compile = False

    def observe(self, trajectory: Any) -> Any:
        """Learns from one step of a driver that runs eagerly: one update on that step's decisions."""
        self.train(tf.nest.map_structure(lambda part: part[:, tf.newaxis], trajectory))
        return trajectory

    def _train(self, experience: Any, weights: Any = None) -> Any:
        if self._values_loss is not None:
            loss = (self._compiled_step if tf.executing_eagerly() else self._step)(self._rows(experience, weights))
            return self._counted(loss)
        batch = self._batch(experience, weights)
        if tf.executing_eagerly():
            loss = tf.constant(self.ensemble.train_on_batch(*batch, return_dict=True)["loss"], tf.float32)
        else:
            loss = tf.cast(self.ensemble.train_in_graph(*batch), tf.float32)
        return self._counted(loss)

    def _counted(self, loss: Tensor) -> Any:
        with tf.control_dependencies([loss]):
            self.train_step_counter.assign_add(1)
        return tf_agent.LossInfo(loss, ())

    def _step(self, rows: experience_lib.Rows) -> Tensor:
        """Updates members on their outputs of the actions taken; returns the mean of their losses."""
        return tf.cast(self.ensemble.minimize_in_graph(rows.features, lambda out: self._losses(rows, out)), tf.float32)

    def _losses(self, rows: experience_lib.Rows, outputs: Tensor) -> Tensor:
        """Returns members' losses `[members]`, from outputs `[batch, members, actions]`."""
        taken = tf.reduce_sum(outputs * tf.one_hot(rows.action, self.policy.num_actions)[:, tf.newaxis], axis=2)
        reward = tf.cast(rows.reward, tf.float32)[:, tf.newaxis] * tf.ones_like(taken)
        weight = tf.cast(rows.weight, tf.float32)[:, tf.newaxis] * members.bootstrap_weights(self.ensemble, rows.id)
        return tf.reduce_mean(weight * self._values_loss(reward, taken), axis=0)

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> Any:
        if not tf.executing_eagerly():
            raise ValueError("Expected loss to be called outside of tf.function. Received: a call within one")
        if self._values_loss is not None:
            rows = self._rows(experience, weights)
            losses = self._losses(rows, self.ensemble(rows.features, training=False))
            return tf_agent.LossInfo(tf.reduce_mean(losses), ())
        loss = self.ensemble.test_on_batch(*self._batch(experience, weights), return_dict=True)["loss"]
        return tf_agent.LossInfo(tf.constant(loss, tf.float32), ())

    def _rows(self, experience: Any, weights: Any) -> experience_lib.Rows:
        return experience_lib.checked(experience_lib.from_training(experience, self.policy, weights), self.policy)

    def _batch(self, experience: Any, weights: Any) -> tuple[Any, Tensor, Any]:
        """Returns inputs with ids, targets and weights, of experience that has been checked."""
        rows = self._rows(experience, weights)
        if self._binary:
            wrong = tf.reduce_any((rows.reward < 0.0) | (rows.reward > 1.0))
            if tf.executing_eagerly() and bool(wrong):
                raise ValueError(f"Expected rewards in [0, 1] for a binary loss. Received: {rows.reward.numpy()}")
            words = ["Expected rewards in [0, 1] for a binary loss. Received:", rows.reward]
            rows = rows._replace(reward=observations.where_all_hold(rows.reward, (~wrong, words)))
        target = tf.cast(rows.reward, tf.float32)[:, tf.newaxis]
        sample_weight = None if weights is None else tf.cast(rows.weight, tf.float32)
        return with_ids(rows.features, rows.id), target, sample_weight

    def _make_policy(self, time_step_spec: Any, action_spec: Any, options: Any) -> NeuralThompsonPolicy:
        return NeuralThompsonPolicy(time_step_spec, action_spec, self.ensemble, options, self._all_actions)
