"""Sweeps: thousands of independent runs, on one machine or a cluster, that survive whatever happens to them.

    runs = [sweep.make_run(f"square/seed{s}", "my_module:square", {"x": 2.0, "seed": s}) for s in range(100)]
    with sweep.Sweep("results/sweep/square") as my_sweep:
        my_sweep.execute(runs)
    table = sweep.read("results/sweep/square")          # a pandas DataFrame, one row per run

A killed sweep continues where it was when the same is called again: rows are written once, whole, or not at all
(`store`). Runs are computed by local worker processes or by Ray (`engines`).
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from tf_ensembles import extras, machine
from tf_ensembles.trainers import preemption
from tf_ensembles.trainers.sweeps import engines as sweep_engines
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import progress as sweep_progress
from tf_ensembles.trainers.sweeps import runs as sweep_runs
from tf_ensembles.trainers.sweeps import schedule as sweep_schedule
from tf_ensembles.trainers.sweeps import signals as sweep_signals
from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps import worker as sweep_worker
from tf_ensembles.trainers.sweeps.runs import Run as Run
from tf_ensembles.trainers.sweeps.runs import make_run as make_run

if TYPE_CHECKING:
    import pandas as pd

EngineName = Literal["local", "ray"]

# How often to refresh the estimate of the time left, which looks at all runs.
_ESTIMATE_EVERY = 2.0
# Short runs are given to a worker many at a time: about so many seconds of them, and no more than so many.
_PACK_SECONDS, _PACK_MOST = 0.2, 200
_PATIENCE = 20.0  # seconds after the first outcome that a better one to estimate from is waited for


@dataclasses.dataclass(frozen=True)
class Report:
    """What `Sweep.execute` did."""

    completed: int  # rows written now
    failed: int  # of the planned runs, those that are failed now
    left: int  # not computed: stopped, or out of time
    stopped: bool  # by Ctrl-C or SIGTERM


def make_engine(
    name: EngineName | str = "local", num_workers: int | None = None, **options: Any
) -> sweep_engines.Engine:
    """Returns an engine by name.

    Args:
        name: `"local"` for worker processes, `"ray"` for Ray.
        num_workers: units computed at a time; by default one per core.
        **options: of `ray_engine.RayEngine`: `address`, `gpus_per_run`, `ship` and `bring`. Local workers see all files
            of this machine, so the last two say nothing to them.
    """
    if name == "local":
        for option, value in options.items():
            if value and option not in ("ship", "bring"):
                raise ValueError(f"Expected {option} for the ray engine only. Received: {value!r}")
        return sweep_engines.LocalEngine(num_workers)
    if name == "ray":
        from tf_ensembles.trainers.sweeps import ray_engine

        return ray_engine.RayEngine(num_workers, **options)
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


class Sweep:
    """A results folder and an engine. Use it in a `with` statement, and call `execute` once per stage."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        engine: EngineName | str | Callable[[], sweep_engines.Engine] = "local",
        num_workers: int | None = None,
        show: bool = False,
        shared: bool = False,
        **options: Any,
    ):
        """Locks the folder; the engine starts when there is something to compute.

        Args:
            folder: the results folder, made if it does not exist; or an address such as `gs://bucket/sweep`.
            engine: `"local"`, `"ray"` or a function that makes an engine.
            num_workers: runs computed at a time; by default one per core.
            show: whether to print how far the sweep is, with a progress bar.
            shared: whether the folder may be one that every user of the machine can write to.
            **options: of the Ray engine, such as the `address` of a cluster; see `make_engine`.
        """
        name = engine if isinstance(engine, str) else "custom"
        self._make: Callable[[], sweep_engines.Engine]
        if isinstance(engine, str):
            self._make = functools.partial(make_engine, name, num_workers, **options)
        else:
            self._make = engine
        self._engine: sweep_engines.Engine | None = None
        self._stop = sweep_signals.Stop("")
        self._guarded = name == "ray"
        self._goes_on = False  # whether runs of the last plan are of a kind that goes on from where it was
        self.show = show
        now = datetime.datetime.now(datetime.UTC).isoformat()
        self._session = f"{now} {os.getpid()}"
        workers = num_workers or machine.usable_cores()
        self.store = sweep_store.Store(folder, {"engine": name, "workers": workers, "started": now}, shared=shared)

    def execute(self, runs: Sequence[Run], *, retry_failed: bool = False, time_limit: float | None = None) -> Report:
        """Computes the runs whose rows are missing.

        Args:
            runs: the plan; runs that are done are skipped.
            retry_failed: whether to compute failed runs again.
            time_limit: seconds after which no more runs are started; those that are running are waited for.
        """
        self.store.plan(runs)
        self._goes_on = any(kinds.progress_of(kind) for kind in {run.kind for run in runs})
        skip = set() if retry_failed else {run.hash for run in runs if run.hash in self.store.failed}
        done = self.store.done
        units = sweep_runs.make_units(runs, done, skip)
        before = len(self.store.timings)
        if self.show:
            num_done = sum(run.hash in done for run in runs)
            failed_before = f", {len(skip)} failed before (--retry-failed runs them again)" if skip else ""
            to_do = f"{len(runs) - num_done - len(skip)} to do in {self.store.root}"
            print(f"{len(runs)} runs, {num_done} done{failed_before}, {to_do}", flush=True)
        self._stop = sweep_signals.Stop(f"what was finished is stored in {self.store.root}")
        if units and (time_limit is None or time_limit > 0):
            try:
                with self._stop.listening(guarded=self._guarded):
                    if self._engine is None:
                        self._engine = self._make()
                        self._stop.take_back()
                    _Loop(self, self._engine, runs, units, skip, time_limit, self._stop).run()
            except sweep_engines.EngineLostError as error:
                completed = len(self.store.timings) - before
                raise sweep_engines.EngineLostError(
                    f"{error}. {completed} runs of this session and all before are stored in {self.store.root}; the "
                    "same command continues"
                ) from None
        failed = sum(run.hash in self.store.failed for run in runs)
        left = sum(run.hash not in done and run.hash not in self.store.failed for run in runs)
        return Report(len(self.store.timings) - before, failed, left, self._stop.asked)

    def raise_if_stopped(self) -> None:
        """Raises where a signal has stopped the last `execute`: `KeyboardInterrupt`, or `Preempted` after SIGTERM."""
        if self._stop.number == signal.SIGTERM:
            raise preemption.Preempted("what was finished is stored")
        if self._stop.asked:
            raise KeyboardInterrupt

    def row(self, run: Run, outcome: dict[str, Any]) -> sweep_store.Row:
        """Returns the row of an outcome: configuration and result as columns, and the facts of the run."""
        content: sweep_store.Row = {"id": run.id, "hash": run.hash, "kind": run.kind}
        config = run.config
        if "error" in outcome:
            content |= {"config": config, "error": outcome["error"], "traceback": outcome["traceback"]}
        else:
            content |= {**config, **outcome["result"], "config": config}
        return {**content, **{name: outcome.get(name) for name in sweep_runs.FACTS}, "session": self._session}

    def close(self) -> None:
        """Ends the workers and gives the folder to others."""
        if self._engine is not None:
            notice = self._stop.notice if self._goes_on else 0.0
            with self._stop.closing(notice):
                if notice and isinstance(self._engine, sweep_engines.LocalEngine):
                    self._engine.give_notice(notice)
                self._engine.close()
            self._engine = None
        self.store.close()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
        stop: sweep_signals.Stop,
    ):
        self._sweep, self._engine, self._total = sweep, engine, len(runs)
        self._store = sweep.store
        self._schedule = sweep_schedule.Schedule(units)
        self._run_of = {run.hash: run for unit in units for run in unit.runs}
        self._busy: dict[int, sweep_runs.Unit] = {}
        self._completed: dict[int, set[str]] = {}  # by slot: hashes of its unit's runs that are completed
        self._deaths = sweep_schedule.Deaths()
        self._steps: dict[str, int] = {}  # by hash: how far a run had come when its last worker died
        self._estimate = sweep_progress.make_estimate(runs, self._store.timings, skip)
        self._num_done = sum(run.hash in self._store.timings for run in runs)
        self._deadline = float("inf") if time_limit is None else time.monotonic() + time_limit
        self._stop = stop
        self._estimated_at, self._left_then = -float("inf"), 0.0
        self._seconds: dict[str, float] = {}  # by group: of its last run

    def run(self) -> None:
        """Computes until all is done, time is over or a signal came."""
        if self._sweep.show:
            self._measure_first()
        bar = sweep_progress.Bar(self._total, self._num_done, self._sweep.show)
        try:
            while not self._stop.asked and self._fill(self._engine.num_slots):
                completed, failed = self._collect()
                bar.update(completed, failed, self._left())
            self._collect(0.0)  # What has come back by now is not lost.
        finally:
            bar.close()

    def _measure_first(self) -> None:
        """Computes units until one has given a time to estimate the whole from, unless there are such rows.

        The first run of a worker also imports and compiles: for a while, one that did not is waited for.
        """
        patience = float("inf")
        while not self._stop.asked and not self._estimate.is_warm and time.monotonic() < patience:
            if not self._fill(self._engine.num_slots):
                break
            if any(self._collect()) and patience == float("inf"):
                patience = time.monotonic() + _PATIENCE
        self._estimated_at = -float("inf")
        left = self._left()
        if left is not None and not self._stop.asked:
            workers = self._engine.num_slots
            text = f"{sweep_progress.format_seconds(left)} on {workers} worker{'s' if workers > 1 else ''}"
            warm = self._estimate.is_warm
            about, how = ("about", "completed runs") if warm else ("at most", "first runs, start-up included")
            print(
                f"{about} {text}, from the measured time of {how}; Ctrl-C stops, the same command continues",
                flush=True,
            )

    def _left(self) -> float | None:
        now = time.monotonic()
        if now - self._estimated_at > _ESTIMATE_EVERY:
            left = self._estimate.seconds_left(self._engine.num_slots)
            if left is None:
                return None
            self._estimated_at, self._left_then = now, left
        return max(0.0, self._left_then - (now - self._estimated_at))

    def _fill(self, num_slots: int) -> bool:
        """Gives work to free slots; returns whether any slot is busy."""
        for slot in range(num_slots):
            if slot not in self._busy and time.monotonic() < self._deadline:
                unit = self._schedule.next(slot, self._pack(slot, num_slots))
                if unit is not None:
                    self._busy[slot], self._completed[slot] = unit, set()
                    self._engine.submit(slot, unit.message())
        return bool(self._busy)

    def _pack(self, slot: int, num_slots: int) -> int:
        """How many short runs to give to a worker at a time: not so many that others have nothing to do in the end."""
        group = self._schedule.group_of(slot)
        seconds = self._seconds.get(group) if group is not None else None
        if seconds is None:
            return 1
        fair = len(self._schedule) // (4 * num_slots)
        return max(1, min(_PACK_MOST, fair, int(_PACK_SECONDS / max(seconds, 1e-9))))

    def _collect(self, timeout: float = 0.25) -> tuple[int, int]:
        """Waits for outcomes and writes them; returns how many runs were completed and how many failed."""
        # A short wait, because a signal's handler only sets a flag.
        outcomes: list[dict[str, Any]] = []
        for event in self._engine.wait(timeout):
            if event.slot not in self._busy:
                continue  # A worker without work has died.
            self._completed[event.slot] |= {outcome["hash"] for outcome in event.outcomes}
            outcomes += event.outcomes
            if not event.more:
                unit = self._busy.pop(event.slot)
                if event.death is not None:
                    outcomes += self._after_death(unit, event)
        rows: list[sweep_store.Row] = []
        failures: list[sweep_store.Row] = []
        for outcome in outcomes:
            run = self._run_of[outcome["hash"]]
            self._estimate.give_up(run)
            if "error" in outcome:
                failures.append(self._sweep.row(run, outcome))
            else:
                rows.append(self._sweep.row(run, outcome))
                self._seconds[run.group] = outcome["wall_seconds"]
                self._estimate.learn(run, outcome["wall_seconds"], outcome["warm"])
        self._store.append(rows, failures)
        return len(rows), len(failures)

    def _after_death(self, unit: sweep_runs.Unit, event: sweep_engines.Event) -> list[dict[str, Any]]:
        """Gives what is left of a dead worker's unit out again, or gives it up; returns outcomes in the latter case."""
        left = unit.without(self._completed[event.slot])
        if left is None:
            return []
        if self._has_come_farther(left, event.running):
            again, given_up = [left], list[str]()
        else:
            again, given_up = self._deaths.after(left, event.running)
        for one in reversed(again):
            self._schedule.put_back(one)
        reason = event.death or "unknown"
        times = "a worker" if unit.alone else f"{sweep_schedule.MAX_DEATHS} workers"
        error = f"WorkerDied: {times} died computing this: {reason.splitlines()[0]}"
        return [{"hash": run_hash, "error": error, "traceback": reason} for run_hash in given_up]

    def _has_come_farther(self, unit: sweep_runs.Unit, running: str | None) -> bool:
        """Whether the run that a dead worker was at has been continued by it: a node was taken away, more likely."""
        key = running if running is not None or len(unit.wanted) > 1 else next(iter(unit.wanted))
        run = self._run_of.get(key or "")
        name = kinds.progress_of(run.kind) if run is not None else ""
        if run is None or not name:
            return False
        try:
            steps = int(sweep_worker.resolve(name)(run.config, **json.loads(run.context_json)))
        except (OSError, ValueError):
            return False
        before, self._steps[run.hash] = self._steps.get(run.hash, 0), steps
        return steps > before
