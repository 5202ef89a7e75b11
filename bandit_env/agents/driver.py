"""TF-Agents driver loops: rewards learned at once, with checkpoints if wanted, or through a replay buffer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tf_agents.drivers import dynamic_step_driver
from tf_agents.replay_buffers import tf_uniform_replay_buffer

from tf_ensembles.bandit_env.agents.observations import PER_ARM
from tf_ensembles.bandit_env.problems import check_sizes
from tf_ensembles.base import Array


def make_online(
    env: Any, agent: Any, num_steps: int, observers: Sequence[Any] = (), reset: bool = True
) -> Callable[[], Any]:
    """Returns a function that takes `num_steps` steps of the whole batch, the agent learning in each.

    With an `EnsembleThompsonAgent` it is compiled as one loop. A `NeuralThompsonAgent` trains by Keras's own compiled
    step: the loop is Python's, and each step is one update on that step's decisions.

    Args:
        env: a TF-Agents bandit environment.
        agent: an `EnsembleThompsonAgent` or a `NeuralThompsonAgent`.
        num_steps: steps per call; each is one decision in every row of the batch.
        observers: what else sees the trajectories, such as `CumulativeRegret`.
        reset: whether to reset the environment now, which a new one needs.
    """
    check_sizes(num_steps=num_steps)
    if not hasattr(agent, "observe"):
        raise ValueError(
            f"Expected an agent of this package, which learns step by step. Received: {type(agent).__name__}; "
            "run_with_replay takes any TF-Agents agent"
        )
    driver = dynamic_step_driver.DynamicStepDriver(
        env, agent.collect_policy, [agent.observe, *observers], num_steps=num_steps * env.batch_size
    )
    if reset:
        env.reset()
    compiles = getattr(agent, "compiles_training", False)
    run: Callable[[], Any] = driver.run if compiles else tf.function(driver.run, autograph=False)
    return run


def run_resumable(
    env: Any,
    agent: Any,
    num_steps: int,
    folder: str | os.PathLike[str],
    every: int = 100,
    observers: Sequence[Any] = (),
    progress: bool = False,
) -> None:
    """Takes steps, `num_steps` in all, as `make_online`, with a checkpoint in `folder` after every `every` of them.

    The same call continues after a kill from the last checkpoint, as if nothing had happened.

    Args:
        env: a `HeteroscedasticLinearBandit`, or another environment that is a `tf.Module` with its state in variables.
        agent: an `EnsembleThompsonAgent` or a `NeuralThompsonAgent`.
        num_steps: steps in all; those that the folder's checkpoint has taken count.
        folder: of the checkpoints, the last two of which are kept.
        every: steps between checkpoints.
        observers: what else sees the trajectories. Metrics are a part of checkpoints, as is every other `tf.Module`.
        progress: whether to show a progress bar.
    """
    import tqdm

    check_sizes(num_steps=num_steps, every=every)
    run, done = make_online(env, agent, every, observers), tf.Variable(0, trainable=False, name="done")
    modules = [observer for observer in observers if isinstance(observer, tf.Module)]
    saved = tf.train.Checkpoint(agent=agent, env=env, observers=modules, done=done)
    manager = tf.train.CheckpointManager(saved, folder, max_to_keep=2)
    if manager.latest_checkpoint:
        saved.restore(manager.latest_checkpoint).assert_consumed()
    with tqdm.tqdm(total=num_steps, initial=int(done), unit="step", disable=not progress) as bar:
        while int(done) < num_steps:
            size = min(every, num_steps - int(done))
            (run if size == every else make_online(env, agent, size, observers, reset=False))()
            done.assign_add(size)
            manager.save()
            bar.update(size)


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

    def keep(trajectory: Any) -> Any:
        observation = trajectory.observation
        if isinstance(observation, dict):
            observation = {key: value for key, value in observation.items() if key != PER_ARM}
        return buffer.add_batch(trajectory._replace(observation=observation))

    driver = dynamic_step_driver.DynamicStepDriver(env, agent.collect_policy, [keep], num_steps=env.batch_size)
    take_step = tf.function(driver.run, autograph=False)
    data = iter(buffer.as_dataset(sample_batch_size=batch_size, num_steps=1))
    compiles = getattr(agent, "compiles_training", False)
    train = agent.train if compiles else tf.function(agent.train, autograph=False)
    env.reset()
    for _ in range(num_steps):
        take_step()
        for _ in range(updates_per_step):
            train(next(data)[0])
    kept = buffer.gather_all()
    return kept.action.numpy().T, kept.reward.numpy().T
