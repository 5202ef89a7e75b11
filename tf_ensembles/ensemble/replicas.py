"""What the replicas of a `tf.distribute` strategy have to tell each other, so that they train as one device would.

A global batch is split over replicas, not always evenly: the last batch of an epoch may leave one without any example.
So each replica weighs its losses by its share of the examples, where Keras takes all shares to be alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.ensemble import keras_private, losses
from tf_ensembles.ensemble.losses import Batch


def count() -> int:
    """Returns how many replicas take part in a step."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def total(values: Any) -> Any:
    """Returns the sum over all replicas of a tensor, or of each of a list; called by all of them within a step."""
    context = tf.distribute.get_replica_context()
    if count() == 1 or context is None or (isinstance(values, list) and not values):
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def member_losses(
    loss: keras.losses.Loss, batch: Batch, outputs: tf.Tensor, one_by_one: bool = False, mask: tf.Tensor | None = None
) -> tf.Tensor:
    """Returns this replica's share `[members]` in the members' losses of the whole batch; `total` adds up all shares.

    Args:
        loss: whose reduction says how examples are weighed.
        batch: targets and weights of this replica's part of the batch.
        outputs: of that part, `[members, batch, ...]`.
        one_by_one: as `losses.member_losses` has it.
        mask: the positions that count, `[members, batch, ...]` of bool, or None.
    """
    if count() == 1:
        return losses.member_losses(loss, batch, outputs, one_by_one, mask)
    _check_adds_up(loss, batch, outputs)
    counted = _counted(loss, batch, outputs, mask)
    if counted is None:
        return _share(loss, losses.member_losses(loss, batch, outputs, one_by_one), batch, None)
    # Where no position counts, Keras divides 0 by 0, and so do gradients: all are computed, at a share of 0.
    none = ~tf.reduce_any(counted, axis=list(range(1, len(counted.shape))), keepdims=True)
    if mask is not None:
        mask |= none
    ignored = losses.ignored_class(loss)
    if ignored is not None:
        other = tf.cast(1 if ignored == 0 else 0, batch.y.dtype)
        batch = dataclasses.replace(batch, y=tf.where(tf.reduce_all(none), other, batch.y))
    return _share(loss, losses.member_losses(loss, batch, outputs, one_by_one, mask), batch, counted)


def _counted(loss: keras.losses.Loss, batch: Batch, outputs: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor | None:
    """Returns the positions that count, `[members, batch, ...]` of bool: neither masked nor of a class that is ignored;
    None for all."""
    ignored = losses.ignored_class(loss)
    if ignored is None:
        return mask
    labels = tf.reshape(batch.y, tf.shape(outputs)[1:-1])[None]
    kept = tf.repeat(labels != tf.cast(ignored, labels.dtype), outputs.shape[0], axis=0)
    return kept if mask is None else kept & mask


def _share(loss: keras.losses.Loss, each: tf.Tensor, batch: Batch, counted: tf.Tensor | None) -> tf.Tensor:
    size = tf.cast(tf.shape(batch.y)[1 if batch.perturbed else 0], tf.float32)
    each = tf.where(size > 0.0, each, tf.zeros_like(each))  # Without an example, they are 0 / 0.
    if loss.reduction == "sum" and counted is None:
        return each
    weight = size
    if counted is not None:
        kept = tf.cast(counted, tf.float32)
        weight = tf.reduce_sum(kept, axis=list(range(1, len(kept.shape))))
        if loss.reduction == "sum":
            return tf.where(weight > 0.0, each, tf.zeros_like(each))
    if loss.reduction == "mean_with_sample_weight" and batch.weights is not None:
        weights = batch.weights
        if counted is not None:
            weights = tf.reshape(
                weights, tf.concat([tf.shape(weights), [1] * (len(kept.shape) - len(weights.shape))], 0)
            )
            weights *= kept
        weight = tf.reduce_sum(weights, axis=list(range(1, len(weights.shape))))
    return each * tf.math.divide_no_nan(weight, total(weight))


def _check_adds_up(loss: keras.losses.Loss, batch: Batch, outputs: tf.Tensor) -> None:
    """Raises where the parts of a batch say nothing of its loss, because examples are looked at together."""
    if losses.is_per_example(loss):
        return
    y, result = batch.y[0] if batch.perturbed else batch.y, outputs[0]
    values = loss.call(tf.cast(y, loss.dtype), tf.cast(result, loss.dtype))
    function, settings = keras_private.loss_function(loss)
    axis = settings.get("axis")
    if (
        len(values.shape) == 0
        or function is keras.losses.circle
        or axis == 0
        or (isinstance(axis, tuple | list) and 0 in axis)
    ):
        raise ValueError(
            "Expected a loss with a value for each example on several replicas, which see a part of a batch each. "
            f"Received: {loss.name}, of the whole batch: use one replica, or tfe.fit_sharded"
        )


def check_batches(models: Sequence[keras.Model], length: int, batch_size: int, replicas: int) -> None:
    """Raises, before training, where the last batch would leave a replica without the examples that a layer needs.

    Args:
        models: what is trained.
        length: of the training data.
        batch_size: global.
        replicas: that a batch is split over.
    """
    last, each = length % batch_size, -(-batch_size // replicas)
    if not 0 < last <= each * (replicas - 1):
        return
    for layer in (layer for model in models for layer in keras_private.all_layers(model)):
        if isinstance(layer, keras.layers.BatchNormalization) and not layer.synchronized and layer.trainable:
            raise ValueError(
                f"Expected examples for all {replicas} replicas in every batch, since {layer.name} is computed by each "
                f"alone: use BatchNormalization(synchronized=True), or a batch_size that divides {length}. Received: "
                f"batch_size={batch_size}, whose last batch has {last} example{'s' * (last > 1)}"
            )
