"""What a sweep tells people: how far it is, how fast, how long it will take."""

from __future__ import annotations

import dataclasses
import datetime
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from trainers.sweeps import runs as sweep_runs
from trainers.sweeps import store as sweep_store


@dataclasses.dataclass(frozen=True)
class Status:
    """How far a sweep is."""

    total: int
    done: int
    failed: int  # runs whose last attempt failed
    runs_per_second: float | None  # of the session that is running, or of the last one
    seconds_left: float | None  # None: nothing was measured yet
    holder: Mapping[str, Any] | None  # who is running it; None: nobody

    @property
    def left(self) -> int:
        """Runs that are neither done nor failed."""
        return self.total - self.done - self.failed


def seconds_left(
    runs: Iterable[sweep_runs.Run], rows: Mapping[str, Mapping[str, Any]], skip: set[str], num_workers: int
) -> float | None:
    """Estimates the time of the missing runs from the measured time of the others, per group where it has any.

    Runs that had to start up first count only in a group that has no warm ones.

    Args:
        runs: the plan.
        rows: completed rows by hash.
        skip: hashes of runs that will not be computed.
        num_workers: how many run at a time.
    """
    spent: dict[tuple[str, bool], list[float]] = {}  # seconds and cost, by group and whether warm; group "": all
    missing: dict[str, float] = {}
    for run in runs:
        key = run.hash
        if key in rows:
            warm = bool(rows[key].get("warm", True))
            for group in ("", f"group {run.group}"):
                entry = spent.setdefault((group, warm), [0.0, 0.0])
                entry[0] += rows[key]["wall_seconds"]
                entry[1] += run.cost
        elif key not in skip:
            missing[f"group {run.group}"] = missing.get(f"group {run.group}", 0.0) + run.cost
    if not missing:
        return 0.0
    if not spent:
        return None
    total = 0.0
    for group, cost in missing.items():
        order = ((group, True), ("", True), (group, False), ("", False))
        seconds, measured = next(spent[kind] for kind in order if kind in spent)
        total += cost * seconds / measured
    return total / num_workers


def read_status(folder: str | os.PathLike[str]) -> Status:
    """Reads how far the sweep of a folder is, also while another process runs it."""
    runs = sweep_store.read_plan(folder)
    if not runs:
        raise ValueError(f"Expected the results folder of a sweep. Received: {os.fspath(folder)}")
    rows = {row["hash"]: row for row in sweep_store.read_results(folder)}
    hashes = {run.hash for run in runs}
    failed = ({row["hash"] for row in sweep_store.read_failures(folder)} & hashes) - set(rows)
    holder = sweep_store.read_holder(folder)
    left = seconds_left(runs, rows, failed, int((holder or {}).get("workers", 0)) or 1)
    return Status(len(runs), len(hashes & set(rows)), len(failed), _throughput(list(rows.values())), left, holder)


def _throughput(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Runs per second of the last session."""
    mine = [row for row in rows if row["session"] == rows[-1]["session"]]
    if len(mine) < 2:
        return None
    # A session's name begins with the time of its start.
    start = datetime.datetime.fromisoformat(mine[0]["session"].split()[0])
    end = max(datetime.datetime.fromisoformat(row["finished_at"]) for row in mine)
    return len(mine) / max((end - start).total_seconds(), 1e-3)


def format_status(status: Status) -> str:
    """Returns a status as text."""
    lines = [f"{status.total} runs: {status.done} done, {status.failed} failed, {status.left} left"]
    if status.runs_per_second is not None:
        lines.append(f"throughput {format_rate(status.runs_per_second)}")
    if status.left and status.seconds_left is not None:
        workers = int((status.holder or {}).get("workers", 0)) or 1
        lines.append(
            f"about {format_seconds(status.seconds_left)} left on {workers} worker{'s' if workers > 1 else ''}"
        )
    if status.holder is not None:
        holder = dict(status.holder)
        lines.append(f"running: process {holder.get('pid')} on {holder.get('host')}, {holder.get('engine')} engine")
    else:
        lines.append("complete" if not status.left and not status.failed else "not running")
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
    for scale, unit in ((1.0, "s"), (60.0, "min"), (3600.0, "h")):
        if rate * scale >= 1.0 or unit == "h":
            return f"{rate * scale:.1f} runs/{unit}"
    raise AssertionError


class Bar:
    """A progress bar with throughput, failures and time left."""

    def __init__(self, total: int, done: int, enabled: bool = True):
        import tqdm

        self._start, self._fresh, self._failed = time.monotonic(), 0, 0
        terminal = sys.stderr.isatty()
        self._bar = tqdm.tqdm(
            total=total,
            initial=done,
            disable=not enabled,
            mininterval=0.2 if terminal else 20.0,
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} runs [{elapsed}{postfix}]",
            leave=True,
        )

    def update(self, completed: int, failed: int, left: float | None) -> None:
        """Counts runs that have just been completed or have failed."""
        self._fresh += completed
        self._failed += failed
        rate = self._fresh / max(time.monotonic() - self._start, 1e-3)
        text = f"{format_rate(rate)}, {self._failed} failed"
        if left is not None:
            text += f", {format_seconds(left)} left"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(completed)

    def close(self) -> None:
        """Leaves the bar as it is."""
        self._bar.close()
