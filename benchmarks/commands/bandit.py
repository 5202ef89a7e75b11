"""Thompson sampling on heteroscedastic linear bandits (section 6): tunes, runs, and writes regret tables and figures.

The same command continues after Ctrl-C, a crash or a kill. Agents without bootstrap are tuned for each horizon on
problems of their own; all are then compared on the same problems.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.figures.bandit import runs as experiment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--problems", type=int, default=10_000, help="reported problems J (default 10000)")
    parser.add_argument("--tuning-problems", type=int, default=2_000, help="problems to tune on (default 2000)")
    parser.add_argument("--horizon", type=int, default=10_000, help="steps T (default 10000)")
    parser.add_argument("--actions", type=int, default=4, help="actions N (default 4)")
    parser.add_argument("--dim", type=int, default=2, help="features d (default 2)")
    parser.add_argument("--prior-scale", type=float, default=1.0, help="s0, of theta* (default 1)")
    parser.add_argument(
        "--members",
        type=int,
        nargs="*",
        default=[1, 3, 10, 30, 100, 300],
        help="sizes of finite ensembles; none to skip",
    )
    parser.add_argument("--members-horizon", type=int, default=500, help="steps for finite ensembles (default 500)")
    parser.add_argument("--part", type=int, default=500, help="problems per run of the sweep (default 500)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="where to run (default local)")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at a time (default: one per core)")
    parser.add_argument("--address", help="of a running Ray cluster (default: start Ray on this machine)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/bandit"))


def run(args: argparse.Namespace) -> int:
    """Computes what is missing, then writes tables and figures."""
    from benchmarks.figures.bandit import runs as experiment
    from trainers.sweeps import sweep

    settings = experiment.Settings(
        num_problems=args.problems,
        tuning_problems=args.tuning_problems,
        part=args.part,
        horizon=args.horizon,
        num_actions=args.actions,
        dim=args.dim,
        prior_scale=args.prior_scale,
        seed=args.seed,
        members=tuple(sorted(set(args.members))),
        members_horizon=args.members_horizon,
    )
    options = {"engine": args.engine, "num_workers": args.workers, "address": args.address}
    with sweep.Sweep(args.output, show=True, **options) as my_sweep:
        listed = experiment.stages(settings)
        for number, stage in enumerate(listed, start=1):
            print(f"stage {number} of {len(listed)}:", end=" ", flush=True)
            report = my_sweep.execute(stage(list(my_sweep.store.rows.values())))
            if report.stopped:
                raise KeyboardInterrupt
            if report.failed:
                raise ValueError(f"Expected all runs to succeed. Received: {report.failed} failures, see {args.output}")
        rows = list(my_sweep.store.rows.values())
    for line in write(settings, rows, args.output):
        print(line)
    return 0


def write(settings: experiment.Settings, rows: experiment.Rows, folder: pathlib.Path) -> list[str]:
    """Writes tables and figures of complete rows into a folder, and returns what to print about them."""
    from benchmarks.figures.bandit import drawing as figures
    from benchmarks.figures.bandit import tables
    from tf_ensembles import files

    written = {"regret.csv": tables.regret_table(settings, rows)}
    for horizon in sorted({h for h in (1000, settings.horizon) if h <= settings.horizon}):
        figures.plot_regret(settings, rows, horizon, figures.F6, folder / f"f6_horizon_{horizon}.png")
        figures.plot_regret(settings, rows, horizon, figures.F12, folder / f"f12_horizon_{horizon}.png")
    if settings.members:
        written["members.csv"] = tables.members_table(settings, rows)
        figures.plot_members(written["members.csv"], settings.num_problems, folder / "members.png")
    shown = [content.to_string(index=False, float_format="%.3g") for content in written.values()]
    written["regret_runs.csv"] = tables.runs_table(settings, rows)
    for name, content in written.items():
        with files.atomic_path(folder / name) as temporary:
            content.to_csv(temporary, index=False, float_format="%.5g" if name != "regret_runs.csv" else "%.9g")
    return [*shown, f"in {folder}"]
