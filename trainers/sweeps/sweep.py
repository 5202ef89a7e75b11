"""Sweeps: thousands of independent runs, on one machine or a cluster, that survive whatever happens to them.

    runs = [sweep.make_run(f"square/seed{s}", "my_module:square", {"x": 2.0, "seed": s}) for s in range(100)]
    with sweep.Sweep("results/sweep/square") as my_sweep:
        my_sweep.execute(runs)
    table = sweep.read("results/sweep/square")          # a pandas DataFrame, one row per run

A killed sweep continues where it was when the same is called again: rows are written once, whole, or not at all
(`store`). Runs are computed by local worker processes or by Ray (`engines`).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal

from tf_ensembles import extras, machine
from trainers.sweeps import engines as sweep_engines
from trainers.sweeps import progress as sweep_progress
from trainers.sweeps import runs as sweep_runs
from trainers.sweeps import store as sweep_store
from trainers.sweeps.runs import Run as Run
from trainers.sweeps.runs import make_run as make_run

if TYPE_CHECKING:
    import pandas as pd

EngineName = Literal["local", "ray"]

# A run whose worker dies this often is recorded as failed: it may be what kills them.
MAX_DEATHS = 3

# How often to refresh the estimate of the time left, which looks at all runs.
_ESTIMATE_EVERY = 2.0
_PATIENCE = 20.0  # seconds after the first outcome that a better one to estimate from is waited for


@dataclasses.dataclass(frozen=True)
class Report:
    """What `Sweep.execute` did."""

    completed: int  # rows written now
    failed: int  # of the planned runs, those that are failed now
    left: int  # not computed: stopped, or out of time
    stopped: bool  # by Ctrl-C or SIGTERM


def make_engine(
    name: EngineName | str = "local", num_workers: int | None = None, address: str | None = None
) -> sweep_engines.Engine:
    """Returns an engine by name.

    Args:
        name: `"local"` for worker processes, `"ray"` for Ray.
        num_workers: units computed at a time; by default one per core.
        address: of a running Ray cluster; by default Ray is started on this machine.
    """
    if name == "local":
        if address is not None:
            raise ValueError(f"Expected an address for the ray engine only. Received: {address!r}")
        return sweep_engines.LocalEngine(num_workers)
    if name == "ray":
        return sweep_engines.RayEngine(num_workers, address)
    raise ValueError(f"Expected engine 'local' or 'ray'. Received: {name!r}")


def read(folder: str | os.PathLike[str], *, facts: bool = True) -> pd.DataFrame:
    """Returns the table of a results folder: one row per completed run, in the order of the plan.

    Args:
        folder: the results folder; another process may be writing to it.
        facts: whether to keep what differs from one computation of a run to the next (wall time, machine, ...).
    """
    extras.require("pandas", "The table of a sweep")
    import pandas as pd

    rows = {row["hash"]: row for row in sweep_store.read_results(folder)}
    planned = [run.hash for run in sweep_store.read_plan(folder)]
    table = pd.DataFrame([rows[key] for key in planned if key in rows])
    return table if facts else table.drop(columns=[name for name in sweep_runs.FACTS if name in table])


class _Schedule:
    """Gives units to slots: a slot keeps to its group as long as there is work in it."""

    def __init__(self, units: Sequence[sweep_runs.Unit]):
        self._queues: dict[str, collections.deque[sweep_runs.Unit]] = {}
        for unit in units:
            self._queues.setdefault(unit.group, collections.deque()).append(unit)
        self._group_of: dict[int, str] = {}

    def __bool__(self) -> bool:
        return any(self._queues.values())

    def next(self, slot: int) -> sweep_runs.Unit | None:
        """Takes the next unit for a slot."""
        group = self._group_of.get(slot)
        if group is None or not self._queues.get(group):
            left = {name: sum(unit.cost for unit in queue) for name, queue in self._queues.items() if queue}
            if not left:
                return None
            taken = {other for owner, other in self._group_of.items() if owner != slot}
            # The largest first, so that the last to finish is not a large one; one that nobody has compiled, if any.
            group = max(left, key=lambda name: (name not in taken, left[name]))
            self._group_of[slot] = group
        return self._queues[group].popleft()

    def put_back(self, unit: sweep_runs.Unit) -> None:
        """Returns a unit whose worker died."""
        self._queues.setdefault(unit.group, collections.deque()).appendleft(unit)


class Sweep:
    """A results folder and an engine. Use it in a `with` statement, and call `execute` once per stage."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        engine: EngineName | str | Callable[[], sweep_engines.Engine] = "local",
        num_workers: int | None = None,
        address: str | None = None,
        show: bool = False,
    ):
        """Locks the folder; the engine starts when there is something to compute.

        Args:
            folder: the results folder, made if it does not exist.
            engine: `"local"`, `"ray"` or a function that makes an engine.
            num_workers: runs computed at a time; by default one per core.
            address: of a running Ray cluster.
            show: whether to print how far the sweep is, with a progress bar.
        """
        name = engine if isinstance(engine, str) else "custom"
        self._make: Callable[[], sweep_engines.Engine] = (
            engine if callable(engine) else lambda: make_engine(name, num_workers, address)
        )
        self._engine: sweep_engines.Engine | None = None
        self._show = show
        now = datetime.datetime.now(datetime.UTC).isoformat()
        self._session = f"{now} {os.getpid()}"
        workers = num_workers or machine.usable_cores()
        self.store = sweep_store.Store(folder, {"engine": name, "workers": workers, "started": now})

    def execute(self, runs: Sequence[Run], *, retry_failed: bool = False, time_limit: float | None = None) -> Report:
        """Computes the runs whose rows are missing.

        Args:
            runs: the plan; runs that are done are skipped.
            retry_failed: whether to compute failed runs again.
            time_limit: seconds after which no more runs are started; those that are running are waited for.
        """
        self.store.plan(runs)
        hashes = {run.hash for run in runs}
        failed_before = self.store.failed & hashes
        skip = set() if retry_failed else set(failed_before)
        units = sweep_runs.make_units(runs, self.store.done | skip)
        before = len(self.store.rows)
        if self._show:
            self._announce(runs, skip)
        stopped = False
        if units and (time_limit is None or time_limit > 0):
            if self._engine is None:
                self._engine = self._make()
            stopped = _Loop(self, self._engine, runs, units, skip, time_limit).run()
        failed = len(self.store.failed & hashes)
        left = len(hashes - self.store.done - self.store.failed)
        return Report(len(self.store.rows) - before, failed, left, stopped)

    def _announce(self, runs: Sequence[Run], skip: set[str]) -> None:
        hashes = {run.hash for run in runs}
        done = len(hashes & self.store.done)
        text = f"{len(runs)} runs, {done} done"
        if skip:
            text += f", {len(skip)} failed before (--retry-failed runs them again)"
        print(f"{text}, {len(hashes) - done - len(skip)} to do in {self.store.folder}", flush=True)

    def row(self, run: Run, outcome: dict[str, Any]) -> sweep_store.Row:
        """Returns the row of an outcome: configuration and result as columns, and the facts of the run."""
        about = {"id": run.id, "hash": run.hash, "kind": run.kind}
        config = run.config
        if "error" in outcome:
            content = {**about, "config": config, **{key: outcome[key] for key in ("error", "traceback")}}
        else:
            content = {**about, **config, **outcome["result"], "config": config}
        facts = {name: outcome.get(name) for name in sweep_runs.FACTS}
        return {**content, **facts, "session": self._session}

    def close(self) -> None:
        """Ends the workers and gives the folder to others."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self.store.close()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def shows(self) -> bool:
        """Whether people watch."""
        return self._show


class _Loop:
    """One call of `Sweep.execute`: keeps the slots busy and writes what comes back."""

    def __init__(
        self,
        sweep: Sweep,
        engine: sweep_engines.Engine,
        runs: Sequence[Run],
        units: Sequence[sweep_runs.Unit],
        skip: set[str],
        time_limit: float | None,
    ):
        self._sweep, self._engine, self._runs, self._skip = sweep, engine, runs, skip
        self._store = sweep.store
        self._schedule = _Schedule(units)
        self._run_of = {run.hash: run for unit in units for run in unit.runs}
        self._busy: dict[int, sweep_runs.Unit] = {}
        self._deaths: collections.Counter[frozenset[str]] = collections.Counter()
        self._deadline = float("inf") if time_limit is None else time.monotonic() + time_limit
        self._stop = False
        self._estimated_at, self._left_then = -float("inf"), 0.0

    def run(self) -> bool:
        """Returns whether it was stopped."""
        with self._stopping_on_signals():
            if self._sweep.shows:
                self._measure_first()
            done = len({run.hash for run in self._runs} & self._store.done)
            bar = sweep_progress.Bar(len(self._runs), done, self._sweep.shows)
            try:
                while not self._stop and self._fill(self._engine.num_slots):
                    completed, failed = self._collect()
                    bar.update(completed, failed, self._left())
            finally:
                bar.close()
        return self._stop

    def _measure_first(self) -> None:
        """Computes units until one has given a time to estimate the whole from, unless there are such rows.

        The first run of a worker also imports and compiles: for a while, one that did not is waited for.
        """
        patience = float("inf")
        while not self._stop and not self._warm() and time.monotonic() < patience:
            if not self._fill(self._engine.num_slots):
                break
            if any(self._collect()) and patience == float("inf"):
                patience = time.monotonic() + _PATIENCE
        self._estimated_at = -float("inf")
        left = self._left()
        if left is not None and not self._stop:
            workers = self._engine.num_slots
            text = f"{sweep_progress.format_seconds(left)} on {workers} worker{'s' if workers > 1 else ''}"
            about, how = ("about", "completed runs") if self._warm() else ("at most", "first runs, start-up included")
            print(
                f"{about} {text}, from the measured time of {how}; Ctrl-C stops, the same command continues",
                flush=True,
            )

    def _warm(self) -> bool:
        """Whether the time of some run is known that did not have to start up first."""
        return any(self._store.rows[run.hash].get("warm", True) for run in self._runs if run.hash in self._store.rows)

    def _left(self) -> float | None:
        now = time.monotonic()
        if now - self._estimated_at > _ESTIMATE_EVERY:
            skip = self._skip | self._store.failed
            left = sweep_progress.seconds_left(self._runs, self._store.rows, skip, self._engine.num_slots)
            if left is None:
                return None
            self._estimated_at, self._left_then = now, left
        return max(0.0, self._left_then - (now - self._estimated_at))

    def _fill(self, num_slots: int) -> bool:
        """Gives work to free slots; returns whether any slot is busy."""
        for slot in range(num_slots):
            if slot not in self._busy and time.monotonic() < self._deadline:
                unit = self._schedule.next(slot)
                if unit is not None:
                    self._busy[slot] = unit
                    self._engine.submit(slot, unit.message())
        return bool(self._busy)

    def _collect(self) -> tuple[int, int]:
        """Waits for outcomes and writes them; returns how many runs were completed and how many failed."""
        # A short wait, because a signal's handler only sets a flag.
        outcomes: list[dict[str, Any]] = []
        for event in self._engine.wait(0.25):
            unit = self._busy.pop(event.slot)
            outcomes += self._after_death(unit, event.death) if event.death is not None else event.outcomes
        rows = [(self._sweep.row(self._run_of[outcome["hash"]], outcome), "error" in outcome) for outcome in outcomes]
        good, bad = [row for row, failed in rows if not failed], [row for row, failed in rows if failed]
        self._store.append(good, bad)
        return len(good), len(bad)

    def _after_death(self, unit: sweep_runs.Unit, reason: str) -> list[dict[str, Any]]:
        """Gives a dead worker's unit out again, or gives it up; returns the outcomes in the latter case."""
        self._deaths[unit.wanted] += 1
        if self._deaths[unit.wanted] < MAX_DEATHS:
            self._schedule.put_back(unit)
            return []
        error = f"WorkerDied: {MAX_DEATHS} workers died computing this: {reason.splitlines()[0]}"
        return [{"hash": run_hash, "error": error, "traceback": reason} for run_hash in sorted(unit.wanted)]

    @contextlib.contextmanager
    def _stopping_on_signals(self) -> Iterator[None]:
        """Lets Ctrl-C and SIGTERM end the loop between two writes. Only the main thread can do so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            self._stop = True

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
