"""Reproduces the paper: runs its experiments, judges its claims, and writes a report to open in a browser.

`--preset quick` takes about ten minutes on two cores, `standard` hours, `paper` what the paper's sizes take. The same
command continues after Ctrl-C, a crash or a kill, and does not repeat what is complete. A part that fails does not stop
the others.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.commands import places, sweep

if TYPE_CHECKING:
    from benchmarks.figures.base import Figure

PRESETS = sweep.PRESETS
ENGINES = ("local", "ray")

_COMPLETE = "complete"
_INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Part:
    """One experiment: a command line of ours, and the figures that come of it."""

    name: str
    figures: tuple[Figure, ...]
    also: tuple[str, ...]  # further names by which `--only` chooses it
    arguments: tuple[str, ...]
    places: tuple[str, ...]  # options that say where things are, which do not matter to what comes out
    made: str  # a file within the output that is there when it is complete

    @property
    def names(self) -> tuple[str, ...]:
        """By any of these names `--only` chooses it."""
        return (*(figure.id for figure in self.figures), *self.also, self.figures[0].part)

    @property
    def needs_images(self) -> bool:
        """Whether it is about CIFAR10."""
        return any(figure.needs_images for figure in self.figures)


# Which figures are made together, because they share runs; further names of theirs; the quick ones first.
_GROUPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("figures 2, 8, 9", ("F2", "F9"), ("F8",)),
    ("figure 1", ("F1",), ()),
    ("figure 7", ("F7",), ()),
    ("figures 3, 10", ("F3", "F10"), ()),
    ("figure 4", ("F4",), ()),
    ("figure 5", ("F5",), ()),
    ("figure 11", ("F11",), ()),
)


def parts(preset: str, engine: str, output: pathlib.Path, data: str | None = None) -> list[Part]:
    """Returns the experiments, the quick ones first.

    Args:
        preset: how large.
        engine: where sweeps run.
        output: the results folder.
        data: the TFDS folder of CIFAR10, where it is not TFDS's own.
    """
    from benchmarks.figures import registry

    linear, bandit = (tuple(registry.select([part])) for part in ("linear", "bandit"))
    where = ("--engine", engine, "--output")
    made = [
        Part(
            name,
            figures,
            (),
            (part, "--preset", preset, *where, str(output / part)),
            (),
            f"{part}/{figures[0].name}.csv",
        )
        for name, part, figures in (("linear", "linear", linear), ("figures 6, 12", "bandit", bandit))
    ]
    store = ("--store", str((output / "members").resolve()), *(() if data is None else ("--data-dir", data)))
    grouped = {figure for _, ids, _ in _GROUPS for figure in registry.select(ids)}
    others = [figure for figure in registry.figures() if figure not in {*linear, *bandit, *grouped}]
    groups = [*_GROUPS, *((figure.title, (figure.id,), ()) for figure in others)]
    for name, ids, also in groups:
        figures = tuple(registry.select(ids))
        options = ("--preset", preset, *where, str(output / "sweep"), "--figures-to", str(output / figures[0].part))
        names = (figure.name for figure in figures)
        images = store if figures[0].needs_images else ()
        file = f"{figures[0].part}/{figures[0].name}.csv"
        made.append(Part(name, figures, also, ("sweep", "run", *names, *options), images, file))
    return made


def choose(listed: list[Part], only: str | None) -> list[Part]:
    """Returns the parts that are named, such as by `F2,F6` or `linear,cifar10`; all without names."""
    if only is None:
        return listed
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    known = list(dict.fromkeys(name for part in listed for name in part.names))
    names = {name.lower(): name for name in known}
    unknown = [name for name in wanted if name.lower() not in names]
    if unknown or not wanted:
        raise ValueError(f"Expected --only of {', '.join(known)}. Received: {only!r}")
    chosen = {names[name.lower()] for name in wanted}
    return [part for part in listed if chosen & set(part.names)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--preset", choices=PRESETS, default="quick", help="how large (default quick)")
    parser.add_argument(
        "--only", metavar="FIGURES", help="such as F2,F6; also linear, testbed, cifar10, bandit (default: all)"
    )
    parser.add_argument("--engine", choices=ENGINES, default="local", help="where sweeps run (default local)")
    parser.add_argument("--output", type=pathlib.Path, help="folder of all results (default results/reproduce/PRESET)")
    places.add_data_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Runs what is missing, writes the report, prints the verdicts and where the report is."""
    output: pathlib.Path = args.output or pathlib.Path("results/reproduce") / args.preset
    chosen = choose(parts(args.preset, args.engine, output, args.data_dir), args.only)
    facts = {"preset": args.preset, "engine": args.engine}
    failed = []
    pending = [part for part in chosen if not _is_complete(part, args.preset, output)]
    for part in chosen:
        if part not in pending:
            print(f"{part.name}: complete already")
    _print_statements(pending, args.preset)
    images = _prepare_images(args.data_dir) if any(part.needs_images for part in pending) else None
    for number, part in enumerate(pending, start=1):
        if part.needs_images and images is not None and not images[0]:
            print(f"\n[{number} of {len(pending)}] {part.name}: left out, {images[1]}")
            continue
        print(f"\n[{number} of {len(pending)}] {part.name}: tf-ensembles {' '.join(part.arguments)}", flush=True)
        if not _run_part(part, args.preset, output):
            failed.append(part.name)
            print(f"{part.name}: failed; the other parts go on", file=sys.stderr, flush=True)
    return _report(output, facts | ({"CIFAR10": images[1]} if images else {}), bool(pending), failed)


def _print_statements(pending: list[Part], preset: str) -> None:
    """Prints which claims the figures can decide, before anything is run."""
    from benchmarks.claims import presets

    sizes = presets.preset_sizes(preset)
    statements = [presets.state(figure, sizes) for part in pending for figure in part.figures]
    for statement in statements:
        if statement is not None:
            print(statement, flush=True)


def _report(output: pathlib.Path, facts: dict[str, str], ran: bool, failed: list[str]) -> int:
    """Writes the report of what is there, and returns the exit code."""
    from benchmarks.commands import report
    from benchmarks.report import content as report_content

    if ran and output.is_dir():
        kept = report_content.read_environment(output)
        facts = {name: kept[name] for name in ("CIFAR10",) if name in kept} | facts
        _write(output / report_content.ENVIRONMENT, report_content.describe_environment(**facts))
        _write(output / report_content.TIMES, _times(output))
    try:
        content = report_content.collect(output)
    except ValueError:
        if not failed:
            raise
        print(f"Nothing was measured. Failed: {', '.join(failed)}", file=sys.stderr)
        return 1
    written = report.write(content, output)
    print(f"\n{report.format_text(content.results)}\n")
    if "CIFAR10" in content.environment:
        print(content.environment["CIFAR10"])
    print(f"Report: {written[0]}\n        {written[1]}")
    if failed:
        print(f"Failed: {', '.join(failed)}. The same command tries again.", file=sys.stderr)
    return 1 if failed else 0


def _prepare_images(data: str | None) -> tuple[bool, str]:
    """Gets CIFAR10 if it is not there yet; returns whether it is now, and a sentence about it for the report."""
    print("\nCIFAR10: making sure that the images are there", flush=True)
    where = () if data is None else ("--data-dir", data)
    # A process of its own, so that what it loads into memory goes with it.
    command = [sys.executable, "-m", "trainers.images.cifar10", *where]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if found.returncode == _INTERRUPTED:
        raise KeyboardInterrupt
    if found.returncode:
        return False, "CIFAR10 could not be downloaded or read on this machine, so its figures were not measured."
    how = found.stdout.strip().splitlines()[-1].removeprefix("CIFAR10: ")
    return True, f"Images: the real CIFAR10 ({how})."


def _marker(part: Part, output: pathlib.Path) -> pathlib.Path:
    return output / _COMPLETE / f"{'-'.join(figure.id for figure in part.figures)}.json"


def _settings(part: Part, preset: str) -> Any:
    """What a complete part is complete for; where it ran does not matter to what came out."""
    from tf_ensembles import version

    sizes = [repr(figure.presets[preset]) for figure in part.figures]
    return {"figures": [figure.id for figure in part.figures], "sizes": sizes, "version": version.__version__}


def _is_complete(part: Part, preset: str, output: pathlib.Path) -> bool:
    from benchmarks.figures.tables import Tables
    from tf_ensembles import files

    try:
        kept = files.parse_json(files.read_bytes(_marker(part, output)))
        Tables(output).of(part.figures[0])  # What claims read, which may have been deleted since.
    except (OSError, ValueError):
        return False
    return bool(kept.get("settings") == _settings(part, preset) and (output / part.made).is_file())


def _run_part(part: Part, preset: str, output: pathlib.Path) -> bool:
    """Runs one part in a process of its own; returns whether it succeeded."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.commands.main", *part.arguments, *part.places]
    code = subprocess.run(command).returncode
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code or not (output / part.made).is_file():
        return False
    seconds = time.perf_counter() - start
    _write(_marker(part, output), {"name": part.name, "settings": _settings(part, preset), "seconds": seconds})
    return True


def _times(output: pathlib.Path) -> dict[str, float]:
    """Seconds of the complete parts, as their last run took; a part that was continued took longer in all."""
    from tf_ensembles import files

    times: dict[str, float] = {}
    for path in sorted((output / _COMPLETE).glob("*.json")):
        with contextlib.suppress(
            OSError, ValueError, KeyError, TypeError, OverflowError
        ):  # Damaged: it will run again.
            kept = files.parse_json(files.read_bytes(path))
            times[str(kept["name"])] = float(kept["seconds"])
    return {**times, "all parts": sum(times.values())}


def _write(path: pathlib.Path, content: Any) -> None:
    from tf_ensembles import files

    with files.atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
