"""Sweeps past one machine, by simulation: the real scheduler and the real driver against workers that are made up.

    python -m benchmarks.studies.scale preemption [--members 10000] [--nodes 1000]
    python -m benchmarks.studies.scale driver [--runs 100000] [--workers 1000]

`preemption` has a virtual clock: members that train for hours on nodes that are taken away at random and come back
later. `driver` runs a whole sweep on workers that answer at once: what the driver itself needs per run, and its memory.
Results: `docs/scale.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import pathlib
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks import speed
from trainers.sweeps import engines, runs, schedule, sweep

NOTHING = "benchmarks.speed.sweep:compute_nothing"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What is simulated; times in hours unless they are said to be in seconds."""

    members: int = 10_000
    nodes: int = 1_000
    hours: float = 2.0  # of a member's training, alone
    rate: float = 0.05  # how often a node is taken away, per hour
    away: float = 0.25  # until another comes in its place
    checkpoint_seconds: float = 20.0  # between two checkpoints: what a kill may lose
    start_seconds: float = 30.0  # of a worker: imports and compilation
    driver_seconds: float = 2e-3  # of the driver per message: one to give out a run, one to take it back
    seed: int = 0


@dataclasses.dataclass
class Outcome:
    """What became of it."""

    hours: float = 0.0  # until the last member was finished
    finished: int = 0
    failed: int = 0
    preemptions: int = 0
    lost_hours: float = 0.0  # of computing that had to be repeated, and of workers that started again
    driver_share: float = 0.0  # of the time that the driver was busy
    store_operations: int = 0  # checkpoints, results, looks at where a member is


def simulate(cluster: Cluster, counts_progress: bool = True) -> Outcome:
    """Returns how a training of many members goes, by the real schedule and its rules for workers that die.

    Args:
        cluster: what is simulated.
        counts_progress: whether a run whose checkpoint has moved is spared a count against it, as it is.
    """
    random = np.random.default_rng(cluster.seed)
    made = [runs.make_run(f"member{m}", NOTHING, {"seed": m}) for m in range(cluster.members)]
    plan, deaths = schedule.Schedule(runs.make_units(made)), schedule.Deaths()
    left = dict.fromkeys((run.hash for run in made), cluster.hours)
    result, driver_until, busy = Outcome(), 0.0, 0.0
    start, interval = cluster.start_seconds / 3600, cluster.checkpoint_seconds / 3600
    message = cluster.driver_seconds / 3600
    # When a node becomes free, or is taken away at work, or has come back.
    events: list[tuple[float, int, runs.Unit | None, bool]]
    events, idle = [(0.0, node, None, False) for node in range(cluster.nodes)], list[int]()
    while events:
        now, node, unit, taken = heapq.heappop(events)
        if unit is not None:
            (key,) = unit.wanted
            result.store_operations += 2  # A look at where the member is, and its result or its death.
            driver_until = max(now, driver_until) + message
            busy += message
            if taken:
                result.preemptions += 1
                moved = left[key] < cluster.hours and counts_progress
                again, given_up = ([unit], []) if moved else deaths.after(unit, key)
                for one in again:
                    plan.put_back(one)
                    if idle:
                        heapq.heappush(events, (driver_until, idle.pop(), None, False))
                result.failed += len(given_up)
                heapq.heappush(events, (now + cluster.away, node, None, False))
                continue
            result.finished += 1
            result.hours = now
        given = plan.next(node)
        if given is None:
            idle.append(node)  # Until a member comes back.
            continue
        driver_until = max(now, driver_until) + message
        busy += message
        (key,) = given.wanted
        begin, need = driver_until, start + left[key]
        until_taken = random.exponential(1.0 / cluster.rate) if cluster.rate else np.inf
        if until_taken >= need:
            result.store_operations += int(left[key] / interval)
            heapq.heappush(events, (begin + need, node, given, False))
            continue
        trained = max(0.0, until_taken - start)
        kept = interval * int(trained / interval)
        result.store_operations += int(trained / interval)
        result.lost_hours += until_taken - kept
        left[key] -= kept
        heapq.heappush(events, (begin + until_taken, node, given, True))
    result.driver_share = busy / result.hours if result.hours else 0.0
    return result


class Instantly:
    """An engine of many slots whose workers answer at once; `most` outcomes are told at a time."""

    def __init__(self, num_slots: int, most: int = 1000) -> None:
        self.num_slots, self._most = num_slots, most
        self._answers: list[engines.Event] = []

    def submit(self, slot: int, message: dict[str, Any]) -> None:
        """Answers."""
        facts = {"wall_seconds": 60.0, "warm": True, "finished_at": "", "versions": {}, "machine": {}}
        outcomes = [{"hash": key, "result": {"value": 1.0}, **facts} for key in message["wanted"]]
        self._answers.append(engines.Event(slot, tuple(outcomes)))

    def wait(self, timeout: float) -> list[engines.Event]:
        """Returns the next answers."""
        told, self._answers = self._answers[: self._most], self._answers[self._most :]
        return told

    def close(self) -> None:
        """Ends nothing."""


def drive(num_runs: int, num_workers: int) -> dict[str, float]:
    """Returns what the driver of a sweep needs: milliseconds of CPU per run, and its memory in MB."""
    made = [sweep.make_run(f"r{n}", NOTHING, {"seed": n}, group=f"g{n % 1000}") for n in range(num_runs)]
    with tempfile.TemporaryDirectory() as folder:
        before = time.process_time()
        with sweep.Sweep(pathlib.Path(folder), engine=lambda: Instantly(num_workers)) as one:
            report = one.execute(made)
        seconds = time.process_time() - before
    if report.completed != num_runs:
        raise RuntimeError(f"Expected {num_runs} completed runs. Received: {report}")
    memory = speed.peak_megabytes()
    return {"cpu_ms_per_run": 1e3 * seconds / num_runs, "memory_mb": memory}


def main() -> None:
    """Runs a simulation and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("preemption", "driver"))
    parser.add_argument("--members", type=int, default=Cluster.members)
    parser.add_argument("--nodes", type=int, default=Cluster.nodes)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=1_000)
    args = parser.parse_args()
    if args.what == "driver":
        cost = drive(args.runs, args.workers)
        print(f"{args.runs:,} runs on {args.workers:,} workers: {cost['cpu_ms_per_run']:.3f} ms of the driver's CPU")
        print(f"per run, {cost['memory_mb']:.0f} MB")
        return
    print("| taken away, per hour | hours | ideal | lost | driver busy | store operations/s | failed |")
    print("|---|---|---|---|---|---|---|")
    for rate in (0.0, 0.01, 0.05, 0.2, 1.0):
        cluster = Cluster(members=args.members, nodes=args.nodes, rate=rate)
        found = simulate(cluster)
        ideal = cluster.hours * cluster.members / cluster.nodes
        lost = found.lost_hours / (cluster.members * cluster.hours)
        each = found.store_operations / (3600 * found.hours)
        print(
            f"| {rate:g} | {found.hours:.1f} | {ideal:.1f} | {lost:.2%} | {found.driver_share:.2%} | {each:.0f} | "
            f"{found.failed} |"
        )


if __name__ == "__main__":
    main()
