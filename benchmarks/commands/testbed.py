"""Trains agents on Neural Testbed problems and compares their KL from the truth with the uniform agent and mlp.

Several agents and seeds may be given at once; a seed names a problem and starts the agents. All agents of a problem
are trained side by side and scored on the same test inputs. Writes one row per run to a CSV file.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tf_ensembles import files
from tf_ensembles.benchmarks.commands import options

if TYPE_CHECKING:
    from tf_ensembles.base import Quality
    from tf_ensembles.testbed.problems import Problem, Setting
    from tf_ensembles.trainers.agents import AgentConfig

AGENTS = ("mlp", "ensemble-n", "ensemble-p", "ensemble-bp")
UNIFORM = "uniform"


@dataclasses.dataclass(frozen=True)
class Run:
    """One agent on one problem."""

    id: str  # such as testbed/d10-r100-t0.1/ensemble-bp/seed3
    agent: str
    seed: int
    quality: Quality


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the problem's settings, the agents and what to vary in them."""
    parser.epilog = options.examples(
        "testbed --agents ensemble-n ensemble-p ensemble-bp --seeds 0 1 2",
        "testbed --input-dim 2 --data-ratio 10 --members 10 --num-steps 100 --num-batches 100",
        "testbed --flip 0.25 --seeds 0 1 2 3 4 --json",
    )
    parser.add_argument("--input-dim", type=int, default=10, metavar="D", help="inputs of the problem (default 10)")
    parser.add_argument(
        "--data-ratio", type=float, default=100.0, metavar="R", help="training examples per input (default 100)"
    )
    parser.add_argument(
        "--temperature", type=float, default=0.1, metavar="RHO", help="divides the true logits (default 0.1)"
    )
    parser.add_argument("--num-classes", type=int, default=2, metavar="C", help="classes (default 2)")
    parser.add_argument(
        "--flip", type=float, default=0.0, metavar="F", help="fraction of training labels 1 to turn into 0 (default 0)"
    )
    parser.add_argument(
        "--agents", nargs="+", choices=AGENTS, default=["ensemble-bp"], help="one or more agents (default ensemble-bp)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="S", help="one or more seeds (default 0)")
    parser.add_argument("--members", type=int, default=100, metavar="M", help="how many (default 100)")
    parser.add_argument("--num-steps", type=int, default=1000, metavar="N", help="training steps (default 1000)")
    parser.add_argument("--l2", type=float, default=1.0, help="weight decay before scaling (default 1)")
    parser.add_argument("--prior-scale", type=float, default=3.0, help="prior scale before scaling (default 3)")
    parser.add_argument("--tau", type=int, default=10, help="labels per joint prediction (default 10)")
    parser.add_argument(
        "--num-batches", type=int, default=1000, metavar="N", help="batches of test inputs (default 1000)"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="blocks of members trained at a time (default: one per core)"
    )
    options.add_results(parser, "results/testbed", "folder of the CSV file")


def run(args: argparse.Namespace) -> None:
    """Trains, scores, prints a table and writes the runs."""
    import tqdm

    from tf_ensembles import testbed

    if args.workers is not None and args.workers < 1:
        raise ValueError(f"Expected --workers >= 1. Received: {args.workers}")
    flip = testbed.LabelFlip(args.flip) if args.flip else None
    setting = testbed.Setting(args.input_dim, args.data_ratio, args.temperature, args.num_classes, flip)
    # mlp is what others are compared with, so it always runs; each agent once, in the paper's order.
    names = [name for name in AGENTS if name in {"mlp", *args.agents}]
    seeds = list(dict.fromkeys(args.seeds))
    configs = {seed: [_config(name, seed, args) for name in names] for seed in seeds}
    total = sum(config.num_members for seed in seeds for config in configs[seed])
    runs: list[Run] = []
    print(f"{setting.id}: {setting.num_train} training examples, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}")
    with tqdm.tqdm(total=total, unit="member") as bar:
        for seed in seeds:
            problem = testbed.problem_from_id(setting.id, seed)
            runs += _run_problem(problem, configs[seed], args, bar.update)
    summaries = summarize(runs)
    path = _write(runs, setting, args.results)
    answer = {"setting": setting.id, "seeds": seeds, "agents": summaries, "path": path}
    options.answer(args, answer, f"{format_table(summaries)}\n\n{len(runs)} runs written to {path}")


def _config(name: str, seed: int, args: argparse.Namespace) -> AgentConfig:
    from tf_ensembles.trainers import agents

    config = agents.make_config(name, seed=seed, num_steps=args.num_steps, l2=args.l2)
    if name != "mlp":
        config = dataclasses.replace(config, num_members=args.members)
    return dataclasses.replace(config, prior_scale=args.prior_scale) if config.has_prior else config


def _run_problem(
    problem: Problem, configs: Sequence[AgentConfig], args: argparse.Namespace, progress: Callable[[int], object]
) -> list[Run]:
    from tf_ensembles import testbed
    from tf_ensembles.trainers import experiment

    scores = {"tau": args.tau, "num_batches": args.num_batches}
    qualities = [
        experiment.run(testbed.uniform_agent, problem, **scores),
        *experiment.run_many(configs, problem, num_workers=args.workers, progress=progress, **scores),
    ]
    names = [UNIFORM, *(config.name.value for config in configs)]
    return [
        Run(f"{problem.id}/{name}/seed{problem.seed}", name, problem.seed, quality)
        for name, quality in zip(names, qualities, strict=True)
    ]


def summarize(runs: Iterable[Run]) -> dict[str, Quality]:
    """Returns each agent's mean over seeds. Errors are over seeds, or over test inputs where there is one seed."""
    import numpy as np

    from tf_ensembles.base import Quality

    by_agent: dict[str, list[Quality]] = {}
    for run in runs:
        by_agent.setdefault(run.agent, []).append(run.quality)
    summaries = {}
    for agent, qualities in by_agent.items():
        table = np.array([dataclasses.astuple(quality) for quality in qualities])
        mean = Quality(*table.mean(axis=0))
        if len(table) > 1:
            marginal, joint = table[:, [0, 2]].std(axis=0, ddof=1) / np.sqrt(len(table))
            mean = dataclasses.replace(mean, kl_marginal_error=marginal, kl_joint_error=joint)
        summaries[agent] = mean
    return summaries


def format_table(summaries: Mapping[str, Quality]) -> str:
    """Returns the comparison as text: KLs with standard errors, and the joint KL relative to uniform and to mlp."""
    lines = [
        f"{'agent':<12}{'marginal KL':>18}{'joint KL':>18}{'/ uniform':>11}{'/ mlp':>8}{'accuracy':>10}{'ECE':>8}",
    ]
    for agent, mean in summaries.items():
        marginal = f"{mean.kl_marginal:.4f} ± {mean.kl_marginal_error:.4f}"
        joint = f"{mean.kl_joint:.4f} ± {mean.kl_joint_error:.4f}"
        ratios = [
            f"{mean.kl_joint / base:.3f}" if base > 0 else "-"
            for base in (summaries[UNIFORM].kl_joint, summaries["mlp"].kl_joint)
        ]
        lines.append(
            f"{agent:<12}{marginal:>18}{joint:>18}{ratios[0]:>11}{ratios[1]:>8}{mean.accuracy:>10.3f}{mean.ece:>8.3f}"
        )
    return "\n".join(lines)


def _write(runs: Sequence[Run], setting: Setting, folder: pathlib.Path) -> pathlib.Path:
    rows = [{"id": one.id, "agent": one.agent, "seed": one.seed, **dataclasses.asdict(one.quality)} for one in runs]
    path = folder / f"{setting.id}.csv"
    with files.atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
