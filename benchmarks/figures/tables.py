"""Reads the tables that figures are drawn from and claims are judged by, in one shape whatever experiment made them.

A results folder holds `linear/`, `testbed/`, `bandit/` and `cifar10/` with CSV files, as `tf-ensembles reproduce`
writes them and as `benchmarks/results` keeps them. Rows whose scores are missing or infinite are left out: their seeds
are then not complete.
"""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_ensembles import extras, files
from tf_ensembles.benchmarks import seals
from tf_ensembles.benchmarks.stats import NoDataError

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.benchmarks.figures.base import Figure

PARTS = ("linear", "testbed", "bandit", "cifar10")
# Columns that count something, or say how large a setting is: what they hold becomes integers and names.
_COUNTS = frozenset(
    {"problems", "part", "horizon", "step", "members", "num_members", "first_member", "num_train", "num_data", "dim"}
    | {"input_dim", "data_ratio", "seed", "seeds", "tau"}
)


class Tables:
    """The tables of a results folder, each read once."""

    def __init__(self, folder: str | os.PathLike[str], part: str | None = None):
        """Expects the folder to exist; what is in it is found when it is asked for.

        Args:
            folder: the results folder.
            part: where the folder is that of one part alone, such as `testbed`, rather than of all of them.
        """
        self.folder, self._part = pathlib.Path(folder), part
        if part is None and not any((self.folder / name).is_dir() for name in PARTS):
            found = "which has none of them" if self.folder.is_dir() else "which is no folder"
            looked = ", ".join(f"{name}/" for name in PARTS)
            raise ValueError(
                f"Expected a folder with results of 'tf-ensembles reproduce': any of {looked} in it. "
                f"Received: {folder}, {found}"
            )
        self._read = functools.lru_cache(maxsize=None)(self._read_file)
        self.of = functools.lru_cache(maxsize=None)(self._figure_table)
        self._damage = functools.lru_cache(maxsize=None)(seals.damage)

    def _path(self, name: str) -> pathlib.Path:
        if self._part is None:
            return self.folder / name
        part, _, rest = name.partition("/")
        return self.folder / (rest if part == self._part else name)

    @property
    def part(self) -> str | None:
        """The part that the folder is of; None where it is of all of them."""
        return self._part

    def has(self, name: str) -> bool:
        """Whether a file is there, by its path within a results folder."""
        return self._path(name).is_file()

    def read(self, name: str, columns: Sequence[str] = (), infinite: str = "") -> pd.DataFrame:
        """Returns a CSV file; raises where it is missing or lacks columns.

        Args:
            name: its path within a results folder.
            columns: what it must have.
            infinite: a column that counts something, and where infinity is a count, too.
        """
        table = self._read(name, infinite)
        missing = [column for column in columns if column not in table]
        if missing:
            raise ValueError(
                f"Expected {name} to have columns {', '.join(missing)}. Received: {', '.join(map(str, table))}"
            )
        return table

    def _read_file(self, name: str, infinite: str) -> pd.DataFrame:
        extras.require("pandas", "A table")
        import pandas as pd

        if not self.has(name):
            raise NoDataError(f"{name} is not there")
        if damage := self._damage(self._path(name)):
            raise files.DamagedError(damage)
        return _checked(pd.read_csv(self._path(name)), name, infinite)

    def damaged(self) -> list[str]:
        """Returns what is wrong with tables of the folder, read or not: with those that are not what was written."""
        folders = sorted({path.parent for path in self.folder.glob("*/*.csv")})
        return [damage for folder in folders for path in seals.listed(folder) if (damage := self._damage(path))]

    def _figure_table(self, figure: Figure) -> pd.DataFrame:
        """Returns the table of a figure; raises where the folder has no usable rows of it. `of` remembers it."""
        table = figure.table(self)
        if table.empty:
            raise NoDataError(f"no usable rows of {figure.name}")
        return table


def _checked(table: pd.DataFrame, name: str, infinite: str) -> pd.DataFrame:
    """Returns a table whose numbers are numbers; raises where a cell that counts something is infinite.

    Scores may be infinite: the KL of an ensemble without spread is.
    """
    import numpy as np
    import pandas as pd

    for column in table:
        if not (pd.api.types.is_string_dtype(table[column]) or column in _COUNTS):
            continue
        numbers = pd.to_numeric(table[column], errors="coerce")
        if numbers.notna().any() and numbers.notna().equals(table[column].notna()):
            table = table.assign(**{str(column): numbers})  # Integers that are too long for one are read as text.
        if column in _COUNTS and column != infinite and (wrong := np.isinf(numbers.to_numpy(float))).any():
            line = int(wrong.argmax())
            raise ValueError(
                f"Expected finite numbers in column {column} of {name}. "
                f"Received: {table[column].iloc[line]} in line {line + 2}"
            )
    return table


def finite(table: pd.DataFrame, scores: Sequence[str]) -> pd.DataFrame:
    """Returns the rows whose scores are finite numbers; a cell that is no number counts as none."""
    import numpy as np
    import pandas as pd

    numbers = table[list(scores)].apply(pd.to_numeric, errors="coerce")
    kept = np.isfinite(numbers.to_numpy(float)).all(axis=1)
    return table.assign(**{score: numbers[score] for score in scores})[kept]
