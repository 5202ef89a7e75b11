"""Appendix B.4: where bootstrapping is not needed.

The claims: with constant noise, isotropic inputs and many data a tuned ensemble-p nearly matches the posterior. The
paper's remark that so it does at a high signal-to-noise ratio is taken apart: by the trend of the KL of the best
ensemble-p at few and many data, by the spread it misses with fewer data than dimensions (ensemble-n misses all), and by
theorem 1's bound where inputs are anisotropic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import stats
from benchmarks.figures import panels
from benchmarks.figures.base import Rows
from benchmarks.figures.linear import base, runs
from benchmarks.figures.linear.runs import N, P
from benchmarks.figures.tables import Tables
from trainers.sweeps import kinds
from trainers.sweeps import runs as sweep_runs

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("linear-snr", "benchmarks.figures.linear.special_cases:high_snr")
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
        """Returns both cases."""
        return runs.special_runs(size) + snr_runs(size)

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
        """Returns what stands below the picture."""
        return (
            f"d = {DIM}. Tuned p: the prior scale is best for the measure shown, at each point; untuned: that of "
            "ensemble-bp. Spread that is missed: squared Wasserstein distance over the posterior's variance, 1 for a "
            f"point. With T < d the KL grows as (d - T)/2 ln SNR. {self.problems(tables)}"
        )


def _line(rows: pd.DataFrame, name: str, column: str = "snr") -> panels.Series:
    rows = rows.sort_values(column)
    counts = rows.problems.tolist() if "problems" in rows else [0] * len(rows)
    values = zip(rows[column], rows.measured, rows.error, counts, strict=True)
    return panels.Series(name, tuple(panels.point(x, stats.normal_interval(y, e, n)) for x, y, e, n in values))


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
            made.append(sweep_runs.make_run(f"{where}/snr{snr:g}/p{size.problems}", KIND, config, batch=where))
    return made


def high_snr(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Computes an agent's measure at all signal-to-noise ratios of a setting, on the same inputs.

    The slope is the least-squares slope along log10(SNR) of each problem, then averaged; its error is over problems.
    """
    import numpy as np

    from tf_ensembles import linear
    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

    values, known = [], []
    for config in configs:
        asked = (config["dim"], config["num_data"], config["condition"])
        setting = linear_problems.make_setting(*asked, snr=config["snr"], seed=config["seed"])
        gamma = linear_problems.exact_gamma(setting)
        if config["quantity"] == KL:
            values.append(theory.unbiased_kls(setting, gamma, config["problems"], config["seed"]))
            bound = float(linear.lower_bound(gamma, setting.num_data))
            limit = theory.high_snr_kl(gamma, setting.num_data)
            known.append({"predicted": limit if math.isfinite(limit) else None, "lower_bound": bound})
        else:
            values.append(_missed(setting, config))
            known.append({})
    along = np.log10([config["snr"] for config in configs])
    weights = (along - along.mean()) / np.sum((along - along.mean()) ** 2) if len(configs) > 1 else np.full(1, np.nan)
    slopes = weights @ np.stack(values)
    slope = {"slope": float(slopes.mean()), "slope_error": float(theory.standard_error(slopes))}
    return [
        {"measured": float(np.mean(one)), "error": float(theory.standard_error(one)), **about, **slope}
        for one, about in zip(values, known, strict=True)
    ]


def _missed(setting: Any, config: Mapping[str, Any]) -> Any:
    """Returns the share of the posterior's spread that an agent misses, `[problems]`."""
    import numpy as np

    from tf_ensembles.linear import problems as linear_problems
    from tf_ensembles.linear import theory

    agent = N if config["agent"] == N else runs.WEIGHTED
    variance = None
    if config["agent"] == P:  # Tuned on problems that are not measured.
        pilot = next(linear_problems.problem_chunks(setting, config["problems"], config["seed"] + runs.PILOT_SEED))
        variance = theory.least_missed_prior_variance(pilot.posterior(), pilot.distribution(agent, 1.0))
    chunks = linear_problems.problem_chunks(setting, config["problems"], config["seed"])
    found = [theory.missed_spread(one.posterior(), one.distribution(agent, variance)) for one in chunks]
    return np.concatenate(found)


FIGURE = _Figure()
