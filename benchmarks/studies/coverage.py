"""How often 95% intervals hold the truth: those of `benchmarks.stats`, and others beside them.

    python -m benchmarks.studies.coverage

Samples of 5 to 100 seeds are drawn from distributions whose truth is known. Three kinds of statistic: a mean, the ratio
of two means over the same seeds (the relative differences of claims), and the mean over settings of scores divided by a
reference's (the bars of figures, whose reference is taken as known). The goal is 93 to 97% in every cell.

Beside ours: what was used before (Student's interval below ten seeds, with the denominator of a ratio as known; BCa
from ten on), and for comparison Student's interval, BCa, the plain and the studentized bootstrap at every size.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import special

from benchmarks import stats
from benchmarks.stats import Floats, Interval

SIZES = (5, 10, 20, 100)
GOAL = (0.93, 0.97)
METHODS = ("ours", "before", "Student", "BCa", "plain bootstrap", "bootstrap-t")
NONE = "ours: no interval"  # Fieller's is unbounded where a denominator cannot be told from 0: it decides nothing


@dataclasses.dataclass(frozen=True)
class Case:
    """A statistic of a distribution; a sample has a column per score, `[seeds, columns]`."""

    name: str
    draw: Callable[[np.random.Generator, int], Floats]
    truth: float
    statistic: Callable[[Floats], Floats]  # of samples `[..., seeds, columns]`
    by_seed: Callable[[Floats], Floats]  # `[..., seeds]`: what each seed adds to it, to first order
    ours: Callable[[Floats], Interval]
    known: Callable[[Floats], Floats]  # as `by_seed`, but with denominators as known, as it was before


def _mean(name: str, draw: Callable[[np.random.Generator, int], Floats], truth: float) -> Case:
    def values(sample: Floats) -> Floats:
        return sample[..., 0]

    def make(chance: np.random.Generator, count: int) -> Floats:
        return draw(chance, count)[:, None]

    return Case(
        f"mean, {name}",
        make,
        truth,
        lambda sample: values(sample).mean(-1),
        values,
        lambda sample: stats.mean_interval(values(sample)),
        values,
    )


def _ratio(name: str, draw: Callable[[np.random.Generator, int], Floats], truth: float) -> Case:
    def statistic(sample: Floats) -> Floats:
        means = sample.mean(-2)
        return np.asarray(means[..., 0] / means[..., 1])

    def by_seed(sample: Floats) -> Floats:
        base, ratio = sample[..., 1].mean(-1, keepdims=True), statistic(sample)[..., None]
        return np.asarray(ratio + (sample[..., 0] - ratio * sample[..., 1]) / base)

    def ours(sample: Floats) -> Interval:
        return stats.relative_difference(sample[:, 0], sample[:, 1]).plus(1.0)

    def known(sample: Floats) -> Floats:
        base = sample[..., 1].mean(-1, keepdims=True)
        return np.asarray(1.0 + (sample[..., 0] - sample[..., 1]) / base)

    return Case(f"ratio of means, {name}", draw, truth, statistic, by_seed, ours, known)


def _bars(name: str, draw: Callable[[np.random.Generator, int], Floats], truth: float) -> Case:
    """Columns are an agent's scores in all settings, then the reference's in the same."""

    def halves(sample: Floats) -> tuple[Floats, Floats]:
        one, other = np.split(sample, 2, axis=-1)
        return one, other

    def statistic(sample: Floats) -> Floats:
        one, other = halves(sample)
        return np.asarray((one.mean(-2) / other.mean(-2)).mean(-1))

    def by_seed(sample: Floats) -> Floats:
        one, other = halves(sample)
        base = other.mean(-2, keepdims=True)
        ratio = one.mean(-2, keepdims=True) / base
        return np.asarray((ratio + (one - ratio * other) / base).mean(-1))

    def known(sample: Floats) -> Floats:
        one, other = halves(sample)
        return np.asarray((one / other.mean(-2, keepdims=True)).mean(-1))

    return Case(
        f"mean of ratios, {name}",
        draw,
        truth,
        statistic,
        by_seed,
        lambda sample: stats.mean_interval(known(sample)),
        known,
    )


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


def intervals(case: Case, sample: Floats, chance: np.random.Generator, resamples: int) -> Iterator[tuple[float, float]]:
    """Yields the ends of every method's interval, in the order of `METHODS`."""
    count = len(sample)
    estimate, parts = float(case.statistic(sample)), case.by_seed(sample)
    error = float(parts.std(ddof=1)) / math.sqrt(count)
    drawn = sample[chance.integers(0, count, (resamples, count))]
    values = np.sort(case.statistic(drawn))
    bca = _bca(case, sample, estimate, values)
    reach = float(-special.stdtrit(count - 1, 0.025)) if count > 1 else math.nan
    known = case.known(sample)
    before = reach * float(known.std(ddof=1)) / math.sqrt(count)
    found = case.ours(sample)
    yield found.low, found.high
    yield (estimate - before, estimate + before) if count < 10 else bca
    yield estimate - reach * error, estimate + reach * error
    yield bca
    yield _at(values, 0.025), _at(values, 0.975)
    errors = case.by_seed(drawn).std(axis=-1, ddof=1) / math.sqrt(count)
    gaps = case.statistic(drawn) - estimate
    studentized = np.sort(np.divide(gaps, errors, out=np.copysign(np.inf, gaps), where=errors > 1e-9 * error))
    yield estimate - _at(studentized, 0.975) * error, estimate - _at(studentized, 0.025) * error


def _at(ordered: Floats, share: float) -> float:
    return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])


def _bca(case: Case, sample: Floats, estimate: float, ordered: Floats) -> tuple[float, float]:
    """The bootstrap that is corrected for bias and acceleration, from the values of resamples in their order."""
    count = len(sample)
    left_out = case.statistic(np.stack([np.delete(sample, seed, axis=0) for seed in range(count)]))
    gaps = left_out.mean() - left_out
    acceleration = float((gaps**3).sum() / (6.0 * (gaps**2).sum() ** 1.5))
    bias = float(special.ndtri(np.clip((ordered < estimate).mean(), 1e-4, 1 - 1e-4)))
    ends = []
    for normal in (-stats.NORMAL, stats.NORMAL):
        moved = bias + normal
        ends.append(_at(ordered, float(special.ndtr(bias + moved / (1.0 - acceleration * moved)))))
    return ends[0], ends[1]


def coverage(case: Case, count: int, simulations: int, resamples: int = 999, seed: int = 0) -> dict[str, float]:
    """Returns the share of intervals that do not leave out the truth, by method, and of ours that are none."""
    chance = np.random.default_rng((seed, count))
    held = dict.fromkeys((*METHODS, NONE), 0)
    for _ in range(simulations):
        sample = case.draw(chance, count)
        for name, (low, high) in zip(METHODS, intervals(case, sample, chance, resamples), strict=True):
            held[name] += not (low >= case.truth or high <= case.truth)
            held[NONE] += name == "ours" and math.isnan(low)
    return {name: found / simulations for name, found in held.items()}


def main() -> None:
    """Prints the table, and which cells of ours miss the goal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1500, help="samples per cell (default 1500)")
    args = parser.parse_args()
    missed = []
    columns = (*METHODS, NONE)
    print("| statistic | seeds | " + " | ".join(columns) + " |\n|---|---|" + "---|" * len(columns))
    for case in CASES:
        for count in SIZES:
            found = coverage(case, count, args.simulations)
            cells = " | ".join(f"{100 * found[name]:.1f}" for name in columns)
            print(f"| {case.name} | {count} | {cells} |", flush=True)
            if not GOAL[0] <= found["ours"] <= GOAL[1]:
                missed.append(f"{case.name}, {count} seeds: {found['ours']:.1%}")
    error = math.sqrt(0.95 * 0.05 / args.simulations)
    print(f"\nEach share has a standard error of about {error:.1%}. Ours outside of {GOAL[0]:.0%} to {GOAL[1]:.0%}:")
    print("\n".join(f"- {line}" for line in missed) or "- none")


if __name__ == "__main__":
    main()
