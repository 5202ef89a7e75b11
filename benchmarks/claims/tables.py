"""Reads the tables that claims are judged by from a results folder, in one shape whatever experiment made them.

A folder holds `linear/`, `testbed/`, `bandit/` and `cifar10/` with CSV files, as `tf-ensembles reproduce` writes them
and as `benchmarks/results` keeps them. A *source* is a table with a row per (setting, seed, agent) and columns of
scores, lower is better. Rows whose scores are missing or infinite are left out: their seeds are then not complete.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.figures.testbed import runs as testbed_runs
from benchmarks.figures.testbed import tuning

if TYPE_CHECKING:
    import pandas as pd

TESTBED_SCORES = ("kl_marginal", "kl_joint")
CIFAR10_SCORES = ("nll_marginal", "nll_joint")
PARTS = ("linear", "testbed", "bandit", "cifar10")
_CIFAR10_COLUMNS = ("agent", "seed", "num_train", "num_members", "prior_scale", "bootstrap_probability")
_FIGURE_1_KEYS = ["setting", "agent", "l2", "prior_scale", "prior_scaling"]


class MissingTableError(ValueError):
    """A results folder does not have a table."""


class Tables:
    """The tables of a results folder, each read once."""

    def __init__(self, folder: str | os.PathLike[str]):
        """Expects the folder to exist; what is in it is found when it is asked for."""
        self.folder = pathlib.Path(folder)
        if not any((self.folder / part).is_dir() for part in PARTS):
            raise ValueError(f"Expected a folder with results of 'tf-ensembles reproduce'. Received: {folder}")
        self._read = functools.lru_cache(maxsize=None)(self._read_file)
        self._source = functools.lru_cache(maxsize=None)(self._make_source)

    def has(self, name: str) -> bool:
        """Whether a file is there, by its path within the folder."""
        return (self.folder / name).is_file()

    def read(self, name: str, columns: Sequence[str] = ()) -> pd.DataFrame:
        """Returns a CSV file; raises where it is missing or lacks columns."""
        table = self._read(name)
        missing = [column for column in columns if column not in table]
        if missing:
            raise ValueError(
                f"Expected {name} to have columns {', '.join(missing)}. Received: {', '.join(map(str, table))}"
            )
        return table

    def source(self, name: str) -> pd.DataFrame:
        """Returns a source by its name, one of `SOURCES`."""
        return self._source(name)

    def _read_file(self, name: str) -> pd.DataFrame:
        import pandas as pd

        if not self.has(name):
            raise MissingTableError(f"{name} is not there")
        return pd.read_csv(self.folder / name)

    def _make_source(self, name: str) -> pd.DataFrame:
        if name not in SOURCES:
            raise ValueError(f"Expected one of {', '.join(SOURCES)}. Received: {name!r}")
        table = SOURCES[name](self)
        if table.empty:
            raise MissingTableError(f"no usable rows for {name}")
        return table


def _finite(table: pd.DataFrame, scores: Sequence[str]) -> pd.DataFrame:
    """Returns the rows whose scores are finite numbers; a cell that is no number counts as none."""
    import numpy as np
    import pandas as pd

    numbers = table[list(scores)].apply(pd.to_numeric, errors="coerce")
    kept = np.isfinite(numbers.to_numpy(float)).all(axis=1)
    return table.assign(**{score: numbers[score] for score in scores})[kept]


def _testbed(tables: Tables, name: str) -> pd.DataFrame:
    """Scores over the uniform agent's in the same setting."""
    columns = (*tuning.SETTING, *tuning.HYPER, "agent", "seed", *TESTBED_SCORES)
    return tuning.normalise(_finite(tables.read(f"testbed/{name}.csv", columns), TESTBED_SCORES))


def _figure_1(tables: Tables, flag: str) -> pd.DataFrame:
    """The runs of one way of tuning: those of the hyper-parameters that it chose in their setting."""
    runs = _testbed(tables, "figure_1_runs")
    grid = tables.read("testbed/figure_1_grid.csv", (*_FIGURE_1_KEYS, "best_in_setting", "best_overall"))
    chosen = grid.loc[grid[flag].astype(bool), _FIGURE_1_KEYS].drop_duplicates()
    return runs.merge(chosen, on=_FIGURE_1_KEYS)


def _figure_9(tables: Tables) -> pd.DataFrame:
    """The runs at d = 10: in a table of their own where figure 9 was made apart from figure 2."""
    name = "figure_9_runs" if tables.has("testbed/figure_9_runs.csv") else "figure_2_runs"
    return _testbed(tables, name).query("input_dim == 10")


def _cifar10(tables: Tables, number: int, tuned: bool = False) -> pd.DataFrame:
    """Ensembles on CIFAR10; a setting is a training set, bootstrapped agents carry their probability in their name."""
    name = f"cifar10/figure_{number}_runs.csv"
    table = _finite(tables.read(name, (*_CIFAR10_COLUMNS, *CIFAR10_SCORES)), CIFAR10_SCORES)
    agents = [cifar10_name(row.agent, row.bootstrap_probability) for row in table.itertuples()]
    table = table.assign(setting=[f"T{int(count)}" for count in table.num_train], agent=agents)
    return best_scale_on_other_seeds(table) if tuned else table


def cifar10_name(agent: Any, probability: Any) -> str:
    """Returns the name of an agent, such as `ensemble-bp(0.9)`."""
    return f"{agent}({float(probability):g})" if str(agent) == "ensemble-bp" else str(agent)


def best_scale_on_other_seeds(table: pd.DataFrame, score: str = "nll_joint") -> pd.DataFrame:
    """Returns, per (setting, agent, seed), the row of the prior scale that is best on the *other* seeds.

    The paper takes the best scale on the seeds that it reports, which favours whoever has more scales to choose from.
    With one seed there are no others, and its own best is taken.
    """
    groups: dict[Any, dict[Any, dict[Any, tuple[float, int]]]] = {}  # by agent and setting, seed, scale: score, place
    columns = [table[name].tolist() for name in ("setting", "agent", "num_members", "seed", "prior_scale", score)]
    for place, (setting, agent, members, seed, scale, value) in enumerate(zip(*columns, strict=True)):
        groups.setdefault((setting, agent, members), {}).setdefault(seed, {}).setdefault(scale, (value, place))
    kept = []
    for seeds in groups.values():
        for seed, own in seeds.items():
            others = [found for other, found in seeds.items() if other != seed] or [own]
            seen = {scale: [found[scale][0] for found in others if scale in found] for scale in sorted(own)}
            means = {scale: sum(values) / len(values) for scale, values in seen.items() if values}
            kept.append(own[min(means, key=means.__getitem__) if means else min(own)][1])
    return table.iloc[sorted(kept)]


def _bandit(tables: Tables) -> pd.DataFrame:
    """Regret by horizon (the setting) and part of the problems (the seed), each agent as tuned for the horizon."""
    table = tables.read("bandit/regret_runs.csv", ("horizon", "agent", "part", "problems", "regret"))
    table = _finite(table, ("regret",))
    settings = [f"T{int(horizon)}" for horizon in table.horizon]
    # Parts of different sizes are different problems: their names must not agree between two folders.
    parts = [f"{int(part):06d} of {int(count)}" for part, count in zip(table.part, table.problems, strict=True)]
    return table.assign(setting=settings, seed=parts)


SOURCES: dict[str, Callable[[Tables], pd.DataFrame]] = {
    "figure 1, tuned per setting": lambda tables: _figure_1(tables, "best_in_setting"),
    "figure 1, tuned globally": lambda tables: _figure_1(tables, "best_overall"),
    "figure 2": lambda tables: _testbed(tables, "figure_2_runs"),
    "figure 7": lambda tables: _testbed(tables, "figure_7_runs"),
    "figure 9": _figure_9,
    "figure 3": lambda tables: _cifar10(tables, 3),
    "figure 4": lambda tables: _cifar10(tables, 4, tuned=True),
    "figure 5": lambda tables: _cifar10(tables, 5, tuned=True),
    "figure 11": lambda tables: _cifar10(tables, 11),
    "bandit": _bandit,
}
UNIFORM = testbed_runs.UNIFORM
