"""Finite ensembles, found by minimizing the perturbed loss: how far they are from the posterior, by their size.

The claim: they approach the infinite ensemble as they grow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.linear import base, runs
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("linear-members", "tf_ensembles.benchmarks.figures.linear.compute:finite_ensemble")


class _Figure(base.LinearFigure):
    id, name, place, kept = "L-members", "linear_members", (4.0, 3), "finite_ensemble"
    title = "Finite ensembles in Bayesian linear regression"
    about = "Section 4.1: a normal distribution fitted to M minimizers of the perturbed loss, against M."
    columns = (
        *("agent", "members", "problems", "kl", "kl_error", "kl_low", "kl_high"),
        *("predicted", "infinite_ensemble"),
    )

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
        config = {"problems": size.joint_problems, "seed": size.seed}
        return [
            sweep_runs.make_run(f"linear/members/{agent}/m{count}", KIND, {**config, "agent": agent, "members": count})
            for agent in (runs.WEIGHTED, runs.BP)
            for count in size.members
        ]

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the KL along M for each agent, what the theory predicts, and the infinite ensemble's."""
        made = []
        for agent, rows in table.groupby("agent", sort=False):
            lines = (
                base.mean_series(rows, "members", str(agent)),
                base.known_line(rows, "members", "predicted", "predicted"),
            )
            limit = float(rows.infinite_ensemble.iloc[0])
            finite = limit > 1e-9
            made.append(
                panels.Panel(
                    str(agent) if finite else f"{agent} (infinitely many members: 0)",
                    "KL in nats",
                    lines,
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
        return f"d = {runs.JOINT['dim']}, T = {runs.JOINT['num_data']}; M ≤ d gives ∞. {self.problems(tables)}"


FIGURE = _Figure()
