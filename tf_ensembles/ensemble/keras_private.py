"""Everything that we use of Keras and that Keras does not promise to keep: one function each, with the reason.

A new version of Keras can break these and nothing else of ours. `Ensemble` also overrides one private hook, which has
to be a method of it: `_resolve_auto_jit_compile`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras


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
    return model.inputs if structure is None else structure  # A lone symbolic tensor has no truth value.


def takes_training(operation: Any) -> bool:
    """Whether an operation's `call` has an argument `training`."""
    # Keras has looked at the signature already, wrappers included; an operation that is no layer has none.
    return bool(getattr(operation, "_call_has_training_arg", False))


def track_loss(model: keras.Model, loss: Any, count: Any) -> None:
    """Takes a batch's loss into the running mean that Keras reports as `loss`."""
    # `train_step` is ours, and Keras's own reports its loss in no other way.
    model._loss_tracker.update_state(loss, sample_weight=count)


def require_compiled(model: keras.Model, method: str) -> None:
    """Raises, with the message of Keras, unless the model is compiled."""
    # `fit` has to know before it looks at the data.
    model._assert_compile_called(method)


def less_is_better(metric: keras.metrics.Metric) -> bool:
    """Whether a metric's smaller values are better."""
    # Keras keeps this for its own callbacks; ours name their direction in the same attribute.
    return metric._direction == "down"


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
