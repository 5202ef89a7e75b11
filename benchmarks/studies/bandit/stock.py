"""Regret of linear agents on TF-Agents' own environments: stock LinTS and LinUCB, and ours.

Usage: `python -m benchmarks.studies.bandit.stock`. LinTS and LinUCB have their defaults, which take a noise and a prior
of variance 1; ours are told neither and estimate both. On drifting rewards all forget alike. A decision's regret is
known, because the environments' mean rewards are.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from typing import Any

from tf_ensembles import extras, files

TASKS = ("stationary", "uneven noise", "per arm", "per arm, additive", "digits", "wheel", "piecewise")
AGENTS = ("LinTS", "LinUCB", "ensemble-p", "ensemble-bp")
STEPS, BATCH = 60, 8
DISCOUNT = 0.9  # of what was learned before, at each step, where rewards drift


def make_task(name: str, seed: int) -> Any:
    """Returns a task of TF-Agents' environments."""
    from bandit_env.agents import stock

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
        "per arm, additive": (stock.make_per_arm, {"interactions": False}),
        "wheel": (stock.make_wheel, {}),
        "piecewise": (stock.make_piecewise, {}),
    }[name]
    return make(seed, BATCH, **options)


def make_agent(name: str, task: str, env: Any, seed: int) -> Any:
    """Returns an agent for an environment."""
    from bandit_env import EnsembleThompsonAgent
    from bandit_env.agents import baselines

    specs, discount = (env.time_step_spec(), env.action_spec()), DISCOUNT if task == "piecewise" else 1.0
    if name in ("LinTS", "LinUCB"):
        make = baselines.make_lin_ts if name == "LinTS" else baselines.make_lin_ucb
        return make(*specs, seed, gamma=discount)
    return EnsembleThompsonAgent(*specs, name, None, prior_scale=None, seed=seed, discount=discount)


def measure(task: str, agent: str, seed: int) -> float:
    """Returns cumulative regret per row of the batch after all steps."""
    from bandit_env.agents import stock

    made = make_task(task, seed)
    return float(stock.run(made, make_agent(agent, task, made.env, seed), STEPS).sum())


def main() -> None:
    """Measures what the table does not have yet, and prints means with their intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/bandit_stock.csv"))
    args = parser.parse_args()
    import pandas as pd

    from benchmarks import stats

    rows = pd.read_csv(args.output).to_dict("records") if args.output.exists() else []
    done = {(row["task"], row["agent"], row["seed"]) for row in rows}
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for seed, task, name in itertools.product(range(args.seeds), args.tasks, AGENTS):
        if (task, name, seed) in done:
            continue
        rows.append({"task": task, "agent": name, "seed": seed, "regret": measure(task, name, seed)})
        with files.atomic_path(args.output) as temporary:
            pd.DataFrame(rows).to_csv(temporary, index=False, float_format="%.5g")
    table = pd.DataFrame(rows).assign(setting="")
    for task in args.tasks:
        found = stats.by_seed(table[table.task == task], "regret")
        for name in AGENTS:
            gap = stats.paired_difference(found[name], found["LinTS"])
            print(f"{task:<18} {name:<22} {stats.mean_interval(found[name])}   minus LinTS {gap}")


if __name__ == "__main__":
    main()
