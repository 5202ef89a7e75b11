"""Joint predictions: how their KL grows with their number.

The claim: the KL of many joint predictions approaches the KL of the coefficients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.figures import panels
from benchmarks.figures.linear import base, runs
from benchmarks.figures.linear.runs import WEIGHTED, N, P
from benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

    from trainers.sweeps.runs import Run


class _Figure(base.LinearFigure):
    id, name, place, kept = "A1", "linear_predictions", (4.0, 4), "predictions"
    title = "Joint predictions in Bayesian linear regression"
    about = "Appendix A.1: the KL of τ joint predictions approaches that of the coefficients."
    columns = ("agent", "tau", "problems", "kl", "kl_error", "kl_low", "kl_high", "coefficient_kl")

    def runs_of(self, size: runs.Size) -> list[Run]:
        """Returns every agent at every number of joint predictions."""
        return runs.prediction_runs(size)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the KL along τ, and as a share of the coefficients' KL where that is finite."""
        lines = [base.kl_series(table[table.agent == agent], "tau", agent) for agent in (N, P, WEIGHTED)]
        rows = table[np.isfinite(table.coefficient_kl) & (table.coefficient_kl > 1e-6)]
        shares = rows.assign(**{name: rows[name] / rows.coefficient_kl for name in ("kl", "kl_error")})
        parts = [base.kl_series(shares[shares.agent == agent], "tau", agent) for agent in (P, WEIGHTED)]
        return [
            panels.Panel(
                "KL of joint predictions",
                "KL in nats",
                tuple(lines),
                kind="lines",
                x_label="labels τ",
                log_x=True,
                log_y=True,
            ),
            panels.Panel(
                "as a share of the coefficients' KL",
                "share",
                tuple(parts),
                kind="lines",
                x_label="labels τ",
                log_x=True,
                reference=1.0,
            ),
        ]

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        return (
            f"d = {runs.JOINT['dim']}, T = {runs.JOINT['num_data']}; ensemble-bp is 0 at every τ, and ensemble-n's "
            f"coefficients are infinitely far. {self.problems(tables)}"
        )


FIGURE = _Figure()
