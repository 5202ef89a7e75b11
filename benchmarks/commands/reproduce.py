"""Reproduces the paper: runs its experiments, judges its claims, and writes a report to open in a browser.

`--preset quick` takes about ten minutes on two cores, `standard` hours, `paper` what the paper's sizes take. The same
command continues after Ctrl-C, a crash or a kill, and does not repeat what is complete. A part that fails does not stop
the others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from typing import Any

PRESETS = ("quick", "standard", "paper")
ENGINES = ("local", "ray")

# What a preset asks of the experiments that have sizes of their own.
_LINEAR = {"quick": "quick", "standard": "full", "paper": "full"}
_BANDIT = {
    "quick": ("--problems", "4000", "--tuning-problems", "500", "--horizon", "2000", "--part", "200", "--members"),
    "standard": (),
    "paper": (),
}
_COMPLETE = "complete"
_PREPARE = """
import os
from trainers import cifar10_data, cifar10_runs
print("CIFAR10:", cifar10_data.prepare_cifar10(os.environ.get(cifar10_runs.DATA_VARIABLE) or None))
"""
# Where the images of a user are, if they are to be used instead, and where trained members are kept.
_DATA, _STORE = "TF_ENSEMBLES_DATA", "TF_ENSEMBLES_STORE"
_INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Part:
    """One experiment: a command line of ours, and the figures that come of it."""

    name: str
    figures: tuple[str, ...]  # by any of these names `--only` chooses it
    arguments: tuple[str, ...]
    made: str  # a file within the output that is there when it is complete

    @property
    def needs_images(self) -> bool:
        """Whether it is about CIFAR10."""
        return "cifar10" in self.figures


def parts(preset: str, engine: str, output: pathlib.Path) -> list[Part]:
    """Returns the experiments, the quick ones first."""

    def figures(folder: str, *names: str) -> tuple[str, ...]:
        options = ("--preset", preset, "--engine", engine)
        folders = ("--output", str(output / "sweep"), "--figures-to", str(output / folder))
        return ("sweep", "run", *names, *options, *folders)

    bandit = ("bandit", *_BANDIT[preset], "--engine", engine, "--output", str(output / "bandit"))
    linear = ("linear", "--preset", _LINEAR[preset], "--output", str(output / "linear"))
    return [
        Part("linear", ("linear",), linear, "linear/checks.csv"),
        Part("figures 6, 12", ("F6", "F12", "bandit"), bandit, "bandit/regret.csv"),
        Part(
            "figures 2, 8, 9",
            ("F2", "F8", "F9", "testbed"),
            figures("testbed", "figure_2", "figure_9"),
            "testbed/figure_2_runs.csv",
        ),
        Part("figure 1", ("F1", "testbed"), figures("testbed", "figure_1"), "testbed/figure_1_runs.csv"),
        Part("figure 7", ("F7", "testbed"), figures("testbed", "figure_7"), "testbed/figure_7_runs.csv"),
        Part(
            "figures 3, 10",
            ("F3", "F10", "cifar10"),
            figures("cifar10", "figure_3", "figure_10"),
            "cifar10/figure_3_runs.csv",
        ),
        Part("figure 4", ("F4", "cifar10"), figures("cifar10", "figure_4"), "cifar10/figure_4_runs.csv"),
        Part("figure 5", ("F5", "cifar10"), figures("cifar10", "figure_5"), "cifar10/figure_5_runs.csv"),
        Part("figure 11", ("F11", "cifar10"), figures("cifar10", "figure_11"), "cifar10/figure_11_runs.csv"),
    ]


def choose(listed: list[Part], only: str | None) -> list[Part]:
    """Returns the parts that are named, such as by `F2,F6` or `linear,cifar10`; all without names."""
    if only is None:
        return listed
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    known = list(dict.fromkeys(name for part in listed for name in part.figures))
    names = {name.lower(): name for name in known}
    unknown = [name for name in wanted if name.lower() not in names]
    if unknown or not wanted:
        raise ValueError(f"Expected --only of {', '.join(known)}. Received: {only!r}")
    chosen = {names[name.lower()] for name in wanted}
    return [part for part in listed if chosen & set(part.figures)]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--preset", choices=PRESETS, default="quick", help="how large (default quick)")
    parser.add_argument(
        "--only", metavar="FIGURES", help="such as F2,F6; also linear, testbed, cifar10, bandit (default: all)"
    )
    parser.add_argument("--engine", choices=ENGINES, default="local", help="where sweeps run (default local)")
    parser.add_argument("--output", type=pathlib.Path, help="folder of all results (default results/reproduce/PRESET)")


def run(args: argparse.Namespace) -> int:
    """Runs what is missing, writes the report, prints the verdicts and where the report is."""
    output: pathlib.Path = args.output or pathlib.Path("results/reproduce") / args.preset
    chosen = choose(parts(args.preset, args.engine, output), args.only)
    facts = {"preset": args.preset, "engine": args.engine, "bandit": " ".join(_BANDIT[args.preset])}
    failed = []
    pending = [part for part in chosen if not _is_complete(part, output)]
    for part in chosen:
        if part not in pending:
            print(f"{part.name}: complete already")
    images = _prepare_images() if any(part.needs_images for part in pending) else None
    for number, part in enumerate(pending, start=1):
        if part.needs_images and images is not None and not images[0]:
            print(f"\n[{number} of {len(pending)}] {part.name}: left out, {images[1]}")
            continue
        print(f"\n[{number} of {len(pending)}] {part.name}: tf-ensembles {' '.join(part.arguments)}", flush=True)
        if not _run_part(part, output):
            failed.append(part.name)
            print(f"{part.name}: failed; the other parts go on", file=sys.stderr, flush=True)
    return _report(output, facts | ({"CIFAR10": images[1]} if images else {}), bool(pending), failed)


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


def _prepare_images() -> tuple[bool, str]:
    """Gets CIFAR10 if it is not there yet; returns whether it is now, and a sentence about it for the report."""
    if os.environ.get(_DATA, "").endswith(".npz"):
        return True, f"Images: the arrays that ${_DATA} names, not CIFAR10."
    print("\nCIFAR10: making sure that the images are there", flush=True)
    found = subprocess.run([sys.executable, "-c", _PREPARE], stdout=subprocess.PIPE, stderr=None, text=True)
    if found.returncode == _INTERRUPTED:
        raise KeyboardInterrupt
    if found.returncode:
        return False, "CIFAR10 could not be had on this machine, so its figures were not measured."
    how = found.stdout.split("CIFAR10:")[-1].strip()
    return True, f"Images: the real CIFAR10 ({how})."


def _marker(part: Part, output: pathlib.Path) -> pathlib.Path:
    return output / _COMPLETE / f"{'-'.join(part.figures)}.json"


def _settings(part: Part) -> Any:
    """What a complete part is complete for; where it ran does not matter to what came out."""
    from benchmarks.commands import sweep as sweep_command
    from tf_ensembles import version

    arguments = [argument for argument in part.arguments if argument not in ENGINES]
    preset = part.arguments[part.arguments.index("--preset") + 1] if "--preset" in part.arguments else ""
    figures = [sweep_command.load(name) for name in part.arguments if name in sweep_command.FIGURES]
    sizes = [repr(getattr(figure, "SIZES", {}).get(preset)) for figure in figures]
    return {"arguments": arguments, "sizes": sizes, "version": version.__version__}


def _is_complete(part: Part, output: pathlib.Path) -> bool:
    try:
        kept = json.loads(_marker(part, output).read_text())
    except (OSError, ValueError):
        return False
    return bool(kept.get("settings") == _settings(part) and (output / part.made).is_file())


def _run_part(part: Part, output: pathlib.Path) -> bool:
    """Runs one part in a process of its own; returns whether it succeeded."""
    start = time.perf_counter()
    environment = {_STORE: str((output / "members").resolve()), **os.environ}
    command = [sys.executable, "-m", "benchmarks.commands.main", *part.arguments]
    code = subprocess.run(command, env=environment).returncode
    if code == _INTERRUPTED:
        raise KeyboardInterrupt
    if code or not (output / part.made).is_file():
        return False
    _write(
        _marker(part, output), {"name": part.name, "settings": _settings(part), "seconds": time.perf_counter() - start}
    )
    return True


def _times(output: pathlib.Path) -> dict[str, float]:
    """Seconds of the complete parts, as their last run took; a part that was continued took longer in all."""
    kept = [json.loads(path.read_text()) for path in sorted((output / _COMPLETE).glob("*.json"))]
    times = {str(one["name"]): float(one["seconds"]) for one in kept}
    return {**times, "all parts": sum(times.values())}


def _write(path: pathlib.Path, content: Any) -> None:
    from tf_ensembles import files

    with files.atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
