"""A study: a figure that is not the paper's, with one table. It runs, resumes and is drawn as figures are.

    tf-ensembles sweep run benchmarks.studies.NAME --preset quick
    tf-ensembles sweep run benchmarks.studies.NAME --preset standard --figures-to benchmarks/results/PART

Runs go to `results/sweep/NAME-PRESET`, and so do the table and the picture without `--figures-to`. A subclass fills in
`panels`, and either `kind`, `configs` and `columns`, for a grid of runs with a line of the table each, or `stages` and
`records`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tf_ensembles import files
from tf_ensembles.benchmarks import seals, stats
from tf_ensembles.benchmarks.figures import base, panels
from tf_ensembles.benchmarks.figures.base import Rows as Rows
from tf_ensembles.benchmarks.figures.base import Stage as Stage
from tf_ensembles.benchmarks.figures.panels import Panel as Panel
from tf_ensembles.benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run


class Study(base.Figure):
    """A study. Its id, and the folder of its runs, are called as it is."""

    kept: ClassVar[str]  # the name of its table, without ".csv"
    kind: ClassVar[str]  # of the runs of `configs`
    configs: Callable[..., list[dict[str, Any]]]  # of a size: a run each, for a study without choices
    columns: ClassVar[tuple[str, ...]]  # what the table has of each run's configuration and result
    place: ClassVar[tuple[float, ...]] = (20.0,)
    paper: ClassVar[Mapping[str, str]] = {}
    full_size: ClassVar[str] = "The paper has no such experiment."

    def __init_subclass__(cls) -> None:
        cls.id = cls.sweep = cls.name

    def stages(self, size: Any, context: Mapping[str, Any]) -> list[Stage]:
        """Returns one stage with a run per configuration."""
        from tf_ensembles.trainers.sweeps import sweep

        runs = []
        for config in self.configs(size):
            name = "/".join([self.name, *(f"{key}-{value}" for key, value in config.items())])
            runs.append(sweep.make_run(name.replace(" ", "-"), self.kind, config))
        return [lambda rows: runs]

    def records(self, size: Any, rows: Rows) -> list[dict[str, Any]]:
        """Returns the lines of the table, from rows of complete runs."""
        complete_rows = rows_of(rows, self.all_runs(size, {}, rows))
        return [{name: row[name] for name in self.columns} for row in complete_rows]

    def collect(self, size: Any, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns the table to keep."""
        import pandas as pd

        return {self.kept: pd.DataFrame(self.records(size, rows))}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the table that was kept."""
        return tables.read(f"{self.part}/{self.kept}.csv")

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns nothing: the paper states nothing to compare with."""
        return {}

    def caption(self, tables: Tables) -> str:
        """Returns what the study is about."""
        return self.about


def rows_of(rows: Rows, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns the rows of those runs that are complete, in the order of the runs."""
    by_hash = {row["hash"]: row for row in rows}
    return [by_hash[run.hash] for run in runs if run.hash in by_hash]


def complete(rows: Rows, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Returns the rows of all runs; raises where some are missing, because nothing is chosen from a part of a grid."""
    present = rows_of(rows, runs)
    if len(present) < len(runs):
        raise ValueError(f"Expected rows of all {len(runs)} runs to choose from. Received: {len(present)}")
    return present


def unpack(row: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    """Returns the lines that a row holds as `"a|b|score": value`: with names for a and b, and each one's scores."""
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, value in row.items():
        if "|" in key:
            *about, score = key.split("|")
            lines.setdefault(tuple(about), dict(zip(names, about, strict=True)))[score] = value
    return list(lines.values())


def read(tables: Tables, name: str) -> pd.DataFrame:
    """Returns a table whose file may begin with a line of settings, after a `#`: the committed ones of some studies."""
    import pandas as pd

    path = tables.folder / (name if tables.part is None else name.partition("/")[2])
    if damage := seals.damage(path):
        raise files.DamagedError(damage)
    return pd.read_csv(path, comment="#")


def lines(table: pd.DataFrame, x: str, score: str, series: str) -> tuple[panels.Series, ...]:
    """Returns a line per value of a column, in their order: means over the rows at each x, with 95% intervals."""
    made = []
    for name in table[series].unique():
        groups = table[table[series] == name].groupby(x)[score]
        points = [panels.point(float(str(at)), stats.mean_interval(values)) for at, values in groups]
        made.append(panels.Series(str(name), tuple(points)))
    return tuple(made)


def bars(table: pd.DataFrame, score: str, series: str) -> tuple[panels.Series, ...]:
    """Returns a bar per value of a column, in their order: means over the rows, with 95% intervals."""
    groups = table.groupby(series, sort=False)[score]
    return tuple(panels.Series(str(name), (panels.point(0.0, stats.mean_interval(values)),)) for name, values in groups)


def bars_above(table: pd.DataFrame, score: str, reference: str) -> tuple[panels.Series, ...]:
    """Returns a bar per agent but one: how much higher it scores than that one, over the same seeds."""
    wide = table.pivot(index="seed", columns="agent", values=score)
    return tuple(
        panels.Series(agent, (panels.point(0.0, stats.paired_difference(wide[agent], wide[reference])),))
        for agent in table.agent.unique()
        if agent != reference
    )
