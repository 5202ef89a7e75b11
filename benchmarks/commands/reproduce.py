"""Reproduces the paper: runs its experiments, judges its claims, and writes a report to open in a browser.

`--preset quick` takes about six minutes on two cores, `standard` hours, `paper` what the paper's sizes take. The same
command continues after Ctrl-C, a crash or a kill, and does not repeat what is complete. A part that fails does not stop
the others.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import pathlib
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.commands import options, places, stages

if TYPE_CHECKING:
    from tf_ensembles.benchmarks.claims import judge
    from tf_ensembles.benchmarks.figures.base import Figure

ENGINES = ("local", "ray")

# Figures that are made together, because they share runs or workers, by the name of their part: as `registry.select`
# takes them, and the seconds that the quick preset takes on two cores, which tell what is left before any was measured.
_GROUPS: dict[str, tuple[tuple[str, ...], float]] = {
    "linear": (("linear",), 37.0),
    "figures 6, 12": (("bandit",), 46.0),
    "figures 2, 8, 9": (("F2", "F9"), 54.0),
    "figure 1": (("F1",), 61.0),
    "figure 7": (("F7",), 27.0),
    "figures 3, 4, 5, 10, 11": (("cifar10",), 80.0),
}
_OTHER_SECONDS = 28.0  # of a figure that is in no group
_ALSO = {"F8": "F2"}  # figures of the paper that show the runs of another
_WHOLE = ("linear", "bandit")  # whose figures are only made all together, with their runs beside them
_COMPLETE, _LOGS = "complete", "logs"


@dataclasses.dataclass(frozen=True)
class Part:
    """Figures that are made one after the other, by the same workers."""

    name: str
    figures: tuple[Figure, ...]
    seconds: float  # about, at the quick preset

    @property
    def key(self) -> str:
        """Names its files."""
        return "-".join(figure.id for figure in self.figures)

    @property
    def made(self) -> str:
        """A file within the results that is there when it is complete."""
        return f"{self.figures[0].part}/{self.figures[0].name}.csv"

    @property
    def needs_images(self) -> bool:
        """Whether it is about CIFAR10."""
        return any(figure.needs_images for figure in self.figures)


def choose(only: str | None = None) -> list[Part]:
    """Returns all parts, the quick ones first, or what is named of them, such as by `F2,F6` or `linear,cifar10`.

    Figures that show the same runs are made together.
    """
    from tf_ensembles.benchmarks.figures import registry

    names = [] if only is None else [name.strip() for name in only.split(",")]
    wanted = registry.figures() if only is None else registry.select(_ALSO.get(name.upper(), name) for name in names)
    chosen = {figure.id for figure in wanted} | {figure.same_runs_as for figure in wanted}
    groups = {name: (tuple(registry.select(members)), seconds) for name, (members, seconds) in _GROUPS.items()}
    grouped = {figure for figures, _ in groups.values() for figure in figures}
    groups |= {figure.title: ((figure,), _OTHER_SECONDS) for figure in registry.figures() if figure not in grouped}
    parts = []
    for name, (figures, seconds) in groups.items():
        kept = tuple(figure for figure in figures if figure.id in chosen or figure.same_runs_as in chosen - {""})
        if kept and figures[0].part in _WHOLE:
            kept = figures
        if kept and kept != figures:
            numbers = ", ".join(figure.id.removeprefix("F") for figure in kept)
            name = f"figure{'s' * (len(kept) > 1)} {numbers}"
        if kept:
            parts.append(Part(name, kept, seconds))
    return parts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = options.examples(
        "reproduce", "reproduce --preset quick --only F2,F6", "reproduce --preset standard --results results/mine"
    )
    options.add_preset(parser, "quick")
    only = parser.add_argument(
        "--only", metavar="FIGURES", help="such as F2,F6; also linear, testbed, cifar10, bandit (default: all)"
    )
    options.suggest(only, _names)
    parser.add_argument("--engine", choices=ENGINES, default="local", help="where sweeps run (default local)")
    parser.add_argument("--address", help="of a running Ray cluster, which then runs them")
    options.add_results(parser, None, "folder of all results (default results/reproduce/PRESET)")
    places.add_data_dir(parser)


def _names() -> list[str]:
    from tf_ensembles.benchmarks.figures import registry

    return [*(figure.id for figure in registry.figures()), *_ALSO, *{figure.part for figure in registry.figures()}]


def run(args: argparse.Namespace) -> int:
    """Runs what is missing, writes the report, prints the verdicts, where the report is, and what a larger run adds."""
    output: pathlib.Path = args.results or pathlib.Path("results/reproduce") / args.preset
    about = ", about 6 minutes on two idle cores" if args.preset == "quick" and args.only is None else ""
    title = f"Reproducing the paper at preset {args.preset}{about}, into {output}; the same command continues"
    if args.address is not None:
        args.engine = "ray"
    results: list[judge.Result] = []
    failed = []
    with stages.Stages(title) as shown:
        chosen = choose(args.only)
        pending = [part for part in chosen if not _is_complete(part, args.preset, output)]
        done = [f"{part.name}: complete already" for part in chosen if part not in pending]
        shown.plan({part.name: part.seconds if args.preset == "quick" else None for part in pending})
        if lines := [*done, *_statements(pending, args.preset)]:
            shown.say(*lines)
        facts = {"preset": args.preset, "engine": args.engine}
        if any(part.needs_images for part in pending):
            images, facts["CIFAR10"] = _prepare_images(args.data_dir, output, shown)
            pending = [part for part in pending if images or not part.needs_images]
            if not images:
                shown.say(f"CIFAR10: left out, {facts['CIFAR10']}")
        for part in pending:
            judged = _run_part(part, args, output, shown)
            if judged is None:
                failed.append(part.name)
            results += judged or ()
    return _report(args, output, facts, bool(pending), results, failed)


def _statements(pending: list[Part], preset: str) -> list[str]:
    """Which claims the figures can decide, before anything is run."""
    from tf_ensembles.benchmarks.claims import presets

    sizes = presets.preset_sizes(preset)
    statements = [presets.state(figure, sizes) for part in pending for figure in part.figures]
    return [str(statement) for statement in statements if statement is not None]


def _report(
    args: argparse.Namespace,
    output: pathlib.Path,
    facts: dict[str, str],
    ran: bool,
    results: Sequence[judge.Result],
    failed: list[str],
) -> int:
    """Writes the report of what is there, and returns the exit code; `results` were judged already."""
    from tf_ensembles.benchmarks.commands import report
    from tf_ensembles.benchmarks.report import content as report_content

    if ran and output.is_dir():
        kept = report_content.read_environment(output)
        facts = {name: kept[name] for name in ("CIFAR10",) if name in kept} | facts
        _write(output / report_content.ENVIRONMENT, report_content.describe_environment(**facts))
        _write(output / report_content.TIMES, _times(output))
    try:
        content = report_content.collect(output, results)
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
    from tf_ensembles.benchmarks.claims import presets

    sizes = presets.preset_sizes(preset)
    missing = [
        result.claim
        for result in results
        if result.verdict == stats.NOT_MEASURED and presets.missing(result.claim, sizes)
    ]
    left_open = [result.claim.id for result in results if result.verdict == stats.INCONCLUSIVE]
    lines = []
    for larger in options.PRESETS[options.PRESETS.index(preset) + 1 :]:
        sizes = presets.preset_sizes(larger)
        added = [claim for claim in missing if not presets.missing(claim, sizes)]
        missing = [claim for claim in missing if claim not in added]
        also = f"can also decide {', '.join(claim.id for claim in added)}" if added else "decides the same claims"
        lines.append(f"--preset {larger}: {also}, with more seeds, members and settings.")
    if lines and left_open:
        lines.append(f"Left open here, which more seeds may decide: {', '.join(left_open)}.")
    return lines


def _prepare_images(data: str | None, output: pathlib.Path, shown: stages.Stages) -> tuple[bool, str]:
    """Gets CIFAR10 if it is not there yet; returns whether it is now, and a sentence about it for the report."""
    from tf_ensembles.trainers.images import cifar10

    shown.begin("", "CIFAR10: making sure that the images are there")
    with stages.logged(output / _LOGS / "images.txt", shown.hear):
        try:
            how = cifar10.prepare_cifar10(data)
        except Exception:
            traceback.print_exc()
            return False, "CIFAR10 could not be downloaded or read on this machine, so its figures were not measured."
        return True, f"Images: the real CIFAR10 ({how})."


def _marker(part: Part, output: pathlib.Path) -> pathlib.Path:
    return output / _COMPLETE / f"{part.key}.json"


def _settings(part: Part, preset: str) -> Any:
    """What a complete part is complete for; where it ran does not matter to what came out."""
    from tf_ensembles import version

    sizes = [repr(figure.presets[preset]) for figure in part.figures]
    return {"figures": [figure.id for figure in part.figures], "sizes": sizes, "version": version.__version__}


def _is_complete(part: Part, preset: str, output: pathlib.Path) -> bool:
    from tf_ensembles import files
    from tf_ensembles.benchmarks.figures.tables import Tables

    try:
        kept = files.parse_json(files.read_bytes(_marker(part, output)))
        Tables(output).of(part.figures[0])  # What claims read, which may have been deleted since.
    except (OSError, ValueError):
        return False
    return kept.get("settings") == _settings(part, preset) and (output / part.made).is_file()


def _run_part(
    part: Part, args: argparse.Namespace, output: pathlib.Path, shown: stages.Stages
) -> tuple[judge.Result, ...] | None:
    """Runs one part; returns what its figures say about claims, or None where it failed, which stops no other."""
    shown.begin(part.name)
    start, log = time.perf_counter(), output / _LOGS / f"{part.key}.txt"
    with stages.logged(log, shown.hear) as last_lines:
        try:
            failed, results = _make(part, args, output, shown)
        except Exception:
            traceback.print_exc()
            failed = 1
    if failed:
        shown.end(part.name, f"failed, and the other parts go on; {log} says why")
        print(*last_lines, sep="\n", file=sys.stderr, flush=True)
        return None
    seconds = time.perf_counter() - start
    _write(_marker(part, output), {"name": part.name, "settings": _settings(part, args.preset), "seconds": seconds})
    verdicts = [f"{stats.SIGNS[result.verdict]} {result.claim.id}" for result in results]
    shown.end(part.name, ", ".join(verdicts) or "done")
    return results


def _make(
    part: Part, args: argparse.Namespace, output: pathlib.Path, shown: stages.Stages
) -> tuple[int, tuple[judge.Result, ...]]:
    """Computes and draws the figures of a part; returns how many runs failed, and the verdicts."""
    from tf_ensembles.benchmarks.figures import running

    def runs_folder(plan: running.Plan) -> pathlib.Path:
        return plan.output if plan.figure.part in _WHOLE else output / "sweep" / plan.figure.sweep_folder(args.preset)

    plans = [
        running.Plan(figure, figure.presets[args.preset], output / figure.part, args.preset) for figure in part.figures
    ]
    context = places.context((output / "members").resolve(), args.data_dir) if part.needs_images else {}
    outcomes = [
        running.run(
            list(group), folder, context, engine=args.engine, address=args.address, stage_begins=shown.stage_begins
        )
        for folder, group in itertools.groupby(plans, key=runs_folder)
    ]
    failed = sum(outcome.failed for outcome in outcomes)
    return failed, tuple(result for outcome in outcomes for result in outcome.results)


def _times(output: pathlib.Path) -> dict[str, float]:
    """Seconds of the complete parts, as their last run took; a part that was continued took longer in all."""
    from tf_ensembles import files

    times: dict[str, float] = {}
    for path in sorted((output / _COMPLETE).glob("*.json")):
        # A damaged one will run again.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError):
            kept = files.parse_json(files.read_bytes(path))
            times[str(kept["name"])] = float(kept["seconds"])
    return {**times, "all parts": sum(times.values())}


def _write(path: pathlib.Path, content: Any) -> None:
    from tf_ensembles import files

    with files.atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
