"""What a call does besides returning outputs: variables that no model lists, random draws, state, custom gradients.

A stack gives each member its own row of the model's variables. Anything else that a call reads and writes, or draws
from, would be shared by all members, and `tf.vectorized_map` drops custom gradients. The call is traced to find out;
nothing of it is executed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

import tf_ensembles
from tf_ensembles.ensemble import keras_private

# Where code is known: its calls do nothing that the variables of a model do not show.
_KNOWN = tuple(str(pathlib.Path(file).parent) for file in (keras.__file__, tf_ensembles.__file__))
# Where custom gradients are those that the operations have by themselves, only more stable.
_KNOWN_GRADIENTS = (*_KNOWN, str(pathlib.Path(tf.__file__).parent))
# Stateful by their definition, and yet alike for all members: variables are looked at by themselves, functions through
# their bodies, and lookup tables do not change in a call.
_HARMLESS = frozenset({
    "VarHandleOp", "ReadVariableOp", "VariableShape", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp",
    "StatefulPartitionedCall", "PartitionedCall", "While", "If", "Case", "Assert", "PrintV2",
    "LookupTableFindV2", "LookupTableSizeV2", "LookupTableExportV2",
    "TensorArrayV3", "TensorArrayReadV3", "TensorArrayWriteV3", "TensorArrayGatherV3", "TensorArrayScatterV3",
    "TensorArraySizeV3", "TensorArrayConcatV3", "TensorArraySplitV3", "TensorArrayGradV3", "TensorArrayCloseV3",
})  # fmt: skip
_ASSIGN = ("Assign", "ResourceScatter", "ResourceApply", "ResourceStrided")  # how the names of those that write begin
_STATELESS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # losses seen to be so, by `id`


@dataclasses.dataclass(frozen=True)
class Effects:
    """What a traced call does besides returning outputs."""

    unlisted: tuple[str, ...]  # the names of variables that it uses and that are not in `listed`
    operations: tuple[str, ...]  # the types of operations in it that draw or keep a state
    assigns: bool  # whether it writes to any variable
    shares_seed: bool  # whether it draws from Keras's global generator
    has_gradient: bool  # whether it defines a custom gradient

    def describe(self) -> str | None:
        """Returns what members would share, or lose, if one call stood for all of them; None if nothing."""
        if self.shares_seed:
            return (
                "a layer calls keras.random without a seed; give it a keras.random.SeedGenerator that the layer keeps"
            )
        if self.unlisted:
            return f"a layer uses the variable {self.unlisted[0]}, which Keras does not track (add_weight is tracked)"
        if self.operations:
            return f"a layer runs {self.operations[0]}, which may keep state or draw outside of the model's variables"
        if self.has_gradient:
            return "a layer has a custom gradient, which would be lost where members are computed together"
        return None


def trace(call: Callable[..., Any], *arguments: Any, listed: Iterable[Any] = ()) -> Effects:
    """Returns the effects of a call.

    Args:
        call: a function of tensors.
        *arguments: tensors, or specs of them.
        listed: the Keras variables that the call is known to use.
    """
    graph = tf.function(call, autograph=False).get_concrete_function(*arguments).graph
    parts = [part for variable in listed for part in getattr(variable.value, "values", [variable.value])]
    known = {id(part.handle) for part in parts}  # Those of all replicas.
    handles = [handle for handle, _ in graph.captures if keras_private.is_variable_handle(handle)]
    unlisted = [handle for handle in handles if id(handle) not in known]
    names = {id(variable.handle): variable.name.split(":")[0] for variable in graph.variables}
    nodes = keras_private.nodes(graph)
    types = {node.op for node in nodes}
    return Effects(
        tuple(names.get(id(handle), "<captured variable>") for handle in unlisted),
        tuple(sorted(kind for kind in types if _is_stateful(kind))),
        any(kind.startswith(_ASSIGN) for kind in types),
        any(map(keras_private.is_global_seed_state, unlisted)),
        any(source and not _is_known_gradient(source) for source in map(keras_private.gradient_source, nodes)),
    )


class NotTraceableError(Exception):
    """A call fails on these arguments, so that its effects are not known."""


def check_stateless(loss: Any, y: Any, outputs: Any) -> None:
    """Raises if a loss writes to variables, which all members would share.

    Args:
        loss: a function of targets and outputs.
        y: targets of a batch, or their spec.
        outputs: of one member on that batch, or their spec.
    """
    if id(loss) in _STATELESS:
        return
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (y, outputs)]
    try:
        traced = trace(loss, *specs)
    except Exception as error:
        raise NotTraceableError(str(error)) from error
    if traced.assigns and len(traced.unlisted) > traced.shares_seed:  # To draw is no state that couples members.
        raise ValueError(
            f"Expected a stateless loss, since all members share it. Received: {loss.name}, which assigns a variable. "
            "Move the state into a layer and call add_loss there"
        )
    _STATELESS[id(loss)] = loss


def _is_stateful(kind: str) -> bool:
    return kind not in _HARMLESS and not kind.startswith(_ASSIGN) and keras_private.is_stateful(kind)


def _is_known_gradient(source: str) -> bool:
    """Whether a gradient in this file is that of the operations themselves, as those of `tf.nn` are."""
    # `tf.grad_pass_through` and `tf.recompute_grad` are in one file; the first replaces a gradient by another.
    return source.startswith(_KNOWN_GRADIENTS) and not source.endswith("custom_gradient.py")


def is_known(types: Iterable[type], sources: Iterable[str]) -> bool:
    """Whether classes and functions are all Keras's own or ours, which keep their state in the model's variables.

    Args:
        types: classes of layers and of what they hold.
        sources: the files that functions are written in.
    """
    packages = {type_.__module__.split(".")[0] for type_ in types}
    own = all(source.startswith(_KNOWN) and "random" not in source for source in sources)  # Functions may be to draw.
    return own and packages <= {"keras", "builtins", "numpy", "tf_ensembles"}
