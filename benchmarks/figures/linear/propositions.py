"""Propositions 1 and 2 on random problems: the largest deviation found.

The claims: an infinite ensemble-bp is the exact posterior; the members of ensemble-n are all the same.
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

KIND = kinds.register("linear-proposition", "tf_ensembles.benchmarks.figures.linear.compute:proposition")


class _Figure(base.LinearFigure):
    id, name, place, kept = "P", "linear_propositions", (4.0, 0), "checks"
    title = "Propositions 1 and 2: what holds exactly"
    about = "Section 4.1 on random problems, with d = 10, T = 50 and uneven noise: the largest deviation, by rounding."
    columns = ("check", "problems", "value")

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
        config = {"problems": size.problems, "seed": size.seed}
        return [
            sweep_runs.make_run(f"linear/proposition-{number}", KIND, {**config, "proposition": number})
            for number in (1, 2)
        ]

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        names = {"proposition 1": "|KL| of bp", "proposition 2": "spread of n"}
        bars = [
            panels.Series(name, (panels.Point(0.0, float(rows.value.iloc[0]), count=int(rows.problems.iloc[0])),))
            for start, name in names.items()
            if len(rows := table[table.check.astype(str).str.startswith(start)])
        ]
        return [panels.Panel("largest deviation over all problems", "nats, and distance", tuple(bars))]

    def caption(self, tables: Tables) -> str:
        return f"Both should be 0 up to rounding, over {self.used(tables)['problems per setting']} problems."


FIGURE = _Figure()
