"""Gathers what a report shows from a results folder; `report_html` and `report_markdown` write it down."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import platform
import shlex
from typing import Any

from benchmarks.claims import paper as claims
from benchmarks.claims import settings as claim_settings
from benchmarks.claims.tables import Tables
from benchmarks.report import figures as report_figures
from benchmarks.report import svg as report_svg

PRESETS = ("quick", "standard", "paper")
ENVIRONMENT, TIMES, SPEED = "environment.json", "times.json", "speed.json"
_PACKAGES = ("tf-ensembles", "tensorflow", "keras", "numpy", "scipy", "pandas", "tf-agents", "ray")

# What the paper wants its readers to take home, and the claims that carry it.
MESSAGES = {
    "Marginal predictions hardly tell ensembles apart.": ("F1-marginal", "F2-marginal", "F3-marginal", "F4-marginal"),
    "Prior functions make joint predictions much better.": ("F1-p", "F8-p", "F7-depends", "F3-p", "F4-p"),
    "Bootstrapping adds to that where noise is uneven.": ("T1-conditioning", "F2-bp", "F5-joint", "F6-bp", "F12-bp"),
    "Where noise is even and priors are tuned, it adds nothing.": ("B4-constant", "F1-bp-tuned", "F4-bp"),
}


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure's part of the report."""

    id: str
    about: claim_settings.Figure
    results: tuple[claims.Result, ...]
    panels: tuple[report_svg.Panel, ...]
    settings: tuple[claim_settings.Row, ...]
    chosen: report_figures.Table | None
    commands: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Report:
    """All that a report says."""

    folder: str
    results: tuple[claims.Result, ...]
    figures: tuple[Figure, ...]
    environment: dict[str, str]
    times: tuple[tuple[str, str], ...]  # part, and what it took
    speed: report_figures.Table | None

    def result(self, claim_id: str) -> claims.Result | None:
        """Returns the result of a claim by its id."""
        return next((result for result in self.results if result.claim.id == claim_id), None)


def collect(folder: str | os.PathLike[str]) -> Report:
    """Reads a results folder, judges the claims, and returns what to write."""
    tables = Tables(folder)
    results = tuple(claims.evaluate(tables))
    environment = read_environment(tables.folder)
    figures = []
    for name, about in claim_settings.FIGURES.items():
        own = tuple(result for result in results if result.claim.figure == name)
        settings = next((result.settings for result in own if result.settings), ())
        panels, chosen = report_figures.panels(name, tables), report_figures.chosen(name, tables)
        commands = tuple(_fill(command, environment, tables.folder) for command in about.commands)
        figures.append(Figure(name, about, own, tuple(panels), settings, chosen, commands))
    times, speed = _read_times(tables.folder), _read_speed(tables.folder)
    return Report(str(tables.folder), results, tuple(figures), environment, times, speed)


def _fill(command: str, environment: dict[str, str], folder: pathlib.Path) -> str:
    """Returns a command for a shell; what a file says about its making enters it quoted, and on one line."""
    preset = environment.get("preset", "standard")
    preset = preset if preset in PRESETS else "standard"
    asked = " ".join(map(shlex.quote, environment.get("bandit", "").split()))
    linear = "quick" if preset == "quick" else "full"
    output = shlex.quote(" ".join(str(folder).split()))
    return " ".join(command.format(preset=preset, linear=linear, output=output, bandit=asked).split())


def describe_environment(**facts: str) -> dict[str, str]:
    """Returns versions and machine as text, and further facts."""
    from tf_ensembles import machine

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


def _read_speed(folder: pathlib.Path) -> report_figures.Table | None:
    """A list of objects, such as `{"what": ..., "measured": ..., "command": ...}`, as a table."""
    found = _read_json(folder / SPEED)
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    header = list(dict.fromkeys(str(key) for row in rows for key in row))
    return (header, [[str(row.get(key, "")) for key in header] for row in rows]) if rows else None


def _read_json(path: pathlib.Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
