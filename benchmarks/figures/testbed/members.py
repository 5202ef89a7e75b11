"""Testbed: KL against the number of members. No figure of the paper; it answers how many are enough, and for what.

Every agent trains as many members as the largest ensemble has; smaller ones are its first members. The claims: joint
predictions gain from members long after marginal ones have stopped to, and prior functions the more, the more there
are, as the paper says of figures 3 and 4.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import NOT_STATED, Rows
from tf_ensembles.benchmarks.figures.testbed import base, runs
from tf_ensembles.benchmarks.figures.testbed.base import BP, N, P
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run

KIND = kinds.register("testbed-members", "tf_ensembles.benchmarks.figures.testbed.members:train_and_score_sizes")
AGENTS = (N, P, BP)


@dataclasses.dataclass(frozen=True)
class Size(runs.Size):
    """How large the figure is made."""

    members: tuple[int, ...] = ()  # sizes of ensembles
    input_dims: tuple[int, ...] = ()


def make_size(
    members: tuple[int, ...], seeds: int, dims: tuple[int, ...], ratios: tuple[float, ...], **options: Any
) -> Size:
    """Returns a size; nothing is tuned."""
    return Size(max(members), 0, 0, seeds, ratios, members=members, input_dims=dims, **options)


def make_runs(size: Size, seeds: Sequence[int]) -> list[Run]:
    """Returns every agent at every size, and the uniform agent, in every setting; those of a problem together."""
    made = []
    largest = size.num_members
    agents = [(runs.UNIFORM, 1), *itertools.product(AGENTS, size.members)]
    for seed, dim, ratio in itertools.product(seeds, size.input_dims, size.data_ratios):
        setting = runs.make_setting(dim, ratio, 0.1)
        for agent, count in agents:
            config = {
                **runs.setting_fields(setting),
                "agent": agent,
                "num_members": count,
                "trained": largest,
                "num_steps": size.num_steps,
                "num_batches": size.num_batches,
                "seed": seed,
            }
            made.append(
                sweep_runs.make_run(
                    f"testbed-members/{setting.id}/{agent}-m{count}of{largest}/seed{seed}",
                    KIND,
                    config,
                    group=f"d{dim}-b{min(100, setting.num_train)}",
                    batch=f"{setting.id}/seed{seed}",
                    cost=count * (50 * dim + 2600),
                )
            )
    return made


def train_and_score_sizes(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Trains the agents on one problem, each with all its members, and scores the first so many of them."""
    from tf_ensembles import testbed
    from tf_ensembles.trainers import agents

    first = configs[0]
    problem = runs.make_problem(first)
    names = [name for name in AGENTS if name in {config["agent"] for config in configs}]
    asked = [
        agents.make_config(name, num_members=first["trained"], num_steps=first["num_steps"], seed=first["seed"])
        for name in names
    ]
    trained = agents.train_many(asked, problem.train, problem.prior_knowledge, num_workers=1) if asked else []
    predictives = dict(zip(names, trained, strict=True))
    results = []
    for config in configs:
        if config["agent"] == runs.UNIFORM:
            predictive = testbed.uniform_agent(problem.train, problem.prior_knowledge)
        else:
            predictive = functools.partial(_first_members, predictives[config["agent"]], config["num_members"])
        quality = testbed.evaluate(predictive, problem, num_batches=config["num_batches"])
        results.append(dataclasses.asdict(quality))
    return results


def _first_members(predictive: Any, count: int, x: Any) -> Any:
    return predictive(x)[:, :count]


class _Figure(base.UntunedFigure):
    id, name, sweep, place = "M", "testbed_members", "testbed_members", (5.1, 20)
    title = "How many members: KL against the size of the ensemble"
    about = (
        "Neural Testbed, temperature 0.1, the public code's hyperparameters: the first M of the members of each agent."
    )
    paper = {name: NOT_STATED for name in ("members", "reported seeds", "input dimensions d", "T / d")}
    full_size = "The paper shows no such figure for the testbed; its ensembles there have 100 members."
    seeds_per_stage = 2
    apart = {"num_members": "M = {}"}
    presets = {
        "quick": make_size((1, 3, 10, 30), 5, (10,), (1.0, 10.0), num_batches=300),
        "standard": make_size((1, 3, 10, 30, 100), 10, (2, 10), (1.0, 10.0, 100.0)),
        "paper": make_size((1, 3, 10, 30, 100, 300), 100, (2, 10, 100), (1.0, 10.0, 100.0, 1000.0)),
    }

    def runs_of(self, size: Size, seeds: range) -> list[Run]:
        return make_runs(size, seeds)

    def collect(self, size: Size, rows: Rows) -> dict[str, pd.DataFrame]:
        table = base.rows_of(rows, make_runs(size, size.seeds_to_report))
        # These agents have the public code's hyperparameters; the columns are those that other testbed tables have.
        with_prior = table.agent.isin([P, BP])
        table = table.assign(l2=1.0, prior_scale=with_prior * 3.0, prior_scaling="1/sqrt(rho)")
        return {f"{self.name}_runs": base.slim(table)}

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns both scores along M, and what prior functions gain."""
        options: dict[str, Any] = {"kind": "lines", "x_label": "members M", "log_x": True}
        made = [
            panels.Panel(name, base.RELATIVE, panels.mean_lines(table, score, AGENTS, "num_members"), **options)
            for score, name in base.SCORES.items()
        ]
        gain = panels.gain_line(table, "kl_joint", P, N, "num_members")
        title = "joint KL: gain of prior functions"
        return [*made, panels.Panel(title, "n minus p", (gain,), reference=0.0, **options)]

    def differences(self, table: pd.DataFrame) -> list[tuple[str, str, stats.Interval]]:
        """Returns, for each agent and score, the largest ensemble against one of a tenth of its members, about."""
        sizes = sorted(set(table.num_members))
        small = max((size for size in sizes if 10 * size <= sizes[-1]), default=sizes[0])
        found = []
        for score, name in base.SCORES.items():
            for agent in AGENTS:
                rows = table[(table.agent == agent) & table.num_members.isin([small, sizes[-1]])]
                named = rows.assign(agent=rows.num_members.astype(str))
                values = stats.paired(named, score, str(sizes[-1]), str(small))
                found.append((name, f"{agent}, M = {sizes[-1]} against {small}", stats.relative_difference(*values)))
        return found


FIGURE = _Figure()
