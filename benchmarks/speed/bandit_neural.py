"""Time of a decision of neural bandit agents: the compiled rollout, and the TF-Agents driver with a replay buffer.

Usage: `python -m benchmarks.speed.bandit_neural`. Both run an ensemble of ten MLPs (32, 32) with prior and bootstrap on
the wheel, one update of 32 decisions after each. The driver has one problem, which is what an agent of TF-Agents has;
the rollout has 20 side by side, and one. Times are of the processor, so that other work on the machine counts little,
and leave out tracing and compilation. Then the cost of a decision for each agent of `benchmarks.studies.bandit.neural`.

`python -m benchmarks.speed.bandit_neural decisions` measures decisions alone, without training: `NeuralThompsonAgent`
of 1 to 100 MLPs (50, 50) with priors, a row for each of the 5 arms, or one for all; TF-Agents' neural epsilon-greedy
with one such network, one row for all arms, and LinTS; and what recording propensities adds to `EnsembleThompsonAgent`.
Agents take turns; of each turn the fastest of some calls counts, and the median of turns is shown, in milliseconds of
the processor.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

MEMBERS, SCALE, BATCH = 10, 0.3, 32


def make_rollout(problems: int, name: str = "ensemble-bp", updates: int = 1) -> Callable[[int], Any]:
    """Returns a function that makes some steps of the compiled rollout on the wheel."""
    from bandit_env.networks import problems as problems_lib
    from bandit_env.networks import rollout
    from benchmarks.studies.bandit import neural

    made = problems_lib.make_wheel(range(problems), 2000, 0.5)
    value = {"prior_scale": SCALE, "epsilon": 0.05, "dropout": 0.1, "noise": 0.3}.get(neural.GRIDS[name][0], 0.0)
    agent = neural.make_agent(name, value, MEMBERS)
    learner = rollout.Learner(batch_size=BATCH, updates_per_decision=updates, capacity=2000)
    return lambda steps: rollout.run(agent, made, steps, learner, num_workers=1)


def make_driver(heads: int = 5) -> Callable[[int], Any]:
    """Returns a function that makes some steps of a TF-Agents driver on TF-Agents' wheel, with the same networks.

    Networks with an output for each arm, of which the arm picks one, run member by member in Keras. With one head they
    are plain stacks of dense layers, which an ensemble runs together.
    """
    import keras

    import tf_ensembles as tfe
    from bandit_env import NeuralThompsonAgent
    from bandit_env.agents import driver, observations, stock
    from bandit_env.networks import export, rollout

    task = stock.make_wheel(0, 1, 0.5)
    specs = task.env.time_step_spec(), task.env.action_spec()
    features = observations.num_features(specs[0].observation, 5)

    def build() -> keras.Model:
        return export.build_member(features, rollout.Learner().hidden_sizes, heads)

    ensemble = tfe.Ensemble(build, MEMBERS, tfe.PriorFunction(build, SCALE), tfe.Bernoulli(0.5))
    ensemble.compile(keras.optimizers.Adam(3e-3), keras.losses.MeanSquaredError(), jit_compile=False)
    agent = NeuralThompsonAgent(*specs, ensemble)
    return lambda steps: driver.run_with_replay(task.env, agent, steps, batch_size=BATCH)


def seconds_per_step(run: Callable[[int], Any], steps: int, clock: Callable[[], float]) -> float:
    """Returns the time of a step, from runs of two lengths, so that what is done once cancels."""
    run(steps)  # compiles
    times = []
    for number in (steps, 3 * steps):
        start = clock()
        run(number)
        times.append(clock() - start)
    return (times[1] - times[0]) / (2 * steps)


def measure(steps: int, repeats: int) -> dict[str, float]:
    """Returns milliseconds of a decision by path and by agent, medians of turns, and ratios."""
    from benchmarks.studies.bandit import neural

    paths: dict[str, tuple[Callable[[int], Any], int, int]] = {
        "driver": (make_driver(), 1, max(20, steps // 10)),
        "driver, one head": (make_driver(1), 1, max(20, steps // 10)),
        "rollout of 1": (make_rollout(1), 1, steps),
        "rollout of 20": (make_rollout(20), 20, steps),
    }
    times: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(repeats):
        for name, (run, problems, number) in paths.items():
            times[name].append(1000.0 * seconds_per_step(run, number, time.process_time) / problems)
    result = {f"{name}, ms": float(np.median(values)) for name, values in times.items()}
    for name in ("rollout of 1", "rollout of 20"):
        for path in ("driver", "driver, one head"):
            result[f"{path} / {name}"] = float(np.median(np.array(times[path]) / np.array(times[name])))
    for name in neural.AGENTS:
        run = make_rollout(20, name)
        result[f"{name}, ms"] = 1000.0 * seconds_per_step(run, steps, time.process_time) / 20
    return result


def make_deciders(batch: int) -> dict[str, Callable[[], Any]]:
    """Returns a decision of a whole batch by each agent, compiled."""
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe
    from bandit_env import EnsembleThompsonAgent, NeuralThompsonAgent
    from bandit_env.agents import baselines, observations, stock

    tasks = {"": stock.make_stationary(0, batch), ", features of arms": stock.make_per_arm(0, batch)}
    specs = {name: (task.env.time_step_spec(), task.env.action_spec()) for name, task in tasks.items()}
    features = observations.num_features(specs[""][0].observation, 5)

    def make_neural(members: int, all_actions: bool = False) -> Any:
        def build() -> keras.Model:
            inputs, outputs = (features - 5, 5) if all_actions else (features, 1)
            layers = [keras.layers.Dense(50, "relu"), keras.layers.Dense(50, "relu"), keras.layers.Dense(outputs)]
            return keras.Sequential([keras.Input([inputs]), *layers])

        ensemble = tfe.Ensemble(build, members, tfe.PriorFunction(build, SCALE))
        ensemble.compile(keras.optimizers.Adam(3e-3), "mse", jit_compile=False)
        return NeuralThompsonAgent(*specs[""], ensemble, all_actions=all_actions)

    agents = {f"M = {members}": (make_neural(members), "") for members in (1, 5, 20, 100)}
    agents |= {f"M = {members}, all actions": (make_neural(members, True), "") for members in (1, 100)}
    agents["epsilon-greedy"] = baselines.make_epsilon_greedy(*specs[""], (50, 50), 3e-3, 0), ""
    agents["LinTS"] = baselines.make_lin_ts(*specs[""], 0), ""
    for task in tasks:
        for emits in (False, True):
            name = f"linear{task}{', propensity' if emits else ''}"
            agents[name] = EnsembleThompsonAgent(*specs[task], emit_propensity=emits), task

    def make(agent: Any, task: str) -> Callable[[], Any]:
        step, act = tasks[task].env.reset(), tf.function(agent.collect_policy.action, autograph=False)
        return lambda: act(step).action.numpy()

    return {name: make(*pair) for name, pair in agents.items()}


def measure_decisions(calls: int, turns: int) -> dict[str, dict[str, float]]:
    """Returns milliseconds of the processor for one decision of a batch, by batch and agent, and ratios."""
    result: dict[str, dict[str, float]] = {}
    for batch in (1, 256):
        deciders = make_deciders(batch)
        times: dict[str, list[float]] = {name: [] for name in deciders}
        for _ in range(turns):
            for name, decide in deciders.items():
                decide()
                times[name].append(min(_milliseconds(decide) for _ in range(calls)))
        figures = {f"{name}, ms": float(np.median(values)) for name, values in times.items()}
        pairs = [(f"M = {members}", "M = 1") for members in (5, 20, 100)]
        pairs += [("M = 100, all actions", "M = 1, all actions")]
        pairs += [("M = 100", "epsilon-greedy"), ("M = 100, all actions", "epsilon-greedy"), ("M = 100", "LinTS")]
        pairs += [(f"linear{kind}, propensity", f"linear{kind}") for kind in ("", ", features of arms")]
        for name, other in pairs:
            figures[f"{name} / {other}"] = float(np.median(np.array(times[name]) / np.array(times[other])))
        result[f"batch {batch}"] = {name: round(value, 3) for name, value in figures.items()}
    return result


def _milliseconds(run: Callable[[], Any]) -> float:
    start = time.process_time()
    run()
    return 1000.0 * (time.process_time() - start)


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=["paths", "decisions"], default="paths")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    measured = measure(args.steps, args.repeats) if args.what == "paths" else measure_decisions(50, 5 * args.repeats)
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
