"""Which slot of an engine computes what next, and what becomes of the units of workers that die."""

from __future__ import annotations

import collections
import dataclasses
import heapq
from collections.abc import Sequence

from trainers.sweeps import runs as sweep_runs
from trainers.sweeps.runs import Unit

# A run whose worker dies this often is recorded as failed: it may be what kills them.
MAX_DEATHS = 3


@dataclasses.dataclass
class _Group:
    """The units of a group that nobody computes yet."""

    name: str
    number: int  # in the order of the plan
    queue: collections.deque[Unit] = dataclasses.field(default_factory=collections.deque)
    cost: float = 0.0
    owners: int = 0  # slots that keep to it

    def sort_key(self) -> tuple[float, int]:
        return -self.cost, self.number


class Schedule:
    """Gives units to slots: a slot keeps to its group as long as there is work in it.

    The next group of a slot is found in a heap of those that no slot keeps to, so that a sweep of many thousand groups
    takes no longer per run than one of a few.
    """

    def __init__(self, units: Sequence[Unit]):
        self._groups: dict[str, _Group] = {}
        self._group_of: dict[int, _Group] = {}
        self._num_units = 0
        for unit in units:
            self._add(unit).queue.append(unit)
        self._free = [(*group.sort_key(), group.name) for group in self._groups.values()]
        heapq.heapify(self._free)

    def _add(self, unit: Unit) -> _Group:
        group = self._groups.get(unit.group)
        if group is None:
            group = self._groups[unit.group] = _Group(unit.group, len(self._groups))
        group.cost += unit.cost
        self._num_units += 1
        return group

    def __bool__(self) -> bool:
        return self._num_units > 0

    def __len__(self) -> int:
        return self._num_units

    def next(self, slot: int, most: int = 1) -> Unit | None:
        """Takes the next unit for a slot: up to `most` units of single runs as one."""
        group = self._group_of.get(slot)
        if group is None or not group.queue:
            group = self._next_group(slot)
            if group is None:
                return None
        units = [group.queue.popleft()]
        while len(units) < most and group.queue and units[0].can_join(group.queue[0]):
            units.append(group.queue.popleft())
        self._num_units -= len(units)
        group.cost = group.cost - sum(unit.cost for unit in units) if group.queue else 0.0
        return sweep_runs.join(units)

    def group_of(self, slot: int) -> str | None:
        """The group that a slot computed last."""
        group = self._group_of.get(slot)
        return None if group is None else group.name

    def _next_group(self, slot: int) -> _Group | None:
        before = self._group_of.pop(slot, None)
        if before is not None:
            before.owners -= 1
        # The largest first, so that the last to finish is not a large one; one that nobody has compiled, if any.
        group = self._largest_free()
        if group is None:
            shared = [owned for owned in self._group_of.values() if owned.queue]
            group = min(shared, key=_Group.sort_key) if shared else None
        if group is not None:
            group.owners += 1
            self._group_of[slot] = group
        return group

    def _largest_free(self) -> _Group | None:
        while self._free:
            cost, _, name = heapq.heappop(self._free)
            group = self._groups[name]
            # Entries of former days are left where they were: a group was taken, or its cost has changed.
            if group.queue and not group.owners and cost == -group.cost:
                return group
        return None

    def put_back(self, unit: Unit) -> None:
        """Returns a unit whose worker died."""
        group = self._add(unit)
        group.queue.appendleft(unit)
        if not group.owners:
            heapq.heappush(self._free, (*group.sort_key(), group.name))


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
