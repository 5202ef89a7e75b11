"""Estimators that compare agents, or ways to train them: from tables of figures to effects, through `stats`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from tf_ensembles.benchmarks import stats, style
from tf_ensembles.benchmarks.claims.base import Effect, Estimator, Region, Row, Wording, combine
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import Floats, NoDataError

if TYPE_CHECKING:
    import pandas as pd


def table_of(tables: Tables, figure: str) -> pd.DataFrame:
    """Returns the table of a figure by its id."""
    return tables.of(registry.figure(figure))


End = Literal["smallest", "largest"]


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two agents, where the relative difference of the first from the second should lie, and the paper's wording."""

    first: str
    second: str
    region: Region
    wording: Wording = ""

    def effect(self, label: str, one: Floats, other: Floats) -> Effect:
        """Returns the effect from both agents' scores by seed."""
        interval, size = stats.relative_difference(one, other), stats.effect_size(one - other)
        return Effect(label, interval, self.region, size=size, wording=self.wording, of_scores=True)


@dataclasses.dataclass(frozen=True)
class Agents(Estimator):
    """Compares agents by scores of a figure, averaged over settings, paired by seed.

    `where` keeps the rows where a column has a value, `most` those where it is no larger than a value, and `at` those
    where it is smallest or largest, such as the largest ensembles only. With `each`, pairs are compared for every value
    of a column by itself. `apart` is an agent whose networks must be its own: where they are another's members, that is
    better by Jensen's inequality, whatever the data.
    """

    figure: str
    scores: tuple[str, ...]
    pairs: tuple[Pair, ...]
    where: Mapping[str, object] = dataclasses.field(default_factory=dict)
    most: Mapping[str, float] = dataclasses.field(default_factory=dict)
    at: Mapping[str, End] = dataclasses.field(default_factory=dict)
    each: str = ""
    apart: str = ""

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per score and pair, for each value of `each`."""
        table = table_of(tables, self.figure)
        if self.apart and not own_members(table, self.apart):
            raise NoDataError(f"{self.apart} is not trained by itself here: it is the mean of an ensemble's members")
        place = ""
        for column, wanted in self.where.items():
            table, place = table[table[column] == wanted], f"{place}, {named(column)} {wanted}"
        for column, limit in self.most.items():
            table, place = table[table[column] <= limit], f"{place}, {named(column)} up to {limit:,g}"
        for column, end in self.at.items():
            values = table[table.agent.isin(agents_of(self.pairs))]
            value = (min if end == "smallest" else max)(values[column])
            table, place = table[table[column] == value], f"{place}, {named(column)} = {value:g}"
        if not self.each:
            return self._effects(table, place)
        effects = []
        for value, rows in table.groupby(self.each):
            value = value if isinstance(value, str) else style.number(float(value))
            effects += self._effects(rows, f"{place}, {named(self.each)} = {value}")
        return effects

    def needs(self) -> list[Row]:
        """Returns the agents, each where the claim looks at it."""
        return [{**self.where, "agent": agent} for agent in agents_of(self.pairs)]

    def _effects(self, table: pd.DataFrame, place: str) -> list[Effect]:
        effects = []
        for score in self.scores:
            for pair in self.pairs:
                one, other = stats.paired(table, score, pair.first, pair.second)
                label = f"{named(score)}: {pair.first} against {pair.second}{place}"
                effects.append(pair.effect(label, one, other))
        return effects


def agents_of(pairs: Sequence[Pair]) -> list[str]:
    """Returns the agents that are compared."""
    return [agent for pair in pairs for agent in (pair.first, pair.second)]


def own_members(table: pd.DataFrame, agent: str) -> bool:
    """Whether an agent's networks are no members of others in a table that says of each ensemble where it begins."""
    if "first_member" not in table:
        return False
    mine = table.agent == agent
    return not set(table.first_member[mine]) & set(table.first_member[~mine])


@dataclasses.dataclass(frozen=True)
class AllOf(Estimator):
    """Several estimators of a figure whose effects make one claim."""

    estimators: tuple[Estimator, ...]

    @property
    def figure(self) -> str:  # type: ignore[override]
        """The figure that all of them read."""
        return self.estimators[0].figure

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of all."""
        return [effect for estimator in self.estimators for effect in estimator(tables)]

    def needs(self) -> list[Row]:
        """Returns what any of them needs."""
        return [need for estimator in self.estimators for need in estimator.needs()]


@dataclasses.dataclass(frozen=True)
class Treatments(Estimator):
    """Compares two ways to train the same agent, which a column tells apart, for each of some agents."""

    figure: str
    score: str
    agents: tuple[str, ...]
    column: str
    first: str
    second: str
    region: Region

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per agent: the relative difference of the first way from the second."""
        table = table_of(tables, self.figure)
        effects = []
        for agent in self.agents:
            rows = table[table.agent == agent]
            values = stats.paired(rows.assign(agent=rows[self.column]), self.score, self.first, self.second)
            label = f"{named(self.score)} of {agent}: {self.first} against {self.second}"
            effects.append(Pair(self.first, self.second, self.region).effect(label, *values))
        return effects

    def needs(self) -> list[Row]:
        """Returns every agent, trained either way."""
        ways = (self.first, self.second)
        return [{"agent": agent, self.column: way} for agent in self.agents for way in ways]


@dataclasses.dataclass(frozen=True)
class Regret(Estimator):
    """Compares agents' regret at the end of a horizon, each tuned for it, paired over parts of the problems.

    The paper states no horizon. The one in the middle decides, so that neither end is picked; of an even number, the
    later of the two.
    """

    figure: str
    pairs: tuple[Pair, ...]

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per pair, at the middle horizon."""
        ends = self._ends(tables)
        horizons = sorted(set(ends.horizon))
        return self._at(ends, horizons[len(horizons) // 2])

    def note(self, tables: Tables) -> str:
        """Returns the verdicts at every horizon: the paper does not give its own, and they differ."""
        found: dict[str, list[str]] = {}
        ends = self._ends(tables)
        for horizon in sorted(set(ends.horizon)):
            verdict = combine([effect.verdict for effect in self._at(ends, horizon)])
            found.setdefault(verdict, []).append(f"{horizon:,}")
        return "By horizon T: " + "; ".join(f"{verdict} at {', '.join(at)}" for verdict, at in found.items()) + "."

    def needs(self) -> list[Row]:
        """Returns the agents."""
        return [{"agent": agent} for agent in agents_of(self.pairs)]

    def _ends(self, tables: Tables) -> pd.DataFrame:
        table = table_of(tables, self.figure)
        return table[table.step == table.horizon]

    def _at(self, ends: pd.DataFrame, horizon: int) -> list[Effect]:
        effects = []
        for pair in self.pairs:
            one, other = stats.paired(ends[ends.horizon == horizon], "regret", pair.first, pair.second)
            label = f"regret: {pair.first} against {pair.second}, T = {horizon:,}"
            effects.append(pair.effect(label, one, other))
        return effects


def named(column: str) -> str:
    """Returns what a column is called in a sentence."""
    names = {
        "kl_marginal": "marginal KL",
        "kl_joint": "joint KL",
        "nll_marginal": "marginal NLL",
        "nll_joint": "dyadic NLL",
        "data_ratio": "T / d",
        "num_data": "T",
        "num_train": "T",
        "horizon": "T",
        "num_members": "M",
        "snr": "signal-to-noise ratio",
    }
    return names.get(column, column)
