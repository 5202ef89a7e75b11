"""`NeuralThompsonAgent`: Thompson sampling with a `tfe.Ensemble` of any Keras model, for any TF-Agents bandit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.agents import tf_agent

from bandit_env import steps, thompson
from bandit_env.agents import experience as experience_lib
from bandit_env.agents import policy as policy_lib
from bandit_env.agents.linear import ThompsonAgent
from tf_ensembles.ensemble.data import with_ids
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import Tensor


class NeuralThompsonPolicy(policy_lib.ThompsonPolicy):
    """For each row of a batch: picks one member at random and takes the action for which it predicts most."""

    def __init__(self, time_step_spec: Any, action_spec: Any, ensemble: Ensemble, seed: int) -> None:
        super().__init__(time_step_spec, action_spec, seed, 0, "neural_thompson_policy")
        self._ensemble = ensemble
        outputs = self.predict(tf.zeros([1, self.num_actions, self.num_features]))  # builds it
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

    def _predict(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        predicted = tf.transpose(self.predict(features), [0, 2, 1])
        member = thompson.pick_members(steps.uniform(key, step, rows, 1)[0], self._ensemble.num_members)
        # A logit and its probability have the same order, so binary rewards need nothing more.
        action = tf.argmax(tf.gather(predicted, member, batch_dims=1), axis=-1, output_type=tf.int32)
        return action, tf.gather(features, action, batch_dims=1)


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
            binary cross-entropy from logits takes rewards in [0, 1].
        seed: decides which members are picked.
    """

    compiles_training = True  # `train` runs Keras's own compiled step and must not be put into another function.

    def __init__(self, time_step_spec: Any, action_spec: Any, ensemble: Ensemble, seed: int = 0) -> None:
        if not isinstance(ensemble, Ensemble) or not ensemble.compiled:
            raise ValueError(f"Expected a tfe.Ensemble that has been compiled. Received: {ensemble!r}")
        self.ensemble = ensemble
        self._binary = ensemble.kind is not None and ensemble.kind.value == "binary_logits"
        super().__init__(NeuralThompsonPolicy(time_step_spec, action_spec, ensemble, seed))

    def _train(self, experience: Any, weights: Any = None) -> Any:
        if not tf.executing_eagerly():
            raise ValueError("Expected train to be called outside of tf.function: it runs Keras's own compiled step.")
        rows = experience_lib.checked(experience_lib.from_training(experience), self.policy.num_actions, 1)
        if self._binary and bool(tf.reduce_any((rows.reward < 0.0) | (rows.reward > 1.0))):
            raise ValueError(f"Expected rewards in [0, 1] for a binary loss. Received: {rows.reward.numpy()}")
        target = tf.cast(rows.reward, tf.float32)[:, tf.newaxis]
        sample_weight = None if weights is None else tf.reshape(tf.cast(weights, tf.float32), [-1])
        loss = self.ensemble.train_on_batch(
            with_ids(rows.features, rows.id), target, sample_weight=sample_weight, return_dict=True
        )["loss"]
        self.train_step_counter.assign_add(1)
        return tf_agent.LossInfo(tf.constant(loss, tf.float32), ())
