"""Members of a `tfe.Ensemble` as models of an agent: what they have to take and give, and one of them for each row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_ensembles.ensemble import losses
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import Tensor
from tf_ensembles.metrics.kinds import Kind


def check_compiled(ensemble: Any) -> None:
    """Raises unless it is an ensemble that has been compiled."""
    if not isinstance(ensemble, Ensemble) or not ensemble.compiled:
        raise ValueError(f"Expected a tfe.Ensemble that has been compiled. Received: {ensemble!r}")


def check_inputs(ensemble: Ensemble, shape: Any, words: str) -> None:
    """Raises unless members, where they know their inputs, take examples of this shape.

    Args:
        ensemble: of the members.
        shape: of an example.
        words: what it consists of, for the message.
    """
    if ensemble.members is None and ensemble.trunk is None:
        return  # They take what they are shown first.
    specs = ensemble.input_specs()
    single = isinstance(specs, tuple) and len(specs) == 2 and isinstance(specs[1], str)
    if not single or not tf.TensorShape(specs[0][1:]).is_compatible_with(shape):
        received = list(specs[0][1:]) if single else specs
        raise ValueError(f"Expected members whose input is {words}. Received: members with inputs {received}")


def bootstrap_weights(ensemble: Ensemble, ids: Tensor) -> Tensor:
    """Returns the weight of each decision in each member's loss, `[batch, members]`, from the decisions' ids."""
    names = tf.range(ensemble.num_members, dtype=tf.int64)
    if ensemble.bootstrap is None:
        return tf.ones([tf.shape(ids)[0], ensemble.num_members])
    return ensemble.bootstrap.weights(ensemble.seed, ids, names)


def values_loss(ensemble: Ensemble) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the loss that the ensemble was compiled with as a function of targets and values, number by number.

    For members that are trained on one of their outputs: raises for other losses, and for bootstraps of targets.
    """
    if ensemble.bootstrap is not None and ensemble.bootstrap.target_noise(0, [0], [0], 1) is not None:
        raise ValueError(f"Expected a bootstrap by weights. Received: {ensemble.bootstrap}")
    loss = losses.as_loss(ensemble.loss)
    if losses.kind_of(loss, None) is not Kind.VALUES or not losses.is_per_example(loss):
        raise ValueError(f'Expected one of Keras\'s losses for values, such as "mse" or "huber". Received: {loss.name}')
    return lambda target, value: loss.call(target[..., tf.newaxis], value[..., tf.newaxis])


class OneMember:
    """What one member of an ensemble says for each row of a batch, its prior included, at about one member's price.

    Rows are sorted by member and cut into groups of the same size, some of them not full. The weights of a group's
    member are taken out of the stacked ones, and an ensemble of one member runs all groups at once, or one after the
    other where members run in a loop. Members that run separately, or that Keras cannot copy, are all evaluated
    instead, and so is a single one.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble, self._shell = ensemble, None
        if ensemble.num_members > 1 and "separate" not in ensemble.execution:
            with contextlib.suppress(TypeError, ValueError, NotImplementedError):  # Keras cannot copy every class.
                self._shell = ensemble.select([0])
        # Drivers may call policies eagerly, where a map over groups would be traced at each call.
        self._compiled = tf.function(self._by_groups, reduce_retracing=True, autograph=False)

    def __call__(self, x: Tensor, member: Tensor) -> Tensor:
        """Returns `[batch, examples, ...]` from inputs `[batch, examples, ...]` and members `[batch]` int32."""
        return self._by_all(x, member) if self._shell is None else self._compiled(x, member)

    def _by_groups(self, x: Tensor, member: Tensor) -> Tensor:
        size, examples = tf.shape(member)[0], tf.shape(x)[1]
        length = tf.maximum(1, -(-size // self._ensemble.num_members))
        order = tf.argsort(member, stable=True)
        member = tf.gather(member, order)
        number = tf.range(size) - tf.searchsorted(member, member)  # among the rows of the same member
        key, group = tf.unique(member * size + number // length)
        slot = tf.stack([group, number % length], axis=1)
        groups, shape = tf.shape(key)[0], tf.shape(x)[2:]
        padded = tf.scatter_nd(slot, tf.gather(x, order), tf.concat([[groups, length, examples], shape], axis=0))
        merged = tf.reshape(padded, tf.concat([[groups, length * examples], shape], axis=0))
        outputs = self._run(tf.ensure_shape(merged, [None, None, *x.shape[2:]]), key // size)
        split = tf.reshape(outputs, tf.concat([[groups, length, examples], tf.shape(outputs)[2:]], axis=0))
        outputs = tf.gather(tf.gather_nd(split, slot), tf.argsort(order))
        return tf.ensure_shape(outputs, [None, x.shape[1], *split.shape[3:]])

    def _run(self, x: Tensor, member: Tensor) -> Tensor:
        """Returns what member g says of `x[g]`, `[groups, examples, ...]`."""
        shell: Any = self._shell
        stacked, shared = {}, {}
        for layer in ("members", "priors"):
            whole, single = (getattr(getattr(model, layer), "variables", []) for model in (self._ensemble, shell))
            for all_members, own in zip(whole, single, strict=True):
                if tuple(own.shape) == (1, *all_members.shape[1:]):
                    stacked[id(own)] = tf.gather(all_members.value, member)[:, tf.newaxis]
                else:  # drawn for all members at once
                    shared[id(own)] = all_members.value
        trunk = {id(variable) for variable in getattr(self._ensemble.trunk, "variables", [])}

        def value(variable: Any, taken: dict[int, Tensor]) -> Tensor:
            key = id(variable)
            if key in stacked or key in shared:
                return taken[key] if key in stacked else shared[key]
            return variable.value if key in trunk else tf.zeros(variable.shape, variable.dtype)  # of metrics

        def run_one(given: Any) -> Tensor:
            rows, taken = given[0], dict(zip(stacked, given[1], strict=True))
            parts = (shell.trainable_variables, shell.non_trainable_variables)
            values = [[value(variable, taken) for variable in part] for part in parts]
            return shell.stateless_call(*values, rows, training=False)[0][:, 0]

        elements = (x, list(stacked.values()))
        if self._ensemble.execution == "vectorized":
            return tf.vectorized_map(run_one, elements)
        compiled = tf.function(run_one, autograph=False)
        first = tf.nest.map_structure(lambda part: tf.TensorSpec(part.shape[1:], part.dtype), elements)
        outputs = compiled.get_concrete_function(first).structured_outputs
        return tf.map_fn(compiled, elements, fn_output_signature=tf.TensorSpec(outputs.shape, outputs.dtype))

    def _by_all(self, x: Tensor, member: Tensor) -> Tensor:
        shape = tf.concat([[-1], tf.shape(x)[2:]], axis=0)
        outputs = self._ensemble(tf.ensure_shape(tf.reshape(x, shape), [None, *x.shape[2:]]), training=False)
        each = tf.reshape(outputs, tf.concat([tf.shape(x)[:2], tf.shape(outputs)[1:]], axis=0))
        each = tf.ensure_shape(each, [None, x.shape[1], *outputs.shape[1:]])
        own = tf.repeat(member[:, tf.newaxis], tf.shape(x)[1], axis=1)
        return tf.gather(each, own, batch_dims=2)
