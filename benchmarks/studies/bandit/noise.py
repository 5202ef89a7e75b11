"""What it costs not to know the noise: regret with estimated variances beside the oracle's, on the paper's bandits.

Usage: `python -m benchmarks.studies.bandit.noise`. The same problems and reward noise for all, in a TF-Agents driver:
ensemble-bp that is told the noise of each arm, one that estimates it, one that takes the mean variance for all arms,
and ensemble-p with Table 2's parameters, told and not.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from tf_ensembles.base import Array


def variances(env: Any) -> dict[str, tuple[str, Any]]:
    """Returns the agents: their names of Table 2, and what they are told about the noise."""
    known = env.noise_variance
    return {
        "ensemble-bp, told": ("ensemble-bp", known),
        "ensemble-bp, estimated": ("ensemble-bp", None),
        "ensemble-bp, mean variance": ("ensemble-bp", np.broadcast_to(known.mean(1, keepdims=True), known.shape)),
        "ensemble-p, told": ("ensemble-p", known),
        "ensemble-p, estimated": ("ensemble-p", None),
    }


def measure(num_problems: int, horizon: int, seed: int) -> dict[str, Array]:
    """Returns the cumulative regret of each problem, by agent, `[problems]`."""
    from bandit_env import CumulativeRegret, EnsembleThompsonAgent, HeteroscedasticLinearBandit
    from bandit_env.agents import driver

    found = {}
    for name in variances(HeteroscedasticLinearBandit(1)):
        env = HeteroscedasticLinearBandit(num_problems, seed=seed)
        kind, variance = variances(env)[name]
        specs = env.time_step_spec(), env.action_spec()
        agent = EnsembleThompsonAgent(*specs, kind, variance, num_problems=num_problems, seed=seed)
        regret = CumulativeRegret(env.mean_rewards, num_problems)
        driver.make_online(env, agent, horizon, [regret])()
        found[name] = regret.regret.numpy()
    return found


def main() -> None:
    """Measures and prints regrets, and differences to the oracle on the same problems."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--horizon", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from benchmarks import stats

    found = measure(args.problems, args.horizon, args.seed)
    oracle = found["ensemble-bp, told"]
    for name, regret in found.items():
        gap = stats.paired_difference(regret, oracle)
        print(f"{name:<28} {stats.mean_interval(regret)}   minus the oracle {gap}")


if __name__ == "__main__":
    main()
