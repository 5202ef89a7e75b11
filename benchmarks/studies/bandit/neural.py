"""Regret of neural agents where rewards are not linear: random networks, the wheel, and data as bandits.

    tf-ensembles sweep run benchmarks.studies.bandit.neural --preset standard --workers 1     # a run uses all cores

Everything is decided here, before anything runs. All agents meet the same problems and noise, and have the same
networks, trained by Adam at the same rate. Two things are chosen for each agent and setting, to the lowest mean regret
on seeds 100 to 104: how it explores (epsilon, prior scale, dropout rate, the noise of linear models; four values, none
for greedy and ensemble-n), and how much it trains, one or four updates per decision. Reported are seeds 0 to 19.

This is the second version. In a first one, all agents made one update per decision, prior scales went up to 3 on random
networks, too, where 3 was chosen, and only that family with a temperature of 0.1 was run before it was stopped. Random
networks here are others than those of the first.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.base import Array
from tf_ensembles.benchmarks.claims.neural import DATA, NETWORK, WHEEL
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("bandit-neural", "tf_ensembles.benchmarks.studies.bandit.neural:compute")
MEMBERS = 10


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


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is."""

    seeds: Sequence[int] = range(20)  # reported
    tuning_seeds: Sequence[int] = range(100, 105)
    settings: tuple[str, ...] = tuple(SETTINGS)


def values_of(agent: str, setting: str) -> tuple[float, ...]:
    """Returns the values that an agent's exploration is chosen from; 0 stands for nothing to choose."""
    field, values = GRIDS[agent]
    if field == "prior_scale" and SETTINGS[setting].family == NETWORK:
        return LOGIT_SCALES
    return values or (0.0,)


def make_problems(setting: Setting, seeds: Sequence[int]) -> Any:
    """Returns the problems of some seeds, those of a seed one after the other."""
    from tf_ensembles.bandit_env.networks import problems

    numbers = [setting.first + seed * setting.per_seed + k for seed in seeds for k in range(setting.per_seed)]
    if setting.maker == "random_network":
        return problems.make_random_network(numbers, temperature=setting.argument)
    if setting.maker == "wheel":
        return problems.make_wheel(numbers, setting.horizon, setting.argument)
    return problems.make_data(setting.argument, numbers, setting.horizon)


def make_agent(name: str, values: Array | float, num_members: int = MEMBERS) -> Any:
    """Returns an agent of the rollout; values decide on its exploration, one for each problem."""
    import tf_ensembles as tfe
    from tf_ensembles.bandit_env.networks.rollout import Agent

    kinds_of = {"dropout": "dropout", "LinTS": "linear", "LinTS on last layer": "last-layer"}
    members = num_members if name.startswith("ensemble") else 1
    bootstrap = tfe.Bernoulli(0.5) if name == "ensemble-bp" else None
    field = GRIDS[name][0]
    options = {field: values} if field else {}
    return Agent(kinds_of.get(name, "ensemble"), members, bootstrap=bootstrap, **options)


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run: an agent with all of its values on all seeds; regret by value and seed, and uniform's."""
    from tf_ensembles.bandit_env.networks import rollout

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
    config: dict[str, Any] = {"setting": setting, "agent": agent, "values": list(values), "seeds": list(seeds)}
    config |= {"members": MEMBERS, "updates": updates}
    where = setting.replace(", ", "-").replace(" = ", "").replace("ρ", "t").replace("δ", "d")
    chosen = f"u{updates}-" + "-".join(f"{value:g}" for value in values)
    name = f"bandit-neural/{where}/{agent.replace(' ', '-')}/{stage}/{chosen}/seed{seeds[0]}"
    return sweep.make_run(name, KIND, config, group=f"{setting}-{agent}", cost=float(updates))


def tuning_runs(size: Size, setting: str) -> list[Any]:
    """Returns the runs of the grids, on the seeds to choose by; LinTS on raw features has nothing to train."""
    return [
        make_run(setting, agent, updates, values_of(agent, setting), size.tuning_seeds, "tune")
        for agent in AGENTS
        for updates in (UPDATES[:1] if agent == "LinTS" else UPDATES)
    ]


def report_runs(size: Size, setting: str, rows: base.Rows) -> list[Any]:
    """Returns the runs of the reported seeds, each agent with what had the lowest mean regret in rows of the others."""
    best: dict[str, tuple[float, int, float]] = {}
    for row in rows:
        for value in row["values"]:
            mean = float(np.mean([row[f"regret_{value:g}_{seed}"] for seed in row["seeds"]]))
            candidate = (mean, row["updates"], value)
            best[row["agent"]] = min(best.get(row["agent"], candidate), candidate)
    return [make_run(setting, agent, best[agent][1], [best[agent][2]], size.seeds, "report") for agent in best]


class _Study(base.Study):
    name, part, kept = "bandit_neural", "bandit", "neural"
    title = "Neural bandits: regret, in percent of choosing by chance"
    about = "Means over seeds with 95% intervals; what an agent explores by and how much it trains are tuned for each."
    presets = {"quick": Size(range(2), range(100, 101), ("wheel, δ = 0.5",)), "standard": Size()}

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns tuning and report of one setting after the other, so that what is done is complete."""

        def tune(setting: str, rows: base.Rows) -> list[Any]:
            return tuning_runs(size, setting)

        def report(setting: str, rows: base.Rows) -> list[Any]:
            return report_runs(size, setting, base.complete(rows, tuning_runs(size, setting)))

        return [functools.partial(stage, setting) for setting in size.settings for stage in (tune, report)]

    def records(self, size: Size, rows: base.Rows) -> list[dict[str, Any]]:
        """Returns a line per setting, agent and reported seed."""
        table = []
        for row in base.rows_of(rows, [run for stage in self.stages(size, {})[1::2] for run in stage(rows)]):
            (value,), setting = row["values"], SETTINGS[row["setting"]]
            about = {"family": setting.family, "setting": row["setting"], "agent": row["agent"]}
            about |= {"value": value, "updates": row["updates"]}
            for seed in row["seeds"]:
                regret, uniform = (row[f"{name}_{value:g}_{seed}"] for name in ("regret", "uniform"))
                table.append({**about, "seed": seed, "regret": regret, "share": regret / uniform})
        return table

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns a panel per family: a line per agent through its settings."""
        made = []
        for family in table.family.unique():
            own = table[table.family == family]
            settings = list(own.setting.unique())
            rows = own.assign(place=own.setting.map(settings.index), percent=100.0 * own.share)
            names = tuple(setting.split(", ")[-1] for setting in settings)
            lines = base.lines(rows, "place", "percent", "agent")
            made.append(base.Panel(family, "% of chance", lines, kind="lines", places=names, from_zero=True))
        return made


FIGURE = _Study()
