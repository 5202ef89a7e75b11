"""Appendix B.4: where bootstrapping is not needed.

The claims: with constant noise, isotropic inputs and many data a tuned ensemble-p nearly matches the posterior. The
paper's remark that so it does at a high signal-to-noise ratio is taken apart: by the trend of the KL of the best
ensemble-p at few and many data, by the spread it misses with fewer data than dimensions (ensemble-n misses all), and by
theorem 1's bound where inputs are anisotropic.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.base import Rows
from tf_ensembles.benchmarks.figures.linear import base, runs
from tf_ensembles.benchmarks.figures.linear.runs import N, P
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.trainers.sweeps import kinds
from tf_ensembles.trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

CONSTANT = kinds.register("linear-special", "tf_ensembles.benchmarks.figures.linear.compute:special_case")
HIGH = kinds.register("linear-snr", "tf_ensembles.benchmarks.figures.linear.compute:high_snr")
DIM = 5
RATIOS = (0.01, 0.1, 1.0, 10.0, 100.0, 1e4, 1e6)  # signal to noise
ISOTROPIC = (3, 20, 200)  # T: fewer than dimensions, few, many
ANISOTROPIC = (1000, 100.0)  # T and the condition number of cov(x)
UNTUNED = f"{P}, untuned"  # ensemble-bp without its bootstrap, as the remark has it
KL, MISSED = "kl", "missed spread"


class _Figure(base.LinearFigure):
    id, name, place, kept = "B4", "linear_special", (4.0, 5), "appendix_b4"
    title = "Appendix B.4: where bootstrapping is not strictly necessary"
    about = (
        "A tuned ensemble-p with constant noise and many data, and as the signal-to-noise ratio grows: with few data, "
        f"with fewer than dimensions, and with anisotropic inputs; d = {DIM}."
    )
    columns = (
        *("case", "quantity", "agent", "dim", "num_data", "condition", "snr", "problems", "measured", "error"),
        *("predicted", "lower_bound", "slope", "slope_error"),
    )

    def runs_of(self, size: runs.Size) -> list[sweep_runs.Run]:
        return constant_noise_runs(size) + snr_runs(size)

    def collect(self, size: runs.Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns a row per run; the first case is that of ensemble-p and isotropic inputs."""
        return super().collect(
            size, [{**dict.fromkeys(self.columns), "agent": P, "condition": 1.0} | row for row in rows]
        )

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the first case, then the second: the KL by T, the spread that is missed, anisotropic inputs."""
        first, high = table[table.case == "homoscedastic"], table[table.case == "high snr"]
        ratio: dict[str, Any] = {"kind": "lines", "x_label": "signal-to-noise ratio", "log_x": True}
        made = [
            panels.Panel(
                "constant noise, SNR = 1: the KL of tuned p",
                "KL in nats",
                (_line(first, P, "num_data"), base.known_line(first, "num_data", "predicted", "predicted")),
                **ratio | {"x_label": "T"},
                log_y=True,
            )
        ]
        even = high[high.condition == 1.0]
        lines = []
        for num_data, rows in even[even.quantity == KL].groupby("num_data"):
            lines.append(_line(rows, f"p, T = {num_data}"))
            if rows.predicted.notna().all() and rows.predicted.map(math.isfinite).all():
                lines.append(
                    base.known_line(rows, "snr", "predicted", f"limit of T = {num_data}: {rows.predicted.iloc[0]:.3f}")
                )
        made.append(
            panels.Panel(f"isotropic, d = {DIM}: the KL of tuned p", "KL in nats", tuple(lines), **ratio, log_y=True)
        )
        missed = even[even.quantity == MISSED]
        for num_data, rows in missed.groupby("num_data"):
            lines = [_line(rows[rows.agent == agent], agent) for agent in (N, P, UNTUNED) if agent in set(rows.agent)]
            few = " < d" if int(str(num_data)) < DIM else ""
            title = f"isotropic, T = {num_data}{few}: spread that is missed"
            made.append(panels.Panel(title, "share of the posterior's", tuple(lines), **ratio, from_zero=True))
        uneven = high[(high.condition != 1.0) & (high.quantity == KL)]
        for condition, rows in uneven.groupby("condition"):
            bound = base.known_line(rows, "snr", "lower_bound", "lower bound of theorem 1")
            title = f"cov(x) of condition {condition:g}, T = {rows.num_data.iloc[0]:,}: tuned p"
            made.append(panels.Panel(title, "KL in nats", (_line(rows, P), bound), **ratio, from_zero=True))
        return made

    def caption(self, tables: Tables) -> str:
        return (
            f"d = {DIM}. Tuned p: the prior scale is best for the measure shown, at each point; untuned: that of "
            "ensemble-bp. Spread that is missed: squared Wasserstein distance over the posterior's variance, 1 for a "
            f"point. With T < d the KL grows as (d - T)/2 ln SNR. {self.problems(tables)}"
        )


def _line(rows: pd.DataFrame, name: str, column: str = "snr") -> panels.Series:
    return base.mean_series(rows, column, name, "measured", "error")


def constant_noise_runs(size: runs.Size) -> list[sweep_runs.Run]:
    """Returns the first case of appendix B.4: constant noise, by T."""
    made = []
    for num_data in (10, 30, 100, 300, 1000):
        config = {"case": "homoscedastic", "quantity": "kl", "dim": 5, "num_data": num_data, "snr": 1.0}
        name = f"linear/special/homoscedastic/kl/t{num_data}-snr1"
        made.append(sweep_runs.make_run(name, CONSTANT, {**config, "problems": size.problems, "seed": size.seed}))
    return made


def snr_runs(size: runs.Size) -> list[sweep_runs.Run]:
    """Returns the second case: the KL by T and with anisotropic inputs, the missed spread by T and agent."""
    asked = [(KL, P, num_data, 1.0) for num_data in ISOTROPIC] + [(KL, P, *ANISOTROPIC)]
    asked += [(MISSED, agent, num_data, 1.0) for num_data in ISOTROPIC for agent in (N, UNTUNED, P)]
    made = []
    for quantity, agent, num_data, condition in asked:
        where = f"linear/snr/{quantity}/{agent}/t{num_data}-c{condition:g}".replace(", ", "-").replace(" ", "-")
        for snr in RATIOS:
            config = {"case": "high snr", "quantity": quantity, "agent": agent, "dim": DIM, "num_data": num_data}
            config |= {"condition": condition, "snr": snr, "problems": size.problems, "seed": size.seed}
            # All ratios on the same inputs, so that the slope is that of each problem.
            made.append(sweep_runs.make_run(f"{where}/snr{snr:g}/p{size.problems}", HIGH, config, batch=where))
    return made


FIGURE = _Figure()
