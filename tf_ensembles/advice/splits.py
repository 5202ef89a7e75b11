"""How `advise` divides examples: some train, some say when to stop training, and others, that did neither, judge.

- Many examples: one split into three.
- Few examples: cross-fitting. The examples are cut into folds. Each fold judges ensembles that were trained without it,
  and whose training other folds stopped, so that every example trains, stops and judges, and never two of these for one
  ensemble.
- Validation data of the user's: they judge, and a fifth of the other examples stops training.
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

# The share of the examples that judges, and of the rest that stops training.
_SHARE = 0.2
# With fewer examples that judge, folds take turns.
_ENOUGH = 500
_NUM_FOLDS = 5
# A part that only says when to stop need not be larger.
_MOST_TO_STOP = 2000
# Blocks of examples that must judge: fewer tell nothing about the spread between them.
_LEAST_BLOCKS = 10
# Labels per joint prediction; the second where too few examples judge for the first.
_TAUS = (10, 2)


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
    """One training: on what, stopped by what, and judged by what."""

    train: Examples
    stop: Examples
    judge: Examples


@dataclasses.dataclass(frozen=True)
class Split:
    """The trainings of a candidate. An even number of whole blocks of examples judges."""

    parts: tuple[Part, ...]
    tau: int  # labels per joint prediction
    description: str

    @property
    def num_judging(self) -> int:
        """How many examples judge."""
        return sum(len(part.judge) for part in self.parts)


def make_split(x: Any, y: Any, validation: Any, seed: int) -> Split:
    """Divides examples.

    Args:
        x: inputs `[batch, ...]`, or a structure of them.
        y: targets `[batch, ...]`.
        validation: `(x, y)` that judge; or how many folds take turns, 1 for one split; None decides by the number of
            examples.
        seed: decides the order.
    """
    examples = _checked(x, y, "x, y")
    random = np.random.default_rng(seed)
    # A random order once; ids keep naming the rows that the user gave.
    examples = examples.take(random.permutation(len(examples)))
    if isinstance(validation, tuple | list) and len(validation) == 2:
        judge = _checked(validation[0], validation[1], "validation")
        return _single(examples, judge.take(random.permutation(len(judge))), "given ones")
    if validation is not None and (not isinstance(validation, int) or validation < 1 or validation == 2):
        raise ValueError(
            "Expected validation=(x, y) or a number of folds, 1 for one split, or 3 or more: to train, to stop and to "
            f"judge. Received: {validation if isinstance(validation, int) else type(validation)}"
        )
    if validation is None:
        validation = 1 if len(examples) * _SHARE >= _ENOUGH else _NUM_FOLDS
    if validation > 1:
        return _cross_fitted(examples, validation)
    at = math.floor(len(examples) * (1.0 - _SHARE))
    return _single(examples.take(np.arange(at)), examples.take(np.arange(at, len(examples))), "others")


def _single(examples: Examples, judge: Examples, name: str) -> Split:
    size = min(_MOST_TO_STOP, max(1, round(len(examples) * _SHARE)))
    if size >= len(examples):
        raise ValueError(f"Expected examples to train on and others to stop by. Received: {len(examples)}")
    rows = np.arange(len(examples))
    train, stop = examples.take(rows[:-size]), examples.take(rows[-size:])
    tau = _choose_tau(len(judge), 1)
    blocks = len(judge) // (2 * scoring.block_length(tau))
    judge = judge.take(np.arange(blocks * 2 * scoring.block_length(tau)))
    description = f"{len(train)} examples trained, {len(stop)} others stopped training, {len(judge)} {name} judge"
    return Split((Part(train, stop, judge),), tau, description)


def _cross_fitted(examples: Examples, folds: int) -> Split:
    """Folds of equal length, whole blocks each; the few examples that are left over always train."""
    tau = _choose_tau(len(examples), folds)
    unit = scoring.block_length(tau)
    length = len(examples) // folds // unit * unit
    rows = np.arange(len(examples))
    chunks = [rows[fold * length : (fold + 1) * length] for fold in range(folds)]
    parts = []
    for fold, judging in enumerate(chunks):
        stopping = chunks[(fold + 1) % folds]
        train = examples.take(np.setdiff1d(rows, np.concatenate([judging, stopping])))
        if fold == folds - 1 and folds * length // unit % 2:
            judging = judging[:-unit]  # Halves of the blocks choose for each other: their number is even.
        parts.append(Part(train, examples.take(stopping), examples.take(judging)))
    return Split(
        tuple(parts),
        tau,
        f"cross-fitting in {folds} folds of {length}: an ensemble is judged by examples that did not train or stop it",
    )


def _choose_tau(num_examples: int, folds: int) -> int:
    """Returns the labels per joint prediction for which enough blocks of the examples judge."""
    for tau in _TAUS:
        unit = scoring.block_length(tau)
        if folds * (num_examples // folds // unit) >= _LEAST_BLOCKS:
            return tau
    needed = _LEAST_BLOCKS * scoring.block_length(_TAUS[-1])
    raise ValueError(f"Expected at least {needed} examples that judge. Received: {num_examples}")


def _checked(x: Any, y: Any, name: str) -> Examples:
    if not checks.is_arrays(x) or y is None:
        raise ValueError(f"Expected arrays for {name}. Received: {type(x)} and {type(y)}")
    x, y = checks.as_arrays(x), np.asarray(y)
    length = checks.check_inputs(x)
    if y.ndim == 0 or len(y) != length:
        raise ValueError(f"Expected as many targets as inputs, {length}. Received: y of shape {y.shape}")
    return Examples(x, y, np.arange(length))
