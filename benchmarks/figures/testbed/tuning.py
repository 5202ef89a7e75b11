"""Chooses hyperparameters from a table of runs: the best per setting, and one for all settings.

The table has a row per (setting, agent, hyperparameters, seed). Scores are normalized by the uniform agent's score of
their setting before they are averaged over settings, so that every setting counts alike; lower is better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.figures.testbed import runs as testbed_runs
from trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

# What tells settings apart, and what tells the hyperparameters of an agent apart.
SETTING = ["input_dim", "data_ratio", "temperature", "flip"]
HYPER = ["num_members", "l2", "prior_scale", "prior_scaling"]


@dataclasses.dataclass(frozen=True)
class Choice:
    """Chosen hyperparameters: per (setting's id, agent's name), and per agent's name for all settings."""

    per_setting: dict[tuple[str, str], testbed_runs.Agent]
    overall: dict[str, testbed_runs.Agent]
    grid: pd.DataFrame  # the whole grid: mean scores, and which were chosen


def setting_ids(table: pd.DataFrame) -> list[str]:
    """Returns the setting's id of every row."""
    values = table[SETTING].itertuples(index=False)
    return [testbed_runs.make_setting(*row).id for row in values]


def normalize(table: pd.DataFrame, scores: Sequence[str] = ("kl_joint", "kl_marginal")) -> pd.DataFrame:
    """Returns the rows of agents with scores divided by the uniform agent's mean over seeds in their setting.

    A `setting` column is added and the uniform agent's own rows are left out.
    """
    table = table.assign(setting=setting_ids(table))
    uniform = table[table.agent == testbed_runs.UNIFORM].groupby("setting")[list(scores)].mean()
    agents = table[table.agent != testbed_runs.UNIFORM].copy()
    missing = sorted(set(agents.setting) - set(uniform.index))
    if missing:
        raise ValueError(f"Expected rows of the uniform agent in every setting. Received: none in {', '.join(missing)}")
    for score in scores:
        agents[score] = agents[score].to_numpy() / uniform[score].reindex(agents.setting).to_numpy()
    return agents


def choose(
    rows: Iterable[dict[str, Any]], runs: Sequence[sweep.Run], names: Sequence[str], score: str = "kl_joint"
) -> Choice:
    """Chooses the hyperparameters with the lowest mean score over the tuning seeds.

    Args:
        rows: completed runs; only those of `runs` are looked at.
        runs: the whole grid on the tuning seeds. All of it must be there: a part would favor what is missing.
        names: the agents to choose for.
        score: the column to minimize.
    """
    import pandas as pd

    wanted = {run.hash for run in runs}
    table = pd.DataFrame([row for row in rows if row["hash"] in wanted])
    if len(table) < len(wanted):
        raise ValueError(
            f"Expected all {len(wanted)} runs of the tuning grid. Received: {len(table)}; the others have not been "
            "computed or have failed"
        )
    table = normalize(table)
    table = table[table.agent.isin(names)]
    means = table.groupby(["agent", "setting", *SETTING, *HYPER], as_index=False, sort=False).agg(
        kl_joint=("kl_joint", "mean"), kl_marginal=("kl_marginal", "mean"), seeds=("seed", "nunique")
    )
    best = means.loc[means.groupby(["agent", "setting"])[score].idxmin()]
    over_all = means.groupby(["agent", *HYPER], as_index=False)[score].mean()
    best_over_all = over_all.loc[over_all.groupby("agent")[score].idxmin()]
    per_setting = {(str(row.setting), str(row.agent)): agent_of(row) for row in best.itertuples()}
    overall = {str(row.agent): agent_of(row) for row in best_over_all.itertuples()}
    means["best_in_setting"] = means.index.isin(best.index)
    means["best_overall"] = [agent_of(row) == overall[str(row.agent)] for row in means.itertuples()]
    return Choice(per_setting, overall, means)


def agent_of(row: Any) -> testbed_runs.Agent:
    """Returns the agent of a table's row."""
    return testbed_runs.Agent(
        str(row.agent), int(row.num_members), float(row.l2), float(row.prior_scale), str(row.prior_scaling)
    )
