"""Finite ensembles in the bandit: regret against the number of members. The paper's ensembles are infinite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks import stats
from benchmarks.figures import base as figures_base
from benchmarks.figures import panels
from benchmarks.figures.bandit import base, runs
from benchmarks.figures.bandit.base import BP
from benchmarks.figures.bandit.runs import Settings
from benchmarks.figures.base import NOT_STATED, Rows, Stage
from benchmarks.figures.tables import Tables
from benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd


class _Figure(figures_base.Figure):
    id, name, part, sweep, place = "F6-members", "bandit_members", "bandit", "bandit", (6.0, 13)
    title = "Bandits: how many members are enough"
    about = "Thompson sampling with ensemble-bp of M fixed members, against the infinite ensemble on the same problems."
    paper = {"members": NOT_STATED, "horizon T": NOT_STATED}
    full_size = "The paper's ensembles are infinite."
    # Large ensembles are dear, and this many problems show what there is to see.
    presets = {
        name: dataclasses.replace(size, num_problems=4000 if name == "quick" else 10_000)
        for name, size in runs.PRESETS.items()
    }

    def command(self, preset: str, output: str) -> str:
        """Returns the command that makes all the bandit figures."""
        return f"tf-ensembles bandit --preset {preset} --results {output}/bandit"

    def stages(self, size: Settings, context: Mapping[str, Any]) -> list[Stage]:
        """Returns finite ensembles of each size, and the infinite one; none where no sizes are asked for."""
        return [lambda rows: runs.member_runs(size)] if size.members else []

    def collect(self, size: Settings, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns final regret by the number of members, `inf` for infinitely many."""
        import pandas as pd

        planned, horizon = runs.member_runs(size), min(size.horizon, size.members_horizon)
        infinite = base.regret(base.rows_of(rows, planned, BP, {}), [horizon])[2][0]
        table = []
        for members in (*size.members, None):
            mean, error, parts = base.regret(base.rows_of(rows, planned, BP, {}, members), [horizon])
            gap = stats.paired_difference(parts[0], infinite)
            table.append(
                {
                    "members": members or math.inf,
                    "horizon": horizon,
                    "regret": mean[0],
                    "standard_error": error[0],
                    "minus_infinite": gap.estimate,
                    "minus_infinite_low": gap.low,
                    "minus_infinite_high": gap.high,
                    "problems": size.num_problems,
                }
            )
        return {"members": pd.DataFrame(table)}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns regret by the number of members, and its difference from the infinite ensemble's."""
        columns = ("members", "horizon", "regret", "standard_error", "minus_infinite")
        table = tables.read("bandit/members.csv", columns, infinite="members")
        if "minus_infinite_95" in table:  # As it was kept before: the half of the interval's width.
            ends = {"low": table.minus_infinite - table.minus_infinite_95}
            ends["high"] = table.minus_infinite + table.minus_infinite_95
            table = table.assign(**{f"minus_infinite_{end}": values for end, values in ends.items()})
        table = table.assign(members=table.members.astype(float).replace(0.0, math.inf))  # It was 0 before.
        return table if "problems" in table else table.assign(problems=0)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns regret by M, and the difference on the same problems."""
        finite, infinite = table[table.members < math.inf], table[table.members == math.inf].iloc[0]
        rows = finite.to_dict("records")
        points = [
            panels.point(row["members"], stats.normal_interval(row["regret"], row["standard_error"], row["problems"]))
            for row in rows
        ]
        gaps = [
            panels.Point(row["members"], row["minus_infinite"], row["minus_infinite_low"], row["minus_infinite_high"])
            for row in rows
            if abs(row["minus_infinite"]) < 0.25 * infinite.regret
        ]
        options: dict[str, Any] = {"kind": "lines", "x_label": "members M", "log_x": True}
        reference: dict[str, Any] = {"reference": float(infinite.regret), "reference_name": "infinitely many members"}
        regret = panels.Panel(
            "regret", "regret", (panels.Series(BP, tuple(points)),), log_y=True, **options, **reference
        )
        title = "difference on the same problems, where it is small"
        return [
            regret,
            panels.Panel(
                title, "minus the infinite one's", (panels.Series(BP, tuple(gaps)),), reference=0.0, **options
            ),
        ]

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns the sizes and the horizon."""
        table = tables.of(self)
        return {"members": listing(table[table.members < math.inf].members), "horizon T": listing(table.horizon)}

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        return (
            f"ensemble-bp after {self.used(tables)['horizon T']} steps. Intervals: 95%, over problems or their parts."
        )


FIGURE = _Figure()
