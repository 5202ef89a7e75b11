"""Bayesian linear regression (section 4, appendices A.1 and B): measures the exact theory, writes tables, figures."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

from benchmarks.figures.linear import measure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--preset",
        choices=sorted(measure.PRESETS),
        default="full",
        help="quick: half a minute; full: minutes",
    )
    parser.add_argument("--problems", type=int, default=None, help="problems per setting (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same tables (default: 0)")
    parser.add_argument(
        "--output", type=pathlib.Path, default=pathlib.Path("results/linear"), help="folder to write to"
    )


def run(args: argparse.Namespace) -> None:
    """Measures, writes one CSV per table and one PNG per figure, and prints a summary."""
    if args.problems is not None and args.problems < 2:
        raise ValueError(f"Expected --problems >= 2. Received: {args.problems}")
    if args.seed < 0:
        raise ValueError(f"Expected --seed >= 0. Received: {args.seed}")
    from benchmarks.figures.linear import drawing
    from tf_ensembles import files

    preset = measure.PRESETS[args.preset]
    if args.problems is not None:
        preset = dataclasses.replace(preset, problems=args.problems, joint_problems=args.problems)
    args.output.mkdir(parents=True, exist_ok=True)  # Fail now, not after minutes of work.
    tables = measure.measure(preset, args.seed)
    written = []
    for name, table in tables.items():
        written.append(args.output / f"{name}.csv")
        with files.atomic_path(written[-1]) as path:
            table.to_csv(path, index=False, float_format="%.10g")
    written += drawing.draw_all(tables, args.output)
    print(measure.summary(tables))
    print("\nWrote:")
    for path in written:
        print(f"  {path}")
