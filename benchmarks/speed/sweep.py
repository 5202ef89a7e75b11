"""How much sweeps cost: overhead per trivial run, time of status and of a resume's scan, and the gain of a second core.

    python -m benchmarks.speed.sweep overhead [--engine ray] [--runs 10000] [--groups 1000]
    python -m benchmarks.speed.sweep scaling

Overhead is wall time times workers per run that computes nothing, start of the workers included: what a sweep adds to
every run. Scaling is the throughput of testbed runs on two workers against one, workers warm.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.figures.testbed import runs as testbed_runs
from trainers.sweeps import progress as sweep_progress
from trainers.sweeps import sweep

NOTHING = "benchmarks.speed.sweep:compute_nothing"


def compute_nothing(config: dict[str, Any]) -> dict[str, float]:
    """The trivial run."""
    return {"value": float(config["seed"])}


def measure_overhead(num_runs: int, engine: str, workers: int, groups: int = 1) -> dict[str, float]:
    """Returns milliseconds per trivial run, and seconds of a resume's scan and of the status."""
    runs = [
        sweep.make_run(f"nothing/seed{seed}", NOTHING, {"seed": seed}, group=f"group{seed % groups}")
        for seed in range(num_runs)
    ]
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        with sweep.Sweep(folder, engine=engine, num_workers=workers) as one:
            report = one.execute(runs)
        seconds = time.perf_counter() - started
        if report.completed != num_runs:
            raise RuntimeError(f"Expected {num_runs} completed runs. Received: {report}")
        started = time.perf_counter()
        with sweep.Sweep(folder) as one:
            again = one.execute(runs)
        scan = time.perf_counter() - started
        if again.completed or again.left:
            raise RuntimeError(f"Expected nothing to do. Received: {again}")
        started = time.perf_counter()
        sweep_progress.format_status(sweep_progress.read_status(folder))
        status = time.perf_counter() - started
        command = [sys.executable, "-m", "benchmarks.speed.sweep", "status", folder]
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        process = time.perf_counter() - started
        megabytes = (pathlib.Path(folder) / "results.jsonl").stat().st_size / 1e6
    return {
        "overhead_ms": 1e3 * seconds * workers / num_runs,
        "wall_ms": 1e3 * seconds / num_runs,
        "resume_s": scan,
        "status_s": status,
        "status_command_s": process,
        "results_mb": megabytes,
    }


def measure_throughput(workers: int, num_runs: int) -> float:
    """Returns testbed runs per second on warm workers: 20 members of ensemble-bp, d = 10, T = 1,000."""
    size = testbed_runs.Size(20, 20, 1, 1)
    setting = testbed_runs.make_setting(10, 100.0, 0.1)
    agents = {setting.id: [testbed_runs.Agent("ensemble-bp", 20, 1.0, 3.0)]}
    with tempfile.TemporaryDirectory() as folder, sweep.Sweep(folder, num_workers=workers) as one:
        one.execute(testbed_runs.make_runs([setting], agents, range(1000, 1000 + 2 * workers), size))
        runs = testbed_runs.make_runs([setting], agents, range(num_runs), size)
        started = time.perf_counter()
        one.execute(runs)
        return num_runs / (time.perf_counter() - started)


def main() -> None:
    """Prints what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "scaling", "status"))
    parser.add_argument("folder", nargs="?", help="for status: a results folder")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, help="default: 10000 trivial runs, 16 testbed runs")
    parser.add_argument("--groups", type=int, default=1, help="of the trivial runs (default 1)")
    parser.add_argument("--repeats", type=int, default=2, help="of scaling (default 2)")
    args = parser.parse_args()
    if args.what == "status":
        print(sweep_progress.format_status(sweep_progress.read_status(args.folder)))
    elif args.what == "overhead":
        measured = measure_overhead(args.runs or 10_000, args.engine, args.workers, args.groups)
        print(f"{args.runs or 10_000} trivial runs, {args.groups} groups, {args.engine} engine, {args.workers} workers")
        for name, value in measured.items():
            print(f"  {name:<17} {value:.3f}")
    else:
        # In turns, and the best of each: whatever else the machine does can only slow a measurement down.
        measured_rates: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(args.repeats):
            for workers, rates in measured_rates.items():
                rates.append(measure_throughput(workers, args.runs or 16))
        for workers, rates in measured_rates.items():
            print(f"{workers} worker(s): {', '.join(f'{rate:.3f}' for rate in rates)} runs/s")
        print(f"ratio of the best {max(measured_rates[2]) / max(measured_rates[1]):.2f}")


if __name__ == "__main__":
    main()
