"""Chooses hyperparameters from a table of runs: the best per setting, and one for all settings.

The table has a row per (setting, agent, hyperparameters, seed). Scores are normalized by the uniform agent's score of
their setting before they are averaged over settings, so that every setting counts alike; lower is better.

Other tuning seeds might have chosen otherwise. Candidates that are within one standard error of the best, of their
difference to it seed by seed, are near-ties: they are reported beside it, so that a comparison can be made for what
might as well have been chosen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs
from tf_ensembles.trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

# What tells settings apart, and what tells the hyperparameters of an agent apart.
SETTING = ["input_dim", "data_ratio", "temperature", "flip"]
HYPER = ["num_members", "l2", "prior_scale", "prior_scaling"]
# Candidates that are reported for an agent, at most: the best and its nearest near-ties.
MOST_REPORTED = 3


@dataclasses.dataclass(frozen=True)
class Choice:
    """Chosen hyperparameters: per (setting's id, agent's name), and per agent's name for all settings."""

    per_setting: dict[tuple[str, str], testbed_runs.Agent]
    overall: dict[str, testbed_runs.Agent]
    near_per_setting: dict[tuple[str, str], list[testbed_runs.Agent]]  # near-ties, the nearest first
    near_overall: dict[str, list[testbed_runs.Agent]]
    grid: pd.DataFrame  # the whole grid: mean scores, those of every tuning seed, and which are reported


def setting_ids(table: pd.DataFrame) -> list[str]:
    """Returns the setting's id of every row: the second part of the run's."""
    return [str(run_id).split("/")[1] for run_id in table.id]


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
    of_setting = {
        (str(setting), str(name)): near_ties(mine, score, mine.temperature.iloc[0])
        for (setting, name), mine in table.groupby(["setting", "agent"], sort=False)
    }
    of_all = {str(name): near_ties(mine, score) for name, mine in table.groupby("agent", sort=False)}
    agents = [agent_of(row) for row in means.itertuples()]
    in_setting = [of_setting[key] for key in zip(means.setting, means.agent, strict=True)]
    overall = [of_all[name] for name in means.agent]
    for name, reported in (("in_setting", in_setting), ("overall", overall)):
        means[f"best_{name}"] = [agent == best[0] for agent, best in zip(agents, reported, strict=True)]
        means[f"near_{name}"] = [agent in best[1:] for agent, best in zip(agents, reported, strict=True)]
    keys = ["agent", "setting", *HYPER]
    by_seed = table.pivot_table(index=keys, columns="seed", values=score).add_prefix(f"{score}_").reset_index()
    return Choice(
        {key: best[0] for key, best in of_setting.items()},
        {key: best[0] for key, best in of_all.items()},
        {key: best[1:] for key, best in of_setting.items()},
        {key: best[1:] for key, best in of_all.items()},
        means.merge(by_seed, on=keys),
    )


def near_ties(table: pd.DataFrame, score: str, temperature: float | None = None) -> list[testbed_runs.Agent]:
    """Returns an agent's best candidate and those within one standard error of it, the best first; `MOST_REPORTED`.

    With one tuning seed there is no error, and so there are no near-ties.

    Args:
        table: an agent's rows of the tuning seeds; of several settings, they are averaged, seed by seed.
        score: the column to minimize.
        temperature: of the one setting that there is. Prior scales that are the same there are one candidate.
    """
    by_seed = table.groupby(["seed", *HYPER], sort=False)[score].mean().unstack(HYPER)
    means = by_seed.mean().sort_values(kind="stable")
    gaps = by_seed.sub(by_seed[means.index[0]], axis=0)
    errors = gaps.std(ddof=1) / len(gaps) ** 0.5
    near: dict[object, testbed_runs.Agent] = {}
    for key in means.index:
        if key == means.index[0] or gaps[key].mean() <= errors[key]:
            members, l2, scale, scaling = key
            agent = testbed_runs.Agent(str(table.agent.iloc[0]), int(members), float(l2), float(scale), str(scaling))
            same = agent if temperature is None else (agent.l2, round(prior_scale(agent, temperature), 9))
            near.setdefault(same, agent)
    return list(near.values())[:MOST_REPORTED]


def prior_scale(agent: testbed_runs.Agent, temperature: float) -> float:
    """Returns the scale of the prior function's logits at a temperature."""
    power = 0.5 if "sqrt" in agent.prior_scaling else 1.0
    return agent.prior_scale / temperature**power


def agent_of(row: Any) -> testbed_runs.Agent:
    """Returns the agent of a table's row."""
    return testbed_runs.Agent(
        str(row.agent), int(row.num_members), float(row.l2), float(row.prior_scale), str(row.prior_scaling)
    )
