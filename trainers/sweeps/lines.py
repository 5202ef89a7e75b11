"""The lines of a results folder: how they are written and read, one at a time, and what happens to damaged ones."""

from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from tf_ensembles import files
from trainers.sweeps import kinds
from trainers.sweeps import runs as sweep_runs

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


@dataclasses.dataclass
class Found(Generic[_T]):
    """What a file holds."""

    found: list[_T]
    damaged: list[int]  # numbers of the lines that are not what was written
    unverified: int = 0  # lines from before there were checksums


def read(
    path: pathlib.Path, convert: Callable[[bytes], tuple[_T, bool]], keep: Callable[[_T], _T] | None = None
) -> Found[_T]:
    """Reads a file of lines; one without its end is no line. Damaged ones are left out, which is told in one line.

    Args:
        path: the file; where there is none, there are no lines.
        convert: makes something of a line, and says whether its checksum was verified; raises where it is damaged.
        keep: makes less of it, to keep.
    """
    result: Found[_T] = Found([], [])
    try:
        file = files.open_regular(path)
    except FileNotFoundError:
        return result
    with file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                one, verified = convert(line)
            except DAMAGE:
                result.damaged.append(number)
                continue
            result.found.append(one if keep is None else keep(one))
            result.unverified += not verified
    if result.damaged:
        numbers = ", ".join(map(str, result.damaged[:5])) + (", ..." if len(result.damaged) > 5 else "")
        _log.warning(
            "%s: %d damaged line%s left out (line %s); the next run of the sweep computes what they held",
            path, len(result.damaged), "s" * (len(result.damaged) > 1), numbers,
        )  # fmt: skip
    return result


def read_lines(path: str | os.PathLike[str]) -> list[Row]:
    """Returns the rows of a JSON-lines file of ours, without their checksums."""
    return read(pathlib.Path(path), files.unseal).found


# Rows.


def row(line: bytes) -> tuple[Row, bool]:
    """Returns a row as it would be stored today: with its kind, and the hash that follows from it."""
    content, verified = files.unseal(line)
    former = content.get(sweep_runs.FORMER_KIND)
    # What is sealed may still be no row: sealed by another program, or another kind of line.
    if not isinstance(content["hash"], str) or not isinstance(content["id"], str):
        raise files.DamagedError("no hash or id")
    if not verified:
        _check_row(content)
    if former is None:
        return content, verified
    kind, run_hash = kinds.current_name(former), content["hash"]
    if kind != former:
        run_hash = sweep_runs.hash_of(content["id"], kind, sweep_runs.canonical_json(content["config"]))
    rest = {name: value for name, value in content.items() if name not in ("id", "hash", sweep_runs.FORMER_KIND)}
    return {"id": content["id"], "hash": run_hash, "kind": kind, **rest}, verified


def _check_row(content: Row) -> None:
    """Raises where a row without a checksum cannot be one of ours."""
    config = content["config"]
    if not isinstance(config, dict) or any(content.get(name, value) != value for name, value in config.items()):
        raise files.DamagedError("a configuration that is not that of the row")
    names = set(content) - set(config) - sweep_runs.RESERVED
    if not all(content[name] is None or isinstance(content[name], (bool, int, float, str)) for name in names):
        raise files.DamagedError("a result that is no scalar")


def hash_only(content: Row) -> Row:
    """Keeps the hash of a row."""
    return {"hash": content["hash"]}


# The beginning and the end of a row as today's code writes it. Strings of JSON have no quotation mark of their own in
# them, and after the last "wall_seconds" there are facts only: what is found between is what parsing would give.
_START = re.compile(rb'\{"id": "(?:[^"\\]|\\.)*", "hash": "([0-9a-f]{32})"')
_FACTS = re.compile(
    rb', "wall_seconds": ([-+.0-9e]+), "warm": (true|false), "finished_at": "([-+.:T0-9]+)", "session": "([^"\\]*)"'
)


def timing(line: bytes) -> tuple[Timing, bool]:
    """Returns what a status needs of a row, without parsing all of it where today's code wrote it."""
    start, end = _START.match(line), line.rfind(b', "wall_seconds": ')
    facts = _FACTS.match(line, end) if start is not None and end >= 0 else None
    if start is not None and facts is not None and files.is_sealed(line):
        seconds, warm, finished, session = facts.groups()
        found = Timing(start[1].decode(), float(seconds), warm == b"true", finished.decode(), _shared(session))
        return found, True
    content, verified = row(line)
    return timing_of(content), verified


_known: dict[bytes, str] = {}


def _shared(text: bytes) -> str:
    """One string for all rows of a session, or of a group."""
    found = _known.get(text)
    if found is None:
        found = _known[text] = text.decode()
    return found


def timing_of(content: Row) -> Timing:
    """Returns the same of a parsed row."""
    warm = content.get("warm")
    times = float(content["wall_seconds"]), warm is None or bool(warm)
    return Timing(content["hash"], *times, str(content.get("finished_at", "")), str(content.get("session", "")))


# The plan.

# What of a run is kept in the plan. Not its context, which may differ where the sweep is continued.
_PLANNED = ("id", "hash", "kind", "config_json", "group", "batch", "cost")


def plan_line(run: sweep_runs.Run) -> bytes:
    """Returns the line of a run, with its end."""
    return files.seal({name: getattr(run, name) for name in _PLANNED}) + b"\n"


def planned_run(line: bytes) -> tuple[sweep_runs.Run, bool]:
    """Returns the run of a line of the plan."""
    fields, verified = files.unseal(line)
    return _run(fields), verified


def _run(fields: Row) -> sweep_runs.Run:
    if sweep_runs.FORMER_KIND in fields:
        fields["kind"] = kinds.current_name(fields.pop(sweep_runs.FORMER_KIND))
    run_hash = fields.pop("hash", None)
    run = sweep_runs.Run(**fields)
    if not all(isinstance(getattr(run, name), str) for name in ("id", "kind", "config_json", "group", "batch")):
        raise files.DamagedError("no run")
    if not isinstance(run.cost, (int, float)) or not float(run.cost) > 0 or (run_hash or run.hash) != run.hash:
        raise files.DamagedError("no run")
    return run


# As of rows: the beginning and the end of a line, where nothing in it is escaped.
_PLAN_START = re.compile(rb'\{"id": "([^"\\]*)", "hash": "([0-9a-f]{32})"')
_PLAN_END = re.compile(rb', "group": "([^"\\]*)", "batch": "[^"\\]*", "cost": ([-+.0-9e]+), "checksum"')


def planned(line: bytes) -> tuple[Planned, bool]:
    """Returns what an estimate needs of a line of the plan, without parsing all of it where today's code wrote it."""
    start, place = _PLAN_START.match(line), line.rfind(b', "group": ')
    end = _PLAN_END.match(line, place) if start is not None and place >= 0 else None
    if start is not None and end is not None and files.is_sealed(line):
        return Planned(start[1].decode(), start[2].decode(), _shared(end[1]), float(end[2])), True
    fields, verified = files.unseal(line)
    if verified:
        return Planned(fields["id"], fields["hash"], fields["group"], fields["cost"]), True
    run = _run(fields)
    return Planned(run.id, run.hash, run.group, run.cost), False
