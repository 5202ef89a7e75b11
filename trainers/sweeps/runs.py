"""What a sweep consists of: runs, and the units in which they are computed.

A run is a kind, a configuration and a string id such as `testbed/d10-r100-t0.1/ensemble-bp/seed3`. Everything about it
is text, so the same run can be named, hashed, sent to a worker on another machine and found again years later. Where
things are on a machine is its context: it travels to the worker and is part of nothing that is stored.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from tf_ensembles.trainers.sweeps import kinds

# Columns of a row that are about the run, beside those of its configuration and of its result.
ABOUT = ("id", "hash", "kind", "config")
# Columns that say how a run went; they differ between two computations of the same run.
FACTS = ("wall_seconds", "warm", "finished_at", "session", "versions", "machine")
# Names that neither configurations nor results may have.
RESERVED = frozenset({*ABOUT, *FACTS, "checksum"})


@dataclasses.dataclass(frozen=True)
class Run:
    """One computation of a sweep; make it with `make_run`. Its result is one row."""

    id: str  # names the run from the table to the plot; unique in a sweep
    kind: str  # a registered name, or "module:function"; see `kinds`
    config_json: str  # the configuration as canonical JSON
    group: str = ""  # runs of one group share compiled code: they go to the same worker
    batch: str = ""  # runs of one batch are computed by one call on the list of their configurations; "": alone
    cost: float = 1.0  # relative to other runs, for estimates of time
    context_json: str = "{}"  # keyword arguments of the function that say where things are; neither hashed nor stored

    @property
    def config(self) -> dict[str, Any]:
        """A fresh copy of the configuration."""
        return dict(json.loads(self.config_json))

    @functools.cached_property
    def hash(self) -> str:
        """Of id, kind and configuration: 32 hexadecimal digits, the same on every machine."""
        return hash_of(self.id, self.kind, self.config_json)


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """What a worker is given at a time: the runs of a batch, which are one call, or runs that are one call each."""

    runs: tuple[Run, ...]
    wanted: Collection[str]  # hashes of those whose rows are missing
    alone: bool = False  # whether the runs of a batch are computed one by one, because together they killed workers

    @property
    def group(self) -> str:
        """The group of the runs."""
        return self.runs[0].group

    @property
    def cost(self) -> float:
        """Of computing all the runs."""
        return sum(run.cost for run in self.runs)

    @property
    def is_one_call(self) -> bool:
        """Whether the runs are computed together, as a batch."""
        return bool(self.runs[0].batch) and not self.alone

    def without(self, hashes: Collection[str]) -> Unit | None:
        """Returns what is left to compute; None where nothing is."""
        wanted = tuple(key for key in self.wanted if key not in hashes)
        # The runs of a batch stay together: a worker must know all of them.
        runs = self.runs if self.runs[0].batch else tuple(run for run in self.runs if run.hash in wanted)
        return dataclasses.replace(self, runs=runs, wanted=wanted) if wanted else None

    def can_join(self, other: Unit) -> bool:
        """Whether a worker can be given both at a time."""
        one, two = self.runs[0], other.runs[0]
        if one.batch or two.batch:
            return False
        return (one.kind, one.group, one.context_json) == (two.kind, two.group, two.context_json)

    def message(self) -> dict[str, Any]:
        """Returns what `worker.compute` takes. It names the function, so that workers need not know kinds."""
        return {
            "function": kinds.function_of(self.runs[0].kind),
            "context": json.loads(self.runs[0].context_json),
            "group": self.runs[0].group,
            "batch": bool(self.runs[0].batch),
            "alone": self.alone,
            "runs": [(run.hash, run.config_json) for run in self.runs],
            "wanted": sorted(self.wanted),
        }


def join(units: Sequence[Unit]) -> Unit:
    """Returns units that can be given to a worker at a time as one."""
    if len(units) == 1:
        return units[0]
    runs = tuple(run for unit in units for run in unit.runs)
    return Unit(runs, tuple(key for unit in units for key in unit.wanted))


def make_run(
    run_id: str,
    kind: str,
    config: Mapping[str, Any],
    *,
    context: Mapping[str, Any] | None = None,
    group: str = "",
    batch: str = "",
    cost: float = 1.0,
) -> Run:
    """Returns a run.

    Args:
        run_id: a readable name, unique in its sweep, without spaces.
        kind: the name of a registered kind, or a function of your own as `"module:function"`. It is called as
            `function(config, **context)`, or with a list of configurations where `batch` is given, and returns a dict
            of scalars, or a list of such dicts.
        config: names to JSON values; finite numbers only. A `seed` belongs here.
        context: where things are, such as a folder of data: names to JSON values. It is no part of what the run is: no
            result may depend on it.
        group: runs of one group go to the same worker as long as it can be.
        batch: runs of one batch are computed together, always all of them, so that their values do not depend on what
            was computed before.
        cost: relative computing time.
    """
    if not run_id or any(character.isspace() for character in run_id):
        raise ValueError(f"Expected a run id without spaces. Received: {run_id!r}")
    kinds.function_of(kind)  # Raises where there is none.
    if taken := sorted(set(config) & RESERVED):
        raise ValueError(f"Expected a configuration without the names {', '.join(taken)}. Received: {dict(config)}")
    if not cost > 0:
        raise ValueError(f"Expected cost > 0. Received: {cost}")
    texts = canonical_json(dict(config)), canonical_json(dict(context or {}))
    return Run(run_id, kind, texts[0], group, batch, float(cost), texts[1])


def hash_of(run_id: str, kind: str, config_json: str) -> str:
    """Returns the hash of a run; it names rows on disk."""
    return hashlib.sha256(json.dumps([run_id, kind, config_json]).encode()).hexdigest()[:32]


def canonical_json(value: Any) -> str:
    """Returns the one JSON text of a value: sorted names, no spaces, no NaN."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"Expected JSON values and finite numbers. Received: {value!r} ({error})") from None


def check_unique(runs: Sequence[Run]) -> None:
    """Raises where two runs share an id, or where the runs of a batch cannot be computed by one call."""
    ids: dict[str, Run] = {}
    batches: dict[str, Run] = {}
    for run in runs:
        if run.id in ids:
            raise ValueError(f"Expected a different id for every run. Received twice: {run.id}")
        ids[run.id] = run
        first = batches.setdefault(run.batch, run) if run.batch else run
        if (first.kind, first.group, first.context_json) != (run.kind, run.group, run.context_json):
            raise ValueError(f"Expected one kind, group and context per batch. Received: {first.id} and {run.id}")


def make_units(runs: Sequence[Run], *done: Container[str]) -> list[Unit]:
    """Returns the units that are not complete, in the order of their first runs.

    Which runs make a unit depends on the plan only. A batch of which some rows are missing is computed whole, because
    its values may depend, in their last digits, on what is computed beside them.
    """
    calls: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        calls.setdefault((run.batch, "" if run.batch else run.id), []).append(run)
    units = []
    for together in calls.values():
        wanted = tuple(run.hash for run in together if not any(run.hash in hashes for hashes in done))
        if wanted:
            units.append(Unit(tuple(together), wanted))
    return units
