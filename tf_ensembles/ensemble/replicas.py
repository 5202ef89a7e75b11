"""What the replicas of a `tf.distribute` strategy have to tell each other, so that they train as one device would.

A global batch is split over replicas, not always evenly: the last batch of an epoch may leave one without any example.
So each replica weighs its losses by its share of the examples, where Keras takes all shares to be alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.ensemble import keras_private
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


def share(loss: keras.losses.Loss, losses: tf.Tensor, batch: Batch, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Returns this replica's share `[members]` in the members' losses of the whole batch; `total` adds up all shares.

    Args:
        loss: whose reduction says how examples are weighed.
        losses: of this replica's part of the batch, `[members]`.
        batch: its targets and weights.
        mask: the positions that count, `[members, batch, ...]` of bool, or None.
    """
    if count() == 1:
        return losses
    size = tf.cast(tf.shape(batch.y)[1 if batch.perturbed else 0], tf.float32)
    losses = tf.where(size > 0.0, losses, tf.zeros_like(losses))  # Without an example, they are 0 / 0.
    if loss.reduction == "sum":
        return losses
    weight = size
    if mask is not None:
        kept = tf.cast(mask, tf.float32)
        weight = tf.reduce_sum(kept, axis=list(range(1, len(kept.shape))))
    if loss.reduction == "mean_with_sample_weight" and batch.weights is not None:
        weights = batch.weights
        if mask is not None:
            weights = tf.reshape(
                weights, tf.concat([tf.shape(weights), [1] * (len(kept.shape) - len(weights.shape))], 0)
            )
            weights *= kept
        weight = tf.reduce_sum(weights, axis=list(range(1, len(weights.shape))))
    return losses * tf.math.divide_no_nan(weight, total(weight))


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
