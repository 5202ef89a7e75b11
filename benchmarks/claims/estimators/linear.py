"""The estimators of statements about Bayesian linear regression."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims.base import Effect, Estimator, Region
from tf_ensembles.benchmarks.claims.estimators.agents import named, table_of
from tf_ensembles.benchmarks.claims.estimators.snr import more_than_chance
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import NoDataError

_FIGURES = {"exact": "P", "deterministic": "P", "bound": "T1", "conditioning": "T1", "homoscedastic": "B4"}
_FIGURES |= {"joint": "A1", "members": "L-members"}


@dataclasses.dataclass(frozen=True)
class Linear(Estimator):
    """The statements about Bayesian linear regression, from the tables of `tf-ensembles linear`."""

    kind: Literal["exact", "deterministic", "bound", "conditioning", "homoscedastic", "joint", "members"]
    region: Region

    @property
    def figure(self) -> str:  # type: ignore[override]
        """The figure of the statement."""
        return _FIGURES[self.kind]

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of the kind."""
        return list(getattr(self, f"_{self.kind}")(tables))

    def _check(self, tables: Tables, start: str, label: str) -> list[Effect]:
        table = table_of(tables, self.figure)
        rows = table[table.check.astype(str).str.startswith(start)]
        if rows.empty:
            raise NoDataError(f"no row of {start}")
        value = float(rows.value.iloc[0])
        # The largest deviation over all problems: exact arithmetic, so there is no sampling error.
        return [Effect(label, stats.exact(value, int(rows.problems.iloc[0])), self.region, "nats")]

    def _exact(self, tables: Tables) -> list[Effect]:
        return self._check(tables, "proposition 1", "largest |KL| of ensemble-bp from the posterior")

    def _deterministic(self, tables: Tables) -> list[Effect]:
        (spread,) = self._check(tables, "proposition 2", "largest distance between members of ensemble-n")
        return [dataclasses.replace(spread, unit="distance")]

    def _bound(self, tables: Tables) -> list[Effect]:
        sweep = table_of(tables, self.figure)
        best = sweep[(sweep.agent == "ensemble-p-weighted") & np.isfinite(sweep.kl)]
        if best.empty:
            raise NoDataError("no rows of ensemble-p-weighted")
        above = (best.kl - best.lower_bound).to_numpy()
        error = np.hypot(best.kl_error.to_numpy(), best.lower_bound_error.to_numpy())
        mean, mean_error = float(above.mean()), float(np.sqrt((error**2).sum()) / len(best))
        violations = float((above < -more_than_chance(len(best)) * error).sum())
        return [
            Effect(
                "KL above the bound, mean over settings",
                stats.normal_interval(mean, mean_error, len(best)),
                self.region,
                "nats",
            ),
            Effect(
                "settings below the bound by more than chance",
                stats.exact(violations, len(best)),
                Region(high=0.5),
                "settings",
            ),
        ]

    def _conditioning(self, tables: Tables) -> list[Effect]:
        keys = ["dim", "num_data", "heteroscedasticity"]
        sweep = table_of(tables, self.figure)
        best = sweep[sweep.agent == "ensemble-p-weighted"]
        wide = best.pivot_table(index=keys, columns="condition", values="kl").dropna()
        if wide.empty or wide.shape[1] < 2:
            raise NoDataError("two condition numbers are needed")
        low, high = wide.columns[0], wide.columns[-1]
        gaps = (wide[high] - wide[low]).to_numpy()
        label = f"KL of the best unbiased ensemble-p: condition {high:g} minus {low:g}"
        return [Effect(label, stats.mean_interval(gaps), self.region, "nats", stats.effect_size(gaps))]

    def _homoscedastic(self, tables: Tables) -> list[Effect]:
        table = table_of(tables, self.figure)
        rows = table[table.case == "homoscedastic"].sort_values("num_data")
        if rows.empty:
            raise NoDataError("no rows of constant noise")
        last = rows.iloc[-1]
        count = int(last["problems"])
        label = f"KL of ensemble-p from the posterior, {named('num_data')} = {last['num_data']:g}"
        return [Effect(label, stats.normal_interval(last["measured"], last["error"], count), self.region, "nats")]

    def _joint(self, tables: Tables) -> list[Effect]:
        table = table_of(tables, self.figure)
        rows = table[np.isfinite(table.coefficient_kl) & (table.coefficient_kl > 1e-6)]
        effects = []
        for row in rows[rows.tau == rows.tau.max()].to_dict("records"):
            limit, value = float(row["coefficient_kl"]), float(row["kl"])
            error, count = float(row["kl_error"]), int(row["problems"])
            interval = stats.normal_interval(value / limit, error / limit, count).plus(-1.0)
            label = f"KL of {row['tau']:,} joint predictions of {row['agent']} against that of its coefficients"
            effects.append(Effect(label, interval, self.region))
        if not effects:
            raise NoDataError("no rows of joint predictions")
        return effects

    def _members(self, tables: Tables) -> list[Effect]:
        table = table_of(tables, self.figure)
        effects = []
        for agent, rows in table.groupby("agent", sort=False):
            last = rows.sort_values("members").iloc[-1]
            interval = stats.normal_interval(last.kl, last.kl_error, last.problems).plus(-float(last.infinite_ensemble))
            label = f"KL of {agent} with {int(last.members):,} members above that of infinitely many"
            effects.append(Effect(label, interval, self.region, "nats"))
        return effects
