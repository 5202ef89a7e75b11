"""Thompson sampling policies: draw an ensemble member, act greedily for it."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.bandits.specs import utils as bandit_spec_utils
from tf_agents.policies import tf_policy
from tf_agents.trajectories import policy_step

from bandit_env import steps, thompson
from bandit_env.thompson import Spread
from tf_ensembles import draws
from tf_ensembles.linear.inputs import DTYPE, Tensor

# Keys of an observation that has features of its own for each action.
GLOBAL, PER_ARM = bandit_spec_utils.GLOBAL_FEATURE_KEY, bandit_spec_utils.PER_ARM_FEATURE_KEY


class ThompsonInfo(NamedTuple):
    """What the policy records with each action; it comes back to the agent with the reward, however late."""

    id: Tensor  # [batch] int64: names the decision; (step << 32) + row
    chosen_arm_features: Tensor  # [batch, features] of the chosen action


def arm_features(observation: Any, num_actions: int, dtype: Any = tf.float32) -> Tensor:
    """Returns the features of each action, `[batch, actions, features]`.

    Per-arm observations: global features, then the arm's. Global ones alone: the action as a one-hot vector follows.
    """
    if isinstance(observation, dict) and PER_ARM in observation:
        shared, own = tf.cast(observation[GLOBAL], dtype), tf.cast(observation[PER_ARM], dtype)
        if shared.shape[-1] == 0:
            return own
    else:
        shared = observation[GLOBAL] if isinstance(observation, dict) else observation
        shared = tf.cast(tf.reshape(shared, [tf.shape(shared)[0], -1]), dtype)
        own = tf.broadcast_to(tf.eye(num_actions, dtype=dtype), [tf.shape(shared)[0], num_actions, num_actions])
    repeated = tf.repeat(shared[:, tf.newaxis], num_actions, axis=1)
    return tf.concat([repeated, own], axis=-1)


def num_features(observation_spec: Any, num_actions: int) -> int:
    """Returns the number of features that `arm_features` gives for an observation of this spec."""
    example = tf.nest.map_structure(lambda spec: tf.zeros([1, *spec.shape], spec.dtype), observation_spec)
    return int(arm_features(example, num_actions).shape[-1])


class ThompsonPolicy(tf_policy.TFPolicy, abc.ABC):
    """The part that all ensembles share: counts steps, names decisions, picks the best action of a drawn member.

    Draws are a pure function of (seed, step, row), and the step is a variable that checkpoints and SavedModels keep:
    a restored policy continues as the original would have.

    Args:
        time_step_spec: of the environment.
        action_spec: of the environment: a scalar integer from 0.
        seed: decides all draws.
        row_offset: added to the row of a batch; for batches that are a part of a larger set of problems.
        name: of the policy.
    """

    def __init__(self, time_step_spec: Any, action_spec: Any, seed: int, row_offset: int, name: str) -> None:
        self.num_actions = check_action_spec(action_spec)
        self.num_features = num_features(time_step_spec.observation, self.num_actions)
        self._key, self._row_offset = draws.key(seed, draws.Purpose.BANDIT_POLICY), row_offset
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="policy_step")
        info = ThompsonInfo(
            tf.TensorSpec([], tf.int64, "id"), tf.TensorSpec([self.num_features], tf.float32, "chosen_arm_features")
        )
        super().__init__(time_step_spec, action_spec, info_spec=info, name=name)

    @abc.abstractmethod
    def _predict(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Draws members; returns the best action `[batch]` and its features, from features `[batch, actions, d]`."""

    def _act(self, time_step: Any, seed: Any) -> tuple[Tensor, ThompsonInfo]:
        key = tf.constant(self._key if seed is None else draws.key(int(seed), draws.Purpose.BANDIT_POLICY), tf.int64)
        features = arm_features(time_step.observation, self.num_actions)
        step = self.step.read_value()
        rows = tf.range(tf.shape(features)[0], dtype=tf.int64)
        action, chosen = self._predict(features, step, rows + self._row_offset, key)
        with tf.control_dependencies([action]):
            self.step.assign_add(1)
        return tf.cast(action, self.action_spec.dtype), ThompsonInfo(steps.make_ids(step, rows), chosen)

    def _action(self, time_step: Any, policy_state: Any, seed: Any = None) -> Any:
        action, info = self._act(time_step, seed)
        return policy_step.PolicyStep(action, policy_state, info)

    def _distribution(self, time_step: Any, policy_state: Any) -> Any:
        # As TF-Agents' own Thompson sampling: a decision is drawn here, and the distribution is all at it.
        step = self._action(time_step, policy_state)
        return step._replace(action=_Drawn(step.action))


class _Drawn(tfp.distributions.Deterministic):
    """A drawn action as a distribution that PolicySaver leaves out of what it saves, because it has no type spec.

    Saved as part of a policy, it would need TensorFlow Probability wherever the policy is loaded.
    """


def _no_type_spec(self: _Drawn) -> Any:
    raise AttributeError("Expected use outside of saved models. Received: a request for a type spec")


_Drawn._type_spec = property(_no_type_spec)  # Here, because the class's own is put in when it is made.


class LinearThompsonPolicy(ThompsonPolicy):
    """Thompson sampling from the distribution of a linear ensemble, or from its M members."""

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        sums: thompson.Sums,
        spread: Spread,
        anchor_deviation: float,
        num_problems: int,
        num_members: int | None,
        seed: int,
        row_offset: int = 0,
    ) -> None:
        super().__init__(time_step_spec, action_spec, seed, row_offset, "linear_thompson_policy")
        self._sums, self._spread, self._anchor_deviation = sums, spread, anchor_deviation
        self._num_problems, self._num_members = num_problems, num_members
        self._compiled = tf.function(self._choose, jit_compile=True, autograph=False)

    def _predict(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        batch = features.shape[0]
        if self._num_problems > 1 and batch not in (None, self._num_problems):
            raise ValueError(f"Expected a batch of the agent's {self._num_problems} problems. Received: {batch} rows")
        sums = thompson.Sums(*(variable.read_value() for variable in self._sums))
        # XLA needs to know shapes; a policy saved for any batch size runs as plain operations.
        choose = self._choose if batch is None else self._compiled
        return choose(sums, features, step, rows, key)

    def _choose(
        self, sums: thompson.Sums, features: Tensor, step: Tensor, rows: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self._num_problems == 1:  # All rows are decisions of one problem.
            sums = thompson.Sums(*(tf.repeat(s, tf.shape(rows)[0], axis=-1) for s in sums))
        last = tf.transpose(tf.cast(features, DTYPE), [1, 2, 0])
        predicted = thompson.choose(
            sums, last, step, rows, key, self._spread, self._anchor_deviation, self._num_members
        )
        action = tf.argmax(predicted, axis=0, output_type=tf.int32)
        return action, tf.gather(features, action, batch_dims=1)


def check_action_spec(action_spec: Any) -> int:
    """Returns the number of actions, or raises for actions that are not scalar integers from 0."""
    try:
        low, high = int(action_spec.minimum), int(action_spec.maximum)
        fits = action_spec.dtype.is_integer and action_spec.shape.rank == 0 and low == 0 and high >= 0
    except (AttributeError, TypeError, ValueError):
        fits, high = False, 0
    if not fits:
        raise ValueError(f"Expected a scalar integer action_spec with minimum 0. Received: {action_spec}")
    return high + 1
