"""The table of all claims: effects with their intervals, verdicts, rules; to be searched, filtered and sorted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks import stats
from benchmarks.claims import judge
from benchmarks.claims.base import Effect, Margin
from benchmarks.report import content
from benchmarks.report.content import Report
from benchmarks.report.page import badge, escape, fold, section, table
from tf_ensembles import pictures

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


def _others(results: Sequence[judge.Result]) -> str:
    """Claims of other papers, or of ours: one family, which is in no count above."""
    heads = "".join(
        f'<th scope="col">{name}</th>' for name in ("Claim", "Measured effect", "n", "Verdict", "As one family")
    )
    rows = []
    for result in results:
        claim = result.claim
        effects = "".join(_effect(effect, claim.margin) for effect in judge.deciding_first(result))
        effects = effects or '<span class="soft">–</span>'
        why = [f"{result.reason}." if result.reason else "", result.note, f"Supported if {claim.rule}."]
        said = "".join(f'<span class="why">{escape(text)}</span>' for text in why if text)
        rows.append(
            f'<tr><td><span class="id">{escape(claim.id)}</span> <span class="where">{escape(claim.where)}</span>'
            f'<span class="text">{escape(claim.text)}</span></td><td>{effects}</td>'
            f'<td class="number">{result.count or "–"}</td><td>{badge(result.verdict)}{said}</td>'
            f"<td>{_family(result)}</td></tr>"
        )
    about = "<caption>A family of tests of its own, which is in no count above.</caption>"
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="claims">{about}{body}</table></div>'


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
        for name, key in (
            *(("Claim", "order"), ("Measured effect", "effect"), ("n", "count")),
            *(("Verdict", "rank"), ("As one family", "p")),
        )
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
    claim = result.claim
    estimate = result.deciding.interval.estimate if result.effects else 1e300
    effects = "".join(_effect(effect, claim.margin) for effect in judge.deciding_first(result))
    effects = effects or '<span class="soft">–</span>'
    said_so = result.reason if "/" in result.reason else f"{result.reason[:1].upper()}{result.reason[1:]}"
    why = [f"{said_so}." if said_so else "", result.note]
    why.append("Measured at a smaller size than the paper's." if result.reduced else "")
    said = "".join(f'<span class="why">{escape(text)}</span>' for text in why if text)
    if result.reading:
        said += f'<span class="why">Second reading, alike: {escape(result.reading)}.</span>'
    if result.verdict != stats.NOT_MEASURED:
        size = f'<span class="why">Settings: {escape(result.differing)}.</span>' if result.differing else ""
        name = "Rule and settings" if result.differing else "Rule"
        rule = f'<span class="why">Supported if {escape(claim.rule)}.</span>'
        rule += f'<span class="why">Margin: {escape(claim.margin.reason)}</span>'
        said += f'<details class="rule"><summary>{name}</summary>{rule}{size}</details>'
    count = f"{result.count:,}" if result.count else "–"
    unit = escape(claim.sample) if result.count else ""
    rank = stats.VERDICTS.index(result.verdict)
    return (
        f'<tr id="claim-{escape(claim.id)}" data-order="{index}" data-figure="{escape(claim.figure)}" '
        f'data-count="{result.count}" data-verdict="{escape(result.verdict)}" data-rank="{rank}" '
        f'data-effect="{estimate}" data-p="{2.0 if math.isnan(result.p_adjusted) else result.p_adjusted}">'
        f'<td><a class="id" href="#figure-{escape(claim.figure)}">{escape(claim.id)}</a> '
        f'<span class="where">{escape(claim.where)}</span><span class="text">{escape(claim.text)}</span></td>'
        f'<td>{effects}</td><td class="number">{count}<span class="unit">{unit}</span></td>'
        f"<td>{badge(result.verdict)}{said}</td><td>{_family(result)}</td></tr>"
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
