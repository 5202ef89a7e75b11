"""The statistical tests behind claims: from the tables of figures to effects with intervals, through `stats`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from benchmarks import stats, style
from benchmarks.claims.base import Effect, Region, Test, Unit, Wording, combine
from benchmarks.figures import registry
from benchmarks.figures.tables import Tables
from benchmarks.stats import Floats, NoDataError

if TYPE_CHECKING:
    import pandas as pd


def table_of(tables: Tables, figure: str) -> pd.DataFrame:
    """Returns the table of a figure by its id."""
    return tables.of(registry.figure(figure))


End = Literal["smallest", "largest"]
FREQUENCIES = "base-rate"  # the agent that knows how frequent labels are, and nothing else


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
class Agents:
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
            values = table.loc[table.agent.isin({name for pair in self.pairs for name in (pair.first, pair.second)})]
            value = (min if end == "smallest" else max)(values[column])
            table, place = table[table[column] == value], f"{place}, {named(column)} = {value:g}"
        if not self.each:
            return self._effects(table, place)
        effects = []
        for value, rows in table.groupby(self.each):
            value = value if isinstance(value, str) else style.number(float(value))
            effects += self._effects(rows, f"{place}, {named(self.each)} = {value}")
        return effects

    def _effects(self, table: pd.DataFrame, place: str) -> list[Effect]:
        effects = []
        for score in self.scores:
            for pair in self.pairs:
                one, other = stats.paired(table, score, pair.first, pair.second)
                label = f"{named(score)}: {pair.first} against {pair.second}{place}"
                effects.append(pair.effect(label, one, other))
        return effects


def own_members(table: pd.DataFrame, agent: str) -> bool:
    """Whether an agent's networks are no members of others in a table that says of each ensemble where it begins."""
    if "first_member" not in table:
        return False
    mine = table.agent == agent
    return not set(table.first_member[mine]) & set(table.first_member[~mine])


@dataclasses.dataclass(frozen=True)
class Several:
    """Several tests whose effects make one claim."""

    tests: tuple[Test, ...]

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of all."""
        return [effect for test in self.tests for effect in test(tables)]


@dataclasses.dataclass(frozen=True)
class GainAlong:
    """Compares how much lower an agent scores than another at two places along a column, paired by seed.

    The gain is the difference of scores as a share of `second`'s mean there, where `relative`, or as it is. The effect
    is the gain at `here` minus the gain at `there`; "middle" is the mean over all values but the ends.
    """

    figure: str
    score: str
    first: str
    second: str
    along: str
    here: End | Literal["middle"]
    there: End | Literal["middle"]
    region: Region
    relative: bool = False

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect."""
        table = table_of(tables, self.figure)
        values = sorted(set(table.loc[table.agent.isin([self.first, self.second]), self.along]))
        places = {"smallest": values[:1], "middle": values[1:-1], "largest": values[-1:]}
        if len(values) < 2 or not places[self.here] or not places[self.there]:
            needed = 3 if "middle" in (self.here, self.there) else 2
            raise NoDataError(f"{needed} values of {named(self.along)} are needed")
        here, there = (self._gain(table, places[name]) for name in (self.here, self.there))
        shared = here.index.intersection(there.index)
        gaps = (here[shared] - there[shared]).to_numpy()
        ends = [
            f"{named(self.along)} = {', '.join(f'{value:g}' for value in places[name])}"
            for name in (self.here, self.there)
        ]
        label = f"gain of {self.first} over {self.second}: {ends[0]} minus {ends[1]}"
        unit: Unit = "relative" if self.relative else "share"
        return [Effect(label, stats.mean_interval(gaps), self.region, unit, stats.effect_size(gaps))]

    def _gain(self, table: pd.DataFrame, values: Sequence[float]) -> pd.Series[float]:
        rows = table[table[self.along].isin(values) & table.agent.isin([self.first, self.second])]
        seeds = stats.by_seed(rows, self.score)
        if not {self.first, self.second} <= set(seeds) or not len(seeds[self.first]):
            raise NoDataError(f"no seed has all runs of {self.first} and {self.second}")
        one, other = seeds[self.first], seeds[self.second]
        return 1.0 - stats.ratio_by_seed(one, other) if self.relative else other - one


@dataclasses.dataclass(frozen=True)
class GainGrowsWithMembers:
    """Compares an agent's relative gain in two figures of different ensemble sizes, paired by seed.

    The ensembles of the small figure must be the first members of the large one's: where they share members in another
    way, seeds are neither paired nor independent.
    """

    small: str
    large: str
    score: str
    first: str
    second: str
    region: Region

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect: the relative difference in the large ensembles minus that in the small."""
        both, sizes = [table_of(tables, name) for name in (self.small, self.large)], []
        shared = set(both[0].setting) & set(both[1].setting)
        ratios, first_members = [], []
        for table in both:
            sizes.append(int(table[table.agent == self.first].num_members.max()))
            rows = table[(table.num_members == sizes[-1]) & table.setting.isin(shared)]
            rows = rows[rows.agent.isin([self.first, self.second])]
            scores = stats.by_seed(rows, self.score)
            if not {self.first, self.second} <= set(scores) or not len(scores[self.first]):
                raise NoDataError(f"no seed has all runs of {self.first} and {self.second}")
            ratios.append(stats.ratio_by_seed(scores[self.first], scores[self.second]))
            begins = rows.first_member if "first_member" in rows else rows.seed
            first_members.append(set(zip(rows.seed, begins, strict=True)))
        if sizes[1] <= sizes[0]:
            raise NoDataError(f"ensembles of two sizes are needed, there are {sizes[0]}, {sizes[1]}")
        if first_members[0] != first_members[1]:
            raise NoDataError("the smaller ensembles are not the first members of the larger ones")
        seeds = ratios[0].index.intersection(ratios[1].index)
        gaps = (ratios[1][seeds] - ratios[0][seeds]).to_numpy()
        label = f"{named(self.score)}, {self.first} against {self.second}: {sizes[1]} members minus {sizes[0]} members"
        return [Effect(label, stats.mean_interval(gaps), self.region, size=stats.effect_size(gaps))]


@dataclasses.dataclass(frozen=True)
class PriorScale:
    """Figure 7: ensemble-p's normalized joint KL at scales of its prior, in units of 1 / sqrt(rho), by weight decay."""

    kind: Literal["depends", "flat", "zero is uniform", "zero is frequencies"]
    region: Region
    l2: float = 1.0
    input_dim: int = 100  # the paper's, and below
    temperature: float = 0.01
    right: float = 3.0  # the public code's default, not chosen from these runs
    near: tuple[float, ...] = (1.0, 10.0)  # a third of it and three times it, about

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of the kind."""
        table = table_of(tables, "F7")
        table = table[(table.input_dim == self.input_dim) & (table.temperature == self.temperature)]
        if self.kind.startswith("zero"):
            table = table[table.data_ratio == table.data_ratio.min()]
        constant = table[table.agent == FREQUENCIES]
        table = table[(table.agent != FREQUENCIES) & (table.l2 == self.l2)]
        if table.empty:
            raise NoDataError(f"no rows of {self._where} with weight decay {self.l2:g}")
        scales = stats.by_seed(table, "kl_joint", columns="prior_scale")
        needed = {0.0} if self.kind.startswith("zero") else {0.0, self.right}
        if not needed <= set(scales) or not len(scales[0.0]):
            raise NoDataError("no seed has all prior scales")
        if self.kind == "zero is uniform":
            count = round(float((table.input_dim * table.data_ratio).iloc[0]))
            label = f"joint KL without prior against the uniform agent, T = {count}"
            return [Effect(label, stats.mean_interval(scales[0.0] - 1.0), self.region, of_scores=True)]
        if self.kind == "zero is frequencies":
            if constant.empty:
                raise NoDataError("no rows of label frequencies")
            known = stats.by_seed(constant, "kl_joint")[FREQUENCIES]
            shared = scales[0.0].index.intersection(known.index)
            label = "joint KL without prior against the frequencies of the labels"
            one, other = (np.asarray(values[shared], np.float64) for values in (scales[0.0], known))
            return [Pair("none", FREQUENCIES, self.region).effect(label, one, other)]
        if self.kind == "depends":
            label = f"joint KL: scale {self.right:g}/√ρ against no prior{self._at}"
            one, other = (np.asarray(scales[scale], np.float64) for scale in (self.right, 0.0))
            return [Pair("right", "none", self.region).effect(label, one, other)]
        near = [scale for scale in self.near if scale in set(scales)]
        if not near:
            raise NoDataError("no scale near the right one was run")
        gain = scales[0.0] - scales[self.right]
        return [
            Effect(
                f"share of the prior's gain lost at {scale:g}/√ρ instead of {self.right:g}/√ρ{self._at}",
                stats.relative_difference(scales[scale] - scales[self.right], gain).plus(1.0),
                self.region,
                "share",
            )
            for scale in near
        ]

    @property
    def _where(self) -> str:
        return f"d = {self.input_dim}, ρ = {self.temperature:g}"

    @property
    def _at(self) -> str:
        own = (self.input_dim, self.temperature) == (100, 0.01)
        return "" if own else f", {self._where}"


@dataclasses.dataclass(frozen=True)
class Regret:
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
