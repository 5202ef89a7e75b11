"""Runs the sweeps behind figures: thousands of runs on worker processes or Ray, resumable after anything.

`sweep run figure_2 --preset quick` computes what is missing and draws the figure; the same command continues after
Ctrl-C, a crash or a kill. `sweep status FOLDER` tells from another terminal how far it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import pathlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.commands import options, places
from tf_ensembles.trainers import stores

if TYPE_CHECKING:
    from tf_ensembles.benchmarks.claims import judge
    from tf_ensembles.benchmarks.figures.base import Figure
    from tf_ensembles.benchmarks.figures.running import Plan
    from tf_ensembles.trainers.sweeps.progress import Status

PRESETS = options.PRESETS
RESULTS = pathlib.Path("results/sweep")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-commands."""
    parser.epilog = options.examples("sweep run figure_2 --preset quick", "sweep status", "sweep draw figure_2")
    commands = parser.add_subparsers(dest="action", required=True, metavar="{run,draw,status,pack,merge}")
    run_parser = options.add_command(
        commands,
        "run",
        "compute what is missing, then draw",
        "sweep run figure_7 --preset quick --dry-run",
        "sweep run figure_2 figure_9 --preset quick --workers 2",
        "sweep run F7 --preset paper --engine ray --address auto",
    )
    draw_parser = options.add_command(
        commands,
        "draw",
        "draw from the rows that are there",
        "sweep draw figure_7 --preset quick --figures-to pictures",
    )
    status_parser = options.add_command(
        commands,
        "status",
        "how far sweeps are, also while they run",
        "sweep status",
        "sweep status results/sweep/figure_7-quick --json",
    )
    pack_parser = options.add_command(
        commands,
        "pack",
        "write the rows of a sweep into one small file, also while it runs",
        "sweep pack results/sweep/figure_7-quick figure_7.jsonl.xz",
    )
    merge_parser = options.add_command(
        commands,
        "merge",
        "take rows that were computed elsewhere; 'sweep run' computes the others",
        "sweep merge results/sweep/figure_7-quick figure_7.jsonl.xz",
        "sweep merge results/sweep/figure_7-quick /mnt/other/results/sweep/figure_7-quick",
    )
    for sub in (run_parser, draw_parser):
        figures = sub.add_argument(
            "figures", nargs="+", metavar="FIGURE", help="such as figure_2 or F2, or a module of your own with a FIGURE"
        )
        options.suggest(figures, lambda: [figure.name for figure in _known()])
        options.add_preset(sub, "quick", "how large; large: testbed and CIFAR10", "large")
        about = "folder in which every sweep has one, or an address such as gs://bucket/sweeps"
        options.add_results(sub, RESULTS, about, options.store_root)
        sub.add_argument(
            "--figures-to",
            type=options.local_path,
            metavar="FOLDER",
            help="where to draw (default: the sweep's folder)",
        )
    add_engine_arguments(run_parser)
    run_parser.add_argument(
        "--retry-failed", action="store_true", help="run failed runs again, and train damaged members"
    )
    run_parser.add_argument(
        "--shared-folder", action="store_true", help="accept a results folder that every user can write to"
    )
    run_parser.add_argument("--dry-run", action="store_true", help="list the runs and compute nothing")
    run_parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="start no more runs after this long; continue another time"
    )
    places.add_store(run_parser)
    places.add_data_dir(run_parser)
    options.add_folder(status_parser, RESULTS, "folder of a sweep, or of several", options.store_root)
    for sub in (pack_parser, merge_parser):
        sub.add_argument("folder", type=options.store_root, metavar="FOLDER", help="results folder of a sweep")
    pack_parser.add_argument("file", type=options.local_path, metavar="FILE", help="such as figure_7.jsonl.xz")
    about = "another results folder of the same sweep, or a file that 'sweep pack' made"
    merge_parser.add_argument("sources", type=options.local_path, nargs="+", metavar="SOURCE", help=about)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where runs are computed."""
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="where to run (default local)")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one per core)")
    parser.add_argument("--address", help="of a running Ray cluster (default: start Ray on this machine)")
    add_gpus_per_run(parser)


def add_gpus_per_run(parser: argparse.ArgumentParser) -> None:
    """Adds `--gpus-per-run`."""
    about = "that Ray gives to a run: 0.25 for four runs on one, or 1 and more (default 0: none)"
    parser.add_argument("--gpus-per-run", type=float, default=0.0, metavar="G", help=about)


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns what `add_engine_arguments` read, for `running.run`."""
    how = {"engine": args.engine, "num_workers": args.workers, "address": args.address}
    return {**how, "gpus_per_run": args.gpus_per_run}


def answer(args: argparse.Namespace, plans: Sequence[Plan], results: Sequence[judge.Result]) -> None:
    """Answers with the verdicts on what was made, where JSON is wanted: people have seen them."""
    made = [{"figure": plan.figure.name, "folder": plan.output} for plan in plans]
    options.answer(args, {"figures": made, "claims": options.verdicts(results)})


def run(args: argparse.Namespace) -> int:
    """Does what the sub-command says."""
    if args.action in _ON_FOLDERS:
        return _ON_FOLDERS[args.action](args)
    from tf_ensembles.benchmarks.figures import running

    figures = [load(name) for name in args.figures]
    plans = [_plan(figure, args) for figure in figures]
    if args.action == "draw":
        drawn = [running.draw(plan, _folder(plan.figure, args)) for plan in plans]
        answer(args, plans, [result for results in drawn for result in results])
        return 0
    context = places.context(args.store, args.data_dir)
    deadline = float("inf") if args.time_limit is None else time.monotonic() + args.time_limit
    how = engine_options(args) | {"shared": args.shared_folder}
    outcomes = []
    for folder, group in itertools.groupby(plans, key=lambda plan: _folder(plan.figure, args)):
        if args.dry_run:
            for plan in group:
                _list_runs(plan, folder, context)
        else:
            retry = args.retry_failed
            outcomes.append(running.run(list(group), folder, context, deadline=deadline, retry_failed=retry, **how))
    if not args.dry_run:
        answer(args, plans, [result for one in outcomes for result in one.results])
    return int(any(one.failed for one in outcomes))


def _status(args: argparse.Namespace) -> int:
    from tf_ensembles.trainers.sweeps import progress, store

    folder = options.chosen_folder(args, RESULTS)
    several: list[pathlib.Path] = []
    if isinstance(folder, pathlib.Path) and not (folder / store.PLAN).exists():
        several = sorted(path.parent for path in folder.glob(f"*/{store.PLAN}"))
    if not several:
        status = progress.read_status(folder)
        options.answer(args, {"folder": folder, **_told(status)}, progress.format_status(status))
        return 0
    statuses = {one: progress.read_status(one) for one in several}
    lines = [f"{one.name}: {progress.format_status(status)}".replace("\n", "\n  ") for one, status in statuses.items()]
    options.answer(args, [{"folder": one, **_told(status)} for one, status in statuses.items()], "\n".join(lines))
    return 0


def _pack(args: argparse.Namespace) -> int:
    from tf_ensembles.trainers.sweeps import merging

    count = merging.pack(args.folder, args.file)
    options.answer(args, {"wrote": args.file, "rows": count}, f"wrote {args.file}: {count:,} rows")
    return 0


def _merge(args: argparse.Namespace) -> int:
    from tf_ensembles.trainers.sweeps import merging

    merged = merging.merge(args.folder, args.sources)
    lines = [f"{one.source}: {one.added:,} rows added, {one.known:,} were there" for one in merged]
    options.answer(args, {"folder": args.folder, "sources": [one._asdict() for one in merged]}, "\n".join(lines))
    return 0


_ON_FOLDERS = {"status": _status, "pack": _pack, "merge": _merge}  # what needs no figure


def _told(status: Status) -> dict[str, Any]:
    return {**dataclasses.asdict(dataclasses.replace(status, holder=None)), "running": status.holder is not None}


def _known() -> tuple[Figure, ...]:
    from tf_ensembles.benchmarks.figures import registry

    return registry.figures()


def load(name: str) -> Figure:
    """Returns a figure by its id or name, or that of a user's own module."""
    from tf_ensembles.benchmarks.figures.base import Figure

    known = {alias: figure for figure in _known() for alias in (figure.id, figure.name)}
    if name in known:
        return known[name]
    expected = f"Expected one of {', '.join(figure.name for figure in _known())}, or a module with a FIGURE."
    try:
        figure = getattr(importlib.import_module(name), "FIGURE", None)
    except ImportError as error:
        raise ValueError(f"{expected} Received: {name!r} ({error})") from None
    if not isinstance(figure, Figure):
        raise ValueError(f"{expected} Received: {name!r}, a module without")
    return figure


def _plan(figure: Figure, args: argparse.Namespace) -> Plan:
    from tf_ensembles.benchmarks.figures import running

    if args.preset not in figure.presets:
        raise ValueError(f"Expected --preset of {', '.join(figure.presets)} for {figure.name}. Received: {args.preset}")
    output = args.figures_to or _folder(figure, args)
    if not isinstance(output, pathlib.Path):
        raise ValueError(f"Expected --figures-to FOLDER, for tables and pictures, with --results {args.results}")
    return running.Plan(figure, figure.presets[args.preset], output, args.preset)


def _folder(figure: Figure, args: argparse.Namespace) -> pathlib.Path | str:
    return stores.join(args.results, figure.sweep_folder(args.preset))


def _list_runs(plan: Plan, folder: pathlib.Path | str, context: dict[str, str | None]) -> None:
    """Prints the ids of all runs that can be known now, with their state."""
    from tf_ensembles.trainers.sweeps import store

    name, rows = plan.figure.name, store.read_results(folder)
    done = {row["hash"] for row in rows}
    for number, stage in enumerate(plan.figure.stages(plan.size, context), start=1):
        try:
            runs = stage(rows)
        except ValueError as error:
            print(f"{name}, stage {number}: depends on the stages before ({error})")
            break
        print(f"{name}, stage {number}: {len(runs)} runs, {sum(run.hash in done for run in runs)} done")
        for one in runs:
            print(f"  {'done' if one.hash in done else 'todo'}  {one.id}  {one.hash[:8]}")
