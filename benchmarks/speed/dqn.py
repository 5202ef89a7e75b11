"""Time of a step of Bootstrapped DQN, an update of all members included: ours, TF-Agents' driver, bsuite's agent.

    python -m benchmarks.speed.dqn [loop|profile]

All have 20 members of two layers of 50 units, minibatches of 128, deep sea of size 10 and an update after each step, as
bsuite's boot_dqn. Times leave out tracing and compilation.
"""

from __future__ import annotations

import functools
import json
import pathlib
import subprocess
from typing import Any

import numpy as np

from tf_ensembles.benchmarks.speed import harness

SIZE, MEMBERS, UNITS = 10, 20, 50


def _make_run(seeds: int) -> Any:
    from tf_ensembles.bandit_env.dqn import environments, training

    return training.Run(training.make_agent("ensemble-p", MEMBERS), environments.DeepSea(SIZE), range(seeds))


def _make_driver(steps: int) -> harness.Run:
    """Returns some steps of `EnsembleDqnAgent` in a stock driver with a replay buffer."""
    from tf_ensembles.bandit_env.agents.dqn import agent as agent_lib
    from tf_ensembles.bandit_env.agents.dqn import environment, replay
    from tf_ensembles.bandit_env.dqn import environments, export

    sea = environments.DeepSea(SIZE)
    env = environment.GraphEnvironment(sea)
    agent = agent_lib.EnsembleDqnAgent(
        env.time_step_spec(), env.action_spec(), export.make_ensemble(_make_run(1).result(), sea)
    )
    step = replay.make_step(env, agent, batch_size=128)
    for _ in range(150):
        step(train=False)

    def run() -> None:
        for _ in range(steps):
            step()

    return run


def _run_bsuite(python: str, steps: int) -> harness.Seconds:
    """Times bsuite's agent in a process of its own."""
    script = pathlib.Path(__file__).with_name("boot_dqn.py")
    command = [python, str(script), *map(str, (steps, SIZE, MEMBERS))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return harness.Seconds(*json.loads(done.stdout.splitlines()[-1]))


def loop(*, steps: int = 2000, turns: int = 3, bsuite: str = "") -> None:
    """The compiled loop of one seed and of one per core, the TF-Agents driver, and bsuite's agent; times of a step.

    Others make a tenth of the steps. --bsuite is the Python of an environment of its own that has bsuite, dm-haiku,
    jax, optax and rlax.
    """
    from tf_ensembles import machine

    cores, few = machine.usable_cores(), max(1, steps // 10)
    one, several = "loop, one seed", f"loop, each of {cores} seeds"
    runs: dict[str, harness.Run] = {"TF-Agents driver": _make_driver(few)}
    work = {"TF-Agents driver": few, "bsuite": few}
    for name, seeds in ((one, 1), (several, cores)):
        runs[name], work[name] = functools.partial(_make_run(seeds).advance, steps), steps * seeds
    if bsuite:
        runs["bsuite"] = lambda: _run_bsuite(bsuite, few)
    times = harness.in_turns(runs, turns, work=work)
    for reference in (one, several):
        harness.print_times(times, reference)


def profile(*, steps: int = 4000, turns: int = 3) -> None:
    """What limits a step of one seed: the products of its networks, forward and backward, alone in a compiled loop."""
    import tensorflow as tf

    from tf_ensembles.bandit_env.dqn import environments

    cells, products = environments.DeepSea(SIZE).num_cells, steps // 8
    shapes = ((UNITS + 1, cells + 1), (UNITS + 1, UNITS + 1), (2, UNITS + 1))  # of kernels; last columns are biases
    kernels = tuple(0.1 * tf.ones([MEMBERS, *shape]) for shape in shapes)

    def step(i: Any, first: Any, second: Any, last: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch((first, second, last))
            hidden = tf.nn.relu(first[..., :-1] + first[..., -1:])  # at all states, one-hot
            outputs = tf.matmul(last, tf.nn.relu(tf.matmul(second, hidden)))
            loss = tf.reduce_sum(tf.square(outputs))
        gradients = tape.gradient(loss, (first, second, last))
        return i + 1, *(k - 1e-6 * g for k, g in zip((first, second, last), gradients, strict=True))

    @tf.function(jit_compile=True, autograph=False)
    def networks() -> Any:
        return tf.while_loop(lambda i, *_: i < products, step, (tf.constant(0), *kernels))

    size, run = 2048, _make_run(1)
    matrix = tf.random.stateless_normal([size, size], [1, 2])
    runs: dict[str, harness.Run] = {
        "step": lambda: run.advance(steps),
        "networks": lambda: networks()[0].numpy(),
        "large product": lambda: tf.matmul(matrix, matrix).numpy(),
    }
    times = harness.in_turns(runs, turns, work={"step": steps, "networks": products})
    harness.print_times(times, "step")
    flops = {"networks": 2 * MEMBERS * cells * 3 * (UNITS + 1) * (UNITS + 1 + 2), "large product": 2 * size**3}
    for name, count in flops.items():
        print(f"  {name}: {count / np.min(times[name][:, 1]) / 1e9:.0f} GFLOP/s of processor time")


PARTS = (loop, profile)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
