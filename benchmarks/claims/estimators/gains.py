"""Estimators of gains: by how much an agent scores lower than another, and where it gains more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims.base import Effect, Estimator, Region, Row, Unit
from tf_ensembles.benchmarks.claims.estimators.agents import End, named, table_of
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import NoDataError

if TYPE_CHECKING:
    import pandas as pd

Place = End | Literal["middle"]


def _by_seed(rows: pd.DataFrame, score: str, first: str, second: str) -> tuple[pd.Series[float], pd.Series[float]]:
    """Returns the scores of two agents by seed."""
    scores = stats.by_seed(rows[rows.agent.isin([first, second])], score)
    if not {first, second} <= set(scores) or not len(scores[first]):
        raise NoDataError(f"no seed has all runs of {first} and {second}")
    return scores[first], scores[second]


def _difference(label: str, more: pd.Series[float], less: pd.Series[float], region: Region, unit: Unit) -> Effect:
    """Returns the mean of `more - less` over the seeds that both have."""
    seeds = more.index.intersection(less.index)
    gaps = (more[seeds] - less[seeds]).to_numpy()
    return Effect(label, stats.mean_interval(gaps), region, unit, stats.effect_size(gaps))


@dataclasses.dataclass(frozen=True)
class GainAlong(Estimator):
    """Compares how much lower an agent scores than another at two places along a column, paired by seed.

    The gain is the difference of scores as a share of `second`'s mean there, where `relative`, or as it is. The effect
    is the gain at `here` minus the gain at `there`; "middle" is the mean over all values but the ends.
    """

    figure: str
    score: str
    first: str
    second: str
    along: str
    here: Place
    there: Place
    region: Region
    relative: bool = False

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect."""
        table = table_of(tables, self.figure)
        table = table[table.agent.isin([self.first, self.second])]
        places = self.places(set(table[self.along]))
        here, there = (self._gain(table[table[self.along].isin(places[name])]) for name in (self.here, self.there))
        ends = [
            f"{named(self.along)} = {', '.join(f'{value:g}' for value in places[name])}"
            for name in (self.here, self.there)
        ]
        label = f"gain of {self.first} over {self.second}: {ends[0]} minus {ends[1]}"
        return [_difference(label, here, there, self.region, "relative" if self.relative else "share")]

    def places(self, values: Iterable[float]) -> dict[Place, Sequence[float]]:
        """Returns the values of the column at its ends and between them."""
        ordered = sorted(values)
        places: dict[Place, Sequence[float]] = {"smallest": ordered[:1], "middle": ordered[1:-1]}
        places["largest"] = ordered[-1:]
        if len(ordered) < 2 or not places[self.here] or not places[self.there]:
            needed = 3 if "middle" in (self.here, self.there) else 2
            raise NoDataError(f"{needed} values of {named(self.along)} are needed")
        return places

    def _gain(self, rows: pd.DataFrame) -> pd.Series[float]:
        first, second = _by_seed(rows, self.score, self.first, self.second)
        return 1.0 - stats.ratio_by_seed(first, second) if self.relative else second - first

    def needs(self) -> list[Row]:
        """Returns both agents."""
        return [{"agent": agent} for agent in (self.first, self.second)]

    def lacks(self, planned: Mapping[str, Sequence[Row]]) -> str:
        """Returns whether the column has too few values, too."""
        try:
            self.places({row[self.along] for row in planned[self.figure] if row["agent"] in (self.first, self.second)})
        except NoDataError as error:
            return str(error)
        return super().lacks(planned)


@dataclasses.dataclass(frozen=True)
class GainContrast(Estimator):
    """Compares how much lower an agent scores than another under two conditions, paired by seed: an interaction.

    The effect is the gain where `column` is `here` minus the gain where it is `there`, in units of the score. `where`
    keeps the rows where a column has a value.
    """

    figure: str
    score: str
    first: str
    second: str
    column: str
    here: str
    there: str
    region: Region
    where: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect."""
        table = table_of(tables, self.figure)
        for column, wanted in self.where.items():
            table = table[table[column] == wanted]
        here, there = (self._gain(table[table[self.column] == value]) for value in (self.here, self.there))
        label = f"{named(self.score)}, gain of {self.first} over {self.second}: {self.here} minus {self.there}"
        return [_difference(label, here, there, self.region, "share")]

    def _gain(self, rows: pd.DataFrame) -> pd.Series[float]:
        first, second = _by_seed(rows, self.score, self.first, self.second)
        return second - first

    def needs(self) -> list[Row]:
        """Returns both agents under both conditions."""
        agents, conditions = (self.first, self.second), (self.here, self.there)
        return [{**self.where, "agent": agent, self.column: value} for agent in agents for value in conditions]


@dataclasses.dataclass(frozen=True)
class GainGrowsWithMembers(Estimator):
    """Compares an agent's relative gain in two figures of different ensemble sizes, paired by seed.

    The ensembles of the small figure must be the first members of the large one's: where they share members in another
    way, seeds are neither paired nor independent.
    """

    figure: str  # of the small ensembles
    large: str
    score: str
    first: str
    second: str
    region: Region

    @property
    def figures(self) -> tuple[str, ...]:
        """Both figures."""
        return self.figure, self.large

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect: the relative difference in the large ensembles minus that in the small."""
        small, large = (table_of(tables, name) for name in self.figures)
        shared = set(small.setting) & set(large.setting)
        ratios, sizes, first_members = [], [], []
        for table in (small, large):
            sizes.append(int(table[table.agent == self.first].num_members.max()))
            rows = table[(table.num_members == sizes[-1]) & table.setting.isin(shared)]
            rows = rows[rows.agent.isin([self.first, self.second])]
            ratios.append(stats.ratio_by_seed(*_by_seed(rows, self.score, self.first, self.second)))
            begins = rows.first_member if "first_member" in rows else rows.seed
            first_members.append(set(zip(rows.seed, begins, strict=True)))
        if reason := _same_size(*sizes):
            raise NoDataError(reason)
        if first_members[0] != first_members[1]:
            raise NoDataError("the smaller ensembles are not the first members of the larger ones")
        label = f"{named(self.score)}, {self.first} against {self.second}: {sizes[1]} members minus {sizes[0]} members"
        return [_difference(label, ratios[1], ratios[0], self.region, "relative")]

    def needs(self) -> list[Row]:
        """Returns both agents."""
        return [{"agent": agent} for agent in (self.first, self.second)]

    def lacks(self, planned: Mapping[str, Sequence[Row]]) -> str:
        """Returns whether ensembles are of one size, too."""
        mine = [[row for row in planned[name] if row["agent"] == self.first] for name in self.figures]
        return super().lacks(planned) or _same_size(*(max(row["num_members"] for row in rows) for rows in mine))


def _same_size(small: int, large: int) -> str:
    return "" if small < large else f"ensembles of two sizes are needed, there are {small}, {large}"
