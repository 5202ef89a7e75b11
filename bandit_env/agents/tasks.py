"""Bandits that are not linear: a Neural Testbed problem, and a classification data set."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.bandits.environments import bandit_tf_environment, classification_environment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tf_ensembles import draws, testbed
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.agents.observations import GLOBAL, PER_ARM
from tf_ensembles.bandit_env.problems import check_sizes
from tf_ensembles.base import Array
from tf_ensembles.linear.inputs import Tensor


class TestbedBandit(bandit_tf_environment.BanditTFEnvironment):
    """A Neural Testbed problem as a bandit: actions are inputs, and a label of class 1 pays 1, any other 0.

    Args:
        problem: of `tfe.testbed.make_problem`; its training data are not used.
        num_actions: N fixed inputs, drawn from N(0, I).
        seed: decides the actions and the rewards.
        per_arm: True gives the actions' features as per-arm observations, with one constant global feature. False gives
            the constant alone: for agents that cannot read features of actions.
    """

    __test__ = False  # For pytest, which would collect it by its name.

    def __init__(self, problem: testbed.Problem, num_actions: int, seed: int = 0, per_arm: bool = True) -> None:
        check_sizes(num_actions=num_actions)
        dim = problem.prior_knowledge.input_dim
        rows = tf.range(num_actions, dtype=tf.int64)
        features = steps.normal(draws.key(seed, draws.Purpose.BANDIT_NORMAL), 0, rows, dim)
        self._features = tf.transpose(features)[tf.newaxis]
        self.mean_reward = np.exp(problem.environment.log_probs(self._features[0].numpy()))[:, 1].astype(np.float32)
        self._key, self._per_arm = draws.key(seed, draws.Purpose.BANDIT_REWARD), per_arm
        spec: Any = tf.TensorSpec([1], tf.float32, GLOBAL)
        if per_arm:
            spec = {GLOBAL: spec, PER_ARM: tf.TensorSpec([num_actions, dim], tf.float32, PER_ARM)}
        action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, num_actions - 1, "action")
        super().__init__(ts.time_step_spec(spec), action, 1, "testbed_bandit")
        self._step_count = tf.Variable(0, dtype=tf.int64, trainable=False, name="step_count")

    def mean_rewards(self, observation: Any) -> Tensor:
        """Returns the probability that each action pays, `[1, actions]`."""
        return tf.constant(self.mean_reward)[tf.newaxis]

    def _observe(self) -> Any:
        constant = tf.ones([1, 1])
        return {GLOBAL: constant, PER_ARM: self._features} if self._per_arm else constant

    def _apply_action(self, action: Tensor) -> Tensor:
        draw = steps.uniform(self._key, self._step_count.read_value(), tf.zeros([1], tf.int64), 1)[0]
        pays = tf.cast(draw < tf.gather(tf.constant(self.mean_reward), action), tf.float32)
        with tf.control_dependencies([pays]):
            self._step_count.assign_add(1)
        return pays


def make_classification(x: Array, y: Array, batch_size: int, seed: int) -> Any:
    """Returns TF-Agents' environment of a classification data set: naming the class of an example pays 1, else 0."""
    classes = int(np.max(y)) + 1
    rewards = tfp.distributions.Independent(tfp.distributions.Deterministic(tf.eye(classes)), 2)
    data = tf.data.Dataset.from_tensor_slices((np.asarray(x, np.float32), np.asarray(y, np.int32)))
    return classification_environment.ClassificationBanditEnvironment(
        data, rewards, batch_size, shuffle_buffer_size=len(y), seed=seed
    )
