"""The runs behind the CIFAR10 figures: training sets, agents, sizes, and the tables that figures are drawn from.

A figure has two kinds of runs. One trains a member and keeps its test logits; the other scores an ensemble from the
logits of its members. Members are numbered: seed k of a figure is the block of members from `k * num_members` on, so
seeds share no member, and figures that ask for the same member train it once. The point estimate `vgg` is a member of
the block of ensemble-n alone; its score is the mean over them, what any one of them can be expected to have.

Importing this module does not import TensorFlow; computing runs does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainers.images import config as member_config
from trainers.images import runs as functions
from trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

SWEEP = "cifar10"  # one results folder for all figures, because they share members

SCORES = ("nll_marginal", "nll_marginal_error", "nll_joint", "nll_joint_error", "accuracy", "ece")
VGG, N, P, BP = "vgg", "ensemble-n", "ensemble-p", "ensemble-bp"

Rows = Sequence[dict[str, Any]]
Context = Mapping[str, Any]  # store and data: where members and images are; needed to compute runs, not to name them


@dataclasses.dataclass(frozen=True)
class Problem:
    """A training set, and how members train on it."""

    num_train: int
    noise: str = "none"  # see `member_config.Noise`
    epochs: int = 400
    batch_size: int = 128  # The paper's 32 on each of four devices.
    learning_rate: float | None = None  # None: the paper's for this size
    weight_decay: float = 30.0  # lambda of the summed loss

    @property
    def id(self) -> str:
        """Such as `T100-e400` or `T1000-e100-figure_5`; within a preset no two problems share it."""
        noise = "" if self.noise == "none" else f"-{self.noise}"
        return f"T{self.num_train}-e{self.epochs}{noise}"


@dataclasses.dataclass(frozen=True)
class Agent:
    """An agent with its prior scale and bootstrap probability; 1 is no bootstrap."""

    name: str
    prior_scale: float = 0.0
    bootstrap_probability: float = 1.0

    @property
    def label(self) -> str:
        """Such as `ensemble-bp(0.9)`."""
        return f"{self.name}({self.bootstrap_probability:g})" if self.name == BP else self.name

    @property
    def members_id(self) -> str:
        """Names what its members are: agents of different names may share them."""
        return f"scale{self.prior_scale:g}-p{self.bootstrap_probability:g}"


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a figure is made: one preset of it."""

    problems: tuple[Problem, ...]
    num_members: int
    seeds: int
    prior_scales: tuple[float, ...]
    width: float = 1.0
    num_test: int | None = None  # None: all 10,000
    ensemble_sizes: tuple[int, ...] = ()  # of figure 11; the others have `num_members` only
    probabilities: tuple[float, ...] = (0.5, 0.75, 0.9)
    data: str = member_config.CIFAR10
    seed: int = 0  # of all members
    name: str = "cifar10"  # that ids of runs begin with

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the ensembles that are scored."""
        return self.ensemble_sizes or (self.num_members,)


@dataclasses.dataclass(frozen=True)
class Ensemble:
    """An agent trained on a problem: some members of a block."""

    problem: Problem
    agent: Agent
    seed: int
    num_members: int
    first_member: int
    run: sweep.Run


def plain_agents(size: Size) -> list[Agent]:
    """Returns the agents of figures 3 and 10."""
    return [Agent(VGG), Agent(N), *(Agent(P, scale) for scale in size.prior_scales)]


def bootstrapped_agents(size: Size) -> list[Agent]:
    """Returns the agents of figures 4, 5 and 11: n, and p and bp with every prior scale."""
    agents = [Agent(N), *(Agent(P, scale) for scale in size.prior_scales)]
    return agents + [Agent(BP, scale, p) for p in size.probabilities for scale in size.prior_scales]


def _fields(problem: Problem, agent: Agent, size: Size) -> dict[str, Any]:
    """What all members of an ensemble have in common; rates are resolved, so that rows tell them."""
    chance = agent.bootstrap_probability
    config = member_config.MemberConfig(
        data=size.data,
        seed=size.seed,
        num_train=problem.num_train,
        noise=problem.noise,
        epochs=problem.epochs,
        batch_size=problem.batch_size,
        learning_rate=problem.learning_rate,
        weight_decay=problem.weight_decay,
        width=size.width,
        num_test=size.num_test,
        prior_scale=agent.prior_scale,
        bootstrap_probability=None if chance == 1.0 else chance,
    )
    fields = config.to_dict()
    del fields["member"]
    return fields


def member_runs(
    problem: Problem, agents: Iterable[Agent], size: Size, seed: int, context: Context | None = None
) -> list[sweep.Run]:
    """Returns the training of all members that the ensembles of one problem and seed need, each once."""
    runs = {}
    for agent in agents:
        for member in range(seed * size.num_members, (seed + 1) * size.num_members):
            run = _member_run(problem, agent, size, member, context)
            runs[run.id] = run
    return list(runs.values())


def _member_run(problem: Problem, agent: Agent, size: Size, member: int, context: Context | None) -> sweep.Run:
    fields = _fields(problem, agent, size)
    config = member_config.from_dict({**fields, "member": member})
    tested = (size.num_test or 10_000) * (2 if agent.prior_scale else 1)
    return sweep.make_run(
        f"{size.name}/{problem.id}/{agent.members_id}/member{member}",
        functions.TRAIN,
        {**fields, "member": member},
        context=context and {**context, "keep_weights": False},  # Figures are drawn from predictions.
        group=f"batch{config.batch}-{'prior' if agent.prior_scale else 'plain'}",  # What is compiled for.
        cost=3 * config.num_steps * config.batch + tested + 1000,  # About, in images that pass through a network.
    )


def ensembles(
    problem: Problem, agents: Iterable[Agent], size: Size, seed: int, context: Context | None = None
) -> list[Ensemble]:
    """Returns the ensembles of one problem and seed; of `vgg`, each member alone."""
    found = []
    start = seed * size.num_members
    store = context and {"store": context["store"]}
    for agent in agents:
        parts = [(start, count) for count in size.sizes]
        if agent.name == VGG:
            parts = [(start + index, 1) for index in range(size.num_members)]
        for first, count in parts:
            config = {**_fields(problem, agent, size), "num_members": count, "first_member": first}
            run_id = f"{size.name}/{problem.id}/{agent.name}-{agent.members_id}-m{count}/from{first}"
            run = sweep.make_run(run_id, functions.EVALUATE, config, context=store, group="evaluate", cost=10.0 * count)
            found.append(Ensemble(problem, agent, seed, count, first, run))
    return found


def stages(
    size: Size, agents: Sequence[Agent], context: Context | None = None
) -> list[Callable[[Rows], list[sweep.Run]]]:
    """Returns, for one training set after the other, the training of all members and the scoring of all ensembles."""

    def train(problem: Problem) -> Callable[[Rows], list[sweep.Run]]:
        return lambda rows: [
            run for seed in range(size.seeds) for run in member_runs(problem, agents, size, seed, context)
        ]

    def score(problem: Problem) -> Callable[[Rows], list[sweep.Run]]:
        return lambda rows: [
            ensemble.run for seed in range(size.seeds) for ensemble in ensembles(problem, agents, size, seed, context)
        ]

    return [stage for problem in size.problems for stage in (train(problem), score(problem))]


def table(rows: Rows, size: Size, agents: Sequence[Agent]) -> pd.DataFrame:
    """Returns a row per scored ensemble of complete seeds; raises where there is none.

    While a sweep is under way, training sets that have fewer complete seeds than others are left out.
    """
    import pandas as pd

    by_hash = {row["hash"]: row for row in rows}
    complete: dict[Problem, list[list[Ensemble]]] = {}
    for problem in size.problems:
        seeds = [ensembles(problem, agents, size, seed) for seed in range(size.seeds)]
        complete[problem] = [seed for seed in seeds if all(one.run.hash in by_hash for one in seed)]
    most = max(map(len, complete.values()))
    if not most:
        raise ValueError("Expected all ensembles of at least one seed; 'sweep run' computes them. Received: a part")
    kept = [one for seeds in complete.values() if len(seeds) == most for seed in seeds for one in seed]
    lines = pd.DataFrame([_line(one, by_hash[one.run.hash]) for one in kept])
    # The networks of a block, each alone, make one row of `vgg`, named after the first.
    single = lines.agent == VGG
    means = lines[single].groupby(["num_train", "seed"])[list(SCORES)].transform("mean")
    lines.loc[single, list(SCORES)] = means
    return lines[~(single & lines.duplicated(["agent", "num_train", "seed"]))].reset_index(drop=True)


def _line(ensemble: Ensemble, row: dict[str, Any]) -> dict[str, Any]:
    problem, agent = ensemble.problem, ensemble.agent
    return {
        "id": row["id"],
        "agent": agent.name,
        "label": agent.label,
        "seed": ensemble.seed,
        "num_train": problem.num_train,
        "num_members": ensemble.num_members,
        "prior_scale": agent.prior_scale,
        "bootstrap_probability": agent.bootstrap_probability,
        "noise": problem.noise,
        "width": row["width"],
        "epochs": row["epochs"],
        "batch_size": row["batch_size"],
        "learning_rate": row["learning_rate"],
        "weight_decay": row["weight_decay"],
        "num_test": 10_000 if row["num_test"] is None else row["num_test"],
        "first_member": ensemble.first_member,
        **{name: row[name] for name in SCORES},
    }


# Problems of the smaller presets: one batch size, so that one graph serves all; fewer and larger steps than the
# paper's, and weight decays that `cifar10_settings` chose: with 30, networks as narrow as these learn next to nothing.
TINY_10 = Problem(10, epochs=60, batch_size=10, learning_rate=7e-4, weight_decay=0.03)
TINY_100 = Problem(100, epochs=10, batch_size=10, learning_rate=2e-2, weight_decay=0.03)
SMALL_10 = Problem(10, epochs=100, batch_size=10, learning_rate=4e-4, weight_decay=0.03)
SMALL_100 = Problem(100, epochs=20, batch_size=10, learning_rate=2e-2, weight_decay=0.03)
SMALL_1000 = Problem(1000, epochs=10, batch_size=10, learning_rate=2e-2, weight_decay=0.03)
PAPER = tuple(Problem(num_train) for num_train in (10, 100, 1000, 50_000))
NARROW = 1 / 16  # the width of their networks
