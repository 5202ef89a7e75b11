"""Bandits that are not linear-Gaussian: the neural ensemble against epsilon-greedy and dropout Thompson sampling.

Usage: `python -m benchmarks.bandit_examples`; the same command continues after a kill. Two tasks: a Neural Testbed
problem with binary rewards, and digits of scikit-learn, where naming the digit pays 1. All agents have two layers
of 50 units, Adam at the same rate, the same replay buffer and the same number of training steps; none is tuned.
TF-Agents' dropout agent cannot read features of actions, so on the testbed it learns each action by itself.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles import files
from tf_ensembles.base import Array

if TYPE_CHECKING:
    import pandas as pd

AGENTS = ("neural ensemble", "epsilon-greedy", "dropout")
TASKS = ("testbed", "digits")
LAYERS, RATE, MEMBERS = (50, 50), 3e-3, 10


def make_environment(task: str, agent: str, seed: int) -> Any:
    """Returns the environment of a task, in the form that an agent reads."""
    from bandit_env import tasks
    from tf_ensembles import testbed

    if task == "testbed":
        problem = testbed.make_problem(input_dim=10, data_ratio=1, temperature=0.5, seed=seed)
        return tasks.TestbedBandit(problem, num_actions=50, seed=seed, per_arm=agent != "dropout")
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    return tasks.make_classification(x / 16.0, y, batch_size=8, seed=seed)


def make_agent(name: str, env: Any, seed: int) -> Any:
    """Returns an agent for an environment."""
    from bandit_env import baselines

    if name == "neural ensemble":
        return _make_ensemble_agent(env.time_step_spec(), env.action_spec(), seed)
    make = baselines.make_dropout if name == "dropout" else baselines.make_epsilon_greedy
    return make(env.time_step_spec(), env.action_spec(), LAYERS, RATE, seed)


def _make_ensemble_agent(time_step_spec: Any, action_spec: Any, seed: int) -> Any:
    import keras

    import bandit_env
    import tf_ensembles as tfe
    from bandit_env import policy

    features = policy.num_features(time_step_spec.observation, policy.check_action_spec(action_spec))

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(units, "relu") for units in LAYERS]
        return keras.Sequential([keras.Input([features]), *hidden, keras.layers.Dense(1)])

    ensemble = tfe.Ensemble(build, MEMBERS, tfe.PriorFunction(build, 3.0), tfe.Bernoulli(0.5), seed=seed)
    ensemble.compile(keras.optimizers.Adam(RATE), keras.losses.BinaryCrossentropy(from_logits=True))
    return bandit_env.NeuralThompsonAgent(time_step_spec, action_spec, ensemble, seed=seed)


def run(task: str, agent_name: str, steps: int, seed: int) -> Array:
    """Returns the regret of each step, averaged over the batch, `[steps]`."""
    env = make_environment(task, agent_name, seed)
    agent = make_agent(agent_name, env, seed)
    from bandit_env import driver

    actions, rewards = driver.run_with_replay(env, agent, steps, batch_size=64, updates_per_step=2)
    if task == "digits":
        return 1.0 - rewards.mean(axis=1)
    return env.mean_reward.max() - env.mean_reward[actions[:, 0]]


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run of the sweep: cumulative regret at some 50 steps."""
    total = np.cumsum(run(config["task"], config["agent"], config["steps"], config["seed"]))
    marks = np.unique(np.linspace(0, config["steps"], 51, dtype=int)[1:])
    return {f"regret_{mark}": float(total[mark - 1]) for mark in marks}


def main() -> None:
    """Computes what is missing, and writes the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/bandit_examples"))
    args = parser.parse_args()
    import pandas as pd

    from trainers import sweep

    runs = []
    for seed, task, agent in itertools.product(range(args.seeds), args.tasks, AGENTS):
        config = {"task": task, "agent": agent, "steps": args.steps, "seed": seed}
        name = f"bandit/{task}-t{args.steps}/{agent.replace(' ', '-')}/seed{seed}"
        runs.append(sweep.make_run(name, "benchmarks.bandit_examples:compute", config, group=f"{task}-{agent}"))
    with sweep.Sweep(args.output, num_workers=args.workers, show=True) as my_sweep:
        my_sweep.execute(runs)
        found = [my_sweep.store.rows[one.hash] for one in runs if one.hash in my_sweep.store.rows]
    rows = [
        {**{name: row[name] for name in ("task", "agent", "seed")}, "step": int(key[7:]), "regret": value}
        for row in found
        for key, value in row.items()
        if key.startswith("regret_")
    ]
    table = pd.DataFrame(rows)
    with files.atomic_path(args.output / "examples.csv") as temporary:
        table.to_csv(temporary, index=False, float_format="%.5g")
    plot(table, args.output / "examples.png")
    final = table[table["step"] == args.steps].groupby(["task", "agent"])["regret"]
    print(final.agg(["mean", "sem", "count"]).to_string(float_format="%.3g"))


def plot(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Draws cumulative regret over steps by task: mean over seeds and its standard error."""
    from matplotlib.figure import Figure

    tasks = [task for task in TASKS if task in set(table["task"])]
    figure = Figure(figsize=(4.5 * len(tasks), 3.5), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for agent in AGENTS:
            part = table[(table["task"] == task) & (table["agent"] == agent)].groupby("step")["regret"]
            mean, error = part.mean(), part.sem().fillna(0.0)
            axes.plot(mean.index, mean, label=agent)
            axes.fill_between(mean.index, mean - error, mean + error, alpha=0.25, lw=0)
        seeds = table[table["task"] == task]["seed"].nunique()
        unit = "Neural Testbed, 50 actions" if task == "testbed" else "digits, 10 actions, mean of 8 decisions a step"
        axes.set(title=unit, xlabel="step", ylabel=f"cumulative regret (mean, s.e. of {seeds} seeds)", ylim=(0, None))
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


if __name__ == "__main__":
    main()
