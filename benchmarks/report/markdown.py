"""Writes a report as Markdown, for a README or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks import stats
from benchmarks.claims import judge
from benchmarks.claims.base import Effect
from benchmarks.figures import panels
from benchmarks.report import content, story
from benchmarks.report.content import Report, Section


def render(report: Report) -> str:
    """Returns the report."""
    lines = ["# What held: ensembles, prior functions and bootstrapping", "", f"> {story.SENTENCE}", ""]
    lines += ["Sentences of the paper:", "", *(f"- {line}" for line in content.tallies(report)), ""]
    facts = {key: report.environment[key] for key in ("preset", "date", "CIFAR10") if key in report.environment}
    lines += [f"{escape(key)}: {escape(value)}  " for key, value in facts.items()]
    lines += ["", "## The paper in four sentences", ""]
    for message, ids in story.MESSAGES.items():
        found = [result for result in map(report.result, ids) if result is not None]
        lines.append(f"- {message} " + ", ".join(f"{one.claim.id} {stats.SIGNS[one.verdict]}" for one in found))
    lines += ["", "## Claims and verdicts", ""]
    lines += [judge.family(report.results), ""]
    header = ["claim", "", "effects, 95% intervals, the deciding first", "n", "verdict", "as one family (Holm)"]
    lines += table(header, [_row(result) for result in report.results])
    for name, results in report.beyond:
        lines += ["", f"### Beyond the paper: {name}", "", "A family of tests of its own.", ""]
        lines += table(["claim", "of", *header[1:]], [_other_row(result) for result in results])
    lines += ["", "## The paper, sentence by sentence", ""]
    for name, rows in content.cited(report).items():
        lines += ["", f"### {name}", "", *table(*rows)]
    lines += ["", "Margins, by which differences are told to be large or small:", ""]
    margins = dict.fromkeys(result.claim.margin for result in report.results)
    lines += [f"- {escape(margin.reason)}" for margin in margins]
    for chapter in story.CHAPTERS:
        lines += ["", f"## {chapter.number} {chapter.title}", "", chapter.about]
        for section in report.sections:
            lines += _section(section) if section.figure.part == chapter.part else []
    if report.times:
        lines += ["", "## Speed", "", *table(["part", "time"], report.times)]
    if report.speed is not None:
        lines += ["", *table(*report.speed)]
    if report.environment:
        lines += ["", "## Versions and machine", "", *table(["what", "value"], list(report.environment.items()))]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> list[str]:
    lines = ["", f"### {section.figure.title}", "", section.figure.about, ""]
    if not section.panels:
        lines += ["Not measured in this folder.", ""]
    else:
        lines += table(*panels.values(section.panels))
    if section.settings:
        rows = [[row.name, row.used, row.paper] for row in section.settings]
        lines += ["", *table(["setting", "used here", "paper"], rows)]
        lines += ["", section.figure.full_size]
    if section.chosen is not None:
        header, rows = section.chosen
        lines += ["", "Chosen hyperparameters:", "", *table(header, rows)]
    lines += ["", "```bash", section.command, "```"]
    return lines


def _row(result: judge.Result) -> list[str]:
    effects = "; ".join(_effect(effect, result) for effect in judge.deciding_first(result)) or "–"
    more = " ".join(text for text in (result.reason, result.note) if text)
    verdict = f"{stats.SIGNS[result.verdict]} {result.verdict}" + (f" ({more})" if more else "")
    verdict += f"; second reading, alike: {stats.SIGNS[result.reading]} {result.reading}" if result.reading else ""
    family = "identity" if result.claim.identity else "–"
    if result.adjusted:
        family = f"{stats.SIGNS[result.adjusted]} {result.adjusted}, p = {judge.format_p(result.p_adjusted)}".replace(
            "= <", "<"
        )
    count = f"{result.count:,}" if result.count else "–"
    return [result.claim.id, result.claim.text, effects, count, verdict, family]


def _other_row(result: judge.Result) -> list[str]:
    name, *rest = _row(result)
    return [name, result.claim.where, *rest]


def _effect(effect: Effect, result: judge.Result) -> str:
    size = judge.format_size(effect, result.claim.margin)
    return f"{effect.label}: {judge.format_effect(effect)}" + (f" ({size})" if size else "")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a table as lines."""
    lines = [" | ".join(map(escape, header)), " | ".join("---" for _ in header)]
    lines += [" | ".join(map(escape, row)) for row in rows]
    return [f"| {line} |" for line in lines]


def escape(text: str) -> str:
    """Returns text that Markdown shows as it is: no markup, no table cell of its own, one line."""
    plain = " ".join(str(text).split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|!])", r"\\\1", plain)
