"""Scores of resampled examples, and the intervals they give.

A subject's scores are computed again on examples drawn with replacement, as weights `[draws, examples]`. All subjects
meet the same draws, so differences between them are paired. The interval is that of the draws, moved to the score
itself: resampling alone makes a calibration error larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tf_ensembles.metrics.likelihood import Floats

Weights = NDArray[np.float32]
LEVEL = 0.95
_FEW = 1000  # examples; of more, draws know as much as an exact test
_SLICE = 2**22  # numbers of one slice of draws


class Statistic(NamedTuple):
    """A score: its value, and what it is for weights `[draws, examples]`, as `[draws]`."""

    value: float
    of: Callable[[Weights], Floats]
    least: float = -math.inf  # what it can be at least, and at most
    most: float = math.inf
    trials: int = 0  # of a share: of how many examples; 0 for what is no share
    hits: NDArray[np.bool_] | None = None  # of a share of all examples: which ones, `[examples]`


class Estimate(NamedTuple):
    """A score and its interval."""

    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float | None]:
        """Returns the numbers for JSON, which knows no NaN."""
        return {name: float(value) if math.isfinite(value) else None for name, value in self._asdict().items()}


def mean(
    values: NDArray[Any],
    least: float = -math.inf,
    most: float = math.inf,
    inside: NDArray[np.bool_] | None = None,
) -> Statistic:
    """Returns the mean of values `[examples]` over all examples, or over those of a slice, `[examples]` of bool."""
    is_share = values.dtype == np.bool_
    numbers = np.asarray(values, np.float64)
    if is_share:
        least, most = 0.0, 1.0
    if inside is None:
        trials = len(numbers) if is_share else 0
        of = lambda weights: weights @ numbers / weights.sum(axis=1)  # noqa: E731
        return Statistic(float(numbers.mean()), of, least, most, trials, values if is_share else None)
    own = numbers[inside]
    value = float(own.mean()) if len(own) else math.nan

    def of_slice(weights: Weights) -> Floats:
        drawn = weights[:, inside]
        return drawn @ own / drawn.sum(axis=1)

    return Statistic(value, of_slice, least, most, len(own) if is_share else 0)


def average(parts: list[Statistic]) -> Statistic:
    """Returns the mean of several members' statistics."""
    return Statistic(
        float(np.mean([part.value for part in parts])),
        lambda weights: np.mean([part.of(weights) for part in parts], axis=0),
        parts[0].least,
        parts[0].most,
    )


def draws(count: int, examples: int, seed: int) -> Iterator[Weights]:
    """Yields how often each example is drawn, `[some draws, examples]`, `count` draws in all."""
    random = np.random.default_rng(seed)
    step = max(1, _SLICE // examples)
    for start in range(0, count, step):
        rows = min(step, count - start)
        chosen = random.integers(0, examples, (rows, examples)) + examples * np.arange(rows)[:, None]
        yield np.bincount(chosen.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float32)


def resample(statistics: Mapping[Any, Statistic], examples: int, count: int, seed: int) -> dict[Any, Floats]:
    """Returns the scores of `count` draws of the examples, `[count]` each."""
    found: dict[Any, list[Floats]] = {name: [] for name in statistics}
    for weights in draws(count, examples, seed):
        for name, statistic in statistics.items():
            with np.errstate(divide="ignore", invalid="ignore"):  # a slice of which nothing was drawn
                found[name].append(np.asarray(statistic.of(weights), np.float64))
    return {name: np.concatenate(parts) for name, parts in found.items()}


def estimate(statistic: Statistic, drawn: Floats) -> Estimate:
    """Returns a score with its interval; where all examples agree, no draw differs, and the exact binomial one."""
    if statistic.trials and statistic.value in (0.0, 1.0):
        reach = ((1.0 - LEVEL) / 2) ** (1.0 / statistic.trials)  # all of so many: Clopper and Pearson
        return Estimate(1.0, reach, 1.0) if statistic.value else Estimate(0.0, 0.0, 1.0 - reach)
    return interval(statistic.value, drawn, statistic.least, statistic.most)


def interval(value: float, drawn: Floats, least: float = -math.inf, most: float = math.inf) -> Estimate:
    """Returns a value with the interval of its draws, moved to it; NaN where nothing could be drawn."""
    finite = drawn[np.isfinite(drawn)]
    if not math.isfinite(value) or len(finite) < 2:
        return Estimate(value, math.nan, math.nan)
    low, high = np.quantile(finite - finite.mean(), [(1.0 - LEVEL) / 2, (1.0 + LEVEL) / 2]) + value
    return Estimate(value, float(max(low, least)), float(min(high, most)))


def difference(first: Statistic, second: Statistic, drawn_first: Floats, drawn_second: Floats) -> Estimate:
    """Returns a score less another one of the same examples, with the interval of paired draws.

    Of two shares it holds zero wherever an exact sign test of the examples on which they differ cannot tell: where
    these are few, draws say more than they know.
    """
    found = interval(first.value - second.value, drawn_first - drawn_second)
    if first.hits is None or second.hits is None or found.low <= 0.0 <= found.high:
        return found
    gained, lost = int(np.sum(first.hits & ~second.hits)), int(np.sum(second.hits & ~first.hits))
    count = gained + lost
    if count > _FEW or _tail(min(gained, lost), count) <= (1.0 - LEVEL) / 2:
        return found
    return Estimate(found.value, min(found.low, 0.0), max(found.high, 0.0))


def _tail(most: int, count: int) -> float:
    """Returns the probability of at most so many heads of `count` fair coins."""
    return sum(math.comb(count, k) for k in range(most + 1)) / 2**count
