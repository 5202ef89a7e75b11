"""One forward pass of all members, layer by layer or by calls of whole models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import layer_rules, structure
from tf_ensembles.ensemble.members.mapping import Call, Lookup, Mapped, Said, Stacked

# Of one member's batch. More numbers than these leave the cache before the next layer reads them, and running member by
# member is faster than layer by layer; TensorFlow also fuses a lone convolution with its bias and activation.
_CACHED_ACTIVATIONS = 2**18


def call_member(template: keras.Model, stacked: dict[int, keras.Variable], inputs: Any, member: tf.Tensor) -> Any:
    """Returns one member's outputs in inference, `[batch, ...]`: the template's own call, with that member's weights.

    Args:
        template: the model that stands for all members.
        stacked: the stacked variable `[members, ...]` for the `id` of each variable of the template.
        inputs: `[batch, ...]`, or a structure of such.
        member: its index, an integer tensor `[]`.
    """
    pairs = [(variable, stacked[id(variable)]) for variable in template.variables if id(variable) in stacked]
    values = [(variable, tf.gather(all_members.value, member)) for variable, all_members in pairs]
    with keras.StatelessScope(state_mapping=values):
        return template(inputs, training=False)


class Runner:
    """One forward pass of all members.

    Args:
        stacked: the stacked variable `[members, ...]` for the `id` of each variable of the template.
        num_members: M.
        training: whether dropout drops and batch statistics are used and updated.
        tables: the `id` of each of the template's embeddings whose lookups are to be kept in `looked_up`.
        mapped: what calls of operations without a rule were traced to; filled here.
    """

    def __init__(
        self,
        stacked: dict[int, keras.Variable],
        num_members: int,
        training: bool,
        tables: Sequence[int] = (),
        mapped: dict[Any, Mapped] | None = None,
    ) -> None:
        self._stacked, self.num_members, self.training = stacked, num_members, training
        self._mapped = {} if mapped is None else mapped
        self._draws_together = False
        self.looked_up: dict[int, list[Lookup]] = {table: [] for table in tables}
        self._penalties: list[Any] = []

    def variable(self, template_variable: keras.Variable) -> keras.Variable:
        """Returns the stacked variable of a template's variable."""
        return self._stacked[id(template_variable)]

    def value(self, template_variable: keras.Variable, dtype: str) -> tf.Tensor:
        """Returns the stacked value of a template's variable, cast to the dtype that the layer computes in."""
        return tf.cast(self.variable(template_variable).value, dtype)

    def penalty(self) -> tf.Tensor | None:
        """Returns the sum of the regularization losses that the members' own layers asked for, `[members]`."""
        return tf.add_n(self._penalties) if self._penalties else None

    def run(self, template: keras.Model, inputs: Any, predicting: bool = False) -> Any:
        """Runs the members' model in the best way that is known; `predicting` as of `Members.run`."""
        self._draws_together = layer_rules.draws_together(template)
        if not layer_rules.runs_by_layer(template):
            return self.each(template, [inputs], {})
        size = layer_rules.activation_size(template)
        if size is None or not predicting or tf.executing_eagerly() or not layer_rules.unrolls(template):
            return self.run_graph(template, inputs)
        return self._run_by_size(template, inputs, max(1, _CACHED_ACTIVATIONS // size))

    def _run_by_size(self, template: keras.Model, inputs: Any, most: int) -> Any:
        """Predicts layer by layer with convolutional members, or, more than `most` examples, member by member."""
        form = keras_private.output_structure(template)
        form = form[0] if isinstance(form, list | tuple) and len(form) == 1 else form
        specs = structure.leaves(form)
        size = tf.shape(tf.nest.flatten(inputs)[0])[0]

        def by_layer() -> list[tf.Tensor]:
            return [part.tensor for part in structure.leaves(self.run_graph(template, inputs))]

        def by_member() -> list[tf.Tensor]:
            # Converters to TensorFlow Lite know no lists of tensors, which `tf.map_fn` makes.
            def body(member: tf.Tensor, *outputs: tf.Tensor) -> tuple[tf.Tensor, ...]:
                parts = structure.leaves(call_member(template, self._stacked, inputs, member))
                pairs = zip(outputs, parts, strict=True)
                return member + 1, *(
                    tf.tensor_scatter_nd_update(whole, [[member]], part[None]) for whole, part in pairs
                )

            blank = [tf.zeros([self.num_members, size, *spec.shape[1:]], spec.dtype) for spec in specs]
            return list(tf.while_loop(lambda member, *_: member < self.num_members, body, [0, *blank])[1:])

        penalties = list(self._penalties)
        outputs = tf.cond(size > most, by_member, by_layer)
        self._penalties = penalties  # Tensors of a branch cannot be used outside of it.
        self._add_weight_penalties(template)
        shaped = [
            tf.ensure_shape(part, [self.num_members, *spec.shape]) for part, spec in zip(outputs, specs, strict=True)
        ]
        return structure.like(form, [Stacked(part) for part in shaped])

    def run_graph(self, model: keras.Model, inputs: Any) -> Any:
        """Runs a Sequential or Functional model node by node."""
        graph = keras_private.graph_of(model)
        if tf.nest.is_nested(inputs) or not isinstance(inputs, Stacked):
            inputs = keras_private.standardize_inputs(graph, inputs)
        outputs = keras_private.run_through_graph(
            graph, inputs, lambda operation: lambda *args, **kwargs: self._run(operation, args, kwargs)
        )
        return outputs[0] if isinstance(outputs, list | tuple) and len(outputs) == 1 else outputs

    def _run(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if layer_rules.is_nested(operation):
            return self.run_graph(operation, args[0])
        rule = layer_rules.rule_of(operation)
        if rule is not None:
            self._add_weight_penalties(operation)
            x = args[0].tensor if isinstance(args[0], Stacked) else args[0]
            if not isinstance(operation, keras.layers.Embedding):
                x = tf.cast(x, operation.compute_dtype)  # Keras promotes integers and booleans, too.
            return rule(self, operation, x, isinstance(args[0], Stacked))
        if layer_rules.is_folded(operation) and (self._draws_together or not layer_rules.is_random(operation)):
            return self._fold(operation, args, kwargs)
        return self.each(operation, args, kwargs)

    def _fold(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls a layer that treats examples one by one, on all members' examples as one batch."""
        flat = tf.nest.flatten((list(args), kwargs))
        if layer_rules.is_random(operation):
            kwargs = {**kwargs, "training": self.training}
            if self.training:
                args = tf.nest.map_structure(self._as_stacked, list(args))  # A shared input gets M different masks.
        elif not any(isinstance(part, Stacked) for part in flat):
            return operation(*args, **kwargs)
        args = tf.nest.map_structure(self._as_stacked, list(args))
        folded = tf.nest.map_structure(lambda part: _merge(part.tensor), args)
        return tf.nest.map_structure(lambda out: Stacked(_split(out, self.num_members)), operation(*folded, **kwargs))

    def _as_stacked(self, part: Any) -> Stacked:
        if isinstance(part, Stacked):
            return part
        tensor = tf.convert_to_tensor(part)
        return Stacked(tf.repeat(tensor[None], self.num_members, axis=0))

    def each(self, operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Calls the operation for each member with that member's weights and inputs, and stacks what comes out."""
        if keras_private.takes_training(operation):
            kwargs = {**kwargs, "training": self.training}
        call = Call(operation, (list(args), kwargs), self._tables_in(operation))
        variables = [self.variable(variable) for variable in call.variables]
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        if tf.executing_eagerly() or _asks_other_replicas(operation):
            said = self._one_by_one(call, values)
        else:
            mapped = self._mapped.setdefault(call.key(), Mapped(call, self.num_members))
            said, lookups = mapped(values, call)
            for table, lookup in lookups:
                self.looked_up[id(table)].append(lookup)
            asked = {id(table) for table, _ in lookups}
            for layer in call.tables:  # What is used otherwise has a gradient as large as the table.
                if id(layer.embeddings) not in asked:
                    self.looked_up.pop(id(layer.embeddings), None)
        if said.penalty is not None:
            self._penalties.append(said.penalty)
        for place, value in said.changed.items():  # Batch statistics and the states of seed generators.
            variables[place].assign(value)
        return said.stacked()

    def _tables_in(self, operation: Any) -> list[Any]:
        found = keras_private.all_layers(operation) if isinstance(operation, keras.layers.Layer) else []
        return [part for part in found if id(getattr(part, "embeddings", None)) in self.looked_up]

    def _one_by_one(self, call: Call, values: Sequence[tf.Tensor]) -> Said:
        """Calls the operation once per member."""
        # One unstack per variable: its gradient is one stack, where M slices would each pad a gradient to full size.
        parts = [tf.unstack(value, num=self.num_members) for value in values]
        for variable, value in zip(call.variables, parts, strict=True):
            if id(variable) in self.looked_up:
                self.looked_up[id(variable)].append(Lookup(tables=value))
        own, shared = call.split()
        rows = range(self.num_members)
        said = [call.of_member([part[m] for part in parts], [t[m] for t in own], shared).flat() for m in rows]
        places = {name for one in said for name in one}
        whole = [{**{p: parts[int(p)][m] for p in places if p.isdigit()}, **one} for m, one in enumerate(said)]
        return Said.of(tf.nest.map_structure(lambda *each: tf.stack(each), *whole))

    def _add_weight_penalties(self, layer: keras.layers.Layer) -> None:
        for variable in layer.trainable_variables:
            if variable.regularizer is not None:
                values = tf.unstack(self.variable(variable).value, num=self.num_members)
                self._penalties.append(tf.stack([variable.regularizer(value) for value in values]))


def _asks_other_replicas(operation: Any) -> bool:
    """Whether a layer waits for other replicas, which it cannot do from within a loop or a map."""
    if tf.distribute.get_strategy().num_replicas_in_sync == 1 or not isinstance(operation, keras.layers.Layer):
        return False
    norms = [part for part in keras_private.all_layers(operation) if isinstance(part, keras.layers.BatchNormalization)]
    return any(norm.synchronized for norm in norms)


def _merge(tensor: tf.Tensor) -> tf.Tensor:
    """`[members, batch, ...]` to `[members * batch, ...]`."""
    return (
        tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))
        if _dynamic(tensor)
        else tf.reshape(tensor, [-1, *tensor.shape[2:]])
    )


def _dynamic(tensor: tf.Tensor) -> bool:
    return any(size is None for size in tensor.shape[2:])


def _split(tensor: Any, num_members: int) -> tf.Tensor:
    """`[members * batch, ...]` to `[members, batch, ...]`."""
    shape = tf.shape(tensor)
    split = tf.reshape(tensor, tf.concat([[num_members, shape[0] // num_members], shape[1:]], axis=0))
    batch = None if tensor.shape[0] is None else tensor.shape[0] // num_members
    return tf.ensure_shape(split, [num_members, batch, *tensor.shape[1:]])
