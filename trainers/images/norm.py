"""Batch norm by TensorFlow's fused kernel: `keras.layers.BatchNormalization` in a fraction of its time.

Keras 3 computes moments, scale and shift of batch norm as separate operations, each of which reads or writes all
activations. TensorFlow has one kernel for all of it, and one for its gradient. The layer here has Keras's name,
arguments, variables and results up to the rounding of sums, so weights saved by either load into the other.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

# cuDNN takes none below, and TensorFlow would silently use this one in its place.
_LEAST_EPSILON = 1.001e-5
_HALF = ("float16", "bfloat16")  # The kernel has float32 statistics of these, too.


@keras.saving.register_keras_serializable(package="tf_ensembles")
class BatchNormalization(keras.layers.BatchNormalization):
    """Keras's layer, computed by the fused kernel where the kernel computes the same.

    That is on `[batch, height, width, channels]` normalized along its last axis, without a mask, renormalization or
    statistics that replicas share. Elsewhere it is Keras's layer.
    """

    def call(self, inputs: tf.Tensor, training: bool | None = None, mask: Any = None) -> tf.Tensor:
        """Returns the normalized inputs; in training, by the batch's own statistics, which move the averages."""
        if not self._is_fused(inputs, mask):
            return super().call(inputs, training=training, mask=mask)
        channels = self.moving_mean.shape
        by_batch = bool(training and self.trainable)
        before = self.moving_mean.value, self.moving_variance.value
        outputs = tf.raw_ops.FusedBatchNormV3(
            x=inputs,
            scale=self.gamma.value if self.scale else tf.ones(channels),
            offset=self.beta.value if self.center else tf.zeros(channels),
            mean=tf.zeros([0]) if by_batch else before[0],
            variance=tf.zeros([0]) if by_batch else before[1],
            epsilon=self.epsilon,
            is_training=by_batch,
        )
        if by_batch:
            # The kernel estimates the variance of a population, n / (n - 1) times the batch's own that Keras averages.
            count = tf.cast(tf.size(inputs) // channels[0], tf.float32)
            moments = outputs.batch_mean, outputs.batch_variance * ((count - 1.0) / count)
            keep = self.momentum
            for variable, old, new in zip((self.moving_mean, self.moving_variance), before, moments, strict=True):
                variable.assign(old * keep + new * (1.0 - keep))
        return tf.cast(outputs.y, self.compute_dtype)

    def _is_fused(self, inputs: tf.Tensor, mask: Any) -> bool:
        return (
            len(inputs.shape) == 4
            and self.axis in (-1, 3)
            and keras.backend.standardize_dtype(inputs.dtype) in ("float32", *_HALF)
            and keras.backend.standardize_dtype(self.moving_mean.dtype) == "float32"
            and self.epsilon >= _LEAST_EPSILON
            and not (self.synchronized or getattr(self, "renorm", False) or mask is not None)
        )
