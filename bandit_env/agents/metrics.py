"""Regret by true mean rewards, for TF-Agents drivers."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.metrics import tf_metric

from tf_ensembles.linear.inputs import Tensor


class CumulativeRegret(tf_metric.TFStepMetric):
    """The paper's regret: mean rewards of the best actions minus those of the actions taken, summed over steps.

    TF-Agents' `RegretMetric` has the last step only, and the noise of its reward. The sums are kept by problem.

    Args:
        mean_rewards: from an observation to the mean reward of each action, `[batch, actions]`, such as
            `HeteroscedasticLinearBandit.mean_rewards`.
        batch_size: the number of problems.
    """

    def __init__(self, mean_rewards: Any, batch_size: int, name: str = "CumulativeRegret") -> None:
        super().__init__(name=name)
        self._mean_rewards = mean_rewards
        self.regret = tf.Variable(tf.zeros([batch_size], tf.float64), trainable=False, name="regret")

    def call(self, trajectory: Any) -> Any:
        """Adds the regret of one step of all problems."""
        means = self._mean_rewards(trajectory.observation)
        taken = tf.gather(means, trajectory.action, batch_dims=1)
        self.regret.assign_add(tf.cast(tf.reduce_max(means, axis=1) - taken, tf.float64))
        return trajectory

    def result(self) -> Tensor:
        """Returns the mean over problems."""
        return tf.reduce_mean(self.regret)

    def standard_error(self) -> Tensor:
        """Returns the standard error of `result` over problems."""
        count = tf.cast(tf.size(self.regret), tf.float64)
        return tf.math.reduce_std(self.regret) / tf.sqrt(count - 1.0)

    def reset(self) -> None:
        """Starts from zero."""
        self.regret.assign(tf.zeros_like(self.regret))
