"""Deep sea by size: episodes until it is learned, by epsilon-greedy DQN, ensembles without and with priors, an epinet.

    tf-ensembles sweep run benchmarks.studies.deep_sea --preset standard --figures-to benchmarks/results/dqn

What runs was written before it ran. Deep sea is learned at the first episode up to which less than 90% of episodes were
bad: bsuite's rule, and that of Osband et al. (2018). It counts from the tenth episode on, so that one lucky episode is
not enough. A seed stops there, or at its limit of episodes. What is chosen (epsilon, the priors' scale) has the lowest
mean learning time on seeds of its own, where a seed that did not learn counts as twice its limit. All else is as in
bsuite's agents: two layers of 50 units, Adam at 0.001, minibatches of 128, a buffer of 10,000, discount 0.99.

Changed once, after the choice, sizes up to 8 of ensembles with priors and sizes up to 7 of epsilon-greedy had been
seen: limits of ensembles were 25 N, which ensemble-bp sometimes passed in the choice, and epsilon-greedy had size 9.
The scales at size 15 were added after those at size 10 had been seen to matter little, where no priors are needed.

The epinet came last. It first had a small network of (15, 15), 10 indices per update and the choice of ensembles (250
episodes, in which no scale learned): it learned sizes 5 and 8 in each reported seed, 10 in seven, 12 in none. It then
got the small network and the 20 indices of its authors' public agent on bsuite, smaller scales, and 100 N episodes to
choose in. That agent's index has 2 numbers; on the seeds of the choice, 2 learned in fewer seeds than 8 at the scales
that both were tried at (0.1 and 0.3), so 8 stayed. Its claim had been written before all of this.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.benchmarks.claims.deep_sea import BP, EPINET, EPSILON, N, P
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("deep-sea", "tf_ensembles.benchmarks.studies.deep_sea:compute")
AGENTS = (EPSILON, N, P, BP, EPINET)
SHARE, LEAST = 0.9, 10  # of bad episodes, and the first episode that counts
_EPISODES = 50  # between two looks at whether all have learned


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is; the defaults are what is reported."""

    sizes: tuple[int, ...] = (5, 8, 10, 12, 15, 20, 25, 30)  # of ensembles with priors
    plain_sizes: tuple[int, ...] = (5, 8, 10, 12, 15, 20)  # of ensemble-n, and of the epinet
    greedy_sizes: tuple[int, ...] = (4, 5, 6, 7, 8, 10, 12, 15, 20)  # of epsilon-greedy
    seeds: tuple[int, ...] = tuple(range(10))
    num_members: int = 10
    num_indices: int = 20  # of the epinet, per update
    chance: int = 100  # episodes that an ensemble with priors, or the epinet, has per unit of size: 100 N
    plain_chance: int = 50  # the same for ensemble-n
    greedy_limit: int = 8_000  # episodes that epsilon-greedy has at any size
    # The choice.
    choice_seeds: tuple[int, ...] = tuple(range(100, 105))
    choice_size: int = 10  # of ensembles and the epinet
    greedy_choice_size: int = 7
    scales: tuple[float, ...] = (0.3, 1.0, 3.0)
    epsilons: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)
    index_scales: tuple[float, ...] = (0.1, 0.3, 1.0)  # of the epinet's priors
    # Sensitivity of ensemble-p, on the reported seeds.
    sensitivity_size: int = 10
    sensitivity_scales: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)  # in units of value
    sensitivity_members: tuple[int, ...] = (1, 2, 3, 5, 10, 20)
    deep_size: int = 15  # where an ensemble without priors stalls
    deep_scales: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0)

    def limit(self, agent: str, size: int) -> int:
        """Returns the episodes that an agent has at most."""
        if agent == EPSILON:
            return self.greedy_limit
        return (self.plain_chance if agent == N else self.chance) * size

    def members(self, agent: str) -> int:
        """Returns the members of an agent, or its indices per update."""
        return self.num_indices if agent == EPINET else self.num_members


QUICK = Size(
    sizes=(3, 4),
    plain_sizes=(3,),
    greedy_sizes=(3,),
    seeds=(0, 1),
    num_members=2,
    greedy_limit=400,
    choice_seeds=(100,),
    choice_size=3,
    greedy_choice_size=3,
    scales=(1.0,),
    epsilons=(0.1,),
    sensitivity_size=3,
    sensitivity_scales=(1.0, 3.0),
    sensitivity_members=(1, 2),
    deep_size=4,
    deep_scales=(1.0,),
    num_indices=2,
    index_scales=(1.0,),
)


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run, an agent at a size: the learning time of each seed, NaN where the limit came first."""
    from tf_ensembles.bandit_env.dqn import environments, training

    size, limit = config["size"], config["limit"]
    agent = training.make_agent(config["agent"], config["members"], config["value"], config["value"])
    row: dict[str, float] = {}
    seeds, at_once = list(config["seeds"]), 10 if agent.num_members == 1 else 1
    for first in range(0, len(seeds), at_once):
        run = training.Run(agent, environments.DeepSea(size), seeds[first : first + at_once], num_workers=1)
        times = np.array([np.nan])
        while np.isnan(times).any() and run.num_steps < limit * size:
            left = limit - run.num_steps // size
            # As many episodes as there were: looks cost little then, and a late seed at most doubles the work.
            run.advance(size * min(left, max(_EPISODES, run.num_steps // size // 2)))
            times = run.result().learning_times(SHARE, LEAST)
        row |= {f"episodes_{seed}": float(time) for seed, time in zip(run.seeds, times, strict=True)}
    return row


def make_run(agent: str, size: int, value: float, members: int, limit: int, seeds: Sequence[int], stage: str) -> Any:
    """Returns one run; `value` is epsilon, or the scale of priors, or 0."""
    config: dict[str, Any] = {"agent": agent, "size": size, "value": value, "members": members, "limit": limit}
    name = f"deep-sea/{stage}/{agent}/size{size}-value{value:g}-members{members}/seed{seeds[0]}"
    cost = float(limit * size**3 * (members if agent != EPSILON else 1))
    return sweep.make_run(name, KIND, {**config, "seeds": list(seeds), "stage": stage}, cost=cost)


def choice_runs(size: Size) -> list[Any]:
    """Returns the runs to choose by."""
    runs = []
    for agent, values, at, limit in (
        (EPSILON, size.epsilons, size.greedy_choice_size, 5000),
        (P, size.scales, size.choice_size, 25 * size.choice_size),
        (BP, size.scales, size.choice_size, 25 * size.choice_size),
        (EPINET, size.index_scales, size.choice_size, size.limit(EPINET, size.choice_size)),
    ):
        runs += [make_run(agent, at, v, size.members(agent), limit, size.choice_seeds, "choice") for v in values]
    return runs


def choose(rows: base.Rows) -> dict[str, float]:
    """Returns the value of each agent with the lowest mean learning time, in rows of the choice."""
    best: dict[str, tuple[float, float]] = {N: (0.0, 0.0)}
    for row in rows:
        times = np.array([row[f"episodes_{seed}"] for seed in row["seeds"]], float)
        candidate = (float(np.where(np.isnan(times), 2.0 * row["limit"], times).mean()), row["value"])
        best[row["agent"]] = min(best.get(row["agent"], candidate), candidate)
    return {agent: value for agent, (_, value) in best.items()}


def report_runs(size: Size, values: Mapping[str, float]) -> list[Any]:
    """Returns the reported runs, and those of ensemble-p with other scales and other numbers of members."""
    sizes = {P: size.sizes, BP: size.sizes, N: size.plain_sizes, EPINET: size.plain_sizes, EPSILON: size.greedy_sizes}
    runs = [
        make_run(agent, at, values[agent], size.members(agent), size.limit(agent, at), size.seeds, "report")
        for agent in sizes
        for at in sizes[agent]
    ]
    scales = (
        ("scale", size.sensitivity_size, size.sensitivity_scales),
        ("deep-scale", size.deep_size, size.deep_scales),
    )
    for stage, at, listed in scales:
        limit = size.limit(P, at) // 2
        runs += [make_run(P, at, value, size.num_members, limit, size.seeds, stage) for value in listed]
    at, limit = size.sensitivity_size, size.limit(P, size.sensitivity_size) // 2
    return runs + [make_run(P, at, values[P], m, limit, size.seeds, "members") for m in size.sensitivity_members]


class _Study(base.Study):
    name, part, kept = "deep_sea_times", "dqn", "deep_sea"
    title = "Deep sea: episodes until it is learned"
    about = (
        "Medians and ranges of seeds, which stop at their limit of episodes. There is no point where half of the seeds "
        "or more did not learn."
    )
    presets = {"quick": QUICK, "standard": Size()}

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns the choice, and then all that is reported."""
        choice = choice_runs(size)
        return [lambda rows: choice, lambda rows: report_runs(size, choose(base.complete(rows, choice)))]

    def records(self, size: Size, rows: base.Rows) -> list[dict[str, Any]]:
        """Returns a line per run and seed."""
        names = ("stage", "agent", "size", "value", "members", "limit")
        done = base.rows_of(rows, self.all_runs(size, {}, rows))
        done.sort(key=lambda row: (row["stage"], AGENTS.index(row["agent"]), *(row[name] for name in names[2:])))
        return [
            {**{name: row[name] for name in names}, "seed": seed, "episodes": row[f"episodes_{seed}"]}
            for row in done
            for seed in row["seeds"]
        ]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns learning times by size, and those of ensemble-p by its priors' scale and by its members."""
        report = table[table.stage == "report"]
        options: dict[str, Any] = {"kind": "lines", "log_y": True}
        agents = [agent for agent in (N, P, BP, EPINET, EPSILON) if agent in set(report.agent)]
        by_size = tuple(_line(report[report.agent == agent], agent, "size") for agent in agents)
        by_scale = [
            _line(rows, f"{P}, N = {rows['size'].iloc[0]}", "value")
            for stage in ("scale", "deep-scale")
            if len(rows := table[table.stage == stage])
        ]
        by_members = _line(table[table.stage == "members"], P, "members")
        made = [
            panels.Panel("by size", "episodes until learned", by_size, x_label="N", **options),
            panels.Panel("by the scale of priors", "episodes", tuple(by_scale), x_label="scale", log_x=True, **options),
            panels.Panel("by the number of members", "episodes", (by_members,), x_label="M", log_x=True, **options),
        ]
        return [panel for panel in made if any(math.isfinite(one.y) for line in panel.series for one in line.points)]


def _line(table: pd.DataFrame, name: str, column: str) -> panels.Series:
    """Returns medians with the range of seeds; the median is infinite where half did not learn, a range is not."""
    points = []
    for x, rows in table.groupby(column):
        times, limited = rows.episodes.fillna(math.inf), rows.episodes.fillna(rows.limit)
        ends = float(limited.min()), float(limited.max())
        points.append(panels.Point(float(str(x)), float(times.median()), *ends, len(rows)))
    return panels.Series(name, tuple(points))


FIGURE = _Study()
