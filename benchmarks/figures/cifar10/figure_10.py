"""Figure 10: figure 3 by the size of the training set.

The claim: the gain of prior functions on joint predictions is largest where data are fewest. The runs are those of
figure 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles.benchmarks.figures.cifar10 import base, figure_3
from tf_ensembles.benchmarks.figures.cifar10.runs import VGG, N, P
from tf_ensembles.benchmarks.figures.panels import Panel
from tf_ensembles.benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd


class BySizeFigure(figure_3.PlainFigure):
    """A line per agent along T: figure 10, and a study of larger training sets."""

    id, name, place, same_runs_as = "F10", "figure_10", (5.2, 10), "F3"
    title = "Figure 10: CIFAR10, prior functions by the size of the training set"
    about = "The runs of figure 3, training set by training set: where do prior functions help?"
    by = ("num_train", ", T = {:,}")

    def kept(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs: figure 3's, where they were not made apart."""
        own = tables.has("cifar10/figure_10_runs.csv")
        return super().kept(tables) if own else figure_3.FIGURE.kept(tables)

    def panels(self, table: pd.DataFrame) -> list[Panel]:
        """Returns a line per agent and score along T."""
        return base.lines_along("num_train", "training images T", table, (VGG, N, P), "relative to vgg")


FIGURE = BySizeFigure()
