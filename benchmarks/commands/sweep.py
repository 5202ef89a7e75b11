"""Runs the sweeps behind figures: thousands of runs on worker processes or Ray, resumable after anything.

`sweep run figure_2 --preset quick` computes what is missing and draws the figure; the same command continues after
Ctrl-C, a crash or a kill. `sweep status FOLDER` tells from another terminal how far it is.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import pathlib
import time
from typing import TYPE_CHECKING

from benchmarks.commands import places

if TYPE_CHECKING:
    from benchmarks.figures.base import Figure
    from benchmarks.figures.running import Plan

PRESETS = ("quick", "standard", "paper")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-commands `run`, `draw` and `status`."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="{run,draw,status}")
    run_parser = commands.add_parser("run", help="compute what is missing, then draw")
    draw_parser = commands.add_parser("draw", help="draw from the rows that are there")
    status_parser = commands.add_parser("status", help="how far a sweep is, also while it runs")
    for sub in (run_parser, draw_parser):
        sub.add_argument(
            "figures", nargs="+", metavar="FIGURE", help="such as figure_2 or F2, or a module of your own with a FIGURE"
        )
        sub.add_argument(
            "--preset",
            choices=(*PRESETS, "large"),
            default="quick",
            help="how large (default quick); large: testbed and CIFAR10",
        )
        sub.add_argument(
            "--output",
            type=pathlib.Path,
            default=pathlib.Path("results/sweep"),
            help="folder of the results folders (default results/sweep)",
        )
        sub.add_argument(
            "--figures-to", type=pathlib.Path, metavar="FOLDER", help="where to draw (default: the results folder)"
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
    status_parser.add_argument("folder", type=pathlib.Path, help="a results folder")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds where runs are computed."""
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="where to run (default local)")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one per core)")
    parser.add_argument("--address", help="of a running Ray cluster (default: start Ray on this machine)")


def run(args: argparse.Namespace) -> int:
    """Does what the sub-command says."""
    if args.action == "status":
        from trainers.sweeps import progress

        print(progress.format_status(progress.read_status(args.folder)))
        return 0
    from benchmarks.figures import running

    figures = [load(name) for name in args.figures]
    plans = [_plan(figure, args) for figure in figures]
    if args.action == "draw":
        for plan in plans:
            running.draw(plan, _folder(plan.figure, args))
        return 0
    context = places.context(args.store, args.data_dir)
    deadline = float("inf") if args.time_limit is None else time.monotonic() + args.time_limit
    options = {"engine": args.engine, "num_workers": args.workers, "address": args.address}
    options["shared"] = args.shared_folder
    codes = []
    for folder, group in itertools.groupby(plans, key=lambda plan: _folder(plan.figure, args)):
        if args.dry_run:
            for plan in group:
                _list_runs(plan, folder, context)
            codes.append(0)
        else:
            retry = args.retry_failed
            codes.append(running.run(list(group), folder, context, deadline=deadline, retry_failed=retry, **options))
    return max(codes)


def load(name: str) -> Figure:
    """Returns a figure by its id or name, or that of a user's own module."""
    from benchmarks.figures import registry
    from benchmarks.figures.base import Figure

    known = {alias: figure for figure in registry.figures() for alias in (figure.id, figure.name)}
    if name in known:
        return known[name]
    expected = f"Expected one of {', '.join(figure.name for figure in registry.figures())}, or a module with a FIGURE."
    try:
        figure = getattr(importlib.import_module(name), "FIGURE", None)
    except ImportError as error:
        raise ValueError(f"{expected} Received: {name!r} ({error})") from None
    if not isinstance(figure, Figure):
        raise ValueError(f"{expected} Received: {name!r}, a module without")
    return figure


def _plan(figure: Figure, args: argparse.Namespace) -> Plan:
    from benchmarks.figures import running

    if args.preset not in figure.presets:
        raise ValueError(f"Expected --preset of {', '.join(figure.presets)} for {figure.name}. Received: {args.preset}")
    output = args.figures_to or _folder(figure, args)
    return running.Plan(figure, figure.presets[args.preset], output, args.preset)


def _folder(figure: Figure, args: argparse.Namespace) -> pathlib.Path:
    return pathlib.Path(args.output / figure.sweep_folder(args.preset))


def _list_runs(plan: Plan, folder: pathlib.Path, context: dict[str, str | None]) -> None:
    """Prints the ids of all runs that can be known now, with their state."""
    from trainers.sweeps import store

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
