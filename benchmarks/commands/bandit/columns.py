"""Columns of a log: files of several forms, and which columns are features of the context, and why others are not."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.base import Array

if TYPE_CHECKING:
    import pandas as pd

FORMS = ".csv, .tsv or .parquet file (.csv and .tsv also compressed: .gz, .bz2, .xz, .zip, .zst)"
MOST_VALUES = 20  # of text that becomes a column of zeros and ones for each
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")
_MISSING = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")  # where numbers are expected
_DISTINCT, _LARGE = 0.9, 10**9  # Whole numbers that differ in nearly all rows, or are all larger, look like ids.


def read(path: pathlib.Path, action: str) -> pd.DataFrame:
    """Returns a log; actions are text as it is written."""
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"Expected a log. Received: {path}, which is not a file")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    form = suffixes[-1] if suffixes else ""
    if form in _SEPARATORS:
        table = pd.read_csv(path, sep=_SEPARATORS[form], dtype=str, keep_default_na=False)
        for name in table.columns:
            table[name] = table[name].mask(table[name] == "") if name == action else _typed(table[name])
        return table
    if path.suffix.lower() != ".parquet":
        raise ValueError(f"Expected a log in a {FORMS}. Received: {path.name}")
    try:
        table = pd.read_parquet(path)
    except ImportError:
        raise ImportError(
            f"Expected pyarrow or fastparquet to read {path.name}. Received: neither; install one, or give a .csv file"
        ) from None
    if action in table:
        table[action] = table[action].map(str, na_action="ignore")
    return table


def _typed(column: Any) -> Any:
    """Returns numbers, or True and False, where all that is written is one; else text."""
    import pandas as pd

    missing = column.isin(_MISSING)
    numbers = pd.to_numeric(column.mask(missing), errors="coerce")
    if (numbers.notna() | missing).all() and not missing.all():
        return numbers
    lower = column.str.lower()
    return lower == "true" if lower.isin(["true", "false"]).all() else column.mask(column == "")


@dataclasses.dataclass(frozen=True)
class Features:
    """Features of the context, and what is to be said about them."""

    values: Array  # [decisions, features]
    used: tuple[str, ...]
    unused: tuple[str, ...]  # columns, each with the reason
    warnings: tuple[str, ...] = ()

    def describe(self) -> str:
        """Returns lines that say which columns are used, and which are not and why."""
        lines = [f"features: {', '.join(self.used) or 'none'}"]
        if self.unused:
            lines.append(f"left out: {'; '.join(self.unused)} (--features names what to use)")
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def read_features(table: pd.DataFrame, without: list[str], names: list[str] | None = None) -> Features:
    """Returns the features of a log: of columns that a user has named, or of all that can be features.

    Args:
        table: the log.
        without: columns that are something else.
        names: columns to use, where what does not fit is an error; by default it is left out, with the reason.
    """
    parts, used, unused, warnings = [], [], [], []
    for name in [name for name in table.columns if name not in without] if names is None else names:
        missing = int(table[name].isna().sum())
        values, how = (None, f"{missing:,} missing") if missing else _as_numbers(table[name])
        doubt = "" if values is None else _doubt(name, table[name])
        if values is None and names is not None:
            raise ValueError(
                f"Expected numbers, or text of at most {MOST_VALUES} values, in all rows of {name!r}. Received: {how}"
            )
        if values is None or (doubt and names is None):
            unused.append(f"{name}: {doubt or how}")
            continue
        parts.append(values)
        used.append(f"{name}{how}")
        if doubt:
            warnings.append(f"{name} {doubt}")
    values = np.concatenate(parts, axis=1) if parts else np.zeros([len(table), 0])
    return Features(values, tuple(used), tuple(unused), tuple(warnings))


def _as_numbers(column: Any) -> tuple[Array | None, str]:
    """Returns a column as numbers `[decisions, columns]` and how; or None, and what it is."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(np.float64)[:, None], ""
    text = isinstance(column.dtype, pd.CategoricalDtype) or column.map(lambda value: isinstance(value, str)).all()
    if not text:
        return None, f"{column.dtype}, neither numbers nor text"
    codes, unique = pd.factorize(column, sort=True)
    if len(unique) > MOST_VALUES:
        return None, f"text of {len(unique):,} different values"
    return np.eye(len(unique))[codes], f" (one-hot of {len(unique)} values)"


def _doubt(name: Any, column: Any) -> str:
    """Returns why a column says nothing about a context, or "" if it may."""
    import pandas as pd

    distinct = column.nunique()
    if distinct == 1:
        return "is the same in all rows" if len(column) > 1 else ""
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return ""
    values = column.to_numpy(np.float64)
    if not np.isfinite(values).all() or (values != np.floor(values)).any():
        return ""
    named = re.search(r"(^|[^a-z])id$", str(name).lower()) is not None or str(name).endswith("Id")
    many = len(column) >= 20 and distinct >= _DISTINCT * len(column)
    if named or many or np.abs(values).min() >= _LARGE:
        return f"looks like an id ({distinct:,} different whole numbers in {len(column):,} rows)"
    return ""
