"""What the table of a figure will hold, before anything has run: its rows at a preset, without scores.

From this a preset can say which claims it will decide, and data can be made up in which a claim holds or fails.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.figures.base import Figure

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]


@functools.cache
def design(figure: Figure, size: Any) -> pd.DataFrame:
    """Returns the rows that a figure's table has at a size: settings, seeds, agents, and what else tells them apart.

    Args:
        figure: the figure.
        size: one of its presets, or another of its kind.
    """
    import pandas as pd

    makers = {"linear": _linear, "testbed": _testbed, "cifar10": _cifar10, "bandit": _bandit}
    return pd.DataFrame(list(makers[figure.part](figure, size)))


def _linear(figure: Any, size: Any) -> Iterator[Row]:
    for run in figure.runs_of(size):
        yield {"setting": "/".join(run.id.split("/")[:2]), **run.config}


def _testbed(figure: Any, size: Any) -> Iterator[Row]:
    from benchmarks.figures.testbed import base, runs

    if not isinstance(figure, base.TunedFigure):
        # Nothing is chosen on the way, so that all runs are known.
        for stage in figure.stages(size, {}):
            for config in (run.config for run in stage([]) if run.config["agent"] != runs.UNIFORM):
                setting = runs.setting_of(config)
                yield {**config, "setting": setting.id, "num_train": setting.num_train, **figure.marks(config)}
        return
    tunings = list(figure.flags.values())
    for setting, seed, agent in itertools.product(figure.settings_of(size), size.seeds_to_report, figure.agents):
        row = {**runs.setting_fields(setting), "setting": setting.id, "num_train": setting.num_train}
        members = 1 if agent in runs.POINT else size.num_members
        for tuning in tunings:
            yield {
                **row,
                **{"seed": seed, "agent": agent, "num_members": members, "tuning": tuning},
                **figure.marks(row),
            }


def _cifar10(figure: Any, size: Any) -> Iterator[Row]:
    largest = {agent.label: size.members(agent) for agent in figure.agents_of(size)}
    for problem, seed, label, members in itertools.product(size.problems, size.seed_range, largest, size.sizes):
        row = {"setting": f"T{problem.num_train}", "num_train": problem.num_train, "seed": seed, "agent": label}
        single = label == "vgg"
        if not single and members > largest[label]:
            continue
        yield {**row, "num_members": 1 if single else members, "first_member": -1 if single and size.own_vgg else seed}


def _bandit(figure: Any, size: Any) -> Iterator[Row]:
    if not hasattr(figure, "agents"):
        return  # Finite ensembles: no claim reads them.
    parts = range(-(-size.num_problems // size.part))
    for horizon, part, agent in itertools.product(size.horizons, parts, figure.agents):
        yield {"setting": f"T{horizon}", "horizon": horizon, "step": horizon, "seed": part, "agent": agent}
