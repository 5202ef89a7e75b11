"""Example ids: how a training example keeps its name, so that it keeps its bootstrap weights.

`Ensemble.fit(x, y)` numbers arrays by position. A `tf.data.Dataset` is numbered with `number_examples`, before it is
shuffled and batched; anything else yields `with_ids(x, ids)` in the place of `x`. Ids travel inside `x`, so every way
in which Keras slices, shuffles and distributes inputs keeps them beside their examples.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

INPUTS, IDS, PRIOR = "tfe_inputs", "tfe_example_id", "tfe_prior"

HOW_TO_ATTACH = (
    "Number a tf.data.Dataset with tfe.number_examples(dataset) before shuffle and batch, "
    "or give tfe.with_ids(x, ids) in the place of x."
)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a batch carries beside the model's inputs: ids `[batch]` and prior outputs `[batch, members, outputs]`."""

    x: Any
    ids: Any = None
    prior: Any = None


def with_ids(x: Any, ids: Any, prior: Any = None) -> dict[str, Any]:
    """Returns `x` with the ids `[batch]` of its examples, to be given to `fit` or `train_on_batch` in the place of `x`.

    Args:
        x: inputs `[batch, ...]`, or any structure of them.
        ids: integers `[batch]`; an id names the same example wherever it appears.
        prior: the prior's outputs on `x`, `[batch, members, outputs]`, when they are known already.
    """
    wrapped = {INPUTS: x, IDS: ids, PRIOR: prior}
    return {key: value for key, value in wrapped.items() if value is not None}


def number_examples(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Attaches ids 0, 1, 2, ... to a dataset of single examples `(x, y)` or `(x, y, sample_weight)`.

    Call it before `shuffle`, `repeat` and `batch`, on data that comes in the same order every time.
    """

    def attach(index: tf.Tensor, *example: Any) -> tuple[Any, ...]:
        x, *rest = example[0] if len(example) == 1 else example
        return (with_ids(x, index), *rest)

    if not isinstance(dataset.element_spec, tuple) or len(dataset.element_spec) not in (2, 3):
        raise ValueError(
            f"Expected a dataset of (x, y) or (x, y, sample_weight) tuples. Received: {dataset.element_spec}"
        )
    return dataset.enumerate().map(attach, num_parallel_calls=tf.data.AUTOTUNE)


def split(x: Any) -> Inputs:
    """Separates a model's inputs from what travels with them."""
    if isinstance(x, dict) and INPUTS in x:
        return Inputs(x[INPUTS], x.get(IDS), x.get(PRIOR))
    return Inputs(x)
