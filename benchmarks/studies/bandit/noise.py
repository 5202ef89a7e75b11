"""What it costs not to know the noise: regret with estimated variances beside the oracle's, on the paper's bandits.

    tf-ensembles sweep run benchmarks.studies.bandit.noise --preset standard

The same problems and reward noise for all, in a TF-Agents driver: ensemble-bp that knows the noise of each arm, one
that estimates it, one that takes the mean variance for all arms, and ensemble-p with Table 2's parameters, with noise
that is known and estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("bandit-noise", "tf_ensembles.benchmarks.studies.bandit.noise:compute")
ORACLE = "ensemble-bp, known"
AGENTS = (ORACLE, "ensemble-bp, estimated", "ensemble-bp, mean", "ensemble-p, known", "ensemble-p, estimated")
HORIZON = 500


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run: the cumulative regret of each problem."""
    from tf_ensembles.bandit_env import CumulativeRegret, EnsembleThompsonAgent, HeteroscedasticLinearBandit
    from tf_ensembles.bandit_env.agents import driver

    count, seed = config["problems"], config["seed"]
    name, noise = config["agent"].split(", ")
    env = HeteroscedasticLinearBandit(count, seed=seed)
    known = env.noise_variance
    mean = np.broadcast_to(known.mean(1, keepdims=True), known.shape)
    variance = {"known": known, "estimated": None, "mean": mean}[noise]
    specs = env.time_step_spec(), env.action_spec()
    agent = EnsembleThompsonAgent(*specs, name, variance, num_problems=count, seed=seed)
    regret = CumulativeRegret(env.mean_rewards, count)
    driver.make_online(env, agent, HORIZON, [regret])()
    return {f"regret_{problem}": float(value) for problem, value in enumerate(regret.regret.numpy())}


class _Study(base.Study):
    name, part, kept, kind = "bandit_noise", "bandit", "noise", KIND
    title = "Bandits whose noise is not known: cumulative regret"
    about = f"After {HORIZON} steps, with 95% intervals over problems, which are the same for all."
    presets = {"quick": 50, "standard": 3000}  # problems

    def configs(self, size: int) -> list[dict[str, Any]]:
        """Returns all agents, on the same problems."""
        return [{"agent": agent, "problems": size, "seed": 0} for agent in AGENTS]

    def records(self, size: int, rows: base.Rows) -> list[dict[str, Any]]:
        """Returns a line per agent and problem."""
        return [
            {"agent": row["agent"], "seed": problem, "regret": row[f"regret_{problem}"]}
            for row in base.rows_of(rows, self.all_runs(size, {}, rows))
            for problem in range(size)
        ]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns regret by agent, and what it is above the oracle's on the same problems."""
        return [
            base.Panel("regret", "cumulative regret", base.bars(table, "regret", "agent")),
            base.Panel("above the oracle's", "regret", base.bars_above(table, "regret", ORACLE)),
        ]


FIGURE = _Study()
