"""What the figures on the Neural Testbed share: scores over the uniform agent's, tuning, settings, captions."""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tf_ensembles.benchmarks.figures import base
from tf_ensembles.benchmarks.figures.base import Rows, Stage
from tf_ensembles.benchmarks.figures.panels import TextTable
from tf_ensembles.benchmarks.figures.tables import Tables, finite
from tf_ensembles.benchmarks.figures.testbed import runs, tuning
from tf_ensembles.benchmarks.stats import NoDataError
from tf_ensembles.benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles import testbed
    from tf_ensembles.trainers.sweeps.runs import Run

N, P, BP, MLP = "ensemble-n", "ensemble-p", "ensemble-bp", "mlp"
SCORES = {"kl_marginal": "marginal KL", "kl_joint": "joint KL of 10 labels"}
TUNED_PAPER = {"members": "100", "tuned on": "the reported seeds", "weight decays tried": "0.1, 0.3, 1, 3, 10"}
RELATIVE = "relative to a uniform guess"

_KEPT = ["kl_marginal", "kl_marginal_error", "kl_joint", "kl_joint_error", "accuracy", "ece", "wall_seconds"]


class TestbedFigure(base.Figure):
    """A figure on the Neural Testbed: a row of its table has scores divided by the uniform agent's in the setting."""

    part = "testbed"
    scores = SCORES

    def normalized(self, tables: Tables, name: str) -> pd.DataFrame:
        """Returns a kept table of runs with scores over the uniform agent's and a `setting` column."""
        columns = ("id", *tuning.SETTING, *tuning.HYPER, "agent", "seed", *SCORES)
        table = tuning.normalize(finite(tables.read(f"testbed/{name}.csv", columns), list(SCORES)))
        return table.assign(num_train=(table.input_dim * table.data_ratio).round().astype(int))

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs of the reporting seeds."""
        return self.normalized(tables, f"{self.name}_runs")

    def marks(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns what the table says of a row beside its setting and agent, such as the kind of noise."""
        return {}

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns sizes, seeds and settings."""
        return used(tables.of(self))

    def shown(self, tables: Tables) -> str:
        """Says in a caption what scores are."""
        used = self.used(tables)
        return (
            f"Mean over settings (temperature {used['temperatures']}; d = {used['input dimensions d']}; "
            f"T / d = {used['T / d']}), each divided by the uniform agent's score."
        )

    def caption(self, tables: Tables) -> str:
        """Returns what scores are, how many seeds and members there are, what the intervals are."""
        used = self.used(tables)
        return (
            f"{self.shown(tables)} {used['reported seeds']} seeds; {used['members']} members. Intervals: 95%, over "
            "seeds, the same problems for all agents."
        )


class UntunedFigure(TestbedFigure):
    """A figure whose runs are known from the start."""

    seeds_per_stage: ClassVar[int] = 5

    @abc.abstractmethod
    def runs_of(self, size: Any, seeds: range) -> list[Run]:
        """Returns the runs of some seeds."""

    def stages(self, size: Any, context: Mapping[str, Any]) -> list[Stage]:
        """Returns everything, some seeds at a time."""

        def some(seeds: range, rows: Rows) -> list[Run]:
            return self.runs_of(size, seeds)

        return [functools.partial(some, piece) for piece in size.reporting_pieces(self.seeds_per_stage)]

    def collect(self, size: Any, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns the runs."""
        return {f"{self.name}_runs": slim(rows_of(rows, self.runs_of(size, size.seeds_to_report)))}


class TunedFigure(TestbedFigure):
    """A figure whose agents have hyperparameters chosen on seeds that it does not report."""

    agents: ClassVar[Sequence[str]]
    grid: ClassVar[str]  # the name of the table of all hyperparameters that were tried
    flags: ClassVar[Mapping[str, str]] = {"best_in_setting": "per setting"}  # columns of it that say what was chosen
    seeds_per_stage: ClassVar[int] = 5

    @abc.abstractmethod
    def settings_of(self, size: runs.Size) -> list[testbed.Setting]:
        """Returns the kinds of problems."""

    def chosen_agents(self, choice: tuning.Choice, setting: testbed.Setting) -> list[runs.Agent]:
        """Returns the agents that are reported in a setting."""
        return [choice.per_setting[setting.id, name] for name in self.agents]

    def near_agents(self, choice: tuning.Choice, setting: testbed.Setting) -> list[runs.Agent]:
        """Returns the near-ties of those agents."""
        return [agent for name in self.agents for agent in choice.near_per_setting[setting.id, name]]

    def choose(self, rows: Rows, grid: Sequence[Run]) -> tuning.Choice:
        """Chooses hyperparameters from the rows of the grid."""
        return tuning.choose(rows, grid, self.agents)

    def tuning_runs(self, size: runs.Size) -> list[Run]:
        """Returns the grid of hyperparameters on the tuning seeds."""
        mine, agents = self.settings_of(size), runs.grid(self.agents, size)
        return runs.make_runs(mine, {setting.id: agents for setting in mine}, size.seeds_to_tune, size)

    def reporting_runs(self, size: runs.Size, choice: tuning.Choice, seeds: range, near: bool = True) -> list[Run]:
        """Returns the chosen agents on reporting seeds, with their near-ties or without."""
        mine, agents = self.settings_of(size), {}
        for setting in mine:
            wanted = self.chosen_agents(choice, setting) + (self.near_agents(choice, setting) if near else [])
            agents[setting.id] = [runs.enlarge(agent, size) for agent in wanted]
        return runs.make_runs(mine, agents, seeds, size)

    def stages(self, size: runs.Size, context: Mapping[str, Any]) -> list[Stage]:
        """Returns the grid on tuning seeds, then the chosen agents on reporting seeds, some seeds at a time."""
        grid = self.tuning_runs(size)

        def tune(rows: Rows) -> list[Run]:
            return grid

        def report_on(seeds: range, rows: Rows) -> list[Run]:
            return self.reporting_runs(size, self.choose(rows, grid), seeds)

        return [tune, *(functools.partial(report_on, piece) for piece in size.reporting_pieces(self.seeds_per_stage))]

    def collect(self, size: runs.Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns the runs of the reporting seeds, those of near-ties apart, and the whole grid of the tuning seeds."""
        choice = self.choose(rows, self.tuning_runs(size))
        raw = rows_of(rows, self.reporting_runs(size, choice, size.seeds_to_report))
        chosen = {run.hash for run in self.reporting_runs(size, choice, size.seeds_to_report, near=False)}
        best, near = (slim(raw[raw.hash.isin(chosen) == wanted]) for wanted in (True, False))
        return {f"{self.name}_runs": best, f"{self.name}_near_runs": near, self.grid: choice.grid}

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns sizes, seeds and settings, and what was tried to tune."""
        if not tables.has(f"testbed/{self.grid}.csv"):
            return super().used(tables)
        tried = tables.read(f"testbed/{self.grid}.csv")
        scales = tried.loc[tried.agent.isin([P, BP]), ["prior_scale", "prior_scaling"]].drop_duplicates()
        count = int(tried.seeds.max())
        return {
            **super().used(tables),
            "tuned on": f"{count} other seed{'s' if count > 1 else ''}",
            "weight decays tried": listing(tried.l2),
            "prior scales tried": f"{len(scales)}",
        }

    def chosen(self, tables: Tables) -> TextTable | None:
        """Returns the hyperparameters of every agent and setting."""
        grid = tables.read(f"testbed/{self.grid}.csv")
        rows = []
        for flag, how in self.flags.items():
            best = grid[grid[flag].astype(bool)]
            if flag == "best_overall":
                best = best.drop_duplicates("agent").assign(setting="all settings")
            for row in best.to_dict("records"):
                with_prior = str(row["agent"]) in (P, BP)
                scale = f"{row['prior_scale']:g} x {row['prior_scaling']}" if with_prior else "–"
                rows.append([how, str(row["setting"]), str(row["agent"]), f"{row['l2']:g}", scale])
        return ["tuned", "setting", "agent", "weight decay", "prior scale"], rows

    def kept_tables(self, tables: Tables) -> list[tuple[str, str]]:
        """Returns the names of the tables of runs that the figure shows, each with that of its grid."""
        return [(f"{self.name}_runs", self.grid)]

    def caption(self, tables: Tables) -> str:
        """Says, besides, how hyperparameters were chosen."""
        used = self.used(tables)
        seeds = f" on {used['tuned on']}" if "tuned on" in used else ""
        return f"{super().caption(tables)} Hyperparameters chosen by joint KL{seeds}."


def used(table: pd.DataFrame) -> dict[str, str]:
    """Returns sizes, seeds and settings of a table."""
    return {
        "members": listing(table[table.agent != MLP].num_members),
        "reported seeds": f"{_complete_seeds(table)}",
        "input dimensions d": listing(table.input_dim),
        "T / d": listing(table.data_ratio),
        "temperatures": listing(table.temperature),
    }


def by_tuning(made: pd.DataFrame, tables: Tables, grid: str, flags: Mapping[str, str]) -> pd.DataFrame:
    """Returns the runs of each way of tuning, which a column `tuning` names: those of what it chose.

    Args:
        made: the runs of the reporting seeds.
        tables: where the grid is.
        grid: the name of the table of all hyperparameters that were tried.
        flags: the column of the grid that says what was chosen, by the way of tuning.
    """
    import pandas as pd

    keys = ["setting", "agent", "l2", "prior_scale", "prior_scaling"]
    tried = tables.read(f"testbed/{grid}.csv", (*keys, *flags.values()))
    parts = []
    for name, flag in flags.items():
        chosen = tried.loc[tried[flag].astype(bool), keys].drop_duplicates()
        parts.append(made.merge(chosen, on=keys).assign(tuning=name))
    return pd.concat(parts, ignore_index=True)


def rows_of(rows: Rows, planned: Sequence[Run]) -> pd.DataFrame:
    """Returns the table of the rows of a figure's own runs; a folder may hold others, such as of an earlier choice."""
    import pandas as pd

    wanted = {run.hash for run in planned}
    table = pd.DataFrame([row for row in rows if row["hash"] in wanted])
    if table.empty:
        raise NoDataError("Expected rows of reporting seeds; 'sweep run' computes them. Received: none")
    return table


def slim(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the columns worth keeping."""
    return table[["id", "hash", *tuning.SETTING, "agent", *tuning.HYPER, "seed", *_KEPT]]


def _complete_seeds(table: pd.DataFrame) -> int:
    """How many seeds have every setting and agent that there is."""
    pairs = table[["seed", "setting", "agent"]].drop_duplicates().groupby("seed").size()
    return int((pairs == pairs.max()).sum())
