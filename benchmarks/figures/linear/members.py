"""Finite ensembles, found by minimizing the perturbed loss: how far they are from the posterior, by their size.

The claim: they approach the infinite ensemble as they grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.figures import panels
from benchmarks.figures.linear import base, runs
from benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

    from trainers.sweeps.runs import Run


class _Figure(base.LinearFigure):
    id, name, place, kept = "L-members", "linear_members", (4.0, 3), "finite_ensemble"
    title = "Finite ensembles in Bayesian linear regression"
    about = "Section 4.1: a normal distribution fitted to M minimizers of the perturbed loss, against M."
    columns = (
        *("agent", "members", "problems", "kl", "kl_error", "kl_low", "kl_high"),
        *("predicted", "infinite_ensemble"),
    )

    def runs_of(self, size: runs.Size) -> list[Run]:
        """Returns finite ensembles of every size."""
        return runs.finite_runs(size)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the KL along M for each agent, what the theory predicts, and the infinite ensemble's."""
        made = []
        for agent, rows in table.groupby("agent", sort=False):
            lines = [base.kl_series(rows, "members", str(agent))]
            if "predicted" in rows:
                lines.append(base.known_line(rows, "members", "predicted", "predicted"))
            limit = float(rows.infinite_ensemble.iloc[0])
            finite = limit > 1e-9
            made.append(
                panels.Panel(
                    str(agent) if finite else f"{agent} (infinitely many members: 0)",
                    "KL in nats",
                    tuple(lines),
                    kind="lines",
                    x_label="members M",
                    log_x=True,
                    log_y=True,
                    reference=limit if finite else None,
                    reference_name="infinitely many members" if finite else "",
                )
            )
        return made

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        return f"d = {runs.JOINT['dim']}, T = {runs.JOINT['num_data']}; M ≤ d gives ∞. {self.problems(tables)}"


FIGURE = _Figure()
