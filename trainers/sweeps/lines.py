"""The lines of a results folder: how each is read, and what happens to damaged ones.

A line is a JSON object that ends with a checksum of itself (`tf_ensembles.files.seal`).
"""

from __future__ import annotations

import contextlib
import logging
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tf_ensembles import files
from tf_ensembles.trainers.sweeps.runs import Run

Row = dict[str, Any]

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

# What reading a line may raise where it is JSON, but not what we wrote.
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


class Timing(NamedTuple):
    """How long a completed run took."""

    hash: str
    wall_seconds: float
    warm: bool
    finished_at: str
    session: str


class Planned(NamedTuple):
    """What an estimate needs of a planned run."""

    id: str
    hash: str
    group: str
    cost: float


def read(path: pathlib.Path, convert: Callable[[bytes], _T]) -> tuple[list[_T], list[int]]:
    """Returns what `convert` makes of the lines of a file, and the numbers of damaged lines, which are left out.

    A last line without its end is what a kill has left of one, and no line. Where there is no file, there are no lines.
    """
    values: list[_T] = []
    damaged: list[int] = []
    with contextlib.suppress(FileNotFoundError), files.open_regular(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                values.append(convert(line))
            except DAMAGE:
                damaged.append(number)
    if damaged:
        numbers = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        _log.warning(
            "%s: %d damaged line%s left out (line %s); the next run of the sweep computes what they held",
            path, len(damaged), "s" * (len(damaged) > 1), numbers,
        )  # fmt: skip
    return values, damaged


def _unseal(line: bytes) -> Row:
    content, has_checksum = files.unseal(line)
    if not has_checksum:
        raise files.DamagedError("Expected a line with a checksum. Received: none")
    return content


def row(line: bytes) -> Row:
    """Returns a row, without its checksum."""
    content = _unseal(line)
    # What is sealed may still be no row, where another program has sealed it.
    if not isinstance(content["hash"], str) or not isinstance(content["id"], str):
        raise files.DamagedError("Expected the id and the hash of a run as text")
    return content


def run_hash(line: bytes) -> str:
    """Returns the hash of a row."""
    return str(row(line)["hash"])


def timing(line: bytes) -> Timing:
    """Returns what a status needs of a row."""
    return timing_of(row(line))


def timing_of(content: Row) -> Timing:
    """Returns what a status needs of a row that was read before."""
    seconds, warm = float(content["wall_seconds"]), bool(content.get("warm", True))
    # One string for all rows of a session: there may be a million.
    session = sys.intern(str(content.get("session", "")))
    return Timing(content["hash"], seconds, warm, str(content.get("finished_at", "")), session)


# What of a run is kept in the plan. Not its context, which may differ where the sweep is continued.
_PLANNED = ("id", "hash", "kind", "config_json", "group", "batch", "cost")


def planned_row(run: Run) -> Row:
    """Returns what the plan keeps of a run."""
    return {name: getattr(run, name) for name in _PLANNED}


def planned_run(line: bytes) -> Run:
    """Returns the run of a line of the plan."""
    fields = _unseal(line)
    hash_in_line = fields.pop("hash")
    run = Run(**fields)
    texts = (run.id, run.kind, run.config_json, run.group, run.batch)
    if not all(isinstance(text, str) for text in texts) or hash_in_line != run.hash or not float(run.cost) > 0:
        raise files.DamagedError("Expected a run with its hash and a cost > 0")
    return run


def planned(line: bytes) -> Planned:
    """Returns what an estimate needs of a line of the plan."""
    fields = _unseal(line)
    return Planned(fields["id"], fields["hash"], sys.intern(fields["group"]), float(fields["cost"]))
