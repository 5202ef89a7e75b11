"""TF-Agents driver loops: rewards learned at once, or through a replay buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bandit_env.problems import check_sizes
from tf_ensembles import legacy_keras
from tf_ensembles.base import Array

legacy_keras.import_tf_agents()

from tf_agents.bandits.specs import utils as bandit_spec_utils  # noqa: E402
from tf_agents.drivers import dynamic_step_driver  # noqa: E402
from tf_agents.replay_buffers import tf_uniform_replay_buffer  # noqa: E402


def make_online(env: Any, agent: Any, num_steps: int, observers: Sequence[Any] = ()) -> Callable[[], Any]:
    """Returns a compiled function that takes `num_steps` steps of the whole batch, the agent learning in each.

    Args:
        env: a TF-Agents bandit environment.
        agent: an `EnsembleThompsonAgent`.
        num_steps: steps per call; each is one decision in every row of the batch.
        observers: what else sees the trajectories, such as `CumulativeRegret`.
    """
    check_sizes(num_steps=num_steps)
    driver = dynamic_step_driver.DynamicStepDriver(
        env, agent.collect_policy, [agent.observe, *observers], num_steps=num_steps * env.batch_size
    )
    env.reset()
    run: Callable[[], Any] = tf.function(driver.run, autograph=False)
    return run


def run_with_replay(
    env: Any, agent: Any, num_steps: int, batch_size: int = 64, updates_per_step: int = 1
) -> tuple[Array, Array]:
    """Takes steps, keeps everything in a replay buffer and trains on uniform batches of it.

    Works with any TF-Agents bandit agent; features of actions not taken are not kept.

    Args:
        env: a TF-Agents bandit environment.
        agent: the agent.
        num_steps: steps of the whole batch.
        batch_size: decisions per update.
        updates_per_step: calls of `agent.train` after each step.

    Returns:
        Actions and rewards, both `[steps, batch]`.
    """
    check_sizes(num_steps=num_steps, batch_size=batch_size)
    buffer = tf_uniform_replay_buffer.TFUniformReplayBuffer(
        agent.training_data_spec, env.batch_size, max_length=num_steps
    )
    seen: list[tuple[Array, Array]] = []

    def keep(trajectory: Any) -> None:
        seen.append((trajectory.action.numpy(), trajectory.reward.numpy()))
        per_arm = isinstance(trajectory.observation, dict)
        buffer.add_batch(bandit_spec_utils.drop_arm_observation(trajectory) if per_arm else trajectory)

    driver = dynamic_step_driver.DynamicStepDriver(env, agent.collect_policy, [keep], num_steps=env.batch_size)
    data = iter(buffer.as_dataset(sample_batch_size=batch_size, num_steps=1))
    compiles = getattr(agent, "compiles_training", False)
    train = agent.train if compiles else tf.function(agent.train, autograph=False)
    env.reset()
    for _ in range(num_steps):
        driver.run()
        for _ in range(updates_per_step):
            train(next(data)[0])
    actions, rewards = (np.stack(part) for part in zip(*seen, strict=True))
    return actions, rewards
