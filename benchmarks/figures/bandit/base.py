"""What figures 6 and 12 share: the regret of agents that are tuned for a horizon, by part of the problems and step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import base, panels
from tf_ensembles.benchmarks.figures.bandit import runs
from tf_ensembles.benchmarks.figures.bandit.runs import Settings
from tf_ensembles.benchmarks.figures.base import NOT_STATED, Rows, Stage
from tf_ensembles.benchmarks.figures.panels import TextTable
from tf_ensembles.benchmarks.figures.tables import Tables, finite
from tf_ensembles.benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run

N, P, WEIGHTED, BP = "ensemble-n", "ensemble-p", "ensemble-p-weighted", "ensemble-bp"
# Regret is kept at every mark for these horizons, and the longest; for the others at their end only.
CURVES = (1000,)
KEPT, TUNED = "regret_runs", "regret"
_CURVE_POINTS = 20  # about: enough for a curve, and a table of a size to keep


class BanditFigure(base.Figure):
    """Regret over time on the heteroscedastic linear bandit; a seed of its table is a part of the problems."""

    part, sweep = "bandit", "bandit"
    scores = {"regret": "regret"}
    by = ("horizon", ", T = {:,}")
    agents: ClassVar[Sequence[str]]
    paper: ClassVar[Mapping[str, str]] = {"problems J": NOT_STATED, "horizon T": NOT_STATED}
    full_size = "The paper states neither the number of problems nor the horizon; verdicts depend on the horizon."
    presets: ClassVar[Mapping[str, Settings]] = runs.PRESETS

    def command(self, preset: str, output: str) -> str:
        """Returns the command that makes all the bandit figures."""
        return f"tf-ensembles bandit --preset {preset} --results {output}/bandit"

    def stages(self, size: Settings, context: Mapping[str, Any]) -> list[Stage]:
        """Returns the tuning on problems of its own, then the tuned agents on the reported problems."""
        return [lambda rows: runs.tuning_runs(size), lambda rows: runs.report_runs(size, rows)]

    def collect(self, size: Settings, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns regret by part and step, and a summary by horizon with the tuned parameters."""
        return {KEPT: _regret_runs(size, rows), TUNED: _regret_summary(size, rows)}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns regret by horizon (the setting), step and part of the problems (the seed)."""
        table = tables.read(f"bandit/{KEPT}.csv", ("horizon", "agent", "part", "step", "problems", "regret"))
        table = finite(table, ("regret",))
        # Parts of different sizes are different problems: their names must not agree between two folders.
        parts = [f"{int(part):06d} of {int(count)}" for part, count in zip(table.part, table.problems, strict=True)]
        return table.assign(setting=[f"T{int(horizon)}" for horizon in table.horizon], seed=parts)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns regret over time, regret by horizon, and how far agents are above ensemble-bp."""
        made = []
        for horizon in sorted(set(table.loc[table.step < table.horizon, "horizon"])):
            rows = table[table.horizon == horizon]
            for agents, without in ((self.agents, ""), (self.agents[1:], f", without {self.agents[0]}")):
                lines = panels.mean_lines(rows, "regret", agents, "step")
                title = f"tuned for {horizon:,} steps{without}"
                made.append(panels.Panel(title, "cumulative regret", lines, kind="lines", x_label="step", band=True))
        ends = table[table.step == table.horizon]
        options: dict[str, Any] = {"kind": "lines", "x_label": "T", "log_x": True}
        lines = panels.mean_lines(ends, "regret", self.agents, "horizon")
        title = "regret after T steps, each agent tuned for T"
        made.append(panels.Panel(title, "cumulative regret", lines, log_y=True, **options))
        others = [agent for agent in self.agents if agent not in (N, BP)]
        behind = tuple(panels.Series(agent, tuple(_above(ends, agent))) for agent in others)
        made.append(
            panels.Panel(
                "regret above ensemble-bp's, as a share of it",
                "below 0: less than bp",
                behind,
                reference=0.0,
                reference_name=BP,
                **options,
            )
        )
        return made

    def differences(self, table: pd.DataFrame) -> list[tuple[str, str, stats.Interval]]:
        """Returns the relative difference of each pair at each horizon."""
        return super().differences(table[table.step == table.horizon])

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns the number of problems and the horizon."""
        table = tables.of(self)
        last = table[(table.horizon == table.horizon.max()) & (table.step == table.horizon)]
        one = last[last.agent == last.agent.iloc[0]]
        return {"problems J": listing([one.problems.sum()]), "horizon T": listing([table.horizon.max()])}

    def chosen(self, tables: Tables) -> TextTable | None:
        """Returns the parameters that were tuned for each horizon."""
        columns = ("horizon", "agent", "regularizer", "prior_scale")
        rows = []
        for row in tables.read(f"bandit/{TUNED}.csv", columns).to_dict("records"):
            numbers = [row["regularizer"], row["prior_scale"]]
            shown = ["–" if number != number else f"{number:g}" for number in numbers]
            rows.append([f"{row['horizon']:,}", str(row["agent"]), *shown])
        return ["horizon", "agent", "regularizer", "prior scale"], rows

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture."""
        return (
            f"{self.used(tables)['problems J']} problems, d = 2, 4 actions; agents without bootstrap tuned on other "
            "problems. Intervals: 95%, over parts of the problems, the same problems for all agents on the right."
        )


def _above(ends: pd.DataFrame, agent: str) -> Iterator[panels.Point]:
    for horizon, rows in ends.groupby("horizon"):
        gap = stats.relative_difference(*stats.paired(rows, "regret", agent, BP))
        yield panels.point(float(str(horizon)), gap)


def regret(rows: Rows, marks: Sequence[int]) -> tuple[Any, Any, Any]:
    """Returns mean regret, its standard error over problems, and the means by part `[marks, parts]`."""
    rows = sorted(rows, key=lambda row: row["first_problem"])
    sizes = np.array([row["problems"] for row in rows], float)
    parts = np.array([[row[f"regret_{mark}"] for row in rows] for mark in marks])
    squares = np.array([[row[f"square_{mark}"] for row in rows] for mark in marks])
    mean, square = parts @ sizes / sizes.sum(), squares @ sizes / sizes.sum()
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0) / (sizes.sum() - 1.0)), parts


def rows_of(
    rows: Rows, planned: Sequence[Run], agent: str, values: dict[str, float], members: int | None = None
) -> Rows:
    """Returns the rows of one agent among the planned runs."""
    wanted, hashes = (agent, values, members), {run.hash for run in planned}
    return [
        row for row in rows if row["hash"] in hashes and (row["agent"], row["parameters"], row["members"]) == wanted
    ]


def _tuned(size: Settings, rows: Rows) -> Iterator[tuple[int, dict[str, tuple[dict[str, float], Rows]]]]:
    """Each horizon with, by agent, the parameters tuned for it and the rows of the reported runs with them."""
    planned = runs.report_runs(size, rows)
    for horizon in size.horizons:
        tuned = {BP: {}, **runs.best_parameters(size, rows, horizon)}
        yield horizon, {agent: (values, rows_of(rows, planned, agent, values)) for agent, values in tuned.items()}


def _regret_runs(size: Settings, rows: Rows) -> pd.DataFrame:
    """The mean regret of each part of the problems; the same part of two agents is the same problems and noise."""
    import pandas as pd

    table = []
    for horizon, chosen in _tuned(size, rows):
        steps = [horizon]
        if horizon in (*CURVES, size.horizon):
            marks = [mark for mark in runs.make_marks(size.horizon, size.horizons) if mark <= horizon]
            steps = sorted({*marks[:: -max(1, len(marks) // _CURVE_POINTS)], horizon})
        for agent, (_, own) in chosen.items():
            for row in sorted(own, key=lambda row: row["first_problem"]):
                about = {"agent": agent, "horizon": horizon, "part": row["first_problem"] // size.part}
                table += [
                    {**about, "step": step, "regret": row[f"regret_{step}"], "problems": row["problems"]}
                    for step in steps
                ]
    return pd.DataFrame(table)


def _regret_summary(size: Settings, rows: Rows) -> pd.DataFrame:
    """Regret by horizon and agent, each tuned for that horizon, and the paired difference to ensemble-bp."""
    import pandas as pd

    table = []
    for horizon, chosen in _tuned(size, rows):
        bp = regret(chosen[BP][1], [horizon])[2][0]
        for agent, (values, own) in chosen.items():
            mean, error, parts = regret(own, [horizon])
            gap = stats.paired_difference(parts[0], bp)
            table.append(
                {
                    "horizon": horizon,
                    "agent": agent,
                    **{name: values.get(name) for name in ("regularizer", "prior_scale")},
                    "regret": mean[0],
                    "standard_error": error[0],
                    "minus_bp": gap.estimate,
                    "minus_bp_low": gap.low,
                    "minus_bp_high": gap.high,
                    "verdict": "" if agent == BP else stats.direction(gap),
                }
            )
    return pd.DataFrame(table)
