"""The table of all claims: effects with their intervals, verdicts, rules; to be searched, filtered and sorted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tf_ensembles import pictures
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.claims.base import Effect, Margin
from tf_ensembles.benchmarks.report import content
from tf_ensembles.benchmarks.report.content import Report
from tf_ensembles.benchmarks.report.page import badge, escape, fold, section, table

_ABOUT = (
    "Each line is one claim. The dot and bar are the measured effect and its 95% interval; the green band is where the "
    "claim says it lies. Inside: supported. Outside: not supported. Across its edge, or too few seeds: inconclusive at "
    "this size. Where the paper says that agents do not differ, a significant difference contradicts it, and the band "
    "is the second reading: are they alike?"
)


def render(report: Report) -> str:
    """Returns the sections of all claims and of all statements, folded."""
    count = len(report.results)
    about = f"<p>{escape(judge.family(report.results))}</p>"
    claims = fold(f"All {count} claims: effects, intervals, rules; search, filter, sort", _table(report))
    folded = "".join(
        fold(f"The paper, sentence by sentence. {name}: {len(rows)}", table(header, rows, f"Sentences: {name}"))
        for name, (header, rows) in content.cited(report).items()
    )
    beyond = "".join(fold(f"Beyond the paper: {name}, {len(own)} claims", _others(own)) for name, own in report.beyond)
    return section("claims", "All claims in one table", about + claims + folded + beyond)


_COLUMNS = {"Claim": "order", "Measured effect": "effect", "n": "count", "Verdict": "rank", "As one family": "p"}


def _others(results: Sequence[judge.Result]) -> str:
    """Claims of other papers, or of ours: one family, which is in no count above."""
    heads = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    rows = "".join(f"<tr>{_cells(result, f'<b>{escape(result.claim.id)}</b>')}</tr>" for result in results)
    return (
        '<div class="scroll"><table class="claims">'
        "<caption>A family of tests of its own, which is in no count above.</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _table(report: Report) -> str:
    options = "".join(
        f'<option value="{escape(one.figure.id)}">{escape(one.figure.title)}</option>' for one in report.sections
    )
    toggles = "".join(
        f'<button type="button" aria-pressed="true" data-verdict="{escape(verdict)}">{escape(verdict)} '
        f"({count})</button>"
        for verdict, count in judge.tally(report.results).items()
        if count
    )
    heads = "".join(
        f'<th scope="col" aria-sort="none" data-key="{key}"><button type="button">{name}</button></th>'
        for name, key in _COLUMNS.items()
    )
    rows = "".join(_row(index, result) for index, result in enumerate(report.results))
    return (
        f"<p>{_ABOUT}</p>"
        '<div class="controls needs-js" role="search"><label class="said" for="claims-search">Search claims</label>'
        '<input id="claims-search" type="search" placeholder="Search claims" autocomplete="off">'
        '<label class="said" for="claims-figure">Figure</label>'
        f'<select id="claims-figure"><option value="">All figures</option>{options}</select>'
        f'<span id="claims-verdicts" role="group" aria-label="Verdicts to show" class="controls">{toggles}</span></div>'
        '<p id="claims-status" class="soft small needs-js" role="status"></p>'
        '<div class="scroll"><table id="claims-table" class="claims">'
        "<caption>Differences are relative: -50% is half of what it is compared with. Lower KL, NLL and regret are "
        f"better.</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(index: int, result: judge.Result) -> str:
    """A row that the page's script sorts and filters by its data."""
    claim = result.claim
    data = {
        "order": index,
        "figure": claim.figure,
        "count": result.count,
        "verdict": result.verdict,
        "rank": stats.VERDICTS.index(result.verdict),
        "effect": result.deciding.interval.estimate if result.effects else 1e300,
        "p": 2.0 if math.isnan(result.p_adjusted) else result.p_adjusted,
    }
    attributes = " ".join(f'data-{name}="{escape(value)}"' for name, value in data.items())
    link = f'<a class="id" href="#figure-{escape(claim.figure)}">{escape(claim.id)}</a>'
    return f'<tr id="claim-{escape(claim.id)}" {attributes}>{_cells(result, link)}</tr>'


def _cells(result: judge.Result, name: str) -> str:
    """The cells of `_COLUMNS`; `name` is markup already."""
    claim = result.claim
    effects = "".join(_effect(effect, claim.margin) for effect in judge.deciding_first(result))
    reason = result.reason if "/" in result.reason else f"{result.reason[:1].upper()}{result.reason[1:]}"
    why = [f"{reason}." if reason else "", result.note]
    why.append("Measured at a smaller size than the paper's." if result.reduced else "")
    why.append(f"Second reading, alike: {result.reading}." if result.reading else "")
    told = "".join(f'<span class="why">{escape(text)}</span>' for text in why if text)
    if result.verdict != stats.NOT_MEASURED:
        rules = [f"Supported if {claim.rule}.", f"Margin: {claim.margin.reason}"]
        rules += [f"Settings: {result.differing}."] if result.differing else []
        summary = "Rule and settings" if result.differing else "Rule"
        rule = "".join(f'<span class="why">{escape(text)}</span>' for text in rules)
        told += f'<details class="rule"><summary>{summary}</summary>{rule}</details>'
    count = f'{result.count:,}<span class="unit">{escape(claim.sample)}</span>' if result.count else "–"
    about = f'<span class="where">{escape(claim.where)}</span><span class="text">{escape(claim.text)}</span>'
    return (
        f"<td>{name} {about}</td>"
        f'<td>{effects or "–"}</td><td class="number">{count}</td>'
        f"<td>{badge(result.verdict)}{told}</td><td>{_family(result)}</td>"
    )


def _family(result: judge.Result) -> str:
    if not result.adjusted:
        return f'<span class="soft">{"identity" if result.claim.identity else "–"}</span>'
    words = (
        f"p = {judge.format_p(result.p_adjusted)}".replace("= <", "<"),
        f"by itself {judge.format_p(result.p_value)}",
    )
    return badge(result.adjusted) + "".join(f'<span class="why">{escape(text)}</span>' for text in words)


def _effect(effect: Effect, margin: Margin) -> str:
    interval, region = effect.interval, (effect.region.low, effect.region.high)
    value = judge.format_effect(effect)
    told = f"{value}: {effect.verdict}"
    drawn = pictures.draw_interval(interval.estimate, interval.low, interval.high, told, region=region)
    parts = f'<span class="what">{escape(effect.label)}</span>{drawn}<span class="value">{escape(value)}</span>'
    if size := judge.format_size(effect, margin):
        parts += f'<span class="why">{escape(size)}</span>'
    return f'<div class="effect">{parts}</div>'
