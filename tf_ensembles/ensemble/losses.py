"""Losses: each member's own, as Keras would compute it for that member alone.

Keras's own losses that treat examples one by one see all members' examples as one batch. Any other loss is called with
one member's batch, in the shapes that `keras.Model.fit` would give it, so that it may look across the batch. A member
that has a `compute_loss` of its own is asked for its loss.

Where members have several outputs, each has its own loss, and a member minimizes their weighted sum, as in Keras.

Shapes: outputs `[members, batch, ...]`, losses `[members]`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import effects, own_losses
from tf_ensembles.ensemble.members.structure import Structure
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import losses as regression

_of = keras.losses

# Up to so many members a loop over losses is unrolled. For a hundred, XLA compiles ten times as long as for a loop of
# its own. (`tf.vectorized_map` would run as fast, but XLA compiles it anew at every step.)
_UNROLLED = 16


@dataclasses.dataclass(frozen=True)
class _Known:
    """What we know of one of Keras's losses."""

    kind: Kind | None  # what it takes member outputs to be, if it takes no logits; None: more than one kind
    logits: Kind | None = None  # what it takes them to be with `from_logits=True`
    per_example: bool = True  # whether an example's value depends on that example alone
    class_indices: bool = False  # whether labels are class numbers


# By function: each of Keras's loss classes wraps one. A loss of ours that says what outputs are gets a line here, too.
_KNOWN: dict[Any, _Known] = {
    _of.sparse_categorical_crossentropy: _Known(Kind.PROBABILITIES, Kind.LOGITS, class_indices=True),
    _of.categorical_crossentropy: _Known(Kind.PROBABILITIES, Kind.LOGITS),
    _of.categorical_focal_crossentropy: _Known(Kind.PROBABILITIES, Kind.LOGITS),
    _of.categorical_generalized_cross_entropy: _Known(Kind.PROBABILITIES, class_indices=True),
    _of.binary_crossentropy: _Known(Kind.MULTILABEL_PROBABILITIES, Kind.MULTILABEL_LOGITS),
    _of.binary_focal_crossentropy: _Known(Kind.MULTILABEL_PROBABILITIES, Kind.MULTILABEL_LOGITS),
    _of.kl_divergence: _Known(Kind.PROBABILITIES),
    _of.dice: _Known(None, per_example=False),
    _of.tversky: _Known(None, per_example=False),
    _of.circle: _Known(Kind.VALUES, per_example=False),
    _of.ctc: _Known(Kind.VALUES, per_example=False),
    **dict.fromkeys(
        (
            *(_of.mean_squared_error, _of.mean_absolute_error, _of.mean_absolute_percentage_error),
            *(_of.mean_squared_logarithmic_error, _of.cosine_similarity, _of.huber, _of.log_cosh, _of.poisson),
            *(_of.hinge, _of.squared_hinge, _of.categorical_hinge),
        ),
        _Known(Kind.VALUES),
    ),
}


def as_losses(said: Structure, loss: Any, loss_weights: Any) -> tuple[list[Any], list[float]]:
    """Returns the Keras loss of each output, None for one that has none, and its weight in what members minimize.

    Args:
        said: the structure of outputs.
        loss: one for all outputs, or a list, or a dict by names, which may leave outputs out.
        loss_weights: numbers in the same form; None for ones.
    """
    if said.is_one and not isinstance(loss, dict):
        if loss_weights is not None:
            raise ValueError(f"Expected loss_weights=None: members have one output. Received: {loss_weights!r}")
        return [as_loss(loss)], [1.0]
    parts = said.split(loss, "a loss", missing=True) if isinstance(loss, list | tuple | dict) else [loss] * len(said)
    if all(part is None for part in parts):
        raise ValueError(f"Expected a loss for at least one of the outputs {list(said.names)}. Received: none")
    weights: list[Any] = [1.0] * len(said)
    if loss_weights is not None:
        found = said.split(loss_weights, "a loss weight", missing=True)
        weights = [1.0 if weight is None else weight for weight in found]
    if not all(isinstance(weight, int | float | np.number) and np.isfinite(weight) for weight in weights):
        raise ValueError(f"Expected finite numbers as loss_weights. Received: {loss_weights!r}")
    return [None if part is None else as_loss(part) for part in parts], [float(weight) for weight in weights]


def as_loss(loss: Any) -> keras.losses.Loss:
    """Returns the Keras loss of one output, from a name, a function or a loss object."""
    if loss is None or isinstance(loss, list | tuple | dict):
        raise ValueError(f"Expected one Keras loss: a name, a function or a keras.losses.Loss. Received: {loss!r}")
    found = keras.losses.get(loss)
    if not isinstance(found, keras.losses.Loss):
        found = keras_private.function_loss(found)
    if found.reduction in (None, "none"):
        raise ValueError(
            f"Expected a loss that is reduced over the batch, such as reduction='sum_over_batch_size'. "
            f"Received: {found.name} with reduction={found.reduction!r}"
        )
    return found


def of_members(
    models: Sequence[keras.Model], said: Structure, loss: Any, loss_weights: Any
) -> tuple[list[Any], list[float]]:
    """Returns what `as_losses` does for an ensemble of these members, who get to know it if they compute their own.

    Args:
        models: members, or the one that stands for all.
        said: the structure of their outputs.
        loss: as `compile` has it; may be None if members compute their own.
        loss_weights: as `compile` has it.
    """
    if not _compute_their_own(models):
        return as_losses(said, loss, loss_weights)
    if not said.is_one:
        raise ValueError(
            "Expected members with one output for a compute_loss of their own; train several outputs by "
            f"compile(loss=...) and add_loss. Received: outputs {list(said.names)}"
        )
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            "Expected members without a compute_loss of their own on several replicas, since nothing says how its "
            f"values are to be added up; use one replica or compile(loss=...). Received: {replicas} replicas"
        )
    found, weights = ([own_losses.OwnLoss()], [1.0]) if loss is None else as_losses(said, loss, loss_weights)
    for model in models if loss is not None else ():
        keras_private.give_loss(model, found[0])
    return found, weights


def _compute_their_own(models: Sequence[keras.Model]) -> bool:
    return any(keras_private.overrides(model, "compute_loss") for model in models)


def _settings(loss: keras.losses.Loss) -> tuple[_Known | None, dict[str, Any]]:
    """Returns what we know of a loss, by its exact type and never by its name, and its settings."""
    function, settings = keras_private.loss_function(loss)
    if isinstance(function, functools.partial) and not function.args:
        function, settings = function.func, {**function.keywords, **settings}
    try:
        return _KNOWN.get(function), settings
    except TypeError:  # A callable that cannot be hashed is none of Keras's.
        return None, settings


def kind_of(loss: keras.losses.Loss | None, num_outputs: int | None) -> Kind | None:
    """Returns what member outputs mean to this loss; None where it does not say.

    Args:
        loss: from `as_loss`, or None before `compile`.
        num_outputs: a member's, None if not known yet: a binary cross-entropy of one output is that of two classes, of
            more, that of as many labels.
    """
    head = regression.head_of(loss)
    if head is not None:
        return head.kind
    known, settings = (None, {}) if loss is None else _settings(loss)
    if known is None:
        return None
    kind = known.logits if known.logits and settings.get("from_logits") else known.kind
    if kind is not None and kind.is_multilabel and num_outputs in (None, 1):
        return Kind.BINARY_LOGITS if kind is Kind.MULTILABEL_LOGITS else Kind.PROBABILITIES
    return kind


def takes_class_indices(loss: keras.losses.Loss) -> bool:
    """Whether labels are class numbers."""
    known, _ = _settings(loss)
    return known is not None and known.class_indices


def ignored_class(loss: keras.losses.Loss) -> int | None:
    """Returns the class number whose examples do not count, if there is one."""
    return _settings(loss)[1].get("ignore_class") if takes_class_indices(loss) else None


def is_per_example(loss: keras.losses.Loss) -> bool:
    """Whether each example's value is known to depend on that example alone, so that members can be folded."""
    if regression.is_known(loss):
        return True
    known, settings = _settings(loss)
    if known is None or not known.per_example:
        return False
    # Along another axis it looks across the batch; with an ignored class it divides by how many are left.
    return settings.get("axis", -1) in (-1, 1) and settings.get("ignore_class") is None


@dataclasses.dataclass(frozen=True)
class Batch:
    """What members' losses compare one output with."""

    y: tf.Tensor  # targets [batch, ...], or [members, batch, ...] if `perturbed`
    perturbed: bool = False
    weights: tf.Tensor | None = None  # [members, batch], or [members, batch, ...] by position; None for ones
    bootstrapped: bool = False  # whether a bootstrap has decided the weights


def make_batches(
    targets: Sequence[Any],
    sample_weights: Sequence[Any],
    bootstrap: Bootstrap | None,
    seed: int,
    ids: Any,
    num_members: int,
    sizes: Sequence[int],
) -> list[Batch]:
    """Returns the targets and loss weights of all members, for each output. An example is drawn once for all of them.

    Args:
        targets: `[batch, ...]` of each output; None for one without a loss.
        sample_weights: `[batch]`, or by position, `[batch, ...]`, of each output, or None.
        bootstrap: perturbs either the targets or the weights; None for neither.
        seed: the ensemble's.
        ids: example ids `[batch]`, for a bootstrap.
        num_members: M.
        sizes: numbers per example that noise is added to, of each output.
    """
    drawn, noises = None, [None] * len(targets)
    if bootstrap is not None:
        all_members = tf.range(num_members)
        noise = bootstrap.target_noise(seed, ids, all_members, sum(sizes))
        if noise is None:
            drawn = tf.transpose(bootstrap.weights(seed, ids, all_members))
        else:
            noises = tf.split(tf.transpose(noise, [1, 0, 2]), list(sizes), axis=-1)
    batches = []
    for y, own, noise in zip(targets, sample_weights, noises, strict=True):
        if y is None:
            batches.append(Batch(None))
            continue
        y, weights = tf.convert_to_tensor(y), drawn
        if noise is not None:
            noise = tf.reshape(noise, tf.concat([[num_members], tf.shape(y)], axis=0))
            y = tf.cast(y, tf.float32)[None] + noise
        if own is not None:
            own = tf.cast(own, tf.float32)[None]
            if len(own.shape) == 3 and own.shape[2] == 1 and len(y.shape) < 3 + (noise is not None):
                own = own[..., 0]
            weights = tf.ones([num_members, 1]) if weights is None else weights
            weights = own * tf.reshape(weights, tf.concat([tf.shape(weights), [1] * (len(own.shape) - 2)], axis=0))
        batches.append(Batch(y, noise is not None, weights, drawn is not None))
    return batches


def member_losses(
    loss: keras.losses.Loss, batch: Batch, outputs: tf.Tensor, one_by_one: bool = False, mask: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns each member's own loss of one output, `[members]`, reduced over batch and positions as the loss asks.

    Args:
        loss: from `as_loss`.
        batch: targets and weights.
        outputs: `[members, batch, ...]`.
        one_by_one: calls the loss once per member, with the very operations of a model trained alone.
        mask: `[members, batch, ...]` of bool: the positions that count, where Keras's layers say so.
    """
    if one_by_one or not is_per_example(loss):
        return _by_member(loss, batch, outputs, one_by_one, mask)
    members, size = outputs.shape[0], tf.shape(outputs)[1]
    y = batch.y if batch.perturbed else tf.repeat(batch.y[None], members, axis=0)
    values = tf.cast(loss.call(_fold(y), _fold(outputs)), tf.float32)
    if mask is not None and len(mask.shape) != len(values.shape) + 1:
        return _by_member(loss, batch, outputs, one_by_one, mask)
    values = tf.reshape(values, tf.concat([[members, size], tf.shape(values)[1:]], axis=0))
    axes = list(range(1, len(values.shape)))
    count = tf.cast(tf.reduce_prod(tf.shape(values)[1:]), tf.float32)
    weights = None if batch.weights is None else _fit_weights(batch.weights, values)
    if mask is not None:
        kept = tf.cast(mask, tf.float32)
        if loss.reduction in ("mean", "sum_over_batch_size"):  # The mean over what is left, as in Keras.
            kept *= tf.math.divide_no_nan(count, tf.reduce_sum(kept, axes, keepdims=True))
        weights = kept if weights is None else weights * kept
    if weights is not None:
        values *= weights
    total = tf.reduce_sum(values, axis=axes)
    if loss.reduction == "sum":
        return total
    if loss.reduction == "mean_with_sample_weight" and weights is not None:
        return tf.math.divide_no_nan(total, tf.reduce_sum(weights + tf.zeros_like(values), axis=axes))
    return total / count


def _fit_weights(weights: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns weights of examples, or of positions, in a shape that weighs a loss's values; both with the same start.

    Weights of examples weigh all their positions. Keras would take `[batch]` for positions wherever that fits.
    """
    rank = len(values.shape)
    if len(weights.shape) == rank + 1 and weights.shape[-1] == 1:
        weights = weights[..., 0]
    if len(weights.shape) > rank:
        raise ValueError(
            "Expected sample weights [batch], or one for each value of the loss. Received: weights of "
            f"{len(weights.shape)} axes for values of {rank}"
        )
    return tf.reshape(weights, tf.concat([tf.shape(weights), [1] * (rank - len(weights.shape))], axis=0))


def _by_member(
    loss: keras.losses.Loss, batch: Batch, outputs: tf.Tensor, one_by_one: bool, mask: tf.Tensor | None
) -> tf.Tensor:
    """Calls the loss with each member's batch."""
    members = outputs.shape[0]
    if not _is_known(loss):
        with contextlib.suppress(effects.NotTraceableError):  # The call below will raise what is wrong with it.
            effects.check_stateless(loss, batch.y[0] if batch.perturbed else batch.y, outputs[0])
    # Keras divides by the number of replicas; we do that later.
    replicas = 1.0 if loss.reduction == "sum" else float(tf.distribute.get_strategy().num_replicas_in_sync)

    @tf.autograph.experimental.do_not_convert
    def of_member(part: dict[str, tf.Tensor]) -> tf.Tensor:
        y, result = part.get("y", batch.y), part["result"]
        weights = _weights_for(loss, y, result, part["weights"], batch.bootstrapped) if "weights" in part else None
        result = keras_private.with_mask(tf.identity(result), part.get("mask"))
        return tf.cast(loss(y, result, sample_weight=weights), tf.float32) * replicas

    parts = {"result": outputs}
    if batch.perturbed:
        parts["y"] = batch.y
    if batch.weights is not None:
        parts["weights"] = batch.weights
    if mask is not None:
        parts["mask"] = mask
    if one_by_one or members <= _UNROLLED:
        return tf.stack([of_member({name: part[m] for name, part in parts.items()}) for m in range(members)])
    return tf.map_fn(of_member, parts, fn_output_signature=tf.float32)


def check_stateless(loss: keras.losses.Loss | None, shape: Sequence[int | None] | None) -> None:
    """Raises if a loss is seen to write to variables; the first batch tells where it takes no targets like outputs.

    Args:
        loss: of one output.
        shape: of that output, without the batch; None if not known yet.
    """
    if loss is None or shape is None or _is_known(loss):
        return
    outputs = tf.TensorSpec([2, *shape])
    for y in (outputs, tf.TensorSpec([2, *shape[:-1]], tf.int32)):
        with contextlib.suppress(effects.NotTraceableError):
            return effects.check_stateless(loss, y, outputs)


def _is_known(loss: keras.losses.Loss) -> bool:
    return _settings(loss)[0] is not None or regression.is_known(loss)


def _weights_for(loss: Any, y: tf.Tensor, result: tf.Tensor, weights: tf.Tensor, bootstrapped: bool) -> tf.Tensor:
    """Returns weights `[batch]` or `[batch, ...]` in a shape that weighs examples, whatever the loss's values are."""
    values = loss.call(tf.cast(y, loss.dtype), tf.cast(result, loss.dtype))
    rank = len(values.shape)
    if rank == 0 and bootstrapped:
        raise ValueError(_no_values_per_example(loss))
    if rank < 2 and len(weights.shape) < 2:
        return weights  # As Keras takes them; a scalar loss is multiplied by their mean.
    return _fit_weights(weights, values) * tf.ones_like(values)


def _no_values_per_example(loss: keras.losses.Loss) -> str:
    return (
        "Expected a loss that returns one value per example, since a bootstrap weighs examples. "
        f"Received: {loss.name}, which returns one for the whole batch: use bootstrap=None or tfe.GaussianNoise"
    )


def check_bootstrap(
    loss: keras.losses.Loss, bootstrap: Bootstrap | None, y: Any, shape: Sequence[int | None], size: Any, own: bool
) -> None:
    """Raises, before training, if a bootstrap's weights would have no example to weigh, or its noise no target.

    Args:
        loss: of one output.
        bootstrap: the ensemble's, if it has one.
        y: targets `[batch, ...]`.
        shape: of a member's output, without the batch.
        size: numbers per example that noise is added to; None if not known.
        own: whether members compute their own loss, which is seen to weigh examples when called.
    """
    if bootstrap is None:
        return
    if type(bootstrap).target_noise is not Bootstrap.target_noise:
        if size is None or y.size != len(y) * size:
            raise ValueError(f"Expected targets [{len(y)}, {size}] for {bootstrap!r}. Received: {y.shape}")
        return
    if own or is_per_example(loss):
        return
    rows = tf.cast(tf.convert_to_tensor(y[: 3 if shape[-1] == 2 else 2]), loss.dtype)
    known = [one if one is not None else rows.shape[1 + place] for place, one in enumerate(shape)]
    if loss.call(rows, tf.zeros([len(rows), *known], loss.dtype)).shape[:1] != rows.shape[:1]:
        raise ValueError(_no_values_per_example(loss))


def _fold(tensor: tf.Tensor) -> tf.Tensor:
    """`[members, batch, ...]` as one batch, `[members * batch, ...]`."""
    return tf.reshape(tensor, tf.concat([[-1], tf.shape(tensor)[2:]], axis=0))
