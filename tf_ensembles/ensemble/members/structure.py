"""The structure of members' outputs: one tensor, or a list, a tuple or a dict of them, each with a name and a shape.

Everything inside works on a list of outputs, of which most ensembles have one; users see the structure of a member.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.ensemble import keras_private

Shape = tuple[int | None, ...]


@dataclasses.dataclass(frozen=True)
class Structure:
    """What a member returns."""

    names: tuple[str, ...] = ("output",)
    shapes: tuple[Shape | None, ...] = (None,)  # of each output of one member, without the batch; None: not known yet
    form: type | None = None  # list, tuple or dict; None: one tensor

    def __len__(self) -> int:
        return len(self.names)

    @property
    def is_one(self) -> bool:
        """Whether a member returns one tensor."""
        return self.form is None

    def pack(self, parts: Sequence[Any]) -> Any:
        """Returns one part per output in the structure of a member."""
        if self.form is None:
            return parts[0]
        return dict(zip(self.names, parts, strict=True)) if self.form is dict else self.form(parts)

    def split(self, given: Any, what: str, missing: bool = False) -> list[Any]:
        """Returns what a user gives in the structure of outputs, or by their names, as one part per output, or raises.

        Args:
            given: one part for the one output; else a dict by names, or a list or tuple in the order of a list.
            what: what a part is, for errors.
            missing: whether a dict may leave outputs out, whose part is None.
        """
        if self.form is None and not (isinstance(given, Mapping) and set(given) == set(self.names)):
            return [given]
        if isinstance(given, Mapping):
            unknown = sorted(map(str, set(given) - set(self.names)))
            if unknown or (not missing and len(given) != len(self)):
                raise ValueError(f"Expected {what} for each of the outputs {list(self.names)}. Received: {list(given)}")
            return [given.get(name) for name in self.names]
        if self.form is not dict and isinstance(given, list | tuple) and len(given) == len(self):
            return list(given)
        how = f"a dict with keys {list(self.names)}"
        how += "" if self.form is dict else f", or a list of {len(self)}"
        received = f"{type(given).__name__} of {len(given)}" if isinstance(given, list | tuple) else repr(given)[:80]
        raise ValueError(f"Expected {what} for each output: {how}. Received: {received}")


def leaves(structure: Any) -> list[Any]:
    """Returns the tensors that a model returned, in the order of `Structure`."""
    if isinstance(structure, Mapping):
        return [structure[key] for key in sorted(structure)]
    return list(structure) if isinstance(structure, list | tuple) else [structure]


def like(structure: Any, parts: Sequence[Any]) -> Any:
    """Returns parts, one per tensor of `leaves`, in the structure that a model returned."""
    if isinstance(structure, Mapping):
        return dict(zip(sorted(structure), parts, strict=True))
    return type(structure)(parts) if isinstance(structure, list | tuple) else parts[0]


def call_on(model: keras.Model, sample: Any) -> Any:
    """Returns what a model returns for a batch, symbolic where nothing has to be computed for it; builds the model."""
    try:
        returned = keras_private.symbolic_outputs(model, sample)
    except Exception:  # Shapes may depend on values, and a call may want to see them.
        return model(sample)
    return returned if all(part.shape and part.shape[-1] for part in leaves(returned)) else model(sample)


def build_on(model: keras.Model, sample: Any) -> None:
    """Creates the variables of a model for a batch like this one."""
    with contextlib.suppress(Exception):  # As in `call_on`.
        keras_private.build(model, sample)
    if not all(layer.built for layer in keras_private.all_layers(model)):
        call_on(model, sample)


def of(model: keras.Model, sample: Any, what: str) -> Structure:
    """Returns the structure of what a model returns, or raises if it is neither flat nor of tensors that have columns.

    Args:
        model: a built model.
        sample: a batch to call it on, or None where it knows its outputs.
        what: what the model is, for errors.
    """
    said = call_on(model, sample) if sample is not None else keras_private.output_structure(model)
    if isinstance(said, list | tuple) and len(said) == 1:
        said = said[0]
    parts = leaves(said)
    if any(keras.tree.is_nested(part) for part in parts):
        raise ValueError(
            f"Expected {what} that return a tensor, or a list or dict of tensors. Received: {model.name} with "
            "structures within a structure; name all outputs in one dict"
        )
    shapes = tuple(tuple(keras.ops.shape(part))[1:] for part in parts)
    for shape in shapes:
        if not shape or shape[-1] is None:
            raise ValueError(
                f"Expected {what} with outputs [batch, ..., outputs] and a known number of outputs. Received: shape "
                f"{(None, *shape)}"
            )
    if not isinstance(said, Mapping | list | tuple):
        return Structure(shapes=shapes)
    names = list(said if isinstance(said, Mapping) else getattr(model, "output_names", None) or [])
    if len(set(names)) != len(parts):
        names = [f"output_{place}" for place in range(len(parts))]
    if "val" in names:
        raise ValueError("Expected outputs with names other than 'val', which Keras puts before all that is validated")
    if isinstance(said, Mapping):
        return Structure(tuple(map(str, sorted(said))), shapes, dict)
    return Structure(tuple(names), shapes, tuple if isinstance(said, tuple) else list)


def stacked(said: Sequence[Any]) -> Any:
    """Returns what models returned, one after the other, as tensors `[members, batch, ...]` that carry their masks."""
    together = []
    for parts in zip(*map(leaves, said), strict=True):
        masks = [keras_private.mask_of(part) for part in parts]
        if any(mask is None for mask in masks) and any(mask is not None for mask in masks):
            raise ValueError("Expected masks on the outputs of all members, or of none. Received: masks of some")
        tensor = tf.stack([tf.convert_to_tensor(part) for part in parts])
        together.append(keras_private.with_mask(tensor, None if masks[0] is None else tf.stack(masks)))
    return like(said[0], together)


def transposed(tensor: Any) -> Any:
    """`[members, batch, ...]` from `[batch, members, ...]`, and back."""
    rank = len(tensor.shape)
    return tf.transpose(tensor, [1, 0, *range(2, rank)])


def transposed_with_mask(tensor: Any) -> Any:
    """Returns what `transposed` does, with its mask transposed, too, where it carries one."""
    mask = keras_private.mask_of(tensor)
    return keras_private.with_mask(transposed(tensor), None if mask is None else transposed(mask))
