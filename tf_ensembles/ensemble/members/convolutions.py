"""Rules of convolutions: `[members, batch, ..., channels]` with kernels `[members, ..., in, out]`.

Along one axis, and with kernels of one pixel, they are products of all members' matrices at once. Depthwise, members
are more channels of one convolution. Else, along two axes, there is one convolution per member, because on CPUs oneDNN
did a loop over members faster than products over patches, grouped convolutions or XLA. Everything around it stays
vectorized; only that one operation is in the graph as often as there are members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from keras import layers

from tf_ensembles.ensemble.members.mapping import Stacked

if TYPE_CHECKING:
    from tf_ensembles.ensemble.members.layer_rules import Rule
    from tf_ensembles.ensemble.members.runner import Runner


def rule_of(operation: Any) -> Rule | None:
    """Returns how to run a convolution for all members, or None if there is no such way."""
    rule = _RULES.get(type(operation))
    if rule is None or not operation.built or not is_plain(operation):
        return None
    if operation.data_format != "channels_last" or getattr(operation, "groups", 1) != 1:
        return None
    return rule if known_activation(operation) else None


def is_looped(operation: Any) -> bool:
    """Whether the rule of a layer has a part that runs once per member."""
    return rule_of(operation) is _along_two_axes and not _of_one_pixel(operation)


def is_plain(layer: Any) -> bool:
    """Whether a layer's weights are what it computes with: neither quantized nor adapted."""
    return layer.dtype_policy.quantization_mode is None and not getattr(layer, "lora_enabled", False)


def known_activation(layer: Any) -> bool:
    """Whether a layer's activation is known to treat examples one by one."""
    return is_known(layer.activation)


def is_known(activation: Any) -> bool:
    """A user's own activation function might look across the batch; those of Keras do not."""
    return activation is None or getattr(activation, "__module__", "").startswith("keras.")


def _along_one_axis(runner: Runner, layer: layers.Conv1D, x: tf.Tensor, stacked: bool) -> Stacked:
    """Sums of products: the patches of all examples side by side, times the kernel."""
    x = x if stacked else x[None]
    kernel = runner.value(layer.kernel, layer.compute_dtype)
    size, stride, rate = layer.kernel_size[0], layer.strides[0], layer.dilation_rate[0]
    reach, length = (size - 1) * rate, tf.shape(x)[2]
    if layer.padding == "causal":
        x = tf.pad(x, [[0, 0], [0, 0], [reach, 0], [0, 0]])
    elif layer.padding == "same":
        missing = tf.maximum((-(-length // stride) - 1) * stride + reach + 1 - length, 0)
        x = tf.pad(x, [[0, 0], [0, 0], [missing // 2, missing - missing // 2], [0, 0]])
    count = (tf.shape(x)[2] - reach - 1) // stride + 1
    last = (count - 1) * stride + 1
    patches = tf.concat([x[:, :, at : at + last : stride] for at in range(0, reach + 1, rate)], axis=-1)
    return _with_bias(runner, layer, _product(patches, kernel))


def _along_two_axes(runner: Runner, layer: layers.Conv2D, x: tf.Tensor, stacked: bool) -> Stacked:
    kernel = runner.value(layer.kernel, layer.compute_dtype)
    if _of_one_pixel(layer):
        x = x if stacked else x[None]
        return _with_bias(runner, layer, _product(x[:, :, :: layer.strides[0], :: layer.strides[1]], kernel))
    members = runner.num_members
    options = {"strides": layer.strides, "padding": layer.padding.upper(), "dilations": layer.dilation_rate}
    if not stacked:  # All members see one batch: their filters are those of one larger convolution.
        side_by_side = tf.reshape(tf.transpose(kernel, [1, 2, 3, 0, 4]), [*kernel.shape[1:4], -1])
        y = tf.nn.convolution(x, side_by_side, **options)
        shape = tf.concat([tf.shape(y)[:3], [members, kernel.shape[-1]]], axis=0)
        return _with_bias(runner, layer, tf.transpose(tf.reshape(y, shape), [3, 0, 1, 2, 4]))
    pairs = zip(tf.unstack(x, num=members), tf.unstack(kernel, num=members), strict=True)
    return _with_bias(runner, layer, tf.stack([tf.nn.convolution(one, own, **options) for one, own in pairs]))


def _depthwise(runner: Runner, layer: layers.DepthwiseConv2D, x: tf.Tensor, stacked: bool) -> Stacked:
    return _with_bias(runner, layer, _by_channel(runner, layer, layer.kernel, x, stacked))


def _separable(runner: Runner, layer: layers.SeparableConv2D, x: tf.Tensor, stacked: bool) -> Stacked:
    y = _by_channel(runner, layer, layer.depthwise_kernel, x, stacked)
    return _with_bias(runner, layer, _product(y, runner.value(layer.pointwise_kernel, layer.compute_dtype)))


def _by_channel(runner: Runner, layer: Any, kernel: Any, x: tf.Tensor, stacked: bool) -> tf.Tensor:
    """One convolution for each channel of each member: `[members, batch, rows, columns, channels * multiplier]`."""
    filters, members = runner.value(kernel, layer.compute_dtype), runner.num_members
    x = x if stacked else tf.repeat(x[None], members, axis=0)
    height, width, channels, multiplier = filters.shape[1:]
    side_by_side = tf.reshape(tf.transpose(filters, [1, 2, 0, 3, 4]), [height, width, members * channels, multiplier])
    folded = tf.transpose(x, [1, 2, 3, 0, 4])
    folded = tf.reshape(folded, tf.concat([tf.shape(folded)[:3], [members * channels]], axis=0))
    options = {"padding": layer.padding.upper(), "dilations": layer.dilation_rate}
    y = tf.nn.depthwise_conv2d(folded, side_by_side, [1, *layer.strides, 1], **options)
    shape = tf.concat([tf.shape(y)[:3], [members, channels * multiplier]], axis=0)
    return tf.transpose(tf.reshape(y, shape), [3, 0, 1, 2, 4])


def _of_one_pixel(layer: layers.Conv2D) -> bool:
    return tuple(layer.kernel_size) == (1, 1)


def _product(patches: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """`[members or 1, batch, ..., values]` times kernels `[members, ..., out]` that have as many values."""
    members, out = kernel.shape[0], kernel.shape[-1]
    shape = tf.shape(patches)
    flat = tf.reshape(patches, [patches.shape[0], -1, patches.shape[-1]])
    y = tf.matmul(flat, tf.reshape(kernel, [members, -1, out]))
    whole = tf.reshape(y, tf.concat([[members], shape[1:-1], [out]], axis=0))
    return tf.ensure_shape(whole, [members, *patches.shape[1:-1], out])


def _with_bias(runner: Runner, layer: Any, y: tf.Tensor) -> Stacked:
    if layer.use_bias:
        bias = runner.value(layer.bias, layer.compute_dtype)
        y += tf.reshape(bias, [bias.shape[0], *([1] * (len(y.shape) - 2)), bias.shape[-1]])
    return Stacked(y if layer.activation is None else layer.activation(y))


_RULES: dict[type, Rule] = {
    layers.Conv1D: _along_one_axis,
    layers.Conv2D: _along_two_axes,
    layers.DepthwiseConv2D: _depthwise,
    layers.SeparableConv2D: _separable,
}
