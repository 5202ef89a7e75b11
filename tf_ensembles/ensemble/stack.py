"""M copies of one Keras model as one layer: built, stacked along a first axis, and run together; and their priors.

Shapes inside this module are members first, `[members, batch, ...]`; a tensor that all members share, such as the
input, is `[batch, ...]` until the first layer that has weights. `Stacked` marks the former.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.base import Array
from tf_ensembles.ensemble import keras_private, layer_rules
from tf_ensembles.ensemble.layer_rules import Hidden, Stacked

# Prior outputs of in-memory training data are computed once and kept if they fit into this many bytes.
_PRIOR_CACHE_BYTES = 2**30

# Building models.


@contextlib.contextmanager
def seeded(seed: int, member: int) -> Iterator[None]:
    """Makes everything that Keras draws while a member is built a function of (seed, member); restores all state.

    Keras 3 seeds its initializers and dropout layers from Python's `random`; user code may draw from NumPy's.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    entropy = np.random.SeedSequence([seed & (2**64 - 1), member]).generate_state(2)
    random.seed(int(entropy[0]))
    np.random.seed(entropy[1])  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def build_models(build: Callable[[], keras.Model], num_members: int, seed: int, what: str) -> list[keras.Model]:
    """Calls the user's builder once per member and checks that it returns a new Keras model each time."""
    models: list[keras.Model] = []
    owners: dict[int, int] = {}
    for member in range(num_members):
        with seeded(seed, member):
            model = build()
        if not isinstance(model, keras.Model):
            raise ValueError(f"Expected {what} to return a keras.Model (Keras 3). Received: {type(model)}")
        for part in (model, *model.variables):
            first = owners.setdefault(id(part), member)
            if first != member:
                raise ValueError(
                    f"Expected {what} to return a new model with its own variables at every call. "
                    f"Received: the same {type(part).__name__} for members {first} and {member}"
                )
        models.append(model)
    return models


def build_on(models: Sequence[keras.Model], sample: Any, seed: int) -> None:
    """Creates the variables of models that were returned unbuilt, by calling each on a sample of the data."""
    for member, model in enumerate(models):
        if not model.built:
            with seeded(seed, member):
                model(sample)


def have_known_outputs(models: Sequence[keras.Model]) -> bool:
    """Whether all models have their variables and an output shape already, without having seen data."""
    return all(model.built and hasattr(model, "output_shape") for model in models)


def prior_seed(seed: int) -> int:
    """Returns the seed that priors are built with, so that they do not repeat the draws that start the members."""
    return draws.key(seed, draws.Purpose.PRIOR)


# Stacking them.


class _PerMember(keras.constraints.Constraint):  # Keras 3.12 takes nothing else.
    """A weight constraint that is applied to each member's slice by itself."""

    def __init__(self, constraint: Callable[[Any], Any], num_members: int) -> None:
        self._constraint, self._num_members = constraint, num_members

    def __call__(self, stacked: Any) -> Any:
        values = tf.unstack(tf.convert_to_tensor(stacked), num=self._num_members)
        return tf.stack([self._constraint(value) for value in values])


class MemberStack(keras.layers.Layer):
    """Runs M models of one architecture: inputs `[batch, ...]` to outputs `[members, batch, outputs]`.

    Args:
        models: built models of one architecture, one per member. The first is kept as the template; only the values of
            the others' variables are. A single model stands for `num_members` members whose values come later, when
            a saved file is loaded.
        num_members: M.
        trainable: False for a prior: nothing in it is ever trained or updated.
    """

    def __init__(self, models: Sequence[keras.Model], num_members: int, trainable: bool = True, **kwargs: Any) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.num_members = num_members
        # Hidden in a holder: Keras would otherwise track the template's own variables as ours.
        self._hidden = Hidden(models[0])
        self._stacked: Hidden = Hidden(self._stack(models, trainable))
        self.looped = layer_rules.looped_parts(models[0])
        # Measured on CPUs: XLA fuses small batched layers well, and slows convolutions down.
        self.supports_jit = not self.looped
        if not layer_rules.is_vectorizable(models[0]):
            return
        for generator in layer_rules.shared_generators(models[0]):
            # Drawn once for all members at a time; kept here so that it is saved and restored with us.
            state = generator.state
            generator.state = self.add_weight(
                shape=state.shape, dtype=state.dtype, trainable=False, name="seed_state", initializer=_Constant(state)
            )

    @property
    def template(self) -> keras.Model:
        """The first member's model, which gives the architecture."""
        return self._hidden.value

    def _stack(self, models: Sequence[keras.Model], trainable: bool) -> dict[int, keras.Variable]:
        stacked = {}
        for index, variable in enumerate(models[0].variables):
            values = [np.asarray(model.variables[index]) for model in models]
            if any(value.shape != values[0].shape for value in values):
                raise ValueError(
                    "Expected members of one architecture. Received: variable "
                    f"{variable.path} of shapes {sorted({value.shape for value in values})}"
                )
            if len(values) < self.num_members:
                values = values * self.num_members
            constraint = getattr(variable, "constraint", None)
            stacked[id(variable)] = self.add_weight(
                shape=(self.num_members, *variable.shape),
                dtype=variable.dtype,
                initializer=_Constant(np.stack(values)),
                trainable=trainable and variable.trainable,
                autocast=False,
                constraint=_PerMember(constraint, self.num_members) if constraint else None,
                name=f"{index}_{variable.name}",
            )
        return stacked

    def build(self, *args: Any) -> None:
        """Does nothing: all variables exist since construction."""
        self.built = True

    def run(self, inputs: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns outputs `[members, batch, outputs]` and each member's own regularization losses `[members]`."""
        runner = layer_rules.Runner(self._stacked.value, self.num_members, training and self.trainable)
        if layer_rules.is_vectorizable(self.template):
            outputs = runner.run_graph(self.template, inputs)
        else:
            outputs = runner.loop(self.template, [inputs], {})
        if isinstance(outputs, Stacked):
            return outputs.tensor, runner.penalty()
        tensor = tf.convert_to_tensor(outputs)  # No layer with weights: the members are one and the same.
        return tf.tile(tensor[None], [self.num_members, 1, 1]), runner.penalty()

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns outputs `[members, batch, outputs]`."""
        return self.run(inputs, training)[0]

    def member_values(self, member: int) -> list[np.ndarray[Any, Any]]:
        """Returns one member's variables, in the order of the template's `variables`."""
        return [np.asarray(self._stacked.value[id(variable)])[member] for variable in self.template.variables]

    def squared_norm(self) -> tf.Tensor:
        """Returns `||theta_m||^2` over the trainable variables of each member, `[members]`."""
        total = tf.zeros([self.num_members])
        for variable in self.trainable_variables:
            value = tf.cast(variable.value, tf.float32)
            total += tf.reduce_sum(tf.square(value), axis=list(range(1, len(variable.shape))))
        return total


class _Constant(keras.initializers.Initializer):
    """Starts a variable at given values."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return keras.ops.convert_to_tensor(np.asarray(self._values), dtype=dtype)


# Running members and priors.


def execution(members: MemberStack | None, priors: MemberStack | None) -> str:
    """Returns how members run: `"vectorized"`, or what is looped over members."""
    if members is None:
        return "not built"
    looped = [*members.looped, *(priors.looped if priors else ())]
    return "vectorized" if not looped else f"looped over members: {', '.join(looped)}"


def add_prior(result: tf.Tensor, priors: MemberStack, scale: float, x: Any, known: Any) -> tf.Tensor:
    """Returns members' outputs `[members, batch, outputs]` with their scaled priors' added.

    Args:
        result: the members' own.
        priors: their priors.
        scale: the prior scale.
        x: inputs `[batch, ...]`.
        known: the priors' outputs on `x`, `[batch, members, outputs]`, where they were computed before; or None.
    """
    return result + scale * (prior_outputs(priors, x) if known is None else tf.transpose(known, [1, 0, 2]))


def prior_outputs(priors: MemberStack, x: Any) -> tf.Tensor:
    """Returns the unscaled priors `[members, batch, outputs]`."""
    return tf.stop_gradient(tf.cast(priors.run(x, training=False)[0], tf.float32))


def cached_prior(priors: MemberStack | None, x: Any, length: int, num_outputs: int) -> Array | None:
    """Returns priors' outputs `[batch, members, outputs]` on arrays in memory, or None if too large to keep."""
    if priors is None or length * priors.num_members * num_outputs * 4 > _PRIOR_CACHE_BYTES:
        return None

    def compute(rows: Any) -> tf.Tensor:
        return prior_outputs(priors, rows)

    compiled = tf.function(compute, jit_compile=priors.supports_jit, reduce_retracing=True)
    step = max(1, min(length, 2**22 // (priors.num_members * 64)))
    parts = []
    for start in range(0, length, step):
        rows = slice(start, start + step)
        inputs = tf.nest.map_structure(lambda v, rows=rows: tf.convert_to_tensor(v[rows]), x)
        parts.append(np.transpose(compiled(inputs), [1, 0, 2]))
    return np.concatenate(parts)


# Shapes. What an ensemble was built on is a structure of (shape without the batch, dtype) pairs, as a file keeps it;
# None for members that know their inputs.


def built_on(sample: Any) -> Any:
    """Returns what models that were built on this batch were built on."""
    return tf.nest.map_structure(lambda v: (list(v.shape[1:]), tf.as_dtype(v.dtype).name), sample)


def zeros(built_on: Any) -> Any:
    """Returns one example of zeros in that structure."""
    return _map_built_on(lambda shape, dtype: tf.zeros([1, *shape], dtype), built_on)


def input_specs(members: MemberStack, built_on: Any) -> Any:
    """Returns the shape, batch first, and dtype of each input, in the structure that the members take."""
    if built_on is not None:
        return _map_built_on(lambda shape, dtype: ((None, *shape), dtype), built_on)
    structure = keras_private.input_structure(members.template)
    structure = structure[0] if isinstance(structure, list | tuple) and len(structure) == 1 else structure
    return tf.nest.map_structure(lambda tensor: (tuple(tensor.shape), tensor.dtype), structure)


def num_outputs(members: MemberStack, priors: MemberStack | None, built_on: Any) -> int:
    """Returns the size of a member's output, after checks that it is `[batch, outputs]` and a prior's the same."""
    member = _output_shape(members.template, built_on)
    if len(member) != 2:
        raise ValueError(f"Expected members with outputs [batch, outputs]. Received: shape {member}")
    prior = member if priors is None else _output_shape(priors.template, built_on)
    if prior != member:
        raise ValueError(f"Expected a prior with the member's output shape {member}. Received: {prior}")
    if member[1] is None:
        raise ValueError(f"Expected members with a known number of outputs. Received: shape {member}")
    return member[1]


def _output_shape(template: keras.Model, built_on: Any) -> tuple[int | None, ...]:
    if built_on is None:
        return tuple(template.output_shape) if hasattr(template, "output_shape") else ()
    return tuple(keras.ops.shape(template(zeros(built_on))))


def _map_built_on(function: Callable[[list[int], str], Any], built_on: Any) -> Any:
    """Applies a function to each (shape, dtype) pair."""
    if isinstance(built_on, dict):
        return {key: _map_built_on(function, value) for key, value in built_on.items()}
    if len(built_on) == 2 and isinstance(built_on[1], str):
        return function(built_on[0], built_on[1])
    return [_map_built_on(function, value) for value in built_on]
