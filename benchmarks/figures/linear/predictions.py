"""Joint predictions: how their KL grows with their number.

The claim: the KL of many joint predictions approaches the KL of the coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.linear import base, runs
from tf_ensembles.benchmarks.figures.linear.runs import WEIGHTED, N, P
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("linear-predictions", "tf_ensembles.benchmarks.figures.linear.compute:joint_predictions")


class _Figure(base.LinearFigure):
    id, name, place, kept = "A1", "linear_predictions", (4.0, 4), "predictions"
    title = "Joint predictions in Bayesian linear regression"
    about = "Appendix A.1: the KL of τ joint predictions approaches that of the coefficients."
    columns = ("agent", "tau", "problems", "kl", "kl_error", "kl_low", "kl_high", "coefficient_kl")

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
        config = {"problems": size.joint_problems, "seed": size.seed}
        return [
            sweep_runs.make_run(
                f"linear/predictions/{agent}/tau{tau}", KIND, {**config, "agent": agent, "tau": tau}, batch="joint"
            )
            for agent in runs.AGENTS
            for tau in size.taus
        ]

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the KL along τ, and as a share of the coefficients' KL where that is finite."""
        lines = [base.mean_series(table[table.agent == agent], "tau", agent) for agent in (N, P, WEIGHTED)]
        rows = table[np.isfinite(table.coefficient_kl) & (table.coefficient_kl > 1e-6)]
        shares = rows.assign(**{name: rows[name] / rows.coefficient_kl for name in ("kl", "kl_error")})
        parts = [base.mean_series(shares[shares.agent == agent], "tau", agent) for agent in (P, WEIGHTED)]
        options: dict[str, Any] = {"kind": "lines", "x_label": "labels τ", "log_x": True}
        return [
            panels.Panel("KL of joint predictions", "KL in nats", tuple(lines), **options, log_y=True),
            panels.Panel("as a share of the coefficients' KL", "share", tuple(parts), **options, reference=1.0),
        ]

    def caption(self, tables: Tables) -> str:
        return (
            f"d = {runs.JOINT['dim']}, T = {runs.JOINT['num_data']}; ensemble-bp is 0 at every τ, and ensemble-n's "
            f"coefficients are infinitely far. {self.problems(tables)}"
        )


FIGURE = _Figure()
