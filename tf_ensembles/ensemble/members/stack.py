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

from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import layer_rules, mapping, structure
from tf_ensembles.ensemble.members.base import Members, prior_outputs
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.members.mapping import Lookup, Stacked
from tf_ensembles.ensemble.members.runner import Runner, call_member
from tf_ensembles.ensemble.members.separate import SeparateMembers
from tf_ensembles.ensemble.members.structure import Structure
from tf_ensembles.regression.heads import Head

__all__ = ["MemberStack", "Members", "SeparateMembers"]

# Prior outputs of in-memory training data are computed once and kept if they fit into this many bytes.
_PRIOR_CACHE_BYTES = 2**30
# They are computed for as many examples at a time as make about this many bytes in all layers of all members.
_PASS_BYTES = 2**28
_UNSEEN = 64  # numbers that layers are taken to make of each number of an input, where there is no graph to count in

# Stacking them.


class _PerMember(keras.constraints.Constraint):  # Keras 3.12 takes nothing else.
    """A weight constraint that is applied to each member's slice by itself."""

    def __init__(self, constraint: Callable[[Any], Any], num_members: int) -> None:
        self._constraint, self._num_members = constraint, num_members

    def __call__(self, stacked: Any) -> Any:
        values = tf.unstack(tf.convert_to_tensor(stacked), num=self._num_members)
        return tf.stack([self._constraint(value) for value in values])


class MemberStack(Members):
    """Runs M models of one architecture: inputs `[batch, ...]` to outputs `[members, batch, ...]`.

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
        self._looked_up: Hidden = Hidden({table: [] for table in self._tables})
        self._mapped: Hidden = Hidden({})
        self.looped = layer_rules.looped_parts(models[0])
        # Measured on CPUs: XLA fuses small batched layers well, and slows convolutions and maps down. A loop over time
        # would be no slower, but compiled anew for each length.
        found = layer_rules.has_convolutions(models[0]) or layer_rules.has_recurrent(models[0])
        self.supports_jit = not self.looped and not found
        self.built = True  # All variables exist; `summary` and others look here.
        if not layer_rules.draws_together(models[0]):
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
                # As it was made, not as it is: files list variables in an order that freezing must not change.
                trainable=trainable and variable.value.trainable,
                autocast=False,
                constraint=_PerMember(constraint, self.num_members) if constraint else None,
                name=f"{index}_{variable.name}",
            )
            stacked[id(variable)].trainable = trainable and variable.trainable
        return stacked

    def run(self, inputs: Any, training: bool, predicting: bool = False) -> tuple[Any, tf.Tensor | None]:
        """Returns outputs, each `[members, batch, ...]`, and each member's own regularization losses `[members]`."""
        mode = training and self.trainable
        runner = Runner(self._stacked.value, self.num_members, mode, self._tables, self._mapped.value)
        said = runner.run(self.template, inputs, predicting)
        self._looked_up = Hidden(runner.looked_up)
        return structure.like(said, [self._of_all(part) for part in structure.leaves(said)]), runner.penalty()

    def run_member(self, inputs: Any, member: tf.Tensor) -> Any:
        """Returns the outputs of one member in inference, each `[1, batch, ...]`, at the price of one model."""
        outputs = call_member(self.template, self._stacked.value, inputs, member)

        def expand(part: Any) -> tf.Tensor:
            mask = keras_private.mask_of(part)
            expanded = tf.convert_to_tensor(part)[None]
            return expanded if mask is None else keras_private.with_mask(expanded, tf.convert_to_tensor(mask)[None])

        return structure.like(outputs, [expand(part) for part in structure.leaves(outputs)])

    def _of_all(self, part: Any) -> tf.Tensor:
        if isinstance(part, Stacked):
            return part.tensor
        # No layer with weights: the members are one and the same.
        whole, mask = (
            None if one is None else tf.repeat(tf.convert_to_tensor(one)[None], self.num_members, axis=0)
            for one in (part, keras_private.mask_of(part))
        )
        return keras_private.with_mask(whole, mask)

    def ways(self, built_on: Any) -> dict[str, str]:
        """Returns how each looped part runs, after a trace if there was none."""
        if not self._mapped.value and layer_rules.mapped_parts(self.template):
            specs = tensor_specs(input_specs(self, built_on))
            tf.function(lambda x: self.call(x), autograph=False).get_concrete_function(specs)
        whole = not layer_rules.runs_by_layer(self.template)
        found: dict[str, str] = {}
        for mapped in self._mapped.value.values():
            name = layer_rules.WHOLE if whole else mapped.name
            found[name] = max(found.get(name, ""), mapped.way)  # "while_loop", if it is one in one of the modes.
        return {name: found.get(name, mapping.UNROLLED) for name in self.looped}

    def forget_traces(self) -> None:
        """Traces again what is traced, because layers have changed in what is no variable."""
        self._mapped.value.clear()

    def tables(self) -> dict[int, list[Lookup]]:
        """Returns the rows of embeddings that the last run took, by the `id` of their stacked variables."""
        found = self._looked_up.value
        return {id(self._stacked.value[table]): found[table] for table in self._tables if table in found}

    def owned_variables(self) -> list[tuple[keras.Variable, int | None]]:
        """Returns the variables that hold members, each with None: it has a row for each of them."""
        return [(variable, None) for variable in self._stacked.value.values()]

    def member_values(self, member: int) -> list[np.ndarray[Any, Any]]:
        """Returns one member's variables, in the order of the template's `variables`."""
        stacked = self._stacked.value  # A generator that draws for all members is not in it.
        return [
            np.asarray(stacked[id(v)])[member] if id(v) in stacked else np.asarray(v) for v in self.template.variables
        ]

    def load_own_variables(self, store: Any) -> None:
        """Fills the stacked variables, and what the template's layers have computed from theirs."""
        super().load_own_variables(store)
        for layer in keras_private.all_layers(self.template):
            if layer.built and layer.variables and hasattr(layer, "finalize_state"):  # Adapted, alike in all members.
                for variable in layer.variables:
                    variable.assign(np.asarray(self._stacked.value[id(variable)])[0])
                layer.finalize_state()
                self.forget_traces()  # They hold what it was before.

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


def execution(members: Members | None, priors: Members | None, built_on: Any = None) -> str:
    """Returns how members run: `"vectorized"`, what is looped over members and how, or why each has its own graph."""
    if members is None:
        return "not built"
    parts = [members] if priors is None else [members, priors]
    ways = {part.name: part.ways(built_on) for part in parts if not part.separate}
    looped = [
        f"looped over {name}: {', '.join(f'{place} [{way}]' for place, way in found.items())}"
        for name, found in ways.items()
        if found
    ]
    separate = [f"separate {part.name}: {part.separate}" for part in parts if part.separate]
    return "; ".join([*looped, *separate]) or "vectorized"


def add_prior(
    results: Sequence[tf.Tensor],
    said: Structure,
    priors: Members,
    scales: Sequence[float | None],
    x: Any,
    known: Any,
    heads: Sequence[Head | None],
    member: tf.Tensor | None = None,
    predicting: bool = False,
) -> list[tf.Tensor]:
    """Returns members' outputs, each `[members, batch, ...]`, with their scaled priors' added.

    Args:
        results: the members' own, one per output.
        said: the structure of outputs.
        priors: their priors, of the same structure, or of some of the outputs.
        scales: the prior scale of each output; None for one that has no prior.
        x: inputs `[batch, ...]`.
        known: the priors' outputs on `x`, each `[batch, members, ...]`, where they were computed before; or None.
        heads: of each output: which columns of a regression are means, to which alone a prior is added.
        member: the index of the one member that `results`, each `[1, batch, ...]`, are of; None for all.
        predicting: as of `Members.run`.
    """
    found = prior_outputs(priors, x, member, predicting) if known is None else known
    parts = said.split(_one(found), "a prior", missing=True)
    added = []
    for result, part, scale, head in zip(results, parts, scales, heads, strict=True):
        if part is None or scale is None:
            added.append(result)
            continue
        prior = scale * (part if known is None else structure.transposed(part))
        _check_columns(head, tuple(result.shape[2:]), tuple(prior.shape[2:]))
        added.append(result + prior if head is None else head.add_prior(result, prior))
    return added


def _one(found: Any) -> Any:
    """A list of one output as that output."""
    return found[0] if isinstance(found, list | tuple) and len(found) == 1 else found


def check_prior(said: Structure, heads: Sequence[Head | None], priors: Members | None, built_on: Any) -> None:
    """Raises unless priors have the shapes of members' outputs, or, of a regression, a column per target."""
    for model in [] if priors is None else priors.templates[:1]:
        for member, own, head in zip(said.shapes, prior_shapes(said, model, built_on), heads, strict=True):
            if member is not None and own is not None:
                _check_columns(head, member, own)


def prior_shapes(said: Structure, model: keras.Model, built_on: Any) -> list[Any]:
    """Returns the shape of a prior for each output, without the batch; None for those that it has none for."""
    own = structure.of(model, None if built_on is None else zeros(built_on), "a prior")
    return said.split(own.pack(own.shapes), "a prior", missing=True)


def _check_columns(head: Head | None, member: Any, prior: Any) -> None:
    positions = zip(prior[:-1], member[:-1], strict=False)
    if len(prior) != len(member) or any(None not in pair and pair[0] != pair[1] for pair in positions):
        raise ValueError(_other_shape(member, prior))
    if head is not None and head.blocks[0] > 1:
        head.check_prior(member[-1], prior[-1])
    elif prior[-1] != member[-1]:
        raise ValueError(_other_shape(member, prior))


def cached_prior(priors: Members | None, x: Any, length: int, numbers: int | None) -> Any:
    """Returns priors' outputs, each `[batch, members, ...]`, on arrays in memory, or None if too large to keep.

    Args:
        priors: the priors.
        x: inputs, arrays `[length, ...]`.
        length: of the arrays.
        numbers: how many a prior says of an example, in all of its outputs; None if that is not known.
    """
    if priors is None or numbers is None or length * priors.num_members * numbers * 4 > _PRIOR_CACHE_BYTES:
        return None
    compiled, kept = priors.compiled(), None
    step = max(1, min(length, 2**22 // (priors.num_members * 64), _PASS_BYTES // example_bytes(priors, x)))
    for start in range(0, length, step):
        rows = slice(start, start + step)
        inputs = tf.nest.map_structure(lambda v, rows=rows: tf.convert_to_tensor(v[rows]), x)
        said = _one(compiled(inputs))
        part = tf.nest.map_structure(lambda one: np.swapaxes(one, 0, 1), said)
        if kept is None:
            kept = tf.nest.map_structure(lambda one: np.empty((length, *one.shape[1:]), one.dtype), part)
        for whole, piece in zip(tf.nest.flatten(kept), tf.nest.flatten(part), strict=True):
            whole[rows] = piece
    return kept


def example_bytes(members: Members, x: Any) -> int:
    """Returns how many bytes all layers of all members make of one example, or an estimate where layers are unseen."""
    each = [layer_rules.activation_size(model) for model in members.templates]
    inputs = sum(int(np.prod(leaf.shape[1:])) for leaf in tf.nest.flatten(x))
    sizes = [_UNSEEN * inputs if size is None else size for size in each]
    return max(1, 4 * sum(sizes) * (members.num_members // len(sizes)))


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


def tensor_specs(specs: Any) -> Any:
    """Returns what `input_specs` says as TensorFlow takes it."""
    if isinstance(specs, dict):
        return {key: tensor_specs(part) for key, part in specs.items()}
    if len(specs) == 2 and not isinstance(specs[1], dict | list | tuple):
        return tf.TensorSpec(specs[0], specs[1])
    return [tensor_specs(part) for part in specs]


def output_structure(members: Members, priors: Members | None, built_on: Any) -> Structure:
    """Returns the structure of members' outputs, after checks that all have the same, and priors one that fits."""
    sample = None if built_on is None else zeros(built_on)
    said, *others = [structure.of(model, sample, "members") for model in members.templates]
    for other in others:
        if (other.form, other.shapes) != (said.form, said.shapes):
            shapes = sorted({str([(None, *(s or ())) for s in one.shapes]) for one in (said, other)})
            raise ValueError(f"Expected members with outputs of one shape. Received: {', '.join(shapes)}")
    for model in [] if priors is None else priors.templates:
        for member, own in zip(said.shapes, prior_shapes(said, model, built_on), strict=True):
            # A regression's prior may have one column per target, fewer than a member: the loss will say.
            if own is not None and member and (len(own) != len(member) or not own[-1] or (member[-1] or 0) % own[-1]):
                raise ValueError(_other_shape(member, own))
    return said


def _other_shape(member: Any, prior: Any) -> str:
    return f"Expected a prior with the member's output shape {(None, *member)}. Received: {(None, *prior)}"


def _map_built_on(function: Callable[[list[int], str], Any], built_on: Any) -> Any:
    """Applies a function to each (shape, dtype) pair."""
    if isinstance(built_on, dict):
        return {key: _map_built_on(function, value) for key, value in built_on.items()}
    if len(built_on) == 2 and isinstance(built_on[1], str):
        return function(built_on[0], built_on[1])
    return [_map_built_on(function, value) for value in built_on]
