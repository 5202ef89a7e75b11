"""Thompson sampling on heteroscedastic linear bandits (section 6): tunes, runs, and writes regret tables and figures.

The same command continues after Ctrl-C, a crash or a kill. Agents without bootstrap are tuned for each horizon on
problems of their own; all are then compared on the same problems. `bandit replay LOG` evaluates policies from a log.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from tf_ensembles.benchmarks.commands import options, sweep
from tf_ensembles.benchmarks.commands.bandit import replay

_MIN_PARTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options; sizes that are not given are the preset's."""
    few = "--problems 2000 --tuning-problems 500 --horizon 500"
    parser.epilog = options.examples(
        "bandit --preset quick", f"bandit {few} --members 1 10 100", f"bandit {few} --members"
    )
    options.add_preset(parser, "standard")
    parser.add_argument("--problems", type=int, help="reported problems J (standard: 100,000)")
    parser.add_argument("--tuning-problems", type=int, help="problems to tune on (standard: 10,000)")
    parser.add_argument("--horizon", type=int, help="steps T (standard: 10,000)")
    parser.add_argument("--actions", type=int, help="actions N (default 4)")
    parser.add_argument("--dim", type=int, help="features d (default 2)")
    parser.add_argument("--prior-scale", type=float, help="s0, of theta* (default 1)")
    parser.add_argument(
        "--members",
        type=int,
        nargs="*",
        metavar="M",
        help="of finite ensembles; none to skip them (standard: 1 to 300)",
    )
    parser.add_argument("--members-horizon", type=int, help="steps for finite ensembles (default 500)")
    parser.add_argument("--part", type=int, help="problems per run of the sweep (500, or a 20th of them)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same tables (default 0)")
    options.add_results(parser, "results/bandit", "folder of runs, tables and figures")
    sweep.add_engine_arguments(parser)
    commands = parser.add_subparsers(dest="action", metavar="{replay}", title="on a log of your own")
    example = "bandit replay log.csv --reward r --action a --propensity p"
    replay.add_arguments(options.add_command(commands, "replay", replay.HELP, example))


def asked_sizes(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings that were asked for. Few problems make small parts: agents are compared over parts."""
    part = args.part
    if part is None and args.problems is not None:
        part = max(1, min(500, args.problems // _MIN_PARTS))
    asked = {
        "num_problems": args.problems,
        "tuning_problems": args.tuning_problems,
        "part": part,
        "horizon": args.horizon,
        "num_actions": args.actions,
        "dim": args.dim,
        "prior_scale": args.prior_scale,
        "seed": args.seed,
        "members": None if args.members is None else tuple(sorted(set(args.members))),
        "members_horizon": args.members_horizon,
    }
    return {name: value for name, value in asked.items() if value is not None}


def run(args: argparse.Namespace) -> int:
    """Computes what is missing, then writes tables and figures; or evaluates policies from a log."""
    if args.action == "replay":
        return replay.run(args)
    from tf_ensembles.benchmarks.figures import registry, running

    figures, given = registry.select(["bandit"]), asked_sizes(args)
    plans = [
        running.Plan(figure, dataclasses.replace(figure.presets[args.preset], **given), args.results, args.preset)
        for figure in figures
    ]
    outcome = running.run(plans, args.results, {}, **sweep.engine_options(args))
    sweep.answer(args, plans, outcome.results)
    return int(outcome.failed > 0)
