"""Compares our agents with those of another testbed on its own exported problems.

    python -m benchmarks.studies.testbed_reference problems.npz results.json

The archive holds, per problem `pID`: training set `pID/x` `[T, d]`, `pID/y` `[T]`; joint test batches `pID/x10`
`[batches, tau, d]`, `pID/y10` `[batches, tau]` with the true log-likelihood `pID/ll10` `[batches]`; single points
`pID/x1`, `pID/y1`, `pID/ll1`; `pID/meta` = `[d, T, temperature]`. The JSON file lists `idx`, `agent`, `kl1`, `kl10` and
`acc` of the other testbed's agents.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import stats
from tf_ensembles import base, metrics
from tf_ensembles.metrics import likelihood as formulas
from trainers import agents

AGENTS = ("mlp", "ensemble-n", "ensemble-p", "ensemble-bp")


@dataclasses.dataclass(frozen=True)
class ReferenceProblem:
    """One exported problem: training data and labeled test batches of tau = 1 and of tau > 1 points."""

    index: int
    train: base.Data
    prior_knowledge: base.PriorKnowledge
    arrays: dict[str, NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Row:
    """An agent's scores on a problem, with the standard errors over test batches, beside the other testbed's."""

    index: int
    agent: str
    marginal: float
    marginal_error: float
    joint: float
    joint_error: float
    reference_marginal: float
    reference_joint: float


def load_problems(path: str | pathlib.Path) -> Iterator[ReferenceProblem]:
    """Yields the problems of an archive in order of their ids."""
    with np.load(path) as archive:
        indices = sorted({int(match[1]) for name in archive.files if (match := re.match(r"p(\d+)/", name))})
        for index in indices:
            arrays = {name: archive[f"p{index}/{name}"] for name in ("x", "y", "x1", "y1", "ll1", "x10", "y10", "ll10")}
            dim, num_train, temperature = archive[f"p{index}/meta"]
            knowledge = base.PriorKnowledge(int(dim), int(num_train), 2, float(temperature))
            train = base.Data(arrays["x"], arrays["y"].reshape(-1).astype(np.int32))
            yield ReferenceProblem(index, train, knowledge, arrays)


def score(predictive: base.Predictive, problem: ReferenceProblem, points: str) -> tuple[float, float]:
    """Returns the KL over the exported batches `points` (`"1"` or `"10"`) and its standard error."""
    x, labels = problem.arrays[f"x{points}"], problem.arrays[f"y{points}"]
    truth = problem.arrays[f"ll{points}"].reshape(-1)
    tau = labels.size // len(truth)
    logits = predictive(x.reshape(len(truth) * tau, -1))
    likelihood = metrics.member_log_likelihood(logits, labels.reshape(-1))
    values = truth - formulas.log_mean_exp(formulas.joint(likelihood, tau))
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))


def compare(problems: str | pathlib.Path, results: str | pathlib.Path, seed: int = 0) -> list[Row]:
    """Trains our agents on every problem and scores them on its own test batches."""
    entries = json.loads(pathlib.Path(results).read_text())
    theirs = {(entry["idx"], entry["agent"]): entry for entry in entries}
    rows = []
    for problem in load_problems(problems):
        configs = [agents.make_config(name, seed=seed) for name in AGENTS]
        trained = agents.train_many(configs, problem.train, problem.prior_knowledge)
        for name, predictive in zip(AGENTS, trained, strict=True):
            entry = theirs[problem.index, name]
            scores = (*score(predictive, problem, "1"), *score(predictive, problem, "10"))
            rows.append(Row(problem.index, name, *scores, entry["kl1"], entry["kl10"]))
    return rows


def verdict(rows: Sequence[Row], agent: str, score_name: str) -> tuple[float, float, stats.Interval]:
    """Returns our mean, the reference's mean, and their difference with its 95% interval over the problems' batches.

    Both are estimates from as many test batches, so their errors are taken as alike.
    """
    mine = [row for row in rows if row.agent == agent]
    ours = float(np.mean([getattr(row, score_name) for row in mine]))
    theirs = float(np.mean([getattr(row, f"reference_{score_name}") for row in mine]))
    errors = np.array([getattr(row, f"{score_name}_error") for row in mine])
    error = math.sqrt(2.0 * np.sum(errors**2)) / len(mine)
    return ours, theirs, stats.normal_interval(ours - theirs, error, len(mine))


def main() -> None:
    """Prints scores per problem and the means that decide."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", help="the .npz archive of problems")
    parser.add_argument("results", help="the .json file of the other testbed's scores")
    parser.add_argument("--seed", type=int, default=0, help="seed of our agents")
    args = parser.parse_args()
    rows = compare(args.problems, args.results, args.seed)
    print(f"{'problem':>7} {'agent':<12} {'marginal':>18} {'reference':>9} {'joint':>18} {'reference':>9}")
    for row in rows:
        marginal, joint = f"{row.marginal:.4f} ± {row.marginal_error:.4f}", f"{row.joint:.4f} ± {row.joint_error:.4f}"
        print(
            f"{row.index:>7} {row.agent:<12} {marginal:>18} {row.reference_marginal:>9.4f} "
            f"{joint:>18} {row.reference_joint:>9.4f}"
        )
    for score_name in ("marginal", "joint"):
        print(f"\nmean {score_name} KL over {len({row.index for row in rows})} problems")
        for agent in AGENTS:
            ours, theirs, gap = verdict(rows, agent, score_name)
            worse = "worse" if gap.low > 0.0 else "not shown to be worse"
            print(f"  {agent:<12} ours {ours:.3f}  reference {theirs:.3f}  ({worse}: {gap})")


if __name__ == "__main__":
    main()
