"""Reproduces the paper's experiments at a size for two cores and minutes, and ends with a table of what was measured.

Runs the linear theory and the Neural Testbed one after the other, each in a process of its own. A part that is complete
is not run again; delete its folder to measure it anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

PARTS = ("linear", "testbed")


@dataclasses.dataclass(frozen=True)
class Part:
    """One experiment: a command line of ours, which writes into its own folder."""

    name: str
    arguments: tuple[str, ...]

    def folder(self, output: pathlib.Path) -> pathlib.Path:
        """Where the part's results go."""
        return output / self.name


def parts(num_seeds: int) -> list[Part]:
    """Returns the experiments, in the order of the paper."""
    agents = ("ensemble-n", "ensemble-p", "ensemble-bp")
    seeds = [str(seed) for seed in range(num_seeds)]
    return [
        Part("linear", ("linear", "--preset", "quick")),
        Part("testbed", ("testbed", "--data-ratio", "10", "--agent", *agents, "--seed", *seeds)),
    ]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--only", metavar="PART", nargs="+", choices=PARTS, default=PARTS, help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="problems per testbed setting (default 5)")
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("results/reproduce"), help="folder of all results"
    )


def run(args: argparse.Namespace) -> int:
    """Runs what is missing, then writes and prints the summary."""
    if args.seeds < 2:
        raise ValueError(f"Expected --seeds >= 2, for standard errors. Received: {args.seeds}")
    from benchmarks import report

    for part in parts(args.seeds):
        if part.name in args.only:
            code = _run_part(part, args.output)
            if code:
                return code
    table = report.summarise(args.output)
    written = report.write(table, args.output)
    print(f"\n{report.format_text(table)}\n\nWrote:")
    for path in written:
        print(f"  {path}")
    for name in PARTS:
        if (args.output / name).is_dir():
            print(f"  {args.output / name}/  tables and figures")
    return 0


def _run_part(part: Part, output: pathlib.Path) -> int:
    """Runs one part unless it is complete, and returns its exit code."""
    from tf_ensembles import files, version

    folder = part.folder(output)
    marker, settings = folder / "complete.json", {"arguments": part.arguments, "version": version.__version__}
    if marker.exists() and json.loads(marker.read_text())["settings"] == json.loads(json.dumps(settings)):
        print(f"{part.name}: complete already, in {folder}")
        return 0
    print(f"\n{part.name}: tf-ensembles {' '.join(part.arguments)}", flush=True)
    start = time.perf_counter()
    command = [sys.executable, "-m", "trainers.cli", *part.arguments, "--output", str(folder)]
    code = subprocess.run(command, stderr=sys.stderr).returncode
    if code == 0:
        with files.atomic_path(marker) as path:
            path.write_text(json.dumps({"settings": settings, "seconds": round(time.perf_counter() - start, 1)}))
    return code
