"""Does figure 5 change with the width of the networks? Small ensembles at its width and at four times as many channels.

    tf-ensembles sweep run benchmarks.studies.cifar10_width --preset large

Data, label noise and training are those of figure 5, with one ensemble per agent and width. Both widths have the same
training labels, bootstrap weights and prior scale (figure 11's). One seed has no interval: only directions are checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.figures import panels
from benchmarks.figures.base import Rows, Stage
from benchmarks.figures.cifar10 import base, figure_5, stages
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.figures.cifar10.runs import BP, N, P, Size
from benchmarks.figures.tables import Tables

if TYPE_CHECKING:
    import pandas as pd

    from trainers.sweeps.runs import Run

WIDTHS = (cifar10_runs.NARROW, 1 / 4)
_AGENTS = (N, P, f"{BP}(0.75)")


def _sizes(size: Size) -> list[Size]:
    return [dataclasses.replace(size, width=width, name=f"{size.name}/width{width:g}") for width in WIDTHS]


def _size(preset: str) -> Size:
    return dataclasses.replace(
        figure_5.FIGURE.presets[preset],
        num_members=3,
        seeds=1,
        prior_scales=(3.0,),
        probabilities=(0.75,),
        seed=14,  # of no figure
        name="cifar10-width",
        own_data=True,
        tuning=None,
    )


class _Figure(base.Cifar10Figure):
    """The study as a figure, so that it runs and resumes as figures do."""

    id, name, sweep, place = "cifar10-width", "cifar10_width", "cifar10_width", (9.1,)
    title = "CIFAR10: figure 5 at two widths"
    about = "A quarter of the labels of classes 0 to 4 moved to classes 5 to 9; 1/16 and 1/4 of the VGG's channels."
    paper = {"members": "10", "seeds": "5", "prior scales": "0, 0.3, 1, 3, 10", **base.PAPER}
    full_size = figure_5.FIGURE.full_size
    reference, within = N, ("width",)
    pairs = ((P, N), (_AGENTS[-1], P))
    by = ("width", ", width {:g}")
    presets = {preset: _size(preset) for preset in ("quick", "large")}

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[Stage]:
        """Returns the training and scoring of one width after the other."""
        return [stage for one in _sizes(size) for stage in stages.stages(one, self.agents_of, context or None)]

    def all_runs(self, size: Size, context: Mapping[str, Any], rows: Rows) -> list[Run]:
        """Returns also the training of members whose ensembles are scored."""
        return [run for one in _sizes(size) for run in stages.all_runs(one, self.agents_of, rows)]

    def collect(self, size: Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns a row per ensemble and width; both widths must be there."""
        import pandas as pd

        parts = [cifar10_runs.table(rows, one, self.agents_of) for one in _sizes(size)]
        return {f"{self.name}_runs": pd.concat(parts, ignore_index=True)}

    def series_names(self, table: pd.DataFrame) -> list[str]:
        """Names the width, too."""
        return [f"{row.agent}, width {row.width:g}" for row in table.itertuples()]

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns a line per agent and score along the width."""
        return [
            panels.Panel(
                name,
                "relative to ensemble-n of the same width",
                panels.mean_lines(table, score, _AGENTS, "width"),
                kind="lines",
                x_label="channels, relative to VGG",
                log_x=True,
            )
            for score, name in base.SCORES.items()
        ]

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        used = self.used(tables)
        return (
            f"One ensemble of {used['members']} members per agent and width, prior scale {used['prior scales']}, "
            f"T = {used['training images T']}; no intervals. {self._training(tables)}"
        )


FIGURE = _Figure()
