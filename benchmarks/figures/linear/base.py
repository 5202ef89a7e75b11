"""What the figures of Bayesian linear regression share: one stage of runs, one kept table, means over problems."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tf_ensembles import extras
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import base, panels
from tf_ensembles.benchmarks.figures.base import NOT_STATED, Rows, Stage
from tf_ensembles.benchmarks.figures.linear import runs
from tf_ensembles.benchmarks.figures.panels import Series
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import NoDataError
from tf_ensembles.benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run


class LinearFigure(base.Figure):
    """A figure of Bayesian linear regression: a row of its table is a mean over problems."""

    part, sweep, presets = "linear", runs.SWEEP, runs.PRESETS
    kept: ClassVar[str]  # the name of its table
    columns: ClassVar[Sequence[str]]  # of its table
    paper: ClassVar[Mapping[str, str]] = {"problems per setting": NOT_STATED}
    full_size = "The paper proves these statements and shows no experiment."

    @abc.abstractmethod
    def runs_of(self, size: runs.Size) -> list[Run]:
        """Returns the runs."""

    def command(self, preset: str, output: str) -> str:
        """Returns the command that makes all the linear figures."""
        return f"tf-ensembles linear --preset {preset} --results {output}/linear"

    def stages(self, size: runs.Size, context: Mapping[str, Any]) -> list[Stage]:
        """Returns one stage of all runs."""
        return [lambda rows: self.runs_of(size)]

    def prepare(self, context: Mapping[str, Any]) -> None:
        """Makes sure that KLs can be computed here."""
        for package in ("tensorflow_probability", "tf_keras"):
            extras.require(package, "A figure of linear regression")

    def collect(self, size: runs.Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns a row per run, in the order of the plan."""
        import pandas as pd

        found = {row["hash"]: row for row in rows}
        planned = [found[run.hash] for run in self.runs_of(size) if run.hash in found]
        if not planned:
            raise NoDataError(f"Expected rows of {self.name}; 'sweep run {self.name}' computes them. Received: none")
        return {self.kept: pd.DataFrame(planned)[list(self.columns)]}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the kept table."""
        return tables.read(f"linear/{self.kept}.csv", self.columns)

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns the number of problems."""
        return {"problems per setting": listing(tables.of(self).problems)}

    def problems(self, tables: Tables) -> str:
        """Says in a caption what the intervals are."""
        return f"Means over {listing(tables.of(self).problems)} problems; intervals: 95%."


def mean_series(rows: pd.DataFrame, column: str, name: str, value: str = "kl", error: str = "kl_error") -> Series:
    """A line of means over problems along a column; infinite ones cannot be drawn."""
    import numpy as np

    rows = rows[np.isfinite(rows[value])].sort_values(column)
    means = zip(rows[column], rows[value], rows[error], rows.problems.tolist(), strict=True)
    return Series(name, tuple(panels.point(x, stats.normal_interval(y, e, n)) for x, y, e, n in means))


def known_line(rows: pd.DataFrame, column: str, value: str, name: str) -> Series:
    """A line of values without sampling error along a column."""
    rows = rows.sort_values(column)
    values = zip(rows[column], rows[value], strict=True)
    return Series(name, tuple(panels.Point(float(x), float(y)) for x, y in values))
