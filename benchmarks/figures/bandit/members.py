"""Finite ensembles in the bandit: regret against the number of members. The paper's ensembles are infinite."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import base as figures_base
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.bandit import base, runs
from tf_ensembles.benchmarks.figures.bandit.base import BP
from tf_ensembles.benchmarks.figures.bandit.runs import Settings
from tf_ensembles.benchmarks.figures.base import NOT_STATED, Rows, Stage
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd


_COLUMNS = (
    *("members", "horizon", "regret", "standard_error"),
    *("minus_infinite", "minus_infinite_low", "minus_infinite_high", "problems"),
)


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
            behind = (gap.estimate, gap.low, gap.high)
            table.append((members or math.inf, horizon, mean[0], error[0], *behind, size.num_problems))
        return {"members": pd.DataFrame(table, columns=list(_COLUMNS))}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns regret by the number of members, and its difference from the infinite ensemble's."""
        return tables.read("bandit/members.csv", _COLUMNS, infinite="members")

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
        regret, behind = (panels.Series(BP, tuple(drawn)) for drawn in (points, gaps))
        options: dict[str, Any] = {"kind": "lines", "x_label": "members M", "log_x": True}
        reference: dict[str, Any] = {"reference": float(infinite.regret), "reference_name": "infinitely many members"}
        title = "difference on the same problems, where it is small"
        return [
            panels.Panel("regret", "regret", (regret,), log_y=True, **options, **reference),
            panels.Panel(title, "minus the infinite one's", (behind,), reference=0.0, **options),
        ]

    def used(self, tables: Tables) -> Mapping[str, str]:
        table = tables.of(self)
        return {"members": listing(table[table.members < math.inf].members), "horizon T": listing(table.horizon)}

    def caption(self, tables: Tables) -> str:
        return (
            f"ensemble-bp after {self.used(tables)['horizon T']} steps. Intervals: 95%, over problems or their parts."
        )


FIGURE = _Figure()
