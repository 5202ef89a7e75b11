"""Which claims a preset of a figure can decide, said before it runs.

A claim can be decided where the figure plans the rows that its estimator needs, for as many seeds (or problems, or
settings) as a verdict asks for. Whether the effect is large enough for so many seeds, only the results can tell.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tf_ensembles.benchmarks.claims.base import Claim, Row
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.base import Figure


@dataclasses.dataclass(frozen=True)
class Statement:
    """What a preset of a figure says about the claims that read the figure's table."""

    figure: Figure
    decided: tuple[str, ...]  # ids of claims
    undecided: tuple[tuple[str, str], ...]  # ids of claims, and why not

    def __str__(self) -> str:
        text = f"{self.figure.name} can decide " + (", ".join(self.decided) or "no claim")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.undecided:
            reasons.setdefault(reason, []).append(name)
        return text + "".join(f"; not {', '.join(names)}: {reason}" for reason, names in reasons.items())


def state(figure: Figure, sizes: Mapping[str, Any]) -> Statement | None:
    """Returns which claims a figure can decide; None where no claim reads it.

    Args:
        figure: the figure.
        sizes: by the ids of figures, their sizes; also of other figures that some claims read as well.
    """
    reasons = {claim.id: missing(claim, sizes) for claim in CLAIMS if claim.figure == figure.id}
    if not reasons:
        return None
    decided = tuple(name for name, reason in reasons.items() if not reason)
    return Statement(figure, decided, tuple((name, reason) for name, reason in reasons.items() if reason))


def preset_sizes(preset: str) -> dict[str, Any]:
    """Returns the sizes of all figures that have a preset, by their ids."""
    return {figure.id: figure.presets[preset] for figure in registry.figures() if preset in figure.presets}


def missing(claim: Claim, sizes: Mapping[str, Any]) -> str:
    """Returns what a claim lacks to be decided where figures have these sizes; "" where it lacks nothing."""
    names = claim.estimator.figures
    if absent := [name for name in names if name not in sizes]:
        return f"the table of {', '.join(absent)} is needed"
    planned = {name: planned_rows(registry.figure(name), sizes[name]) for name in names}
    if reason := claim.estimator.lacks(planned):
        return reason
    count = min(_sample_size(claim, rows) for rows in planned.values())
    return "" if count >= claim.min_count else f"{count} {claim.sample} of at least {claim.min_count}"


def _sample_size(claim: Claim, rows: tuple[Row, ...]) -> int:
    if claim.sample == "problems":
        return min(row["problems"] for row in rows)
    columns = ("dim", "num_data", "condition") if claim.sample == "settings" else ("seed",)
    return len({tuple(row[column] for column in columns) for row in rows})


@functools.cache
def planned_rows(figure: Figure, size: Any) -> tuple[Row, ...]:
    """Returns the rows that a figure's table has at a size, without scores: settings, seeds, agents and their kin."""
    makers = {"linear": _linear, "testbed": _testbed, "cifar10": _cifar10, "bandit": _bandit}
    return tuple(makers[figure.part](figure, size))


def _linear(figure: Any, size: Any) -> Iterator[Row]:
    for run in figure.runs_of(size):
        yield {"setting": "/".join(run.id.split("/")[:2]), **run.config}


def _testbed(figure: Any, size: Any) -> Iterator[Row]:
    from tf_ensembles.benchmarks.figures.testbed import base, runs

    if isinstance(figure, base.TunedFigure):  # What it will choose is not known, but how often it chooses is.
        choices = itertools.product(size.seeds_to_report, figure.agents, figure.flags.values())
        for setting, (seed, agent, tuning) in itertools.product(figure.settings_of(size), tuple(choices)):
            row = {**runs.setting_fields(setting), "setting": setting.id, "num_train": setting.num_train}
            members = 1 if agent in runs.POINT else size.num_members
            row |= {"seed": seed, "agent": agent, "num_members": members, "tuning": tuning}
            yield {**row, **figure.marks(row)}
        return
    for config in (run.config for stage in figure.stages(size, {}) for run in stage([])):
        if config["agent"] != runs.UNIFORM:
            setting = runs.setting_of(config)
            yield {**config, "setting": setting.id, "num_train": setting.num_train, **figure.marks(config)}


def _cifar10(figure: Any, size: Any) -> Iterator[Row]:
    largest = {agent.label: size.members(agent) for agent in figure.agents_of(size)}
    for problem, seed, label, members in itertools.product(size.problems, size.seed_range, largest, size.sizes):
        single = label == "vgg"
        if single or members <= largest[label]:
            row = {"setting": f"T{problem.num_train}", "num_train": problem.num_train, "seed": seed, "agent": label}
            begin = -1 if single and size.own_vgg else seed
            yield {**row, "num_members": 1 if single else members, "first_member": begin}


def _bandit(figure: Any, size: Any) -> Iterator[Row]:
    parts = range(-(-size.num_problems // size.part))
    for horizon, part, agent in itertools.product(size.horizons, parts, figure.agents):
        yield {"setting": f"T{horizon}", "horizon": horizon, "step": horizon, "seed": part, "agent": agent}
