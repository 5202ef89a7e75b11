"""Optimizer steps that keep members independent.

Stacked variables hold all members, so an optimizer that treats every number by itself trains each member as if it were
alone. One that looks at a whole variable (norms, matrix factors) would mix them: it gets one variable per member.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.ensemble import replicas
from tf_ensembles.ensemble.members.mapping import Lookup

_ELEMENTWISE = (
    keras.optimizers.SGD, keras.optimizers.RMSprop, keras.optimizers.Adam, keras.optimizers.AdamW,
    keras.optimizers.Adadelta, keras.optimizers.Adagrad, keras.optimizers.Adamax, keras.optimizers.Nadam,
    keras.optimizers.Ftrl, keras.optimizers.Lion,
)  # fmt: skip


SHARED = -1  # the owner of a variable that all members share: that of a trunk


@dataclasses.dataclass(frozen=True)
class RowGradients:
    """Gradients of embeddings, one per row that was taken: `values` `[members, taken, size]`, at `ids`.

    A batch takes a row as often as its token comes. Keras hands these to the optimizer one by one, and what is not
    linear, such as the squares of Adam, is computed for each before they are added; so it is done here.
    """

    values: tf.Tensor
    ids: tf.Tensor  # [members, taken]
    num_rows: int

    def times(self, factor: tf.Tensor) -> RowGradients:
        """Returns them multiplied by a number per member, `[members]`."""
        return dataclasses.replace(self, values=self.values * factor[:, None, None])

    def of_all(self) -> tf.IndexedSlices:
        """Returns those of all members, as rows of `[members * rows, size]`."""
        members, size = self.values.shape[0], self.values.shape[-1]
        ids = self.ids + self.num_rows * tf.range(members, dtype=self.ids.dtype)[:, None]
        return _slices(tf.reshape(self.values, [-1, size]), tf.reshape(ids, [-1]), members * self.num_rows)

    def of_each(self) -> list[tf.IndexedSlices]:
        """Returns each member's, as rows of `[rows, size]`."""
        parts = zip(tf.unstack(self.values), tf.unstack(self.ids), strict=True)
        return [_slices(values, ids, self.num_rows) for values, ids in parts]


def _slices(values: tf.Tensor, ids: tf.Tensor, num_rows: int) -> tf.IndexedSlices:
    return tf.IndexedSlices(values, ids, tf.constant([num_rows, values.shape[-1]]))


def _row_gradients(lookups: Sequence[Lookup], gradients: Sequence[Any], variable: Any) -> Any:
    """Returns gradients of the rows that were looked up in a stacked variable `[members, rows, size]`; None if unused.

    Args:
        lookups: all of one pass.
        gradients: of the `rows` or `tables` of each.
        variable: the stacked variable.
    """
    members, num_rows, size = variable.shape
    values, ids = [], []
    for lookup, gradient in zip(lookups, gradients, strict=True):
        if lookup.tables is None and gradient is not None:
            taken = tf.reshape(lookup.ids, [members if len(lookup.ids.shape) == len(gradient.shape) - 1 else 1, -1])
            values.append(tf.reshape(gradient, [members, -1, size]))
            ids.append(tf.repeat(taken, members // taken.shape[0], axis=0))
        elif lookup.tables is not None and any(part is not None for part in gradient):
            if not all(isinstance(part, tf.IndexedSlices) for part in gradient):
                return tf.stack(
                    [tf.zeros([num_rows, size]) if g is None else tf.convert_to_tensor(g) for g in gradient]
                )
            values.append(tf.stack([tf.reshape(part.values, [-1, size]) for part in gradient]))
            ids.append(tf.stack([tf.cast(tf.reshape(part.indices, [-1]), tf.int32) for part in gradient]))
    if not values:
        return None
    return RowGradients(tf.cast(tf.concat(values, 1), variable.dtype), tf.concat(ids, 1), num_rows)


def _inner(optimizer: Any) -> Any:
    return optimizer.inner_optimizer if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) else optimizer


def check_independent(optimizer: Any) -> None:
    """Raises if an optimizer that is not Keras's own updates a variable differently when it is given others as well.

    It is tried on two members of two variables, and on the first of them alone, with the same gradients.
    """
    inner = _inner(optimizer)
    if type(inner).__module__.startswith("keras."):
        return
    try:
        # In a thread of its own, where there is neither a strategy nor the state of this one's random generators.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            together, again, alone = pool.map(functools.partial(_trial, inner), (2, 2, 1))
    except Exception as error:  # Keras trains with optimizers that cannot be copied.
        warnings.warn(
            f"Whether {type(inner).__name__} updates members independently could not be checked, since it cannot be "
            f"copied by get_config ({type(error).__name__}: {error}).",
            stacklevel=3,
        )
        return
    if not _close(together, again):  # It draws, so that nothing can be compared.
        return
    if not _close(together, alone):
        raise ValueError(
            "Expected an optimizer that updates each variable by its own gradient, since members are updated together. "
            f"Received: {type(inner).__name__}, whose update of one variable depends on the gradients of others"
        )


def _trial(optimizer: Any, num_members: int) -> list[Any]:
    """Returns what each of some steps adds to the first member's variables, by a copy of an optimizer."""
    config = optimizer.get_config()
    config.update(learning_rate=0.1, clipnorm=None, global_clipnorm=None, gradient_accumulation_steps=None)
    accepted = inspect.signature(type(optimizer)).parameters.values()
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in accepted):
        config = {parameter.name: config[parameter.name] for parameter in accepted if parameter.name in config}
    copy = type(optimizer).from_config(config)
    shapes = [(3, 2), (2,)]
    variables = [keras.Variable(np.zeros(shape, "float32")) for _ in range(num_members) for shape in shapes]
    copy.build(variables)
    added = []
    for step in range(5):
        # Members' gradients differ in size, and later ones are large, for what happens above a threshold only.
        sizes = [10.0 ** (2 * step + member) for member in range(num_members) for _ in shapes]
        draws = [np.random.default_rng([step, place]).normal(size=v.shape) for place, v in enumerate(variables)]
        before = [np.array(variable) for variable in variables[: len(shapes)]]
        copy.apply([tf.constant(size * draw, "float32") for size, draw in zip(sizes, draws, strict=True)], variables)
        added += [np.array(new) - old for new, old in zip(variables, before, strict=False)]
    return added


def _close(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether arrays agree to 1e-4 of the largest number of each."""
    pairs = zip(one, other, strict=True)
    return all(np.allclose(a, b, rtol=0.0, atol=1e-4 * float(np.abs(a).max(initial=0.0))) for a, b in pairs)


class MemberwiseUpdate:
    """Applies gradients with a Keras optimizer, member by member in effect.

    Args:
        optimizer: any Keras optimizer.
        owned: the trainable variables, each with the member whose it is, or None: `[members, ...]`, a row for each;
            `SHARED` for one that all members share.
        num_members: M.
        tables: the `id` of each variable that is an embedding, whose gradients come row by row.
    """

    def __init__(
        self,
        optimizer: Any,
        owned: Sequence[tuple[Any, int | None]],
        num_members: int,
        tables: Iterable[int] = (),
    ) -> None:
        self._optimizer, self._num_members = optimizer, num_members
        self._hiding = 0
        self._hidden: tuple[Any, Any] | None = None
        self._tables = set() if getattr(_inner(optimizer), "use_ema", False) or replicas.count() > 1 else set(tables)
        self.variables = [variable for variable, _ in owned]
        self._owners = [member for _, member in owned]
        self._slices: list[list[Any]] = []
        inner = _inner(optimizer)
        if inner.gradient_accumulation_steps and (inner.clipnorm is not None or inner.global_clipnorm is not None):
            raise ValueError(
                "Expected no clipnorm or global_clipnorm with gradient_accumulation_steps: Keras would clip what it "
                "accumulates over all members. Received: both. Use clipvalue, or larger batches"
            )
        stacked = None in self._owners
        if stacked and type(_inner(optimizer)) not in _ELEMENTWISE:
            if getattr(_inner(optimizer), "use_ema", False):
                name = type(_inner(optimizer)).__name__
                raise ValueError(
                    f"Expected use_ema=False with {name}, whose updates mix numbers. Received: use_ema=True"
                )
            self._slices = [
                [v if owner == SHARED else keras.Variable(v.value[m], name=f"{v.name}_{m}") for v, owner in owned]
                for m in range(num_members)
            ]
        # An optimizer knows rows of the first axis only, so it gets the embeddings of all members one below the other.
        self._flat = {
            id(v): keras.Variable(tf.reshape(v.value, [-1, v.shape[-1]]), name=v.name)
            for v in self.variables
            if id(v) in self._tables and not self._slices
        }
        if not optimizer.built:
            whole = [self._flat.get(id(v), v) for v in self.variables]
            each = {id(v): v for member in self._slices for v in member}  # A shared one is in all of them.
            optimizer.build(list(each.values()) or whole)

    def follow(self, trainable: Sequence[Any]) -> None:
        """Raises if a variable has become trainable that the optimizer does not know; fewer are no trouble."""
        known = {id(variable) for variable in self.variables}
        for variable in trainable:
            if id(variable) not in known:
                raise ValueError(
                    f"Call compile() again after making layers trainable. Received: {variable.path}, which the "
                    "optimizer does not know"
                )

    def gradients(
        self, tape: tf.GradientTape, total: tf.Tensor, looked_up: dict[int, list[Lookup]] | None = None
    ) -> list[Any]:
        """Returns the gradients of the variables, None for those that are not trained now.

        Args:
            tape: has seen the step.
            total: what is minimized.
            looked_up: the rows of embeddings that were taken, by the `id` of their variables.
        """
        looked_up = {key: found for key, found in (looked_up or {}).items() if key in self._tables}
        trained = {id(v): v for v in self.variables if v.trainable}
        sources = {
            key: v if key not in looked_up else [p.rows if p.tables is None else p.tables for p in looked_up[key]]
            for key, v in trained.items()
        }
        found = dict(zip(sources, tape.gradient(total, list(sources.values())), strict=True))
        for key, lookups in looked_up.items():
            if key in found:
                found[key] = _row_gradients(lookups, found[key], trained[key])
        return [found.get(id(variable)) for variable in self.variables]

    def apply(self, gradients: Sequence[Any], losses: tf.Tensor) -> None:
        """Updates the variables; `losses` `[members]` tell which members are still finite."""
        reached = [place for place, gradient in enumerate(gradients) if gradient is not None]
        found, owners = [gradients[place] for place in reached], [self._owners[place] for place in reached]
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            # One member's NaN would make the loss scale drop the whole step.
            finite = tf.math.is_finite(losses)
            found = [
                g if owner == SHARED else _finite_only(g, _of(finite, owner))
                for g, owner in zip(found, owners, strict=True)
            ]
        found = self._clip(found, owners)
        with self._without_clipping():
            if self._slices:
                self._apply_by_slices(found, reached)
            else:
                self._apply_whole(found, [self.variables[place] for place in reached])

    def _apply_whole(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        flat = {id(v): self._flat[id(v)] for v in variables if id(v) in self._flat}
        for v in variables:
            if id(v) in flat:
                flat[id(v)].assign(tf.reshape(v.value, flat[id(v)].shape))
        given = [g.of_all() if isinstance(g, RowGradients) else g for g in gradients]
        given = [
            tf.reshape(g, flat[id(v)].shape) if id(v) in flat and not isinstance(g, tf.IndexedSlices) else g
            for g, v in zip(given, variables, strict=True)
        ]
        self._optimizer.apply(given, [flat.get(id(v), v) for v in variables])
        for v in variables:
            if id(v) in flat:
                self._put(v, tf.reshape(flat[id(v)].value, v.shape))

    def _put(self, variable: Any, value: tf.Tensor) -> None:
        """Gives a variable what the optimizer made of its stand-in, and asks its constraint, which that has not."""
        constraint = getattr(variable, "constraint", None)
        variable.assign(value if constraint is None else constraint(value))

    def _apply_by_slices(self, gradients: Sequence[Any], reached: Sequence[int]) -> None:
        apart = [(g, self.variables[p]) for g, p in zip(gradients, reached, strict=True) if self._owners[p] == SHARED]
        gradients = [g for g, p in zip(gradients, reached, strict=True) if self._owners[p] != SHARED]
        reached = [place for place in reached if self._owners[place] != SHARED]
        variables = [self.variables[place] for place in reached]
        slices = [[member[place] for place in reached] for member in self._slices]
        values = [tf.unstack(v.value, num=self._num_members) for v in variables]
        parts = [
            g.of_each() if isinstance(g, RowGradients) else tf.unstack(g, num=self._num_members) for g in gradients
        ]
        for m, member in enumerate(slices):
            for variable, value in zip(member, values, strict=True):
                variable.assign(value[m])
        self._optimizer.apply(
            [part[m] for m in range(self._num_members) for part in parts] + [g for g, _ in apart],
            [v for member in slices for v in member] + [v for _, v in apart],
        )
        for index, variable in enumerate(variables):
            self._put(variable, tf.stack([member[index].value for member in slices]))

    def _norms(self) -> tuple[Any, Any]:
        inner = _inner(self._optimizer)
        return inner.clipnorm, inner.global_clipnorm

    @contextlib.contextmanager
    def _without_clipping(self) -> Iterator[None]:
        """Hides the norms from the optimizer while it is traced: it would clip all members by one norm.

        Replicas are traced in turns, so one may be within while another comes or goes: the last to go shows them again.
        """
        inner = _inner(self._optimizer)
        if not self._hiding:
            self._hidden = self._norms()
            inner.clipnorm = inner.global_clipnorm = None
        self._hiding += 1
        try:
            yield
        finally:
            self._hiding -= 1
            if not self._hiding and self._hidden is not None:
                inner.clipnorm, inner.global_clipnorm = self._hidden
                self._hidden = None

    def _clip(self, gradients: Sequence[Any], owners: Sequence[int | None]) -> list[Any]:
        """Clips by norm, each member's gradients by their own norm: that of the sum over replicas, as on one device."""
        clipnorm, global_clipnorm = self._hidden or self._norms()
        if global_clipnorm is None and clipnorm is None:
            return list(gradients)
        if (shares := replicas.count()) > 1:
            # The optimizer will add up what all replicas give it.
            gradients = [g / shares for g in replicas.total([tf.convert_to_tensor(g) for g in gradients])]
        scale = 1.0
        if isinstance(self._optimizer, keras.optimizers.LossScaleOptimizer):
            scale = self._optimizer.dynamic_scale.value  # The gradients are still multiplied by it.
        squares = [_squared_norm(g, owner is None) * shares**2 for g, owner in zip(gradients, owners, strict=True)]
        if global_clipnorm is not None:
            rows = [square for square, owner in zip(squares, owners, strict=True) if owner is None]
            own = [[q for q, o in zip(squares, owners, strict=True) if o == m] for m in range(self._num_members)]
            total = tf.stack([sum(mine, start=tf.zeros([])) for mine in own]) if any(own) else tf.zeros([])
            limit = global_clipnorm * scale
            factor = _factor(limit, tf.sqrt(sum(rows, start=total)))
            shared = [square for square, owner in zip(squares, owners, strict=True) if owner == SHARED]
            of_shared = _factor(limit, tf.sqrt(sum(shared, start=tf.zeros([]))))
            factors = [of_shared if owner == SHARED else _of(factor, owner) for owner in owners]
        else:
            factors = [_factor(clipnorm * scale, tf.sqrt(square)) for square in squares]
        return [_times(g, factor) for g, factor in zip(gradients, factors, strict=True)]


def _of(per_member: tf.Tensor, owner: int | None) -> tf.Tensor:
    """`[members]` for a variable with a row for each, and a scalar for that of one member."""
    return per_member if owner is None else per_member[owner]


def _finite_only(gradient: Any, finite: tf.Tensor) -> Any:
    """Returns a gradient with zeros for members whose loss is not finite: `[members]` of bool, or a scalar."""
    if isinstance(gradient, RowGradients):
        kept = tf.where(finite[:, None, None], gradient.values, tf.zeros_like(gradient.values))
        return dataclasses.replace(gradient, values=kept)
    if isinstance(gradient, tf.IndexedSlices):
        kept = tf.where(finite, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(kept, gradient.indices, gradient.dense_shape)
    return tf.where(_broadcastable(finite, gradient), gradient, tf.zeros_like(gradient))


def _squared_norm(gradient: Any, stacked: bool) -> tf.Tensor:
    """`[members]`, or a scalar. Rows of an embedding that a batch has more than once count one by one, as in Keras."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices | RowGradients) else gradient
    return tf.reduce_sum(tf.square(values), axis=list(range(1, len(values.shape))) if stacked else None)


def _times(gradient: Any, factor: tf.Tensor) -> Any:
    if isinstance(gradient, RowGradients):
        return gradient.times(factor)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * _broadcastable(factor, gradient)


def _factor(limit: Any, norm: tf.Tensor) -> tf.Tensor:
    return limit / tf.maximum(norm, limit)


def _broadcastable(per_member: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """`[members]` in a shape that broadcasts against `[members, ...]`; a scalar as it is."""
    return tf.reshape(per_member, [-1, *([1] * (len(tensor.shape) - 1))]) if per_member.shape.rank else per_member
