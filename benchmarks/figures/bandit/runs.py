"""The bandit experiment as sweeps of runs: tuning on problems of its own, then regret on the reported ones.

A run is one agent with its parameters on one part of the problems. Parts are what differences between agents are paired
over. Rows hold regret at fixed numbers of steps, so that one run tells about all shorter horizons too.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tf_ensembles.trainers.sweeps import kinds, sweep
from tf_ensembles.trainers.sweeps.sweep import Run

Rows = Sequence[dict[str, Any]]
KIND = kinds.register("bandit", "tf_ensembles.benchmarks.figures.bandit.runs:compute")
HORIZONS = (100, 200, 500, 1000, 2000, 5000, 10_000)
TUNED = ("ensemble-n", "ensemble-p", "ensemble-p-weighted")
REFERENCE = "ensemble-bp"
# Only lambda / nu and the prior scale matter to n and p, so nu is fixed to 1 for them.
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "ensemble-n": {"noise_variance": (1.0,), "regularizer": (1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)},
    "ensemble-p": {
        "noise_variance": (1.0,),
        "regularizer": (0.1, 0.3, 1.0, 3.0, 10.0),
        "prior_scale": (0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 20.0, 30.0),
    },
    "ensemble-p-weighted": {
        "regularizer": (0.1, 0.3, 1.0, 3.0, 10.0),
        "prior_scale": (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0),
    },
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to run; the defaults are the reported experiment."""

    num_problems: int = 100_000
    tuning_problems: int = 10_000
    part: int = 500  # problems per run
    horizon: int = 10_000
    num_actions: int = 4
    dim: int = 2
    prior_scale: float = 1.0
    seed: int = 0
    members: tuple[int, ...] = (1, 3, 10, 30, 100, 300)  # sizes of finite ensembles
    members_horizon: int = 500

    def __post_init__(self) -> None:
        for name in ("num_problems", "tuning_problems", "part", "horizon", "num_actions", "dim", "members_horizon"):
            if getattr(self, name) < 1:
                raise ValueError(f"Expected {name} >= 1. Received: {getattr(self, name)}")
        if self.prior_scale <= 0.0:
            raise ValueError(f"Expected prior_scale > 0. Received: {self.prior_scale}")
        if any(m < 1 for m in self.members):
            raise ValueError(f"Expected members >= 1. Received: {self.members}")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"Expected a seed in [0, 2**31). Received: {self.seed}")

    @property
    def horizons(self) -> tuple[int, ...]:
        """The horizons of the table: round numbers up to the horizon, and the horizon."""
        return tuple(sorted({h for h in HORIZONS if h < self.horizon} | {self.horizon}))


PRESETS = {
    "quick": Settings(num_problems=4000, tuning_problems=500, part=200, horizon=2000, members=()),
    "standard": Settings(),
    "paper": Settings(),  # The paper does not state its sizes.
}


def make_marks(horizon: int, extra: Sequence[int] = ()) -> list[int]:
    """Returns the numbers of steps at which regret is kept: about 60, evenly and by ratio, and `extra`."""
    even = np.linspace(0, horizon, 41)[1:]
    ratio = np.geomspace(1, horizon, 25)
    made = {max(1, round(float(mark))) for mark in (*even, *ratio)}
    return sorted(made | {mark for mark in extra if mark <= horizon})


def compute(config: dict[str, Any]) -> dict[str, float]:
    """Runs one agent on one part; returns `regret_T` and the mean square `square_T` over its problems for marks T."""
    from tf_ensembles.bandit_env import rollout, thompson

    marks = make_marks(config["horizon"], config["horizons"])
    result = rollout.run_bandit(
        config["agent"],
        config["problems"],
        config["horizon"],
        config["num_actions"],
        config["dim"],
        config["s0"],
        config["seed"],
        num_members=config["members"],
        parameters=thompson.AgentParameters(**config["parameters"]),
        marks=marks,
        first_problem=config["first_problem"],
    )
    row: dict[str, float] = {}
    for mark, regret in zip(marks, result.problem_regret, strict=True):
        row[f"regret_{mark}"], row[f"square_{mark}"] = float(regret.mean()), float(np.mean(regret**2))
    return row


def tuning_runs(settings: Settings) -> list[Run]:
    """Returns the runs of the grids, on problems that no other run sees."""
    runs = []
    for agent, grid in GRIDS.items():
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            runs += _parts(settings, "tune", agent, chosen, settings.tuning_problems, settings.seed + 2**31)
    return runs


def best_parameters(settings: Settings, rows: Rows, horizon: int) -> dict[str, dict[str, float]]:
    """Returns each tuned agent's parameters of lowest regret at a horizon, from the rows of `tuning_runs`."""
    wanted = {run.hash for run in tuning_runs(settings)}
    scores: dict[str, dict[tuple[tuple[str, float], ...], list[float]]] = {agent: {} for agent in TUNED}
    for row in rows:
        if row["hash"] in wanted:
            key = tuple(sorted(row["parameters"].items()))
            scores[row["agent"]].setdefault(key, []).append(row[f"regret_{horizon}"])
    if not all(scores.values()):
        raise ValueError("Expected the rows of the tuning runs. Received: an agent without any")
    means = {agent: {key: float(np.mean(kept)) for key, kept in found.items()} for agent, found in scores.items()}
    return {agent: dict(min(found.items(), key=lambda item: item[1])[0]) for agent, found in means.items()}


def report_runs(settings: Settings, rows: Rows) -> list[Run]:
    """Returns the runs on the reported problems: ensemble-bp, and each agent as tuned for any horizon of the table."""
    configs: dict[tuple[str, str], dict[str, float]] = {(REFERENCE, "{}"): {}}
    for horizon in settings.horizons:
        for agent, values in best_parameters(settings, rows, horizon).items():
            configs[agent, str(values)] = values
    runs = []
    for (agent, _), values in configs.items():
        runs += _parts(settings, "report", agent, values, settings.num_problems, settings.seed)
    return runs


def member_runs(settings: Settings) -> list[Run]:
    """Returns the runs of finite ensembles of each size, and of the infinite one, with bootstrap and prior."""
    horizon = min(settings.horizon, settings.members_horizon)
    short = dataclasses.replace(settings, horizon=horizon)
    runs = []
    for members in (None, *settings.members):
        runs += _parts(short, "members", REFERENCE, {}, settings.num_problems, settings.seed, members)
    return runs


def _parts(
    settings: Settings,
    stage: str,
    agent: str,
    values: dict[str, float],
    num_problems: int,
    seed: int,
    members: int | None = None,
) -> list[Run]:
    named = "-".join(f"{name}{value:g}" for name, value in values.items()) or "table2"
    size = "" if members is None else f"/m{members}"
    where = f"d{settings.dim}-n{settings.num_actions}-s{settings.prior_scale:g}-t{settings.horizon}"
    runs = []
    for first in range(0, num_problems, settings.part):
        config = {
            "agent": agent,
            "parameters": values,
            "problems": min(settings.part, num_problems - first),
            "first_problem": first,
            "horizon": settings.horizon,
            "horizons": list(settings.horizons),
            "num_actions": settings.num_actions,
            "dim": settings.dim,
            "s0": settings.prior_scale,
            "seed": seed,
            "members": members,
        }
        name = f"bandit/{where}/{stage}/{agent}/{named}{size}/seed{seed}-problem{first}"
        runs.append(sweep.make_run(name, KIND, config, group=f"{agent == REFERENCE}-{members}", cost=1.0))
    return runs
