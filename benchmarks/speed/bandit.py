"""Steps per second of Thompson sampling on many bandit problems: NumPy, the TF-Agents driver, the compiled rollout.

Usage: `python -m benchmarks.speed.bandit`. All three run ensemble-bp with d=2, N=4 in the same process, in turns. The
NumPy loop is written for speed: 2x2 matrices written out over contiguous problems, one pass of work per step. Memory is
measured by the growth of the process between two horizons.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bandit_env.rollout import run_bandit
from benchmarks import speed
from tf_ensembles.base import Array


def numpy_rollout(num_problems: int, horizon: int, seed: int) -> Array:
    """Exact Thompson sampling, d=2, N=4, as a vectorized NumPy loop: mean and deviation of regret, `[horizon, 2]`."""
    rng, every = np.random.default_rng(seed), np.arange(num_problems)
    x, theta = rng.standard_normal((4, 2, num_problems)), rng.standard_normal((2, num_problems))
    variance = (x**2 * rng.random((2, num_problems))).sum(1)
    mean, deviation, weight = (x * theta).sum(1), np.sqrt(variance), 1.0 / variance
    gap = mean.max(0) - mean
    a, b, c = np.ones(num_problems), np.zeros(num_problems), np.ones(num_problems)
    target, regret, kept = np.zeros((2, num_problems)), np.zeros(num_problems), np.empty((horizon, 2))
    for t in range(horizon):
        z = rng.standard_normal((3, num_problems))
        inverse = 1.0 / a
        lower = b * inverse
        rest = 1.0 / (c - lower * b)
        second = rest * (target[1] - lower * target[0]) + np.sqrt(rest) * z[1]
        first = inverse * target[0] - lower * second + np.sqrt(inverse) * z[0]
        action = (x[:, 0] * first + x[:, 1] * second).argmax(0)
        x0, x1, nu = x[action, 0, every], x[action, 1, every], weight[action, every]
        reward = mean[action, every] + deviation[action, every] * z[2]
        w0, w1 = nu * x0, nu * x1
        a += w0 * x0
        b += w0 * x1
        c += w1 * x1
        target[0] += w0 * reward
        target[1] += w1 * reward
        regret += gap[action, every]
        kept[t] = regret.mean(), regret.std()
    return kept


def make_driver(num_problems: int, horizon: int) -> Callable[[], Any]:
    """Returns a function that takes `horizon` steps of all problems in a TF-Agents driver, with agent and regret."""
    from bandit_env import CumulativeRegret, EnsembleThompsonAgent, HeteroscedasticLinearBandit
    from bandit_env.agents import driver

    env = HeteroscedasticLinearBandit(num_problems)
    agent = EnsembleThompsonAgent(
        env.time_step_spec(),
        env.action_spec(),
        "ensemble-bp",
        env.noise_variance,
        num_problems=num_problems,
    )
    regret = CumulativeRegret(env.mean_rewards, num_problems)
    return driver.make_online(env, agent, horizon, [regret])


def _rate(run: Callable[[], Any], horizon: int) -> float:
    start = time.perf_counter()
    run()
    return horizon / (time.perf_counter() - start)


def measure(num_problems: int, horizon: int, repeats: int) -> dict[str, float]:
    """Returns steps per second of each path (the median of `repeats`), their ratios to NumPy, and memory growth."""
    driver = make_driver(num_problems, horizon)
    paths: dict[str, Callable[[], Any]] = {
        "numpy": lambda: numpy_rollout(num_problems, horizon, seed=1),
        "driver": driver,
        "rollout": lambda: run_bandit("ensemble-bp", num_problems, horizon, seed=1),
    }
    for run in paths.values():
        run()  # compiles
    rates: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(repeats):
        for name, run in paths.items():
            rates[name].append(_rate(run, horizon))
    result = {name: float(np.median(values)) for name, values in rates.items()}
    for name in ("driver", "rollout"):
        ratios = np.array(rates[name]) / np.array(rates["numpy"])
        result[f"{name} / numpy"] = float(np.median(ratios))
    # The heap takes some thousand steps to settle; a cost per step would go on growing.
    run_bandit("ensemble-bp", num_problems, 20 * horizon, seed=1)
    before = speed.peak_megabytes()
    run_bandit("ensemble-bp", num_problems, 40 * horizon, seed=1)
    result["megabytes more at 40x than at 20x the horizon"] = speed.peak_megabytes() - before
    return result


def main() -> None:
    """Measures and prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=5000)
    parser.add_argument("--horizon", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps(measure(args.problems, args.horizon, args.repeats), indent=2))


if __name__ == "__main__":
    main()
