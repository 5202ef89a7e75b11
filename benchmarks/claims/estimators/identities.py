"""The estimators of what holds exactly in section 4 and appendix A: identities, checked by a second computation."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Literal

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims.base import Effect, Estimator, Region
from tf_ensembles.benchmarks.claims.estimators.agents import table_of
from tf_ensembles.benchmarks.claims.estimators.snr import more_than_chance
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import NoDataError

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-9
_NONE = Region(high=0.5)  # of checks or pairs
_BP = "ensemble-bp"


@dataclasses.dataclass(frozen=True)
class Identity(Estimator):
    """An exact statement, from the table of `linear_identities`.

    - bound: theorem 1's bound, not clipped, over random spectra.
    - unbiased: how far the members' mean is from the posterior's, with the choices that the proof asks for and others.
    - information: `KL^tau` from drawn outcomes against averaged `KL^tau` plus the information gain.
    - entropy: differences of cross-entropies from drawn outcomes against differences of averaged `KL^tau`.

    Where outcomes are drawn, `region` is that of the relative difference at the most labels; besides, no check may be
    off by more than chance.
    """

    figure = "L-identities"

    kind: Literal["bound", "unbiased", "information", "entropy"]
    region: Region

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of the kind."""
        return list(getattr(self, f"_{self.kind}")(table_of(tables, self.figure)))

    def _bound(self, table: pd.DataFrame) -> list[Effect]:
        rows = _rows(table, "smallest bound")
        equal, spread = rows[rows["at"] == 0.0], rows[rows["at"] > 0.0]
        if equal.empty or spread.empty:
            raise NoDataError("bounds of equal and of different eigenvalues are needed")
        count = int(rows.problems.min())
        return [
            Effect("smallest bound over random spectra", _exact(spread.measured.min(), count), self.region, "nats"),
            Effect("largest |bound| of equal eigenvalues", _exact(equal.measured.max(), count), _ZERO, "nats"),
        ]

    def _unbiased(self, table: pd.DataFrame) -> list[Effect]:
        effects = []
        for check, label, region in (
            ("largest bias of c/sigma^2, c/s0^2", "largest bias with weights c/σ² and regularizer c/σ₀²", _ZERO),
            ("smallest bias of other choices", "smallest bias with other weights or another regularizer", self.region),
            ("smallest equation of other choices", "how clearly no other choice solves the equations", self.region),
        ):
            rows = _rows(table, check)
            value = (max if region is _ZERO else min)(rows.measured)
            effects.append(Effect(label, _exact(value, int(rows.problems.min())), region, "distance"))
        return effects

    def _information(self, table: pd.DataFrame) -> list[Effect]:
        rows = _rows(table, "kl from the environment")
        return [*self._relative(rows, "KL from the environment of {}"), _violations(rows)]

    def _entropy(self, table: pd.DataFrame) -> list[Effect]:
        rows = _rows(table, "cross-entropy above ensemble-bp's")
        differing = pairs = 0
        for _, group in rows.groupby("at"):
            # Both are differences from ensemble-bp, which is 0 in both.
            values = {_BP: (0.0, 0.0)} | {
                str(row["agent"]): (float(row["measured"]), float(row["predicted"])) for row in group.to_dict("records")
            }
            for one, other in itertools.combinations(values, 2):
                gaps = [values[one][index] - values[other][index] for index in (0, 1)]
                pairs, differing = pairs + 1, differing + (gaps[0] * gaps[1] <= 0.0)
        ranks = f"pairs of agents that cross-entropy and KL rank differently, of {pairs}"
        return [
            *self._relative(rows, "cross-entropy of {} above that of ensemble-bp"),
            Effect(ranks, _exact(differing, int(rows.problems.min())), _NONE, "settings"),
            _violations(rows),
        ]

    def _relative(self, rows: pd.DataFrame, label: str) -> list[Effect]:
        last = rows[rows["at"] == rows["at"].max()]
        effects = []
        for row in last.to_dict("records"):
            value, exact = float(row["measured"]), float(row["predicted"])
            interval = stats.normal_interval(value / exact - 1.0, row["error"] / exact, row["problems"])
            name = f"{label.format(row['agent'])}, τ = {row['at']:g}, against the exact {exact:.3f} nats"
            effects.append(Effect(name, interval, self.region))
        return effects


_ZERO = Region(high=ROUNDING)


def _rows(table: pd.DataFrame, check: str) -> pd.DataFrame:
    rows = table[table.check == check]
    if rows.empty:
        raise NoDataError(f"no row of {check}")
    return rows


def _exact(value: float, count: int) -> stats.Interval:
    return stats.exact(float(value), count)


def _violations(rows: pd.DataFrame) -> Effect:
    """Counts the checks that differ from the exact value by more than chance, both ways."""
    off = (rows.measured - rows.predicted).abs() > more_than_chance(len(rows)) * rows.error
    label = f"checks off by more than chance, of {len(rows)}"
    return Effect(label, _exact(float(off.sum()), int(rows.problems.min())), _NONE, "settings")
