"""Regret of neural agents where rewards are not linear: random networks, the wheel, and data as bandits.

Usage: `python -m benchmarks.studies.bandit.neural --output results/bandit_neural`; the same command continues after a
kill. Everything is decided here, before anything runs. All agents meet the same problems and noise, and have the same
networks, trained by Adam at the same rate. Two things are chosen for each agent and setting, to the lowest mean regret
on seeds 100 to 104: how it explores (epsilon, prior scale, dropout rate, the noise of linear models; four values, none
for greedy and ensemble-n), and how much it trains, one or four updates per decision. Reported are seeds 0 to 19.

This is the second version. In a first one, all agents made one update per decision, prior scales went up to 3 on random
networks, too, where 3 was chosen, and only that family with a temperature of 0.1 was run before it was stopped. Random
networks here are others than those of the first.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import seals
from tf_ensembles import files
from tf_ensembles.base import Array
from trainers.sweeps import kinds

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("bandit-neural", "benchmarks.studies.bandit.neural:compute")
MEMBERS = 10
SEEDS, TUNING_SEEDS = tuple(range(20)), tuple(range(100, 105))
NETWORK, WHEEL, DATA = "random network", "wheel", "data"
FAMILIES = (NETWORK, WHEEL, DATA)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A kind of problem, and how much of it."""

    family: str
    maker: str  # of `bandit_env.networks.problems`
    argument: Any
    horizon: int
    per_seed: int = 1  # problems for each seed, whose regret is averaged
    first: int = 0  # the number of the first problem of seed 0


# Where exploring pays seldom, it takes longer to tell.
_WHEELS = {0.5: 1000, 0.7: 1000, 0.9: 2000, 0.95: 2000, 0.99: 2000}
SETTINGS = {
    "network, ρ = 0.1": Setting(NETWORK, "random_network", 0.1, 1000, 4, 1000),
    "network, ρ = 0.5": Setting(NETWORK, "random_network", 0.5, 1000, 4, 1000),
    **{f"wheel, δ = {delta:g}": Setting(WHEEL, "wheel", delta, horizon) for delta, horizon in _WHEELS.items()},
    "tumors": Setting(DATA, "data", "tumors", 1000),
    "digits": Setting(DATA, "data", "digits", 1000),
}
UPDATES = (1, 4)  # per decision
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
LOGIT_SCALES = (0.3, 1.0, 3.0, 10.0)  # of priors on random networks, whose logits are of this size


def values_of(agent: str, setting: str) -> tuple[float, ...]:
    """Returns the values that an agent's exploration is chosen from; 0 stands for nothing to choose."""
    field, values = GRIDS[agent]
    if field == "prior_scale" and SETTINGS[setting].family == NETWORK:
        return LOGIT_SCALES
    return values or (0.0,)


def make_problems(setting: Setting, seeds: Sequence[int]) -> Any:
    """Returns the problems of some seeds, those of a seed one after the other."""
    from bandit_env.networks import problems

    numbers = [setting.first + seed * setting.per_seed + k for seed in seeds for k in range(setting.per_seed)]
    if setting.maker == "random_network":
        return problems.make_random_network(numbers, temperature=setting.argument)
    if setting.maker == "wheel":
        return problems.make_wheel(numbers, setting.horizon, setting.argument)
    return problems.make_data(setting.argument, numbers, setting.horizon)


def make_agent(name: str, values: Array | float, num_members: int = MEMBERS) -> Any:
    """Returns an agent of the rollout; values decide on its exploration, one for each problem."""
    import tf_ensembles as tfe
    from bandit_env.networks.rollout import Agent

    kinds_of = {"dropout": "dropout", "LinTS": "linear", "LinTS on last layer": "last-layer"}
    members = num_members if name.startswith("ensemble") else 1
    bootstrap = tfe.Bernoulli(0.5) if name == "ensemble-bp" else None
    field = GRIDS[name][0]
    options = {field: values} if field else {}
    return Agent(kinds_of.get(name, "ensemble"), members, bootstrap=bootstrap, **options)


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run of the sweep: an agent with all of its values on all seeds; regret by value and seed, and uniform's."""
    from bandit_env.networks import rollout

    setting, values, seeds = SETTINGS[config["setting"]], config["values"], config["seeds"]
    made = make_problems(setting, seeds)
    count = len(made.seeds)
    repeated = made.rows(list(range(count)) * len(values))
    agent = make_agent(config["agent"], np.repeat(values, count), config["members"])
    learner = rollout.Learner(updates_per_decision=config["updates"])
    found = rollout.run(agent, repeated, setting.horizon, learner)
    uniform = rollout.uniform_play(repeated, setting.horizon)
    shape = [len(values), len(seeds), setting.per_seed]
    row = {}
    for name, totals in (("regret", found.total), ("uniform", uniform)):
        by_seed = totals.reshape(shape).mean(2)
        for (v, value), (s, seed) in itertools.product(enumerate(values), enumerate(seeds)):
            row[f"{name}_{value:g}_{seed}"] = float(by_seed[v, s])
    return row


def make_run(setting: str, agent: str, updates: int, values: Sequence[float], seeds: Sequence[int], stage: str) -> Any:
    """Returns one run."""
    from trainers.sweeps import sweep

    config: dict[str, Any] = {"setting": setting, "agent": agent, "values": list(values), "seeds": list(seeds)}
    config |= {"members": MEMBERS, "updates": updates}
    where = setting.replace(", ", "-").replace(" = ", "").replace("ρ", "t").replace("δ", "d")
    chosen = f"u{updates}-" + "-".join(f"{value:g}" for value in values)
    name = f"bandit-neural/{where}/{agent.replace(' ', '-')}/{stage}/{chosen}/seed{seeds[0]}"
    return sweep.make_run(name, KIND, config, group=f"{setting}-{agent}", cost=float(updates))


def tuning_runs(setting: str, agents: Sequence[str] = AGENTS) -> list[Any]:
    """Returns the runs of the grids, on the seeds to choose by; LinTS on raw features has nothing to train."""
    return [
        make_run(setting, agent, updates, values_of(agent, setting), TUNING_SEEDS, "tune")
        for agent in agents
        for updates in (UPDATES[:1] if agent == "LinTS" else UPDATES)
    ]


def report_runs(setting: str, rows: Sequence[dict[str, Any]]) -> list[Any]:
    """Returns the runs of the reported seeds, each agent with what had the lowest mean regret in rows of the others."""
    best: dict[str, tuple[float, int, float]] = {}
    for row in rows:
        for value in row["values"]:
            mean = float(np.mean([row[f"regret_{value:g}_{seed}"] for seed in row["seeds"]]))
            found = (mean, row["updates"], value)
            best[row["agent"]] = min(best.get(row["agent"], found), found)
    return [make_run(setting, agent, best[agent][1], [best[agent][2]], SEEDS, "report") for agent in best]


def collect(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Returns regret by setting, agent and seed, from rows of the reported runs."""
    import pandas as pd

    table = []
    for row in rows:
        (value,), setting = row["values"], SETTINGS[row["setting"]]
        about = {"family": setting.family, "setting": row["setting"], "agent": row["agent"]}
        about |= {"value": value, "updates": row["updates"]}
        for seed in row["seeds"]:
            regret, uniform = (row[f"{name}_{value:g}_{seed}"] for name in ("regret", "uniform"))
            table.append({**about, "seed": seed, "regret": regret, "share": regret / uniform})
    return pd.DataFrame(table)


def main() -> None:
    """Computes what is missing, writes the table and prints it with intervals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--agents", nargs="*", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--workers", type=int, default=1, help="processes; each uses all cores (default 1)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/bandit_neural"))
    parser.add_argument(
        "--join", type=pathlib.Path, nargs="*", help="folders of earlier calls to join, without running"
    )
    args = parser.parse_args()
    if args.join:
        write(joined(args.join), args.output)
        return
    from trainers.sweeps import sweep

    with sweep.Sweep(args.output, num_workers=args.workers, show=True) as my_sweep:

        def found(runs: list[Any]) -> list[dict[str, Any]]:
            rows = my_sweep.store.rows
            return [rows[one.hash] for one in runs if one.hash in rows]

        rows = []
        for setting in args.settings:  # One after the other, so that what is done is complete.
            tuning = tuning_runs(setting, args.agents)
            my_sweep.execute(tuning)
            reported = report_runs(setting, found(tuning))
            my_sweep.execute(reported)
            rows += found(reported)
    write(rows, args.output)


def joined(folders: Sequence[pathlib.Path]) -> list[dict[str, Any]]:
    """Returns the rows of reported runs that several folders hold, each once."""
    from trainers.sweeps import store

    rows = [row for folder in folders for row in store.read_results(folder) if row.get("seeds") == list(SEEDS)]
    return list({row["hash"]: row for row in rows}.values())


def write(rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> None:
    """Writes the table of reported runs, and prints it."""
    table = collect(rows)
    order = {name: place for place, name in enumerate((*SETTINGS, *AGENTS))}
    table = table.sort_values(["setting", "agent"], key=lambda names: names.map(order), kind="stable")
    with files.atomic_path(folder / "neural.csv") as temporary:
        table.to_csv(temporary, index=False, float_format="%.5g")
    seals.add(folder / "neural.csv")
    print(summary(table))


def summary(table: pd.DataFrame) -> str:
    """Returns a table in Markdown for each family: regret in percent of uniform play's, and what was chosen."""
    from benchmarks import stats

    lines = []
    for family in (name for name in FAMILIES if name in set(table.family)):
        settings = [name for name in SETTINGS if name in set(table[table.family == family].setting)]
        lines += ["", f"| {family} | {' | '.join(settings)} |", f"|---|{'---|' * len(settings)}"]
        for agent in AGENTS:
            cells = []
            for setting in settings:
                rows = table[(table.setting == setting) & (table.agent == agent)]
                if rows.empty:
                    cells.append("–")
                    continue
                found, own = stats.mean_interval(100.0 * rows.share.to_numpy()), rows.iloc[0]
                chosen = f"{own.value:g}; {own.updates}" if GRIDS[agent][0] else f"{own.updates}"
                cells.append(f"{found.estimate:.1f} [{found.low:.1f}, {found.high:.1f}] ({chosen})")
            lines.append(f"| {agent} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
