"""The runs behind the CIFAR10 figures: training sets, agents, sizes, and the tables that figures are drawn from.

A figure has two kinds of runs. One trains a member and keeps its test logits; the other scores an ensemble from the
logits of its members. Members are numbered: seed k of a figure is the block of members from `k * num_members` on, so
seeds share no member, and figures that ask for the same member train it once. With `block`, seeds lie further apart, so
that a small ensemble is the first members of a larger one. The point estimate `vgg` is one network; its score is the
mean over several, what any one of them can be expected to have: the members of ensemble-n's block each alone, or, where
a size has `own_vgg`, networks that are trained for it. With `own_data`, a seed also has a training set and label noise
of its own. With `tuning`, prior scales are chosen on held-out images, with members of other seeds.

Importing this module does not import TensorFlow; computing runs does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import runs as functions
from tf_ensembles.trainers.sweeps import sweep

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
    num_test: int | None = None  # the first so many test images; None: all 10,000

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
class Tuning:
    """How prior scales are chosen: on held-out training images, with members, data and noise of other seeds."""

    prior_scales: tuple[float, ...]
    num_members: int
    seeds: int
    epochs: float = 1.0  # the share of the epochs that members train for


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a figure is made: one preset of it."""

    problems: tuple[Problem, ...]
    num_members: int
    prior_scales: tuple[float, ...]
    seeds: int = 5  # Fewer decide nothing.
    width: float = 1.0
    ensemble_sizes: tuple[int, ...] = ()  # of figure 11; the others have `num_members` only
    probabilities: tuple[float, ...] = (0.5, 0.75, 0.9)
    probability_members: tuple[int, ...] = ()  # of each of them; (): `num_members`
    block: int = 0  # members from the first of a seed to the first of the next; 0: `num_members`
    data: str = member_config.CIFAR10
    seed: int = 0  # of all members
    name: str = "cifar10"  # that ids of runs begin with
    first_seed: int = 0
    own_data: bool = False  # whether every seed has a training set and label noise of its own
    own_vgg: int = 0  # networks per seed that are trained for `vgg` alone; 0: it is each of ensemble-n's members alone
    tuning: Tuning | None = None  # None: `prior_scales` are all run, and the best is taken on the other seeds

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the ensembles that are scored."""
        return self.ensemble_sizes or (self.num_members,)

    def members(self, agent: Agent) -> int:
        """How many members an agent's largest ensemble has."""
        if agent.name == VGG and self.own_vgg:
            return self.own_vgg
        fewer = dict(zip(self.probabilities, self.probability_members, strict=False))
        return fewer.get(agent.bootstrap_probability, self.num_members)


# Seeds from here on are for tuning, and members from here on are networks of `vgg`.
TUNING_SEED, _VGG_MEMBER = 1000, 1_000_000


def tuning_size(size: Size) -> Size:
    """Returns what prior scales are chosen by: ensembles that are scored on training images of no member."""
    assert size.tuning is not None
    most = member_config.TRAINING_IMAGES[member_config.VALIDATION]
    problems = tuple(
        dataclasses.replace(
            one, num_train=min(one.num_train, most), epochs=int(one.epochs * size.tuning.epochs), num_test=None
        )
        for one in size.problems
    )
    return dataclasses.replace(
        size,
        problems=problems,
        num_members=size.tuning.num_members,
        seeds=size.tuning.seeds,
        first_seed=TUNING_SEED,
        prior_scales=size.tuning.prior_scales,
        ensemble_sizes=(),
        data=member_config.VALIDATION,
        name=f"{size.name}-tuning",
        tuning=None,
    )


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


def _fields(problem: Problem, agent: Agent, size: Size, seed: int) -> dict[str, Any]:
    """What all members of an ensemble have in common; rates are resolved, so that rows tell them."""
    chance = agent.bootstrap_probability
    own: dict[str, Any] = {}
    if size.own_data:
        whole = problem.num_train == member_config.TRAINING_IMAGES.get(size.data)
        own = {"subset": "balanced" if whole else f"balanced-{seed + 1}"}
        own |= {} if problem.noise == "none" else {"noise_seed": seed + 1}
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
        num_test=problem.num_test,
        prior_scale=agent.prior_scale,
        bootstrap_probability=None if chance == 1.0 else chance,
        **own,
    )
    fields = config.to_dict()
    del fields["member"]
    return fields


def members_of(agent: Agent, size: Size, seed: int) -> range:
    """The members of an agent's ensemble of a seed."""
    count = size.members(agent)
    single = agent.name == VGG and size.own_vgg
    first = _VGG_MEMBER + seed * count if single else seed * (size.block or size.num_members)
    return range(first, first + count)


def _place(problem: Problem, size: Size, seed: int) -> str:
    """How ids of runs begin: with the size's name and the training set."""
    return f"{size.name}/{problem.id}-data{seed}" if size.own_data else f"{size.name}/{problem.id}"


def member_runs(
    problem: Problem, agents: Iterable[Agent], size: Size, seed: int, context: Context | None = None
) -> list[sweep.Run]:
    """Returns the training of all members that the ensembles of one problem and seed need, each once."""
    runs = {}
    for agent in agents:
        for member in members_of(agent, size, seed):
            run = _member_run(problem, agent, size, seed, member, context)
            runs[run.id] = run
    return list(runs.values())


def _member_run(
    problem: Problem, agent: Agent, size: Size, seed: int, member: int, context: Context | None
) -> sweep.Run:
    fields = _fields(problem, agent, size, seed)
    config = member_config.from_dict({**fields, "member": member})
    tested = (problem.num_test or 10_000) * (2 if agent.prior_scale else 1)
    return sweep.make_run(
        f"{_place(problem, size, seed)}/{agent.members_id}/member{member}",
        functions.TRAIN,
        {**fields, "member": member},
        context=context and {**context, "keep_weights": False},  # Figures are drawn from predictions.
        group=f"batch{config.batch}-{'prior' if agent.prior_scale else 'plain'}",  # What is compiled for.
        cost=3 * config.num_steps * config.batch + tested + 1000,  # About, in images that pass through a network.
    )


def ensembles(
    problem: Problem, agents: Iterable[Agent], size: Size, seed: int, context: Context | None = None
) -> list[Ensemble]:
    """Returns the ensembles of one problem and seed; of `vgg`, each network alone."""
    found = []
    store = context and {"store": context["store"]}
    for agent in agents:
        block = members_of(agent, size, seed)
        parts = [(block.start, count) for count in size.sizes if count <= len(block)]
        if agent.name == VGG:
            parts = [(member, 1) for member in block]
        for first, count in parts:
            config = {**_fields(problem, agent, size, seed), "num_members": count, "first_member": first}
            run_id = f"{_place(problem, size, seed)}/{agent.name}-{agent.members_id}-m{count}/from{first}"
            run = sweep.make_run(run_id, functions.EVALUATE, config, context=store, group="evaluate", cost=10.0 * count)
            found.append(Ensemble(problem, agent, seed, count, first, run))
    return found


MakeAgents = Callable[[Size], "list[Agent]"]


def agents_of(size: Size, make_agents: MakeAgents, rows: Rows) -> list[list[Agent]]:
    """Returns the agents for each of the problems; those with prior functions have the chosen scale, if any."""
    if size.tuning is None:
        agents = make_agents(size)
        if size.first_seed == TUNING_SEED:  # Agents without prior functions have nothing to choose; p without is n.
            agents = [agent for agent in agents if agent.name == BP or agent.prior_scale]
        return [agents for _ in size.problems]
    scales = chosen_scales(tuning_table(rows, size, make_agents))
    # One of each: the scale is filled in.
    templates = make_agents(dataclasses.replace(size, prior_scales=size.prior_scales[:1]))
    return [
        [
            dataclasses.replace(agent, prior_scale=scales[number, agent.label]) if agent.name in (P, BP) else agent
            for agent in templates
        ]
        for number in range(len(size.problems))
    ]


def tuning_table(rows: Rows, size: Size, make_agents: MakeAgents) -> pd.DataFrame:
    """Returns the scores of all candidates on held-out images; all of them must be there."""
    import pandas as pd

    mine, by_hash = tuning_size(size), {row["hash"]: row for row in rows}
    lines, missing = [], 0
    for number, problem in enumerate(mine.problems):
        for seed in mine.seed_range:
            for one in ensembles(problem, agents_of(mine, make_agents, rows)[number], mine, seed):
                if one.run.hash not in by_hash:
                    missing += 1
                    continue
                about = {"problem": number, "label": one.agent.label}
                lines.append({**about, **_line(one, by_hash[one.run.hash])})
    if missing:
        raise ValueError(
            f"Expected the scores of all {len(lines) + missing} candidates to choose prior scales from. "
            f"Received: {missing} missing"
        )
    return pd.DataFrame(lines)


def chosen_scales(table: pd.DataFrame) -> dict[tuple[int, str], float]:
    """Returns the scale of the lowest dyadic NLL, averaged over tuning seeds, by problem and agent."""
    means = table.groupby(["problem", "label", "prior_scale"], as_index=False).nll_joint.mean()
    best = means.loc[means.groupby(["problem", "label"]).nll_joint.idxmin()]
    return {(int(row["problem"]), str(row["label"])): float(row["prior_scale"]) for row in best.to_dict("records")}


def table(rows: Rows, size: Size, make_agents: MakeAgents) -> pd.DataFrame:
    """Returns a row per scored ensemble of complete seeds; raises where there is none.

    While a sweep is under way, training sets that have fewer complete seeds than others are left out.
    """
    import pandas as pd

    by_hash = {row["hash"]: row for row in rows}
    complete: dict[Problem, list[list[Ensemble]]] = {}
    for problem, agents in zip(size.problems, agents_of(size, make_agents, rows), strict=True):
        seeds = [ensembles(problem, agents, size, seed) for seed in size.seed_range]
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
        **{name: row[name] for name in (functions.WRONG_FIT,) if name in row},
    }


# Problems of the smaller presets: one batch size, so that one graph serves all; fewer and larger steps than the
# paper's, and weight decays that `cifar10_settings` chose: with 30, networks as narrow as these learn next to nothing.
TINY_10 = Problem(10, epochs=60, batch_size=10, learning_rate=7e-4, weight_decay=0.03, num_test=500)
TINY_100 = Problem(100, epochs=10, batch_size=10, learning_rate=2e-2, weight_decay=0.03, num_test=500)
SMALL_10 = Problem(10, epochs=100, batch_size=10, learning_rate=4e-4, weight_decay=0.03, num_test=1000)
SMALL_100 = Problem(100, epochs=20, batch_size=10, learning_rate=2e-2, weight_decay=0.03, num_test=1000)
SMALL_1000 = Problem(1000, epochs=10, batch_size=10, learning_rate=2e-2, weight_decay=0.03, num_test=1000)
PAPER = tuple(Problem(num_train) for num_train in (10, 100, 1000, 50_000))
NARROW = 1 / 16  # the width of their networks
# Those of preset `large`. Up to 1,000 images they are the small ones, longer and tested on more; from 10,000 on, batch
# and weight decay are the paper's. Rates and decays were chosen by one member each on held-out training images; see the
# results page.
LARGE_SMALL_SETS = (
    dataclasses.replace(SMALL_10, num_test=2000),
    dataclasses.replace(SMALL_100, num_test=2000),
    dataclasses.replace(SMALL_1000, epochs=20, num_test=None),
)
# Members of their clean figures: shared, numbered by figure 3's blocks of 100.
LARGE_CLEAN: dict[str, Any] = {"seed": 3, "name": "cifar10-clean", "own_data": True, "block": 100}
LARGE_10000 = Problem(10_000, epochs=15, learning_rate=0.1, weight_decay=30.0)
LARGE_50000 = Problem(50_000, epochs=10, learning_rate=0.2, weight_decay=30.0)
