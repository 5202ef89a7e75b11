"""Judges the claims by a results folder: verdicts are computed from its tables; nothing here knows how they came out.

    for result in judge.evaluate("results/reproduce/quick"):
        print(result.claim.id, result.verdict, result.effects)

A verdict needs a minimum of seeds (or problems). Claims that were measured at a smaller size than the paper's say so in
`Result.settings`.

Each verdict is that of a test at 5% by itself, also of a claim that makes several statements: to be supported, all
must hold, so that its p-value is the largest of theirs; to be contradicted, any would do, so that it is the smallest,
times their number. `Result.adjusted` is the verdict when all claims that were tested count as one family, by Holm's
method: what does not survive becomes inconclusive. Claims that are identities are not tested but checked, and are no
part of the family. `sentences` puts the claims that test one sentence of the paper together.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable
from typing import Protocol

from tf_ensembles.benchmarks.claims.base import Claim, Effect, Margin, Region, Unit, combine
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.base import Setting
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import retuning
from tf_ensembles.benchmarks.figures.testbed.base import TunedFigure
from tf_ensembles.benchmarks.stats import (
    INCONCLUSIVE,
    LEVEL,
    NOT_MEASURED,
    NOT_SUPPORTED,
    SUPPORTED,
    VERDICTS,
    NoDataError,
    holm,
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a results folder says about a claim."""

    claim: Claim
    verdict: str
    effects: tuple[Effect, ...]
    reason: str  # why the verdict is not "supported", or why nothing was measured; "" otherwise
    note: str
    settings: tuple[Setting, ...]
    p_value: float = math.nan  # the smallest level at which the verdict would stand; NaN outside of the family
    p_adjusted: float = math.nan  # by Holm's method, over the family
    adjusted: str = ""  # the verdict of the family; "" for identities and for what was not measured

    @property
    def p_supported(self) -> float:
        """The smallest level at which all its statements would still hold."""
        return max(effect.p_supported for effect in self.effects)

    @property
    def p_contradicted(self) -> float:
        """The smallest level at which one of its statements would still be contradicted, counting all of them."""
        return min(1.0, len(self.effects) * min(effect.p_contradicted for effect in self.effects))

    @property
    def deciding(self) -> Effect:
        """The effect that the verdict rests on: the weakest of a supported claim, the most contradicted of others."""
        if self.verdict == SUPPORTED:
            return max(self.effects, key=lambda effect: effect.p_supported)
        return min(self.effects, key=lambda effect: (effect.p_contradicted, -effect.p_supported))

    @property
    def reading(self) -> str:
        """The verdict of the second reading, where the claim has one: are agents alike, up to the margin?"""
        readings = [effect.reading for effect in self.effects if effect.reading]
        return combine(readings) if readings else ""

    @property
    def changed(self) -> bool:
        """Whether the verdict is another one when all claims are one family."""
        return self.adjusted not in ("", self.verdict)

    @property
    def count(self) -> int:
        """The sample size: the smallest over the effects; 0 where the table does not say."""
        return min((effect.interval.count for effect in self.effects), default=0)

    @property
    def differing(self) -> str:
        """In which settings it was measured otherwise than the paper; "" where in none."""
        return "; ".join(f"{row.name}: {row.used} (paper: {row.paper})" for row in self.settings if row.differs)

    @property
    def reduced(self) -> bool:
        """Whether it was measured at another size than the paper's. On which seeds agents are tuned is no size."""
        return any(row.differs and row.name != "tuned on" for row in self.settings)


def evaluate(
    folder: str | os.PathLike[str] | Tables, wanted: Iterable[str] | None = None, judged: Iterable[Result] = ()
) -> list[Result]:
    """Returns the result of every claim, or of those whose ids are wanted, from the tables of a results folder.

    Args:
        folder: the results folder, or its tables.
        wanted: ids of claims.
        judged: what these tables say about some claims, where `judge` has been asked already.
    """
    tables = folder if isinstance(folder, Tables) else Tables(folder)
    ids = None if wanted is None else set(wanted)
    settings: dict[str, tuple[Setting, ...]] = {}
    known = {result.claim.id: result for result in judged if result.verdict != NOT_MEASURED}
    results = []
    for claim in CLAIMS:
        if ids is None or claim.id in ids:
            result = known.get(claim.id) or judge(claim, tables)
            if result.effects and claim.figure not in settings:
                settings[claim.figure] = registry.figure(claim.figure).settings(tables)
            results.append(dataclasses.replace(result, settings=settings.get(claim.figure, ())))
    return adjust(results)


def adjust(results: Iterable[Result]) -> list[Result]:
    """Returns the results with the verdicts that they have as one family of tests."""
    results = list(results)
    adjusted = holm({result.claim.id: result.p_value for result in results if not math.isnan(result.p_value)})
    return [
        result
        if result.claim.id not in adjusted
        else dataclasses.replace(
            result,
            p_adjusted=adjusted[result.claim.id],
            adjusted=result.verdict if adjusted[result.claim.id] <= LEVEL else INCONCLUSIVE,
        )
        for result in results
    ]


def judge(claim: Claim, tables: Tables) -> Result:
    """Returns what the tables say about one claim; its settings are left out."""
    try:
        effects = tuple(claim.estimator(tables))
        note = claim.estimator.note(tables)
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
    result = Result(claim, verdict, effects, reason, note, ())
    if claim.identity or result.count < claim.min_count:
        return result
    result = _with_tuning(result, tables)
    both = {SUPPORTED: result.p_supported, NOT_SUPPORTED: result.p_contradicted}
    return dataclasses.replace(result, p_value=both.get(result.verdict, min(both.values())))


def _with_tuning(result: Result, tables: Tables) -> Result:
    """Returns a result that knows of the noise of tuning, where its figure's hyperparameters were chosen.

    A verdict stands where 95% of the draws of other tuning seeds give it, too.
    """
    tuned = {figure.id: figure for figure in registry.figures() if isinstance(figure, TunedFigure)}
    figure = tuned.get(result.claim.figure)
    if figure is None or result.verdict == INCONCLUSIVE:
        return result
    kept = figure.kept_tables(tables)
    if not any(tables.has(f"testbed/{grid}.csv") for _, grid in kept):
        return result
    drawn = retuning.variants(tables, tuple(kept))
    judged = {other: tuple(result.claim.estimator(other)) for other in dict.fromkeys(drawn)}
    same = sum(_decide(result.claim, judged[other])[0] == result.verdict for other in drawn)
    place = result.effects.index(result.deciding)
    estimates = [judged[other][place].interval.estimate for other in drawn]
    if len(set(estimates)) < 2:
        only = "No near-ties of the chosen hyperparameters were run: the interval leaves out the noise of tuning."
        return dataclasses.replace(result, note=f"{result.note} {only}".strip())
    ends = " to ".join(format_value(value, result.deciding.unit) for value in (min(estimates), max(estimates)))
    told = f"Other tuning seeds give this verdict in {same} of {len(drawn)} draws, and {ends} for the deciding effect."
    if not all(retuning.has_near_ties(tables, made) for made, _ in kept):
        told += " Of a part of the runs there are no near-ties."
    if same >= (1.0 - LEVEL) * len(drawn):
        return dataclasses.replace(result, note=f"{result.note} {told}".strip())
    return dataclasses.replace(result, verdict=INCONCLUSIVE, reason=f"it depends on the tuning. {told}")


def _decide(claim: Claim, effects: tuple[Effect, ...]) -> tuple[str, str]:
    count = min(effect.interval.count for effect in effects)
    if 0 < count < claim.min_count:
        return INCONCLUSIVE, f"{count} {claim.sample} of at least {claim.min_count}"
    verdict = combine([effect.verdict for effect in effects])
    if verdict == SUPPORTED:
        return verdict, ""
    worst = min(effects, key=lambda effect: effect.p_contradicted)
    if verdict == NOT_SUPPORTED and len(effects) * worst.p_contradicted > LEVEL:
        chance = f"p = {format_p(worst.p_contradicted)} by itself, {format_p(len(effects) * worst.p_contradicted)}"
        return INCONCLUSIVE, f"one of {len(effects)} statements is contradicted, which may be chance: {chance} as such"
    guilty = [effect for effect in effects if effect.verdict == verdict]
    names = "; ".join(effect.label for effect in guilty)
    which = f": {names}" if len(effects) > 1 else ""
    if any(effect.contradicted for effect in guilty):
        return verdict, f"a significant difference contradicts the paper's wording{which}"
    if verdict == INCONCLUSIVE and all(effect.wording for effect in guilty):
        return verdict, f"no difference is shown, nor that agents are alike{which}"
    how = "lies outside" if verdict == NOT_SUPPORTED else "reaches beyond"
    return verdict, f"the interval {how} what the claim allows{which}"


def deciding_first(result: Result) -> list[Effect]:
    """Returns the effects of a result, the one that its verdict rests on before the others."""
    return sorted(result.effects, key=lambda effect: effect is not result.deciding)


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


def format_size(effect: Effect, margin: Margin) -> str:
    """Returns how large a difference is beside the margin, such as `better by 6.8%, above the margin of 5%`; or ""."""
    interval = effect.interval
    if not effect.of_scores or math.isnan(interval.low):
        return ""
    limit = f"the margin of {margin.value:.0%}"
    if not interval.excludes(0.0):
        return f"no significant difference{f', less than {limit}' if _within(effect, margin) else ''}"
    word = "better" if interval.estimate < 0.0 else "worse"
    nearest = min(abs(interval.low), abs(interval.high))
    where = "above" if nearest > margin.value else "below" if _within(effect, margin) else "not told apart from"
    return f"{word} by {abs(interval.estimate):,.1%}, {where} {limit}"


def _within(effect: Effect, margin: Margin) -> bool:
    return Region(-margin.value, margin.value).judge(effect.interval) == SUPPORTED


def format_p(value: float) -> str:
    """Returns a p-value as text; "–" for what is in no family."""
    return (
        "–" if math.isnan(value) else "< 0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"
    )


def family(results: Iterable[Result]) -> str:
    """Returns a sentence about the family: how many were tested, and how many verdicts would change."""
    results = list(results)
    members = [result for result in results if result.adjusted]
    changed = [result.claim.id for result in members if result.changed]
    identities = [result.claim.id for result in results if result.claim.identity and result.effects]
    few = [result for result in results if result.effects and not result.adjusted and not result.claim.identity]
    said = f"As one family of {len(members)} tests (Holm), {len(changed)} of the verdicts would change"
    said += f" to inconclusive: {', '.join(changed)}." if changed else "."
    said += f" Identities, which are checked, not tested: {', '.join(identities)}." if identities else ""
    return said + (f" Too small to be tested: {len(few)}." if few else "")


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


def difference(effect: Effect) -> str:
    """Returns what a test of a difference says of an effect: is it there?"""
    interval = effect.interval
    if not effect.of_scores or math.isnan(interval.low):
        return "–"
    return "none shown" if not interval.excludes(0.0) else "better" if interval.estimate < 0.0 else "worse"


def equivalence(effect: Effect, margin: Margin) -> str:
    """Returns what a test of equivalence says of an effect: is it within the margin, whether there or not?"""
    interval = effect.interval
    if not effect.of_scores or math.isnan(interval.low):
        return "–"
    beyond = interval.low > margin.value or interval.high < -margin.value
    return "alike" if _within(effect, margin) else "not alike" if beyond else "open"


class Judged(Protocol):
    """Whatever has a verdict: a claim's result, or a sentence of the paper."""

    @property
    def verdict(self) -> str:
        """One of `stats.VERDICTS`."""


def tally(results: Iterable[Judged]) -> dict[str, int]:
    """Returns how often each verdict was reached."""
    found = [result.verdict for result in results]
    return {verdict: found.count(verdict) for verdict in VERDICTS}


def evaluate_family(claims: Iterable[Claim], folder: str | os.PathLike[str] | Tables) -> list[Result]:
    """Returns the results of claims that are not the paper's: one family of tests of their own."""
    tables = folder if isinstance(folder, Tables) else Tables(folder)
    return adjust([judge(claim, tables) for claim in claims])


def tell_family(claims: Iterable[Claim], description: str | None) -> None:
    """Prints verdicts and effects of such claims; the command line may name a results folder."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "results", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1] / "results"
    )
    for result in evaluate_family(claims, parser.parse_args().results):
        print(f"{result.claim.id}: {result.verdict}{f' ({result.reason})' if result.reason else ''}")
        for effect in result.effects:
            print(f"    {effect.label}: {format_effect(effect)}")
        if result.changed and not math.isnan(result.p_adjusted):
            print(f"    as one family of tests: {result.adjusted}")
