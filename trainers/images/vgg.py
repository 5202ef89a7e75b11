"""The paper's networks for images: a VGG of eleven blocks, and the small convolutional network of prior functions.

Both take images `[batch, height, width, channels]` of any size and give logits `[batch, classes]`.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras import layers

from tf_ensembles.trainers.images import norm

CHANNELS = (64, 64, 128, 128, 128, 256, 256, 256, 512, 512, 512)
STRIDES = (1, 1, 2, 1, 1, 2, 1, 1, 2, 1, 1)
PRIOR_CHANNELS = (4, 8, 4)


def scaled_channels(width: float) -> list[int]:
    """Returns the channels of the eleven blocks, times `width` and rounded, at least one."""
    if not 0.0 < width < float("inf"):
        raise ValueError(f"Expected a width > 0. Received: {width}")
    return [max(1, round(channels * width)) for channels in CHANNELS]


def build_vgg(
    input_shape: Sequence[int] = (32, 32, 3),
    num_classes: int = 10,
    width: float = 1.0,
    *,
    batch_norm_momentum: float = 0.9,
) -> keras.Model:
    """Returns a new VGG: eleven times convolution 3x3, batch norm and ReLU, then average pooling and a dense layer.

    Args:
        input_shape: height, width and channels; each stride of 2 rounds up, so any size will do.
        num_classes: number of logits.
        width: multiplies the channels of every block; the work goes with its square.
        batch_norm_momentum: of the moving averages that evaluation uses. The paper names none; 0.9 lets them settle
            within tens of steps, where the smallest training sets have one step per epoch.
    """
    inputs = keras.Input(_check(input_shape, num_classes))
    x = inputs
    for number, (channels, stride) in enumerate(zip(scaled_channels(width), STRIDES, strict=True)):
        # No bias: batch norm would take it out again.
        x = layers.Conv2D(
            channels,
            3,
            strides=stride,
            padding="same",
            use_bias=False,
            kernel_initializer="he_normal",
            name=f"conv{number}",
        )(x)
        x = norm.BatchNormalization(momentum=batch_norm_momentum, name=f"norm{number}")(x)
        x = layers.ReLU(name=f"relu{number}")(x)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(num_classes, name="logits")(x), name="vgg")


def build_conv_prior(input_shape: Sequence[int] = (32, 32, 3), num_classes: int = 10) -> keras.Model:
    """Returns a new network for prior functions: three convolutions 5x5 with ReLU, then a dense layer to the logits.

    The paper names neither strides nor initializers: stride 1 with "same" padding, kernels truncated normal of variance
    `1 / fan_in`, biases 0.

    Args:
        input_shape: height, width and channels.
        num_classes: number of logits.
    """
    inputs = keras.Input(_check(input_shape, num_classes))
    x = inputs
    for number, channels in enumerate(PRIOR_CHANNELS):
        x = layers.Conv2D(
            channels, 5, padding="same", activation="relu", kernel_initializer="lecun_normal", name=f"conv{number}"
        )(x)
    x = layers.Flatten(name="flat")(x)
    outputs = layers.Dense(num_classes, kernel_initializer="lecun_normal", name="logits")(x)
    return keras.Model(inputs, outputs, name="conv_prior")


def _check(input_shape: Sequence[int], num_classes: int) -> tuple[int, ...]:
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(f"Expected an input shape (height, width, channels). Received: {input_shape}")
    if num_classes < 2:
        raise ValueError(f"Expected at least two classes. Received: {num_classes}")
    return tuple(input_shape)
