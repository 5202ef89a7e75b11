"""Time of a step of Bootstrapped DQN, an update of all members included: ours, TF-Agents' driver, bsuite's agent.

Usage: `python -m benchmarks.speed.dqn [--bsuite VENV/bin/python]`, in turns in one sitting. All have 20 members of two
layers of 50 units, minibatches of 128, deep sea of size 10 and an update after each step, as bsuite's boot_dqn. The
loop runs one seed on one core, and as many as there are cores. Times leave out tracing and compilation; both the clock
and the processor are told, because other work on the machine slows the clock. bsuite's agent needs an environment of
its own (bsuite, dm-haiku, jax, optax, rlax).
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import time
from collections.abc import Callable
from typing import Any

SIZE, MEMBERS = 10, 20


def make_loop(seeds: int) -> Callable[[int], Any]:
    """Returns a function that makes some steps of the compiled loop, of each seed."""
    from bandit_env.dqn import environments, training

    run = training.Run(training.make_agent("ensemble-p", MEMBERS), environments.DeepSea(SIZE), range(seeds))
    return run.advance


def make_driver() -> Callable[[int], Any]:
    """Returns a function that makes some steps of `EnsembleDqnAgent` in a stock driver with a replay buffer."""
    import tensorflow as tf

    from bandit_env.agents.dqn import agent as agent_lib
    from bandit_env.agents.dqn import environment, replay
    from bandit_env.dqn import environments, export, training

    sea = environments.DeepSea(SIZE)
    run = training.Run(training.make_agent("ensemble-p", MEMBERS), sea, [0])
    ensemble = export.make_ensemble(run.result(), sea)
    env = environment.GraphEnvironment(sea)
    agent = agent_lib.EnsembleDqnAgent(env.time_step_spec(), env.action_spec(), ensemble)
    step = replay.make_step(env, agent, batch_size=128)
    for _ in range(150):
        step(train=False)

    def steps(count: int) -> None:
        for _ in range(count):
            step()
        tf.constant(0).numpy()

    return steps


def measure(make: Callable[[], Callable[[int], Any]], steps: int) -> Callable[[], dict[str, float]]:
    """Returns a function that times some steps, after a first call that compiles."""
    made = make()
    made(160)

    def timed() -> dict[str, float]:
        clock, processor = time.perf_counter(), time.process_time()
        made(steps)
        return {
            "clock": (time.perf_counter() - clock) / steps,
            "processor": (time.process_time() - processor) / steps,
        }

    return timed


def public(python: str, steps: int) -> dict[str, float]:
    """Times bsuite's agent in a process of its own."""
    script = pathlib.Path(__file__).with_name("public_boot_dqn.py")
    command = [python, str(script), "--steps", str(steps), "--size", str(SIZE), "--members", str(MEMBERS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Prints times of a step, the best of all turns, and ratios."""
    from tf_ensembles import machine

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="of the loop; others make a tenth")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--bsuite", metavar="PYTHON", help="of an environment that has bsuite and its JAX baselines")
    args = parser.parse_args()
    cores, few = machine.usable_cores(), max(1, args.steps // 10)
    timed = {
        "loop, one seed": measure(lambda: make_loop(1), args.steps),
        f"loop, {cores} seeds": measure(lambda: make_loop(cores), args.steps),
        "TF-Agents driver": measure(make_driver, few),
    }
    if args.bsuite:
        timed["bsuite"] = lambda: public(args.bsuite, few)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in timed}
    for _ in range(args.turns):
        for name, function in timed.items():
            found[name].append(function())
    best = {
        name: {unit: min(turn[unit] for turn in turns) for unit in ("clock", "processor")}
        for name, turns in found.items()
    }
    for name, times in best.items():
        seeds = cores if name.startswith(f"loop, {cores} ") else 1
        times["steps_per_second"] = seeds / times["clock"]
        times["steps_per_processor_second"] = seeds / times["processor"]
        print(name, json.dumps(times))
    for name in ("TF-Agents driver", "bsuite"):
        for loop in ("loop, one seed", f"loop, {cores} seeds"):
            if name in best:
                by = {
                    unit: best[loop][unit] / best[name][unit]
                    for unit in ("steps_per_second", "steps_per_processor_second")
                }
                print(f"{loop} against {name}", json.dumps(by))


if __name__ == "__main__":
    main()
