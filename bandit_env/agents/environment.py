"""The heteroscedastic linear bandit as a TF-Agents environment whose batch is J independent problems."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_agents.bandits.environments import bandit_tf_environment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tf_ensembles import draws
from tf_ensembles.bandit_env import problems, steps
from tf_ensembles.bandit_env.agents import observations
from tf_ensembles.bandit_env.agents.observations import GLOBAL, PER_ARM
from tf_ensembles.linear.inputs import Tensor


class HeteroscedasticLinearBandit(bandit_tf_environment.BanditTFEnvironment, tf.Module):
    """J bandit problems of section 6; row j of a batch always belongs to problem j.

    Each problem has N fixed actions `x ~ N(0, I_d)`, its own `theta* ~ N(0, prior_scale^2 I)` and its own noise. Taking
    action x pays `theta* . x + N(0, sigma^2(x))`. Observations have per-arm features `[N, d]`, no global ones, in the
    form that TF-Agents' agents read with `accepts_per_arm_features=True`. With one problem, those agents run unchanged.

    Args:
        num_problems: J, the batch size.
        num_actions: N.
        dim: d.
        prior_scale: s0.
        seed: decides problems and rewards; rewards also depend on the step, so a restored environment continues.
        noise: from features and random draws to the actions' noise variances; the paper's by default.
        first_problem: the number of the first problem; a problem is the same under any batching.
    """

    def __init__(
        self,
        num_problems: int = 1,
        num_actions: int = 4,
        dim: int = 2,
        prior_scale: float = 1.0,
        seed: int = 0,
        noise: problems.NoiseFunction = problems.diagonal_noise,
        first_problem: int = 0,
    ) -> None:
        made = problems.make_problems(num_problems, num_actions, dim, prior_scale, seed, noise, first_problem)
        tf.Module.__init__(self, name="heteroscedastic_linear_bandit")  # makes it a part of checkpoints
        self.problems = made
        self._num_actions, self._key = num_actions, draws.key(seed, draws.Purpose.BANDIT_REWARD)
        self._rows = tf.range(made.first, made.first + num_problems, dtype=tf.int64)
        self._features, self._theta = tf.constant(made.features), tf.constant(made.theta)
        self._mean, self._deviation = tf.constant(made.mean_reward), tf.constant(np.sqrt(made.noise_variance))
        observation = {
            GLOBAL: tf.TensorSpec([0], tf.float32, GLOBAL),
            PER_ARM: tf.TensorSpec([num_actions, dim], tf.float32, PER_ARM),
        }
        action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, num_actions - 1, "action")
        super().__init__(ts.time_step_spec(observation), action, num_problems, "heteroscedastic_linear_bandit")
        self._step_count = tf.Variable(0, dtype=tf.int64, trainable=False, name="step_count")
        self._pay = tf.function(self._reward, jit_compile=True, autograph=False)

    @property
    def noise_variance(self) -> Any:
        """The noise variance of each action, `[J, N]`: what ensemble-bp and weighted ensemble-p know."""
        return self.problems.noise_variance

    @property
    def step_count(self) -> Tensor:
        """How many steps have been taken."""
        return self._step_count

    def mean_rewards(self, observation: Any) -> Tensor:
        """Returns the mean reward of each action in an observation of all problems, `[J, N]`."""
        return tf.einsum("jnd,jd->jn", observation[PER_ARM], self._theta)

    def optimal_reward(self, observation: Any) -> Tensor:
        """Returns the best mean reward, `[J]`: the baseline of TF-Agents' `RegretMetric`."""
        return tf.reduce_max(self.mean_rewards(observation), axis=1)

    def optimal_action(self, observation: Any) -> Tensor:
        """Returns the best action, `[J]`: the baseline of TF-Agents' `SuboptimalArmsMetric`."""
        return tf.argmax(self.mean_rewards(observation), axis=1, output_type=tf.int32)

    def _observe(self) -> Any:
        return {GLOBAL: tf.zeros([self.batch_size, 0]), PER_ARM: self._features}

    def _step(self, action: Tensor) -> ts.TimeStep:
        action = tf.convert_to_tensor(action)
        # Here and not in `_apply_action`, which is traced for any shape.
        if not action.shape.is_compatible_with([self.batch_size]):
            raise ValueError(f"Expected one action per problem, [{self.batch_size}]. Received: shape {action.shape}")
        return super()._step(action)

    def _apply_action(self, action: Tensor) -> Tensor:
        # Outside of the compiled part: XLA leaves assertions out.
        action = observations.where_all_hold(action, observations.actions_fit(action, self._num_actions))
        reward = self._pay(action, self._step_count.read_value())
        with tf.control_dependencies([reward]):
            self._step_count.assign_add(1)
        return reward

    def _reward(self, action: Tensor, step: Tensor) -> Tensor:
        noise = steps.normal(self._key, step, self._rows, 1)[0]
        mean = tf.gather(self._mean, action, batch_dims=1)
        return mean + tf.gather(self._deviation, action, batch_dims=1) * noise
