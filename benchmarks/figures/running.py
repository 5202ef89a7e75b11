"""Runs the stages of figures, and draws them when they are complete: what the commands that make figures share."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import base
from tf_ensembles.benchmarks.figures.base import Figure, Stage

if TYPE_CHECKING:
    from tf_ensembles.benchmarks.claims import judge
    from tf_ensembles.trainers.sweeps.sweep import Report, Run, Sweep


@dataclasses.dataclass(frozen=True)
class Plan:
    """A figure, how large it is made, and where its tables and pictures go."""

    figure: Figure
    size: Any
    output: pathlib.Path
    preset: str = ""  # the size's name, by which other figures that a claim reads have theirs


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of figures."""

    failed: int  # runs
    results: tuple[judge.Result, ...]  # what the complete figures say about the claims that read them


def run(
    plans: Sequence[Plan],
    folder: pathlib.Path | str,
    context: Mapping[str, Any],
    *,
    deadline: float = float("inf"),
    retry_failed: bool = False,
    stage_begins: Callable[[str], object] = lambda name: None,
    **options: Any,
) -> Outcome:
    """Computes what is missing of figures that share a folder of runs, with the same workers, and draws them.

    Args:
        plans: the figures.
        folder: of their runs; or an address.
        context: where things are on the machines that run them.
        deadline: by `time.monotonic`, after which no more runs are started.
        retry_failed: whether to compute failed runs again, and to train members again whose files are damaged.
        stage_begins: is called with the name of each stage before what is printed of it.
        **options: of `trainers.sweeps.sweep.Sweep`: engine, number of workers, address.
    """
    from tf_ensembles.trainers import stores
    from tf_ensembles.trainers.sweeps import store, sweep

    base.require_packages()
    stages = {plan: plan.figure.stages(plan.size, context) for plan in plans}
    print_statements(plans)
    for plan in plans:
        plan.figure.prepare(context)
    failed = 0
    results: list[judge.Result] = []
    with sweep.Sweep(folder, show=True, **options) as my_sweep:
        for plan, listed in stages.items():
            name = plan.figure.name
            report = _run_stages(name, listed, my_sweep, retry_failed, deadline, stage_begins)
            if report is None:
                continue
            failed += report.failed
            if report.failed:
                where = stores.join(folder, store.FAILURES)
                print(f"{name}: {report.failed} runs failed; {where} says why, --retry-failed runs them again")
            if report.left:
                print(f"{name}: out of time with {report.left} runs of this stage left; the same command continues")
            else:
                for line in base.write(
                    plan.figure, plan.size, list(my_sweep.store.rows.values()), plan.output, context
                ):
                    print(line)
                results += print_verdicts(plan)
    return Outcome(failed, tuple(results))


def _run_stages(
    name: str,
    stages: Sequence[Stage],
    my_sweep: Sweep,
    retry_failed: bool,
    deadline: float,
    stage_begins: Callable[[str], object],
) -> Report | None:
    """Runs a figure's stages, one after the other; returns what happened, with the failures of all of them."""
    failed, report = 0, None
    for number, stage in enumerate(stages, start=1):
        stage_begins(title := f"{name}, stage {number} of {len(stages)}")
        print(f"{title}:", end=" ", flush=True)
        limit = None if deadline == float("inf") else deadline - time.monotonic()
        runs = stage(list(my_sweep.store.rows.values()))
        my_sweep.store.forget(_without_members(runs, my_sweep.store.done, retry_failed))
        report = my_sweep.execute(runs, retry_failed=retry_failed, time_limit=limit)
        failed += report.failed
        my_sweep.raise_if_stopped()
        if report.left:
            break
    return None if report is None else dataclasses.replace(report, failed=failed)


def _without_members(runs: Sequence[Run], done: Container[str], check: bool) -> set[str]:
    """Returns the hashes of completed runs whose member is gone.

    Args:
        runs: of a stage.
        done: the hashes of completed runs. Rows may have come from another machine, without the files of members.
        check: whether to read members' files, too. Those that are not whole are reset, and returned as well.
    """
    from tf_ensembles.trainers.images import config, store
    from tf_ensembles.trainers.images import runs as member_runs

    found = set()
    for run in runs:
        if run.kind == member_runs.TRAIN and run.hash in done:
            folder = json.loads(run.context_json)["store"]
            member = store.MemberFiles(folder, config.from_dict(run.config))
            state = (member.reset_if_broken() if check else member.status()).state
            if state is store.State.ABSENT or (check and state is not store.State.FINISHED):
                found.add(run.hash)
    return found


def draw(plan: Plan, folder: pathlib.Path | str) -> list[judge.Result]:
    """Draws a figure from the rows that are there; returns what it says about the claims that read it."""
    from tf_ensembles.trainers.sweeps import store

    base.require_packages()
    rows = store.read_results(folder)
    if not rows:
        name = plan.figure.name
        raise ValueError(f"Expected rows in {folder}; 'sweep run {name}' computes them. Received: none")
    for line in base.write(plan.figure, plan.size, rows, plan.output):
        print(line)
    return print_verdicts(plan)


def print_statements(plans: Sequence[Plan]) -> None:
    """Prints which claims figures can decide at their sizes, a line each."""
    from tf_ensembles.benchmarks.claims import presets

    for plan in plans:
        sizes = presets.preset_sizes(plan.preset) | {one.figure.id: one.size for one in plans}
        statement = presets.state(plan.figure, sizes)
        if statement is not None:
            print(statement)


def print_verdicts(plan: Plan) -> list[judge.Result]:
    """Prints what a figure's table says about the claims that read it, and returns it."""
    from tf_ensembles.benchmarks.claims import judge, paper
    from tf_ensembles.benchmarks.figures.tables import Tables

    tables = Tables(plan.output, plan.figure.part)
    results = [judge.judge(claim, tables) for claim in paper.CLAIMS if claim.figure == plan.figure.id]
    for result in results:
        effects = "; ".join(judge.format_effect(effect) for effect in judge.deciding_first(result)) or result.reason
        print(f"{result.claim.id}: {result.verdict}: {effects}")
    return results
