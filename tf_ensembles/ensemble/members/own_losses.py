"""The losses that members compute themselves: those with a `compute_loss` of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tf_ensembles.ensemble import keras_private

if TYPE_CHECKING:
    from tf_ensembles.ensemble.losses import Batch


class OwnLoss(keras.losses.Loss):
    """Stands for what members' own `compute_loss` says, where `compile` was given no loss: nothing is known of it."""

    def __init__(self) -> None:
        super().__init__(name="compute_loss")

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Raises: only members can be asked."""
        raise ValueError(f"Expected to ask members for their loss. Received: targets {y_true.shape}, {y_pred.shape}")


def compute(models: Sequence[keras.Model], x: Any, batch: Batch, outputs: tf.Tensor, training: bool) -> tf.Tensor:
    """Returns what each member's own `compute_loss` says of its batch, `[members]`.

    Args:
        models: all members, which have just been called.
        x: inputs `[batch, ...]`.
        batch: targets and weights, which members get as `sample_weight`.
        outputs: `[members, batch, outputs]`, priors included.
        training: whether it is a step of training.
    """
    values = []
    for m, model in enumerate(models):
        y = batch.y[m] if batch.perturbed else batch.y
        weights = None if batch.weights is None else batch.weights[m]
        with tf.GradientTape() as tape:
            tape.watch([] if weights is None else weights)
            value = keras_private.compute_loss(model, x, y, outputs[m], weights, training)
        if batch.bootstrapped and tape.gradient(value, weights) is None:
            raise ValueError(
                "Expected a compute_loss that weighs examples by sample_weight, since a bootstrap does. Received: that "
                f"of {type(model).__name__}, which does not: weigh there, or use bootstrap=None or tfe.GaussianNoise"
            )
        if value is None or len(tf.convert_to_tensor(value).shape):
            raise ValueError(f"Expected {type(model).__name__}.compute_loss to return one number. Received: {value}")
        values.append(tf.cast(value, tf.float32))
    return tf.stack(values)
