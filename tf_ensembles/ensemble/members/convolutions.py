"""Rules of convolutions: `[members, batch, ..., channels]` with kernels `[members, ..., in, out]`.

Along one axis, and with kernels of one pixel, they are products of all members' matrices at once. Along two axes there
is one convolution per member, because on CPUs oneDNN did a loop over members faster than products over patches, grouped
convolutions or XLA. Everything around it stays vectorized; only that one operation is in the graph as often as there
are members.
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
    if type(operation) not in (layers.Conv1D, layers.Conv2D) or not operation.built or not is_plain(operation):
        return None
    if operation.data_format != "channels_last" or operation.groups != 1 or not known_activation(operation):
        return None
    return _along_one_axis if type(operation) is layers.Conv1D else _along_two_axes


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
