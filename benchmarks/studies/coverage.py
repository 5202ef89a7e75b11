"""How often 95% intervals hold the truth: those of `benchmarks.stats`, and others beside them.

    tf-ensembles sweep run benchmarks.studies.coverage --preset standard

Samples of 5 to 100 seeds are drawn from distributions whose truth is known. Three kinds of statistic: a mean, the ratio
of two means over the same seeds (the relative differences of claims), and the mean over settings of scores divided by a
reference's (the bars of figures, whose reference is taken as known). The goal is 93 to 97% in every cell.

Beside ours, for comparison: SciPy's BCa and plain bootstraps.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats as scipy_stats

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.stats import Floats, Interval
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("coverage", "tf_ensembles.benchmarks.studies.coverage:compute")
SIZES = (5, 10, 20, 100)
GOAL = (0.93, 0.97)
METHODS = {"ours": "", "BCa": "BCa", "plain bootstrap": "percentile"}  # with SciPy's names
NONE = "ours: no interval"  # Fieller's is unbounded where a denominator cannot be told from 0: it decides nothing


@dataclasses.dataclass(frozen=True)
class Case:
    """A statistic of a distribution; a sample has a column per score, `[seeds, columns]`."""

    name: str
    draw: Callable[[np.random.Generator, int], Floats]
    truth: float
    statistic: Callable[[Floats], Floats]  # of samples `[..., seeds, columns]`
    ours: Callable[[Floats], Interval]


def _mean(name: str, draw: Callable[[np.random.Generator, int], Floats], truth: float) -> Case:
    return Case(
        f"mean, {name}",
        lambda chance, count: draw(chance, count)[:, None],
        truth,
        lambda sample: sample[..., 0].mean(-1),
        lambda sample: stats.mean_interval(sample[:, 0]),
    )


def _ratio(name: str, draw: Callable[[np.random.Generator, int], Floats], truth: float) -> Case:
    def statistic(sample: Floats) -> Floats:
        means = sample.mean(-2)
        return np.asarray(means[..., 0] / means[..., 1])

    def ours(sample: Floats) -> Interval:
        return stats.relative_difference(sample[:, 0], sample[:, 1]).plus(1.0)

    return Case(f"ratio of means, {name}", draw, truth, statistic, ours)


def _bars(name: str, draw: Callable[[np.random.Generator, int], Floats], truth: float) -> Case:
    """Columns are an agent's scores in all settings, then the reference's in the same."""

    def statistic(sample: Floats) -> Floats:
        one, other = np.split(sample.mean(-2), 2, axis=-1)
        return np.asarray((one / other).mean(-1))

    def ours(sample: Floats) -> Interval:
        one, other = np.split(sample, 2, axis=-1)
        return stats.mean_interval((one / other.mean(-2, keepdims=True)).mean(-1))

    return Case(f"mean of ratios, {name}", draw, truth, statistic, ours)


def _hard(chance: np.random.Generator, count: int, settings: int, spread: float, own: float) -> Floats:
    """An agent with 0.7 of a reference's score; problems differ by `spread`, agents on them by `own`."""
    hard = chance.lognormal(0.0, spread, (count, settings))
    parts = [factor * hard * chance.lognormal(0.0, own, hard.shape) for factor in (0.7, 1.0)]
    return np.concatenate(parts, axis=1)


def _normal_pair(chance: np.random.Generator, count: int) -> Floats:
    other = chance.normal(1.0, 0.2, count)
    return np.stack([0.7 * other + chance.normal(0.0, 0.1, count), other], axis=1)


CASES = (
    _mean("normal", lambda chance, count: chance.normal(0.0, 1.0, count), 0.0),
    _mean("exponential", lambda chance, count: chance.exponential(1.0, count), 1.0),
    _mean("lognormal 0.5", lambda chance, count: chance.lognormal(0.0, 0.5, count), math.exp(0.125)),
    _mean("lognormal 1", lambda chance, count: chance.lognormal(0.0, 1.0, count), math.exp(0.5)),
    _ratio("normal", _normal_pair, 0.7),
    _ratio("problems of uneven difficulty", lambda chance, count: _hard(chance, count, 1, 0.5, 0.2), 0.7),
    _ratio("exponential", lambda chance, count: chance.exponential((0.7, 1.0), (count, 2)), 0.7),
    _bars("problems of uneven difficulty", lambda chance, count: _hard(chance, count, 3, 0.3, 0.3), 0.7),
    _bars("a steady reference", lambda chance, count: _steady(chance, count, 3), 0.7),
)


def _steady(chance: np.random.Generator, count: int, settings: int) -> Floats:
    """As the uniform agent, whose score hardly depends on the problem."""
    one = 0.7 * chance.lognormal(-0.045, 0.3, (count, settings))
    return np.concatenate([one, chance.lognormal(-0.005, 0.1, one.shape)], axis=1)


def interval(case: Case, sample: Floats, method: str, chance: np.random.Generator, resamples: int) -> Interval:
    """Returns a method's interval."""
    if method == "ours":
        return case.ours(sample)
    found = scipy_stats.bootstrap(
        tuple(sample.T),
        lambda *columns, axis: case.statistic(np.stack(columns, axis=-1)),
        method=METHODS[method],
        n_resamples=resamples,
        paired=True,
        vectorized=True,
        rng=chance,
    )
    low, high = found.confidence_interval
    return Interval(float(case.statistic(sample)), float(low), float(high), len(sample))


def coverage(case: Case, count: int, simulations: int, resamples: int = 999, seed: int = 0) -> dict[str, float]:
    """Returns the share of intervals that do not leave out the truth, by method, and of ours that are none."""
    chance = np.random.default_rng((seed, count))
    held = dict.fromkeys((*METHODS, NONE), 0)
    for _ in range(simulations):
        sample = case.draw(chance, count)
        for method in METHODS:
            one = interval(case, sample, method, chance, resamples)
            held[method] += not one.excludes(case.truth)
            held[NONE] += method == "ours" and math.isnan(one.low)
    return {name: number / simulations for name, number in held.items()}


def compute(config: Mapping[str, Any]) -> dict[str, float]:
    """One run: the coverage of a statistic at a number of seeds."""
    (case,) = (case for case in CASES if case.name == config["statistic"])
    return coverage(case, config["seeds"], config["simulations"])


class _Study(base.Study):
    name, part, kept, kind = "coverage", "statistics", "interval_coverage", KIND
    columns = ("statistic", "seeds", *METHODS, NONE)
    title = "How often 95% intervals hold the truth"
    about = f"Shares of simulated samples; the goal is {GOAL[0]:.0%} to {GOAL[1]:.0%} in every cell."
    presets = {"quick": 50, "standard": 1500}  # samples per cell

    def configs(self, size: int) -> list[dict[str, Any]]:
        """Returns every statistic at every number of seeds."""
        cases = itertools.product(CASES, SIZES)
        return [{"statistic": case.name, "seeds": count, "simulations": size} for case, count in cases]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns a panel per statistic: a line per method along the number of seeds."""
        made = []
        for statistic in table.statistic.unique():
            rows = table[table.statistic == statistic]
            lines = [
                panels.Series(method, tuple(map(panels.Point, rows.seeds.astype(float), rows[method])))
                for method in METHODS
            ]
            options: dict[str, Any] = {"kind": "lines", "x_label": "seeds", "log_x": True, "reference": 0.95}
            made.append(base.Panel(statistic, "share of samples", tuple(lines), **options))
        return made


FIGURE = _Study()
