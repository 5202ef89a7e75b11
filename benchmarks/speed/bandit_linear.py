"""Time of a decision and of an update of linear bandit agents with many features: ours and stock LinTS, in turns.

Usage: `python -m benchmarks.speed.bandit_linear`. One decision a step, 5 arms of global features: both have a model per
arm. "first" is the agent's construction, its first decision and its first update, compilation included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

ARMS = 5


def make_step(name: str, dim: int) -> Callable[[], tuple[float, float]]:
    """Returns a function that makes a decision and an update, and returns the seconds of both."""
    import tensorflow as tf

    from bandit_env import EnsembleThompsonAgent
    from bandit_env.agents import baselines, stock

    spec, action = stock.make_specs(dim, ARMS)
    agent: Any = baselines.make_lin_ts(spec, action, 0) if name == "LinTS" else EnsembleThompsonAgent(spec, action)
    act, train = (tf.function(part, autograph=False) for part in (agent.collect_policy.action, agent.train))
    rng = np.random.default_rng(0)

    def step() -> tuple[float, float]:
        now = stock.make_time_step(rng.normal(size=[1, dim]))
        start = time.perf_counter()
        taken = act(now)
        taken.action.numpy()
        middle = time.perf_counter()
        after = now._replace(reward=tf.ones([1]))
        data = tf.nest.map_structure(lambda part: part[:, tf.newaxis], stock.experience(now, taken, after))
        loss = train(data)
        loss.loss.numpy()
        return middle - start, time.perf_counter() - middle

    return step


def measure(dim: int, steps: int) -> dict[str, float]:
    """Returns seconds until the first update is done, then milliseconds of decisions and updates, and ratios."""
    from bandit_env.agents import stock  # noqa: F401 Imports are not a part of the first step.

    result: dict[str, float] = {}
    made: dict[str, Callable[[], tuple[float, float]]] = {}
    times: dict[str, list[tuple[float, float]]] = {}
    for name in ("ours", "LinTS"):
        start = time.perf_counter()
        made[name] = make_step(name, dim)
        made[name]()
        result[f"{name}: first, s"], times[name] = time.perf_counter() - start, []
    for _ in range(steps):
        for name, step in made.items():
            times[name].append(step())
    medians = {name: 1000.0 * np.median(values, axis=0) for name, values in times.items()}
    for name, (decision, update) in medians.items():
        result[f"{name}: decision, ms"], result[f"{name}: update, ms"] = float(decision), float(update)
    for place, what in enumerate(("decision", "update")):
        result[f"LinTS / ours: {what}"] = float(medians["LinTS"][place] / medians["ours"][place])
    result["LinTS / ours: both"] = float(medians["LinTS"].sum() / medians["ours"].sum())
    return result


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, nargs="*", default=[20, 100, 500])
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    print(json.dumps({f"d = {dim}": measure(dim, args.steps) for dim in args.dims}, indent=2))


if __name__ == "__main__":
    main()
