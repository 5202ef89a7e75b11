"""Policies of ensembles: by Thompson sampling, greedily, by upper bounds, or by information."""

from __future__ import annotations

import abc
import dataclasses
import logging
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp
from tf_agents.policies import tf_policy
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import policy_step

from tf_ensembles import draws
from tf_ensembles.bandit_env import choice as choice_lib
from tf_ensembles.bandit_env import steps
from tf_ensembles.bandit_env.agents import observations
from tf_ensembles.bandit_env.choice import Choice
from tf_ensembles.linear.inputs import DTYPE, Tensor

REPLICA_BITS = 20  # rows of a batch below 2^20, replicas above
MAX_REPLICAS = 2 ** (steps.ROW_BITS - REPLICA_BITS)
# What was taken is possible, though points that stand for infinitely many members may miss what is rarer than one.
LEAST_PROPENSITY = 0.5 / choice_lib.POINTS
# Bounded, because a wrapper that draws actions itself draws what it records from the spec.
ID_SPEC = tensor_spec.BoundedTensorSpec([], tf.int64, 0, 2**62, "id")


class ThompsonInfo(NamedTuple):
    """What the policy records with each action; it comes back to the agent with the reward, however late."""

    id: Tensor  # [batch] int64: names the decision; (step << 32) + (replica << 20) + row
    chosen_arm_features: Any = ()  # [batch, features] of the chosen arm, where arms have features of their own
    propensity: Any = ()  # [batch] float32, the probability of the action, where it is asked for


class ArmValues(NamedTuple):
    """What an ensemble says about each action, `[batch, actions]`."""

    mean: Tensor  # over members
    deviation: Tensor  # standard deviation over members: what is not known of the mean reward
    probability: Tensor  # that the action is the best: what Thompson sampling takes it with


@dataclasses.dataclass(frozen=True)
class Options:
    """How a policy decides and what it records.

    seed: decides all draws.
    row_offset: added to the row of a batch; for batches that are a part of a larger set of problems.
    choice: "thompson", "greedy", "ucb" or "ids".
    ucb_width: of "ucb", in standard deviations.
    emit_propensity: whether `policy_info` carries the probability of each action taken.
    splitter: TF-Agents' `observation_and_action_constraint_splitter`: from an observation to features and mask.
    """

    seed: int = 0
    row_offset: int = 0
    choice: str = Choice.THOMPSON
    ucb_width: float = 2.0
    emit_propensity: bool = False
    splitter: Any = None

    def features_of(self, observation: Any) -> Any:
        """Returns the part of an observation, or of its spec, that has features, without a mask."""
        return observation if self.splitter is None else self.splitter(observation)[0]

    def __post_init__(self) -> None:
        if self.choice not in list(Choice):
            raise ValueError(f"Expected choice to be one of {[c.value for c in Choice]}. Received: {self.choice!r}")
        if not 0.0 <= self.ucb_width < float("inf"):
            raise ValueError(f"Expected a finite ucb_width >= 0. Received: {self.ucb_width}")


class NoSavedDistribution:
    """A policy whose `distribution` is not saved by PolicySaver: it would need TensorFlow Probability to be loaded."""


class ThompsonPolicy(tf_policy.TFPolicy, NoSavedDistribution, abc.ABC):
    """The part that all ensembles share: counts steps, names decisions, chooses an action and knows its probability.

    Draws are a pure function of (seed, replica, step, row), and the step is a variable that checkpoints and SavedModels
    keep: a restored policy continues as the original would have. Replicas of one policy that serve side by side get
    numbers of their own by `set_replica`, and with them ids and draws of their own.
    """

    def __init__(self, time_step_spec: Any, action_spec: Any, options: Options, name: str) -> None:
        self.num_actions = observations.check_action_spec(action_spec)
        spec = options.features_of(time_step_spec.observation)
        self.num_global, self.num_arm = observations.widths(spec, self.num_actions)
        self.options = options
        # TF-Agents' wrappers ask: then they record the features of actions that they draw themselves.
        self.accepts_per_arm_features = self.num_arm > 0
        self._key = draws.key(options.seed, draws.Purpose.BANDIT_POLICY)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="policy_step")
        self.replica = tf.Variable(0, dtype=tf.int64, trainable=False, name="policy_replica")
        info = ThompsonInfo(
            ID_SPEC,
            tf.TensorSpec([self.num_arm], spec[observations.PER_ARM].dtype, "chosen_arm_features")
            if self.num_arm
            else (),
            tensor_spec.BoundedTensorSpec([], tf.float32, 0.0, 1.0, "propensity") if options.emit_propensity else (),
        )
        super().__init__(
            time_step_spec,
            action_spec,
            info_spec=info,
            observation_and_action_constraint_splitter=options.splitter,
            name=name,
        )
        specs = tf.nest.map_structure(
            lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), time_step_spec.observation
        )
        signature = [specs, tf.TensorSpec([], tf.int64), tf.TensorSpec([None], tf.int64)]
        # One graph for all sizes of batches.
        self._decide_any = tf.function(self._decide, input_signature=signature, autograph=False)
        self._values_any = tf.function(self._arm_values, input_signature=signature[:1], autograph=False)

    # What an ensemble fills in. Features are whatever `_features` returns.

    @abc.abstractmethod
    def _features(self, observation: Any) -> Tensor:
        """Returns features of a batch of observations."""

    @abc.abstractmethod
    def taken_features(self, observation: Any, action: Tensor, chosen_arm_features: Any) -> Tensor:
        """Returns the features of decisions that come back with their rewards, `[batch, features]`."""

    @abc.abstractmethod
    def _draw(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> Tensor:
        """Draws a member for each row; returns what it predicts for each action, `[batch, actions]`."""

    @abc.abstractmethod
    def _moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Returns mean and standard deviation over members, both `[batch, actions]` float64."""

    @abc.abstractmethod
    def _samples(self, features: Tensor) -> Tensor:
        """Returns what all members predict, `[batch, members, actions]` float64, or points that stand for them."""

    def _probabilities(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the probability that a member's best action is each, `[batch, actions]` float64."""
        return choice_lib.best_shares(choice_lib.allowed(self._samples(features), mask))

    def _propensities(self, features: Tensor, mask: Tensor | None, action: Tensor) -> Tensor:
        """Returns the probabilities `[batch]` float64 of actions that were taken by Thompson sampling."""
        return tf.gather(self._probabilities(features, mask), action, batch_dims=1)

    # For users.

    def arm_values(self, observation: Any) -> ArmValues:
        """Returns mean, standard deviation and probability of being the best of each action, `[batch, actions]`."""
        return self._values_any(self._checked(observation))

    def set_replica(self, replica: int) -> None:
        """Gives this copy of the policy ids and draws of its own: a number below 4,096 that no other copy has."""
        if not 0 <= replica < MAX_REPLICAS:
            raise ValueError(f"Expected a replica in [0, {MAX_REPLICAS}). Received: {replica}")
        self.replica.assign(replica)

    def action_as(self, time_step: Any, replica: Any) -> Any:
        """Decides as `action` does, with ids and draws of a replica that is given here: a number, or one per row."""
        numbers = tf.reshape(tf.cast(replica, tf.int64), [-1])
        fit = tf.reduce_all((numbers >= 0) & (numbers < MAX_REPLICAS))
        words = [f"Expected replicas in [0, {MAX_REPLICAS}). Received:", numbers]
        self._check_replicas()
        action, info = self._act(time_step, None, observations.where_all_hold(numbers, (fit, words)))
        return policy_step.PolicyStep(action, (), info)

    def _check_replicas(self) -> None:
        """Raises where the policy cannot have replicas."""

    # Deciding.

    def _decide(self, observation: Any, key: Tensor, replica: Tensor) -> tuple[Tensor, ThompsonInfo]:
        features, mask = self._read(observation)
        size = tf.shape(tf.nest.flatten(observation)[0])[0]
        step = self.step.read_value()
        rows = tf.range(tf.cast(size, tf.int64)) + tf.bitwise.left_shift(replica, tf.constant(REPLICA_BITS, tf.int64))
        action, propensity = self._choose(features, mask, step, rows + self.options.row_offset, key)
        info = ThompsonInfo(steps.make_ids(step, rows), self._chosen(observation, action), propensity)
        with tf.control_dependencies([action]):
            self.step.assign_add(1)
        return tf.cast(action, self.action_spec.dtype), info

    def _choose(
        self, features: Tensor, mask: Tensor | None, step: Tensor, rows: Tensor, key: Tensor
    ) -> tuple[Tensor, Any]:
        """Returns the action `[batch]`, and its propensity where it is asked for."""
        choice, probabilities = Choice(self.options.choice), None
        if choice is Choice.IDS:
            probabilities = choice_lib.information_directed(choice_lib.allowed(self._samples(features), mask))
            action = choice_lib.pick(probabilities, steps.uniform(key, step, rows, 1)[0])
        else:
            if choice is Choice.THOMPSON:
                values = self._draw(features, step, rows, key)
            else:
                mean, deviation = self._moments(features)
                values = mean + self.options.ucb_width * deviation if choice is Choice.UCB else mean
            action = tf.argmax(choice_lib.allowed(tf.cast(values, DTYPE), mask), axis=-1, output_type=tf.int32)
        if not self.options.emit_propensity:
            return action, ()
        if choice in (Choice.GREEDY, Choice.UCB):
            return action, tf.ones(tf.shape(action), tf.float32)
        if probabilities is None:
            taken = self._propensities(features, mask, action)
        else:
            taken = tf.gather(probabilities, action, batch_dims=1)
        return action, tf.cast(tf.clip_by_value(taken, LEAST_PROPENSITY, 1.0), tf.float32)

    def _chosen(self, observation: Any, action: Tensor) -> Any:
        """Returns the arm features of the actions taken, `[batch, features]`, where arms have features."""
        if not self.num_arm:
            return ()
        return tf.gather(self.split(observation)[0][observations.PER_ARM], action, batch_dims=1)

    def _arm_values(self, observation: Any) -> ArmValues:
        features, mask = self._read(observation)
        return ArmValues(*self._moments(features), self._probabilities(features, mask))

    def split(self, observation: Any) -> tuple[Any, Tensor | None]:
        """Returns the observation of features, and which actions are allowed, `[batch, actions]`."""
        mask = None
        if self.options.splitter is not None:
            observation, mask = self.options.splitter(observation)
            mask = tf.cast(mask, tf.bool)
        observation, present = observations.split_mask(observation, self.num_actions)
        return observation, mask if present is None else present if mask is None else mask & present

    def _read(self, observation: Any) -> tuple[Tensor, Tensor | None]:
        """Returns features and mask, or raises where features are not finite or nothing is allowed."""
        observation, mask = self.split(observation)
        features = self._features(observation)
        checks = []
        finite = tf.reduce_all(tf.math.is_finite(features))
        checks.append((finite, ["Expected finite features. Received: NaN or infinite ones in an observation"]))
        if mask is not None:
            fits = tf.reduce_all(tf.reduce_any(mask, axis=1))
            checks.append((fits, ["Expected a mask that allows an action. Received: a row that allows none"]))
        return observations.where_all_hold(features, *checks), mask

    def _checked(self, observation: Any) -> Any:
        spec = self.time_step_spec.observation
        observation = tf.nest.map_structure(lambda one, part: tf.cast(part, one.dtype), spec, observation)
        observations.check_shapes(observation, spec)
        return observation

    def _act(self, time_step: Any, seed: Any, replica: Tensor | None = None) -> tuple[Tensor, ThompsonInfo]:
        key = self._key if seed is None else draws.key(int(seed), draws.Purpose.BANDIT_POLICY)
        observation = self._checked(time_step.observation)
        replica = self.replica.read_value()[tf.newaxis] if replica is None else replica
        decided = self._decide_any(observation, tf.constant(key, tf.int64), replica)
        batch = tf.nest.flatten(observation)[0].shape[:1]
        for part in tf.nest.flatten(decided):
            part.set_shape(batch.concatenate(part.shape[1:]))
        return decided

    def _action(self, time_step: Any, policy_state: Any, seed: Any = None) -> Any:
        action, info = self._act(time_step, seed)
        return policy_step.PolicyStep(action, policy_state, info)

    def _distribution(self, time_step: Any, policy_state: Any) -> Any:
        # As TF-Agents' own Thompson sampling: a decision is drawn here, and the distribution is all at it. What is
        # recorded belongs to its mode, because wrappers such as `GreedyPolicy` take that.
        step = self._action(time_step, policy_state)
        observation = self._checked(time_step.observation)
        values = self.arm_values(observation).mean
        allowed = choice_lib.allowed(values, self.split(observation)[1])
        greedy = tf.argmax(allowed, axis=-1, output_type=self.action_spec.dtype)
        info = step.info._replace(chosen_arm_features=self._chosen(observation, greedy))
        if self.options.emit_propensity:
            info = info._replace(propensity=tf.ones_like(info.propensity))
        return step._replace(action=drawn(step.action, greedy), info=info)


class Drawn(tfp.distributions.Deterministic):
    """A drawn action as a distribution, whose mode is the action that is best by the mean: for `GreedyPolicy`.

    PolicySaver leaves it out of what it saves, because it has no type spec.
    """

    greedy: Tensor  # [batch]; no argument of `__init__`, because TFP warns of subclasses that have one of their own

    def _mode(self) -> Tensor:
        return self.greedy


def drawn(action: Tensor, greedy: Tensor) -> Drawn:
    """Returns a drawn action as a distribution with the given mode, both `[batch]`."""
    made = Drawn(action)
    made.greedy = greedy
    return made


def _no_type_spec(self: Drawn) -> Any:
    raise AttributeError("Expected use outside of saved models. Received: a request for a type spec")


Drawn._type_spec = property(_no_type_spec)  # Here, because the class's own is put in when it is made.


class _SavedOnPurpose(logging.Filter):
    """Leaves out that PolicySaver does not save `distribution`, where a policy of ours is saved: it is documented."""

    def filter(self, record: logging.LogRecord) -> bool:
        ours = isinstance(record.args, tuple) and any(isinstance(part, NoSavedDistribution) for part in record.args)
        return not (ours and "Could not serialize policy.distribution()" in str(record.msg))


logging.getLogger("absl").addFilter(_SavedOnPurpose())


def add_replicas(saver: Any, policy: ThompsonPolicy) -> None:
    """Makes what a `PolicySaver` of the policy saves decide for replicas that are given at call.

    The SavedModel has `action_for_replica((time_step, replica))` beside `action`, with a number for each row.
    """
    spec = (policy.time_step_spec, tf.TensorSpec([], tf.int64))
    saver.register_function("action_for_replica", lambda both: policy.action_as(*both), spec)


def set_replica(loaded: Any, replica: int) -> None:
    """Gives a loaded SavedModel of a policy ids and draws of its own, as `ThompsonPolicy.set_replica`."""
    if not 0 <= replica < MAX_REPLICAS:
        raise ValueError(f"Expected a replica in [0, {MAX_REPLICAS}). Received: {replica}")
    found = [variable for variable in loaded.model_variables if variable.name.startswith("policy_replica")]
    if len(found) != 1:
        raise ValueError("Expected a saved policy of an ensemble. Received: one without a replica")
    found[0].assign(replica)
