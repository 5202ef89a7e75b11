"""Tells what a results folder of `tf-ensembles reproduce` holds, as a table for people and as Markdown."""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("part", "quantity", "agent", "value", "standard_error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the folder."""
    parser.add_argument(
        "folder",
        type=pathlib.Path,
        nargs="?",
        default=pathlib.Path("results/reproduce"),
        help="what 'tf-ensembles reproduce' wrote (default results/reproduce)",
    )


def run(args: argparse.Namespace) -> None:
    """Writes the summary anew from the tables in the folder, and prints it."""
    table = summarise(args.folder)
    written = write(table, args.folder)
    print(format_text(table))
    print("\nWrote:\n" + "\n".join(f"  {path}" for path in written))


def summarise(folder: pathlib.Path) -> pd.DataFrame:
    """Returns one row per measured quantity of the parts that are in the folder."""
    import pandas as pd

    tables = [
        make(folder / name) for name, make in (("linear", _linear), ("testbed", _testbed)) if (folder / name).is_dir()
    ]
    if not tables:
        raise ValueError(f"Expected a folder with results of 'tf-ensembles reproduce'. Received: {folder}")
    return pd.concat(tables, ignore_index=True)[list(COLUMNS)]


def _linear(folder: pathlib.Path) -> pd.DataFrame:
    """Propositions 1 and 2, Theorem 1."""
    import pandas as pd

    checks = pd.read_csv(folder / "checks.csv")
    return pd.DataFrame(
        {
            "part": "linear",
            "quantity": checks["check"],
            "agent": "",
            "value": checks["value"],
            "standard_error": float("nan"),
        }
    )


def _testbed(folder: pathlib.Path) -> pd.DataFrame:
    """Mean KLs over seeds, each divided by the uniform agent's on the same problem."""
    import pandas as pd

    rows = []
    for path in sorted(folder.rglob("*.csv")):
        runs = pd.read_csv(path)
        for column, quantity in (("kl_marginal", "marginal KL / uniform"), ("kl_joint", "joint KL / uniform")):
            scores = runs.pivot(index="seed", columns="agent", values=column)
            scores = scores.div(scores["uniform"], axis=0)
            for agent in runs["agent"].unique():
                error = scores[agent].std(ddof=1) / len(scores) ** 0.5
                rows.append(("testbed", f"{quantity} ({path.stem})", agent, scores[agent].mean(), error))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def format_text(table: pd.DataFrame) -> str:
    """Returns the table with aligned columns."""
    return table.to_string(index=False, na_rep="", float_format=lambda value: f"{value:.4g}")


def write(table: pd.DataFrame, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the table as CSV and Markdown, and returns the paths."""
    from tf_ensembles import files

    rows = [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS), *(" | ".join(row) for row in rows)]
    written = [folder / "summary.csv", folder / "summary.md"]
    with files.atomic_path(written[0]) as path:
        table.to_csv(path, index=False)
    with files.atomic_path(written[1]) as path:
        path.write_text("".join(f"| {line} |\n" for line in lines), encoding="utf-8")
    return written


def _cell(value: object) -> str:
    """A table cell: numbers short, text without what Markdown would take for markup."""
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
