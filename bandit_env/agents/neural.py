"""`NeuralThompsonAgent`: Thompson sampling with a `tfe.Ensemble` of any Keras model, for any TF-Agents bandit."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent

from bandit_env import steps, thompson
from bandit_env.agents import experience as experience_lib
from bandit_env.agents import members, observations
from bandit_env.agents import policy as policy_lib
from bandit_env.agents.linear import ThompsonAgent
from tf_ensembles.ensemble.data import with_ids
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import DTYPE, Tensor


class NeuralThompsonPolicy(policy_lib.ThompsonPolicy):
    """For each row of a batch: picks one member at random and takes the action for which it predicts most."""

    def __init__(self, time_step_spec: Any, action_spec: Any, ensemble: Ensemble, options: policy_lib.Options) -> None:
        self._ensemble = ensemble
        super().__init__(time_step_spec, action_spec, options, "neural_thompson_policy")
        self.num_features = self.num_global + (self.num_arm or self.num_actions)
        own = f"{self.num_arm} of the arm" if self.num_arm else f"{self.num_actions} one-hot of the action"
        words = f"{self.num_features} features ({self.num_global} global + {own})"
        members.check_inputs(ensemble, [self.num_features], words)
        outputs = self.predict(tf.zeros([1, self.num_actions, self.num_features]))  # builds it
        self._one_member = members.OneMember(ensemble)
        # TF-Agents asks `tf.Module` for variables, which does not look into Keras 3 models.
        self._ensemble_variables = [variable.value for variable in ensemble.variables]
        if outputs.shape[-1] != ensemble.num_members:
            raise ValueError(
                "Expected members with one output, the reward of an action or its logit. "
                f"Received: {outputs.shape[-1] // ensemble.num_members} outputs"
            )

    def predict(self, features: Tensor) -> Tensor:
        """Returns what each member predicts for each action, `[batch, actions, members]`."""
        flat = tf.reshape(features, [-1, self.num_features])
        outputs = self._ensemble(flat, training=False)
        wide = outputs.shape[1] * outputs.shape[2]
        return tf.reshape(outputs, [-1, self.num_actions, wide])

    def _features(self, observation: Any) -> Tensor:
        return observations.arm_features(observation, self.num_actions)

    def taken_features(self, observation: Any, action: Tensor, chosen_arm_features: Any) -> Tensor:
        """Returns the members' inputs for decisions that come back with their rewards, `[batch, features]`."""
        return observations.taken_features(observation, action, chosen_arm_features, self.num_actions)

    def _draw(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> Tensor:
        member = thompson.pick_members(steps.uniform(key, step, rows, 1)[0], self._ensemble.num_members)
        # A logit and its probability have the same order, so binary rewards need nothing more.
        if self.options.emit_propensity:  # All members are asked anyway.
            return tf.gather(tf.transpose(self.predict(features), [0, 2, 1]), member, batch_dims=1)
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

    Members map the features of one action to one output: its reward, or the logit of a binary reward. Per-arm
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
    ) -> None:
        members.check_compiled(ensemble)
        self.ensemble, self._binary = ensemble, is_binary(ensemble)
        options = policy_lib.Options(
            seed, 0, choice, ucb_width, emit_propensity, observation_and_action_constraint_splitter
        )
        super().__init__(NeuralThompsonPolicy(time_step_spec, action_spec, ensemble, options), train_step_counter)
        ensemble._make_update()  # The optimizer's variables exist before a checkpoint is restored.
        if ensemble._auto_jit:  # XLA would compile anew for each size of batch.
            ensemble.jit_compile = False

    def observe(self, trajectory: Any) -> Any:
        """Learns from one step of a driver that runs eagerly: one update on that step's decisions."""
        self.train(tf.nest.map_structure(lambda part: part[:, tf.newaxis], trajectory))
        return trajectory

    def _train(self, experience: Any, weights: Any = None) -> Any:
        batch = self._batch(experience, weights)
        if tf.executing_eagerly():
            loss = tf.constant(self.ensemble.train_on_batch(*batch, return_dict=True)["loss"], tf.float32)
        else:
            loss = tf.cast(self.ensemble.train_in_graph(*batch), tf.float32)
        with tf.control_dependencies([loss]):
            self.train_step_counter.assign_add(1)
        return tf_agent.LossInfo(loss, ())

    def _loss(self, experience: Any, weights: Any = None, training: bool = False) -> Any:
        if not tf.executing_eagerly():
            raise ValueError("Expected loss to be called outside of tf.function. Received: a call within one")
        loss = self.ensemble.test_on_batch(*self._batch(experience, weights), return_dict=True)["loss"]
        return tf_agent.LossInfo(tf.constant(loss, tf.float32), ())

    def _batch(self, experience: Any, weights: Any) -> tuple[Any, Tensor, Any]:
        """Returns inputs with ids, targets and weights, of experience that has been checked."""
        rows = experience_lib.checked(experience_lib.from_training(experience, self.policy, weights), self.policy)
        if self._binary:
            wrong = tf.reduce_any((rows.reward < 0.0) | (rows.reward > 1.0))
            if tf.executing_eagerly() and bool(wrong):
                raise ValueError(f"Expected rewards in [0, 1] for a binary loss. Received: {rows.reward.numpy()}")
            said = ["Expected rewards in [0, 1] for a binary loss. Received:", rows.reward]
            check = tf.debugging.Assert(~wrong, said)
            with tf.control_dependencies([] if check is None else [check]):
                rows = rows._replace(reward=tf.identity(rows.reward))
        target = tf.cast(rows.reward, tf.float32)[:, tf.newaxis]
        sample_weight = None if weights is None else tf.cast(rows.weight, tf.float32)
        return with_ids(rows.features, rows.id), target, sample_weight

    def _other_policy(self, **changes: Any) -> policy_lib.ThompsonPolicy:
        options = dataclasses.replace(self.policy.options, **changes)
        return NeuralThompsonPolicy(self.policy.time_step_spec, self.policy.action_spec, self.ensemble, options)
