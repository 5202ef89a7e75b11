"""In which order the runs of a CIFAR10 figure are made: some seeds at a time, what prior scales are chosen by first."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

from tf_ensembles.benchmarks.figures.cifar10 import runs
from tf_ensembles.trainers.sweeps import sweep

# Members that are trained before their ensembles are scored, about: many enough for many workers.
_PIECE_MEMBERS = 50


def stages(
    size: runs.Size, make_agents: runs.MakeAgents, context: runs.Context | None = None
) -> list[Callable[[runs.Rows], list[sweep.Run]]]:
    """Returns, for one training set after the other, the training of members and the scoring of their ensembles.

    Some seeds at a time, so that a sweep that is cut short has whole seeds. Where prior scales are tuned, that comes
    first, for all training sets, some candidates at a time. Members of ensembles that are scored are not asked for:
    their files may be gone.
    """

    def train(mine: runs.Size, number: int, seeds: range, part: slice, rows: runs.Rows) -> list[sweep.Run]:
        problem, agents = mine.problems[number], runs.agents_of(mine, make_agents, rows)[number][part]
        scored = {row["hash"] for row in rows}
        made = []
        for seed in seeds:
            left = [
                agent
                for agent in agents
                if any(one.run.hash not in scored for one in runs.ensembles(problem, [agent], mine, seed))
            ]
            made += runs.member_runs(problem, left, mine, seed, context)
        return made

    def score(mine: runs.Size, number: int, seeds: range, part: slice, rows: runs.Rows) -> list[sweep.Run]:
        problem, agents = mine.problems[number], runs.agents_of(mine, make_agents, rows)[number][part]
        return [one.run for seed in seeds for one in runs.ensembles(problem, agents, mine, seed, context)]

    return [
        functools.partial(step, mine, number, seeds, part)
        for mine in _sizes(size)
        for number in range(len(mine.problems))
        for seeds, part in _pieces(mine, make_agents)
        for step in (train, score)
    ]


def all_runs(size: runs.Size, make_agents: runs.MakeAgents, rows: runs.Rows) -> list[sweep.Run]:
    """Returns every training and every scoring behind a figure, whatever is left of its members."""
    found = []
    for mine in _sizes(size):
        for problem, agents in zip(mine.problems, runs.agents_of(mine, make_agents, rows), strict=True):
            for seed in mine.seed_range:
                found += runs.member_runs(problem, agents, mine, seed)
                found += [one.run for one in runs.ensembles(problem, agents, mine, seed)]
    return found


def _sizes(size: runs.Size) -> list[runs.Size]:
    """What prior scales are chosen by, if they are, and what is reported."""
    return [size] if size.tuning is None else [runs.tuning_size(size), size]


def _pieces(size: runs.Size, make_agents: runs.MakeAgents) -> list[tuple[range, slice]]:
    """Returns the seeds and agents whose ensembles are made at a time: all agents of some seeds, or some candidates."""
    if size.first_seed == runs.TUNING_SEED:
        count, seeds = len(runs.agents_of(size, make_agents, [])[0]), size.seed_range
        step = max(1, _PIECE_MEMBERS // (size.num_members * size.seeds))
        return [(seeds, slice(start, start + step)) for start in range(0, count, step)]
    agents = make_agents(size if size.tuning is None else dataclasses.replace(size, prior_scales=size.prior_scales[:1]))
    per_seed = sum(len(runs.members_of(agent, size, 0)) for agent in agents)
    step = max(1, _PIECE_MEMBERS // per_seed)
    return [(size.seed_range[start : start + step], slice(None)) for start in range(0, size.seeds, step)]
