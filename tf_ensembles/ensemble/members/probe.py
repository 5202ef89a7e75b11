"""Checks, before members are stacked, that the stack computes what each member computes alone.

Three checks, for three ways in which a stack, which runs the first member's graph, can differ:
  the state of layers that is not in variables (activations, rates, arrays, the wiring) is compared for all members;
  the call of the first one is traced, unless all of it is Keras's own: what it draws, reads and writes must be in the
  model's variables, of which each member has its own;
  outputs on a small batch, alone and stacked, are compared for a few members, in inference and, where nothing is drawn,
  in training.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import effects, layer_rules, layer_state, structure
from tf_ensembles.ensemble.members.mapping import Stacked
from tf_ensembles.ensemble.members.runner import Runner

_ROWS = 3  # of the probe batch: more than one, so that batch statistics are not trivial
_DIGITS = {"float16": 10, "bfloat16": 7, "float64": 52}  # binary, of the types that layers compute in; 23 for others
_SIZE = 8  # of a dimension that the model leaves open


def own_loss(models: Sequence[keras.Model]) -> str | None:
    """Returns which class of members has a `compute_loss` of its own, which may ask its model for anything; or None."""
    for model in models:
        if keras_private.overrides(model, "compute_loss"):
            return f"{type(model).__name__} has a compute_loss of its own"
    return None


def takes(model: keras.Model, kind: str) -> bool:
    """Whether an input of a model is declared as sparse, or as ragged."""
    return any(getattr(tensor, kind, False) for tensor in keras.tree.flatten(keras_private.input_structure(model)))


def other_shapes(models: Sequence[keras.Model]) -> str | None:
    """Returns how members differ in the shapes of their variables, or None."""
    shapes = [[(tuple(v.shape), v.dtype) for v in model.variables] for model in models]
    for member, own in enumerate(shapes):
        if own != shapes[0]:
            places = [place for place, pair in enumerate(zip(own, shapes[0], strict=False)) if pair[0] != pair[1]]
            if places:
                path = models[member].variables[places[0]].path
                return (
                    f"variable {path} of member {member} has shape {own[places[0]][0]}, not {shapes[0][places[0]][0]}"
                )
            return f"member {member} has {len(own)} variables, member 0 has {len(shapes[0])}"
    return None


# What members say.


def why_separate(models: Sequence[keras.Model], sample: Any) -> str | None:
    """Returns why the members cannot be stacked, or None if the stack says what each of them says alone.

    Args:
        models: built models, one per member.
        sample: a batch of one example, or None for models that know their inputs.
    """
    reason = other_shapes(models)
    if reason is not None:
        return reason
    first = layer_state.collect(models[0])
    for member, model in enumerate(models[1:], start=1):
        where = layer_state.first_difference(first, layer_state.collect(model))
        if where is not None:
            return f"{where} differs between members 0 and {member}"
    shared = shared_effects(models[0], first, sample)
    if shared is not None:
        return shared
    # The last is one that the template is not; the loop over members is the template's own call for each.
    looped = not layer_rules.runs_by_layer(models[0])
    members = [len(models) - 1] if looped else sorted({0, len(models) // 2, len(models) - 1})
    known = _is_keras_only(models[0], first)
    places = [None if known else place for place in range(len(members))]
    return _outputs_differ([models[member] for member in members], places, models[0], sample)


def shared_effects(model: keras.Model, items: Sequence[layer_state.Item], sample: Any) -> str | None:
    """Returns what members would share if one call stood for all of them, or None. Nothing of the call is executed.

    Args:
        model: the first member.
        items: its `layer_state`.
        sample: as of `why_separate`.
    """
    if _is_keras_only(model, items):
        return None
    traced = trace(model, sample, _modes(model))
    return traced if isinstance(traced, str) else traced.describe()


def _modes(model: keras.Model) -> tuple[bool, ...]:
    """Returns the values of `training` that can make a difference."""
    # A graph takes `training` only to hand it on to its layers.
    parts = [layer for layer in keras_private.all_layers(model) if not layer_rules.has_graph(layer)]
    return (False, True) if any(map(keras_private.takes_training, parts)) else (False,)


def check_fixed(prior: keras.Model, sample: Any) -> None:
    """Raises if a prior is not the same function at every call."""
    if _is_keras_only(prior, layer_state.collect(prior)):
        return
    traced = trace(prior, sample, (False,))
    if not isinstance(traced, str) and (traced.operations or traced.assigns):
        reason = traced.describe() or "a layer that changes its variables in inference"
        raise ValueError(f"Expected priors that are the same function at every call. Received: {reason}")


def trace(model: keras.Model, sample: Any, modes: Sequence[bool]) -> effects.Effects | str:
    """Returns the effects of a model's call, in training if `modes` has True, or why it cannot be traced."""
    error: Exception | None = None
    for inputs in _batches(model, sample):
        try:
            return effects.trace(
                lambda x: [(model(x, training=mode), model.losses) for mode in modes], inputs, listed=model.variables
            )
        except Exception as caught:  # A batch of ours need not be one that the model takes.
            error = caught
    return f"the call of {model.name} cannot be traced ({str(error).splitlines()[0][:120]})"


def _is_keras_only(model: keras.Model, items: Sequence[layer_state.Item]) -> bool:
    """Whether all that a call runs is Keras's own, and so is known to keep its state in the model's variables."""
    values = [part for item in items for part in (item.value if isinstance(item.value, tuple) else (item.value,))]
    types_ = [value for value in values if isinstance(value, type)]
    sources = [value.co_filename for value in values if isinstance(value, types.CodeType)]
    stateful = any(getattr(layer, "stateful", False) for layer in keras_private.all_layers(model))
    return not stateful and effects.is_known(types_, sources)


def _outputs_differ(
    models: Sequence[keras.Model], places: Sequence[int | None], template: keras.Model, sample: Any
) -> str | None:
    inputs, alone = None, None
    for inputs in _batches(template, sample):
        try:
            alone = [_alone(model, inputs, False, place) for place, model in zip(places, models, strict=True)]
            break
        except Exception:  # A batch of ours need not be one that the model takes.
            continue
    if alone is None:
        return "members cannot be compared with their stack, since they fail on batches of random numbers and of zeros"
    random = layer_rules.draws_together(template) and bool(layer_rules.shared_generators(template))
    for training in (False,) if random else _modes(template):
        if training:
            alone = [_alone(model, inputs, True, place) for place, model in zip(places, models, strict=True)]
        together = _together(models, places, template, inputs, training)
        for place, model, (own, changed), (ours, ours_changed) in zip(places, models, alone, together, strict=True):
            mode = "training" if training else "inference"
            if not _close(own, ours, template) and (
                not training or _close(own, _alone(model, inputs, True, place)[0], model)
            ):
                layer = _culprit(model, template, inputs, training)
                return f"the output of layer {layer} changes when members are stacked ({mode} mode)"
            for variable, new, our_new in zip(model.variables, changed, ours_changed, strict=True):
                if new is not None and variable.trainable:
                    return f"calls change the trainable variable {variable.path}"
                if _moved_apart(new, our_new, template):
                    return f"variable {variable.path} is updated otherwise in a stack"
    return None


def _moved_apart(own: Any, ours: Any, template: keras.Model) -> bool:
    if own is None and ours is None:
        return False
    return own is None or ours is None or not _close(own, ours, template)


def _values(model: keras.Model, place: int | None) -> list[Any]:
    """Returns values of a model's variables, moved a little by its place, since members may start with the same ones.

    With None they are as they are: enough where all of a call is Keras's own.
    """
    values = [tf.convert_to_tensor(variable.value) for variable in model.variables]
    if place is None:
        return values
    return [v * (1.1 + 0.1 * place) + 0.01 * (1 + place) if v.dtype.is_floating else v for v in values]


def _alone(model: keras.Model, inputs: Any, training: bool, place: int | None) -> tuple[Any, list[Any]]:
    """Returns what a model returns, and the values that its variables take by that; None for those that stay.

    Variables are really assigned, and put back: a `tf.function` within a call may read them in its own way.
    """
    before = [] if place is None else [tf.identity(variable.value) for variable in model.variables]
    if place is not None:
        _assign(model, _values(model, place))
    try:
        with keras.StatelessScope(collect_losses=True) as scope:
            output = model(inputs, training=training)
        return output, [scope.get_current_value(variable) for variable in model.variables]
    finally:
        if place is not None:
            _assign(model, before)


def _assign(model: keras.Model, values: Sequence[Any]) -> None:
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)


class _Rows:
    """Stands for a stacked variable of a few members; what is assigned stays here."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.value = tf.stack([tf.convert_to_tensor(value) for value in values])
        self.changed = False

    def assign(self, value: Any) -> None:
        self.value, self.changed = tf.cast(value, self.value.dtype), True


def _together(
    models: Sequence[keras.Model], places: Sequence[int | None], template: keras.Model, inputs: Any, training: bool
) -> list[tuple[Any, list[Any]]]:
    """Returns what `_alone` does for each model, as the stack computes it: with the template's graph."""
    columns = zip(*(_values(model, place) for place, model in zip(places, models, strict=True)), strict=True)
    rows = [_Rows(column) for column in columns]
    stacked: Any = {id(v): row for v, row in zip(template.variables, rows, strict=True)}
    output = Runner(stacked, len(models), training).run(template, inputs)
    each = []
    for part in structure.leaves(output):
        mask = keras_private.mask_of(part.tensor if isinstance(part, Stacked) else part)
        said = tf.unstack(part.tensor) if isinstance(part, Stacked) else [part] * len(models)
        masks = tf.unstack(mask) if mask is not None and isinstance(part, Stacked) else [mask] * len(models)
        each.append([keras_private.with_mask(tf.identity(one), own) for one, own in zip(said, masks, strict=True)])
    changed = [[row.value[member] if row.changed else None for row in rows] for member in range(len(models))]
    return [([part[member] for part in each], changed[member]) for member in range(len(models))]


def _close(own: Any, ours: Any, model: keras.Model) -> bool:
    """Whether all outputs of a model agree, and their masks."""
    pairs = list(zip(structure.leaves(own), structure.leaves(ours), strict=True))
    masks = [(keras_private.mask_of(one), keras_private.mask_of(other)) for one, other in pairs]
    if any((one is None) != (other is None) for one, other in masks):
        return False
    alike = all(np.array_equal(one, other) for one, other in masks if one is not None)
    return alike and all(_tensors_close(one, other, model) for one, other in pairs)


def _tensors_close(own: Any, ours: Any, model: keras.Model) -> bool:
    """Whether half of the digits of the type that the model computes in agree, on the scale of the output."""
    own, ours = np.asarray(own), np.asarray(ours)
    digits = max(2.0**-23, _epsilon(model))
    if own.shape != ours.shape:
        return False
    own, ours = own.astype(np.float64), ours.astype(np.float64)
    scale = np.abs(own[np.isfinite(own)]).max(initial=0.0)
    return np.allclose(own, ours, rtol=0.0, atol=np.sqrt(digits) * scale, equal_nan=True)


def _epsilon(model: keras.Model) -> float:
    kinds = {layer.compute_dtype for layer in keras_private.all_layers(model)}
    return max(2.0 ** -_DIGITS.get(kind, 23) for kind in kinds)


class _Recorder(Runner):
    """Keeps what each operation of a graph says for the members of a stack."""

    def __init__(self, operations: Sequence[Any], *args: Any) -> None:
        super().__init__(*args)
        self.said: dict[str, Any] = dict.fromkeys(operation.name for operation in operations)

    def _run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        output = super()._run(operation, args, kwargs)
        if operation.name in self.said:
            self.said[operation.name] = output
        return output


def _culprit(model: keras.Model, template: keras.Model, inputs: Any, training: bool) -> str:
    """Returns the name of the first layer of a graph whose output is another in the stack."""
    if not layer_rules.runs_by_layer(template):
        return model.name
    own, graph = keras_private.graph_of(model), keras_private.graph_of(template)
    rows: Any = {id(t): _Rows([v.value]) for t, v in zip(template.variables, model.variables, strict=True)}
    recorder = _Recorder(graph.operations, rows, 1, training)
    recorder.run_graph(template, inputs)
    names = iter(graph.operations)
    found: list[str] = []

    def listen(operation: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if keras_private.takes_training(operation):
                kwargs["training"] = training
            output = operation(*args, **kwargs)
            ours = recorder.said[twins[operation.name]]
            if isinstance(ours, Stacked) and not _close(output, ours.tensor[0], model):
                found.append(operation.name)
            return output

        return call

    twins = {operation.name: twin.name for operation, twin in zip(own.operations, names, strict=True)}
    with keras.StatelessScope():
        keras_private.run_through_graph(own, keras_private.standardize_inputs(own, inputs), listen)
    return found[0] if found else model.name


def _batches(model: keras.Model, sample: Any) -> Iterator[Any]:
    """Yields batches that the model may take: drawn numbers, small ones, zeros; always the same."""
    limit = min(
        (layer.input_dim for layer in keras_private.all_layers(model) if hasattr(layer, "input_dim")), default=2
    )
    specs = sample if sample is not None else keras_private.input_structure(model)
    specs = specs[0] if isinstance(specs, list | tuple) and len(specs) == 1 else specs
    for draw in ("normal", "small", "zero"):
        rng = np.random.default_rng(0)

        def make(spec: Any, draw: str = draw, rng: Any = rng) -> Any:
            rows = (spec.shape[0] if sample is None else None) or _ROWS  # Some models take batches of one size only.
            shape = [rows, *(_SIZE if size is None else size for size in spec.shape[1:])]
            dtype = tf.as_dtype(spec.dtype)
            if dtype == tf.string:
                return tf.fill(shape, "a")
            if dtype == tf.bool:
                return tf.constant(rng.random(shape) < 0.5)
            if draw == "zero":
                return tf.zeros(shape, dtype)
            if dtype.is_floating and draw == "normal":
                return tf.cast(rng.normal(size=shape), dtype)
            return tf.cast(rng.integers(0, max(limit, 1), shape), dtype)

        yield tf.nest.map_structure(make, specs)
