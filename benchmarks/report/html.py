"""Writes a report as one HTML file that needs nothing else: style, script and plots are in it.

All text is escaped where it enters the page. The page's own policy lets no script run but the one that was written into
it, by its hash, and lets nothing be loaded, so that even a mistake here could not run what a result file says.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import math
from collections.abc import Sequence

from benchmarks import stats, style
from benchmarks.claims import judge
from benchmarks.claims.base import Effect, Margin
from benchmarks.figures import panels
from benchmarks.figures.base import Setting
from benchmarks.report import content, svg
from benchmarks.report.content import MESSAGES, SIGNS, Report, Section

_MARKS = {
    verdict: (name, SIGNS[verdict])
    for verdict, name in (
        (stats.SUPPORTED, "supported"),
        (stats.NOT_SUPPORTED, "not-supported"),
        (stats.INCONCLUSIVE, "inconclusive"),
        (stats.NOT_MEASURED, "not-measured"),
    )
}
PAPER = "Ensembles for Uncertainty Estimation: Benefits of Prior Functions and Bootstrapping"


def render(report: Report) -> str:
    """Returns the page."""
    body = [_header(report), _claims(report), _figures(report), _speed(report), _method(), _environment(report)]
    return page("What held: ensembles, prior functions and bootstrapping", "".join(body))


def page(title: str, body: str) -> str:
    """Returns a whole page around its body."""
    sheet, script = style.style_sheet() + asset("report.css"), asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{_e(title)}</title>\n<style>\n{sheet}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the claims</a>\n<div class="page">\n'
        f"{body}\n</div>\n"
        '<div id="tip" class="tip" role="presentation" hidden></div>\n'
        '<div id="said" class="said" aria-live="polite"></div>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def asset(name: str) -> str:
    """Returns a file of the page's parts."""
    return (importlib.resources.files("benchmarks.report") / "assets" / name).read_text(encoding="utf-8")


def badge(verdict: str, text: str | None = None, link: str | None = None) -> str:
    """Returns a verdict as a badge: a sign, words and a color."""
    kind, sign = _MARKS[verdict]
    inside = f'<span aria-hidden="true">{sign}</span> {_e(text or verdict)}'
    if link is not None:
        return f'<a class="badge {kind}" href="#{_e(link)}">{inside}</a>'
    return f'<span class="badge {kind}">{inside}</span>'


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str, numbers: Sequence[int] = ()) -> str:
    """Returns a table of text in a box that scrolls by itself; `numbers` are the columns to align to the right."""
    heads = "".join(f'<th scope="col">{_e(name)}</th>' for name in header)
    lines = []
    for row in rows:
        cells = [
            f'<td class="number">{_e(cell)}</td>' if index in numbers else f"<td>{_e(cell)}</td>"
            for index, cell in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{_e(caption)}">'
        f"<table><caption>{_e(caption)}</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _e(text: object) -> str:
    return html.escape(str(text), quote=True)


def _header(report: Report) -> str:
    counts = judge.tally(report.results)
    measured = len(report.results) - counts[stats.NOT_MEASURED]
    facts = report.environment
    made = f" on {_e(facts['date'])}" if "date" in facts else ""
    size = f" at preset <strong>{_e(facts['preset'])}</strong>" if "preset" in facts else ""
    images = f"<p>{_e(facts['CIFAR10'])}</p>" if "CIFAR10" in facts else ""
    badges = " ".join(badge(verdict, f"{count} {verdict}") for verdict, count in counts.items() if count)
    return (
        '<header><div class="top"><div>'
        "<h1>What held: ensembles, prior functions and bootstrapping</h1></div>"
        '<button type="button" id="theme" class="needs-js" aria-label="Color theme">Theme: auto</button></div>'
        f'<p class="lead">The paper <cite>{PAPER}</cite> is read as {len(report.results)} claims, '
        "some of them added to explain others. "
        f"{measured} were measured{made}{size}; each verdict below is computed from tables, with a 95% interval.</p>"
        f'<p class="tally">{badges}</p>{images}'
        '<nav aria-label="Contents"><ul><li><a href="#main">Claims</a></li><li><a href="#figures">Figures</a></li>'
        '<li><a href="#speed">Speed</a></li><li><a href="#method">How verdicts are reached</a></li>'
        '<li><a href="#environment">Versions and machine</a></li></ul></nav></header>'
        f"{_messages(report)}"
    )


def _messages(report: Report) -> str:
    items = []
    for message, ids in MESSAGES.items():
        found = [result for result in map(report.result, ids) if result is not None]
        badges = "".join(badge(one.verdict, one.claim.id, f"claim-{one.claim.id}") for one in found)
        items.append(f'<li><strong>{_e(message)}</strong><span class="badges">{badges}</span></li>')
    return (
        '<section aria-labelledby="short"><h2 id="short">The paper in four sentences</h2>'
        f'<ul class="messages">{"".join(items)}</ul></section>'
    )


def _claims(report: Report) -> str:
    options = "".join(f'<option value="{_e(one.figure.id)}">{_e(one.figure.title)}</option>' for one in report.sections)
    toggles = "".join(
        f'<button type="button" aria-pressed="true" data-verdict="{_e(verdict)}">{_e(verdict)} ({count})</button>'
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
    rows = "".join(_claim_row(index, result) for index, result in enumerate(report.results))
    return (
        '<main id="main"><section aria-labelledby="claims"><h2 id="claims">Claims and verdicts</h2>'
        "<p>Each line is one claim. The dot and bar are the measured effect and its 95% interval; the green band is "
        "where the claim says it lies. Inside: supported. Outside: not supported. Across its edge, or too few seeds: "
        "inconclusive at this size. Where the paper says that agents do not differ, a significant difference "
        "contradicts it, and the band is the second reading: are they alike?</p>"
        f"<p>{_e(judge.family(report.results))}</p>"
        '<div class="controls needs-js" role="search"><label class="said" for="claims-search">Search claims</label>'
        '<input id="claims-search" type="search" placeholder="Search claims" autocomplete="off">'
        '<label class="said" for="claims-figure">Figure</label>'
        f'<select id="claims-figure"><option value="">All figures</option>{options}</select>'
        f'<span id="claims-verdicts" role="group" aria-label="Verdicts to show" class="controls">{toggles}</span></div>'
        '<p id="claims-status" class="soft small needs-js" role="status"></p>'
        '<div class="scroll"><table id="claims-table" class="claims">'
        "<caption>Differences are relative: -50% is half of what it is compared with. Lower KL, NLL and regret are "
        f"better.</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
        f"{_statements(report)}"
    )


def _statements(report: Report) -> str:
    header, rows = content.statements(report)
    heads = "".join(f'<th scope="col">{_e(name)}</th>' for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{_e(cell)}</td>' for cell in row)}</tr>" for row in rows)
    legend = ", ".join(f"{sign} {verdict}" for verdict, sign in SIGNS.items())
    return (
        '<section aria-labelledby="statements"><h2 id="statements">The paper, statement by statement</h2>'
        f'<details><summary>{len(rows)} statements and the claims that test them</summary><div class="scroll"><table>'
        f"<caption>{_e(legend)}, = an identity</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        "</div></details></section>"
    )


def _claim_row(index: int, result: judge.Result) -> str:
    claim = result.claim
    estimate = result.effects[0].interval.estimate if result.effects else 1e300
    effects = "".join(_effect(effect, claim.margin) for effect in result.effects) or '<span class="soft">–</span>'
    said_so = result.reason if "/" in result.reason else f"{result.reason[:1].upper()}{result.reason[1:]}"
    why = [f"{said_so}." if said_so else "", result.note]
    why.append("Measured at a smaller size than the paper's." if result.reduced else "")
    said = "".join(f'<span class="why">{_e(text)}</span>' for text in why if text)
    if result.reading:
        said += f'<span class="why">Second reading, alike: {_e(result.reading)}.</span>'
    if result.verdict != stats.NOT_MEASURED:
        size = f'<span class="why">Sizes: {_e(result.reduced)}.</span>' if result.reduced else ""
        name = "Rule and sizes" if result.reduced else "Rule"
        rule = f'<span class="why">Supported if {_e(claim.rule)}.</span>'
        rule += f'<span class="why">Margin: {_e(claim.margin.reason)}</span>'
        said += f'<details class="rule"><summary>{name}</summary>{rule}{size}</details>'
    count = f"{result.count:,}" if result.count else "–"
    unit = _e(claim.sample) if result.count else ""
    rank = stats.VERDICTS.index(result.verdict)
    return (
        f'<tr id="claim-{_e(claim.id)}" data-order="{index}" data-figure="{_e(claim.figure)}" '
        f'data-count="{result.count}" data-verdict="{_e(result.verdict)}" data-rank="{rank}" data-effect="{estimate}" '
        f'data-p="{2.0 if math.isnan(result.p_adjusted) else result.p_adjusted}">'
        f'<td><a class="id" href="#figure-{_e(claim.figure)}">{_e(claim.id)}</a> '
        f'<span class="where">{_e(claim.where)}</span><span class="text">{_e(claim.text)}</span></td>'
        f'<td>{effects}</td><td class="number">{count}<span class="unit">{unit}</span></td>'
        f"<td>{badge(result.verdict)}{said}</td><td>{_family(result)}</td></tr>"
    )


def _family(result: judge.Result) -> str:
    if not result.adjusted:
        return f'<span class="soft">{"identity" if result.claim.identity else "–"}</span>'
    words = (f"p = {judge.format_p(result.p_adjusted)}", f"by itself {judge.format_p(result.p_value)}")
    return badge(result.adjusted) + "".join(f'<span class="why">{_e(text)}</span>' for text in words)


def _effect(effect: Effect, margin: Margin) -> str:
    interval, region = effect.interval, (effect.region.low, effect.region.high)
    value = judge.format_effect(effect)
    told = f"{value}: {effect.verdict}"
    drawn = svg.draw_interval(interval.estimate, interval.low, interval.high, region, told)
    parts = f'<span class="what">{_e(effect.label)}</span>{drawn}<span class="value">{_e(value)}</span>'
    if size := judge.format_size(effect, margin):
        parts += f'<span class="why">{_e(size)}</span>'
    return f'<div class="effect">{parts}</div>'


def _figures(report: Report) -> str:
    articles = "".join(_figure(section) for section in report.sections)
    return f'<section aria-labelledby="figures"><h2 id="figures">Figures</h2>{articles}</section></main>'


def _figure(section: Section) -> str:
    title = f'<h3 id="figure-{_e(section.figure.id)}">{_e(section.figure.title)}</h3>'
    verdicts = "".join(
        f"<li>{badge(result.verdict, link=f'claim-{result.claim.id}')}<span>{_e(result.claim.text)}</span></li>"
        for result in section.results
    )
    parts = [title, f'<p>{_e(section.figure.about)}</p><ul class="verdicts">{verdicts}</ul>']
    if section.panels:
        parts.append(_plots(section))
        header, rows = panels.values(section.panels)
        values = table(header, rows, f"Values of {section.figure.title}", numbers=(3, 4, 5))
        parts.append(f"<details><summary>Values ({len(rows)} rows)</summary>{values}</details>")
    else:
        parts.append('<p class="soft">Not measured in this folder.</p>')
    if section.settings:
        parts.append(_settings(section.settings, section.figure.full_size))
    if section.chosen is not None:
        header, rows = section.chosen
        chosen = table(header, rows, f"Hyperparameters chosen for {section.figure.title}")
        parts.append(f"<details><summary>Chosen hyperparameters ({len(rows)} rows)</summary>{chosen}</details>")
    parts.append(f"<h4>Reproduce</h4>{_command(section.command)}")
    return f'<article aria-labelledby="figure-{_e(section.figure.id)}">{"".join(parts)}</article>'


def _command(command: str) -> str:
    return (
        f'<div class="command"><pre><code>{_e(command)}</code></pre>'
        '<button type="button" class="copy needs-js">Copy</button></div>'
    )


def _plots(section: Section) -> str:
    names = list(dict.fromkeys(series.name for panel in section.panels for series in panel.series))
    keys = []
    for name in names:
        owner = next(panel for panel in section.panels if name in [series.name for series in panel.series])
        shade = style.color_number(name, [series.name for series in owner.series])
        swatch = f'<span class="swatch c{shade}" aria-hidden="true"></span>{_e(name)}'
        keys.append(
            '<li><button type="button" class="key needs-js" aria-pressed="true" '
            f'data-series="{_e(name)}">{swatch}</button>'
            f'<span class="key static">{swatch}</span></li>'
        )
    plots = []
    for panel in section.panels:
        drawn = svg.draw(panel, panels.finding(panel))
        plots.append(f"<div><h4>{_e(panel.title)}</h4>{drawn}</div>")
    one = " one" if len(section.panels) == 1 else ""
    return (
        f'<figure><ul class="legend" aria-label="Series: press to hide or show">{"".join(keys)}</ul>'
        f'<div class="panels{one}">{"".join(plots)}</div>'
        f'<figcaption class="soft small">Whiskers: 95% intervals. <span class="needs-js">Point at a '
        "mark, or use the arrow keys in a plot, for its value.</span></figcaption></figure>"
    )


def _settings(rows: Sequence[Setting], full_size: str) -> str:
    lines = "".join(
        f'<tr{" class=differs" if row.differs else ""}><th scope="row">{_e(row.name)}</th><td>{_e(row.used)}</td>'
        f"<td>{_e(row.paper)}</td></tr>"
        for row in rows
    )
    return (
        '<h4>Settings</h4><div class="scroll" role="region" tabindex="0" aria-label="Settings">'
        f"<table><caption>Bold where they differ. {_e(full_size)}</caption>"
        '<thead><tr><th scope="col">setting</th><th scope="col">used here</th><th scope="col">paper</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _speed(report: Report) -> str:
    parts = ['<section aria-labelledby="speed"><h2 id="speed">Speed</h2>']
    if report.times:
        parts.append(table(["part", "time"], report.times, "What each part of this run took", numbers=(1,)))
    if report.speed is not None:
        parts.append(table(*report.speed, "Speed measurements"))
    if len(parts) == 1:
        parts.append('<p class="soft">This folder holds no times.</p>')
    return "".join(parts) + "</section>"


def _method() -> str:
    return (
        '<section aria-labelledby="method"><h2 id="method">How verdicts are reached</h2>'
        "<p>Agents are compared on the same problems, seed by seed. The effect is the relative difference of their "
        "mean scores with Fieller's 95% interval; means have Student's, widened where they are skewed. A claim says in "
        "which region the effect lies: below 0 for “better”, below -10% for “much better”, within ±5% for “alike”. "
        "The interval inside the region supports the claim, outside it speaks against it, across its edge it leaves "
        "it open; for “alike” the 90% interval has to lie inside, which is two one-sided tests at 5%. Fewer than five "
        "seeds never give a verdict. A claim of several statements needs all of them.</p>"
        "<p>5% is the margin for every comparison of scores: within it agents are alike, and where one is better or "
        "worse, it is told whether by more. Where the paper says that agents do not differ, the first reading is that "
        "wording, and a significant difference contradicts it however small; whether they are alike is the second.</p>"
        "<p>Each verdict is a test at 5% by itself. The last column has the verdicts of all tests as one family, by "
        "Holm's method: what could be chance among so many becomes inconclusive. A verdict is about "
        "the sizes used; the settings beside each figure say how far those are from the paper's.</p></section>"
    )


def _environment(report: Report) -> str:
    rows = list(report.environment.items()) or [("", "This folder does not say where it was made.")]
    return (
        '<section aria-labelledby="environment"><h2 id="environment">Versions and machine</h2>'
        f"{table(['what', 'value'], rows, 'Where and with what the results were made')}"
        f'<p class="soft small">Results folder: <code>{_e(report.folder)}</code></p></section>'
    )
