"""Which slot of an engine computes what next, and what becomes of the units of workers that die."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from tf_ensembles.trainers.sweeps import runs as sweep_runs
from tf_ensembles.trainers.sweeps.runs import Unit

# A run whose worker dies this often is recorded as failed: it may be what kills them.
MAX_DEATHS = 3


class Schedule:
    """Gives units to slots: a slot keeps to its group as long as there is work in it.

    The largest group comes first, so that the last to finish is not a large one. Where all groups with work have a
    slot, the next slot helps with the largest.
    """

    def __init__(self, units: Sequence[Unit]):
        self._queues: dict[str, collections.deque[Unit]] = collections.defaultdict(collections.deque)
        self._costs: dict[str, float] = collections.defaultdict(float)  # of what is in the queues
        for unit in units:
            self._queues[unit.group].append(unit)
            self._costs[unit.group] += unit.cost
        self._num_units = len(units)
        # Groups that no slot keeps to, or that have had one since.
        self._free = collections.deque(sorted(self._queues, key=lambda group: -self._costs[group]))
        self._group_of: dict[int, str] = {}

    def __len__(self) -> int:
        return self._num_units

    def next(self, slot: int, most: int = 1) -> Unit | None:
        """Takes the next unit for a slot: up to `most` units of single runs as one."""
        group = self._group_of.get(slot)
        if group is None or not self._queues[group]:
            group = self._next_group(slot)
            if group is None:
                return None
            self._group_of[slot] = group
        queue = self._queues[group]
        units = [queue.popleft()]
        while len(units) < most and queue and units[0].can_join(queue[0]):
            units.append(queue.popleft())
        self._num_units -= len(units)
        self._costs[group] -= sum(unit.cost for unit in units)
        return sweep_runs.join(units)

    def group_of(self, slot: int) -> str | None:
        """The group that a slot computed last."""
        return self._group_of.get(slot)

    def _next_group(self, slot: int) -> str | None:
        self._group_of.pop(slot, None)
        while self._free:
            group = self._free.popleft()
            if self._queues[group] and group not in self._group_of.values():
                return group
        shared = [group for group in self._group_of.values() if self._queues[group]]
        return max(shared, key=lambda group: self._costs[group]) if shared else None

    def put_back(self, unit: Unit) -> None:
        """Returns a unit whose worker died."""
        self._queues[unit.group].appendleft(unit)
        self._costs[unit.group] += unit.cost
        self._num_units += 1
        self._free.appendleft(unit.group)


class Deaths:
    """Counts the workers that died, and says which runs are to blame."""

    def __init__(self) -> None:
        self._batches: collections.Counter[frozenset[str]] = collections.Counter()
        self._runs: collections.Counter[str] = collections.Counter()

    def after(self, unit: Unit, running: str | None) -> tuple[list[Unit], list[str]]:
        """Returns what to compute again, and the hashes of runs to give up.

        Runs that are one call can only die together; after `MAX_DEATHS` they are computed one by one. Of runs that are
        computed one by one, the one that was running is to blame; the others are computed again.

        Args:
            unit: what the worker had been given, without what it had completed.
            running: the hash of the run that it was at, where that is known.
        """
        wanted = list(unit.wanted)
        if unit.is_one_call and len(unit.runs) > 1:
            key = frozenset(wanted)
            self._batches[key] += 1
            return [dataclasses.replace(unit, alone=self._batches[key] >= MAX_DEATHS)], []
        alone = {key: unit.without([other for other in wanted if other != key]) for key in wanted}
        if running not in wanted:
            if len(wanted) > 1:
                return [one for one in alone.values() if one is not None], []  # The next death will tell.
            running = wanted[0]
        self._runs[running] += 1
        if self._runs[running] < (1 if unit.alone else MAX_DEATHS):
            again = [alone[running], unit.without([running])]
            return [one for one in again if one is not None], []
        others = unit.without([running])
        return [] if others is None else [others], [running]
