"""Bayesian linear regression (section 4, appendices A.1 and B): measures the exact theory, writes tables, figures.

The same command continues after Ctrl-C, a crash or a kill.
"""

from __future__ import annotations

import argparse
import dataclasses

from tf_ensembles.benchmarks.commands import options, sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.epilog = options.examples("linear --preset quick", "linear --problems 200 --seed 1 --results results/linear")
    options.add_preset(parser, "standard", "quick: half a minute; standard: minutes")
    parser.add_argument("--problems", type=int, default=None, help="problems per setting (default: the preset's)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same tables (default: 0)")
    options.add_results(parser, "results/linear", "folder of runs, tables and figures")
    sweep.add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Measures what is missing, writes one CSV per table and the figures, and prints the verdicts."""
    from tf_ensembles.benchmarks.figures import registry, running

    if args.problems is not None and args.problems < 2:
        raise ValueError(f"Expected --problems >= 2. Received: {args.problems}")
    if args.seed < 0:
        raise ValueError(f"Expected --seed >= 0. Received: {args.seed}")
    figures = registry.select(["linear"])
    size = figures[0].presets[args.preset]
    if args.problems is not None:
        size = dataclasses.replace(size, problems=args.problems, joint_problems=args.problems)
    size = dataclasses.replace(size, seed=args.seed)
    plans = [running.Plan(figure, size, args.results, args.preset) for figure in figures]
    outcome = running.run(plans, args.results, {}, **sweep.engine_options(args))
    sweep.answer(args, plans, outcome.results)
    return int(outcome.failed > 0)
