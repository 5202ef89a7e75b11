"""Gathers what a report shows from a results folder; `html` writes it down."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import platform
import shlex
from collections.abc import Sequence
from typing import Any

from tf_ensembles import files, machine
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import deep_sea, judge, neural, sentences
from tf_ensembles.benchmarks.claims.sentences import JudgedSentence
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.base import PRESETS, Figure, Setting
from tf_ensembles.benchmarks.figures.panels import Panel, TextTable
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.report import story

ENVIRONMENT, TIMES = "environment.json", "times.json"
_MISSING = " is not there"  # how a table that is missing is told
_PACKAGES = ("tf-ensembles", "tensorflow", "keras", "numpy", "scipy", "pandas", "tf-agents", "ray")


@dataclasses.dataclass(frozen=True)
class Section:
    """A figure's part of the report."""

    figure: Figure
    results: tuple[judge.Result, ...]
    panels: tuple[Panel, ...]
    settings: tuple[Setting, ...]
    chosen: TextTable | None
    command: str


@dataclasses.dataclass(frozen=True)
class Report:
    """All that a report says."""

    folder: str
    results: tuple[judge.Result, ...]
    sections: tuple[Section, ...]
    environment: dict[str, str]
    times: tuple[tuple[str, str], ...]  # part, and what it took
    beyond: tuple[tuple[str, tuple[judge.Result, ...]], ...] = ()  # families of claims that are not the paper's
    damaged: tuple[str, ...] = ()  # what is wrong with tables that are not what was written

    @functools.cached_property
    def sentences(self) -> tuple[JudgedSentence, ...]:
        """The verdicts of the paper's sentences."""
        return tuple(sentences.judge_all(self.results))

    def result(self, claim_id: str) -> judge.Result:
        """Returns the result of a claim by its id."""
        return next(result for result in self.results if result.claim.id == claim_id)

    def highlighted(self, highlight: story.Highlight) -> tuple[Figure, Panel | None]:
        """Returns the panel of a chart of the first screen, and its figure; None where it was not measured."""
        sections = {section.figure.id: section for section in self.sections}
        for name in highlight.figures:
            for panel in sections[name].panels:
                if highlight.shows(panel):
                    return sections[name].figure, panel
        return sections[highlight.figures[0]].figure, None


def collect(folder: str | os.PathLike[str], judged: Sequence[judge.Result] = ()) -> Report:
    """Reads a results folder, judges the claims but those that were `judged` already, and returns what to write."""
    tables = Tables(folder)
    results = tuple(judge.evaluate(tables, judged=judged))
    require_some(tables, results)
    environment = read_environment(tables.folder)
    sections = tuple(_section(figure, tables, results, environment) for figure in registry.figures())
    times, beyond = _read_times(tables.folder), _beyond(tables)
    return Report(str(tables.folder), results, sections, environment, times, beyond, tuple(tables.damaged()))


def _beyond(tables: Tables) -> tuple[tuple[str, tuple[judge.Result, ...]], ...]:
    """Returns the families of other claims that the folder has tables for, each judged by itself."""
    families = {"Neural bandits": neural.CLAIMS, "Deep exploration": deep_sea.CLAIMS}
    judged = [(title, tuple(judge.evaluate_family(claims, tables))) for title, claims in families.items()]
    return tuple((title, results) for title, results in judged if any(result.effects for result in results))


def require_some(tables: Tables, results: Sequence[judge.Result]) -> None:
    """Raises an error that says what was looked for, where a folder has no table that can be used."""
    if any(result.effects for result in results):
        return
    for figure in registry.figures():
        with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
            tables.of(figure)
            return
    missing = [result.reason.removesuffix(_MISSING) for result in results if result.reason.endswith(_MISSING)]
    looked = ", ".join(list(dict.fromkeys(missing))[:4])
    raise ValueError(
        f"Expected tables of 'tf-ensembles reproduce' in {tables.folder}, such as {looked or 'those of linear/'}. "
        "Received: none that can be used"
    )


AT_SIZE, REDUCED, UNTESTED = "At the paper's size", "Reduced", "Not tested"
_CITED = (
    *("what the paper says", "deciding effect, 95% interval", "our size and the paper's", "difference", "equivalence"),
    *("verdict", "as one family (Holm)", "parts", "figure"),
)


def cited(report: Report) -> dict[str, TextTable]:
    """Returns the paper sentence by sentence: what was measured at its size, what at a smaller one, what was not."""
    kinds: dict[str, list[list[str]]] = {AT_SIZE: [], REDUCED: []}
    for one in report.sentences:
        kinds[REDUCED if one.reduced else AT_SIZE].append(_cited(one))
    untested = [[f"{one.text} ({one.where})", one.untested] for one in sentences.UNTESTED]
    tables: dict[str, TextTable] = {name: (list(_CITED), rows) for name, rows in kinds.items()}
    return tables | {UNTESTED: (["what the paper says", "why"], untested)}


def tallies(report: Report) -> list[str]:
    """Returns how many sentences have which verdict: at the paper's size, and at a smaller one, never together."""
    lines = []
    for name, reduced in ((AT_SIZE, False), (REDUCED, True)):
        counts = judge.tally(one for one in report.sentences if one.reduced == reduced)
        told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        lines.append(f"{name}: {told or 'none'}")
    return lines


def _cited(one: JudgedSentence) -> list[str]:
    parts = " ".join(f"{stats.SIGNS[part.verdict]} {part.claim.id}" for part in one.parts)
    verdict = f"{stats.SIGNS[one.verdict]} {one.verdict}"
    identity = one.parts[0].claim.identity
    family = f"{stats.SIGNS[one.adjusted]} p {judge.format_p(one.p_adjusted)}" if one.adjusted else "–"
    told, result = [f"{one.statement.text} ({one.statement.where})"], one.deciding
    if result is None:
        told += [one.parts[0].reason, "–", "–", "–"]
    else:
        effect, margin = result.deciding, result.claim.margin
        told += [f"{effect.label}: {judge.format_effect(effect)}", result.differing or "as the paper's, where stated"]
        told += [judge.difference(effect), judge.equivalence(effect, margin)]
    figure = registry.figure((result or one.parts[0]).claim.figure)
    return [*told, verdict, "identity" if identity else family, parts, figure.name]


def _section(figure: Figure, tables: Tables, results: Sequence[judge.Result], environment: dict[str, str]) -> Section:
    own = tuple(result for result in results if result.claim.figure == figure.id)
    shown: tuple[Panel, ...] = ()
    settings: tuple[Setting, ...] = ()
    chosen = None
    # The claims that read the same table say what is wrong with it.
    with contextlib.suppress(ValueError, KeyError, TypeError):
        panels = figure.panels(tables.of(figure))
        shown = tuple(panel for panel in panels if any(series.points for series in panel.series))
        settings = figure.settings(tables)
    with contextlib.suppress(ValueError, KeyError, TypeError):
        chosen = figure.chosen(tables)
    return Section(figure, own, shown, settings, chosen, _command(figure, environment, tables.folder))


def _command(figure: Figure, environment: dict[str, str], folder: pathlib.Path) -> str:
    """Returns the command that makes a figure; what a file says about its making enters it on one line."""
    preset = environment.get("preset", "standard")
    preset = preset if preset in PRESETS else "standard"
    output = shlex.quote(" ".join(str(folder).split()))
    return figure.command(preset, output)


def describe_environment(**facts: str) -> dict[str, str]:
    """Returns versions and machine as text, and further facts."""
    found = {"date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"), **facts}
    found["machine"] = f"{machine.cpu_name()}, {machine.usable_cores()} cores, {machine.memory()}"
    found["system"] = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return found | {package: version or "not installed" for package, version in machine.versions(_PACKAGES).items()}


def read_environment(folder: pathlib.Path) -> dict[str, str]:
    """Returns where and with what a folder was made, as its maker wrote it down; {} where it did not."""
    found = _read_json(folder / ENVIRONMENT)
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _read_times(folder: pathlib.Path) -> tuple[tuple[str, str], ...]:
    found = _read_json(folder / TIMES)
    if not isinstance(found, dict):
        return ()
    return tuple(
        (str(name), f"{value:,.0f} s" if isinstance(value, float | int) else str(value))
        for name, value in found.items()
    )


def _read_json(path: pathlib.Path) -> Any:
    try:
        return json.loads(files.read_bytes(path).decode())
    except (OSError, ValueError, RecursionError):
        return None
