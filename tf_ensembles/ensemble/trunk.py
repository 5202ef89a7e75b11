"""A trunk: one Keras model that all members share and that runs once per batch; members are heads on its features.

A frozen trunk (`trunk.trainable = False`) runs in inference mode always: batch norm takes its moving statistics, as
Keras has it, and dropout drops nothing. Its features of arrays in memory are computed once, where they fit. A trunk
that is trained runs in training mode in training, with one dropout mask and one batch's statistics for all members, and
its gradient is the mean of the members' gradients: its learning rate means the same for 1 and for 100 heads.

Shapes: inputs `[batch, ...]`, features `[batch, ...]` or a structure of such.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import prior as priors_lib
from tf_ensembles.base import Array
from tf_ensembles.ensemble import data, keras_private
from tf_ensembles.ensemble.callbacks import Marks
from tf_ensembles.ensemble.members import frozen, stack, structure
from tf_ensembles.ensemble.members.layer_rules import Hidden, has_recurrent, looped_parts
from tf_ensembles.prior import PriorFunction

# Features of in-memory data are computed once and kept if they fit into this many bytes.
_CACHE_BYTES = 2**30
_ROWS = 256  # at a time, where they are computed


def check(trunk: Any, prior: PriorFunction | None) -> None:
    """Raises unless it is a Keras model that knows its inputs and outputs, or None where no prior asks for one."""
    if trunk is None:
        if prior is not None and prior.on not in (None, "inputs"):
            raise ValueError(f"Expected trunk=..., since the prior is a function of on={prior.on!r}. Received: None")
        return
    if not isinstance(trunk, keras.Model):
        raise ValueError(f"Expected trunk to be a keras.Model (Keras 3) that all members share. Received: {trunk!r}")
    if not (trunk.built and hasattr(trunk, "output_shape") and keras_private.input_structure(trunk) is not None):
        raise ValueError(
            "Expected a trunk that knows its inputs and outputs: start it with keras.Input, or wrap it, "
            f"keras.Model(inputs, trunk(inputs)). Received: {type(trunk).__name__}, which does not"
        )


def place_of(prior: PriorFunction | None, trunk: keras.Model | None) -> str:
    """Returns what priors are functions of: `"inputs"`, `"features"` or `"both"`."""
    if trunk is None or prior is None:
        return "inputs"
    return prior.on or ("inputs" if trunk.trainable else "features")


def write(trunk: keras.Model | None, place: str) -> dict[str, Any]:
    """Returns the part of an ensemble's `get_config` that says what its trunk is."""
    if trunk is None:
        return {}
    config = frozen.write(trunk)
    config.pop("compile_config", None)  # It is the ensemble that trains it.
    return {"trunk": config, "trunk_frozen": not trunk.trainable, "prior_on": place}


def read(config: Any, is_frozen: bool, custom_objects: Any) -> keras.Model:
    """Returns the trunk that `write` described."""
    trunk = frozen.read(config, custom_objects)
    if is_frozen:  # Files of before do not say it of every variable.
        frozen.freeze(trunk)
    return trunk


def prior_inputs(place: str, x: Any, features: Any) -> Any:
    """Returns what priors take; None where it is not known."""
    if place == "inputs":
        return x
    if features is None or (place == "both" and x is None):
        return None
    return features if place == "features" else [*tf.nest.flatten(x), *tf.nest.flatten(features)]


@dataclasses.dataclass(frozen=True)
class Of:
    """A model in the place of members, for those who ask for its inputs."""

    template: keras.Model


class Trunked:
    """The part of an `Ensemble` that has its trunk, or none."""

    num_members: int
    trainable: bool
    prior: PriorFunction | None
    priors: stack.Members | None
    members: stack.Members | None
    _frozen: Marks
    _diverged: Marks
    outputs_said: Callable[[], list[Any]]
    _built_on: Any
    _structure: structure.Structure
    _built_members: Callable[[], stack.Members]
    add_weight: Callable[..., Any]
    _trunk_flags: Any = None
    _compiled_trunk: Hidden | None = None
    trunk: Any = None

    def _take_trunk(self, trunk: keras.Model | None, prior: PriorFunction | None) -> None:
        check(trunk, prior)
        if trunk is not None and not trunk.trainable:
            frozen.freeze(trunk)  # All of it: one that was read from a file may have parts that Keras left trainable.
        self.trunk, self._prior_on = trunk, place_of(prior, trunk)
        for place, generator in enumerate([] if trunk is None else keras_private.seed_generators(trunk)):
            # Kept here so that dropout goes on where it was after a load: Keras saves no generators of layers.
            value = np.asarray(generator.state)
            generator.state = self.add_weight(
                shape=value.shape, dtype=generator.state.dtype, trainable=False, name=f"trunk_seed_state_{place}"
            )
            generator.state.assign(value)

    @property
    def trains_trunk(self) -> bool:
        """Whether there is a trunk that is trained along with the members."""
        return self.trunk is not None and bool(self.trunk.trainable)

    # Building.

    def _samples(self, sample: Any) -> list[Any]:
        """Returns what the members' and the priors' builders are shown of a batch `[batch, ...]` of inputs."""
        if self.trunk is None:
            return [sample, sample]
        features = self.trunk(sample, training=False)
        return [features, prior_inputs(self._prior_on, sample, features)]

    def _show_prior(self, draft: Any, x: Any, head: keras.Model, sample: Any) -> None:
        """Shows data to priors that wait for them."""
        if self.trunk is None:
            draft.see(lambda: data.some_examples(x), head, sample)
            return

        def examples() -> Any:
            some = data.some_examples(x)
            return prior_inputs(self._prior_on, some, tf.nest.map_structure(np.asarray, self._compute_features(some)))

        if self._prior_on == "features":
            draft.see(examples, head, self._samples(sample)[0])
        else:  # A whole member, whose embeddings say how many tokens there are.
            structure = inputs_like(self._trunk_specs())
            draft.see(examples, keras.Model(structure, head(self.trunk(structure))), sample)

    def _require_known(self, known: bool, head: keras.Model) -> None:
        """Raises where heads or priors on a trunk do not know their inputs and outputs."""
        if self.trunk is not None and not known:
            raise ValueError(
                "Expected heads and priors that know their inputs and outputs, where there is a trunk: start them with "
                f"keras.Input. Received: {type(head).__name__}, which does not"
            )

    def _check_trunk(self) -> None:
        """Raises unless heads, and priors on features, take what the trunk returns."""
        if self.trunk is None:
            return
        members = self._built_members()
        theirs = {id(v) for part in (members, self.priors) if part for t in part.templates for v in t.variables}
        if any(id(variable) in theirs for variable in self.trunk.variables):
            raise ValueError("Expected heads with variables of their own. Received: layers of the trunk in a head")
        outputs, inputs = (
            [tuple(t.shape) for t in keras.tree.flatten(part)] for part in (self.trunk.outputs, self.trunk.inputs)
        )
        _check_takes(members.template, outputs, "build_member to return heads on the trunk's output")
        if self.priors is not None:
            wanted = {"inputs": inputs, "features": outputs, "both": [*inputs, *outputs]}[self._prior_on]
            _check_takes(self.priors.template, wanted, f"a prior on {self._prior_on!r}")

    def input_specs(self) -> Any:
        """The shape, batch first, and dtype of each input, in the structure in which the members take them."""
        if self.trunk is not None:
            return self._trunk_specs()
        return stack.input_specs(self._built_members(), self._built_on)

    def _trunk_specs(self) -> Any:
        trunk: Any = Of(self.trunk)
        return stack.input_specs(trunk, None)

    def _trunk_supports_jit(self) -> bool:
        return self.trunk is None or not (looped_parts(self.trunk) or has_recurrent(self.trunk))

    # Running.

    def _seen(self, parts: data.Inputs, training: bool) -> data.Inputs:
        """Returns a batch with the features of its inputs, where there is a trunk."""
        if self.trunk is None or parts.features is not None:
            return parts
        features = self.trunk(parts.x, training=training and self.trains_trunk)
        if self.trains_trunk:
            healthy = self.num_members - int(self._diverged.in_step().sum())
            features = tf.nest.map_structure(lambda f: mean_gradient(f, healthy), features)
        else:
            features = tf.nest.map_structure(tf.stop_gradient, features)
        return dataclasses.replace(parts, features=features)

    def _trunk_penalty(self) -> Any:
        """Returns the trunk's own regularization: part of every member's loss, and once in the trunk's gradient."""
        if not self.trains_trunk or not self.trunk.losses:
            return 0.0
        total = tf.add_n([tf.cast(loss, tf.float32) for loss in self.trunk.losses])
        return mean_gradient(total, self.num_members)

    def _without_diverged(self, result: tf.Tensor) -> tf.Tensor:
        """Keeps members that diverged from training the trunk: an output `[members, batch, ...]`."""
        diverged = self._diverged.in_step()
        if not self.trains_trunk or not diverged.any():
            return result
        each = diverged.reshape(-1, *[1] * (len(result.shape) - 1))
        return tf.where(each, tf.stop_gradient(result), result)

    def _with_priors(
        self, raw: Any, parts: data.Inputs, member: tf.Tensor | None = None, predicting: bool = True
    ) -> list[tf.Tensor]:
        """Returns the list of outputs of members, or of one, each `[members, batch, ...]`, with priors and masks."""
        leaves = structure.leaves(raw)
        masks = [keras_private.mask_of(part) for part in leaves]
        outputs = [tf.cast(part, tf.float32) for part in leaves]
        if member is None:
            outputs = [self._without_diverged(part) for part in outputs]
        if self.prior is not None and self.priors is not None:
            inputs = prior_inputs(self._prior_on, parts.x, parts.features)
            scales, heads = priors_lib.scales(self.prior, self._structure), [o.head for o in self.outputs_said()]
            options = {"x": inputs, "known": parts.prior, "heads": heads, "member": member, "predicting": predicting}
            outputs = stack.add_prior(outputs, self._structure, self.priors, scales, **options)
        return [part if mask is None else keras_private.with_mask(tf.identity(part), mask)
                for part, mask in zip(outputs, masks, strict=True)]  # fmt: skip

    # Features of arrays in memory.

    def _compute_features(self, x: Any) -> Any:
        """Returns a frozen trunk's features of arrays, by parts."""
        if self._compiled_trunk is None:
            trunk = self.trunk
            self._compiled_trunk = Hidden(tf.function(lambda rows: trunk(rows, training=False), reduce_retracing=True))
        compute, length = self._compiled_trunk.value, len(tf.nest.flatten(x)[0])
        parts = []
        for start in range(0, length, _ROWS):
            rows = tf.nest.map_structure(lambda v, start=start: tf.convert_to_tensor(v[start : start + _ROWS]), x)
            rows = list(rows) if isinstance(rows, tuple) else rows
            parts.append(tf.nest.map_structure(lambda t: t.numpy(), compute(rows)))
        return tf.nest.map_structure(lambda *all_parts: np.concatenate(all_parts), *parts)

    def _prepared(self, x: Any, ids: Array | None, length: int) -> dict[str, Any]:
        """Returns arrays with their ids, and with what frozen parts say of them, computed once where it fits."""
        features = None
        if self.trunk is not None and not self.trains_trunk:
            sizes = [(shape[1:], keras.backend.standardize_dtype(t.dtype)) for t, shape in _shapes(self.trunk.outputs)]
            known = all(None not in shape for shape, _ in sizes)
            size = sum(math.prod(s or 0 for s in shape) * np.dtype(_numpy(dtype)).itemsize for shape, dtype in sizes)
            if known and length * size <= _CACHE_BYTES:
                features = self._compute_features(x)
        seen = prior_inputs(self._prior_on, x, features)
        sizes_said = [None if o.positions is None else o.positions * o.num_outputs for o in self.outputs_said()]
        numbers = None if None in sizes_said else sum(size or 0 for size in sizes_said)
        prior = None if seen is None else stack.cached_prior(self.priors, seen, length, numbers)
        needed = features is None or (self.priors is not None and prior is None and self._prior_on != "features")
        wrapped = data.with_ids(x if needed else None, ids, prior)
        return wrapped if features is None else {**wrapped, data.FEATURES: features}

    # Training.

    def make_train_function(self, force: bool = False) -> Any:
        """Compiles the training step for the layers of the trunk that are trainable now."""
        layers = [] if self.trunk is None else keras_private.all_layers(self.trunk)
        flags = tuple(bool(layer.trainable) for layer in layers)
        changed, self._trunk_flags = flags != self._trunk_flags, flags
        return super().make_train_function(force or changed)  # type: ignore[misc]

    def freeze_members(self, indices: Sequence[int]) -> None:
        """Stops training these members; the others go on."""
        self._refuse_with_trained_trunk("freeze_members, MemberEarlyStopping", indices)
        super().freeze_members(indices)  # type: ignore[misc]

    def mark_diverged(self, indices: Sequence[int]) -> None:
        """Stops training these members and leaves them out of mixtures and metrics."""
        if self.trains_trunk:  # NaN times a gradient of zero is NaN, which would reach the trunk.
            for variable, owner in self._built_members().owned_variables():
                value = np.array(variable)
                rows = np.isin(np.arange(self.num_members), indices) if owner is None else np.isin(owner, indices)
                if value.dtype.kind == "f" and rows.any() and not np.isfinite(value[rows]).all():
                    value[rows] = np.nan_to_num(value[rows], nan=0.0, posinf=0.0, neginf=0.0)
                    variable.assign(value)
        super().mark_diverged(indices)  # type: ignore[misc]

    def _refuse_with_trained_trunk(self, what: str, received: Any) -> None:
        if self.trains_trunk:
            raise ValueError(
                f"Expected a frozen trunk (trunk.trainable = False, then compile) for {what}: heads that stand still "
                f"no longer fit a trunk that moves. Received: a trunk that is trained, members {list(received)}"
            )


@tf.custom_gradient
def _divided(tensor: tf.Tensor, count: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        mean = upstream / tf.cast(count, upstream.dtype)
        # One member's NaN would end the training of all: such a step leaves the trunk as it is.
        return tf.where(tf.reduce_all(tf.math.is_finite(mean)), mean, tf.zeros_like(mean)), None

    return tf.identity(tensor), gradient


def mean_gradient(tensor: tf.Tensor, count: int) -> tf.Tensor:
    """Returns the tensor; its gradient, a sum over members, is divided by their number, and 0 unless it is finite."""
    return _divided(tensor, tf.constant(max(count, 1), tf.float32))


def _check_takes(model: keras.Model, wanted: Sequence[tuple[int | None, ...]], what: str) -> None:
    taken = [tuple(tensor.shape) for tensor in keras.tree.flatten(keras_private.input_structure(model))]
    fits = len(taken) == len(wanted) and all(
        len(one) == len(other) and all(a is None or b is None or a == b for a, b in zip(one, other, strict=True))
        for one, other in zip(taken, wanted, strict=True)
    )
    if not fits:
        raise ValueError(f"Expected {what}, shapes {list(wanted)}. Received: one that takes {taken}")


def inputs_like(specs: Any) -> Any:
    """Returns Keras inputs in a structure of (shape, dtype) pairs, named by their keys."""
    if isinstance(specs, dict):
        return {key: keras.Input(shape[1:], dtype=dtype, name=key) for key, (shape, dtype) in specs.items()}
    if isinstance(specs, list):
        return [keras.Input(shape[1:], dtype=dtype) for shape, dtype in specs]
    return keras.Input(specs[0][1:], dtype=specs[1])


def _shapes(tensors: Any) -> list[tuple[Any, tuple[int | None, ...]]]:
    return [(tensor, tuple(tensor.shape)) for tensor in keras.tree.flatten(tensors)]


def _numpy(dtype: str) -> str:
    return "float16" if dtype == "bfloat16" else dtype
