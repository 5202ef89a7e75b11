"""What layers keep that is no variable: activations, rates, arrays, the wiring. Members must not differ in it."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import layer_rules

_DEEPEST = 6  # levels of containers and objects within a layer
# What may differ: names, seeds and initial weights, which the ensemble draws itself.
_IGNORED = frozenset({"name", "path", "seed", "batch_shape", "input_spec"})
_MARK = "_"  # of attributes that a class keeps to itself
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_TAKEN_CARE_OF = (
    keras.Variable, keras.layers.Layer, keras.initializers.Initializer, keras.random.SeedGenerator, types.ModuleType,
    keras.metrics.Metric, keras.optimizers.Optimizer,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Item:
    """A value that a layer keeps, where it is, and how to put another in its place."""

    where: str
    value: Any
    put: Callable[[Any], None]


def collect(model: keras.Model) -> list[Item]:
    """Returns what a model's layers keep and that is no variable, in an order that two equal models share."""
    found: list[Item] = []
    seen: dict[int, Any] = {}  # kept alive, so that no two have one `id`
    layers = keras_private.all_layers(model)
    others: list[Any] = []
    for layer in layers:
        what = f"layer {layer.name}"
        found.append(Item(what, (type(layer), layer.trainable, layer.dtype_policy.name), _fixed))
        if hasattr(layer, "get_vocabulary"):  # It is in a table, of which no more than a handle can be seen.
            found.append(Item(f"{what}: vocabulary", tuple(layer.get_vocabulary()), _fixed))
        found.extend(_walk(f"{what}: activity_regularizer", layer.activity_regularizer, _fixed, seen, 0))
        if isinstance(layer, keras.Model) and layer_rules.has_graph(layer):
            for operation, calls in keras_private.wiring(layer):
                found.extend(_walk(f"the input of layer {operation.name}", calls, _fixed, seen, 0))
                if not isinstance(operation, keras.layers.Layer):
                    found.append(Item(f"operation {operation.name}", type(operation), _fixed))
                    others.append(operation)
    for part in (*layers, *others):
        found.extend(_attributes(f"layer {part.name}", part, seen, 0, keras_private.bookkeeping()))
    return found


def _fixed(_: Any) -> None:
    """For what cannot be replaced."""


def _attributes(what: str, owner: Any, seen: dict[int, Any], depth: int, skipped: frozenset[str]) -> Iterator[Item]:
    for name in sorted(vars(owner)):
        if name not in skipped and name.lstrip(_MARK) not in _IGNORED and not name.endswith(("initializer", "name")):
            put = functools.partial(_set_attribute, owner, name)
            yield from _walk(f"{what}: {name.lstrip(_MARK)}", vars(owner)[name], put, seen, depth)


def _set_attribute(owner: Any, name: str, value: Any) -> None:
    vars(owner)[name] = value


def _set_item(owner: Any, key: Any, value: Any) -> None:
    owner[key] = value


def _set_cell(cell: Any, value: Any) -> None:
    cell.cell_contents = value


def _walk(what: str, value: Any, put: Callable[[Any], None], seen: dict[int, Any], depth: int) -> Iterator[Item]:
    if isinstance(value, tf.Tensor) and (value.dtype in (tf.resource, tf.variant) or not hasattr(value, "numpy")):
        return  # A handle, or what a call has left of the graph in which it was traced.
    if isinstance(value, (*_PLAIN, np.ndarray, tf.Tensor, type)):
        yield Item(what, value, put)
    elif isinstance(value, tf.Variable):
        yield Item(what, value, value.assign)
    elif isinstance(value, keras.KerasTensor):
        yield Item(what, (value.shape, value.dtype), _fixed)
    elif depth > _DEEPEST or id(value) in seen or isinstance(value, _TAKEN_CARE_OF):
        return
    else:
        seen[id(value)] = value
        yield from _within(what, value, seen, depth + 1)


def _within(what: str, value: Any, seen: dict[int, Any], depth: int) -> Iterator[Item]:
    if isinstance(value, dict):
        for key in value:
            yield from _walk(what, value[key], functools.partial(_set_item, value, key), seen, depth)
    elif isinstance(value, list | tuple):
        yield Item(what, len(value), _fixed)
        for place, part in enumerate(value):
            put: Callable[[Any], None] = functools.partial(_set_item, value, place)
            yield from _walk(what, part, put if isinstance(value, list) else _fixed, seen, depth)
    elif isinstance(value, set | frozenset):
        yield Item(what, sorted(map(repr, value)), _fixed)
    elif isinstance(value, functools.partial):
        yield from _within(what, [value.func, value.args, value.keywords], seen, depth)
    elif isinstance(value, types.MethodType):
        yield from _walk(what, value.__func__, _fixed, seen, depth)
    elif isinstance(value, types.FunctionType):
        yield Item(what, value.__code__, _fixed)
        yield from _walk(what, [value.__defaults__, value.__kwdefaults__], _fixed, seen, depth)
        for cell in value.__closure__ or ():
            yield from _walk(what, cell.cell_contents, functools.partial(_set_cell, cell), seen, depth)
    elif hasattr(value, "__dict__"):
        yield Item(what, type(value), _fixed)
        yield from _attributes(what, value, seen, depth, frozenset())


def constants(model: keras.Model) -> list[Item]:
    """Returns the arrays that a model's layers keep beside their variables."""
    return [item for item in collect(model) if isinstance(item.value, np.ndarray | tf.Tensor | tf.Variable)]


def difference(first: keras.Model, second: keras.Model) -> str | None:
    """Returns where the layers of two models differ in what is no variable, or None."""
    return first_difference(collect(first), collect(second))


def first_difference(ours: list[Item], theirs: list[Item]) -> str | None:
    """Returns where what two models keep differs first, or None."""
    for one, other in zip(ours, theirs, strict=False):
        if not _same(one.value, other.value):
            return one.where
    return None if len(ours) == len(theirs) else (ours or theirs)[-1].where


def _same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | tf.Tensor | tf.Variable | np.generic | float):
        one, other = np.asarray(one), np.asarray(other)
        return np.array_equal(one, other, equal_nan=np.issubdtype(one.dtype, np.inexact))
    return bool(one == other)
