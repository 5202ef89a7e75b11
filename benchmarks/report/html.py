"""Writes a report as one HTML file that needs nothing else: the story first, then the paper chapter by chapter.

The first screen has the paper's sentence, the verdicts and four small charts. Each chapter has its figures, each with
verdicts and a paragraph; values, settings and the table of all claims are folded, and left out of what is printed.
"""

from __future__ import annotations

from collections.abc import Sequence

from tf_ensembles import pictures
from tf_ensembles.benchmarks import stats, style
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import Setting
from tf_ensembles.benchmarks.figures.panels import Panel
from tf_ensembles.benchmarks.report import claims, content, page, story
from tf_ensembles.benchmarks.report.content import Report, Section
from tf_ensembles.benchmarks.report.page import badge, escape, fold, section, table


def render(report: Report) -> str:
    """Returns the page."""
    chapters = "".join(_chapter(report, chapter) for chapter in story.CHAPTERS)
    main = (
        f'<main id="main">{_glance(report)}{_lead(report)}{_messages(report)}{chapters}{claims.render(report)}</main>'
    )
    body = _header(report) + main + _about(report)
    return page.frame("What held: ensembles, prior functions and bootstrapping", body)


def _header(report: Report) -> str:
    rows = []
    for name, reduced in ((content.AT_SIZE, False), (content.REDUCED, True)):
        counts = judge.tally(one for one in report.sentences if one.reduced == reduced)
        badges = " ".join(badge(verdict, f"{count} {verdict}", "claims") for verdict, count in counts.items() if count)
        rows.append(f'<p class="tally">{escape(name)}: {badges or "nothing"}</p>')
    links = "".join(
        f'<li><a href="#chapter-{one.part}">{escape(one.number)} {escape(one.title.partition(",")[0])}</a></li>'
        for one in story.CHAPTERS
    )
    return (
        '<header><div class="top"><p class="kicker">The paper, and what held here</p>'
        f"{page.THEME}</div><h1>{escape(story.SENTENCE)}</h1>"
        f"{''.join(rows)}"
        f'<nav aria-label="Contents"><ul>{links}<li><a href="#claims">All claims</a></li>'
        '<li><a href="#method">How verdicts are reached</a></li></ul></nav></header>'
    )


def _lead(report: Report) -> str:
    """What was read, and what was measured."""
    measured = len(report.results) - judge.tally(report.results)[stats.NOT_MEASURED]
    sentences = len(report.sentences)
    facts = report.environment
    made = f" on {escape(facts['date'])}" if "date" in facts else ""
    size = f" at preset <strong>{escape(facts['preset'])}</strong>" if "preset" in facts else ""
    images = f' <span class="soft">{escape(facts["CIFAR10"])}</span>' if "CIFAR10" in facts else ""
    return (
        f'<p class="lead"><cite>{story.PAPER}</cite> <span class="soft">({story.AUTHORS})</span>, read as '
        f"{sentences} sentences, which {len(report.results)} claims test. {measured} claims were measured{made}{size}; "
        "every verdict is computed from tables, "
        f"with a 95% interval.{images}</p>"
    )


def _glance(report: Report) -> str:
    """The four charts of the first screen."""
    cards, drawn = [], []
    for highlight in story.HIGHLIGHTS:
        figure, panel = report.highlighted(highlight)
        verdicts = []
        for name, words in highlight.claims.items():
            result = report.result(name)
            value = judge.format_effect(result.deciding) if result.effects else ""
            verdicts.append(
                f'<li>{badge(result.verdict, words, f"claim-{name}")}<span class="value">{escape(value)}</span></li>'
            )
        about, chart = "", '<p class="soft small">Not measured in this folder.</p>'
        if panel is not None:
            drawn.append(panel)
            about, chart = _axes(panel), pictures.draw(panel, panels.finding(panel), pictures.SMALL)
        title = f'<a href="#figure-{escape(figure.id)}">{escape(highlight.title)}</a>'
        cards.append(
            f'<li class="card"><h3>{title}</h3><p class="about">{escape(about)}</p>{chart}'
            f'<ul class="verdicts">{"".join(verdicts)}</ul></li>'
        )
    shades: dict[int, list[str]] = {}
    for name, owner in _names(drawn):
        shades.setdefault(style.color_number(name, [series.name for series in owner.series]), []).append(name)
    keys = "".join(f"<li>{_swatch(', '.join(names), shade)}</li>" for shade, names in shades.items())
    return (
        '<section aria-labelledby="glance"><h2 id="glance" class="said">Four results at a glance</h2>'
        f'<ul class="cards">{"".join(cards)}</ul><ul class="legend small" aria-label="Colors">{keys}'
        '<li class="soft">Lower is better. Whiskers: 95% intervals.</li></ul></section>'
    )


def _axes(panel: Panel) -> str:
    """What a small plot, which has no labels, shows."""
    return f"{panel.y_label}, by {panel.x_label}" if panel.kind == "lines" else f"{panel.title}, {panel.y_label}"


def _messages(report: Report) -> str:
    items = []
    for message, ids in story.MESSAGES.items():
        badges = "".join(badge(report.result(name).verdict, name, f"claim-{name}") for name in ids)
        items.append(f'<li><strong>{escape(message)}</strong><span class="badges">{badges}</span></li>')
    return section("short", "The paper in four sentences", f'<ul class="messages">{"".join(items)}</ul>')


def _chapter(report: Report, chapter: story.Chapter) -> str:
    mine = [one for one in report.sections if one.figure.part == chapter.part]
    lead = [one for one in mine if one.figure.id in chapter.lead and one.panels]
    rest = [one for one in mine if one not in lead]
    counts = judge.tally(result for one in mine for result in one.results)
    badges = " ".join(badge(verdict, f"{count} {verdict}") for verdict, count in counts.items() if count)
    body = f'<p class="tally">{badges}</p><p>{escape(chapter.about)}</p>' + "".join(map(_figure, lead))
    if rest:
        body += '<p class="soft small needs-screen">Folded: other figures, and those of the appendices.</p>'
        body += "".join(map(_folded, rest))
    return section(f"chapter-{chapter.part}", f"{chapter.number} {chapter.title}", body)


def _figure(one: Section) -> str:
    name = escape(one.figure.id)
    title = f'<h3 id="figure-{name}">{escape(one.figure.title)}</h3>'
    return f'<article aria-labelledby="figure-{name}">{title}{_inside(one)}</article>'


def _folded(one: Section) -> str:
    """A figure whose heading is all that is seen of it until it is asked for."""
    name, counts = escape(one.figure.id), judge.tally(one.results)
    badges = "".join(badge(verdict, f"{count} {verdict}") for verdict, count in counts.items() if count)
    unmeasured = "" if one.panels else " unmeasured"
    title = f'<h3 id="figure-{name}">{escape(one.figure.title)}</h3><span class="badges">{badges}</span>'
    return (
        f'<details class="figure{unmeasured}"><summary>{title}</summary>'
        f'<article aria-labelledby="figure-{name}">{_inside(one)}</article></details>'
    )


def _inside(one: Section) -> str:
    verdicts = "".join(_verdict(result) for result in one.results)
    parts = [f"<p>{escape(one.figure.about)}</p>"]
    parts.append(_plots(one) if one.panels else '<p class="soft">Not measured in this folder.</p>')
    if verdicts:
        parts.append(f'<ul class="verdicts">{verdicts}</ul>')
    if one.panels:
        header, rows = panels.values(one.panels)
        values = table(header, rows, f"Values of {one.figure.title}", numbers=(3, 4, 5))
        parts.append(fold(f"Values ({len(rows)} rows)", values))
    if one.settings:
        differing = sum(row.differs for row in one.settings)
        said = (
            f"{differing} of {len(one.settings)} differ from the paper's"
            if differing
            else "none differs from what the paper states"
        )
        parts.append(fold(f"Settings ({said})", _settings(one.settings, one.figure.full_size)))
    if one.chosen is not None:
        header, rows = one.chosen
        chosen = table(header, rows, f"Hyperparameters chosen for {one.figure.title}")
        parts.append(fold(f"Chosen hyperparameters ({len(rows)} rows)", chosen))
    parts.append(fold("Reproduce", _command(one.command)))
    return "".join(parts)


def _verdict(result: judge.Result) -> str:
    value = f": {escape(judge.format_effect(result.deciding))}" if result.effects else ""
    effect = f' <span class="value">{escape(result.claim.id)}{value}</span>'
    shown = badge(result.verdict, link=f"claim-{result.claim.id}")
    return f"<li>{shown}<span>{escape(result.claim.text)}{effect}</span></li>"


def _command(command: str) -> str:
    return (
        f'<div class="command"><pre><code>{escape(command)}</code></pre>'
        '<button type="button" class="copy needs-js">Copy</button></div>'
    )


def _names(shown: Sequence[Panel]) -> list[tuple[str, Panel]]:
    """The names of all series, each with the first panel that has it."""
    found: dict[str, Panel] = {}
    for panel in shown:
        for series in panel.series:
            found.setdefault(series.name, panel)
    return list(found.items())


def _swatch(name: str, shade: int) -> str:
    return f'<span class="key"><span class="swatch c{shade}" aria-hidden="true"></span>{escape(name)}</span>'


def _plots(one: Section) -> str:
    keys = []
    for name, owner in _names(one.panels):
        shade = style.color_number(name, [series.name for series in owner.series])
        keys.append(
            '<li><button type="button" class="key needs-js" aria-pressed="true" '
            f'data-series="{escape(name)}"><span class="swatch c{shade}" aria-hidden="true"></span>{escape(name)}'
            f'</button><span class="static">{_swatch(name, shade)}</span></li>'
        )
    plots = []
    for panel in one.panels:
        drawn = pictures.draw(panel, panels.finding(panel))
        plots.append(f"<div><h4>{escape(panel.title)}</h4>{drawn}</div>")
    few = {1: " one", 2: " two", 4: " two"}.get(len(one.panels), "")
    return (
        f'<figure><ul class="legend" aria-label="Series: press to hide or show">{"".join(keys)}</ul>'
        f'<div class="panels{few}">{"".join(plots)}</div>'
        '<figcaption class="soft small needs-screen">Whiskers: 95% intervals. <span class="needs-js">Point at a '
        "mark, or use the arrow keys in a plot, for its value.</span></figcaption></figure>"
    )


def _settings(rows: Sequence[Setting], full_size: str) -> str:
    lines = "".join(
        f'<tr{" class=differs" if row.differs else ""}><th scope="row">{escape(row.name)}</th>'
        f"<td>{escape(row.used)}</td><td>{escape(row.paper)}</td></tr>"
        for row in rows
    )
    return (
        '<div class="scroll" role="region" tabindex="0" aria-label="Settings">'
        f"<table><caption>Bold where they differ. {escape(full_size)}</caption>"
        '<thead><tr><th scope="col">setting</th><th scope="col">used here</th><th scope="col">paper</th></tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


_METHOD = (
    "Agents are compared on the same problems, seed by seed. The effect is the relative difference of their mean "
    "scores with Fieller's 95% interval; means have Student's, widened where they are skewed. A claim says in which "
    "region the effect lies: below 0 for “better”, below -10% for “much better”, within ±5% for “alike”. The interval "
    "inside the region supports the claim, outside it speaks against it, across its edge it leaves it open; for "
    "“alike” the 90% interval has to lie inside, which is two one-sided tests at 5%. Fewer than five seeds never give "
    "a verdict. A claim of several statements needs all of them.",
    "5% is the margin for every comparison of scores: within it agents are alike, and where one is better or worse, "
    "it is told whether by more. Where the paper says that agents do not differ, the first reading is that wording, "
    "and a significant difference contradicts it however small; whether they are alike is the second.",
    "Each verdict is a test at 5% by itself. The last column of the table has the verdicts of all tests as one family, "
    "by Holm's method: what could be chance among so many becomes inconclusive. A verdict is about the sizes used; the "
    "settings of each figure say how far those are from the paper's.",
)


def _about(report: Report) -> str:
    """How verdicts are reached, what it took, and where and with what it was made."""
    parts = [fold("How verdicts are reached", "".join(f"<p>{text}</p>" for text in _METHOD), "method")]
    if report.times:
        times = table(["part", "time"], report.times, "What each part of this run took", numbers=(1,))
        parts.append(fold("Times", times, "times"))
    rows = list(report.environment.items()) or [("", "This folder does not say where it was made.")]
    made = table(["what", "value"], rows, "Where and with what the results were made")
    parts.append(fold("Versions and machine", made, "environment"))
    parts.append(f'<p class="soft small">Results folder: <code>{escape(report.folder)}</code></p>')
    return section("about", "About this report", "".join(parts))
