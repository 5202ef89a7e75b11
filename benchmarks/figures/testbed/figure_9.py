"""Figure 9: figures 2 and 8 at d = 10, broken down by the number of training examples.

The claim: bootstrapping gains most at a middle T. With little data the prior decides, and with much the posterior
concentrates. Shares the runs of figure 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import base, figure_2
from tf_ensembles.benchmarks.figures.testbed.base import BP, P

if TYPE_CHECKING:
    import pandas as pd

INPUT_DIM = 10


class _Figure(figure_2.FlippedFigure):
    id, name, place, same_runs_as = "F9", "figure_9", (5.1, 9), "F2"
    title = "Figure 9: uneven noise, by the number of training examples"
    about = "Figures 2 and 8 at d = 10: where does bootstrapping gain?"
    paper = {
        **base.TUNED_PAPER,
        "reported seeds": "100",
        "input dimensions d": "10",
        "T / d": "1, 10, 100, 1,000",
        "temperatures": "0.1",
        "prior scales tried": "6",
    }
    full_size = "The paper's size: a third of figure 2."
    input_dims = (INPUT_DIM,)
    by = ("num_train", ", T = {:,}")

    def collect(self, size: Any, rows: Any) -> dict[str, pd.DataFrame]:
        """Returns the runs of the reporting seeds; the grid of both figures is kept by figure 2."""
        return {name: kept for name, kept in super().collect(size, rows).items() if name != self.grid}

    def kept_tables(self, tables: Tables) -> list[tuple[str, str]]:
        """Returns the table of the runs: one of its own where they were made apart from figure 2's."""
        return [("figure_9_runs" if tables.has("testbed/figure_9_runs.csv") else "figure_2_runs", self.grid)]

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs at d = 10."""
        table = self.normalized(tables, self.kept_tables(tables)[0][0])
        return table[table.input_dim == INPUT_DIM]

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns both scores by T, and what bootstrapping gains."""
        options: dict[str, Any] = {"kind": "lines", "x_label": "T", "log_x": True}
        made = [
            panels.Panel(name, base.RELATIVE, panels.mean_lines(table, score, self.agents, "num_train"), **options)
            for score, name in base.SCORES.items()
        ]
        gain = panels.gain_line(table, "kl_joint", BP, P, "num_train")
        title = "joint KL: gain of bootstrapping"
        return [*made, panels.Panel(title, "p minus bp", (gain,), reference=0.0, **options)]

    def shown(self, tables: Tables) -> str:
        return (
            f"d = {INPUT_DIM}, temperature 0.1, 25% of the training labels 1 flipped to 0; scores divided by the "
            "uniform agent's."
        )


FIGURE = _Figure()
