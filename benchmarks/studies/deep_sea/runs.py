"""The study as runs of a sweep: the choice first, then what is most telling, larger sizes last.

A run is an agent at a size with all seeds. A killed sweep goes on with the run that it was in.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.studies.deep_sea import preset
from benchmarks.studies.deep_sea.preset import BP, EPINET, EPSILON, N, P, Preset
from trainers.sweeps import kinds, sweep

KIND = kinds.register("deep-sea", "benchmarks.studies.deep_sea.runs:compute")
_EPISODES = 50  # between two looks at whether all have learned


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run of the sweep: the learning time of each seed, NaN where the limit came first."""
    from bandit_env.dqn import environments, training

    size, limit = config["size"], config["limit"]
    agent = training.make_agent(config["agent"], config["members"], config["value"], config["value"])
    found: dict[str, float] = {}
    seeds, at_once = list(config["seeds"]), 10 if agent.num_members == 1 else 1
    for first in range(0, len(seeds), at_once):
        run = training.Run(agent, environments.DeepSea(size), seeds[first : first + at_once], num_workers=1)
        times = np.array([np.nan])
        while np.isnan(times).any() and run.num_steps < limit * size:
            left = limit - run.num_steps // size
            # As many episodes as there were: looks cost little then, and a late seed at most doubles the work.
            run.advance(size * min(left, max(_EPISODES, run.num_steps // size // 2)))
            times = run.result().learning_times(preset.SHARE, preset.LEAST)
        found |= {f"episodes_{seed}": float(time) for seed, time in zip(run.seeds, times, strict=True)}
    return found


def make_run(agent: str, size: int, value: float, members: int, limit: int, seeds: Sequence[int], stage: str) -> Any:
    """Returns one run; `value` is epsilon, or the scale of priors, or 0."""
    config: dict[str, Any] = {"agent": agent, "size": size, "value": value, "members": members, "limit": limit}
    name = f"deep-sea/{stage}/{agent}/size{size}-value{value:g}-members{members}/seed{seeds[0]}"
    cost = float(limit * size**3 * (members if agent != EPSILON else 1))
    return sweep.make_run(name, KIND, {**config, "seeds": list(seeds), "stage": stage}, cost=cost)


def _members(size: Preset, agent: str) -> int:
    """Returns the members of an agent, or its indices per update."""
    return size.num_indices if agent == EPINET else size.num_members


def choice_runs(size: Preset) -> list[Any]:
    """Returns the runs to choose by."""
    runs = []
    for agent, values, at in (
        (EPSILON, size.epsilons, size.greedy_choice_size),
        (P, size.scales, size.choice_size),
        (BP, size.scales, size.choice_size),
        (EPINET, size.index_scales, size.choice_size),
    ):
        limit = {EPSILON: 5000, EPINET: size.limit(EPINET, at)}.get(agent, 25 * at)
        runs += [make_run(agent, at, v, _members(size, agent), limit, size.choice_seeds, "choice") for v in values]
    return runs


def chosen(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the value of each agent with the lowest mean learning time, in rows of the choice."""
    best: dict[str, tuple[float, float]] = {N: (0.0, 0.0)}
    for row in rows:
        times = np.array([row[f"episodes_{seed}"] for seed in row["seeds"]], float)
        found = (float(np.where(np.isnan(times), 2.0 * row["limit"], times).mean()), row["value"])
        best[row["agent"]] = min(best.get(row["agent"], found), found)
    return {agent: value for agent, (_, value) in best.items()}


def report_runs(size: Preset, values: dict[str, float]) -> list[list[Any]]:
    """Returns the reported runs in stages, the most telling first; epsilon-greedy's middle and large sizes last."""
    sizes = {EPSILON: size.greedy_sizes, N: size.plain_sizes, P: size.sizes, BP: size.sizes, EPINET: size.plain_sizes}

    def at(agent: str, low: int, high: int | None = None) -> list[Any]:
        return [
            make_run(agent, one, values[agent], _members(size, agent), size.limit(agent, one), size.seeds, "report")
            for one in sizes[agent]
            if low <= one <= (high or low)
        ]

    where, limit = size.sensitivity_size, size.limit(P, size.sensitivity_size) // 2
    scales = [make_run(P, where, v, size.num_members, limit, size.seeds, "scale") for v in size.sensitivity_scales]
    members = [make_run(P, where, values[P], m, limit, size.seeds, "members") for m in size.sensitivity_members]
    deep, longer = size.deep_size, size.limit(P, size.deep_size) // 2
    deep_scales = [make_run(P, deep, v, size.num_members, longer, size.seeds, "deep-scale") for v in size.deep_scales]
    return [
        at(P, 20) + at(EPSILON, 20),
        at(P, 0, 15) + at(N, 15),
        scales + members,
        at(N, 20) + deep_scales + at(BP, 0, 15),
        at(BP, 20) + at(EPSILON, 0, 10),
        at(N, 0, 12) + at(EPSILON, 11, 19),
        at(P, 21, 29) + at(BP, 21, 29),
        at(P, 30, 1000) + at(BP, 30, 1000),
        at(EPINET, 0, 1000),
    ]


def execute(size: Preset, out: pathlib.Path, num_workers: int | None) -> bool:
    """Runs what is missing, and returns whether all is there."""
    with sweep.Sweep(out, num_workers=num_workers, show=True) as ours:

        def run(runs: list[Any]) -> bool:
            report = ours.execute(runs)
            return not (report.left or report.failed)

        choice = choice_runs(size)
        if not run(choice):
            return False
        values = chosen([ours.store.rows[one.hash] for one in choice])
        return all(run(stage) for stage in report_runs(size, values))


def read(out: pathlib.Path) -> list[dict[str, Any]]:
    """Returns a row for each seed of each finished run of a folder; of runs with several limits, the largest."""
    from trainers.sweeps import store

    names = ("stage", "agent", "size", "value", "members")
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in store.read_results(out):
        key = tuple(run[name] for name in names)
        if key not in latest or latest[key]["limit"] < run["limit"]:
            latest[key] = run
    order = sorted(latest, key=lambda key: (key[0], preset.AGENTS.index(key[1]), *key[2:]))
    return [
        {
            **{name: latest[key][name] for name in (*names, "limit")},
            "seed": seed,
            "episodes": latest[key][f"episodes_{seed}"],
        }
        for key in order
        for seed in latest[key]["seeds"]
    ]
