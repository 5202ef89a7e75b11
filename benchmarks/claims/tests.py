"""The statistical tests behind claims: from the tables of a results folder to effects with intervals and verdicts.

An effect is compared with a *region*: where the claim says it lies. The claim is supported when the 95% interval lies
inside the region, not supported when it lies outside, and undecided when it touches both. "Alike" is a region around 0
(an equivalence test), "better" one that ends at 0, "much better" one that ends before it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from benchmarks import stats as statistics
from benchmarks.claims import tables as claim_tables
from benchmarks.claims.tables import Tables
from benchmarks.stats import Interval

if TYPE_CHECKING:
    import pandas as pd

SUPPORTED, NOT_SUPPORTED, INCONCLUSIVE = "supported", "not supported", "inconclusive at this size"
Unit = Literal["relative", "nats", "distance", "share", "settings"]

# Below this many values a bootstrap interval is too narrow, and Student's is taken.
_BOOTSTRAP_FROM = 10
_NORMAL = 1.959963984540054


@dataclasses.dataclass(frozen=True)
class Region:
    """Where a claim says that an effect lies."""

    low: float = -math.inf
    high: float = math.inf

    def judge(self, interval: Interval) -> str:
        """Returns what an interval says about the claim."""
        if math.isnan(interval.low) or math.isnan(interval.high):
            return INCONCLUSIVE
        if self.low < interval.low and interval.high < self.high:
            return SUPPORTED
        if interval.high <= self.low or interval.low >= self.high:
            return NOT_SUPPORTED
        return INCONCLUSIVE


@dataclasses.dataclass(frozen=True)
class Effect:
    """One measured effect of a claim."""

    label: str  # such as "ensemble-p against ensemble-n"
    interval: Interval
    region: Region
    unit: Unit = "relative"
    standardised: float = math.nan  # mean over standard deviation of the paired differences

    @property
    def verdict(self) -> str:
        """What this effect alone says."""
        return self.region.judge(self.interval)


class Test(Protocol):
    """Measures the effects of a claim."""

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects, or raises ValueError where the tables do not allow it."""


def mean_interval(values: ArrayLike) -> Interval:
    """Returns the mean with its 95% interval: bootstrap, or Student's law for a handful of values."""
    array = np.asarray(values, np.float64)
    if len(array) == 0:
        raise claim_tables.MissingTableError("no seed has all the runs that are compared")
    if not 2 <= len(array) < _BOOTSTRAP_FROM:
        return statistics.mean_interval(array)
    from scipy import stats

    half = float(stats.t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))
    mean = float(array.mean())
    return Interval(mean, mean - half, mean + half, len(array))


def relative_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Returns `mean(first) / mean(second) - 1`, paired by seed, with its 95% interval: below 0, `first` is lower."""
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if len(one) < _BOOTSTRAP_FROM:
        return mean_interval((one - other) / other.mean())
    ratio = statistics.paired_ratio(one, other)
    return Interval(ratio.estimate - 1.0, ratio.low - 1.0, ratio.high - 1.0, ratio.count)


def standardised(differences: ArrayLike) -> float:
    """Returns the mean of paired differences over their standard deviation; NaN where there is none."""
    array = np.asarray(differences, np.float64)
    spread = array.std(ddof=1) if len(array) > 1 else 0.0
    return float(array.mean() / spread) if spread > 0 else math.nan


def difference(first: Interval, second: Interval) -> Interval:
    """Returns `second - first` of independent estimates, with the interval that their own intervals give (MOVER)."""
    gap = second.estimate - first.estimate
    low = gap - math.hypot(second.estimate - second.low, first.high - first.estimate)
    high = gap + math.hypot(second.high - second.estimate, first.estimate - first.low)
    return Interval(gap, low, high, min(first.count, second.count))


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two agents, and where the relative difference of the first from the second should lie."""

    first: str
    second: str
    region: Region


@dataclasses.dataclass(frozen=True)
class Agents:
    """Compares agents on a source's score, averaged over settings, paired by seed.

    `at` keeps the rows where a column is smallest or largest, such as the largest ensembles only.
    """

    source: str
    scores: tuple[str, ...]
    pairs: tuple[Pair, ...]
    at: Mapping[str, Literal["smallest", "largest"]] = dataclasses.field(default_factory=dict)

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per score and pair."""
        table = tables.source(self.source)
        _, comma, rest = self.source.partition(",")  # such as ", tuned globally"
        place = comma + rest
        for column, end in self.at.items():
            values = table.loc[table.agent.isin({name for pair in self.pairs for name in (pair.first, pair.second)})]
            value = (min if end == "smallest" else max)(values[column])
            table, place = table[table[column] == value], f"{place}, {_named(column)} = {value:g}"
        effects = []
        for score in self.scores:
            for pair in self.pairs:
                one, other = paired(table, score, pair.first, pair.second)
                label = f"{_named(score)}: {pair.first} against {pair.second}{place}"
                interval = relative_difference(one, other)
                effects.append(Effect(label, interval, pair.region, standardised=standardised(one - other)))
        return effects


def paired(table: pd.DataFrame, score: str, first: str, second: str) -> tuple[Any, Any]:
    """Returns two agents' scores by seed, averaged over settings, of the seeds that have both in every setting."""
    found = by_seed(table[table.agent.isin([first, second])], score)
    absent = [name for name in (first, second) if name not in found]
    if absent:
        raise claim_tables.MissingTableError(f"no rows of {', '.join(absent)}")
    if not len(found[first]):
        raise claim_tables.MissingTableError(f"no seed has all runs of {first} and {second}")
    return found[first].to_numpy(), found[second].to_numpy()


def by_seed(table: pd.DataFrame, score: str, columns: str = "agent") -> dict[Any, pd.Series[float]]:
    """Returns what `statistics.by_seed` does, by column, many times faster: a report asks for it hundreds of times."""
    import pandas as pd

    cells: dict[Any, dict[Any, list[float]]] = {}
    settings: dict[tuple[Any, Any], set[Any]] = {}
    asked = [table[name].tolist() for name in (columns, "seed", "setting", score)]
    for name, seed, setting, value in zip(*asked, strict=True):
        cells.setdefault(name, {}).setdefault(seed, []).append(value)
        settings.setdefault((name, seed), set()).add(setting)
    total = len(set(asked[2]))
    seeds = sorted({seed for found in cells.values() for seed in found})
    kept = [seed for seed in seeds if all(len(settings.get((name, seed), ())) == total for name in cells)]
    return {
        name: pd.Series([sum(cells[name][seed]) / len(cells[name][seed]) for seed in kept], kept, dtype=float)
        for name in sorted(cells)
    }


@dataclasses.dataclass(frozen=True)
class GainAlong:
    """Compares how much lower an agent scores than another at two places along a column, paired by seed.

    The gain is the difference of scores as a share of `second`'s mean there, where `relative`, or as it is. The effect
    is the gain at `here` minus the gain at `there`; "middle" is the mean over all values but the ends.
    """

    source: str
    score: str
    first: str
    second: str
    along: str
    here: Literal["smallest", "middle", "largest"]
    there: Literal["smallest", "middle", "largest"]
    region: Region
    relative: bool = False

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect."""
        table = tables.source(self.source)
        values = sorted(set(table.loc[table.agent.isin([self.first, self.second]), self.along]))
        places = {"smallest": values[:1], "middle": values[1:-1], "largest": values[-1:]}
        if len(values) < 2 or not places[self.here] or not places[self.there]:
            needed = 3 if "middle" in (self.here, self.there) else 2
            raise claim_tables.MissingTableError(f"{needed} values of {_named(self.along)} are needed")
        here, there = (self._gain(table, places[name]) for name in (self.here, self.there))
        shared = here.index.intersection(there.index)
        gaps = (here[shared] - there[shared]).to_numpy()
        named = [
            f"{_named(self.along)} = {', '.join(f'{value:g}' for value in places[name])}"
            for name in (self.here, self.there)
        ]
        label = f"gain of {self.first} over {self.second}: {named[0]} minus {named[1]}"
        unit: Unit = "relative" if self.relative else "share"
        return [Effect(label, mean_interval(gaps), self.region, unit, standardised(gaps))]

    def _gain(self, table: pd.DataFrame, values: Sequence[float]) -> pd.Series[float]:
        rows = table[table[self.along].isin(values) & table.agent.isin([self.first, self.second])]
        seeds = by_seed(rows, self.score)
        if not {self.first, self.second} <= set(seeds) or not len(seeds[self.first]):
            raise claim_tables.MissingTableError(f"no seed has all runs of {self.first} and {self.second}")
        gains = seeds[self.second] - seeds[self.first]
        return gains / seeds[self.second].mean() if self.relative else gains


@dataclasses.dataclass(frozen=True)
class GainGrowsWithMembers:
    """Compares an agent's relative gain in two sources of different ensemble sizes, with independent seeds."""

    small: str
    large: str
    score: str
    first: str
    second: str
    region: Region

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns one effect: the relative difference in the large ensembles minus that in the small."""
        sizes, intervals = [], []
        for name in (self.small, self.large):
            table = tables.source(name)
            sizes.append(int(table[table.agent == self.first].num_members.max()))
            table = table[table.num_members == sizes[-1]]
            intervals.append(relative_difference(*paired(table, self.score, self.first, self.second)))
        if sizes[1] <= sizes[0]:
            raise claim_tables.MissingTableError(f"ensembles of two sizes are needed, there are {sizes[0]}, {sizes[1]}")
        label = f"{_named(self.score)}, {self.first} against {self.second}: {sizes[1]} members minus {sizes[0]} members"
        return [Effect(label, difference(*intervals), self.region)]


@dataclasses.dataclass(frozen=True)
class PriorScale:
    """Figure 7: ensemble-p's normalised joint KL at scales of its prior, in units of 1 / sqrt(rho), by weight decay."""

    kind: Literal["depends", "flat", "zero is uniform"]
    region: Region
    l2: float = 1.0
    right: float = 3.0  # the public code's default, not chosen from these runs
    near: tuple[float, ...] = (1.0, 10.0)  # a third of it and three times it, about

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of the kind."""
        table = tables.source("figure 7")
        table = table[table.l2 == self.l2]
        if table.empty:
            raise claim_tables.MissingTableError(f"no rows with weight decay {self.l2:g}")
        if self.kind == "zero is uniform":
            table = table[table.data_ratio == table.data_ratio.min()]
        scales = by_seed(table, "kl_joint", columns="prior_scale")
        needed = {0.0} if self.kind == "zero is uniform" else {0.0, self.right}
        if not needed <= set(scales) or not len(scales[0.0]):
            raise claim_tables.MissingTableError("no seed has all prior scales")
        if self.kind == "zero is uniform":
            count = round(float((table.input_dim * table.data_ratio).iloc[0]))
            label = f"joint KL without prior against the uniform agent, T = {count}"
            return [Effect(label, mean_interval(scales[0.0] - 1.0), self.region)]
        if self.kind == "depends":
            label = f"joint KL: scale {self.right:g}/√ρ against no prior"
            values = scales[self.right], scales[0.0]
            return [
                Effect(
                    label, relative_difference(*values), self.region, standardised=standardised(values[0] - values[1])
                )
            ]
        near = [scale for scale in self.near if scale in set(scales)]
        if not near:
            raise claim_tables.MissingTableError("no scale near the right one was run")
        gain = float((scales[0.0] - scales[self.right]).mean())
        return [
            Effect(
                f"share of the prior's gain lost at {scale:g}/√ρ instead of {self.right:g}/√ρ",
                mean_interval((scales[scale] - scales[self.right]) / gain),
                self.region,
                "share",
            )
            for scale in near
        ]


@dataclasses.dataclass(frozen=True)
class Linear:
    """The statements about Bayesian linear regression, from the tables of `tf-ensembles linear`."""

    kind: Literal["exact", "deterministic", "bound", "conditioning", "homoscedastic", "snr", "joint", "members"]
    region: Region
    quantity: str = "kl"  # of the high-SNR case

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of the kind."""
        return list(getattr(self, f"_{self.kind}")(tables))

    def _check(self, tables: Tables, start: str, label: str) -> list[Effect]:
        table = tables.read("linear/checks.csv", ("check", "problems", "value"))
        rows = table[table.check.astype(str).str.startswith(start)]
        if rows.empty:
            raise claim_tables.MissingTableError(f"no row of {start}")
        value = float(rows.value.iloc[0])
        # The largest deviation over all problems: exact arithmetic, so there is no sampling error.
        return [Effect(label, Interval(value, value, value, int(rows.problems.iloc[0])), self.region, "nats")]

    def _exact(self, tables: Tables) -> list[Effect]:
        return self._check(tables, "proposition 1", "largest |KL| of ensemble-bp from the posterior")

    def _deterministic(self, tables: Tables) -> list[Effect]:
        (spread,) = self._check(tables, "proposition 2", "largest distance between members of ensemble-n")
        return [dataclasses.replace(spread, unit="distance")]

    def _bound(self, tables: Tables) -> list[Effect]:
        from scipy import stats

        sweep = tables.read("linear/sweep.csv", ("agent", "kl", "kl_error", "lower_bound", "lower_bound_error"))
        best = sweep[(sweep.agent == "ensemble-p-weighted") & np.isfinite(sweep.kl)]
        if best.empty:
            raise claim_tables.MissingTableError("no rows of ensemble-p-weighted")
        above = (best.kl - best.lower_bound).to_numpy()
        error = np.hypot(best.kl_error.to_numpy(), best.lower_bound_error.to_numpy())
        mean, mean_error = float(above.mean()), float(np.sqrt((error**2).sum()) / len(best))
        # As many settings as there are, so that chance alone makes one of them violate in 1 of 40 folders.
        limit = float(stats.norm.isf(0.025 / len(best)))
        violations = float((above < -limit * error).sum())
        return [
            Effect(
                "KL above the bound, mean over settings",
                Interval(mean, mean - _NORMAL * mean_error, mean + _NORMAL * mean_error, len(best)),
                self.region,
                "nats",
            ),
            Effect(
                "settings below the bound by more than chance",
                Interval(violations, violations, violations, len(best)),
                Region(high=0.5),
                "settings",
            ),
        ]

    def _conditioning(self, tables: Tables) -> list[Effect]:
        keys = ["dim", "num_data", "heteroscedasticity"]
        sweep = tables.read("linear/sweep.csv", ("agent", "condition", "kl", *keys))
        best = sweep[sweep.agent == "ensemble-p-weighted"]
        wide = best.pivot_table(index=keys, columns="condition", values="kl").dropna()
        if wide.empty or wide.shape[1] < 2:
            raise claim_tables.MissingTableError("two condition numbers are needed")
        low, high = wide.columns[0], wide.columns[-1]
        gaps = (wide[high] - wide[low]).to_numpy()
        label = f"KL of the best unbiased ensemble-p: condition {high:g} minus {low:g}"
        return [Effect(label, mean_interval(gaps), self.region, "nats", standardised(gaps))]

    def _appendix(self, tables: Tables, case: str, quantity: str, along: str) -> Effect:
        table = tables.read("linear/appendix_b4.csv", ("case", "quantity", "measured", "error", along))
        rows = table[(table.case == case) & (table.quantity == quantity)].sort_values(along)
        if rows.empty:
            raise claim_tables.MissingTableError(f"no rows of {case}, {quantity}")
        last = rows.iloc[-1]
        half = _NORMAL * float(last["error"])
        value = float(last["measured"])
        name = "KL" if quantity == "kl" else "squared Wasserstein distance"
        label = f"{name} of ensemble-p from the posterior, {_named(along)} = {last[along]:g}"
        interval = Interval(value, value - half, value + half, _problems(tables))
        return Effect(label, interval, self.region, "nats" if quantity == "kl" else "distance")

    def _homoscedastic(self, tables: Tables) -> list[Effect]:
        return [self._appendix(tables, "homoscedastic", "kl", "num_data")]

    def _snr(self, tables: Tables) -> list[Effect]:
        return [self._appendix(tables, "high snr", self.quantity, "snr")]

    def _joint(self, tables: Tables) -> list[Effect]:
        table = tables.read("linear/predictions.csv", ("agent", "tau", "problems", "kl", "kl_error", "coefficient_kl"))
        rows = table[np.isfinite(table.coefficient_kl) & (table.coefficient_kl > 1e-6)]
        effects = []
        for row in rows[rows.tau == rows.tau.max()].to_dict("records"):
            limit, value = float(row["coefficient_kl"]), float(row["kl"])
            half, count = _NORMAL * float(row["kl_error"]), int(row["problems"])
            interval = Interval(value / limit - 1, (value - half) / limit - 1, (value + half) / limit - 1, count)
            label = f"KL of {row['tau']:,} joint predictions of {row['agent']} against that of its coefficients"
            effects.append(Effect(label, interval, self.region))
        if not effects:
            raise claim_tables.MissingTableError("no rows of joint predictions")
        return effects

    def _members(self, tables: Tables) -> list[Effect]:
        columns = ("agent", "members", "problems", "kl_low", "kl", "kl_high", "infinite_ensemble")
        table = tables.read("linear/finite_ensemble.csv", columns)
        effects = []
        for agent, rows in table.groupby("agent", sort=False):
            last = rows.sort_values("members").iloc[-1]
            middle, low, high = (float(last[name] - last.infinite_ensemble) for name in ("kl", "kl_low", "kl_high"))
            label = f"KL of {agent} with {int(last.members):,} members above that of infinitely many"
            effects.append(Effect(label, Interval(middle, low, high, int(last.problems)), self.region, "nats"))
        return effects


def _problems(tables: Tables) -> int:
    return int(tables.read("linear/checks.csv", ("problems",)).problems.min())


@dataclasses.dataclass(frozen=True)
class Regret:
    """Compares agents' regret after the last step, paired over parts of the problems.

    A folder that keeps no parts has a table of differences from ensemble-bp: then only such pairs have paired intervals
    and others are taken as independent, which is wider.
    """

    pairs: tuple[Pair, ...]

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns an effect per pair, at the last horizon."""
        return self.at_horizon(tables, max(self.horizons(tables)))

    def note(self, tables: Tables) -> str:
        """Returns the verdicts at every horizon: the paper does not give its own, and they differ."""
        found: dict[str, list[str]] = {}
        for horizon in self.horizons(tables):
            verdict = combine([effect.verdict for effect in self.at_horizon(tables, horizon)])
            found.setdefault(verdict, []).append(f"{horizon:,}")
        return "By horizon T: " + "; ".join(f"{verdict} at {', '.join(at)}" for verdict, at in found.items()) + "."

    def horizons(self, tables: Tables) -> list[int]:
        """Returns the horizons of the folder's table."""
        name = "regret_runs" if tables.has("bandit/regret_runs.csv") else "regret"
        return sorted({int(value) for value in tables.read(f"bandit/{name}.csv", ("horizon",)).horizon})

    def at_horizon(self, tables: Tables, horizon: int) -> list[Effect]:
        """Returns an effect per pair at a horizon."""
        effects = []
        for pair in self.pairs:
            label = f"regret: {pair.first} against {pair.second}, T = {horizon:,}"
            if tables.has("bandit/regret_runs.csv"):
                table = tables.source("bandit")
                one, other = paired(table[table.horizon == horizon], "regret", pair.first, pair.second)
                size = standardised(one - other)
                effects.append(Effect(label, relative_difference(one, other), pair.region, standardised=size))
            else:
                effects.append(Effect(label, _regret_from_means(tables, horizon, pair), pair.region))
        return effects


def _regret_from_means(tables: Tables, horizon: int, pair: Pair) -> Interval:
    columns = ("horizon", "agent", "regret", "standard_error", "minus_bp_95")
    table = tables.read("bandit/regret.csv", columns)
    rows = {str(row["agent"]): row for row in table[table.horizon == horizon].to_dict("records")}
    absent = [name for name in (pair.first, pair.second) if name not in rows]
    if absent:
        raise claim_tables.MissingTableError(f"no rows of {', '.join(absent)}")
    one, other = rows[pair.first], rows[pair.second]
    if "ensemble-bp" in (pair.first, pair.second):
        half = float((other if pair.first == "ensemble-bp" else one)["minus_bp_95"])
    else:
        half = _NORMAL * math.hypot(float(one["standard_error"]), float(other["standard_error"]))
    gap, base = float(one["regret"]) - float(other["regret"]), float(other["regret"])
    # How many parts the intervals are over, if the table says; its Student intervals allow for few.
    return Interval(gap / base, (gap - half) / base, (gap + half) / base, int(one.get("parts", 0)))


def combine(verdicts: Sequence[str]) -> str:
    """Returns the verdict of a claim that makes several statements: all must hold, and one that fails decides."""
    if NOT_SUPPORTED in verdicts:
        return NOT_SUPPORTED
    return INCONCLUSIVE if INCONCLUSIVE in verdicts or not verdicts else SUPPORTED


def _named(column: str) -> str:
    names = {
        "kl_marginal": "marginal KL",
        "kl_joint": "joint KL",
        "nll_marginal": "marginal NLL",
        "nll_joint": "joint NLL",
        "data_ratio": "T / d",
        "num_data": "T",
        "num_train": "T",
        "horizon": "T",
        "num_members": "M",
        "snr": "signal-to-noise ratio",
    }
    return names.get(column, column)
