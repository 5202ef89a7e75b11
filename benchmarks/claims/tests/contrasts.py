"""Tests that compare differences: where does an agent gain more, and which of two ways to train is better?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from benchmarks import stats
from benchmarks.claims.base import Effect, Region
from benchmarks.claims.tests.agents import Pair, named, table_of
from benchmarks.figures.tables import Tables
from benchmarks.stats import NoDataError

if TYPE_CHECKING:
    import pandas as pd


@dataclasses.dataclass(frozen=True)
class GainContrast:
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
        shared = here.index.intersection(there.index)
        gaps = (here[shared] - there[shared]).to_numpy()
        label = f"{named(self.score)}, gain of {self.first} over {self.second}: {self.here} minus {self.there}"
        return [Effect(label, stats.mean_interval(gaps), self.region, "share", stats.effect_size(gaps))]

    def _gain(self, rows: pd.DataFrame) -> pd.Series[float]:
        seeds = stats.by_seed(rows[rows.agent.isin([self.first, self.second])], self.score)
        if not {self.first, self.second} <= set(seeds) or not len(seeds[self.first]):
            raise NoDataError(f"no seed has all runs of {self.first} and {self.second}")
        return seeds[self.second] - seeds[self.first]


@dataclasses.dataclass(frozen=True)
class Treatments:
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
