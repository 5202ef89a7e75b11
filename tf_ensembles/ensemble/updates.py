"""Optimizer steps that keep members independent, and members that are frozen.

Stacked variables hold all members, so an optimizer that treats every number by itself trains each member as if it were
alone. One that looks at a whole variable (norms, matrix factors) would mix them: it gets one variable per member.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array

_ELEMENTWISE = (
    keras.optimizers.SGD, keras.optimizers.RMSprop, keras.optimizers.Adam, keras.optimizers.AdamW,
    keras.optimizers.Adadelta, keras.optimizers.Adagrad, keras.optimizers.Adamax, keras.optimizers.Nadam,
    keras.optimizers.Ftrl, keras.optimizers.Lion,
)  # fmt: skip


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


class MemberwiseUpdate:
    """Applies gradients of stacked variables `[members, ...]` with a Keras optimizer, member by member in effect.

    Args:
        optimizer: any Keras optimizer.
        variables: the stacked trainable variables.
        num_members: M.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any], num_members: int) -> None:
        self._optimizer, self._variables, self._num_members = optimizer, list(variables), num_members
        self._slices: list[list[Any]] = []
        inner = _inner(optimizer)
        if inner.gradient_accumulation_steps and (inner.clipnorm is not None or inner.global_clipnorm is not None):
            raise ValueError(
                "Expected no clipnorm or global_clipnorm with gradient_accumulation_steps: Keras would clip what it "
                "accumulates over all members. Received: both. Use clipvalue, or larger batches"
            )
        if type(_inner(optimizer)) not in _ELEMENTWISE:
            if getattr(_inner(optimizer), "use_ema", False):
                name = type(_inner(optimizer)).__name__
                raise ValueError(
                    f"Expected use_ema=False with {name}, whose updates mix numbers. Received: use_ema=True"
                )
            self._slices = [
                [keras.Variable(v.value[m], name=f"{v.name}_{m}") for v in self._variables] for m in range(num_members)
            ]
        if not optimizer.built:
            optimizer.build([v for member in self._slices for v in member] if self._slices else self._variables)

    def apply(self, gradients: Sequence[Any], losses: tf.Tensor) -> None:
        """Updates the variables; `losses` `[members]` tell which members are still finite."""
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            # One member's NaN would make the loss scale drop the whole step.
            finite = tf.math.is_finite(losses)
            gradients = [tf.where(_broadcastable(finite, g), g, tf.zeros_like(g)) for g in gradients]
        gradients = self._clip(gradients)
        with _without_clipping(_inner(self._optimizer)):
            if self._slices:
                self._apply_by_slices(gradients)
            else:
                self._optimizer.apply(gradients, self._variables)

    def _apply_by_slices(self, gradients: Sequence[Any]) -> None:
        values = [tf.unstack(v.value, num=self._num_members) for v in self._variables]
        parts = [tf.unstack(g, num=self._num_members) for g in gradients]
        for m, member in enumerate(self._slices):
            for variable, value in zip(member, values, strict=True):
                variable.assign(value[m])
        self._optimizer.apply(
            [part[m] for m in range(self._num_members) for part in parts],
            [v for member in self._slices for v in member],
        )
        for index, variable in enumerate(self._variables):
            variable.assign(tf.stack([member[index].value for member in self._slices]))

    def _clip(self, gradients: Sequence[Any]) -> list[Any]:
        """Clips by norm, each member's gradients by their own norm."""
        inner = _inner(self._optimizer)
        scale = 1.0
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            scale = self._optimizer.dynamic_scale.value  # The gradients are still multiplied by it.
        squares = [tf.reduce_sum(tf.square(g), axis=list(range(1, len(g.shape)))) for g in gradients]
        if inner.global_clipnorm is not None:
            total = tf.sqrt(tf.add_n(squares))
            return [g * _broadcastable(_factor(inner.global_clipnorm * scale, total), g) for g in gradients]
        if inner.clipnorm is not None:
            limit = inner.clipnorm * scale
            return [g * _broadcastable(_factor(limit, tf.sqrt(s)), g) for g, s in zip(gradients, squares, strict=True)]
        return list(gradients)


def _factor(limit: Any, norm: tf.Tensor) -> tf.Tensor:
    return limit / tf.maximum(norm, limit)


def _broadcastable(per_member: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """`[members]` in a shape that broadcasts against `[members, ...]`."""
    return tf.reshape(per_member, [-1, *([1] * (len(tensor.shape) - 1))])


@contextlib.contextmanager
def _without_clipping(optimizer: Any) -> Iterator[None]:
    """Hides the norms from the optimizer while it is traced: it would clip all members by one norm."""
    kept = optimizer.clipnorm, optimizer.global_clipnorm
    optimizer.clipnorm = optimizer.global_clipnorm = None
    try:
        yield
    finally:
        optimizer.clipnorm, optimizer.global_clipnorm = kept


class Marks:
    """Marks on members, kept in a variable of the model so that they are saved with it.

    Args:
        model: gets the variable.
        num_members: M.
        name: the variable's.
    """

    def __init__(self, model: keras.Model, num_members: int, name: str) -> None:
        self._variable = model.add_weight(shape=(num_members,), initializer="zeros", trainable=False, name=name)
        self._remembered = np.zeros(num_members, bool)

    def read(self) -> Array:
        """Returns which members are marked, `[members]` of bool."""
        return np.asarray(self._variable) > 0

    def add(self, indices: Sequence[int]) -> None:
        """Marks these members as well."""
        flags = np.array(self._variable)
        flags[np.asarray(indices, int)] = 1.0
        self._variable.assign(flags)

    def remember(self) -> None:
        """Keeps the marks for a step that is about to be compiled, where the variable cannot be read."""
        self._remembered = self.read()

    def in_step(self) -> Array:
        """Returns which members are marked, inside a step that may be compiled."""
        return self.read() if tf.executing_eagerly() else self._remembered


@contextlib.contextmanager
def frozen_members_kept(variables: Sequence[Any], frozen: Array) -> Iterator[None]:
    """Puts the frozen members' slices of the variables back, after a step, to what they were before it.

    Args:
        variables: stacked variables `[members, ...]`.
        frozen: which members are frozen, `[members]` of bool. Without any, nothing is read or written.
    """
    kept = list(variables) if frozen.any() else []
    before = [tf.identity(variable.value) for variable in kept]
    yield
    for variable, value in zip(kept, before, strict=True):
        variable.assign(tf.where(_broadcastable(tf.constant(frozen), value), value, variable.value))
