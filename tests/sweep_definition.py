"""A figure in two stages for the tests of the command: squares, then the best of them again."""

from __future__ import annotations

import pandas as pd

from tf_ensembles.benchmarks.figures import base, panels
from tf_ensembles.trainers.sweeps import sweep

FUNCTION = "tests.sweep_functions:square"


class MadeUp(base.Figure):
    id, name, part, sweep, place = "MU", "made_up", "made_up", "made_up", (99.0,)
    title, about, full_size = "Squares", "The squares of six numbers.", "The paper shows no squares."
    paper = {"numbers": "6"}  # noqa: RUF012
    presets = {"quick": 6}  # noqa: RUF012

    def stages(self, size, context):
        def first(rows):
            configs = [{"x": float(seed), "seed": seed, "seconds": 0.05} for seed in range(size)]
            return [sweep.make_run(f"made_up/seed{config['seed']}", FUNCTION, config) for config in configs]

        def second(rows):
            if not rows:
                raise ValueError("nothing to choose from")
            best = max(row["square"] for row in rows if row["id"].startswith("made_up/seed"))
            return [sweep.make_run("made_up/best", FUNCTION, {"x": best, "seed": 0})]

        return [first, second]

    def collect(self, size, rows):
        return {"made_up_runs": pd.DataFrame(rows)[["id", "seed", "x", "square"]]}

    def table(self, tables):
        return tables.read("made_up/made_up_runs.csv", ("id", "x", "square"))

    def panels(self, table):
        bars = [panels.Series(row.id, (panels.Point(0.0, float(row.square)),)) for row in table.itertuples()]
        return [panels.Panel("squares", "square", tuple(bars))]

    def used(self, tables):
        return {"numbers": str(len(tables.of(self)))}

    def caption(self, tables):
        return f"{self.used(tables)['numbers']} numbers."


class More(MadeUp):
    """A figure of one more run in the same folder."""

    id, name = "MU-more", "more"

    def stages(self, size, context):
        return [lambda rows: [sweep.make_run("made_up/more", FUNCTION, {"x": 9.0, "seed": 0})]]

    def collect(self, size, rows):
        return {"made_up_runs": pd.DataFrame([row for row in rows if row["id"] == "made_up/more"])}


FIGURE = MadeUp()
