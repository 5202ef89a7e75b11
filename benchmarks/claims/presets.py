"""Which claims a preset of a figure can decide, said before it runs.

A claim can be decided where the preset has what its test needs, and as many seeds (or problems, or settings) as a
verdict asks for. Whether the effect is large enough for so many seeds, only the results can tell.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from benchmarks.claims.base import Claim
from benchmarks.claims.controls import tables as controls
from benchmarks.claims.paper import CLAIMS
from benchmarks.figures import registry
from benchmarks.figures.base import Figure
from benchmarks.stats import NoDataError


@dataclasses.dataclass(frozen=True)
class Statement:
    """What a preset of a figure says about the claims that read the figure's table."""

    figure: Figure
    decided: tuple[str, ...]  # ids of claims
    undecided: tuple[tuple[str, str], ...]  # ids of claims, and why not

    def __str__(self) -> str:
        said = f"{self.figure.name} can decide " + (", ".join(self.decided) or "no claim")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.undecided:
            reasons.setdefault(reason, []).append(name)
        return said + "".join(f"; not {', '.join(names)}: {reason}" for reason, names in reasons.items())


def state(figure: Figure, sizes: Mapping[str, Any]) -> Statement | None:
    """Returns which claims a figure can decide; None where no claim reads it.

    Args:
        figure: the figure.
        sizes: by the ids of figures, their sizes; also of other figures that some claims read as well.
    """
    mine = [claim for claim in CLAIMS if claim.figure == figure.id]
    if not mine:
        return None
    reasons = {claim.id: missing(claim, sizes) for claim in mine}
    decided = tuple(name for name, reason in reasons.items() if not reason)
    return Statement(figure, decided, tuple((name, reason) for name, reason in reasons.items() if reason))


def preset_sizes(preset: str) -> dict[str, Any]:
    """Returns the sizes of all figures that have a preset, by their ids."""
    return {figure.id: figure.presets[preset] for figure in registry.figures() if preset in figure.presets}


def missing(claim: Claim, sizes: Mapping[str, Any]) -> str:
    """Returns what a claim lacks to be decided where figures have these sizes; "" where it lacks nothing."""
    if absent := [name for name in controls.figures_of(claim.test) if name not in sizes]:
        return f"the table of {', '.join(absent)} is needed"
    try:
        effects = claim.test(controls.make(claim, sizes))
    except NoDataError as error:
        return str(error)
    count = min(effect.interval.count for effect in effects)
    return "" if count >= claim.min_count else f"{count} {claim.sample} of at least {claim.min_count}"
