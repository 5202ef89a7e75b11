"""Regret of neural agents where rewards are not linear: random networks, the wheel, and data as bandits.

Usage: `python -m benchmarks.studies.bandit_neural --output results/bandit_neural`; the same command continues after a
kill. Everything is decided here, before anything runs. All agents meet the same problems, noise and minibatches, and
have the same networks, the same number of Adam's steps at the same rate. What decides on exploration (epsilon, prior
scale, dropout rate, the noise of linear models) is chosen for each agent and setting from four values, to the lowest
mean regret on seeds 100 to 104, and reported on seeds 0 to 19. Ensemble-n has nothing to choose.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles import files
from tf_ensembles.base import Array
from trainers.sweeps import kinds

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("bandit-neural", "benchmarks.studies.bandit_neural:compute")
MEMBERS = 10
SEEDS, TUNING_SEEDS = tuple(range(20)), tuple(range(100, 105))
NETWORK, WHEEL, DATA = "random network", "wheel", "data"
FAMILIES = (NETWORK, WHEEL, DATA)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A kind of problem, and how much of it."""

    family: str
    maker: str  # of `bandit_env.neural.problems`
    argument: Any
    horizon: int
    per_seed: int = 1  # problems for each seed, whose regret is averaged


SETTINGS = {
    "network, ρ = 0.1": Setting(NETWORK, "random_network", 0.1, 1000, 4),
    "network, ρ = 0.5": Setting(NETWORK, "random_network", 0.5, 1000, 4),
    **{f"wheel, δ = {delta:g}": Setting(WHEEL, "wheel", delta, 2000) for delta in (0.5, 0.7, 0.9, 0.95, 0.99)},
    "digits": Setting(DATA, "data", "digits", 1000),
    "tumors": Setting(DATA, "data", "tumors", 1000),
}
# By agent: the field of `rollout.Agent` that decides on its exploration, and the values to choose from.
GRIDS: dict[str, tuple[str, tuple[float, ...]]] = {
    "greedy": ("", ()),
    "epsilon-greedy": ("epsilon", (0.02, 0.05, 0.1, 0.2)),
    "ensemble-n": ("", ()),
    "ensemble-p": ("prior_scale", (0.1, 0.3, 1.0, 3.0)),
    "ensemble-bp": ("prior_scale", (0.1, 0.3, 1.0, 3.0)),
    "dropout": ("dropout", (0.05, 0.1, 0.2, 0.5)),
    "LinTS": ("noise", (0.03, 0.1, 0.3, 1.0)),
    "LinTS on last layer": ("noise", (0.03, 0.1, 0.3, 1.0)),
}
AGENTS = tuple(GRIDS)


def make_problems(setting: Setting, seeds: Sequence[int]) -> Any:
    """Returns the problems of some seeds, those of a seed one after the other."""
    from bandit_env.neural import problems

    numbers = [seed * setting.per_seed + number for seed in seeds for number in range(setting.per_seed)]
    if setting.maker == "random_network":
        return problems.make_random_network(numbers, temperature=setting.argument)
    if setting.maker == "wheel":
        return problems.make_wheel(numbers, setting.horizon, setting.argument)
    return problems.make_data(setting.argument, numbers, setting.horizon)


def make_agent(name: str, values: Array | float, num_members: int = MEMBERS) -> Any:
    """Returns an agent of the rollout; values decide on its exploration, one for each problem."""
    import tf_ensembles as tfe
    from bandit_env.neural.rollout import Agent

    kinds_of = {"dropout": "dropout", "LinTS": "linear", "LinTS on last layer": "last-layer"}
    members = num_members if name.startswith("ensemble") else 1
    bootstrap = tfe.Bernoulli(0.5) if name == "ensemble-bp" else None
    field = GRIDS[name][0]
    options = {field: values} if field else {}
    return Agent(kinds_of.get(name, "ensemble"), members, bootstrap=bootstrap, **options)


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run of the sweep: an agent with all of its values on all seeds; regret by value and seed, and uniform's."""
    from bandit_env.neural import rollout

    setting, values, seeds = SETTINGS[config["setting"]], config["values"], config["seeds"]
    made = make_problems(setting, seeds)
    count = len(made.seeds)
    repeated = made.rows(list(range(count)) * len(values))
    found = rollout.run(make_agent(config["agent"], np.repeat(values, count)), repeated, setting.horizon)
    uniform = rollout.uniform_play(repeated, setting.horizon)
    shape = [len(values), len(seeds), setting.per_seed]
    row = {}
    for name, totals in (("regret", found.total), ("uniform", uniform)):
        by_seed = totals.reshape(shape).mean(2)
        for (v, value), (s, seed) in itertools.product(enumerate(values), enumerate(seeds)):
            row[f"{name}_{value:g}_{seed}"] = float(by_seed[v, s])
    return row


def make_run(setting: str, agent: str, values: Sequence[float], seeds: Sequence[int], stage: str) -> Any:
    """Returns one run."""
    from trainers.sweeps import sweep

    config = {"setting": setting, "agent": agent, "values": list(values), "seeds": list(seeds), "members": MEMBERS}
    where = setting.replace(", ", "-").replace(" = ", "").replace("ρ", "t").replace("δ", "d")
    chosen = "-".join(f"{value:g}" for value in values)
    name = f"bandit-neural/{where}/{agent.replace(' ', '-')}/{stage}/{chosen}/seed{seeds[0]}"
    return sweep.make_run(name, KIND, config, group=f"{setting}-{agent}", cost=1.0)


def tuning_runs(settings: Sequence[str]) -> list[Any]:
    """Returns the runs of the grids, on the seeds to choose by."""
    pairs = itertools.product(settings, AGENTS)
    return [
        make_run(setting, agent, GRIDS[agent][1], TUNING_SEEDS, "tune") for setting, agent in pairs if GRIDS[agent][1]
    ]


def best_value(row: dict[str, Any]) -> float:
    """Returns the value of the lowest mean regret in a row of `tuning_runs`."""
    values = row["values"]
    means = [np.mean([row[f"regret_{value:g}_{seed}"] for seed in row["seeds"]]) for value in values]
    return float(values[int(np.argmin(means))])


def report_runs(settings: Sequence[str], rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Returns the runs of the reported seeds, each agent with the value that was best on the others."""
    best = {(row["setting"], row["agent"]): best_value(row) for row in rows if row["seeds"] == list(TUNING_SEEDS)}
    return [
        make_run(setting, agent, [best.get((setting, agent), 0.0)], SEEDS, "report")
        for setting, agent in itertools.product(settings, AGENTS)
    ]


def collect(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Returns regret by setting, agent and seed, from rows of the reported runs."""
    import pandas as pd

    table = []
    for row in rows:
        (value,), setting = row["values"], SETTINGS[row["setting"]]
        about = {"family": setting.family, "setting": row["setting"], "agent": row["agent"], "value": value}
        for seed in row["seeds"]:
            regret, uniform = (row[f"{name}_{value:g}_{seed}"] for name in ("regret", "uniform"))
            table.append({**about, "seed": seed, "regret": regret, "share": regret / uniform})
    return pd.DataFrame(table)


def main() -> None:
    """Computes what is missing, writes the table and prints it with intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--workers", type=int, default=1, help="processes; each uses all cores (default 1)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/bandit_neural"))
    args = parser.parse_args()
    from trainers.sweeps import sweep

    with sweep.Sweep(args.output, num_workers=args.workers, show=True) as my_sweep:

        def found(runs: list[Any]) -> list[dict[str, Any]]:
            rows = my_sweep.store.rows
            return [rows[one.hash] for one in runs if one.hash in rows]

        for setting in args.settings:  # One after the other, so that what is done is complete.
            tuning = tuning_runs([setting])
            my_sweep.execute(tuning)
            reported = report_runs([setting], found(tuning))
            my_sweep.execute(reported)
        rows = []
        for setting in SETTINGS:
            tuning = found(tuning_runs([setting]))
            rows += found(report_runs([setting], tuning)) if tuning else []
    table = collect(rows)
    with files.atomic_path(args.output / "neural.csv") as temporary:
        table.to_csv(temporary, index=False, float_format="%.5g")
    print(summary(table))


def summary(table: pd.DataFrame) -> str:
    """Returns regret as a share of uniform play's, by setting and agent, with intervals and what was chosen."""
    from benchmarks import stats

    lines = []
    for setting in dict.fromkeys(table.setting):
        rows = table[table.setting == setting]
        seeds = stats.by_seed(rows, "share")
        for agent in (name for name in AGENTS if name in seeds):
            value = rows[rows.agent == agent].value.iloc[0]
            lines.append(f"{setting:<18} {agent:<20} {value:<6g} {stats.mean_interval(seeds[agent])}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
