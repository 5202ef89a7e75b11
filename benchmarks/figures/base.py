"""What a figure is: runs in stages, the tables that are kept of them, one table that is shown, and panels of it.

    rows of runs  ->  collect: CSV files  ->  table: one row per (setting, seed, agent)  ->  panels  ->  pictures
                                                                                        ->  claims, through `stats`

A figure is one module with a `FIGURE`; `registry` finds it. The tables are read back from the CSV files before anything
is drawn, so that a picture, its caption, the claims and the report are made of the very same numbers.
"""

from __future__ import annotations

import abc
import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tf_ensembles import extras
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels as panels_lib
from tf_ensembles.benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run

PRESETS = ("quick", "standard", "paper")
NOT_STATED = "not stated"

# The end of the name of the table that says what a figure took, and its columns.
_COST, _COST_COLUMNS = "_cost", ("runs", "hours", "processor")

Rows = Sequence[dict[str, Any]]
Stage = Callable[[Rows], "list[Run]"]


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting: the paper's and the one used."""

    name: str
    paper: str
    used: str

    @property
    def differs(self) -> bool:
        """Whether the paper states another one."""
        return self.paper not in (NOT_STATED, self.used)


class Figure(abc.ABC):
    """A figure. A subclass names it and fills in how it is computed and what it shows."""

    id: ClassVar[str]  # such as "F2": by this claims and `--only` name it
    name: ClassVar[str]  # such as "figure_2": its files and its place on the command line
    part: ClassVar[str]  # the folder of its tables within a results folder
    place: ClassVar[tuple[float, ...]]  # its order in the report
    title: ClassVar[str]
    about: ClassVar[str]
    paper: ClassVar[Mapping[str, str]]  # the paper's settings, by their names
    full_size: ClassVar[str]  # a sentence about the size of the paper's experiment
    sweep: ClassVar[str]  # names the folder of its runs; figures that share runs share it
    presets: ClassVar[Mapping[str, Any]]  # by name: how large; what `stages` and `collect` take
    pairs: ClassVar[Sequence[tuple[str, str]]] = ()  # agents whose differences are told beside the figure
    by: ClassVar[tuple[str, str] | None] = None  # a column for each of whose values they are told, and how it is named
    scores: ClassVar[Mapping[str, str]] = {}  # columns of the table that are scores, with their names
    apart: ClassVar[Mapping[str, str]] = {}  # columns that tell series of one agent apart, and how they are named
    same_runs_as: ClassVar[str] = ""  # the id of the figure whose runs it shows in another way
    needs_images: ClassVar[bool] = False  # whether its runs read CIFAR10

    @abc.abstractmethod
    def stages(self, size: Any, context: Mapping[str, Any]) -> list[Stage]:
        """Returns functions from the rows so far to runs: each stage is complete before the next is asked.

        Args:
            size: one of `presets`, or another of its kind.
            context: where things are on the machines that run them, such as `store` and `data`.
        """

    def all_runs(self, size: Any, context: Mapping[str, Any], rows: Rows) -> list[Run]:
        """Returns all runs behind the figure, from rows of complete ones."""
        return [run for stage in self.stages(size, context) for run in stage(rows)]

    @abc.abstractmethod
    def collect(self, size: Any, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns the tables to keep, by the names of their CSV files, from rows of complete runs."""

    @abc.abstractmethod
    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the one table of the figure, from what `collect` kept."""

    @abc.abstractmethod
    def panels(self, table: pd.DataFrame) -> list[panels_lib.Panel]:
        """Returns what the figure shows of its table."""

    @abc.abstractmethod
    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns the settings of a results folder, by the names that `paper` has."""

    @abc.abstractmethod
    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture: what was averaged, how large, what the intervals are."""

    def chosen(self, tables: Tables) -> panels_lib.TextTable | None:
        """Returns the hyperparameters that were chosen for the figure, if it has any."""
        return None

    def prepare(self, context: Mapping[str, Any]) -> None:  # noqa: B027 - most figures need nothing.
        """Makes sure of what runs need beside their configurations, such as a data set, before any run starts."""

    def series_names(self, table: pd.DataFrame) -> list[str]:
        """Returns a name for every row where all are compared: one row per name, setting and seed."""
        parts = [[form.format(value) for value in table[column]] for column, form in self.apart.items()]
        return [", ".join(words) for words in zip(map(str, table.agent), *parts, strict=True)]

    def command(self, preset: str, output: str) -> str:
        """Returns the command that makes the figure, in a results folder whose name is quoted for a shell."""
        folders = f"--results {output}/sweep --figures-to {output}/{self.part}"
        return f"tf-ensembles sweep run {self.name} --preset {preset} {folders}"

    def sweep_folder(self, preset: str) -> str:
        """Returns the folder of its runs, within that of all sweeps."""
        return f"{self.sweep}-{preset}"

    def settings(self, tables: Tables) -> tuple[Setting, ...]:
        """Returns the paper's settings beside those of a results folder."""
        used = self.used(tables)
        settings = [Setting(name, value, used.get(name, "not recorded")) for name, value in self.paper.items()]
        if tables.has(f"{self.part}/{self.name}{_COST}.csv"):
            (cost,) = tables.read(f"{self.part}/{self.name}{_COST}.csv", _COST_COLUMNS).itertuples()
            hours = f"{cost.hours:.3g} ({cost.runs:,} runs; {cost.processor})"
            settings.append(Setting("hours of one worker", NOT_STATED, hours))
        return tuple(settings)

    def differences(self, table: pd.DataFrame) -> list[tuple[str, str, stats.Interval]]:
        """Returns the relative difference of each pair and score, with the score's name: what claims compute, too."""
        if self.by is None:
            return self._differences(table, "")
        column, symbol = self.by
        parts = [self._differences(rows, symbol.format(value)) for value, rows in table.groupby(column)]
        return [difference for part in parts for difference in part]

    def _differences(self, table: pd.DataFrame, where: str) -> list[tuple[str, str, stats.Interval]]:
        differences = []
        for score, name in self.scores.items():
            for first, second in self.pairs:
                if {first, second} <= set(table.agent):
                    interval = stats.relative_difference(*stats.paired(table, score, first, second))
                    differences.append((f"{name}{where}", f"{first} against {second}", interval))
        return differences


def require_packages() -> None:
    """Raises an error that names the extra, unless figures can be made here: before runs are, not after."""
    for package in ("pandas", "scipy", "matplotlib"):
        extras.require(package, "A figure")


def write(
    figure: Figure, size: Any, rows: Rows, folder: pathlib.Path, context: Mapping[str, Any] | None = None
) -> list[str]:
    """Writes the tables of a figure into the folder of its part, and draws it; returns what to tell, line by line.

    Args:
        figure: the figure.
        size: one of its presets.
        rows: of complete runs.
        folder: of its part.
        context: as of `Figure.stages`, where all stages are complete: then what they took is kept, too.
    """
    from tf_ensembles import files
    from tf_ensembles.benchmarks import seals

    lines, tables = [], figure.collect(size, rows)
    if context is not None and (took := cost(figure.all_runs(size, context, rows), rows)) is not None:
        tables |= {f"{figure.name}{_COST}": took}
    for name, kept in tables.items():
        with files.atomic_path(folder / f"{name}.csv") as path:
            kept.to_csv(path, index=False, float_format="%.9g")
        lines.append(f"wrote {folder / name}.csv")
    seals.add(*(folder / f"{name}.csv" for name in tables))
    return lines + draw(figure, Tables(folder, figure.part), folder)


def cost(runs: Sequence[Run], rows: Rows) -> pd.DataFrame | None:
    """Returns what runs took, as a table of one row; None where their rows do not say."""
    import pandas as pd

    wanted = {run.hash for run in runs}
    mine = [row for row in rows if row["hash"] in wanted and "wall_seconds" in row]
    if not mine:
        return None
    hours = sum(float(row["wall_seconds"]) for row in mine) / 3600
    kinds = sorted({str(row.get("machine", {}).get("cpu", "unknown processor")) for row in mine})
    return pd.DataFrame([[len(mine), hours, ", ".join(kinds)]], columns=list(_COST_COLUMNS))


def draw(figure: Figure, tables: Tables, folder: pathlib.Path) -> list[str]:
    """Draws a figure from its kept tables, writes what it shows as a table; returns what to tell, line by line."""
    from tf_ensembles import files
    from tf_ensembles.benchmarks import seals, style
    from tf_ensembles.benchmarks.figures import drawing

    table = tables.of(figure)
    shown = figure.panels(table)
    differences = figure.differences(table)
    with files.atomic_path(folder / f"{figure.name}.csv") as path:
        summary(shown, differences).to_csv(path, index=False, float_format="%.6g")
    seals.add(folder / f"{figure.name}.csv")
    written = style.save(drawing.draw(shown, figure.title, figure.caption(tables)), folder / figure.name)
    lines = [f"wrote {path}" for path in (folder / f"{figure.name}.csv", *written)]
    for score, pair, interval in differences:
        known = not math.isnan(interval.low)
        ends = f" [{interval.low:+.1%}, {interval.high:+.1%}]" if known else ""
        told = f"{interval.estimate:+.1%}{ends}, n = {interval.count}: {stats.direction(interval)}"
        lines.append(f"{score}: {pair} {told}")
    return lines


def summary(shown: Sequence[panels_lib.Panel], differences: Sequence[tuple[str, str, stats.Interval]]) -> pd.DataFrame:
    """Returns what a figure shows as a table: a row per point of its panels and per difference of agents."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for panel in shown:
        for series in panel.series:
            for one in series.points:
                x: Any = "" if panel.kind == "bars" else panel.places[int(one.x)] if panel.places else one.x
                about = {"panel": panel.title, "series": series.name, "x": x}
                rows.append(about | {"estimate": one.y, "low": one.low, "high": one.high, "count": one.count})
    for score, pair, interval in differences:
        about = {"panel": f"{score}, relative difference", "series": pair, "x": ""}
        rows.append(about | interval.numbers() | {"verdict": stats.direction(interval)})
    return pd.DataFrame(rows)
