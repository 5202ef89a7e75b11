"""The results folder of a sweep: what was planned, what is done, what failed. One writer, any number of readers.

    plan.jsonl       the runs, one a line, replaced as a whole when it grows
    results.jsonl    one row per completed run, appended; `pandas.read_json(path, lines=True)` reads it
    failures.jsonl   one row per failed attempt, with its error and traceback
    lock             held by the writing process, who also says in it who it is

Rows are appended whole lines at a time and reach the disk before they count as done. A process that dies while writing
can leave a last line without its end: readers leave it out, the next writer cuts it off. The lock is the kernel's, so
it ends with its holder, however that ends.

Rows that were stored before kinds of runs had names are read as if they had one (`kinds.ALIASES`), so old folders are
continued and nothing in them is rewritten.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from trainers.sweeps import kinds
from trainers.sweeps import runs as sweep_runs

PLAN, RESULTS, FAILURES, LOCK = "plan.jsonl", "results.jsonl", "failures.jsonl", "lock"

# A reader that looks whether a sweep is running holds the lock for an instant; a writer outwaits that.
_LOCK_PATIENCE = 1.5

Row = dict[str, Any]


class FolderInUseError(ValueError):
    """Another process is writing to the results folder."""


class StoreError(OSError):
    """The results folder cannot be written; what it held is as it was."""


def read_lines(path: str | os.PathLike[str]) -> list[Row]:
    """Returns the complete rows of a JSON-lines file; a last line without its end is no row. [] without a file."""
    try:
        data = pathlib.Path(path).read_bytes()
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except ValueError:
            raise ValueError(f"Expected a JSON object in line {number} of {path}. Received: {line[:80]!r}") from None
    return rows


def read_plan(folder: str | os.PathLike[str]) -> list[sweep_runs.Run]:
    """Returns all the runs that were ever planned in a folder, in their order."""
    return [_planned_run(row) for row in read_lines(pathlib.Path(folder) / PLAN)]


def read_results(folder: str | os.PathLike[str]) -> list[Row]:
    """Returns the rows of completed runs in the order in which they were completed."""
    return [_with_kind(row) for row in read_lines(pathlib.Path(folder) / RESULTS)]


def read_failures(folder: str | os.PathLike[str]) -> list[Row]:
    """Returns the rows of failed attempts, also of runs that succeeded later."""
    return [_with_kind(row) for row in read_lines(pathlib.Path(folder) / FAILURES)]


# What of a run is kept in the plan. Not its context, which may differ where the sweep is continued.
_PLANNED = ("id", "kind", "config_json", "group", "batch", "cost")


def _planned_run(row: Row) -> sweep_runs.Run:
    fields = dict(row)
    if sweep_runs.FORMER_KIND in fields:
        fields["kind"] = kinds.current_name(fields.pop(sweep_runs.FORMER_KIND))
    return sweep_runs.Run(**fields)


def _with_kind(row: Row) -> Row:
    """Returns a row as it would be stored today: with its kind, and the hash that follows from it."""
    former = row.get(sweep_runs.FORMER_KIND)
    if former is None:
        return row
    kind, run_hash = kinds.current_name(former), row["hash"]
    if kind != former:
        run_hash = sweep_runs.hash_of(row["id"], kind, sweep_runs.canonical_json(row["config"]))
    rest = {name: value for name, value in row.items() if name not in ("id", "hash", sweep_runs.FORMER_KIND)}
    return {"id": row["id"], "hash": run_hash, "kind": kind, **rest}


def read_holder(folder: str | os.PathLike[str]) -> Row | None:
    """Returns who is writing to the folder, or None if nobody is."""
    try:
        file = os.open(pathlib.Path(folder) / LOCK, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _holder(file)
    finally:
        os.close(file)


def _holder(file: int) -> Row:
    """What the holder wrote into the lock; {} in the instant before it did."""
    with contextlib.suppress(ValueError):
        return dict(json.loads(os.pread(file, 10_000, 0)))
    return {}


def _trouble(folder: pathlib.Path, error: OSError) -> StoreError:
    return StoreError(
        f"Expected to write to the results folder {folder}. Received: {error.strerror or error}. "
        "Rows written before are intact: run the same command again once it can be written."
    )


class _Appender:
    """A JSON-lines file that only ever grows by whole lines."""

    def __init__(self, path: pathlib.Path):
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        self._size = self._cut_torn_line()

    def _cut_torn_line(self) -> int:
        size = os.fstat(self._file).st_size
        end, step = size, 1 << 16
        while end > 0:
            start = max(0, end - step)
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)
        return end

    def append(self, rows: Iterable[Row]) -> None:
        """Writes rows and waits until they are on the disk; after an error the file is as before."""
        data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        if not data:
            return
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise _trouble(self._path.parent, error) from error
        self._size += len(data)

    def close(self) -> None:
        os.close(self._file)


class Store:
    """The results folder, opened for writing by one process at a time. Use it in a `with` statement."""

    def __init__(self, folder: str | os.PathLike[str], holder: Mapping[str, Any] | None = None):
        """Opens the folder, making it if need be, or raises `FolderInUseError`.

        Args:
            folder: the results folder.
            holder: what to tell others about this process, beside its id and machine.
        """
        self.folder = pathlib.Path(folder)
        self._files = contextlib.ExitStack()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock(holder or {})
            self._results, self._failures = (self._open(name) for name in (RESULTS, FAILURES))
        except OSError as error:
            self._files.close()
            raise _trouble(self.folder, error) from error
        except BaseException:
            self._files.close()
            raise
        self.rows = {row["hash"]: row for row in read_results(self.folder)}
        self.failed = {row["hash"] for row in read_failures(self.folder)} - set(self.rows)
        self._plan = {run.id: run for run in read_plan(self.folder)}

    @property
    def done(self) -> set[str]:
        """Hashes of the completed runs."""
        return set(self.rows)

    def _open(self, name: str) -> _Appender:
        appender = _Appender(self.folder / name)
        self._files.callback(appender.close)
        return appender

    def _lock(self, holder: Mapping[str, Any]) -> None:
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        self._files.callback(os.close, file)
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise FolderInUseError(_in_use(self.folder, _holder(file))) from None
                time.sleep(0.05)
        content = json.dumps({"pid": os.getpid(), "host": os.uname().nodename, **holder}).encode()
        os.ftruncate(file, 0)
        os.pwrite(file, content, 0)

    def plan(self, runs: Sequence[sweep_runs.Run]) -> None:
        """Adds runs to the plan. A run whose configuration is not that of the run planned under its id raises."""
        sweep_runs.check_unique(runs)
        plan = dict(self._plan)
        for run in runs:
            known = plan.setdefault(run.id, run)
            if known.hash != run.hash:
                raise ValueError(
                    f"Expected {run.id} to be configured as planned in {self.folder}: {known.config_json}. "
                    f"Received: {run.config_json}. Choose another folder for another sweep."
                )
        if len(plan) > len(self._plan):
            self._replace_plan(plan.values())
        self._plan = plan

    def _replace_plan(self, runs: Iterable[sweep_runs.Run]) -> None:
        # Not files.atomic_path, which does not wait until the content is on the disk.
        scratch = self.folder / f"{PLAN}.new"
        try:
            with scratch.open("w") as file:
                file.writelines(json.dumps({name: getattr(run, name) for name in _PLANNED}) + "\n" for run in runs)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, self.folder / PLAN)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise _trouble(self.folder, error) from error

    def append(self, rows: Sequence[Row], failures: Sequence[Row] = ()) -> None:
        """Writes rows of completed runs and of failed attempts. A run that is already there is not written twice."""
        fresh = {row["hash"]: row for row in rows if row["hash"] not in self.rows}
        self._results.append(fresh.values())
        self.rows.update(fresh)
        self._failures.append(failures)
        self.failed |= {row["hash"] for row in failures}
        self.failed -= set(fresh)

    def close(self) -> None:
        """Closes the files and gives the folder to others."""
        self._files.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _in_use(folder: pathlib.Path, holder: Row) -> str:
    who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
    return (
        f"Expected {folder} to be free. Received: {who} is running this sweep there. "
        f"Wait for it, watch it with 'tf-ensembles sweep status {folder}', or choose another folder."
    )
