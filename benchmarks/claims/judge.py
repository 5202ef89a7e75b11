"""Judges the claims by a results folder: verdicts are computed from its tables; nothing here knows how they came out.

    for result in judge.evaluate("results/reproduce/quick"):
        print(result.claim.id, result.verdict, result.effects)

A verdict needs a minimum of seeds (or problems). Claims that were measured at a smaller size than the paper's say so in
`Result.settings`.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable

from benchmarks.claims.base import Claim, Effect, Unit, combine
from benchmarks.claims.paper import CLAIMS
from benchmarks.figures import registry
from benchmarks.figures.base import Setting
from benchmarks.figures.tables import Tables
from benchmarks.stats import INCONCLUSIVE, NOT_MEASURED, NOT_SUPPORTED, SUPPORTED, VERDICTS, NoDataError


@dataclasses.dataclass(frozen=True)
class Result:
    """What a results folder says about a claim."""

    claim: Claim
    verdict: str
    effects: tuple[Effect, ...]
    reason: str  # why the verdict is not "supported", or why nothing was measured; "" otherwise
    note: str
    settings: tuple[Setting, ...]

    @property
    def count(self) -> int:
        """The sample size: the smallest over the effects; 0 where the table does not say."""
        return min((effect.interval.count for effect in self.effects), default=0)

    @property
    def reduced(self) -> str:
        """In which settings it was measured at another size than the paper's; "" where in none."""
        return "; ".join(f"{row.name}: {row.used} (paper: {row.paper})" for row in self.settings if row.differs)


def evaluate(folder: str | os.PathLike[str] | Tables, wanted: Iterable[str] | None = None) -> list[Result]:
    """Returns the result of every claim, or of those whose ids are wanted, from the tables of a results folder."""
    tables = folder if isinstance(folder, Tables) else Tables(folder)
    ids = None if wanted is None else set(wanted)
    settings: dict[str, tuple[Setting, ...]] = {}
    results = []
    for claim in CLAIMS:
        if ids is None or claim.id in ids:
            result = judge(claim, tables)
            if result.effects and claim.figure not in settings:
                settings[claim.figure] = registry.figure(claim.figure).settings(tables)
            results.append(dataclasses.replace(result, settings=settings.get(claim.figure, ())))
    return results


def judge(claim: Claim, tables: Tables) -> Result:
    """Returns what the tables say about one claim; its settings are left out."""
    try:
        effects = tuple(claim.test(tables))
        note = claim.test.note(tables) if hasattr(claim.test, "note") else ""
    except NoDataError as error:
        return Result(claim, NOT_MEASURED, (), str(error), "", ())
    except (ValueError, KeyError, TypeError) as error:
        # A table that was cut or edited must not take the other claims' verdicts with it.
        return Result(
            claim,
            NOT_MEASURED,
            (),
            f"the table of {claim.figure} cannot be read: {' '.join(str(error).split())}",
            "",
            (),
        )
    verdict, reason = _decide(claim, effects)
    return Result(claim, verdict, effects, reason, note, ())


def _decide(claim: Claim, effects: tuple[Effect, ...]) -> tuple[str, str]:
    count = min(effect.interval.count for effect in effects)
    if 0 < count < claim.min_count:
        return INCONCLUSIVE, f"{count} {claim.sample} of at least {claim.min_count}"
    verdict = combine([effect.verdict for effect in effects])
    if verdict == SUPPORTED:
        return verdict, ""
    guilty = [effect.label for effect in effects if effect.verdict == verdict]
    how = "lies outside" if verdict == NOT_SUPPORTED else "reaches beyond"
    which = f": {'; '.join(guilty)}" if len(effects) > 1 else ""
    return verdict, f"the interval {how} what the claim allows{which}"


def format_effect(effect: Effect) -> str:
    """Returns an effect as text, such as `-57% [-62%, -50%]`."""
    interval = effect.interval
    numbers = [format_value(value, effect.unit) for value in (interval.estimate, interval.low, interval.high)]
    unit = " nats" if effect.unit == "nats" else ""
    if interval.low == interval.high:
        return f"{numbers[0]}{unit}"
    if math.isnan(interval.low):
        return f"{numbers[0]}{unit} (no interval)"
    return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]{unit}"


def format_value(value: float, unit: Unit) -> str:
    """Returns a number as its unit asks; differences carry their sign."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if unit == "relative":
        percent = 100.0 * value
        return f"{percent:+.1f}%" if abs(percent) < 99.95 else f"{percent:+,.0f}%"
    if unit == "settings":
        return f"{value:.0f}"
    if value == 0.0:
        return "0"
    return f"{value:+.3f}" if abs(value) >= 5e-4 or unit == "share" else f"{value:.1e}"


def tally(results: Iterable[Result]) -> dict[str, int]:
    """Returns how often each verdict was reached."""
    found = [result.verdict for result in results]
    return {verdict: found.count(verdict) for verdict in VERDICTS}
