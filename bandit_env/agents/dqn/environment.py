"""Deep sea, cart-pole swing-up and mountain car as TF-Agents environments."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tf_agents.environments import tf_environment
from tf_agents.specs import tensor_spec
from tf_agents.trajectories import time_step as ts

from tf_ensembles.bandit_env.agents import observations
from tf_ensembles.bandit_env.dqn.environments import Environment
from tf_ensembles.linear.inputs import Tensor


class GraphEnvironment(tf_environment.TFEnvironment, tf.Module):
    """An environment of `bandit_env.dqn` for TF-Agents' drivers; row s of a batch is the copy of seed s.

    As TF-Agents has it, the step after the last one of an episode starts the next, whatever the action, each row by
    itself. Checkpoints keep where it is. From the same actions it goes the way of the compiled loop.

    Args:
        environment: such as `DeepSea(10)`.
        seeds: of the copies; the batch size is their number.
        seed: of all their draws.
    """

    def __init__(self, environment: Environment, seeds: Sequence[int] = (0,), seed: int = 0) -> None:
        self.environment, self._world = environment, environment.make_world(seeds, seed)
        size, shape = len(seeds), list(environment.observation_shape)
        tf.Module.__init__(self, name="graph_environment")  # makes it a part of checkpoints
        observation = tensor_spec.TensorSpec(shape, tf.float32, "observation")
        action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, environment.num_actions - 1, "action")
        super().__init__(ts.time_step_spec(observation), action, size)
        number = tf.zeros([size], tf.int64)
        started = environment.start(self._world, number)
        self._place = tf.nest.map_structure(lambda part: tf.Variable(part, trainable=False), started)
        self._count = tf.Variable(number, trainable=False, name="transitions")
        self._episode = tf.Variable(number - 1, trainable=False, name="episode")
        zeros = tf.zeros([size])
        self._shown = ts.TimeStep(
            tf.Variable(tf.fill([size], ts.StepType.LAST), trainable=False),
            tf.Variable(zeros, trainable=False),
            tf.Variable(zeros, trainable=False),
            tf.Variable(tf.zeros([size, *shape]), trainable=False),
        )

    def _current_time_step(self) -> ts.TimeStep:
        # Before the first step all rows are at the end of an episode that never was.
        new = tf.reduce_all(self._episode < 0)
        return tf.cond(new, self._reset, self._read)

    def _read(self) -> ts.TimeStep:
        return tf.nest.map_structure(lambda part: part.read_value(), self._shown)

    def _reset(self) -> ts.TimeStep:
        with tf.control_dependencies([self._shown.step_type.assign(tf.fill([self.batch_size], ts.StepType.LAST))]):
            return self._moved(tf.zeros([self.batch_size], tf.int32))

    def _step(self, action: Tensor) -> ts.TimeStep:
        action = tf.cast(tf.convert_to_tensor(action), tf.int32)
        if not action.shape.is_compatible_with([self.batch_size]):
            raise ValueError(f"Expected one action per row, [{self.batch_size}]. Received: shape {action.shape}")
        fits = observations.actions_fit(action, self.environment.num_actions)
        return self._moved(observations.where_all_hold(action, fits))

    def _moved(self, action: Tensor) -> ts.TimeStep:
        """Steps the rows that are within an episode, and starts one in the others."""
        over = tf.equal(self._shown.step_type, ts.StepType.LAST)
        episode = self._episode.read_value() + tf.cast(over, tf.int64)
        place = tf.nest.map_structure(lambda part: part.read_value(), self._place)
        outcome = self.environment.step(self._world, place, action, self._count.read_value())
        started = self.environment.start(self._world, episode)
        after = tf.nest.map_structure(lambda one, other: tf.where(over, one, other), started, outcome.state)
        kind = tf.where(outcome.done, ts.StepType.LAST, ts.StepType.MID)
        observed = tf.reshape(self.environment.observe(after), self._shown.observation.shape)
        shown = ts.TimeStep(
            tf.where(over, ts.StepType.FIRST, kind),
            tf.where(over, 0.0, outcome.reward),
            tf.where(over | ~outcome.done, 1.0, 0.0),
            observed,
        )
        flat = [*tf.nest.flatten((after, shown)), self._count + tf.cast(~over, tf.int64), episode]
        kept = [*tf.nest.flatten((self._place, self._shown)), self._count, self._episode]
        with tf.control_dependencies(flat):
            assigned = [variable.assign(value) for variable, value in zip(kept, flat, strict=True)]
        with tf.control_dependencies(assigned):
            return tf.nest.map_structure(tf.identity, shown)
