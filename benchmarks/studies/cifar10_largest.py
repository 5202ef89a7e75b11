"""Figures 3 and 10 on training sets of 10,000 and 50,000 images: smaller ensembles, the prior scale chosen for each.

    tf-ensembles sweep run benchmarks.studies.cifar10_largest --preset large

Figures 3 and 10 show these training sets beside their own where the table is in their folder.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from tf_ensembles.benchmarks.figures.cifar10 import base, figure_3, figure_10, runs

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.benchmarks.figures.tables import Tables


class _Figure(figure_10.BySizeFigure):
    """The study as a figure, so that it runs and resumes as figures do."""

    id, name, sweep, place = "cifar10-largest", figure_3.LARGEST, "cifar10_largest", (9.2, 0)
    same_runs_as = ""
    title = "CIFAR10: prior functions on the largest training sets"
    about = "A single network, ensembles of it, and ensembles with prior functions, on 10,000 and 50,000 images."
    presets: ClassVar[dict[str, Any]] = {
        "quick": dataclasses.replace(
            figure_3.FIGURE.presets["quick"],
            problems=(runs.TINY_100,),
            tuning=runs.Tuning((1.0, 3.0), num_members=3, seeds=1, epochs=0.5),
        ),
        "large": runs.Size(
            (runs.LARGE_10000, runs.LARGE_50000),
            num_members=10,
            seeds=5,
            prior_scales=(10.0,),
            width=runs.NARROW,
            **runs.LARGE_CLEAN,
            own_vgg=2,
            tuning=runs.Tuning((3.0, 10.0, 30.0), num_members=10, seeds=1, epochs=0.5),
        ),
    }

    def kept(self, tables: Tables) -> pd.DataFrame:
        """Returns its own runs."""
        return base.Cifar10Figure.kept(self, tables)


FIGURE = _Figure()
