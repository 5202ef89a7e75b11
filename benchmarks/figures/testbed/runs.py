"""The runs behind the testbed figures: their sizes, their ids, and the function that computes them.

A figure is made in stages: a grid of hyperparameters on tuning seeds, the choice from it, then the chosen agents on
reporting seeds, which no choice has seen. Importing this module does not import TensorFlow; computing runs does.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_ensembles import testbed
from tf_ensembles.trainers.sweeps import kinds, sweep

KIND = kinds.register("testbed", "tf_ensembles.benchmarks.figures.testbed.runs:train_and_score")
UNIFORM, BASE_RATE = "uniform", "base-rate"  # agents that look at no input
POINT = ("mlp",)
WITH_PRIOR = ("ensemble-p", "ensemble-bp")

# Seeds from here on are for tuning; reporting seeds are below.
FIRST_TUNING_SEED = 1000

# The paper's grids (appendix C.1). A prior scale is a number and how it follows the temperature.
L2_GRID = (0.1, 0.3, 1.0, 3.0, 10.0)
PRIOR_GRID = tuple(itertools.product((0.3, 1.0, 3.0), ("1/sqrt(rho)", "1/rho")))

# Members that train in one unit, about: enough to share the work on their data, few enough to finish soon.
_UNIT_MEMBERS = 150


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a figure is made: one preset of it."""

    num_members: int
    tuning_members: int  # of the grid; the chosen hyperparameters are then used with `num_members`
    tuning_seeds: int
    reporting_seeds: int
    data_ratios: tuple[float, ...] = (1.0, 10.0, 100.0, 1000.0)
    l2_grid: tuple[float, ...] = L2_GRID
    prior_grid: tuple[tuple[float, str], ...] = PRIOR_GRID
    num_steps: int = 1000
    num_batches: int = 1000  # batches of test inputs
    first_seed: int = 0  # of the reporting seeds

    @property
    def seeds_to_tune(self) -> range:
        """Seeds that hyperparameters are chosen on."""
        return range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + self.tuning_seeds)

    @property
    def seeds_to_report(self) -> range:
        """Seeds that figures show."""
        return range(self.first_seed, self.first_seed + self.reporting_seeds)

    def reporting_pieces(self, length: int) -> list[range]:
        """Returns the reporting seeds in pieces, so that a sweep that is cut short has whole seeds."""
        return [self.seeds_to_report[start : start + length] for start in range(0, self.reporting_seeds, length)]


def make_setting(
    input_dim: int, data_ratio: float, temperature: float, flip: float = 0.0, symmetric: bool = False
) -> testbed.Setting:
    """Returns a kind of problem; `flip` is the fraction of training labels 1 that become 0, or of each class."""
    label_flip = testbed.LabelFlip(flip, symmetric=bool(symmetric)) if flip else None
    return testbed.Setting(int(input_dim), float(data_ratio), float(temperature), flip=label_flip)


@dataclasses.dataclass(frozen=True)
class Agent:
    """An agent with its hyperparameters; those it does not have are 0."""

    name: str
    num_members: int
    l2: float
    prior_scale: float = 0.0
    prior_scaling: str = "1/sqrt(rho)"

    @property
    def id(self) -> str:
        """Such as `ensemble-bp-m100-l1-p3s`; the last letter says whether the prior's scaling is a root or linear."""
        if self.name in (UNIFORM, BASE_RATE):
            return self.name
        prior = f"-p{self.prior_scale:g}{'s' if 'sqrt' in self.prior_scaling else 'l'}" if has_prior(self.name) else ""
        members = "" if self.name in POINT else f"-m{self.num_members}"
        return f"{self.name}{members}-l{self.l2:g}{prior}"


UNIFORM_AGENT, BASE_RATE_AGENT = Agent(UNIFORM, 1, 0.0), Agent(BASE_RATE, 1, 0.0)


def has_prior(name: str) -> bool:
    """Whether an agent adds prior functions."""
    return name in WITH_PRIOR


def grid(names: Iterable[str], size: Size) -> list[Agent]:
    """Returns the agents of a hyperparameter grid."""
    agents = []
    for name in names:
        members = 1 if name in POINT else size.tuning_members
        priors = size.prior_grid if has_prior(name) else ((0.0, "1/sqrt(rho)"),)
        agents += [Agent(name, members, l2, *prior) for l2 in size.l2_grid for prior in priors]
    return agents


def enlarge(agent: Agent, size: Size) -> Agent:
    """Returns a tuned agent with the members that it is reported with."""
    return agent if agent.name in POINT else dataclasses.replace(agent, num_members=size.num_members)


def make_runs(
    settings: Iterable[testbed.Setting], agents: Mapping[str, Sequence[Agent]], seeds: Iterable[int], size: Size
) -> list[sweep.Run]:
    """Returns the runs of agents, given per setting's id, and of the uniform agent, on every setting and seed."""
    runs = []
    for seed, setting in itertools.product(seeds, settings):
        # Every agent once, however often it was chosen.
        chosen = list(dict.fromkeys([UNIFORM_AGENT, *agents[setting.id]]))
        for number, part in enumerate(_parts(chosen)):
            runs += [_make_run(setting, agent, seed, size, number) for agent in part]
    return runs


def _parts(agents: Sequence[Agent]) -> list[list[Agent]]:
    parts: list[list[Agent]] = [[]]
    for agent in agents:
        if parts[-1] and sum(other.num_members for other in parts[-1]) + agent.num_members > _UNIT_MEMBERS:
            parts.append([])
        parts[-1].append(agent)
    return parts


def _make_run(setting: testbed.Setting, agent: Agent, seed: int, size: Size, part: int) -> sweep.Run:
    config = {
        **setting_fields(setting),
        "agent": agent.name,
        **{key: value for key, value in dataclasses.asdict(agent).items() if key != "name"},
        "num_steps": size.num_steps,
        "num_batches": size.num_batches,
        "seed": seed,
    }
    batch = min(100, setting.num_train)
    return sweep.make_run(
        f"testbed/{setting.id}/{agent.id}/seed{seed}",
        KIND,
        config,
        group=f"d{setting.input_dim}-b{batch}",  # What is compiled for.
        batch=f"{setting.id}/seed{seed}/part{part}",
        cost=agent.num_members * (batch / 100 * (50 * setting.input_dim + 2600) + 1000),
    )


def setting_fields(setting: testbed.Setting) -> dict[str, Any]:
    """Returns the part of a configuration that says what kind of problem it is."""
    flip = {"flip": setting.flip.fraction if setting.flip else 0.0}
    if setting.flip and setting.flip.symmetric:  # Said of no other problem: hashes of runs are made of these fields.
        flip["symmetric"] = True
    return {**{name: getattr(setting, name) for name in ("input_dim", "data_ratio", "temperature")}, **flip}


def setting_of(config: Mapping[str, Any]) -> testbed.Setting:
    """Returns the kind of problem of a configuration."""
    dim, ratio, temperature, flip = (config[name] for name in ("input_dim", "data_ratio", "temperature", "flip"))
    return make_setting(dim, ratio, temperature, flip, config.get("symmetric", False))


def make_problem(config: Mapping[str, Any]) -> testbed.Problem:
    """Returns the problem of a configuration."""
    return testbed.problem_from_id(setting_of(config).id, config["seed"])


def train_and_score(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Trains agents side by side on one problem and scores them: the function of every testbed run."""
    from tf_ensembles.trainers import experiment

    problem, num_batches = make_problem(configs[0]), configs[0]["num_batches"]
    constant = {UNIFORM: testbed.uniform_agent, BASE_RATE: testbed.base_rate_agent}
    asked = [_agent_config(config) for config in configs if config["agent"] not in constant]
    trained = iter(experiment.run_many(asked, problem, num_batches=num_batches, num_workers=1) if asked else [])
    qualities = [
        experiment.run(constant[config["agent"]], problem, num_batches=num_batches)
        if config["agent"] in constant
        else next(trained)
        for config in configs
    ]
    return [dataclasses.asdict(quality) for quality in qualities]


def _agent_config(config: Mapping[str, Any]) -> Any:
    from tf_ensembles.trainers import agents

    fields = {key: config[key] for key in ("num_members", "l2", "num_steps", "seed", "prior_scale", "prior_scaling")}
    return agents.make_config(config["agent"], **fields)
