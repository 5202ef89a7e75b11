"""Bandits that are not linear-Gaussian: the neural ensemble against epsilon-greedy and dropout Thompson sampling.

Usage: `python -m benchmarks.studies.bandit.examples`; the same command continues after a kill. Two tasks: a Neural
Testbed problem with binary rewards, and digits of scikit-learn, where naming the digit pays 1. All agents have the
same layers, the same replay buffer and the same number of Adam updates at the same rate. What decides on exploration
(prior scale, epsilon, dropout rate) is tuned for each agent and task alike, to the lowest final regret on seeds that
are not reported. TF-Agents' dropout agent cannot read features of actions, so on the testbed it learns each action by
itself.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import seals
from tf_ensembles import extras, files
from tf_ensembles.base import Array
from trainers.sweeps import kinds

if TYPE_CHECKING:
    import keras
    import pandas as pd

KIND = kinds.register("bandit-examples", "benchmarks.studies.bandit.examples:compute")
TASKS = ("testbed", "digits")
LAYERS, MEMBERS, RATE, BATCH, UPDATES = (50, 50), 10, 3e-3, 128, 2
# By agent: what decides on its exploration, and the values to choose from.
EXPLORATION = {
    "neural ensemble": ("prior scale", (0.3, 1.0, 3.0)),
    "epsilon-greedy": ("epsilon", (0.01, 0.05, 0.1)),
    "dropout": ("dropout rate", (0.05, 0.1, 0.3)),
}
AGENTS = tuple(EXPLORATION)
FIRST_TUNING_SEED = 1000


def make_environment(task: str, agent: str, seed: int) -> Any:
    """Returns the environment of a task, in the form that an agent reads."""
    from bandit_env.agents import tasks
    from tf_ensembles import testbed

    if task == "testbed":
        problem = testbed.make_problem(input_dim=10, data_ratio=1, temperature=0.5, seed=seed)
        return tasks.TestbedBandit(problem, num_actions=50, seed=seed, per_arm=agent != "dropout")
    extras.require("sklearn", "The digits of this study")
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    return tasks.make_classification(x / 16.0, y, batch_size=8, seed=seed)


def make_agent(name: str, env: Any, seed: int, exploration: float) -> Any:
    """Returns an agent for an environment."""
    from bandit_env.agents import baselines

    specs = env.time_step_spec(), env.action_spec()
    if name == "neural ensemble":
        return _make_ensemble_agent(*specs, seed, exploration)
    make = baselines.make_dropout if name == "dropout" else baselines.make_epsilon_greedy
    return make(*specs, LAYERS, RATE, seed, exploration)


def _make_ensemble_agent(time_step_spec: Any, action_spec: Any, seed: int, prior_scale: float) -> Any:
    import keras

    import tf_ensembles as tfe
    from bandit_env import NeuralThompsonAgent
    from bandit_env.agents import observations
    from bandit_env.networks import export

    num_actions = observations.check_action_spec(action_spec)
    features = observations.num_features(time_step_spec.observation, num_actions)
    heads = 1 if isinstance(time_step_spec.observation, dict) else num_actions

    def build() -> keras.Model:
        return export.build_member(features, LAYERS, heads)

    ensemble = tfe.Ensemble(build, MEMBERS, tfe.PriorFunction(build, prior_scale), tfe.Bernoulli(0.5), seed=seed)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    ensemble.compile(keras.optimizers.Adam(RATE), loss, jit_compile=False)  # compiling would take longer than the run
    return NeuralThompsonAgent(time_step_spec, action_spec, ensemble, seed=seed)


def run(task: str, agent_name: str, steps: int, seed: int, exploration: float) -> Array:
    """Returns the regret of each step, averaged over the batch, `[steps]`."""
    env = make_environment(task, agent_name, seed)
    agent = make_agent(agent_name, env, seed, exploration)
    from bandit_env.agents import driver

    actions, rewards = driver.run_with_replay(env, agent, steps, batch_size=BATCH, updates_per_step=UPDATES)
    if task == "digits":
        return 1.0 - rewards.mean(axis=1)
    return env.mean_reward.max() - env.mean_reward[actions[:, 0]]


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run of the sweep: cumulative regret at some 50 steps."""
    names = ("task", "agent", "steps", "seed", "exploration")
    total = np.cumsum(run(*(config[name] for name in names)))
    marks = np.unique(np.linspace(0, config["steps"], 51, dtype=int)[1:])
    return {f"regret_{mark}": float(total[mark - 1]) for mark in marks}


def make_runs(task: str, agent: str, steps: int, seeds: range, explorations: Sequence[float]) -> list[Any]:
    """Returns the runs of one agent on one task: each seed with each exploration."""
    from trainers.sweeps import sweep

    runs = []
    for seed, exploration in itertools.product(seeds, explorations):
        config = {"task": task, "agent": agent, "steps": steps, "seed": seed, "exploration": exploration}
        chosen = f"{agent.replace(' ', '-')}-e{exploration:g}"
        name = f"bandit/{task}-t{steps}/{chosen}/seed{seed}"
        runs.append(sweep.make_run(name, KIND, config, group=f"{task}-{agent}"))
    return runs


def best_exploration(rows: list[dict[str, Any]], steps: int) -> float:
    """Returns the exploration of the lowest mean final regret among rows of one agent and task."""
    scores: dict[float, list[float]] = {}
    for row in rows:
        scores.setdefault(row["exploration"], []).append(row[f"regret_{steps}"])
    return min(scores, key=lambda exploration: float(np.mean(scores[exploration])))


def main() -> None:
    """Computes what is missing, and writes the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10, help="reported seeds (default 10)")
    parser.add_argument("--tuning-seeds", type=int, default=2, help="other seeds, to tune on (default 2)")
    parser.add_argument("--tasks", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--workers", type=int)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/bandit_examples"))
    args = parser.parse_args()
    import pandas as pd

    from trainers.sweeps import sweep

    pairs = list(itertools.product(args.tasks, AGENTS))
    tuning = range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + args.tuning_seeds)
    with sweep.Sweep(args.output, num_workers=args.workers, show=True) as my_sweep:

        def found(runs: list[Any]) -> list[dict[str, Any]]:
            rows = my_sweep.store.rows
            return [rows[one.hash] for one in runs if one.hash in rows]

        grids = {pair: make_runs(*pair, args.steps, tuning, EXPLORATION[pair[1]][1]) for pair in pairs}
        my_sweep.execute([one for runs in grids.values() for one in runs])
        chosen = {pair: best_exploration(found(runs), args.steps) for pair, runs in grids.items()}
        reported = {pair: make_runs(*pair, args.steps, range(args.seeds), [chosen[pair]]) for pair in pairs}
        my_sweep.execute([one for runs in reported.values() for one in runs])
        rows = [row for runs in reported.values() for row in found(runs)]
    names = ("task", "agent", "seed", "exploration")
    table = pd.DataFrame(
        [
            {**{name: row[name] for name in names}, "step": int(key[7:]), "regret": value}
            for row in rows
            for key, value in row.items()
            if key.startswith("regret_")
        ]
    )
    summary = summarize(table, args.steps)
    for name, content in {"examples.csv": table, "examples_final.csv": summary}.items():
        with files.atomic_path(args.output / name) as temporary:
            content.to_csv(temporary, index=False, float_format="%.5g")
        seals.add(args.output / name)
    plot(table, args.output / "examples.png")
    print(summary.to_string(index=False, float_format="%.3g"))


def summarize(table: pd.DataFrame, steps: int) -> pd.DataFrame:
    """Returns final regret by task and agent, and its difference to the ensemble's, paired over seeds, with errors."""
    import pandas as pd

    final = table[table["step"] == steps]
    rows = []
    for task in [task for task in TASKS if task in set(final["task"])]:
        wide = final[final["task"] == task].pivot(index="seed", columns="agent", values="regret")
        for agent in AGENTS:
            one = final[(final["task"] == task) & (final["agent"] == agent)].iloc[0]
            difference = wide[agent] - wide[AGENTS[0]]
            rows.append(
                {
                    "task": task,
                    "agent": agent,
                    "exploration": one["exploration"],
                    "regret": wide[agent].mean(),
                    "standard_error": wide[agent].sem(),
                    "minus_ensemble": difference.mean(),
                    "minus_ensemble_error": difference.sem(),
                    "seeds": len(wide),
                }
            )
    return pd.DataFrame(rows)


def plot(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Draws cumulative regret over steps by task: mean over seeds and its standard error."""
    from matplotlib.figure import Figure

    tasks = [task for task in TASKS if task in set(table["task"])]
    figure = Figure(figsize=(4.5 * len(tasks), 3.8), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for agent in AGENTS:
            own = table[(table["task"] == task) & (table["agent"] == agent)]
            part = own.groupby("step")["regret"]
            mean, error = part.mean(), part.sem().fillna(0.0)
            label = f"{agent} ({EXPLORATION[agent][0]} {own['exploration'].iloc[0]:g})"
            axes.plot(mean.index, mean, label=label)
            axes.fill_between(mean.index, mean - error, mean + error, alpha=0.25, lw=0)
        title = "Neural Testbed, 50 actions" if task == "testbed" else "digits, 10 actions, mean of 8 decisions a step"
        axes.set(title=title, xlabel="step", ylabel="cumulative regret", ylim=(0, None))
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
    seeds = table["seed"].nunique()
    figure.suptitle(f"means of {seeds} seeds and their standard errors; tuned on other seeds", fontsize=9)
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


if __name__ == "__main__":
    main()
