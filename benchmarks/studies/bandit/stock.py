"""Regret of linear agents on TF-Agents' own environments: stock LinTS and LinUCB, and ours.

    tf-ensembles sweep run benchmarks.studies.bandit.stock --preset standard

LinTS and LinUCB have their defaults, which take a noise and a prior of variance 1; ours are given neither and estimate
both. On drifting rewards all forget alike. A decision's regret is known, because the environments' mean rewards are.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from tf_ensembles import extras
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("bandit-stock", "tf_ensembles.benchmarks.studies.bandit.stock:compute")
TASKS = ("stationary", "uneven noise", "per arm", "digits", "piecewise", "wheel")
AGENTS = ("LinTS", "LinUCB", "ensemble-p", "ensemble-bp")
STEPS, BATCH = 60, 8
DISCOUNT = 0.9  # of what was learned before, at each step, where rewards drift


def make_task(name: str, seed: int) -> Any:
    """Returns a task of TF-Agents' environments."""
    from tf_ensembles.bandit_env.agents import stock

    if name == "digits":
        extras.require("sklearn", "The digits of this study")
        from sklearn import datasets, decomposition

        x, y = datasets.load_digits(return_X_y=True)
        reduced = decomposition.PCA(10, whiten=True, random_state=0).fit_transform(x)
        return stock.make_classification(reduced.astype("float32"), y, seed, BATCH)
    make, options = {
        "stationary": (stock.make_stationary, {}),
        "uneven noise": (stock.make_stationary, {"uneven": True}),
        "per arm": (stock.make_per_arm, {}),
        "wheel": (stock.make_wheel, {}),
        "piecewise": (stock.make_piecewise, {}),
    }[name]
    return make(seed, BATCH, **options)


def make_agent(name: str, task: str, env: Any, seed: int) -> Any:
    """Returns an agent for an environment."""
    from tf_ensembles.bandit_env import EnsembleThompsonAgent
    from tf_ensembles.bandit_env.agents import baselines

    specs, discount = (env.time_step_spec(), env.action_spec()), DISCOUNT if task == "piecewise" else 1.0
    if name in ("LinTS", "LinUCB"):
        make = baselines.make_lin_ts if name == "LinTS" else baselines.make_lin_ucb
        return make(*specs, seed, gamma=discount)
    return EnsembleThompsonAgent(*specs, name, None, prior_scale=None, seed=seed, discount=discount)


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run: cumulative regret per row of the batch after all steps."""
    from tf_ensembles.bandit_env.agents import stock

    task = make_task(config["task"], config["seed"])
    agent = make_agent(config["agent"], config["task"], task.env, config["seed"])
    return {"regret": float(stock.run(task, agent, STEPS).sum())}


class _Study(base.Study):
    name, part, kept, kind = "bandit_stock", "bandit", "stock", KIND
    columns = ("task", "agent", "seed", "regret")
    title = "Linear agents on TF-Agents' own environments: cumulative regret"
    about = "Means of seeds, less LinTS's on the same seeds, with 95% intervals."
    presets = {"quick": 2, "standard": 5}  # seeds

    def configs(self, size: int) -> list[dict[str, Any]]:
        """Returns each seed of each agent on each task."""
        cases = itertools.product(range(size), TASKS, AGENTS)
        return [{"task": task, "agent": agent, "seed": seed} for seed, task, agent in cases]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns a panel per task."""
        made = []
        for task in table.task.unique():
            rows = table[table.task == task]
            title = f"{task}: LinTS has {rows[rows.agent == AGENTS[0]].regret.mean():.3g}"
            made.append(base.Panel(title, "regret above LinTS's", base.bars_above(rows, "regret", AGENTS[0])))
        return made


FIGURE = _Study()
