"""How much sweeps cost: overhead per trivial run, time of status and of a resume's scan, and the gain of a second core.

python -m benchmarks.speed.sweep overhead [--engine ray] [--runs 10000] [--groups 1000]
python -m benchmarks.speed.sweep scaling
"""

from __future__ import annotations

import tempfile
from typing import Any

from tf_ensembles.benchmarks import speed
from tf_ensembles.benchmarks.figures.testbed import runs as testbed_runs
from tf_ensembles.benchmarks.speed import harness
from tf_ensembles.trainers.sweeps import progress as sweep_progress
from tf_ensembles.trainers.sweeps import sweep

NOTHING = "tf_ensembles.benchmarks.speed.sweep:compute_nothing"


def compute_nothing(config: dict[str, Any]) -> dict[str, float]:
    """The trivial run."""
    return {"value": float(config["seed"])}


def _status(folder: str) -> tuple[harness.Seconds, float]:
    """Returns the seconds of the status of a sweep, and this process's peak of memory."""
    took = harness.seconds(lambda: sweep_progress.format_status(sweep_progress.read_status(folder)))
    return took, speed.peak_megabytes()


def overhead(*, runs: int = 10_000, engine: str = "local", workers: int = 2, groups: int = 1) -> None:
    """Time times workers per run that computes nothing, their start included; a resume's scan; status."""
    made = [sweep.make_run(f"nothing/seed{n}", NOTHING, {"seed": n}, group=f"group{n % groups}") for n in range(runs)]
    with tempfile.TemporaryDirectory() as folder:

        def execute(engine: str = "local") -> None:
            with sweep.Sweep(folder, engine=engine, num_workers=workers) as session:
                report = session.execute(made)
            if report.failed or report.left:
                raise RuntimeError(f"Expected {runs} completed runs. Received: {report}")

        took = harness.seconds(lambda: execute(engine))
        scan = harness.seconds(execute)
        status, megabytes = harness.alone(_status, folder)
    wall = 1e3 * took.clock / runs
    print(f"  {runs:,} runs, {groups:,} groups, {engine} engine, {workers} workers")
    print(f"  {wall * workers:.3f} ms of a worker's time per run, {wall:.3f} ms of all of them")
    print(f"  resume's scan {scan.clock:.2f} s")
    print(f"  status {status.clock:.2f} s by the clock, {status.processor:.2f} s of the processor, {megabytes:.0f} MB")


def scaling(*, runs: int = 16, members: int = 20, turns: int = 2) -> None:
    """Time of a testbed run of ensemble-bp, d = 10, T = 1,000, on one worker and on two, which are warm."""
    size = testbed_runs.Size(members, 20, 1, 1)
    setting = testbed_runs.make_setting(10, 100.0, 0.1)
    agents = {setting.id: [testbed_runs.Agent("ensemble-bp", members, 1.0, 3.0)]}

    def execute(workers: int) -> harness.Seconds:
        with tempfile.TemporaryDirectory() as folder, sweep.Sweep(folder, num_workers=workers) as session:
            session.execute(testbed_runs.make_runs([setting], agents, range(1000, 1000 + 2 * workers), size))
            made = testbed_runs.make_runs([setting], agents, range(runs), size)
            return harness.seconds(lambda: session.execute(made))

    ways = {"two workers": lambda: execute(2), "one worker": lambda: execute(1)}
    harness.print_times(harness.in_turns(ways, turns, work=dict.fromkeys(ways, runs)), "two workers")


PARTS = (overhead, scaling)

if __name__ == "__main__":
    harness.main(__doc__, PARTS)
