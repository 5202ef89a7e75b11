"""Theorem 1: how far ensembles are from the posterior, by training data, conditioning and uneven noise.

The claims: every unbiased ensemble-p stays above the bound, the more so the worse conditioned the problem.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import NOT_STATED
from tf_ensembles.benchmarks.figures.linear import base, runs
from tf_ensembles.benchmarks.figures.linear.runs import BP, WEIGHTED, P
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.style import listing
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

_LOWER = "lower bound of theorem 1"

KIND = kinds.register("linear-bound", "tf_ensembles.benchmarks.figures.linear.compute:compare_with_bound")


class _Figure(base.LinearFigure):
    id, name, place, kept = "T1", "linear_bound", (4.0, 1), "sweep"
    title = "Theorem 1: KL from the posterior in Bayesian linear regression"
    about = (
        "Section 4: where everything can be computed exactly, ensemble-bp is the posterior, ensemble-n is infinitely "
        "far from it, and ensemble-p cannot follow a signal-to-noise ratio that differs by direction."
    )
    paper = {
        name: NOT_STATED
        for name in ("problems per setting", "dimensions d", "training data T", "condition numbers of cov(x)")
    }
    columns = (
        *("dim", "num_data", "condition", "heteroscedasticity", "gamma_condition", "problems", "lower_bound"),
        *("lower_bound_error", "predicted_gap", "agent", "agent_prior_variance", "kl", "kl_error", "kl_low", "kl_high"),
    )

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
        made = []
        grid = itertools.product(size.dims, size.data, size.conditions, size.heteroscedasticities)
        for index, (dim, num_data, condition, strength) in enumerate(grid):
            setting = {"dim": dim, "num_data": num_data, "condition": condition, "heteroscedasticity": strength}
            where = f"linear/d{dim}-t{num_data}-c{condition:g}-h{strength:g}"
            for agent in runs.AGENTS:
                config = {**setting, "problems": size.problems, "agent": agent, "seed": size.seed * runs.STREAM + index}
                made.append(sweep_runs.make_run(f"{where}/{agent}/p{size.problems}", KIND, config, batch=where))
        return made

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the KL along T for each condition number, with uneven noise, and along the condition number."""
        dim, strength = _one_of(table.dim, 10), table.heteroscedasticity.max()
        uneven = table[(table.dim == dim) & (table.heteroscedasticity == strength)]
        made = []
        for condition in sorted(set(uneven.condition)):
            rows = uneven[uneven.condition == condition]
            lines = [base.mean_series(rows[rows.agent == agent], "num_data", agent) for agent in (P, WEIGHTED, BP)]
            lines.append(base.known_line(rows[rows.agent == WEIGHTED], "num_data", "lower_bound", _LOWER))
            title = f"d = {dim}, cov(x) of condition {condition:g}, uneven noise"
            made.append(panels.Panel(title, "KL in nats", tuple(lines), kind="lines", x_label="T", log_x=True))
        count = _one_of(table.num_data, 100)
        for noise, name in ((strength, "uneven"), (0.0, "constant")):
            rows = table[(table.dim == dim) & (table.num_data == count) & (table.heteroscedasticity == noise)]
            lines = [base.mean_series(rows[rows.agent == agent], "gamma_condition", agent) for agent in (WEIGHTED, BP)]
            lines.append(base.known_line(rows[rows.agent == WEIGHTED], "gamma_condition", "lower_bound", _LOWER))
            options: dict[str, Any] = {"kind": "lines", "x_label": "condition number of Γ", "log_x": True}
            made.append(panels.Panel(f"d = {dim}, T = {count}, {name} noise", "KL in nats", tuple(lines), **options))
        return made

    def used(self, tables: Tables) -> Mapping[str, str]:
        table = tables.of(self)
        return {
            **super().used(tables),
            "dimensions d": listing(table.dim),
            "training data T": listing(table.num_data),
            "condition numbers of cov(x)": listing(table.condition),
        }

    def caption(self, tables: Tables) -> str:
        return (
            "ensemble-p: equal weights, prior scale tuned elsewhere; ensemble-p-weighted: the best unbiased one; "
            f"ensemble-n's KL is infinite everywhere. {self.problems(tables)}"
        )


def _one_of(values: pd.Series[float], wanted: int) -> int:
    return wanted if wanted in set(values) else int(values.max())


FIGURE = _Figure()
