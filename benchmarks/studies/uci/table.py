"""Scores of each split, stored as a small CSV file per data set, and the table beside what was published.

A stored file carries the settings that made it in its first line, and is used again where they are the same.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.studies import kept
from benchmarks.studies.uci import protocol
from tf_ensembles import metrics

SCORES = ("rmse", "nll", "joint_nll", "crps", "coverage")
ONE_MODEL = "one model"
TAU, LEVEL = 10, 0.9


@dataclasses.dataclass(frozen=True)
class Row:
    """The scores of an agent in a split, in units of the target; `joint_nll` is per ten examples."""

    agent: str
    split: int
    rmse: float
    nll: float
    joint_nll: float
    crps: float
    coverage: float


def score(agent: str, split: int, mean: Any, std: Any, y: Any) -> Row:
    """Returns the scores of an ensemble `[rows, members]` in a split."""
    return Row(
        agent,
        split,
        metrics.rmse(mean, y),
        metrics.gaussian_nll(mean, std, y),
        metrics.gaussian_joint_nll(mean, std, y, tau=TAU),
        metrics.crps(mean, std, y),
        metrics.coverage(mean, std, y, level=LEVEL),
    )


def score_one_model(split: int, mean: Any, std: Any, y: Any) -> Row:
    """Returns the mean over members of the scores that each has alone."""
    rows = [score(ONE_MODEL, split, mean[:, [m]], std[:, [m]], y) for m in range(mean.shape[1])]
    return Row(ONE_MODEL, split, *(float(np.mean([getattr(row, name) for row in rows])) for name in SCORES))


def write(path: pathlib.Path, settings: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes rows, with the settings in the first line; the file appears whole or not at all."""
    cells = [[row.agent, row.split, *(f"{getattr(row, name):.6g}" for name in SCORES)] for row in rows]
    kept.write(path, settings, [field.name for field in dataclasses.fields(Row)], cells)


def read(path: pathlib.Path) -> tuple[dict[str, Any], list[Row]]:
    """Returns the settings and the rows of a stored file."""
    settings, lines = kept.read(path)
    rows = [Row(line["agent"], int(line["split"]), *(float(line[name]) for name in SCORES)) for line in lines]
    return settings, rows


def interval(rows: Sequence[Row], agent: str, name: str) -> tuple[float, float]:
    """Returns the mean over splits of a score, and its standard error."""
    values = [getattr(row, name) for row in rows if row.agent == agent]
    return float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))


def markdown(stored: dict[str, list[Row]]) -> str:
    """Returns the table, with a line for what was published above each data set."""
    lines = [
        "| data | agent | RMSE | NLL | joint NLL | CRPS | coverage of 90% |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in stored.items():
        known = protocol.PUBLISHED[name]
        published = f"{known.rmse:.2f} ± {known.rmse_error:.2f} | {known.nll:.2f} ± {known.nll_error:.2f}"
        lines.append(f"| {name} | published, M = 5 | {published} | | | |")
        for agent in dict.fromkeys(row.agent for row in rows):
            cells = ["{:.2f} ± {:.2f}".format(*interval(rows, agent, score)) for score in SCORES]
            lines.append(f"| | {agent} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
