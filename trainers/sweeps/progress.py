"""What a sweep tells people: how far it is, how fast, how long it will take."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import math
import os
import sys
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from tf_ensembles.trainers.sweeps import lines as sweep_lines
from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps.lines import Planned, Timing
from tf_ensembles.trainers.sweeps.runs import Run

_SOONEST, _RAREST = 2.0, 60.0  # seconds between lines where there is no terminal


@dataclasses.dataclass(frozen=True)
class Status:
    """How far a sweep is."""

    total: int
    done: int
    failed: int  # runs whose last attempt failed
    runs_per_second: float | None  # of the session that is running, or of the last one
    seconds_left: float | None  # None: nothing was measured yet
    holder: Mapping[str, Any] | None  # who is running it; None: nobody
    damaged: int = 0  # lines of the folder that are not what was written

    @property
    def left(self) -> int:
        """Runs that are neither done nor failed."""
        return self.total - self.done - self.failed


class Estimate:
    """The time of the missing runs, from the measured time of the others, per group where it has any.

    Runs that had to start up first count only in a group that has no warm ones.
    """

    def __init__(self) -> None:
        self._spent: dict[tuple[str | None, bool], list[float]] = {}  # seconds and cost, by group and whether warm
        self._missing: dict[str, float] = collections.defaultdict(float)  # cost by group
        self._num_missing = 0

    @property
    def is_warm(self) -> bool:
        """Whether the time of some run is known that did not have to start up first."""
        return (None, True) in self._spent

    def want(self, run: Run | Planned) -> None:
        """Adds a run that is to be computed."""
        self._missing[run.group] += run.cost
        self._num_missing += 1

    def give_up(self, run: Run | Planned) -> None:
        """Takes a run away that was wanted."""
        self._missing[run.group] = max(0.0, self._missing[run.group] - run.cost)
        self._num_missing -= 1

    def learn(self, run: Run | Planned, seconds: float, warm: bool) -> None:
        """Adds the time of a completed run."""
        for group in (None, run.group):
            entry = self._spent.setdefault((group, warm), [0.0, 0.0])
            entry[0] += seconds
            entry[1] += run.cost

    def seconds_left(self, num_workers: int) -> float | None:
        """Returns the time that is left, with so many workers; None where no time is known."""
        if self._num_missing <= 0:
            return 0.0
        if not self._spent:
            return None
        total = 0.0
        for group, cost in self._missing.items():
            order = ((group, True), (None, True), (group, False), (None, False))
            seconds, measured = next(self._spent[kind] for kind in order if kind in self._spent)
            total += cost * seconds / measured
        return total / num_workers


def make_estimate(runs: Iterable[Run | Planned], timings: Mapping[str, Timing], skip: Container[str]) -> Estimate:
    """Returns an estimate of the runs that are neither completed nor skipped.

    Args:
        runs: the plan.
        timings: of completed runs, by hash.
        skip: hashes of runs that will not be computed.
    """
    estimate = Estimate()
    for run in runs:
        timing = timings.get(run.hash)
        if timing is not None:
            estimate.learn(run, timing.wall_seconds, timing.warm)
        elif run.hash not in skip:
            estimate.want(run)
    return estimate


def read_status(folder: str | os.PathLike[str]) -> Status:
    """Reads how far the sweep of a folder is, also while another process runs it."""
    plan, damaged = sweep_lines.read(sweep_store.path_of(folder, sweep_store.PLAN), sweep_lines.planned)
    if not plan:
        raise ValueError(
            f"Expected the results folder of a sweep, with a {sweep_store.PLAN} in it. Received: {os.fspath(folder)}"
        )
    results, more_damaged = sweep_lines.read(sweep_store.path_of(folder, sweep_store.RESULTS), sweep_lines.timing)
    failures, _ = sweep_lines.read(sweep_store.path_of(folder, sweep_store.FAILURES), sweep_lines.run_hash)
    timings = {timing.hash: timing for timing in results}
    hashes = {run.hash for run in plan}
    failed = {key for key in failures if key in hashes and key not in timings}
    holder = sweep_store.read_holder(folder)
    left = make_estimate(plan, timings, failed).seconds_left(_workers(holder))
    done = sum(key in hashes for key in timings)
    damage = len(damaged) + len(more_damaged)
    return Status(len(hashes), done, len(failed), _throughput(results), left, holder, damage)


def _workers(holder: Mapping[str, Any] | None) -> int:
    workers = (holder or {}).get("workers")
    return workers if isinstance(workers, int) and workers > 0 else 1


def _throughput(timings: Sequence[Timing]) -> float | None:
    """Returns the runs per second of the last session."""
    last = [timing for timing in timings if timing.session == timings[-1].session]
    if len(last) < 2:
        return None
    try:
        # A session's name begins with the time of its start. Of many runs the first may be the start: what came before
        # was planning.
        start = min(one.finished_at for one in last) if len(last) >= 50 else last[0].session.split()[0]
        end = max(one.finished_at for one in last)
        seconds = (datetime.datetime.fromisoformat(end) - datetime.datetime.fromisoformat(start)).total_seconds()
    except (ValueError, IndexError, TypeError):
        return None
    return len(last) / max(seconds, 1e-3)


def format_status(status: Status) -> str:
    """Returns a status as text."""
    lines = [f"{status.total} runs: {status.done} done, {status.failed} failed, {status.left} left"]
    if status.runs_per_second is not None:
        lines.append(f"throughput {format_rate(status.runs_per_second)}")
    if status.left and status.seconds_left is not None:
        workers = _workers(status.holder)
        lines.append(
            f"about {format_seconds(status.seconds_left)} left on {workers} worker{'s' if workers > 1 else ''}"
        )
    if status.holder is not None:
        holder = status.holder
        lines.append(f"running: process {holder.get('pid')} on {holder.get('host')}, {holder.get('engine')} engine")
    else:
        lines.append("complete" if not status.left and not status.failed else "not running")
    if status.damaged:
        lines.append(f"{status.damaged} damaged lines were left out; the next run computes what they held")
    if status.failed:
        lines.append("failures.jsonl has the errors; --retry-failed runs them again")
    return "\n".join(lines)


def format_seconds(seconds: float) -> str:
    """Returns a time as `35 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_rate(rate: float) -> str:
    """Returns a throughput as runs per second, minute or hour."""
    for scale, unit in ((1.0, "s"), (60.0, "min")):
        if rate * scale >= 1.0:
            return f"{rate * scale:.1f} runs/{unit}"
    return f"{rate * 3600.0:.1f} runs/h"


class Bar:
    """A progress bar with throughput, failures and time left; where no terminal is, a line now and then instead."""

    def __init__(self, total: int, done: int, enabled: bool = True):
        self._start, self._fresh, self._failed = time.monotonic(), 0, 0
        self._total, self._done, self._next, self._text = total, done, -math.inf, ""
        self._bar: Any = None
        if enabled and sys.stderr.isatty():
            import tqdm

            bar_format = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} runs [{elapsed}{postfix}]"
            self._bar = tqdm.tqdm(total=total, initial=done, mininterval=0.2, bar_format=bar_format)
        self._lines = enabled and self._bar is None

    def update(self, completed: int, failed: int, left: float | None) -> None:
        """Counts runs that have just been completed or have failed."""
        self._fresh += completed
        self._failed += failed
        elapsed = time.monotonic() - self._start
        text = f"{format_rate(self._fresh / max(elapsed, 1e-3))}, {self._failed} failed"
        if left is not None:
            text += f", {format_seconds(left)} left"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(completed)
        self._text = f"{self._done + self._fresh}/{self._total} runs, {text}"
        if self._lines and elapsed >= self._next:
            # The longer it takes, the rarer: an hour has about seventy lines.
            self._next = elapsed + min(_RAREST, max(_SOONEST, 0.05 * elapsed))
            print(self._text, file=sys.stderr, flush=True)
            self._text = ""

    def close(self) -> None:
        """Leaves the bar as it is; or says how it ended, unless it was said."""
        if self._bar is not None:
            self._bar.close()
        elif self._lines and self._text:
            print(self._text, file=sys.stderr, flush=True)
