"""Sets two results folders side by side: verdicts, effects and scores, with differences and their 95% intervals.

Two versions, machines or settings. Where both folders hold the same problems, scores are compared seed by seed; where
they do not, as independent samples. A difference is that of the second folder from the first.
"""

from __future__ import annotations

import dataclasses
import html
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from benchmarks import stats, style
from benchmarks.claims import judge
from benchmarks.claims.base import Effect, Region, Unit
from benchmarks.figures import registry
from benchmarks.figures.base import Figure
from benchmarks.figures.tables import Tables
from benchmarks.report import content as report_content
from benchmarks.report import markdown as report_markdown
from benchmarks.report import page
from benchmarks.stats import Interval

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class EffectPair:
    """An effect of a claim in both folders."""

    label: str
    first: Effect
    second: Effect

    @property
    def gap(self) -> Interval:
        """The second effect minus the first, as of independent samples."""
        return stats.independent_difference(self.first.interval, self.second.interval)


@dataclasses.dataclass(frozen=True)
class ClaimPair:
    """A claim in both folders."""

    first: judge.Result
    second: judge.Result

    @property
    def effects(self) -> list[EffectPair]:
        """The effects that both have, in their order."""
        both = zip(self.first.effects, self.second.effects, strict=False)
        if len(self.first.effects) != len(self.second.effects):
            return []
        return [EffectPair(_joined(one.label, two.label), one, two) for one, two in both]


@dataclasses.dataclass(frozen=True)
class ScorePair:
    """An agent's mean score in both folders, and their difference."""

    source: str
    score: str
    agent: str
    first: float
    second: float
    gap: Interval
    how: str  # how the difference was taken


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two results folders side by side."""

    folders: tuple[str, str]
    claims: tuple[ClaimPair, ...]
    scores: tuple[ScorePair, ...]
    environment: tuple[tuple[str, str, str], ...]


def _joined(first: str, second: str) -> str:
    """Labels name sizes, which may differ."""
    return first if first == second else f"A: {first}; B: {second}"


def compare(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    """Reads both folders and returns what differs."""
    tables = Tables(first), Tables(second)
    results = [judge.evaluate(one) for one in tables]
    for one, judged in zip(tables, results, strict=True):
        report_content.require_some(one, judged)
    pairs = tuple(ClaimPair(one, two) for one, two in zip(*results, strict=True))
    facts = [report_content.read_environment(one.folder) for one in tables]
    names = list(dict.fromkeys([*facts[0], *facts[1]]))
    environment = tuple((name, facts[0].get(name, "–"), facts[1].get(name, "–")) for name in names)
    scores = tuple(
        pair
        for figure in registry.figures()
        if figure.scores and not figure.same_runs_as
        for pair in _score_pairs(figure, *tables)
    )
    return Comparison((str(first), str(second)), pairs, scores, environment)


def _score_pairs(figure: Figure, first: Tables, second: Tables) -> Iterator[ScorePair]:
    try:
        tables = [_labeled(figure, tables.of(figure)) for tables in (first, second)]
    except ValueError:
        return  # One of them has none: the claims say so.
    settings = set(tables[0].setting) & set(tables[1].setting)
    if figure.part == "bandit" and settings:
        settings = {max(settings, key=lambda name: int(name[1:]))}
    tables = [table[table.setting.isin(settings)] for table in tables]
    agents = [agent for agent in dict.fromkeys(tables[0].agent) if agent in set(tables[1].agent)]
    for score in figure.scores:
        for agent in agents:
            one, two = (stats.by_seed(table[table.agent == agent], score)[agent] for table in tables)
            if len(one) and len(two):
                yield _score_pair(figure, score, agent, one, two)


def _score_pair(figure: Figure, score: str, agent: str, one: pd.Series[float], two: pd.Series[float]) -> ScorePair:
    shared = one.index.intersection(two.index)
    unit = "parts" if figure.part == "bandit" else "seeds"
    if len(shared) >= 2:
        one, two = one[shared], two[shared]
        gap, how = stats.paired_difference(two, one), f"paired over {len(shared)} {unit}"
    else:
        intervals = [stats.mean_interval(values) for values in (one, two)]
        gap, how = stats.independent_difference(*intervals), f"independent, {len(one)} and {len(two)} {unit}"
    return ScorePair(figure.name, score, agent, float(one.mean()), float(two.mean()), gap, how)


def _labeled(figure: Figure, table: pd.DataFrame) -> pd.DataFrame:
    """Names what differs beside the agent, so that a name stands for one score per setting and seed."""
    if "step" in table:
        table = table[table.step == table.horizon]
    return table.assign(agent=figure.series_names(table))


def write(comparison: Comparison, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes the comparison as HTML and Markdown, and returns the paths."""
    from tf_ensembles import files

    written = [folder / "compare.html", folder / "compare.md"]
    for final, text in zip(written, (render_html(comparison), render_markdown(comparison)), strict=True):
        with files.atomic_path(final) as path:
            path.write_text(text, encoding="utf-8")
    return written


def _claim_rows(comparison: Comparison) -> Iterator[list[str]]:
    for pair in comparison.claims:
        verdicts = [pair.first.verdict, pair.second.verdict]
        if not pair.effects:
            yield [pair.first.claim.id, "", verdicts[0], verdicts[1], "–", "–", "–"]
        for effect in pair.effects:
            shown = [judge.format_effect(one) for one in (effect.first, effect.second)]
            yield [pair.first.claim.id, effect.label, *verdicts, *shown, _gap(effect.gap, effect.second.unit)]


def _gap(gap: Interval, unit: Unit) -> str:
    text = judge.format_effect(Effect("", gap, Region(), unit))
    # Differences of shares are points, not shares of shares.
    return f"{text}{_star(gap)}".replace("%", " pp") if unit == "relative" else f"{text}{_star(gap)}"


def _star(gap: Interval) -> str:
    # Without sampling error there is no interval to leave out 0.
    return " *" if gap.low < gap.high and gap.excludes(0.0) else ""


def _score_rows(comparison: Comparison) -> Iterator[list[str]]:
    for pair in comparison.scores:
        numbers = [style.number(value) for value in (pair.first, pair.second)]
        low, high = (style.number(value) for value in (pair.gap.low, pair.gap.high))
        gap = f"{style.number(pair.gap.estimate)} [{low}, {high}]{_star(pair.gap)}"
        yield [pair.source, pair.score, pair.agent, *numbers, gap, pair.how]


_CLAIM_HEADER = ["claim", "effect", "verdict A", "verdict B", "A", "B", "B - A"]
_SCORE_HEADER = ["table", "score", "agent", "A", "B", "B - A", "how"]
_NOTE = "A star marks a difference whose 95% interval leaves out 0; pp are percentage points."


def format_text(comparison: Comparison) -> str:
    """Returns the comparison for a terminal."""
    lines = [f"A: {comparison.folders[0]}", f"B: {comparison.folders[1]}", ""]
    changed = [pair for pair in comparison.claims if pair.first.verdict != pair.second.verdict]
    rows = [row for row in _claim_rows(comparison) if set(row[2:4]) != {stats.NOT_MEASURED}]
    lines += _aligned([_CLAIM_HEADER, *([row[0], _short(row[1]), *map(_short, row[2:])] for row in rows)])
    if comparison.scores:
        lines += ["", *_aligned([_SCORE_HEADER, *_score_rows(comparison)])]
    return "\n".join([*lines, "", f"{len(changed)} of {len(comparison.claims)} verdicts differ. {_NOTE}"])


def _short(text: str) -> str:
    text = text.replace(stats.INCONCLUSIVE, "inconclusive")
    return text if len(text) <= 44 else f"{text[:43]}…"


def _aligned(rows: Iterable[list[str]]) -> list[str]:
    rows = list(rows)
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def render_markdown(comparison: Comparison) -> str:
    """Returns the comparison as Markdown."""
    first, second = (report_markdown.escape(folder) for folder in comparison.folders)
    lines = ["# Two results side by side", "", f"A: {first}  ", f"B: {second}", "", _NOTE, "", "## Claims", ""]
    lines += report_markdown.table(_CLAIM_HEADER, list(_claim_rows(comparison)))
    if comparison.scores:
        lines += ["", "## Scores", "", *report_markdown.table(_SCORE_HEADER, list(_score_rows(comparison)))]
    if comparison.environment:
        rows = [list(row) for row in comparison.environment]
        lines += ["", "## Versions and machine", "", *report_markdown.table(["what", "A", "B"], rows)]
    return "\n".join(lines) + "\n"


def render_html(comparison: Comparison) -> str:
    """Returns the comparison as a page like the report's."""
    first, second = (html.escape(folder) for folder in comparison.folders)
    changed = sum(pair.first.verdict != pair.second.verdict for pair in comparison.claims)
    parts = [
        '<header><div class="top"><h1>Two results side by side</h1>'
        f"{page.THEME}</div>"
        f'<p class="lead"><strong>A</strong>: <code>{first}</code><br><strong>B</strong>: <code>{second}</code></p>'
        f"<p>{changed} of {len(comparison.claims)} verdicts differ. {_NOTE}</p></header>"
        f'<main id="main"><section aria-labelledby="claims"><h2 id="claims">Claims</h2>{_verdict_table(comparison)}',
        "</section>",
    ]
    if comparison.scores:
        table = page.table(_SCORE_HEADER, list(_score_rows(comparison)), "Scores, lower is better", (3, 4, 5))
        parts.append(f'<section aria-labelledby="scores"><h2 id="scores">Scores</h2>{table}</section>')
    if comparison.environment:
        rows = [list(row) for row in comparison.environment]
        table = page.table(["what", "A", "B"], rows, "Where and with what the results were made")
        parts.append(f'<section aria-labelledby="machine"><h2 id="machine">Versions and machine</h2>{table}</section>')
    return page.frame("Two results side by side", "".join(parts) + "</main>")


def _verdict_table(comparison: Comparison) -> str:
    lines = []
    for pair in comparison.claims:
        kind = ' class="differs"' if pair.first.verdict != pair.second.verdict else ""
        claim = pair.first.claim
        name = f'<span class="id">{html.escape(claim.id)}</span><span class="text">{html.escape(claim.text)}</span>'
        badges = [page.badge(one.verdict) for one in (pair.first, pair.second)]
        lines.append(f'<tr{kind}><th scope="row">{name}</th><td>{badges[0]}</td><td>{badges[1]}</td><td></td></tr>')
        for effect in pair.effects:
            shown = [judge.format_effect(one) for one in (effect.first, effect.second)]
            cells = [effect.label, *shown, _gap(effect.gap, effect.second.unit)]
            lines.append(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>")
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("claim and effects", "A", "B", "B - A"))
    return (
        '<div class="scroll" role="region" tabindex="0" aria-label="Claims in both folders"><table class="pairs">'
        "<caption>Effects with 95% intervals; marked where the verdicts differ.</caption>"
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )
