"""A stock driver and replay buffer around an agent: a step of both as one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tf_agents.drivers import dynamic_step_driver
from tf_agents.replay_buffers import tf_uniform_replay_buffer


def make_step(env: Any, agent: Any, batch_size: int = 128, capacity: int = 10_000) -> Callable[..., Any]:
    """Returns a function that makes one step of the environment and, unless `train=False`, one update of the agent.

    Args:
        env: a TF-Agents environment.
        agent: an `EnsembleDqnAgent`, or another agent that is trained on pairs of steps.
        batch_size: pairs per update.
        capacity: steps that the buffer holds for each row of the environment.
    """
    size = env.batch_size
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(agent.collect_data_spec, size, max_length=capacity)
    driver = dynamic_step_driver.DynamicStepDriver(env, agent.collect_policy, [buffer.add_batch], num_steps=size)
    data: Any = None
    at, state = env.reset(), agent.collect_policy.get_initial_state(size)
    train_on = tf.function(agent.train, autograph=False)

    def step(*, train: bool = True) -> Any:
        nonlocal at, state, data
        at, state = driver.run(at, state)
        if not train:
            return None
        if data is None:
            data = iter(buffer.as_dataset(sample_batch_size=batch_size, num_steps=2).prefetch(2))
        return train_on(next(data)[0])

    return step
