"""Tables of the bandit experiment: regret by agent and horizon, who leads, and regret by ensemble size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.figures.bandit import runs as experiment
from benchmarks.figures.bandit.runs import Rows, Settings
from tf_ensembles.base import Array

if TYPE_CHECKING:
    import pandas as pd


def curve(rows: Rows, marks: list[int]) -> tuple[Array, Array, Array]:
    """Returns mean regret, its standard error over problems, and the means by part `[marks, parts]`."""
    rows = sorted(rows, key=lambda row: row["first_problem"])
    sizes = np.array([row["problems"] for row in rows], float)
    parts = np.array([[row[f"regret_{mark}"] for row in rows] for mark in marks])
    squares = np.array([[row[f"square_{mark}"] for row in rows] for mark in marks])
    mean, square = parts @ sizes / sizes.sum(), squares @ sizes / sizes.sum()
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0) / (sizes.sum() - 1.0)), parts


def select(rows: Rows, runs: list[Any], agent: str, values: dict[str, float], members: int | None = None) -> Rows:
    """Returns the rows of one agent among the planned runs."""
    planned = {run.hash for run in runs}
    wanted = (agent, values, members)
    return [
        row for row in rows if row["hash"] in planned and (row["agent"], row["parameters"], row["members"]) == wanted
    ]


def regret_table(settings: Settings, rows: Rows) -> pd.DataFrame:
    """Returns regret by horizon and agent, each tuned for that horizon, and the paired difference to ensemble-bp.

    `verdict` says who leads by a paired interval of 95%: differences of the means over the same parts of the problems.
    """
    import pandas as pd

    table = []
    for horizon, chosen in _chosen(settings, rows):
        base = curve(chosen[experiment.REFERENCE][1], [horizon])[2][0]
        for agent, (values, own) in chosen.items():
            mean, error, parts = curve(own, [horizon])
            gap, interval = _paired(parts[0] - base)
            table.append(
                {
                    "horizon": horizon,
                    "agent": agent,
                    **{name: values.get(name) for name in ("regularizer", "prior_scale")},
                    "regret": mean[0],
                    "standard_error": error[0],
                    "minus_bp": gap,
                    "minus_bp_95": interval,
                    "verdict": _verdict(agent, gap, interval),
                }
            )
    return pd.DataFrame(table)


def runs_table(settings: Settings, rows: Rows) -> pd.DataFrame:
    """Returns the mean regret of each part of the problems, by agent as tuned for the horizon: for paired tests.

    The same `part` of two agents is the same problems with the same reward noise.
    """
    import pandas as pd

    table = [
        {
            "agent": agent,
            "horizon": horizon,
            "part": row["first_problem"] // settings.part,
            "regret": row[f"regret_{horizon}"],
            "problems": row["problems"],
        }
        for horizon, chosen in _chosen(settings, rows)
        for agent, (_, own) in chosen.items()
        for row in sorted(own, key=lambda row: row["first_problem"])
    ]
    return pd.DataFrame(table)


def _chosen(settings: Settings, rows: Rows) -> Iterator[tuple[int, dict[str, tuple[dict[str, float], Rows]]]]:
    """Yields each horizon with, by agent, the parameters tuned for it and the rows of the reported runs with them."""
    runs = experiment.report_runs(settings, rows)
    for horizon in settings.horizons:
        tuned = {experiment.REFERENCE: {}, **experiment.best_parameters(settings, rows, horizon)}
        yield horizon, {agent: (values, select(rows, runs, agent, values)) for agent, values in tuned.items()}


def members_table(settings: Settings, rows: Rows) -> pd.DataFrame:
    """Returns final regret by the number of members (0 stands for infinitely many), with differences as above."""
    import pandas as pd

    runs, horizon = experiment.member_runs(settings), min(settings.horizon, settings.members_horizon)
    base = curve(select(rows, runs, experiment.REFERENCE, {}), [horizon])[2][0]
    table = []
    for members in (*settings.members, None):
        mean, error, parts = curve(select(rows, runs, experiment.REFERENCE, {}, members), [horizon])
        gap, interval = _paired(parts[0] - base)
        table.append(
            {
                "members": members or 0,
                "horizon": horizon,
                "regret": mean[0],
                "standard_error": error[0],
                "minus_infinite": gap,
                "minus_infinite_95": interval,
            }
        )
    return pd.DataFrame(table)


def _paired(differences: Array) -> tuple[float, float]:
    """Returns the mean difference over parts and the half width of its 95% interval, by Student's law."""
    from scipy import stats

    count = len(differences)
    if count < 2:
        return float(np.mean(differences)), float("nan")
    width = stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / np.sqrt(count)
    return float(differences.mean()), float(width)


def _verdict(agent: str, gap: float, interval: float) -> str:
    if agent == experiment.REFERENCE:
        return ""
    if not abs(gap) > interval:
        return "no difference shown"
    return "bp leads" if gap > 0 else f"{agent.removeprefix('ensemble-')} leads"
