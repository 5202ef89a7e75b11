"""One operation for all members: traced once, whatever their number, in the best of the ways that it allows.

    vectorized_map   every operation of TensorFlow in it has a converter, so each runs once for all members;
    while_loop       one of them has none: members run one after the other, in a loop whose body is traced once;
    unrolled         outside a graph, where nothing is traced: one call after the other.
The first that works is taken; what works is a property of the model, not of a machine or a moment. Each mode
(training or not) is a `tf.function` of its own, which all steps, signatures and calls share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.ensemble import keras_private


@dataclasses.dataclass(frozen=True)
class Stacked:
    """A tensor that differs between members: `[members, batch, ...]`."""

    tensor: tf.Tensor


VECTORIZED, LOOP, UNROLLED = "vectorized_map", "while_loop", "unrolled"


@dataclasses.dataclass(frozen=True)
class Said:
    """What calls gave: of one member, or of all, with a first axis `[members]`."""

    outputs: Any  # a structure of tensors
    changed: dict[int, tf.Tensor]  # the new values of variables that the calls changed, by place
    penalty: tf.Tensor | None  # the losses that layers added; None: none did
    masks: dict[str, tf.Tensor] = dataclasses.field(default_factory=dict)  # of outputs that have one, by place

    def flat(self) -> dict[str, Any]:
        """Returns a structure that has tensors as leaves and nothing else."""
        penalty = {} if self.penalty is None else {"penalty": self.penalty}
        masks = {"masks": self.masks} if self.masks else {}
        return {"outputs": self.outputs, **{str(place): new for place, new in self.changed.items()}, **penalty, **masks}

    @classmethod
    def of(cls, flat: dict[str, Any]) -> Said:
        """Returns what `flat` was made of."""
        changed = {int(name): new for name, new in flat.items() if name.isdigit()}
        return cls(flat["outputs"], changed, flat.get("penalty"), flat.get("masks", {}))

    def stacked(self) -> Any:
        """Returns what all members said, as `Stacked` tensors that carry their masks, `[members, batch, ...]`."""
        tensors = tf.nest.flatten(self.outputs)
        for place, mask in self.masks.items():
            keras_private.with_mask(tensors[int(place)], mask)
        return tf.nest.pack_sequence_as(self.outputs, [Stacked(tensor) for tensor in tensors])


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Rows that members took of their embeddings in one pass, so that their gradients can be asked for one by one.

    Either `rows`, `[members, ..., size]`, that were taken at `ids`, `[...]` or `[members, ...]`; or, where a loop hides
    that, the `tables` of the members, `[rows, size]` each.
    """

    rows: Any = None
    ids: Any = None
    tables: Any = None


@dataclasses.dataclass(frozen=True)
class Call:
    """An operation and the arguments of its calls.

    Args:
        operation: a layer, a model, or an operation without weights.
        arguments: `(args, kwargs)`; a leaf that differs between members is a `Stacked`.
        tables: the layers in it whose rows are looked up outside, so that their gradients can be asked for.
    """

    operation: Any
    arguments: tuple[Any, dict[str, Any]]
    tables: Sequence[keras.layers.Embedding] = ()

    @property
    def variables(self) -> list[Any]:
        """The operation's."""
        return list(getattr(self.operation, "variables", []))

    @property
    def fixes_batch(self) -> bool:
        """Whether the operation is a model that takes batches of one size only."""
        inputs = getattr(self.operation, "inputs", None) if isinstance(self.operation, keras.Model) else None
        return any(tensor.shape[0] is not None for tensor in inputs or [])

    def key(self) -> Any:
        """Returns what one trace has in common with another, besides the shapes of tensors."""
        return id(self.operation), tuple(_mark(leaf) for leaf in tf.nest.flatten(self.arguments))

    def bare(self) -> Call:
        """Returns the call without its tensors, which would keep the graph alive that they are in."""
        bare = tf.nest.map_structure(lambda leaf: leaf if isinstance(_mark(leaf), str) else _mark(leaf), self.arguments)
        return dataclasses.replace(self, arguments=bare)

    def split(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the tensors that differ between members, and those that all share."""
        leaves = tf.nest.flatten(self.arguments)
        own = [leaf.tensor for leaf in leaves if _mark(leaf) is _Tensor.OWN]
        return own, [tf.convert_to_tensor(leaf) for leaf in leaves if _mark(leaf) is _Tensor.SHARED]

    def of_member(self, values: Sequence[tf.Tensor], own: Any, shared: Any, rows: Sequence[Any] = ()) -> Said:
        """Calls the operation with one member's values and inputs, and rows of its `tables` in the order of calls."""
        with _rows_given(self.tables if rows else (), rows):
            return self._run(values, own, shared)

    def ids(self, values: Sequence[tf.Tensor], own: Any, shared: Any) -> list[tuple[Any, tf.Tensor]]:
        """Returns what one member's call looks up, layers and ids, in those `tables` that do no more than that."""
        mine = [values[_place(self.variables, layer.embeddings)] for layer in self.tables]
        apart = [tf.identity(value) for value in mine]
        before = [len(value.consumers()) for value in mine]
        with _ids_recorded(self.tables, apart) as asked:
            self._run(values, own, shared)
        alone = [len(value.consumers()) == count for value, count in zip(mine, before, strict=True)]
        return [(self.tables[table], ids) for table, ids in asked if alone[table]]

    def _run(self, values: Sequence[tf.Tensor], own: Any, shared: Any) -> Said:
        parts: dict[Any, Iterator[Any]] = {_Tensor.OWN: iter(own), _Tensor.SHARED: iter(shared)}
        leaves = [(leaf, _mark(leaf)) for leaf in tf.nest.flatten(self.arguments)]
        found = [next(parts[mark]) if mark in parts else leaf for leaf, mark in leaves]
        args, kwargs = tf.nest.pack_sequence_as(self.arguments, found)
        variables = self.variables
        mapping = list(zip(variables, values, strict=True))
        with keras_private.GradientStoppedScope(state_mapping=mapping, collect_losses=True) as scope:
            outputs = self.operation(*args, **kwargs)
            losses = [tf.cast(loss, tf.float32) for loss in getattr(self.operation, "losses", [])]
        new = [scope.get_current_value(variable) for variable in variables]
        changed = {place: n for place, (n, old) in enumerate(zip(new, values, strict=True)) if n is not old}
        masks = [keras_private.mask_of(output) for output in tf.nest.flatten(outputs)]
        left = {str(place): tf.convert_to_tensor(mask) for place, mask in enumerate(masks) if mask is not None}
        outputs = tf.nest.map_structure(tf.convert_to_tensor, outputs)
        return Said(outputs, changed, tf.add_n(losses) if losses else None, left)


class _Tensor(enum.Enum):
    """Stands for a tensor among arguments: one of each member, or one that all share."""

    OWN, SHARED = "own", "shared"


def _mark(leaf: Any) -> _Tensor | str:
    if isinstance(leaf, _Tensor):
        return leaf
    if isinstance(leaf, Stacked):
        return _Tensor.OWN
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype} {leaf.shape} {leaf.tobytes()!r}"
    return _Tensor.SHARED if tf.is_tensor(leaf) else repr(leaf)


def _spec(tensors: Sequence[tf.Tensor], batch: int | None = None) -> list[tf.TensorSpec]:
    """Returns specs of tensors, with any size along the axis of the batch: a smaller last one is no new trace."""

    def relax(tensor: tf.Tensor) -> tf.TensorSpec:
        shape = list(tensor.shape)
        if batch is not None and len(shape) > batch and not hasattr(tensor, "numpy"):  # A constant has no batch.
            shape[batch] = None
        return tf.TensorSpec(shape, tensor.dtype)

    return [relax(tensor) for tensor in tensors]


def _place(variables: Sequence[Any], variable: Any) -> int:
    return next(place for place, other in enumerate(variables) if other is variable)


class Mapped:
    """A call for all members, inside a graph.

    Args:
        call: what is called.
        num_members: M.
    """

    def __init__(self, call: Call, num_members: int) -> None:
        self._call, self._num_members, self.way = call.bare(), num_members, VECTORIZED
        self.name = str(getattr(call.operation, "name", call.operation))
        self._asked: list[Any] = []  # the layers whose rows are taken, in the order of their calls
        self._make()

    def _make(self) -> None:
        options = {"autograph": False, "reduce_retracing": True}
        self._function, self._traced = tf.function(self._together, **options), False
        self._ids = tf.function(self._all_ids, **options)

    def __call__(self, values: Sequence[tf.Tensor], call: Call) -> tuple[Said, list[tuple[Any, Lookup]]]:
        """Runs all members.

        Args:
            values: of the variables, `[members, ...]`.
            call: with the tensors of now.

        Returns:
            What was said, and the lookups, each with the variable that it is in.
        """
        given = (list(values), *call.split())
        try:
            with _attempt_unlogged():
                return self._run(*given)
        except Exception:  # A converter that is missing is no more than one of the things that may go wrong.
            if self.way == LOOP:
                raise
            # What failed was traced by a function of its own, which has left nothing in the graph that asks.
            self.way = LOOP
            self._make()
            return self._run(*given)

    def _run(self, values: Any, own: Any, shared: Any) -> tuple[Said, list[tuple[Any, Lookup]]]:
        taken = []
        if self._call.tables:
            ids = self._ids(values, own, shared)["ids"]
            for layer, asked in zip(self._asked, ids, strict=True):
                table = values[_place(self._call.variables, layer.embeddings)]
                taken.append((layer.embeddings, Lookup(tf.gather(table, asked, batch_dims=1), asked)))
        rows = [lookup.rows for _, lookup in taken]
        if not self._traced:
            specs = [_spec(values), _spec(own, 1), _spec(shared, 0), _spec(rows, 1)]
            self._function.get_concrete_function(*specs if not self._call.fixes_batch else (values, own, shared, rows))
            self._traced = True
        return Said.of(self._function(values, own, shared, rows)), taken

    def _together(self, values: Any, own: Any, shared: Any, rows: Any) -> Any:
        call = dataclasses.replace(self._call, tables=[layer for layer in self._call.tables if layer in self._asked])

        def member(parts: Any) -> Any:
            return call.of_member(parts[0], parts[1], shared, parts[2]).flat()

        return self._map(member, (values, own, rows))

    def _all_ids(self, values: Any, own: Any, shared: Any) -> Any:
        def member(parts: Any) -> Any:
            found = self._call.ids(parts[0], parts[1], shared)
            self._asked = [layer for layer, _ in found]
            return {"ids": [ids for _, ids in found], "some": tf.zeros([])}  # Nothing at all cannot be mapped.

        return self._map(member, (values, own))

    def _map(self, member: Callable[[Any], Any], elements: Any) -> Any:
        if not tf.nest.flatten(elements):  # Nothing differs between members.
            said = member(elements)
            return tf.nest.map_structure(lambda part: tf.repeat(part[None], self._num_members, axis=0), said)
        if self.way == VECTORIZED:
            keras_private.convert_draws()
            return tf.vectorized_map(member, elements, fallback_to_while_loop=False)
        once = tf.function(member, autograph=False)
        first = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape[1:], part.dtype), elements)
        outputs = once.get_concrete_function(first).structured_outputs
        specs = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape, part.dtype), outputs)
        return tf.map_fn(once, elements, fn_output_signature=specs)


@contextlib.contextmanager
def _attempt_unlogged() -> Iterator[None]:
    """Keeps TensorFlow from logging, over pages, that an operation has no converter: there is another way then."""
    logger, unlogged = logging.getLogger("tensorflow"), _no_missing_converter
    logger.addFilter(unlogged)
    try:
        yield
    finally:
        logger.removeFilter(unlogged)


def _no_missing_converter(record: logging.LogRecord) -> bool:
    return "parallel_for" not in record.pathname


@contextlib.contextmanager
def _calls_replaced(layers: Sequence[Any], call: Callable[[int, Any], Any]) -> Iterator[None]:
    """Calls `call(place of the layer, inputs)` wherever one of the layers is called."""
    for place, layer in enumerate(layers):
        vars(layer)["call"] = functools.partial(call, place)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["call"]


@contextlib.contextmanager
def _rows_given(layers: Sequence[Any], rows: Sequence[Any]) -> Iterator[None]:
    """Lets embeddings say these rows, one after the other, in place of a look into their tables."""
    left = iter(rows)
    with _calls_replaced(layers, lambda place, _: tf.cast(next(left), layers[place].compute_dtype)):
        yield


@contextlib.contextmanager
def _ids_recorded(layers: Sequence[Any], tables: Sequence[tf.Tensor]) -> Iterator[list[tuple[int, tf.Tensor]]]:
    """Lists the places of embeddings and what they are asked for; they look into these tables."""
    asked: list[tuple[int, tf.Tensor]] = []

    def call(place: int, inputs: Any) -> tf.Tensor:
        ids = tf.cast(inputs, tf.int32)
        asked.append((place, ids))
        return tf.cast(tf.gather(tables[place], ids), layers[place].compute_dtype)

    with _calls_replaced(layers, call):
        yield asked
