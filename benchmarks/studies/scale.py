"""Sweeps past one machine, by simulation: the real schedule, and its rules for workers that die, under a virtual clock.

    tf-ensembles sweep run benchmarks.studies.scale --preset standard

Members train for hours on nodes that are taken away at random and come back later. Results: `docs/scale.md`.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds, runs, schedule

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("scale", "tf_ensembles.benchmarks.studies.scale:compute")


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

    finished_hours: float = 0.0  # until the last member was finished
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
    made = [runs.make_run(f"member{m}", KIND, {"seed": m}) for m in range(cluster.members)]
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
            result.finished_hours = now
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
    result.driver_share = busy / result.finished_hours if result.finished_hours else 0.0
    return result


def compute(config: Mapping[str, Any]) -> dict[str, float]:
    """One run: what becomes of a training where nodes are taken away at a rate."""
    cluster = Cluster(**config)
    outcome = simulate(cluster)
    return {
        **dataclasses.asdict(outcome),
        "ideal_hours": cluster.hours * cluster.members / cluster.nodes,
        "lost_share": outcome.lost_hours / (cluster.members * cluster.hours),
        "operations_per_second": outcome.store_operations / (3600 * outcome.finished_hours),
    }


class _Study(base.Study):
    name, part, kept, kind = "scale", "scale", "preemption", KIND
    columns = ("rate", "finished_hours", "ideal_hours", "lost_share", "driver_share", "operations_per_second", "failed")
    title = "Members on nodes that are taken away"
    about = "By the rate at which nodes are taken away, per hour; simulated."
    presets = {"quick": (100, 20), "standard": (10_000, 1_000)}  # members and nodes

    def configs(self, size: tuple[int, int]) -> list[dict[str, Any]]:
        """Returns some rates."""
        return [{"members": size[0], "nodes": size[1], "rate": rate} for rate in (0.0, 0.01, 0.05, 0.2, 1.0)]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns the hours that all take, and the share that is lost."""
        shown = {"finished_hours": "hours", "lost_share": "share of training that is lost"}
        return [
            base.Panel(
                label,
                label,
                tuple(
                    panels.Series(f"{x:g}", (panels.Point(0, y),))
                    for x, y in zip(table.rate, table[column], strict=True)
                ),
            )
            for column, label in shown.items()
        ]


FIGURE = _Study()
