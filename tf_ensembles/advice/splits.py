"""How `advise` divides examples: some train, some say when to stop training, and others, that did neither, judge.

- Many examples: one split into three.
- Few examples: cross-fitting. The examples are cut into folds. Each fold judges ensembles that were trained without it,
  and whose training other folds stopped, so that every example trains, stops and judges, and never two of these for one
  ensemble.
- Validation data of the user's: they judge. With many training examples, some of these stop; with few, folds of them
  say in turn how many epochs are best, and what is judged is trained on all.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles.advice import scores as scoring
from tf_ensembles.base import Array
from tf_ensembles.ensemble import data as checks

Rows = NDArray[np.int64]

# With fewer examples than this in a part, folds take turns.
_ENOUGH = 500
# With fewer folds, too little would be left to train on.
_LEAST_FOLDS = 5
# A part that only says when to stop need not be larger.
_MOST_TO_STOP = 2000
# Blocks of examples that must judge: fewer tell nothing about the spread between them.
_LEAST_BLOCKS = 10


@dataclasses.dataclass(frozen=True)
class Examples:
    """Inputs `[batch, ...]`, or a structure of them, targets `[batch, ...]`, and ids `[batch]`, which name rows."""

    x: Any
    y: Array
    ids: Rows

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Rows) -> Examples:
        """Returns some of the examples."""
        return Examples(tf.nest.map_structure(lambda leaf: leaf[rows], self.x), self.y[rows], self.ids[rows])


@dataclasses.dataclass(frozen=True)
class Part:
    """One training: on what, stopped by what, and judged by what. `stop` and `judge` may be None."""

    train: Examples
    stop: Examples | None
    judge: Examples | None


@dataclasses.dataclass(frozen=True)
class Split:
    """The trainings of a candidate.

    `parts` are trained first, and choose the number of epochs. Then `whole`, if any, is trained for that many. The
    examples that judge are those of all parts in turn, or those of `whole`: an even number of whole blocks.
    """

    parts: tuple[Part, ...]
    whole: Part | None
    how: str  # in words

    @property
    def judge(self) -> list[Examples]:
        """What judges, part by part."""
        parts = self.parts if self.whole is None else (self.whole,)
        return [part.judge for part in parts if part.judge is not None]

    @property
    def num_judging(self) -> int:
        """How many examples judge."""
        return sum(len(examples) for examples in self.judge)


def make_split(
    x: Any,
    y: Any,
    fraction: float,
    given: tuple[Any, Any] | None,
    folds: int | None,
    stops: bool,
    seed: int,
    tau: int,
) -> Split:
    """Divides examples.

    Args:
        x: inputs `[batch, ...]`, or a structure of them.
        y: targets `[batch, ...]`.
        fraction: the share of the examples that judge, and of the rest that stops training.
        given: `(x, y)` that judge instead.
        folds: how many folds take turns; 1 for one split; None decides by the number of examples.
        stops: whether some examples are kept to stop training.
        seed: decides the order.
        tau: labels per joint prediction.
    """
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"Expected a validation_split between 0 and 1. Received: {fraction}")
    if folds is not None and (not isinstance(folds, int) or folds < 1 or (folds == 2 and given is None and stops)):
        raise ValueError(f"Expected folds=None, 1, or 3 or more: to train, to stop and to judge. Received: {folds!r}")
    examples = _checked(x, y, "x, y")
    random = np.random.default_rng(seed)
    # A random order once; ids keep naming the rows that the user gave.
    examples = examples.take(random.permutation(len(examples)))
    if folds is None:
        folds = 1 if len(examples) * fraction >= _ENOUGH else max(_LEAST_FOLDS, round(1.0 / fraction))
    unit = scoring.block_length(tau)
    if given is not None:
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ValueError(f"Expected validation_data=(x, y). Received: {type(given)}")
        judge = _checked(*given, "validation_data")
        judge = judge.take(random.permutation(len(judge)))
        judge = judge.take(np.arange(_even(len(judge), unit, tau, len(examples))))
        return _judged_by(judge, examples, fraction, folds, stops)
    if folds == 1:
        return _three_ways(examples, fraction, stops, unit, tau)
    return _cross_fitted(examples, folds, stops, unit, tau)


def _judged_by(judge: Examples, examples: Examples, fraction: float, folds: int, stops: bool) -> Split:
    if not stops:
        return Split((Part(examples, None, judge),), None, f"{len(judge)} given examples judge")
    if folds == 1 or len(examples) < 2 * folds:
        train, stop = _held_out(examples, fraction)
        how = f"{len(train)} examples trained, {len(stop)} stopped training, {len(judge)} given ones judge"
        return Split((Part(train, stop, judge),), None, how)
    length = len(examples) // folds
    rows = np.arange(len(examples))
    chunks = [rows[fold * length : (fold + 1) * length] for fold in range(folds)]
    parts = tuple(Part(examples.take(np.setdiff1d(rows, c)), examples.take(c), None) for c in chunks)
    how = f"{folds} folds of {len(examples)} examples chose the epochs, then all trained; {len(judge)} given ones judge"
    return Split(parts, Part(examples, None, judge), how)


def _three_ways(examples: Examples, fraction: float, stops: bool, unit: int, tau: int) -> Split:
    at = math.floor(len(examples) * (1.0 - fraction))
    judge, train = examples.take(np.arange(at, len(examples))), examples.take(np.arange(at))
    judge = judge.take(np.arange(_even(len(judge), unit, tau, at)))
    if not stops:
        return Split((Part(train, None, judge),), None, f"{at} examples trained, {len(judge)} others judge")
    train, stop = _held_out(train, fraction)
    how = f"{len(train)} examples trained, {len(stop)} others stopped training, {len(judge)} others judge"
    return Split((Part(train, stop, judge),), None, how)


def _held_out(examples: Examples, fraction: float) -> tuple[Examples, Examples]:
    size = min(_MOST_TO_STOP, max(1, round(len(examples) * fraction)))
    if size >= len(examples):
        raise ValueError(f"Expected examples to train on and others to stop by. Received: {len(examples)}")
    rows = np.arange(len(examples))
    return examples.take(rows[:-size]), examples.take(rows[-size:])


def _cross_fitted(examples: Examples, folds: int, stops: bool, unit: int, tau: int) -> Split:
    """Folds of equal length, whole blocks each; the few examples that are left over always train."""
    length = len(examples) // folds // unit * unit
    _even(folds * length, unit, tau, len(examples) - length)
    rows = np.arange(len(examples))
    chunks = [rows[fold * length : (fold + 1) * length] for fold in range(folds)]
    parts = []
    for fold, judging in enumerate(chunks):
        stopping = chunks[(fold + 1) % folds] if stops else rows[:0]
        train = examples.take(np.setdiff1d(rows, np.concatenate([judging, stopping])))
        if fold == folds - 1 and folds * length // unit % 2:
            judging = judging[:-unit]  # Halves of the blocks choose for each other: their number is even.
        parts.append(Part(train, examples.take(stopping) if stops else None, examples.take(judging)))
    how = f"cross-fitting in {folds} folds of {length}: an ensemble is judged by examples that did not train"
    return Split(tuple(parts), None, how + (" or stop it" if stops else " it"))


def _even(count: int, unit: int, tau: int, num_train: int) -> int:
    """Returns how many of the examples that judge fill an even number of blocks."""
    if count // unit < _LEAST_BLOCKS or not num_train:
        raise ValueError(
            f"Expected at least {_LEAST_BLOCKS * unit} examples that judge for tau={tau}, and some to train on. "
            f"Received: {count} and {num_train}; give more, a larger validation_split, or a smaller tau"
        )
    return count // (2 * unit) * 2 * unit


def _checked(x: Any, y: Any, name: str) -> Examples:
    if not checks.is_arrays(x) or y is None:
        raise ValueError(f"Expected arrays for {name}. Received: {type(x)} and {type(y)}")
    x, y = checks.as_arrays(x), np.asarray(y)
    length = checks.check_inputs(x)
    if y.ndim == 0 or len(y) != length:
        raise ValueError(f"Expected as many targets as inputs, {length}. Received: y of shape {y.shape}")
    return Examples(x, y, np.arange(length))
