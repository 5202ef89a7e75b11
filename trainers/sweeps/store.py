"""The results folder of a sweep: what was planned, what is done, what failed. One writer, any number of readers.

    plan.jsonl       the runs, one a line, appended
    results.jsonl    one row per completed run, appended; `pandas.read_json(path, lines=True)` reads it
    failures.jsonl   one row per failed attempt, with its error and traceback
    damaged.jsonl    lines that were not what was written, or that speak of what is damaged, moved here by a writer
    lock             held by the writing process, who also says in it who it is

Rows are appended whole lines at a time and reach the disk before they count as done. A process that dies while writing
can leave a last line without its end: readers leave it out, the next writer cuts it off. Every line ends with its
checksum; one that does not match is left out, which is told, and its run is computed again. The lock is the kernel's,
so it ends with its holder, however that ends.

The folder may be one of an object store, such as `s3://bucket/sweep` (`stores`). The writer alone commits: it appends
to files of its machine, and sends them whole every `COMMIT_SECONDS` and at its end. Where its machine is lost before,
the rows since are computed again. A claim in the place of the lock keeps a second writer away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import pathlib
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from tf_ensembles import files
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.sweeps import lines
from tf_ensembles.trainers.sweeps import runs as sweep_runs
from tf_ensembles.trainers.sweeps.lines import Row as Row

PLAN, RESULTS, FAILURES, DAMAGED, LOCK = "plan.jsonl", "results.jsonl", "failures.jsonl", "damaged.jsonl", "lock"

# A reader that looks whether a sweep is running holds the lock for an instant; a writer outwaits that.
_LOCK_PATIENCE = 1.5
# Seconds between two commits to an object store, which takes whole files only.
COMMIT_SECONDS = 20.0


class FolderInUseError(ValueError):
    """Another process is writing to the results folder."""


class StoreError(OSError):
    """The results folder cannot be written; what it held is as it was."""


def path_of(folder: stores.Root, name: str) -> pathlib.Path:
    """Returns a file of a results folder, as it is now."""
    place = stores.place(folder)
    place.fetch(name)
    return place.folder / name


def read_plan(folder: stores.Root) -> list[sweep_runs.Run]:
    """Returns all the runs that were ever planned in a folder, in their order."""
    return lines.read(path_of(folder, PLAN), lines.planned_run)[0]


def read_results(folder: stores.Root) -> list[Row]:
    """Returns the rows of completed runs in the order in which they were completed."""
    return lines.read(path_of(folder, RESULTS), lines.row)[0]


def read_failures(folder: stores.Root) -> list[Row]:
    """Returns the rows of failed attempts, also of runs that succeeded later."""
    return lines.read(path_of(folder, FAILURES), lines.row)[0]


def read_holder(folder: stores.Root) -> Row | None:
    """Returns who is writing to the folder, or None if nobody is."""
    try:
        file = os.open(stores.place(folder).folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
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
    with contextlib.suppress(ValueError, OSError):
        return files.parse_json(os.pread(file, 10_000, 0))
    return {}


@contextlib.contextmanager
def _writing(folder: pathlib.Path) -> Iterator[None]:
    """Says of an error of the system, such as a full disk, that earlier rows are intact."""
    try:
        yield
    except (stores.StoreError, StoreError):
        raise
    except OSError as error:
        raise StoreError(
            f"Expected to write to the results folder {folder}. Received: {error.strerror or error}. "
            "Rows written before are intact: run the same command again once it can be written."
        ) from error


class _Appender:
    """A JSON-lines file that only ever grows by whole lines."""

    def __init__(self, path: pathlib.Path):
        self._file = files.open_own(path, os.O_APPEND)
        self._size = os.fstat(self._file).st_size
        if self._size:  # A last line without its end is what a kill has left of one.
            with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as content:
                self._size = content.rfind(b"\n") + 1
            os.ftruncate(self._file, self._size)

    def append(self, rows: Iterable[Row]) -> None:
        """Writes rows and waits until they are on the disk; after an error the file is as before."""
        data = b"".join(files.seal(row) + b"\n" for row in rows)
        if not data:
            return
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        os.close(self._file)


class Store:
    """The results folder, opened for writing by one process at a time. Use it in a `with` statement."""

    def __init__(
        self, folder: str | os.PathLike[str], holder: Mapping[str, Any] | None = None, *, shared: bool = False
    ):
        """Opens the folder, making it if need be, or raises `FolderInUseError`.

        Args:
            folder: the results folder.
            holder: what to tell others about this process, beside its id and machine.
            shared: whether the folder may be one that every user of the machine can write to.
        """
        self.root = stores.check_root(folder)
        self._place = stores.place(folder)
        self.folder = self._place.folder  # of an object store: the cache of it
        self._committed_at, self._changed = time.monotonic(), set[str]()
        with contextlib.ExitStack() as self._files, _writing(self.folder):
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._check_private(shared)
            self._lock(holder or {})
            try:
                self._files.enter_context(self._place.claimed(wait=False, locked=True))
            except stores.BusyError:
                raise FolderInUseError(_in_use(folder, {})) from None
            self._place.fetch(PLAN, RESULTS, FAILURES, DAMAGED)
            for name in (RESULTS, FAILURES):
                os.close(files.open_own(self.folder / name))  # Raises where it is a link, or no file.
            timings = self._read(RESULTS, lines.timing)
            failed = self._read(FAILURES, lines.run_hash)
            planned = self._read(PLAN, lines.planned)
            self._results, self._failures = (self._open(name) for name in (RESULTS, FAILURES))
            self._files = self._files.pop_all()
        # Of completed runs no more than how long they took: there may be a million.
        self.timings = {timing.hash: timing for timing in timings}
        self.failed = set(failed) - set(self.timings)
        self._planned = {run.id: run.hash for run in planned}

    @property
    def done(self) -> Container[str]:
        """Hashes of the completed runs."""
        return self.timings.keys()

    @property
    def rows(self) -> dict[str, Row]:
        """The rows of completed runs by their hashes, read when they are asked for."""
        return {row["hash"]: row for row in read_results(self.folder)}

    def _check_private(self, shared: bool) -> None:
        mode = self.folder.stat().st_mode
        if mode & 0o002 and not shared:
            raise ValueError(
                f"Expected a results folder that not everybody can write to. Received: {self.folder}, mode "
                f"{mode & 0o7777:o}. 'chmod o-w {self.folder}' closes it, 'sweep run --shared-folder' (shared=True) "
                "accepts it"
            )

    def _read(self, name: str, convert: Any) -> list[Any]:
        """Returns what `convert` makes of the lines of a file; damaged ones are moved to a file of their own."""
        values, damaged = lines.read(self.folder / name, convert)
        self._set_aside(name, damaged)
        return values

    def _open(self, name: str) -> _Appender:
        appender = _Appender(self.folder / name)
        self._files.callback(appender.close)
        return appender

    def _lock(self, holder: Mapping[str, Any]) -> None:
        file = files.open_own(self.folder / LOCK)
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

    def _numbered_lines(self, name: str) -> list[tuple[int, bytes]]:
        with files.open_regular(self.folder / name) as file:
            return list(enumerate(file, start=1))

    def _set_aside(self, name: str, damaged: Sequence[int]) -> None:
        """Moves damaged lines to a file of their own, so that whoever reads this one finds rows only."""
        if not damaged:
            return
        numbers = set(damaged)
        numbered = self._numbered_lines(name)
        aside = files.open_own(self.folder / DAMAGED, os.O_APPEND)
        with os.fdopen(aside, "wb") as file:
            file.writelines(line for number, line in numbered if number in numbers)
            file.flush()
            os.fsync(aside)
        with files.atomic_path(self.folder / name, durable=True) as scratch:
            scratch.write_bytes(b"".join(line for number, line in numbered if number not in numbers))
        self._changed |= {DAMAGED, name}

    def plan(self, runs: Sequence[sweep_runs.Run]) -> None:
        """Adds runs to the plan. A run whose configuration is not that of the run planned under its id raises."""
        sweep_runs.check_unique(runs)
        added = []
        for run in runs:
            known = self._planned.get(run.id)
            if known is None:
                added.append(run)
            elif known != run.hash:
                planned = next((one.config_json for one in read_plan(self.folder) if one.id == run.id), "another")
                raise ValueError(
                    f"Expected {run.id} to be configured as planned in {self.folder}: {planned}. "
                    f"Received: {run.config_json}. Choose another folder for another sweep."
                )
        if added:
            with _writing(self.folder), contextlib.closing(_Appender(self.folder / PLAN)) as plan:
                plan.append(lines.planned_row(run) for run in added)
            self._changed.add(PLAN)
            self._commit()
        self._planned.update((run.id, run.hash) for run in added)

    def _commit(self, now: bool = False) -> None:
        """Sends what has changed to the store that the folder is of, and a sign of life, if it is time."""
        if now or time.monotonic() - self._committed_at > COMMIT_SECONDS:
            self._place.check_claim()
            self._place.commit(*sorted(self._changed))
            self._committed_at = time.monotonic()
            self._changed.clear()

    def append(self, rows: Sequence[Row], failures: Sequence[Row] = ()) -> None:
        """Writes rows of completed runs and of failed attempts. A run that is already there is not written twice."""
        fresh = {row["hash"]: row for row in rows if row["hash"] not in self.timings}
        with _writing(self.folder):
            self._results.append(fresh.values())
            self.timings.update((key, lines.timing_of(row)) for key, row in fresh.items())
            self._failures.append(failures)
        self._changed |= {name for name, new in ((RESULTS, fresh), (FAILURES, failures)) if new}
        self._commit()
        self.failed |= {row["hash"] for row in failures}
        self.failed -= set(fresh)

    def forget(self, hashes: Container[str]) -> int:
        """Takes rows of completed runs back, because what they speak of is damaged or gone; returns how many.

        They are moved to the damaged lines, and their runs are computed again.
        """
        forgotten = {key for key in self.timings if key in hashes}
        if forgotten:
            stored = self._numbered_lines(RESULTS)
            with _writing(self.folder):
                self._set_aside(RESULTS, [number for number, line in stored if lines.run_hash(line) in forgotten])
            self._results = self._open(RESULTS)  # The file is another one now.
            for key in forgotten:
                del self.timings[key]
        return len(forgotten)

    def close(self) -> None:
        """Closes the files and gives the folder to others."""
        with self._files:
            self._commit(now=True)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _in_use(folder: stores.Root, holder: Row) -> str:
    who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
    return (
        f"Expected {folder} to be free. Received: {who} is running this sweep there. "
        f"Wait for it, watch it with 'tf-ensembles sweep status {folder}', or choose another folder."
    )
