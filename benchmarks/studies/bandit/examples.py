"""Bandits that are not linear-Gaussian: the neural ensemble against epsilon-greedy and dropout Thompson sampling.

    tf-ensembles sweep run benchmarks.studies.bandit.examples --preset standard

Two tasks: a Neural Testbed problem with binary rewards, and digits of scikit-learn, where naming the digit pays 1. All
agents have the same layers, the same replay buffer and the same number of Adam updates at the same rate. What decides
on exploration (prior scale, epsilon, dropout rate) is tuned for each agent and task alike, to the lowest final regret
on seeds that are not reported. TF-Agents' dropout agent cannot read features of actions, so on the testbed it learns
each action by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles import extras
from tf_ensembles.base import Array
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import keras
    import pandas as pd

KIND = kinds.register("bandit-examples", "tf_ensembles.benchmarks.studies.bandit.examples:compute")
TASKS = {"testbed": "Neural Testbed, 50 actions", "digits": "digits, 10 actions, mean of 8 decisions a step"}
LAYERS, MEMBERS, RATE, BATCH, UPDATES = (50, 50), 10, 3e-3, 128, 2
# By agent: what decides on its exploration, and the values to choose from.
EXPLORATION = {
    "neural ensemble": ("prior scale", (0.3, 1.0, 3.0)),
    "epsilon-greedy": ("epsilon", (0.01, 0.05, 0.1)),
    "dropout": ("dropout rate", (0.05, 0.1, 0.3)),
}
AGENTS = tuple(EXPLORATION)


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is."""

    steps: int = 200
    seeds: Sequence[int] = range(5)  # reported
    tuning_seeds: Sequence[int] = range(1000, 1002)


def make_environment(task: str, agent: str, seed: int) -> Any:
    """Returns the environment of a task, in the form that an agent reads."""
    from tf_ensembles import testbed
    from tf_ensembles.bandit_env.agents import tasks

    if task == "testbed":
        problem = testbed.make_problem(input_dim=10, data_ratio=1, temperature=0.5, seed=seed)
        return tasks.TestbedBandit(problem, num_actions=50, seed=seed, per_arm=agent != "dropout")
    extras.require("sklearn", "The digits of this study")
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    return tasks.make_classification(x / 16.0, y, batch_size=8, seed=seed)


def make_agent(name: str, env: Any, seed: int, exploration: float) -> Any:
    """Returns an agent for an environment."""
    from tf_ensembles.bandit_env.agents import baselines

    specs = env.time_step_spec(), env.action_spec()
    if name == "neural ensemble":
        return _make_ensemble_agent(*specs, seed, exploration)
    make = baselines.make_dropout if name == "dropout" else baselines.make_epsilon_greedy
    return make(*specs, LAYERS, RATE, seed, exploration)


def _make_ensemble_agent(time_step_spec: Any, action_spec: Any, seed: int, prior_scale: float) -> Any:
    import keras

    import tf_ensembles as tfe
    from tf_ensembles.bandit_env import NeuralThompsonAgent
    from tf_ensembles.bandit_env.agents import observations
    from tf_ensembles.bandit_env.networks import export

    num_actions = observations.check_action_spec(action_spec)
    features = observations.num_features(time_step_spec.observation, num_actions)
    heads = 1 if isinstance(time_step_spec.observation, dict) else num_actions

    def build() -> keras.Model:
        return export.build_member(features, LAYERS, heads)

    ensemble = tfe.Ensemble(build, MEMBERS, tfe.PriorFunction(build, prior_scale), tfe.Bernoulli(0.5), seed=seed)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    ensemble.compile(keras.optimizers.Adam(RATE), loss, jit_compile=False)  # compiling would take longer than the run
    return NeuralThompsonAgent(time_step_spec, action_spec, ensemble, seed=seed)


def measure(task: str, agent_name: str, steps: int, seed: int, exploration: float) -> Array:
    """Returns the regret of each step, averaged over the batch, `[steps]`."""
    env = make_environment(task, agent_name, seed)
    agent = make_agent(agent_name, env, seed, exploration)
    from tf_ensembles.bandit_env.agents import driver

    actions, rewards = driver.run_with_replay(env, agent, steps, batch_size=BATCH, updates_per_step=UPDATES)
    if task == "digits":
        return 1.0 - rewards.mean(axis=1)
    return env.mean_reward.max() - env.mean_reward[actions[:, 0]]


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run: cumulative regret at some 50 steps."""
    names = ("task", "agent", "steps", "seed", "exploration")
    total = np.cumsum(measure(*(config[name] for name in names)))
    marks = np.unique(np.linspace(0, config["steps"], 51, dtype=int)[1:])
    return {f"regret_{mark}": float(total[mark - 1]) for mark in marks}


def make_runs(task: str, agent: str, steps: int, seeds: Sequence[int], explorations: Sequence[float]) -> list[Any]:
    """Returns the runs of one agent on one task: each seed with each exploration."""
    runs = []
    for seed, exploration in itertools.product(seeds, explorations):
        config = {"task": task, "agent": agent, "steps": steps, "seed": seed, "exploration": exploration}
        chosen = f"{agent.replace(' ', '-')}-e{exploration:g}"
        name = f"bandit/{task}-t{steps}/{chosen}/seed{seed}"
        runs.append(sweep.make_run(name, KIND, config, group=f"{task}-{agent}"))
    return runs


def best_exploration(rows: base.Rows, steps: int) -> float:
    """Returns the exploration of the lowest mean final regret among rows of one agent and task."""
    scores: dict[float, list[float]] = {}
    for row in rows:
        scores.setdefault(row["exploration"], []).append(row[f"regret_{steps}"])
    return min(scores, key=lambda exploration: float(np.mean(scores[exploration])))


class _Study(base.Study):
    name, part, kept = "bandit_examples", "bandit", "examples"
    title = "Bandits that are not linear: cumulative regret"
    about = "Means of seeds with 95% intervals; exploration is tuned on other seeds."
    presets = {"quick": Size(20, range(2), range(1000, 1001)), "standard": Size()}

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns the tuning, and then the reported seeds with what was best."""
        pairs = list(itertools.product(TASKS, AGENTS))
        grids = {pair: make_runs(*pair, size.steps, size.tuning_seeds, EXPLORATION[pair[1]][1]) for pair in pairs}

        def report(rows: base.Rows) -> list[Any]:
            best = {pair: best_exploration(base.complete(rows, runs), size.steps) for pair, runs in grids.items()}
            return [run for pair in pairs for run in make_runs(*pair, size.steps, size.seeds, [best[pair]])]

        return [lambda rows: [run for runs in grids.values() for run in runs], report]

    def records(self, size: Size, rows: base.Rows) -> list[dict[str, Any]]:
        """Returns a line per reported run and step."""
        names = ("task", "agent", "seed", "exploration")
        return [
            {**{name: row[name] for name in names}, "step": int(key.removeprefix("regret_")), "regret": value}
            for row in base.rows_of(rows, self.stages(size, {})[1](rows))
            for key, value in row.items()
            if key.startswith("regret_")
        ]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns regret over steps by task, and what it is above the ensemble's in the end, on the same seeds."""
        options: dict[str, Any] = {"kind": "lines", "x_label": "step", "band": True, "from_zero": True}
        made = []
        for task, title in TASKS.items():
            lines = base.lines(table[table.task == task], "step", "regret", "agent")
            made.append(base.Panel(title, "cumulative regret", lines, **options))
        final = table[table.step == table.step.max()]
        for task in TASKS:
            above = base.bars_above(final[final.task == task], "regret", AGENTS[0])
            made.append(base.Panel(f"{task}: final regret above the ensemble's", "regret", above))
        return made


FIGURE = _Study()
