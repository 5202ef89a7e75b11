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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from benchmarks.commands import places

if TYPE_CHECKING:
    from trainers.sweeps.sweep import Report, Run, Sweep

# Named by string: a lower folder may not import a higher one.
_PARTS = {"testbed": (1, 2, 7, 9), "cifar10": (3, 4, 5, 10, 11)}
FIGURES = {
    f"figure_{number}": f"benchmarks.figures.{part}.figure_{number}"
    for part, numbers in _PARTS.items()
    for number in numbers
}
PRESETS = ("quick", "standard", "paper")

Rows = Sequence[dict[str, Any]]
Stage = Callable[[Rows], "list[Run]"]


class Definition(Protocol):
    """What a module defines to be swept."""

    SWEEP: str  # names the results folder; figures that share runs share it

    def stages(self, preset: str) -> Sequence[Stage]:
        """Returns functions from the rows so far to runs: each stage is complete before the next is asked."""

    def report(self, preset: str, rows: Rows, folder: pathlib.Path) -> list[str]:
        """Writes tables and figures of the rows into `folder`, and returns what to tell about them, line by line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-commands `run`, `draw` and `status`."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="{run,draw,status}")
    run_parser = commands.add_parser("run", help="compute what is missing, then draw")
    draw_parser = commands.add_parser("draw", help="draw from the rows that are there")
    status_parser = commands.add_parser("status", help="how far a sweep is, also while it runs")
    for sub in (run_parser, draw_parser):
        sub.add_argument(
            "figures", nargs="+", metavar="FIGURE", help=f"{', '.join(FIGURES)}, or a module that defines a sweep"
        )
        sub.add_argument("--preset", choices=PRESETS, default="quick", help="how large (default quick)")
        sub.add_argument(
            "--output",
            type=pathlib.Path,
            default=pathlib.Path("results/sweep"),
            help="folder of the results folders (default results/sweep)",
        )
        sub.add_argument(
            "--figures-to", type=pathlib.Path, metavar="FOLDER", help="where to draw (default: the results folder)"
        )
    run_parser.add_argument("--engine", choices=("local", "ray"), default="local", help="where to run (default local)")
    run_parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one per core)")
    run_parser.add_argument("--address", help="of a running Ray cluster (default: start Ray on this machine)")
    run_parser.add_argument("--retry-failed", action="store_true", help="run failed runs again")
    run_parser.add_argument("--dry-run", action="store_true", help="list the runs and compute nothing")
    run_parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="start no more runs after this long; continue another time"
    )
    places.add_store(run_parser)
    places.add_data_dir(run_parser)
    status_parser.add_argument("folder", type=pathlib.Path, help="a results folder")


def run(args: argparse.Namespace) -> int:
    """Does what the sub-command says."""
    if args.action == "status":
        from trainers.sweeps import progress as sweep_progress

        print(sweep_progress.format_status(sweep_progress.read_status(args.folder)))
        return 0
    definitions = {name: load(name) for name in args.figures}
    if args.action == "draw":
        for name, definition in definitions.items():
            _draw(name, definition, args)
        return 0
    deadline = float("inf") if args.time_limit is None else time.monotonic() + args.time_limit
    by_folder = itertools.groupby(definitions.items(), key=lambda item: _folder(item[1], args))
    return max([_run_group(dict(group), folder, args, deadline) for folder, group in by_folder])


def load(name: str) -> Definition:
    """Returns the module that defines a sweep, by a figure's name or its own."""
    module_name = FIGURES.get(name, name)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"Expected one of {', '.join(FIGURES)}, or a module. Received: {name!r} ({error})") from None
    missing = [part for part in ("SWEEP", "stages", "report") if not hasattr(module, part)]
    if missing:
        raise ValueError(f"Expected {module_name} to define {', '.join(missing)}. Received: a module without")
    return cast(Definition, module)


def _folder(definition: Definition, args: argparse.Namespace) -> pathlib.Path:
    return pathlib.Path(args.output / f"{definition.SWEEP}-{args.preset}")


def _run_group(group: dict[str, Definition], folder: pathlib.Path, args: argparse.Namespace, deadline: float) -> int:
    """Runs and draws figures of one results folder, with the same workers."""
    from trainers.sweeps import store as sweep_store
    from trainers.sweeps import sweep

    if args.dry_run:
        for name, definition in group.items():
            _list_runs(name, _stages(definition, args), sweep_store.read_results(folder))
        return 0
    stages = {name: _stages(definition, args) for name, definition in group.items()}
    for definition in group.values():
        if hasattr(definition, "prepare"):  # What runs need beside their configurations, such as a data set.
            definition.prepare(places.context(args.store, args.data_dir))
    options: dict[str, Any] = {"engine": args.engine, "num_workers": args.workers, "address": args.address}
    failed = 0
    with sweep.Sweep(folder, show=True, **options) as my_sweep:
        for name, definition in group.items():
            report = _run_stages(name, stages[name], my_sweep, args.retry_failed, deadline)
            failed += report.failed
            if report.failed:
                where = folder / sweep_store.FAILURES
                print(f"{name}: {report.failed} runs failed; {where} says why, --retry-failed runs them again")
            if report.left:
                print(f"{name}: out of time with {report.left} runs of this stage left; the same command continues")
            else:
                _draw(name, definition, args)
    return 1 if failed else 0


def _stages(definition: Any, args: argparse.Namespace) -> Sequence[Stage]:
    """Returns a definition's stages; those that prepare images are told where these are."""
    if hasattr(definition, "prepare"):
        return definition.stages(args.preset, places.context(args.store, args.data_dir))
    return definition.stages(args.preset)


def _run_stages(name: str, stages: Sequence[Stage], my_sweep: Sweep, retry_failed: bool, deadline: float) -> Report:
    """Runs a figure's stages, one after the other; returns what happened, with the failures of all of them."""
    failed = 0
    for number, stage in enumerate(stages, start=1):
        print(f"{name}, stage {number} of {len(stages)}:", end=" ", flush=True)
        limit = None if deadline == float("inf") else deadline - time.monotonic()
        runs = stage(list(my_sweep.store.rows.values()))
        report = my_sweep.execute(runs, retry_failed=retry_failed, time_limit=limit)
        failed += report.failed
        if report.stopped:
            raise KeyboardInterrupt
        if report.left:
            break
    return dataclasses.replace(report, failed=failed)


def _list_runs(name: str, stages: Sequence[Stage], rows: Rows) -> None:
    """Prints the ids of all runs that can be known now, with their state."""
    done = {row["hash"] for row in rows}
    for number, stage in enumerate(stages, start=1):
        try:
            runs = stage(rows)
        except ValueError as error:
            print(f"{name}, stage {number}: depends on the stages before ({error})")
            break
        print(f"{name}, stage {number}: {len(runs)} runs, {sum(run.hash in done for run in runs)} done")
        for one in runs:
            print(f"  {'done' if one.hash in done else 'todo'}  {one.id}  {one.hash[:8]}")


def _draw(name: str, definition: Definition, args: argparse.Namespace) -> None:
    from trainers.sweeps import store as sweep_store

    folder = _folder(definition, args)
    rows = sweep_store.read_results(folder)
    if not rows:
        raise ValueError(f"Expected rows in {folder}; 'sweep run {name}' computes them. Received: none")
    for line in definition.report(args.preset, rows, args.figures_to or folder):
        print(line)
