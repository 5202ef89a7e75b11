"""What a sweep consists of: runs, and the units in which they are computed.

A run is a function by its dotted name, a configuration and a string id such as
`testbed/d10-r100-t0.1/ensemble-bp/seed3`. Everything about it is text, so the same run can be named, hashed, sent to a
worker on another machine and found again years later.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Columns of a row that are about the run, beside those of its configuration and of its result.
ABOUT = ("id", "hash", "function", "config")
# Columns that say how a run went; they differ between two computations of the same run.
FACTS = ("wall_seconds", "warm", "finished_at", "session", "versions", "machine")

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclasses.dataclass(frozen=True)
class Run:
    """One computation of a sweep; make it with `make_run`. Its result is one row."""

    id: str  # names the run from the table to the plot; unique in a sweep
    function: str  # "module:function", from a configuration to a dict of scalars
    config_json: str  # the configuration as canonical JSON
    group: str = ""  # runs of one group share compiled code: they go to the same worker
    batch: str = ""  # runs of one batch are computed by one call on the list of their configurations; "": alone
    cost: float = 1.0  # relative to other runs, for estimates of time

    @property
    def config(self) -> dict[str, Any]:
        """A fresh copy of the configuration."""
        return dict(json.loads(self.config_json))

    @functools.cached_property
    def hash(self) -> str:
        """Of id, function and configuration: 32 hexadecimal digits, the same on every machine."""
        content = json.dumps([self.id, self.function, self.config_json])
        return hashlib.sha256(content.encode()).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Unit:
    """What a worker is given at a time: one run, or all the runs of a batch."""

    runs: tuple[Run, ...]
    wanted: frozenset[str]  # hashes of those whose rows are missing

    @property
    def group(self) -> str:
        """The group of the runs."""
        return self.runs[0].group

    @property
    def cost(self) -> float:
        """Of computing all the runs."""
        return sum(run.cost for run in self.runs)

    def message(self) -> dict[str, Any]:
        """Returns what `sweep_worker.compute` takes."""
        return {
            "function": self.runs[0].function,
            "group": self.runs[0].group,
            "batch": bool(self.runs[0].batch),
            "runs": [(run.hash, run.config_json) for run in self.runs],
            "wanted": sorted(self.wanted),
        }


def make_run(
    run_id: str,
    function: str,
    config: Mapping[str, Any],
    *,
    group: str = "",
    batch: str = "",
    cost: float = 1.0,
) -> Run:
    """Returns a run.

    Args:
        run_id: a readable name, unique in its sweep, without spaces.
        function: `"module:function"`; takes a configuration, or a list of them where `batch` is given, and returns a
            dict of scalars, or a list of such dicts.
        config: names to JSON values; finite numbers only. A `seed` belongs here.
        group: runs of one group go to the same worker as long as it can be.
        batch: runs of one batch are computed together, always all of them, so that their values do not depend on what
            was computed before.
        cost: relative computing time.
    """
    if not run_id or any(character.isspace() for character in run_id):
        raise ValueError(f"Expected a run id without spaces. Received: {run_id!r}")
    if not _FUNCTION.fullmatch(function):
        raise ValueError(f"Expected a function such as 'package.module:function'. Received: {function!r}")
    if taken := sorted(set(config) & {*ABOUT, *FACTS}):
        raise ValueError(f"Expected a configuration without the names {', '.join(taken)}. Received: {dict(config)}")
    if not cost > 0:
        raise ValueError(f"Expected cost > 0. Received: {cost}")
    return Run(run_id, function, canonical_json(dict(config)), group, batch, float(cost))


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
        if (first.function, first.group) != (run.function, run.group):
            raise ValueError(f"Expected one function and group per batch. Received: {first.id} and {run.id}")


def make_units(runs: Sequence[Run], done: set[str]) -> list[Unit]:
    """Returns the units that are not complete, in the order of their first runs.

    Which runs make a unit depends on the plan only. A batch of which some rows are missing is computed whole, because
    its values may depend, in their last digits, on what is computed beside them.
    """
    members: dict[tuple[bool, str], list[Run]] = {}
    for run in runs:
        members.setdefault((bool(run.batch), run.batch or run.id), []).append(run)
    units = []
    for together in members.values():
        wanted = frozenset(run.hash for run in together) - done
        if wanted:
            units.append(Unit(tuple(together), wanted))
    return units
