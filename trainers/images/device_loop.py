"""The loop over steps on the devices themselves: one call makes many steps, and takes the numbers of rows only.

A TPU waits for its host where each step is a call of its own, and where each is sent its images. Here the training set
is kept on every device, as bytes where it is stored as such (CIFAR10: 154 MB), and a replica gathers its own rows
within the loop. A call sends each device rows, epochs and rates: 4 * 128 + 12 bytes a step at a batch of 128.

- Data are variables of the strategy, a copy per replica: what `TPUStrategy` keeps on its cores from call to call. A
  tensor that is given to `run` comes from the host each time. Rows are flat, because the memory of a TPU has tiles of
  8 x 128 numbers: an image, whose last axis is its 3 channels, might be padded to many times its size.
- A TPU compiles anew for each shape. So a plan is filled up to `STEPS`, and how many of them count is a number.
- Replicas add up gradients and batch statistics within the loop. `TPUStrategy` does so by operations of its cores;
  `MirroredStrategy` by `merge_call`, which it does not have in a loop, so there each step stays a `run` of its own.

Shapes: rows `[steps, batch]`, epochs, rates and losses `[steps]`; data `[examples, ...]`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

# How many steps a call makes at most. Every call is sent a plan of so many: 134 kB a device at a batch of 128.
STEPS = 256


def is_used(strategy: tf.distribute.Strategy) -> bool:
    """Whether the loop over steps is on the devices of a strategy: on a TPU's. Others have it on the host."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


class DeviceLoop:
    """The graph of many steps, and the data on the devices that it works on."""

    def __init__(self, strategy: tf.distribute.Strategy, step: Callable[..., tf.Tensor], batch: int, data: Any) -> None:
        """Makes the graph and puts data onto the devices.

        Args:
            strategy: whose replicas share a batch.
            step: a replica's part of a step: takes its share of the data, the epoch, the rate and further arguments,
                and returns its part of the loss.
            batch: the size of the global batch.
            data: a structure of tensors `[examples, ...]`.
        """
        self._strategy, self._step, self._batch = strategy, step, batch
        self._specs = tf.nest.map_structure(_spec, data)
        with strategy.scope():
            self._held = tf.nest.map_structure(lambda part: tf.Variable(_flat(part), trainable=False), data)
        self._sent = [weakref.ref(part) for part in tf.nest.flatten(data)]
        self._graph: Any = None

    def fits(self, data: Any) -> bool:
        """Whether data have the shapes and types that the graph is made for."""
        return bool(tf.nest.map_structure(_spec, data) == self._specs)

    def __call__(self, data: Any, *plan: tf.Tensor) -> tf.Tensor:
        """Makes the steps of a plan, the arguments of `all_steps`; returns their losses.

        Args:
            data: what to train on; sent to the devices unless it is what they have got last.
            *plan: rows, epochs, rates and further arguments of a step.
        """
        if plan[0].shape[0] > STEPS:
            raise ValueError(f"Expected at most {STEPS} steps a call. Received: {plan[0].shape[0]}")
        self._send(data)
        if self._graph is None:
            signature = [tf.TensorSpec([None, *part.shape[1:]] if part.shape.rank else [], part.dtype) for part in plan]
            self._graph = tf.function(self.all_steps, input_signature=signature)
        return self._graph(*plan)

    def _send(self, data: Any) -> None:
        held, parts = tf.nest.flatten(self._held), tf.nest.flatten(data)
        for number, (variable, part) in enumerate(zip(held, parts, strict=True)):
            if self._sent[number]() is not part:
                variable.assign(_flat(part))
                self._sent[number] = weakref.ref(part)

    def all_steps(self, rows: tf.Tensor, epochs: tf.Tensor, rates: tf.Tensor, *further: tf.Tensor) -> tf.Tensor:
        """Makes the steps on rows by one call of the devices, and returns their losses."""
        count = tf.shape(rows)[0]
        plan = (_fill(part) for part in (tf.cast(rows, tf.int32), epochs, rates))
        parts = self._strategy.run(self.replica_steps, args=(*plan, count, *further))
        return self._strategy.reduce("SUM", parts, axis=None)[:count]

    def replica_steps(
        self, rows: tf.Tensor, epochs: tf.Tensor, rates: tf.Tensor, count: tf.Tensor, *further: tf.Tensor
    ) -> tf.Tensor:
        """One replica's part of the first `count` of `STEPS` steps; returns its parts of their losses, then zeros."""
        replicas = self._strategy.num_replicas_in_sync
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        own_rows = tf.gather(tf.reshape(rows, [STEPS, replicas, self._batch // replicas]), replica, axis=1)
        data = tf.nest.map_structure(tf.convert_to_tensor, self._held)

        def take(rows: tf.Tensor) -> Any:
            def of(spec: tf.TensorSpec, part: tf.Tensor) -> tf.Tensor:
                return tf.reshape(tf.gather(part, rows), [rows.shape[0], *spec.shape[1:]])

            return tf.nest.map_structure(of, self._specs, data)

        def body(step: tf.Tensor, losses: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            own, epoch, rate = take(tf.gather(own_rows, step)), tf.gather(epochs, step), tf.gather(rates, step)
            return step + 1, losses.write(step, self._step(own, epoch, rate, *further))

        losses = tf.TensorArray(tf.float32, STEPS, element_shape=[])
        return tf.while_loop(lambda step, _: step < count, body, (tf.constant(0), losses))[1].stack()


def _spec(part: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(part.shape, part.dtype)


def _flat(part: tf.Tensor) -> tf.Tensor:
    """Returns a row of numbers for each example, or the numbers themselves."""
    return tf.reshape(part, [part.shape[0], -1]) if part.shape.rank > 2 else part


def _fill(part: tf.Tensor) -> tf.Tensor:
    """Returns the plan of `STEPS` steps that begins with a shorter one, and has zeros then."""
    missing = STEPS - tf.shape(part)[0]
    filled = tf.pad(part, [[0, missing], *[[0, 0]] * (part.shape.rank - 1)])
    return tf.ensure_shape(filled, [STEPS, *part.shape[1:]])
