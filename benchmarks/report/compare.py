"""Sets two results folders side by side: verdicts, effects and scores, with differences and their 95% intervals.

Two versions, machines or settings. Where both folders hold the same problems, scores are compared seed by seed; where
they do not, as independent samples. A difference is that of the second folder from the first.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tf_ensembles import files
from tf_ensembles.benchmarks import stats, style
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.claims.base import Effect, Region
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.base import Figure
from tf_ensembles.benchmarks.figures.panels import TextTable
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.report import content as report_content
from tf_ensembles.benchmarks.report import page
from tf_ensembles.benchmarks.stats import Interval

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class ClaimPair:
    """A claim in both folders."""

    first: judge.Result
    second: judge.Result

    @property
    def differs(self) -> bool:
        """Whether the folders give different verdicts."""
        return self.first.verdict != self.second.verdict

    @property
    def effects(self) -> list[tuple[Effect, Effect]]:
        """The effects that both have, in their order."""
        if len(self.first.effects) != len(self.second.effects):
            return []
        return list(zip(self.first.effects, self.second.effects, strict=True))


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


def compare(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    """Reads both folders and returns what differs."""
    tables = Tables(first), Tables(second)
    results = [judge.evaluate(one) for one in tables]
    for one, judged in zip(tables, results, strict=True):
        report_content.require_some(one, judged)
    pairs = tuple(ClaimPair(one, two) for one, two in zip(*results, strict=True))
    facts = [report_content.read_environment(one.folder) for one in tables]
    environment = tuple(
        (name, facts[0].get(name, "–"), facts[1].get(name, "–")) for name in dict.fromkeys([*facts[0], *facts[1]])
    )
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
    """Writes the comparison as HTML, and returns its path."""
    with files.atomic_path(folder / "compare.html") as path:
        path.write_text(render_html(comparison), encoding="utf-8")
    return [folder / "compare.html"]


_CLAIM_HEADER = ["claim", "effect", "verdict A", "verdict B", "A", "B", "B - A"]
_SCORE_HEADER = ["table", "score", "agent", "A", "B", "B - A", "how"]
_NOTE = "A star marks a difference whose 95% interval leaves out 0; pp are percentage points."


def as_tables(comparison: Comparison) -> dict[str, TextTable]:
    """Returns what is shown, by the headings."""
    claims = [row for pair in comparison.claims for row in _claim_rows(pair)]
    listed: dict[str, TextTable] = {
        "Claims": (_CLAIM_HEADER, claims),
        "Scores": (_SCORE_HEADER, [_score_row(pair) for pair in comparison.scores]),
        "Versions and machine": (["what", "A", "B"], [list(row) for row in comparison.environment]),
    }
    return {name: (header, rows) for name, (header, rows) in listed.items() if rows}


def _claim_rows(pair: ClaimPair) -> list[list[str]]:
    claim = [pair.first.claim.id]
    verdicts = [pair.first.verdict, pair.second.verdict]
    if not pair.effects:
        return [[*claim, "", *verdicts, "–", "–", "–"]]
    rows = []
    for one, two in pair.effects:
        label = one.label if one.label == two.label else f"A: {one.label}; B: {two.label}"  # They name sizes.
        gap = stats.independent_difference(one.interval, two.interval)
        shown = f"{judge.format_effect(Effect('', gap, Region(), two.unit))}{_star(gap)}"
        # Differences of shares are points, not shares of shares.
        shown = shown.replace("%", " pp") if two.unit == "relative" else shown
        rows.append([*claim, label, *verdicts, judge.format_effect(one), judge.format_effect(two), shown])
    return rows


def _star(gap: Interval) -> str:
    # Without sampling error there is no interval to leave out 0.
    return " *" if gap.low < gap.high and gap.excludes(0.0) else ""


def _score_row(pair: ScorePair) -> list[str]:
    numbers = (pair.first, pair.second, pair.gap.estimate, pair.gap.low, pair.gap.high)
    first, second, gap, low, high = map(style.number, numbers)
    return [pair.source, pair.score, pair.agent, first, second, f"{gap} [{low}, {high}]{_star(pair.gap)}", pair.how]


def _summary(comparison: Comparison) -> str:
    differing = sum(pair.differs for pair in comparison.claims)
    return f"{differing} of {len(comparison.claims)} verdicts differ. {_NOTE}"


def format_text(comparison: Comparison) -> str:
    """Returns the comparison for a terminal."""
    lines = [f"A: {comparison.folders[0]}", f"B: {comparison.folders[1]}", ""]
    for name, (header, rows) in as_tables(comparison).items():
        if name == "Claims":
            rows = [row for row in rows if set(row[2:4]) != {stats.NOT_MEASURED}]
            rows = [[row[0], *map(_short, row[1:])] for row in rows]
        if name != "Versions and machine":
            lines += [*_aligned([header, *rows]), ""]
    return "\n".join([*lines, _summary(comparison)])


def _short(text: str) -> str:
    text = text.replace(stats.INCONCLUSIVE, "inconclusive")
    return text if len(text) <= 44 else f"{text[:43]}…"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def render_html(comparison: Comparison) -> str:
    """Returns the comparison as a page like the report's."""
    first, second = (page.escape(folder) for folder in comparison.folders)
    sections = "".join(
        page.section(name.split()[0].lower(), name, page.table(header, rows, name))
        for name, (header, rows) in as_tables(comparison).items()
    )
    return page.frame(
        "Two results side by side",
        f'<header><div class="top"><h1>Two results side by side</h1>{page.THEME}</div>'
        f'<p class="lead"><strong>A</strong>: <code>{first}</code><br><strong>B</strong>: <code>{second}</code></p>'
        f'<p>{_summary(comparison)}</p></header><main id="main">{sections}</main>',
    )
