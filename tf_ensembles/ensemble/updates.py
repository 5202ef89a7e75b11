"""Optimizer steps that keep members independent, and members that are frozen.

Stacked variables hold all members, so an optimizer that treats every number by itself trains each member as if it were
alone. One that looks at a whole variable (norms, matrix factors) would mix them: it gets one variable per member.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.layer_rules import Hidden

_ELEMENTWISE = (
    keras.optimizers.SGD, keras.optimizers.RMSprop, keras.optimizers.Adam, keras.optimizers.AdamW,
    keras.optimizers.Adadelta, keras.optimizers.Adagrad, keras.optimizers.Adamax, keras.optimizers.Nadam,
    keras.optimizers.Ftrl, keras.optimizers.Lion,
)  # fmt: skip


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


class MemberwiseUpdate:
    """Applies gradients with a Keras optimizer, member by member in effect.

    Args:
        optimizer: any Keras optimizer.
        owned: the trainable variables, each with the member whose it is, or None: `[members, ...]`, a row for each.
        num_members: M.
    """

    def __init__(self, optimizer: Any, owned: Sequence[tuple[Any, int | None]], num_members: int) -> None:
        self._optimizer, self._num_members = optimizer, num_members
        self.variables = [variable for variable, _ in owned]
        self._owners = [member for _, member in owned]
        self._slices: list[list[Any]] = []
        stacked = None in self._owners
        if stacked and type(_inner(optimizer)) not in _ELEMENTWISE:
            if getattr(_inner(optimizer), "use_ema", False):
                name = type(_inner(optimizer)).__name__
                raise ValueError(
                    f"Expected use_ema=False with {name}, whose updates mix numbers. Received: use_ema=True"
                )
            self._slices = [
                [keras.Variable(v.value[m], name=f"{v.name}_{m}") for v in self.variables] for m in range(num_members)
            ]
        if not optimizer.built:
            optimizer.build([v for member in self._slices for v in member] if self._slices else self.variables)

    def follow(self, trainable: Sequence[Any]) -> None:
        """Raises if a variable has become trainable that the optimizer does not know; fewer are no trouble."""
        known = {id(variable) for variable in self.variables}
        for variable in trainable:
            if id(variable) not in known:
                raise ValueError(
                    f"Expected compile() once more after layers were made trainable. Received: {variable.path}, which "
                    "the optimizer does not know"
                )

    def gradients(self, tape: tf.GradientTape, total: tf.Tensor) -> list[Any]:
        """Returns the gradients of the variables, None for those that are not trained now."""
        trained = [variable for variable in self.variables if variable.trainable]
        found = dict(zip(map(id, trained), tape.gradient(total, trained), strict=True))
        return [found.get(id(variable)) for variable in self.variables]

    def apply(self, gradients: Sequence[Any], losses: tf.Tensor) -> None:
        """Updates the variables; `losses` `[members]` tell which members are still finite."""
        reached = [place for place, gradient in enumerate(gradients) if gradient is not None]
        found, owners = [gradients[place] for place in reached], [self._owners[place] for place in reached]
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            # One member's NaN would make the loss scale drop the whole step.
            finite = tf.math.is_finite(losses)
            found = [
                tf.where(_broadcastable(_of(finite, owner), g), g, tf.zeros_like(g))
                for g, owner in zip(map(_dense, found), owners, strict=True)
            ]
        found = self._clip(found, owners)
        with _without_clipping(_inner(self._optimizer)):
            if self._slices:
                self._apply_by_slices(found, reached)
            else:
                self._optimizer.apply(found, [self.variables[place] for place in reached])

    def _apply_by_slices(self, gradients: Sequence[Any], reached: Sequence[int]) -> None:
        variables = [self.variables[place] for place in reached]
        slices = [[member[place] for place in reached] for member in self._slices]
        values = [tf.unstack(v.value, num=self._num_members) for v in variables]
        parts = [tf.unstack(g, num=self._num_members) for g in gradients]
        for m, member in enumerate(slices):
            for variable, value in zip(member, values, strict=True):
                variable.assign(value[m])
        self._optimizer.apply(
            [part[m] for m in range(self._num_members) for part in parts],
            [v for member in slices for v in member],
        )
        for index, variable in enumerate(variables):
            variable.assign(tf.stack([member[index].value for member in slices]))

    def _clip(self, gradients: Sequence[Any], owners: Sequence[int | None]) -> list[Any]:
        """Clips by norm, each member's gradients by their own norm."""
        inner = _inner(self._optimizer)
        if inner.global_clipnorm is None and inner.clipnorm is None:
            return list(gradients)
        scale = 1.0
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            scale = self._optimizer.dynamic_scale.value  # The gradients are still multiplied by it.
        squares = [_squared_norm(g, owner is None) for g, owner in zip(gradients, owners, strict=True)]
        if inner.global_clipnorm is not None:
            rows = [square for square, owner in zip(squares, owners, strict=True) if owner is None]
            own = [[q for q, o in zip(squares, owners, strict=True) if o == m] for m in range(self._num_members)]
            total = tf.stack([sum(mine, start=tf.zeros([])) for mine in own]) if any(own) else tf.zeros([])
            factor = _factor(inner.global_clipnorm * scale, tf.sqrt(sum(rows, start=total)))
            factors = [_of(factor, owner) for owner in owners]
        else:
            factors = [_factor(inner.clipnorm * scale, tf.sqrt(square)) for square in squares]
        return [_times(g, factor) for g, factor in zip(gradients, factors, strict=True)]


def _of(per_member: tf.Tensor, owner: int | None) -> tf.Tensor:
    """`[members]` for a variable with a row for each, and a scalar for that of one member."""
    return per_member if owner is None else per_member[owner]


def _dense(gradient: Any) -> tf.Tensor:
    return tf.convert_to_tensor(gradient)


def _squared_norm(gradient: Any, stacked: bool) -> tf.Tensor:
    """`[members]`, or a scalar. Rows of an embedding that a batch has more than once count one by one, as in Keras."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_sum(tf.square(values), axis=list(range(1, len(values.shape))) if stacked else None)


def _times(gradient: Any, factor: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * _broadcastable(factor, gradient)


def _factor(limit: Any, norm: tf.Tensor) -> tf.Tensor:
    return limit / tf.maximum(norm, limit)


def _broadcastable(per_member: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """`[members]` in a shape that broadcasts against `[members, ...]`; a scalar as it is."""
    return tf.reshape(per_member, [-1, *([1] * (len(tensor.shape) - 1))]) if per_member.shape.rank else per_member


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
def frozen_members_kept(owned: Sequence[tuple[Any, int | None]], frozen: Array) -> Iterator[None]:
    """Puts the frozen members' part of the variables back, after a step, to what it was before it.

    Args:
        owned: variables, each with the member whose it is, or None: `[members, ...]`.
        frozen: which members are frozen, `[members]` of bool. Without any, nothing is read or written.
    """
    kept = [(variable, owner) for variable, owner in owned if (frozen.any() if owner is None else frozen[owner])]
    before = [tf.identity(variable.value) for variable, _ in kept]
    yield
    for (variable, owner), value in zip(kept, before, strict=True):
        is_frozen = tf.constant(frozen if owner is None else True)
        variable.assign(tf.where(_broadcastable(is_frozen, value), value, variable.value))


class Snapshot:
    """The variables of members at different times: each member's as they were when it was last kept."""

    def __init__(self, owned: Sequence[tuple[Any, int | None]]) -> None:
        self._owned = list(owned)
        self._values = [np.array(variable) for variable, _ in self._owned]

    def keep(self, members: Array) -> None:
        """Takes the present variables of these members, `[members]` of bool."""
        for place, (variable, owner) in enumerate(self._owned):
            if owner is None:
                self._values[place][members] = np.asarray(variable)[members]
            elif members[owner]:
                self._values[place] = np.array(variable)

    def put_back(self, members: Array) -> None:
        """Gives these members the variables that were kept."""
        for (variable, owner), kept in zip(self._owned, self._values, strict=True):
            if owner is None:
                value = np.array(variable)
                value[members] = kept[members]
                variable.assign(value)
            elif owner in members:
                variable.assign(kept)


class Steps:
    """The part of an `Ensemble` that makes its compiled steps, which hold who is frozen and what is trainable."""

    num_members: int
    optimizer: Any
    trainable_variables: list[Any]
    distribute_strategy: Any
    compiled: bool
    _built_members: Callable[[], Any]
    _frozen: Marks
    _diverged: Marks
    _update: Hidden | None
    _auto_jit: bool
    _flags: Any = None

    @property
    def frozen(self) -> Array:
        """Which members are no longer trained, `[members]` of bool."""
        return self._frozen.read()

    @property
    def diverged(self) -> Array:
        """Which members' loss has become NaN or infinite, `[members]` of bool. Mixtures and metrics leave them out."""
        return self._diverged.read()

    def _make_update(self) -> MemberwiseUpdate:
        if self._update is None:
            with self.distribute_strategy.scope():
                owners = {id(variable): owner for variable, owner in self._built_members().owned_variables()}
                owned = [(variable, owners[id(variable)]) for variable in self.trainable_variables]
                update = MemberwiseUpdate(self.optimizer, owned, self.num_members)
            self._update = Hidden(update)
        return self._update.value

    def _remember_marks(self) -> None:
        """Which members are marked is part of the compiled steps, so that an ensemble without any pays nothing."""
        self._frozen.remember()
        self._diverged.remember()

    def make_train_function(self, force: bool = False) -> Any:
        """Compiles the training step for the members that are marked now, and the layers that are trainable now."""
        self._remember_marks()
        flags = self._built_members().flags()
        self._make_update().follow(self.trainable_variables)
        changed, self._flags = flags != self._flags, flags
        return super().make_train_function(force or changed)  # type: ignore[misc]

    def make_test_function(self, force: bool = False) -> Any:
        """Compiles the evaluation step for the members that are marked now."""
        self._remember_marks()
        model: Any = self
        with keras_private.jit_left_off(model, self._auto_jit):
            return super().make_test_function(force)  # type: ignore[misc]

    def make_predict_function(self, force: bool = False) -> Any:
        """Compiles prediction."""
        model: Any = self
        with keras_private.jit_left_off(model, self._auto_jit):
            return super().make_predict_function(force)  # type: ignore[misc]

    def freeze_members(self, indices: Sequence[int]) -> None:
        """Stops training these members; the others go on."""
        self._mark(indices, self._frozen)

    def mark_diverged(self, indices: Sequence[int]) -> None:
        """Stops training these members and leaves them out of mixtures and metrics."""
        self._mark(indices, self._frozen, self._diverged)

    def _mark(self, indices: Sequence[int], *marks: Marks) -> None:
        for mark in marks:
            mark.add(indices)
        if self.compiled:  # The marks are part of the compiled steps.
            self.make_train_function(force=True)
            self.make_test_function(force=True)
