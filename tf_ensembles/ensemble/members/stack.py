"""M copies of one Keras model as one layer: built, stacked along a first axis, and run together; and their priors.

Shapes inside this module are members first, `[members, batch, ...]`; a tensor that all members share, such as the
input, is `[batch, ...]` until the first layer that has weights. `Stacked` marks the former.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.base import Array
from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import layer_rules, probe
from tf_ensembles.ensemble.members.layer_rules import Hidden, Stacked
from tf_ensembles.regression.heads import Head

# Prior outputs of in-memory training data are computed once and kept if they fit into this many bytes.
_PRIOR_CACHE_BYTES = 2**30

# Stacking them.


class _PerMember(keras.constraints.Constraint):  # Keras 3.12 takes nothing else.
    """A weight constraint that is applied to each member's slice by itself."""

    def __init__(self, constraint: Callable[[Any], Any], num_members: int) -> None:
        self._constraint, self._num_members = constraint, num_members

    def __call__(self, stacked: Any) -> Any:
        values = tf.unstack(tf.convert_to_tensor(stacked), num=self._num_members)
        return tf.stack([self._constraint(value) for value in values])


class Members(keras.layers.Layer):
    """What all ways to run M members share.

    Args:
        num_members: M.
        trainable: False for a prior: nothing in it is ever trained or updated.
    """

    looped: tuple[str, ...]  # the parts that run once per member
    supports_jit: bool  # whether XLA makes it faster
    separate = ""  # why each member runs with its own graph
    has_own_losses = False  # whether members' own `compute_loss` says what they minimize

    def __init__(self, num_members: int, trainable: bool, **kwargs: Any) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.num_members, self._is_prior = num_members, not trainable
        self._compiled: Hidden | None = None

    def compiled(self) -> Any:
        """Returns `prior_outputs` of these as a compiled function: always the same one, which is traced once."""
        if self._compiled is None:

            def compute(rows: Any) -> tf.Tensor:
                return prior_outputs(self, rows)

            self._compiled = Hidden(tf.function(compute, jit_compile=self.supports_jit, reduce_retracing=True))
        return self._compiled.value

    @property
    def trainable(self) -> bool:
        """Whether members are trained; a prior never is."""
        return keras.layers.Layer.trainable.fget(self)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.layers.Layer.trainable.fset(self, value and not self._is_prior)

    @property
    def templates(self) -> list[keras.Model]:
        """The models whose graphs are run: the first member's, which stands for all, or all."""
        raise AttributeError

    @property
    def template(self) -> keras.Model:
        """The first member's model."""
        return self.templates[0]

    def tables(self) -> dict[int, list[layer_rules.Lookup]]:
        """Returns the rows of embeddings that the last run took, by the `id` of their stacked variables."""
        return {}

    def flags(self) -> tuple[bool, ...]:
        """Returns which layers are trained, after the variables have been told."""
        return (self.trainable, *(layer.trainable for m in self.templates for layer in keras_private.all_layers(m)))

    def build(self, *args: Any) -> None:
        """Does nothing: all variables exist since construction."""
        self.built = True

    def run(self, inputs: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns outputs `[members, batch, outputs]` and each member's own regularization losses `[members]`."""
        raise AttributeError

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns outputs `[members, batch, outputs]`."""
        return self.run(inputs, training)[0]


class MemberStack(Members):
    """Runs M models of one architecture: inputs `[batch, ...]` to outputs `[members, batch, outputs]`.

    Args:
        models: built models of one architecture, one per member. The first is kept as the template; only the values of
            the others' variables are. A single model stands for `num_members` members whose values come later, when
            a saved file is loaded.
        num_members: M.
        trainable: False for a prior: nothing in it is ever trained or updated.
    """

    def __init__(self, models: Sequence[keras.Model], num_members: int, trainable: bool = True, **kwargs: Any) -> None:
        super().__init__(num_members, trainable, **kwargs)
        # Hidden in a holder: Keras would otherwise track the template's own variables as ours.
        self._hidden = Hidden(models[0])
        self._stacked: Hidden = Hidden(self._stack(models, trainable))
        self._tables = [id(variable) for variable in layer_rules.tables(models[0])]
        self._looked_up: Hidden = Hidden({})
        self.looped = layer_rules.looped_parts(models[0])
        # Measured on CPUs: XLA fuses small batched layers well, and slows convolutions down.
        self.supports_jit = not self.looped
        self.built = True  # All variables exist; `summary` and others look here.
        if not layer_rules.is_vectorizable(models[0]):
            return
        for generator in layer_rules.shared_generators(models[0]):
            # Drawn once for all members at a time; kept here so that it is saved and restored with us.
            state = generator.state
            generator.state = self.add_weight(
                shape=state.shape, dtype=state.dtype, trainable=False, name="seed_state", initializer=_Constant(state)
            )

    @property
    def templates(self) -> list[keras.Model]:
        """The first member's model, which gives the architecture."""
        return [self._hidden.value]

    def flags(self) -> tuple[bool, ...]:
        """Returns which layers are trained, after the stacked variables have been told what the template's say."""
        for variable in self.template.trainable_variables if self.trainable else ():
            self._stacked.value[id(variable)].trainable = True
        for variable in self.template.non_trainable_variables:
            if id(variable) in self._stacked.value:  # A generator that draws for all members is not stacked.
                self._stacked.value[id(variable)].trainable = False
        return super().flags()

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

    def run(self, inputs: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns outputs `[members, batch, outputs]` and each member's own regularization losses `[members]`."""
        runner = layer_rules.Runner(self._stacked.value, self.num_members, training and self.trainable, self._tables)
        self._looked_up = Hidden(runner.looked_up)
        if layer_rules.is_vectorizable(self.template):
            outputs = runner.run_graph(self.template, inputs)
        else:
            outputs = runner.loop(self.template, [inputs], {})
        if isinstance(outputs, Stacked):
            return outputs.tensor, runner.penalty()
        tensor = tf.convert_to_tensor(outputs)  # No layer with weights: the members are one and the same.
        return tf.tile(tensor[None], [self.num_members, 1, 1]), runner.penalty()

    def tables(self) -> dict[int, list[layer_rules.Lookup]]:
        """Returns the rows of embeddings that the last run took, by the `id` of their stacked variables."""
        found = self._looked_up.value
        return {id(self._stacked.value[table]): found.get(table, []) for table in self._tables}

    def owned_variables(self) -> list[tuple[keras.Variable, int | None]]:
        """Returns the variables that hold members, each with None: it has a row for each of them."""
        return [(variable, None) for variable in self._stacked.value.values()]

    def member_values(self, member: int) -> list[np.ndarray[Any, Any]]:
        """Returns one member's variables, in the order of the template's `variables`."""
        stacked = self._stacked.value  # A generator that draws for all members is not in it.
        return [
            np.asarray(stacked[id(v)])[member] if id(v) in stacked else np.asarray(v) for v in self.template.variables
        ]

    def squared_norm(self) -> tf.Tensor:
        """Returns `||theta_m||^2` over the trainable variables of each member, `[members]`."""
        total = tf.zeros([self.num_members])
        for variable in self.trainable_variables:
            value = tf.cast(variable.value, tf.float32)
            total += tf.reduce_sum(tf.square(value), axis=list(range(1, len(variable.shape))))
        return total


class SeparateMembers(Members):
    """Runs M models one after the other, each with its own graph and variables: inputs `[batch, ...]` to outputs
    `[members, batch, outputs]`.

    Slower than a stack, and right for all that a stack cannot be: members with other activations, depths or constants,
    and layers whose calls change more than a stack can follow.

    Args:
        models: built models, one per member.
        num_members: M.
        reason: why they are not stacked.
        trainable: False for a prior: nothing in it is ever trained or updated.
    """

    def __init__(
        self, models: Sequence[keras.Model], num_members: int, reason: str, trainable: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(num_members, trainable, **kwargs)
        self.separate, self.models = reason, list(models)
        self.has_own_losses = trainable and probe.own_loss(models) is not None
        self.looped: tuple[str, ...] = ("whole model",)
        self.supports_jit = False
        for model in models if not trainable else ():
            model.trainable = False

    @property
    def templates(self) -> list[keras.Model]:
        """All members' models."""
        return list(self.models)

    def run(self, inputs: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns outputs `[members, batch, outputs]` and each member's own regularization losses `[members]`."""
        outputs, penalties = [], []
        for model in self.models:
            outputs.append(tf.convert_to_tensor(model(inputs, training=training and self.trainable)))
            own = [] if self.has_own_losses else model.losses  # Their `compute_loss` adds them, or does not.
            penalties.append(sum((tf.cast(loss, tf.float32) for loss in own), start=tf.zeros([])))
        return tf.stack(outputs), tf.stack(penalties)

    def owned_variables(self) -> list[tuple[keras.Variable, int | None]]:
        """Returns the variables, each with the member whose it is."""
        return [(variable, member) for member, model in enumerate(self.models) for variable in model.variables]

    def member_values(self, member: int) -> list[np.ndarray[Any, Any]]:
        """Returns one member's variables, in the order of its model's `variables`."""
        return [np.asarray(variable) for variable in self.models[member].variables]

    def squared_norm(self) -> tf.Tensor:
        """Returns `||theta_m||^2` over the trainable variables of each member, `[members]`."""
        norms = []
        for model in self.models:
            squares = [tf.reduce_sum(tf.square(tf.cast(v.value, tf.float32))) for v in model.trainable_variables]
            norms.append(tf.add_n(squares) if squares else tf.zeros([]))
        return tf.stack(norms)

    # Arrays that layers have drawn and that are no variables are in no configuration: the file keeps them here.

    def save_own_variables(self, store: Any) -> None:
        """Writes the arrays, beside which each model writes its variables."""
        for member, model in enumerate(self.models):
            for place, constant in enumerate(probe.constants(model)):
                store[f"{member}_{place}"] = np.asarray(constant.value)

    def load_own_variables(self, store: Any) -> None:
        """Puts the arrays back into the layers."""
        for member, model in enumerate(self.models):
            found = probe.constants(model)
            kept = [name for name in store.keys() if name.startswith(f"{member}_")]  # noqa: SIM118
            if len(kept) != len(found):
                raise ValueError(
                    f"Expected member {member} with {len(kept)} arrays that are no variables, as the file has. "
                    f"Received: {len(found)}. Has the code of its layers changed?"
                )
            for place, constant in enumerate(found):
                constant.put(np.asarray(store[f"{member}_{place}"]))


class _Constant(keras.initializers.Initializer):
    """Starts a variable at given values."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return keras.ops.convert_to_tensor(np.asarray(self._values), dtype=dtype)


# Running members and priors.


def execution(members: Members | None, priors: Members | None) -> str:
    """Returns how members run: `"vectorized"`, what is looped over members, or why each has its own graph."""
    if members is None:
        return "not built"
    parts = [members] if priors is None else [members, priors]
    looped = [name for part in parts for name in part.looped if not part.separate]
    separate = [f"separate {part.name}: {part.separate}" for part in parts if part.separate]
    return "; ".join([f"looped over members: {', '.join(looped)}"] * bool(looped) + separate) or "vectorized"


def add_prior(
    result: tf.Tensor, priors: Members, scale: float, x: Any, known: Any, head: Head | None = None
) -> tf.Tensor:
    """Returns members' outputs `[members, batch, outputs]` with their scaled priors' added.

    Args:
        result: the members' own.
        priors: their priors.
        scale: the prior scale.
        x: inputs `[batch, ...]`.
        known: the priors' outputs on `x`, `[batch, members, outputs]`, where they were computed before; or None.
        head: says which columns of a regression are means, to which alone a prior is added.
    """
    prior = scale * (prior_outputs(priors, x) if known is None else tf.transpose(known, [1, 0, 2]))
    _check_columns(head, result.shape[-1], prior.shape[-1])
    return result + prior if head is None else head.add_prior(result, prior)


def check_prior(head: Head | None, num_outputs: int, priors: Members | None, built_on: Any) -> None:
    """Raises unless priors have as many columns as members, or, of a regression, as there are targets."""
    for model in [] if priors is None else priors.templates[:1]:
        _check_columns(head, num_outputs, _output_shape(model, built_on)[1])


def _check_columns(head: Head | None, member: int | None, prior: int | None) -> None:
    if head is not None and head.blocks[0] > 1:
        head.check_prior(member, prior)
    elif prior != member:
        raise ValueError(_other_shape(member, prior))


def prior_outputs(priors: Members, x: Any) -> tf.Tensor:
    """Returns the unscaled priors `[members, batch, outputs]`."""
    return tf.stop_gradient(tf.cast(priors.run(x, training=False)[0], tf.float32))


def cached_prior(priors: Members | None, x: Any, length: int, num_outputs: int) -> Array | None:
    """Returns priors' outputs `[batch, members, outputs]` on arrays in memory, or None if too large to keep."""
    if priors is None or length * priors.num_members * num_outputs * 4 > _PRIOR_CACHE_BYTES:
        return None

    compiled = priors.compiled()
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


def input_specs(members: Members, built_on: Any) -> Any:
    """Returns the shape, batch first, and dtype of each input, in the structure that the members take."""
    if built_on is not None:
        return _map_built_on(lambda shape, dtype: ((None, *shape), dtype), built_on)
    structure = keras_private.input_structure(members.template)
    structure = structure[0] if isinstance(structure, list | tuple) and len(structure) == 1 else structure
    return tf.nest.map_structure(lambda tensor: (tuple(tensor.shape), tensor.dtype), structure)


def num_outputs(members: Members, priors: Members | None, built_on: Any) -> int:
    """Returns the size of a member's output, after checks that it is `[batch, outputs]` and a prior's the same."""
    member, *others = [_output_shape(model, built_on) for model in members.templates]
    if len(member) != 2:
        raise ValueError(f"Expected members with outputs [batch, outputs]. Received: shape {member}")
    if any(other != member for other in others):
        raise ValueError(f"Expected members with outputs of one shape. Received: {sorted({member, *others})}")
    for prior in [] if priors is None else [_output_shape(model, built_on) for model in priors.templates]:
        # A regression's prior may have one column per target, fewer than a member: the loss will say.
        if prior != member and (len(prior) != 2 or not prior[1] or not member[1] or member[1] % prior[1]):
            raise ValueError(_other_shape(member[-1], prior[-1] if prior else None))
    if member[1] is None:
        raise ValueError(f"Expected members with a known number of outputs. Received: shape {member}")
    return member[1]


def _other_shape(member: int | None, prior: int | None) -> str:
    return f"Expected a prior with the member's output shape {(None, member)}. Received: {(None, prior)}"


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
