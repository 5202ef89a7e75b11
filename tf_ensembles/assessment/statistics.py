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

from tf_ensembles import intervals
from tf_ensembles.intervals import Interval
from tf_ensembles.metrics.likelihood import Floats

Weights = NDArray[np.float32]
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


def mean(
    values: NDArray[Any],
    least: float = -math.inf,
    most: float = math.inf,
    inside: NDArray[np.bool_] | None = None,
) -> Statistic:
    """Returns the mean of values `[examples]` over all examples, or over those of a slice, `[examples]` of bool."""
    is_share = values.dtype == np.bool_
    rows: Any = slice(None) if inside is None else inside
    own = np.asarray(values, np.float64)[rows]
    if is_share:
        least, most = 0.0, 1.0

    def of(weights: Weights) -> Floats:
        drawn = weights[:, rows]
        return drawn @ own / drawn.sum(axis=1)

    value = float(own.mean()) if len(own) else math.nan
    hits = values if is_share and inside is None else None
    return Statistic(value, of, least, most, len(own) if is_share else 0, hits)


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
    scores: dict[Any, list[Floats]] = {name: [] for name in statistics}
    for weights in draws(count, examples, seed):
        for name, statistic in statistics.items():
            with np.errstate(divide="ignore", invalid="ignore"):  # a slice of which nothing was drawn
                scores[name].append(np.asarray(statistic.of(weights), np.float64))
    return {name: np.concatenate(parts) for name, parts in scores.items()}


def estimate(statistic: Statistic, drawn: Floats) -> Interval:
    """Returns a score with its interval; where all examples agree, no draw differs, and the exact binomial one."""
    if statistic.trials and statistic.value in (0.0, 1.0):
        reach = (intervals.LEVEL / 2) ** (1.0 / statistic.trials)  # all of so many: Clopper and Pearson
        return Interval(1.0, reach, 1.0) if statistic.value else Interval(0.0, 0.0, 1.0 - reach)
    return intervals.resampled(statistic.value, drawn, statistic.least, statistic.most)


def difference(first: Statistic, second: Statistic, drawn_first: Floats, drawn_second: Floats) -> Interval:
    """Returns a score less another one of the same examples, with the interval of paired draws.

    Of two shares it holds zero wherever an exact sign test of the examples on which they differ cannot tell: where
    these are few, draws say more than they know.
    """
    drawn = intervals.resampled(first.value - second.value, drawn_first - drawn_second)
    if first.hits is None or second.hits is None or not drawn.excludes(0.0):
        return drawn
    gained, lost = int(np.sum(first.hits & ~second.hits)), int(np.sum(second.hits & ~first.hits))
    count = gained + lost
    if count > _FEW or _tail(min(gained, lost), count) <= intervals.LEVEL / 2:
        return drawn
    return Interval(drawn.estimate, min(drawn.low, 0.0), max(drawn.high, 0.0))


def to_dict(interval: Interval) -> dict[str, float | None]:
    """Returns the numbers for JSON, which knows no NaN."""
    numbers = {"value": interval.estimate, "low": interval.low, "high": interval.high}
    return {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}


def _tail(most: int, count: int) -> float:
    """Returns the probability of at most so many heads of `count` fair coins."""
    return sum(math.comb(count, k) for k in range(most + 1)) / 2**count
