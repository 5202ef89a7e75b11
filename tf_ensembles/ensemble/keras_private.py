"""All that we use of Keras and TensorFlow and that they do not promise to keep: one function each, with the reason.

A new version of Keras can break these and nothing else of ours. `Ensemble` also overrides one private hook, which has
to be a method of it: `_resolve_auto_jit_compile`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry, ops
from tensorflow.python.ops.parallel_for import pfor


@functools.cache
def functional_class() -> Any:
    """Returns the class of `keras.Model(inputs, outputs)`."""
    # Keras exports no name for it, and a subclass of `keras.Model` may or may not be one.
    probe = keras.Input((1,), name="probe")
    # Through a layer: Keras 3.12 refuses a model whose output is its input.
    return type(keras.Model(probe, keras.layers.Identity(name="probe_output")(probe), name="probe"))


def graph_of(model: keras.Model) -> Any:
    """Returns the functional model that runs the layers of a Sequential or Functional model; None if it has none."""
    # A Sequential model builds its graph inside and has no public way to walk it.
    return getattr(model, "_functional", None) if type(model) is keras.Sequential else model


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns the model and all layers in it, at any depth."""
    # `model.layers` has the first level only.
    return list(model._flatten_layers())


@functools.cache
def bookkeeping() -> frozenset[str]:
    """Returns the names of the attributes that Keras keeps on every layer, model and operation, whatever it does."""
    # What is left of an object's attributes is what its own class has put there.
    tensor = keras.Input((1,))
    plain = [keras.layers.Layer(), keras.Sequential([tensor, keras.layers.Identity()]), keras.Model(tensor, tensor)]
    plain += [keras.ops.add(tensor, tensor)._keras_history.operation, keras.Model()]
    return frozenset(name for part in plain for name in vars(part))


def wiring(model: keras.Model) -> list[tuple[Any, list[Any]]]:
    """Returns each operation of a graph with the arguments of its calls: places of tensors, and other values."""
    # The public `get_config` says the same, a hundred times slower.
    operations = graph_of(model).operations
    places = {id(operation): place for place, operation in enumerate(operations)}

    def argument(value: Any) -> Any:
        if isinstance(value, keras.KerasTensor):
            history = value._keras_history
            return places.get(id(history.operation)), history.node_index, history.tensor_index
        return value

    def calls(operation: Any) -> list[Any]:
        parts = [(node.arguments.args, node.arguments.kwargs) for node in operation._inbound_nodes]
        return keras.tree.map_structure(argument, parts)

    return [(operation, calls(operation)) for operation in operations]


def takes_one_tensor(layer: keras.layers.Layer) -> bool:
    """Whether a layer is called with one tensor and no other wherever it stands in a graph."""
    # `layer.input` raises for a layer that is called more than once, and hides what goes by keyword.
    return all(len(node.input_tensors) == 1 for node in layer._inbound_nodes)


def seed_generators(model: keras.Model) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators of all layers of a model."""
    # Layers keep them in a list of their own, under whatever name they gave them.
    return [generator for layer in all_layers(model) for generator in layer._seed_generators]


@contextlib.contextmanager
def recorded_initializers(record: dict[int, tuple[Any, Any]]) -> Iterator[None]:
    """Fills `record` with each variable that is made and its initializer, by the variable's `id`."""
    # A variable forgets its initializer, and a layer need not keep it.
    make = keras.Variable._initialize_with_initializer

    def remember(variable: Any, initializer: Any) -> None:
        record[id(variable)] = variable, initializer
        make(variable, initializer)

    keras.Variable._initialize_with_initializer = remember
    try:
        yield
    finally:
        keras.Variable._initialize_with_initializer = make


@contextlib.contextmanager
def global_seeds_kept() -> Iterator[None]:
    """Puts back what `keras.utils.set_random_seed` sets in Keras and TensorFlow."""
    # Neither has a way to ask for it.
    names = ("global_random_seed", "global_seed_generator")
    tensorflow = context.context()
    before = [global_state.get_global_attribute(name) for name in names]
    kept = {name: vars(tensorflow).get(name) for name in ("_seed", "_rng")}
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            global_state.set_global_attribute(name, value)
        vars(tensorflow).update(kept)


def reordering(dataset: Any, is_batched: bool = True) -> str | None:
    """Returns the last step of a `tf.data` pipeline that batches, repeats or shuffles anew, or None if none does.

    Args:
        dataset: its end.
        is_batched: whether batches that come in go out as batches.
    """
    # A dataset tells where it comes from by a method that is not documented, and what it is by its class.
    name = type(dataset).__name__
    if name.startswith(("_Unbatch", "_FlatMap", "_Interleave", "_ParallelInterleave")):
        is_batched = False
    elif "Batch" in name and is_batched:
        return "batch"
    elif "Repeat" in name and tf.get_static_value(dataset._count) != 1:
        return "repeat"
    elif "Shuffle" in name and getattr(dataset, "_reshuffle_each_iteration", True) is not False:
        return "shuffle"
    # Of several that are zipped, one in a fixed order is enough: others may repeat a constant beside it.
    steps = [reordering(source, is_batched) for source in dataset._inputs()]
    return steps[0] if steps and all(steps) else None


def is_global_seed_state(handle: Any) -> bool:
    """Whether a handle is that of the generator that `keras.random` draws from where it is given no seed."""
    # The generator is shared by everything in the process, and no layer lists it.
    generator = global_state.get_global_attribute("global_seed_generator")
    return generator is not None and handle is generator.state.value.handle


def is_variable_handle(tensor: Any) -> bool:
    """Whether a tensor that a graph has captured is the handle of a variable, not of a table or an iterator."""
    # Only handles of variables know the shape of what they refer to, and there is no public way to ask.
    data = getattr(tensor, "_handle_data", None)
    return data is not None and bool(data.is_set)


def nodes(graph: Any) -> list[Any]:
    """Returns all operations of a graph by their definitions, those within its functions and loops included."""
    definition = graph.as_graph_def()
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def gradient_source(node: Any) -> str | None:
    """Returns the file in which the gradient of an operation is written, where it is not that of its type, or None."""
    # `tf.custom_gradient` registers a function around the one that was given to it, and exports no way to find either.
    if "_gradient_op_type" not in node.attr:
        return None
    function = ops.gradient_registry.lookup(node.attr["_gradient_op_type"].s.decode())
    for name in ("tape_grad_fn", "grad_fn"):
        function = inspect.getclosurevars(function).nonlocals.get(name, function)
    return inspect.unwrap(function).__code__.co_filename


def is_stateful(kind: str) -> bool:
    """Whether an operation of this type may give another result at each call, or change something."""
    # TensorFlow keeps this with each definition, and exports no name for their registry.
    definition = op_def_registry.get(kind)
    return definition is not None and bool(definition.is_stateful)


class GradientStoppedScope(keras.StatelessScope):
    """A stateless scope in which, as in TensorFlow, no gradient flows through the assignment of a variable."""

    def add_update(self, update: Any) -> None:
        """Remembers the value that a variable is assigned."""
        # Keras's scope hands the very tensor back to whoever reads the variable next.
        variable, value = update
        super().add_update((variable, tf.stop_gradient(value)))


def symbolic_outputs(model: keras.Model, sample: Any) -> Any:
    """Returns what a model returns for a batch, as symbolic tensors, and builds it; nothing is computed."""
    # A call on data would move the state of layers that keep one, which training has not begun with yet.
    return model(keras.tree.map_structure(lambda v: keras.KerasTensor(v.shape, v.dtype.name), sample))


class _BuiltError(Exception):
    """Ends a symbolic call once the model is built."""


def build(model: keras.Model, sample: Any) -> None:
    """Creates the variables of a model as a symbolic call does, without its outputs; nothing is computed."""
    # A subclassed model is traced twice by a call: to be built, and again for its outputs. `Model.build` takes shapes
    # only, and guesses the dtypes of inputs.

    def stop(*_: Any, **__: Any) -> None:
        raise _BuiltError

    vars(model)["symbolic_call"] = stop  # Past `Layer.__setattr__`, which would track it.
    try:
        symbolic_outputs(model, sample)
    except _BuiltError:
        pass
    finally:
        del vars(model)["symbolic_call"]


def standardize_inputs(graph: Any, inputs: Any) -> Any:
    """Returns inputs in the structure, rank and dtype that a functional model's nodes expect."""
    # A functional model does this at the start of `call`, which we replace.
    return graph._standardize_inputs(inputs)


def run_through_graph(graph: Any, inputs: Any, run: Callable[[Any], Callable[..., Any]]) -> Any:
    """Runs a functional model node by node; `run(operation)` returns what is called in the operation's place."""
    # The public `call` always calls the layers themselves; ours have to run for all members at once.
    return graph._run_through_graph(inputs, operation_fn=run)


def input_structure(model: keras.Model) -> Any:
    """Returns a model's symbolic inputs in the structure in which it takes them."""
    # `model.inputs` is a flat list, which loses the keys of dict inputs.
    structure = getattr(model, "_inputs_struct", None)
    # A lone symbolic tensor has no truth value; a model that is no graph has no inputs.
    return getattr(model, "inputs", None) if structure is None else structure


def output_structure(model: keras.Model) -> Any:
    """Returns a model's symbolic outputs in the structure in which it returns them."""
    # `model.outputs` is a flat list, which loses the keys of dict outputs.
    structure = getattr(graph_of(model), "_outputs_struct", None)
    return model.output if structure is None else structure


def maker(tensor: keras.KerasTensor) -> Any:
    """Returns the layer or operation that makes a symbolic tensor."""
    # `tensor.name` is all that is public of it.
    return tensor._keras_history.operation


def mask_of(tensor: Any) -> Any:
    """Returns the mask that Keras's layers have left on an output, `[batch, ...]` of bool, or None."""
    # Losses and metrics find it there, and there is no other way to ask for it.
    return getattr(tensor, "_keras_mask", None)


def with_mask(tensor: Any, mask: Any) -> Any:
    """Returns the tensor, with a mask for Keras's losses and metrics unless it is None."""
    if mask is not None:
        tensor._keras_mask = mask
    return tensor


def takes_training(operation: Any) -> bool:
    """Whether an operation's `call` has an argument `training`."""
    # Keras has looked at the signature already, wrappers included; an operation that is no layer has none.
    return bool(getattr(operation, "_call_has_training_arg", False))


def track_loss(model: keras.Model, loss: Any, count: Any) -> None:
    """Takes a batch's loss into the running mean that Keras reports as `loss`."""
    # `train_step` is ours, and Keras's own reports its loss in no other way.
    model._loss_tracker.update_state(loss, sample_weight=count)


def forget_metrics(model: keras.Model, metrics: Any) -> None:
    """Takes metrics of an earlier `compile` out of those that a model resets and reports."""
    # Keras tracks what is set as an attribute, and keeps it when the attribute is set again.
    for metric in metrics:
        model._tracker.untrack(metric)


def overrides(model: keras.Model, method: str) -> bool:
    """Whether the class of a model has a method of its own in place of one that Keras's training calls."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def give_loss(model: keras.Model, loss: keras.losses.Loss) -> None:
    """Lets `super().compute_loss` in a model's own `compute_loss` find this loss."""
    # `compile` would give the model an optimizer, too, which would be saved with it and never used.
    compiled = keras.Sequential()
    compiled.compile(loss=loss)
    model._compile_loss = compiled._compile_loss


def compute_loss(model: keras.Model, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool) -> Any:
    """Returns what Keras's training would take as the model's loss on a batch."""
    # It knows whether `compute_loss` takes `training`, which older overrides do not.
    return model._compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)


def begin_at(model: keras.Model, epoch: int | None) -> None:
    """Lets `fit`, which is about to begin, start at an epoch other than its first; None: at its first."""
    model._initial_epoch = epoch


def steps_taken(optimizer: Any) -> Any:
    """Returns how many batches an optimizer has seen."""
    # With `gradient_accumulation_steps`, the public `iterations` counts updates.
    return getattr(optimizer, "inner_optimizer", optimizer)._iterations.value


def require_compiled(model: keras.Model, method: str) -> None:
    """Raises, with the message of Keras, unless the model is compiled."""
    # `fit` has to know before it looks at the data.
    model._assert_compile_called(method)


@functools.cache
def _wrapper_class() -> Any:
    """Returns the class that Keras wraps a loss function in."""
    # Keras exports no name for it. It brings targets to the rank of the outputs, as `fit` does.
    return keras.losses.MeanSquaredError.__base__


def function_loss(function: Any) -> keras.losses.Loss:
    """Returns a function of (y_true, y_pred) as the loss that `keras.Model.compile` makes of it."""
    name = getattr(function, "__name__", type(function).__name__)
    return _wrapper_class()(function, name=re.sub(r"\W", "", name))  # A graph has no place for the name of a lambda.


def loss_function(loss: keras.losses.Loss) -> tuple[Any, dict[str, Any]]:
    """Returns the function that a loss of Keras's wraps, and its settings; None for a class that is not Keras's."""
    # Subclasses may do anything, so only Keras's own classes count. Their settings are kept in no public attribute.
    if type(loss) is _wrapper_class() or type(loss) in vars(keras.losses).values():
        return getattr(loss, "fn", None), dict(getattr(loss, "_fn_kwargs", {}))
    return None, {}


def settings(metric: Any) -> dict[str, Any]:
    """Returns the settings of a metric, a loss or a `functools.partial` that say what it takes."""
    # Wrapped functions keep theirs in no public attribute, and a configuration cannot be had of every one.
    found = {**getattr(metric, "keywords", {}), **getattr(metric, "_fn_kwargs", {})}
    names = ("from_logits", "threshold", "thresholds")
    return found | {name: getattr(metric, name) for name in names if getattr(metric, name, None) is not None}


def less_is_better(metric: keras.metrics.Metric) -> bool:
    """Whether a metric's smaller values are better."""
    # Keras keeps this for its own callbacks; ours name their direction in the same attribute.
    return metric._direction == "down"


def refuse_sklearn_wrapper() -> None:
    """Raises where `fit` is called by one of Keras's scikit-learn wrappers, which would pass on members' outputs."""
    # What a wrapper is given is an ensemble like any other; who calls is all that tells.
    if sys._getframe(2).f_globals.get("__name__", "").endswith("wrappers.sklearn_wrapper"):
        raise ValueError(
            "Expected a model with one output per example for a scikit-learn wrapper. Received: an ensemble; give the "
            "wrapper a function that returns model.as_mixture()"
        )


def is_validation_of_fit(arguments: Mapping[str, Any]) -> bool:
    """Whether `evaluate` was called by `fit`, on validation data that it has prepared already."""
    # `fit` tells `evaluate` by an argument that is not documented.
    return bool(arguments.get("_use_cached_eval_dataset"))


@contextlib.contextmanager
def jit_left_off(model: keras.Model, automatic: bool) -> Iterator[None]:
    """Makes functions without XLA where it was chosen automatically.

    XLA compiles anew for each batch size, which forward passes alone do not pay back. Keras reads the attribute when it
    makes a function, and has no other way to say so for one of them.
    """
    kept = model.jit_compile
    if automatic:
        model.jit_compile = False
    try:
        yield
    finally:
        model.jit_compile = kept


@functools.cache
def convert_draws() -> None:
    """Teaches `tf.vectorized_map` the operations that Keras draws with: a loop over the draws, the same numbers."""
    # TensorFlow does so for the first version of these operations, and has no public way to add the second.
    names = ["GetKeyCounter", "UniformV2", "NormalV2", "UniformIntV2", "UniformFullIntV2"]
    for name in (*(f"StatelessRandom{name}" for name in names), "StatelessTruncatedNormalV2"):
        if name not in pfor._pfor_converter_registry:
            pfor.RegisterPFor(name)(functools.partial(pfor._fallback_converter, warn=False))
