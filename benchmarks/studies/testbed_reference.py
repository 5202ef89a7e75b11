"""Compares our agents with those of another testbed on its own exported problems.

    tf-ensembles sweep run benchmarks.studies.testbed_reference --preset standard --data-dir FOLDER

FOLDER has `problems.npz` and `results.json`. The archive holds, per problem `pID`: training set `pID/x` `[T, d]`,
`pID/y` `[T]`; joint test batches `pID/x10` `[batches, tau, d]`, `pID/y10` `[batches, tau]` with the true log-likelihood
`pID/ll10` `[batches]`; single points `pID/x1`, `pID/y1`, `pID/ll1`; `pID/meta` = `[d, T, temperature]`. The JSON file
lists `idx`, `agent`, `kl1`, `kl10` and `acc` of the other testbed's agents.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import base, metrics
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.studies import base as studies
from tf_ensembles.metrics import likelihood as formulas
from tf_ensembles.trainers import agents
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("testbed-reference", "tf_ensembles.benchmarks.studies.testbed_reference:compute")
AGENTS = ("mlp", "ensemble-n", "ensemble-p", "ensemble-bp")
POINTS = {"marginal": "1", "joint": "10"}


@dataclasses.dataclass(frozen=True)
class ReferenceProblem:
    """One exported problem: training data and labeled test batches of tau = 1 and of tau > 1 points."""

    index: int
    train: base.Data
    prior_knowledge: base.PriorKnowledge
    arrays: dict[str, NDArray[Any]]


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


def compute(config: Mapping[str, Any], *, data: str) -> dict[str, float]:
    """One run, a problem: our agents' KLs, their standard errors over test batches, and the other testbed's KLs."""
    problem = list(load_problems(f"{data}/problems.npz"))[config["number"]]
    entries = json.loads(pathlib.Path(data, "results.json").read_text())
    reference = {entry["agent"]: entry for entry in entries if entry["idx"] == problem.index}
    configs = [agents.make_config(name, seed=config["seed"]) for name in AGENTS]
    row: dict[str, float] = {"problem": problem.index}
    trained = agents.train_many(configs, problem.train, problem.prior_knowledge)
    for name, predictive in zip(AGENTS, trained, strict=True):
        for kind, points in POINTS.items():
            row[f"{name}|{kind}|kl"], row[f"{name}|{kind}|error"] = score(predictive, problem, points)
            row[f"{name}|{kind}|reference"] = reference[name][f"kl{points}"]
    return row


class _Study(studies.Study):
    name, part, kept = "testbed_reference", "testbed", "reference"
    title = "Our agents and those of another testbed, on its own problems"
    about = (
        "Mean KL over problems, less the other testbed's, with 95% intervals; both are taken to have the same errors."
    )
    presets = {"quick": 1, "standard": 9}  # problems

    def stages(self, size: int, context: Mapping[str, Any]) -> list[studies.Stage]:
        """Returns a run per problem."""
        where = {"data": context.get("data") or "."}
        configs = [{"number": number, "seed": 0} for number in range(size)]
        runs = [sweep.make_run(f"reference/problem{c['number']}", KIND, c, context=where) for c in configs]
        return [lambda rows: runs]

    def records(self, size: int, rows: studies.Rows) -> list[dict[str, Any]]:
        """Returns a line per problem, agent and kind of KL."""
        complete_rows = studies.rows_of(rows, self.all_runs(size, {}, rows))
        return [
            {"problem": row["problem"], **one} for row in complete_rows for one in studies.unpack(row, "agent", "score")
        ]

    def panels(self, table: pd.DataFrame) -> list[studies.Panel]:
        """Returns a bar per agent and kind of KL."""
        made = []
        for kind, rows in table.groupby("score"):
            bars = [panels.Series(agent, (panels.point(0.0, difference(rows, agent)),)) for agent in AGENTS]
            made.append(studies.Panel(f"{kind} KL", "ours less the other's", tuple(bars)))
        return made


def difference(table: pd.DataFrame, agent: str) -> stats.Interval:
    """Returns our mean KL less the reference's, over problems; both have as many test batches, so errors are alike."""
    rows = table[table.agent == agent]
    error = math.sqrt(2.0 * float((rows.error**2).sum())) / len(rows)
    return stats.normal_interval(float((rows.kl - rows.reference).mean()), error, len(rows))


FIGURE = _Study()
