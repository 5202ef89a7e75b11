"""Figure 2 at every prior scale: does bootstrapping improve on priors *regardless* of how these are tuned?

The grid of figure 2 on its tuning seeds: p and bp at each prior scale, with the weight decay that is best for the agent
at that scale in each setting. Nothing else is tuned. The claim: with uneven noise bp is better than p at every scale.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import NOT_STATED, Rows, Stage
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.figures.testbed import base, figure_2, runs, tuning
from tf_ensembles.benchmarks.figures.testbed.base import BP, P

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run

_SCALE = ["prior_scale", "prior_scaling"]


class _Figure(base.TestbedFigure):
    id, name, sweep, place = "F2-scales", "figure_2_scales", "flipped", (5.1, 2.2)
    title = "Figure 2 at every prior scale"
    about = "The problems of figure 2: p and bp at each prior scale, with the weight decay that is best for it."
    paper = {name: NOT_STATED for name in ("members", "reported seeds", "input dimensions d", "T / d", "temperatures")}
    full_size = "The paper shows no such figure; it says that bootstrapping helps however prior functions are tuned."
    pairs = ((BP, P),)
    by = ("scale", ", scale {}")
    apart = {"scale": "scale {}"}
    # Its seeds are the tuning seeds of figure 2; fewer than five decide nothing.
    presets = {
        name: dataclasses.replace(size, tuning_seeds=max(5, size.tuning_seeds))
        for name, size in figure_2.PRESETS.items()
    }

    def _runs(self, size: runs.Size) -> list[Run]:
        """The grid of figure 2, without ensemble-n."""
        settings = [
            runs.make_setting(d, r, 0.1, 0.25)
            for d, r in itertools.product(figure_2.FlippedFigure.input_dims, size.data_ratios)
        ]
        agents = runs.grid((P, BP), size)
        return runs.make_runs(settings, {setting.id: agents for setting in settings}, size.seeds_to_tune, size)

    def stages(self, size: runs.Size, context: Mapping[str, Any]) -> list[Stage]:

        def grid(rows: Rows) -> list[Run]:
            return self._runs(size)

        return [grid]

    def collect(self, size: runs.Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns the runs of the best weight decay of every agent, setting and prior scale."""
        table = base.rows_of(rows, self._runs(size))
        keys = [*tuning.SETTING, "agent", *_SCALE]
        means = table.groupby([*keys, "l2"], as_index=False).kl_joint.mean()
        best = means.loc[means.groupby(keys).kl_joint.idxmin(), [*keys, "l2"]]
        return {f"{self.name}_runs": base.slim(table.merge(best, on=[*keys, "l2"]))}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the runs; `scale` names the prior scale."""
        table = super().table(tables)
        scales = zip(table.prior_scale, table.prior_scaling, strict=True)
        return table.assign(scale=[_named(*scale) for scale in scales])

    def marks(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"scale": _named(row["prior_scale"], row["prior_scaling"])}

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        made = []
        for scale in sorted(set(table.scale), key=lambda name: tuning.prior_scale(_agent(table, name), 0.1)):
            bars = panels.mean_bars(table[table.scale == scale], "kl_joint", (P, BP))
            made.append(panels.Panel(f"joint KL, scale {scale}", base.RELATIVE, bars))
        return made

    def shown(self, tables: Tables) -> str:
        return (
            f"{super().shown(tables)} 25% of the training labels 1 flipped to 0. Weight decay: the best of each agent, "
            "setting and scale on these seeds."
        )


def _named(scale: float, scaling: str) -> str:
    return f"{scale:g} x {scaling}"


def _agent(table: pd.DataFrame, scale: str) -> runs.Agent:
    """An agent of this scale."""
    row = table[table.scale == scale].iloc[0]
    return runs.Agent(P, 1, 1.0, float(row.prior_scale), str(row.prior_scaling))


FIGURE = _Figure()
