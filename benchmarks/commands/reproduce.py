"""Reproduces the paper: runs its experiments, judges its claims, and writes a report to open in a browser.

`--preset quick` takes about six minutes on two cores, `standard` hours, `paper` what the paper's sizes take. The same
command continues after Ctrl-C, a crash or a kill, and does not repeat what is complete. A part that fails does not stop
the others.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import re
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import stats
from benchmarks.commands import options, places, stages

if TYPE_CHECKING:
    from benchmarks.claims import judge
    from benchmarks.figures.base import Figure

ENGINES = ("local", "ray")

_COMPLETE = "complete"
_SHOWN_OF_FAILED = 12  # lines


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


# Which figures are made together, because they share runs or workers; further names of theirs; the quick ones first.
_GROUPS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("figures 2, 8, 9", ("F2", "F9"), ("F8",)),
    ("figure 1", ("F1",), ()),
    ("figure 7", ("F7",), ()),
    ("figures 3, 4, 5, 10, 11", ("F3", "F4", "F5", "F10", "F11"), ()),
)
# What the quick preset takes, about: seconds of two cores. Only to tell what is left before anything was measured.
_QUICK_SECONDS = {
    "linear": 37.0,
    "figures 6, 12": 46.0,
    "figures 2, 8, 9": 54.0,
    "figure 1": 61.0,
    "figure 7": 27.0,
    "figures 3, 4, 5, 10, 11": 80.0,
}
_OTHER_SECONDS = 28.0  # of a figure that is not named here
_VERDICT = re.compile(rf"([A-Z][\w-]*): ({'|'.join(stats.VERDICTS)}): .*")
_LOGS = "logs"


def parts(
    preset: str, engine: str, output: pathlib.Path, data: str | None = None, address: str | None = None
) -> list[Part]:
    """Returns the experiments, the quick ones first.

    Args:
        preset: how large.
        engine: where sweeps run.
        output: the results folder.
        data: the TFDS folder of CIFAR10, where it is not TFDS's own.
        address: of a running Ray cluster.
    """
    from benchmarks.figures import registry

    cluster = () if address is None else ("--address", address)

    linear, bandit = (tuple(registry.select([part])) for part in ("linear", "bandit"))
    where = ("--engine", engine, "--results")
    made = [
        Part(
            name,
            figures,
            (),
            (part, "--preset", preset, *where, str(output / part)),
            cluster,
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
        images = (*cluster, *store) if figures[0].needs_images else cluster
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
    return [_narrow(part, chosen) for part in listed if chosen & set(part.names)]


def _narrow(part: Part, chosen: set[str]) -> Part:
    """Returns a part with the figures that are named, and those that show the same runs."""
    named = {figure.id for figure in part.figures} & chosen
    if part.arguments[0] != "sweep" or chosen & ({*part.names} - {figure.id for figure in part.figures}):
        return part
    named |= {figure.id for figure in part.figures if figure.same_runs_as in named}
    named |= {figure.same_runs_as for figure in part.figures if figure.id in named and figure.same_runs_as}
    kept = tuple(figure for figure in part.figures if figure.id in named)
    if kept == part.figures:
        return part
    options = part.arguments[2 + len(part.figures) :]
    return dataclasses.replace(
        part,
        name=f"figure{'s' * (len(kept) > 1)} {', '.join(figure.id.removeprefix('F') for figure in kept)}",
        figures=kept,
        arguments=("sweep", "run", *(figure.name for figure in kept), *options),
        made=f"{kept[0].part}/{kept[0].name}.csv",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = options.examples(
        "reproduce", "reproduce --preset quick --only F2,F6", "reproduce --preset standard --results results/mine"
    )
    options.add_preset(parser, "quick")
    only = parser.add_argument(
        "--only", metavar="FIGURES", help="such as F2,F6; also linear, testbed, cifar10, bandit (default: all)"
    )
    options.suggest(only, lambda: [name for part in parts("quick", "local", pathlib.Path()) for name in part.names])
    parser.add_argument("--engine", choices=ENGINES, default="local", help="where sweeps run (default local)")
    parser.add_argument("--address", help="of a running Ray cluster, which then runs them")
    options.add_results(parser, None, "folder of all results (default results/reproduce/PRESET)")
    places.add_data_dir(parser)


def run(args: argparse.Namespace) -> int:
    """Runs what is missing, writes the report, prints the verdicts, where the report is, and what a larger run adds."""
    output: pathlib.Path = args.results or pathlib.Path("results/reproduce") / args.preset
    about = ", about 6 minutes on two idle cores" if args.preset == "quick" and args.only is None else ""
    title = f"Reproducing the paper at preset {args.preset}{about}, into {output}; the same command continues"
    if args.address is not None:
        args.engine = "ray"
    with stages.Stages(title) as shown:
        chosen = choose(parts(args.preset, args.engine, output, args.data_dir, args.address), args.only)
        pending = [part for part in chosen if not _is_complete(part, args.preset, output)]
        done = [f"{part.name}: complete already" for part in chosen if part not in pending]
        quick = args.preset == "quick"
        shown.plan({part.name: _QUICK_SECONDS.get(part.name, _OTHER_SECONDS) if quick else None for part in pending})
        if lines := [*done, *_statements(pending, args.preset)]:
            shown.say(*lines)
        facts = {"preset": args.preset, "engine": args.engine}
        if any(part.needs_images for part in pending):
            images, facts["CIFAR10"] = _prepare_images(args.data_dir, output, shown)
            pending = [part for part in pending if images or not part.needs_images]
            if not images:
                shown.say(f"CIFAR10: left out, {facts['CIFAR10']}")
        failed = [part.name for part in pending if not _run_part(part, args.preset, output, shown)]
    return _report(args, output, facts, bool(pending), failed)


def _statements(pending: list[Part], preset: str) -> list[str]:
    """Which claims the figures can decide, before anything is run."""
    from benchmarks.claims import presets

    sizes = presets.preset_sizes(preset)
    found = [presets.state(figure, sizes) for part in pending for figure in part.figures]
    return [str(one) for one in found if one is not None]


def _report(args: argparse.Namespace, output: pathlib.Path, facts: dict[str, str], ran: bool, failed: list[str]) -> int:
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
    lines = ["", report.format_text(content), "", *_more(content.results, args.preset)]
    lines += [content.environment[name] for name in ("CIFAR10",) if name in content.environment]
    lines.append(f"Report: {written[0]}\n        {written[1]}")
    answer = {"claims": options.verdicts(content.results), "wrote": written, "failed": failed}
    options.answer(args, answer, "\n".join(lines))
    if failed:
        print(f"Failed: {', '.join(failed)}. The same command tries again.", file=sys.stderr)
    return 1 if failed or content.damaged else 0


def _more(results: Sequence[judge.Result], preset: str) -> list[str]:
    """What a larger run would add: claims that this one cannot decide, and those that it left open."""
    from benchmarks.claims import presets

    sizes = presets.preset_sizes(preset)
    missing = [one.claim for one in results if one.verdict == stats.NOT_MEASURED and presets.missing(one.claim, sizes)]
    open_here = [one.claim.id for one in results if one.verdict == stats.INCONCLUSIVE]
    lines = []
    for larger in options.PRESETS[options.PRESETS.index(preset) + 1 :]:
        sizes = presets.preset_sizes(larger)
        added = [claim for claim in missing if not presets.missing(claim, sizes)]
        missing = [claim for claim in missing if claim not in added]
        also = f"can also decide {', '.join(claim.id for claim in added)}" if added else "decides the same claims"
        lines.append(f"--preset {larger}: {also}, with more seeds, members and settings.")
    if lines and open_here:
        lines.append(f"Left open here, which more seeds may decide: {', '.join(open_here)}.")
    return lines


def _prepare_images(data: str | None, output: pathlib.Path, shown: stages.Stages) -> tuple[bool, str]:
    """Gets CIFAR10 if it is not there yet; returns whether it is now, and a sentence about it for the report."""
    shown.begin("", "CIFAR10: making sure that the images are there")
    where = () if data is None else ("--data-dir", data)
    heard: list[str] = []
    # A process of its own, so that what it loads into memory goes with it.
    command = [sys.executable, "-u", "-m", "trainers.images.cifar10", *where]
    code = stages.follow(command, output / _LOGS / "images.txt", heard.append)
    if code:
        return False, "CIFAR10 could not be downloaded or read on this machine, so its figures were not measured."
    how = [line.removeprefix("CIFAR10: ") for line in heard if line.startswith("CIFAR10: ")]
    return True, f"Images: the real CIFAR10 ({how[-1] if how else 'as it was prepared'})."


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


def _run_part(part: Part, preset: str, output: pathlib.Path, shown: stages.Stages) -> bool:
    """Runs one part in a process of its own; returns whether it succeeded."""
    shown.begin(part.name)
    start, heard = time.perf_counter(), []

    def hear(line: str) -> None:
        heard.append(line)
        shown.hear(line)

    command = [sys.executable, "-u", "-m", "benchmarks.commands.main", *part.arguments, *part.places]
    log = output / _LOGS / f"{'-'.join(figure.id for figure in part.figures)}.txt"
    code = stages.follow(command, log, hear)
    if code or not (output / part.made).is_file():
        shown.end(part.name, f"failed, and the other parts go on; {log} says why")
        print(*heard[-_SHOWN_OF_FAILED:], sep="\n", file=sys.stderr, flush=True)
        return False
    seconds = time.perf_counter() - start
    _write(_marker(part, output), {"name": part.name, "settings": _settings(part, preset), "seconds": seconds})
    found = [match for match in map(_VERDICT.fullmatch, heard) if match]
    shown.end(part.name, ", ".join(f"{stats.SIGNS[match[2]]} {match[1]}" for match in found) or "done")
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
