"""The graphs that train members of one shape, on one device or under a `tf.distribute` strategy.

A graph runs many steps per call: it gathers each replica's own share of a batch from the data in memory, as it is
stored, and sums the replicas' gradients. Flips, shifts and standardizing are the replicas' work: four cores that share
128 images of CIFAR10 are sent 0.39 MB of bytes a step, not the 6.3 MB of four whole batches of floats. A TPU keeps the
data and loops over the steps itself (`device_loop`): the same steps, on the same rows. Batch statistics are those of
the global batch (synchronized batch norm), so replicas compute what one device would. Members of one shape differ in
the values of variables and tensors only: a worker process compiles once, whatever their seeds, priors, bootstrap
weights, rates and decay.

One member per graph: ten in one make as many images per second of the processor as one (width 1/16 and batch 128: 3,912
and 3,910; batch 10: 2,732 and 2,786), so workers side by side, of one thread each, already use all cores.

A prior costs 0.12 ms an image, 42% of a step of a VGG of width 1/16. Without augmentation its logits are computed once
per image and training. Augmentation leaves nothing worth sharing: members have priors, flips and shifts of their own,
padding breaks the symmetry under shifts, and a table of all 2 x 9 x 9 versions pays from 162 epochs on only, and takes
324 MB a member at 50,000 images. Flips and shifts themselves take 1.2 ms a batch of 128, standardizing 0.2 ms, of 36.

Shapes: images `[examples, height, width, channels]`, labels, ids and weights `[examples]`, logits
`[examples, classes]`, rows `[steps, batch]`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles.ensemble.members import building as members
from tf_ensembles.trainers import onednn
from tf_ensembles.trainers.images import data as image_data
from tf_ensembles.trainers.images import device_loop, settings, vgg
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.images.data import ImageData

# Replicas in several processes must agree on the steps per call without talking about it.
_STEPS_PER_CALL_OF_WORKERS = 16
_PREDICT_BATCH = 500
# Keras draws initial weights from Python's generator, which all threads share.
_BUILDING = threading.RLock()


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a graph is compiled for: members that share it differ in numbers only."""

    input_shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    width: float
    augment: bool
    prior_in_steps: bool  # whether steps evaluate the prior: on augmented images; otherwise its logits are known
    dtype: str
    batch: int
    momentum: float


class Tensors(NamedTuple):
    """The training set of one member, on the device of the host."""

    images: tf.Tensor
    labels: tf.Tensor
    ids: tf.Tensor
    weights: tf.Tensor  # the bootstrap's; all 1 without one
    prior: tf.Tensor  # what the prior adds to the logits, `[examples, classes]`: 0 without one


def make_shape(config: MemberConfig, data: ImageData) -> Shape:
    """Returns the shape of a member on a training set."""
    return Shape(
        data.input_shape,
        data.num_classes,
        data.mean,
        data.std,
        config.width,
        config.augment,
        config.augment and config.prior_scale > 0.0,
        config.dtype,
        config.batch,
        config.momentum,
    )


class Predictor:
    """A network and the graph that computes its logits of images as they are stored."""

    def __init__(
        self,
        build: Callable[[], keras.Model],
        num_classes: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        strategy: tf.distribute.Strategy,
    ) -> None:
        self.strategy, self._build = strategy, build
        with strategy.scope():
            self.model = build()
        empty = np.zeros(0, np.int64)
        images = np.zeros((0, *self.model.input_shape[1:]), np.uint8)
        self._statistics = ImageData(images, empty.astype(np.int32), empty, num_classes, mean, std)

    def start(self, seed: int, member: int) -> None:
        """Gives the variables the values that a member starts with."""
        with _BUILDING, members.seeded(seed, member):
            fresh = self._build()
        for from_variable, to_variable in zip(fresh.variables, self.model.variables, strict=True):
            to_variable.assign(from_variable.value)

    @tf.function  # One graph per batch size: replicas, and TPUs, need to know it.
    def _logits(self, images: tf.Tensor) -> Any:
        """Returns logits of `[batch, ...]` images; each replica those of its own part."""

        def run(pixels: tf.Tensor) -> tf.Tensor:
            return tf.cast(self.model(self.standardize(pixels), training=False), tf.float32)

        return self.strategy.run(run, args=(self.shares(lambda one: images[one], images.shape[0]),))

    def predict(self, images: NDArray[Any]) -> NDArray[np.float32]:
        """Returns logits of many images, computed in batches of one size."""
        size = -(-min(_PREDICT_BATCH, len(images)) // self.strategy.num_replicas_in_sync)
        size *= self.strategy.num_replicas_in_sync
        results = []
        for start in range(0, len(images), size):
            batch = images[start : start + size]
            full = np.concatenate([batch, np.repeat(batch[:1], size - len(batch), axis=0)])
            gathered = self.strategy.gather(self._logits(tf.constant(full)), axis=0)
            results.append(gathered.numpy()[: len(batch)])
        return np.concatenate(results)

    def shares(self, take: Callable[[slice], Any], size: int) -> Any:
        """Returns what each replica is given of a global batch.

        Args:
            take: returns the examples of a slice.
            size: of the global batch; replicas share it equally.
        """
        replicas = self.strategy.num_replicas_in_sync
        if replicas == 1:
            return take(slice(0, size))
        share = size // replicas

        def of_replica(context: tf.distribute.experimental.ValueContext) -> Any:
            start = context.replica_id_in_sync_group * share
            return take(slice(start, start + share))

        return self.strategy.experimental_distribute_values_from_function(of_replica)

    def standardize(self, images: tf.Tensor) -> tf.Tensor:
        """Returns stored images as networks take them."""
        return image_data.standardize(self._statistics, images)


def compiles_by_xla(strategy: tf.distribute.Strategy) -> bool:
    """Whether steps are compiled by XLA.

    On CPUs its convolutions are faster than TensorFlow's own, and slower than oneDNN's at every width and batch. It
    cannot compile replicas that talk within a step; a TPU compiles in any case.
    """
    if strategy.num_replicas_in_sync > 1 or isinstance(strategy, tf.distribute.TPUStrategy):
        return False
    return settings.device_of(strategy) == "GPU" or not onednn.is_on()


class Engine(Predictor):
    """The compiled graphs of a shape, with variables for one member at a time."""

    def __init__(self, shape: Shape, strategy: tf.distribute.Strategy, prior: Predictor) -> None:
        replicas = strategy.num_replicas_in_sync
        if shape.batch % replicas:
            raise ValueError(
                f"Expected a batch that {replicas} replicas can share equally. Received: {shape.batch} examples. "
                "Choose another batch size, or --strategy cpu for few examples"
            )

        def build() -> keras.Model:
            with _policy(shape.dtype):
                return vgg.build_vgg(shape.input_shape, shape.num_classes, shape.width)

        super().__init__(build, shape.num_classes, shape.mean, shape.std, strategy)
        self.shape, self.prior = shape, prior
        self.steps_per_call = 1 if num_workers(strategy) == 1 else _STEPS_PER_CALL_OF_WORKERS
        with strategy.scope():
            self._optimizer = keras.optimizers.SGD(0.0, momentum=shape.momentum)
            self._optimizer.build(self.model.trainable_variables)
        self._is_on_device = device_loop.is_used(strategy)
        self._loop: device_loop.DeviceLoop | None = None
        self.most_steps_per_call = device_loop.STEPS if self._is_on_device else sys.maxsize
        # Kernels know one copy of a variable: the only one, or, within a loop on the devices, a replica's own.
        self._has_kernel = self._is_on_device or (bool(shape.momentum) and replicas == 1)
        by_xla = compiles_by_xla(strategy)
        self.setting = settings.make_setting(strategy, xla=by_xla, dtype=shape.dtype)
        self._step = tf.function(self._replica_step, jit_compile=True) if by_xla else self._replica_step
        self._graphs: dict[tf.DType, Any] = {}  # by the type of the images: one serves any number of them and of steps
        if replicas > 1:
            _synchronize_batch_norm(self.model)

    def start(self, seed: int, member: int) -> None:
        """Gives all variables but the prior's the values that a member starts with."""
        super().start(seed, member)
        for variable in self._optimizer.variables:
            variable.assign(tf.zeros_like(variable.value))

    def state(self) -> member_store.Arrays:
        """Returns all that training changes."""
        moving = [variable for variable in self._optimizer.variables if "momentum" in variable.path]
        return {
            **member_store.pack(_values(self.model.variables), "model"),
            **member_store.pack(_values(moving), "momentum"),
        }

    def restore(self, arrays: member_store.Arrays) -> None:
        """Takes back what `state` returned."""
        moving = [variable for variable in self._optimizer.variables if "momentum" in variable.path]
        for variables, prefix in ((self.model.variables, "model"), (moving, "momentum")):
            values = member_store.unpack(arrays, prefix)
            found, expected = [value.shape for value in values], [tuple(variable.shape) for variable in variables]
            if found != expected:
                raise ValueError(f"Expected {prefix} variables of shapes {expected}. Received: shapes {found}")
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def weights(self, with_prior: bool) -> member_store.Arrays:
        """Returns the variables of the model and of its prior, and what images they take."""
        prior = self.prior.model.variables if with_prior else []
        return {
            "input_shape": np.asarray(self.shape.input_shape),
            "mean": np.asarray(self.shape.mean),
            "std": np.asarray(self.shape.std),
            **member_store.pack(_values(self.model.variables), "model"),
            **member_store.pack(_values(prior), "prior"),
        }

    def steps(self, data: Tensors, *plan: tf.Tensor) -> tf.Tensor:
        """Makes the steps of a plan, the further arguments of `_all_steps`; returns their losses `[steps]`."""
        with at_home(self.strategy):
            if self._is_on_device:
                return self.loop(data)(data, *plan)
            kind = data.images.dtype
            if kind not in self._graphs:
                signature = tf.nest.map_structure(_of_any_length, (data, *plan))
                self._graphs[kind] = tf.function(self._all_steps, input_signature=signature)
            return self._graphs[kind](data, *plan)

    def loop(self, data: Tensors) -> device_loop.DeviceLoop:
        """Returns the loop on the devices for data of some shapes, which are known to its graph."""
        if self._loop is None or not self._loop.fits(data):
            self._loop = None  # Its data make room.
            self._loop = device_loop.DeviceLoop(self.strategy, self._replica, self.shape.batch, data)
        return self._loop

    def _all_steps(
        self,
        data: Tensors,
        rows: tf.Tensor,
        epochs: tf.Tensor,
        rates: tf.Tensor,
        seed: tf.Tensor,
        scale: tf.Tensor,
        decay: tf.Tensor,
    ) -> tf.Tensor:
        """Makes the steps on rows `[steps, batch]` and returns their losses `[steps]`."""
        losses = tf.TensorArray(tf.float32, tf.shape(rows)[0])
        for step in tf.range(tf.shape(rows)[0]):
            batch = tf.ensure_shape(rows[step], [self.shape.batch])
            own = self.shares(functools.partial(_gather, data, batch), self.shape.batch)
            parts = self.strategy.run(self._replica, args=(own, epochs[step], rates[step], seed, scale, decay))
            losses = losses.write(step, self.strategy.reduce("SUM", parts, axis=None))
        return losses.stack()

    def _replica(
        self, own: Tensors, epoch: tf.Tensor, rate: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor, decay: tf.Tensor
    ) -> tf.Tensor:
        """One replica's part of a step, given its share of the batch as it is stored; returns its part of the loss."""
        images = own.images
        if self.shape.augment:
            images = image_data.augment_images(images, own.ids, seed=seed, epoch=epoch)
        return self._step(self.standardize(images), own.labels, own.weights, own.prior, rate, scale, decay)

    def _replica_step(
        self,
        images: tf.Tensor,
        labels: tf.Tensor,
        weights: tf.Tensor,
        prior: tf.Tensor,
        rate: tf.Tensor,
        scale: tf.Tensor,
        decay: tf.Tensor,
    ) -> tf.Tensor:
        """The training step on a replica's share, standardized; returns its part of the loss."""
        if self.shape.prior_in_steps:
            prior = scale * tf.cast(self.prior.model(images, training=False), tf.float32)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32) + tf.stop_gradient(prior)
            entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            # Gradients are summed over replicas: their parts add up to the loss of the global batch.
            loss = tf.reduce_sum(weights * entropies) / self.shape.batch
        gradients = tape.gradient(loss, variables)
        # The gradient of `decay * ||theta||^2` needs no tape.
        decay *= 2.0 / self.strategy.num_replicas_in_sync
        penalty = decay * tf.add_n([tf.nn.l2_loss(v.value) for v in variables])  # half the sum of squares
        self._apply([gradient + decay * v.value for gradient, v in zip(gradients, variables, strict=True)], rate)
        return loss + penalty

    def _apply(self, gradients: list[tf.Tensor], rate: tf.Tensor) -> None:
        """Makes the optimizer's step; on one copy of a variable by a kernel, which computes what Keras does."""
        variables = self.model.trainable_variables
        if not self._has_kernel:
            self._optimizer.learning_rate.assign(rate)
            self._optimizer.apply(gradients, variables)
            return
        if self.strategy.num_replicas_in_sync > 1:
            gradients = tf.distribute.get_replica_context().all_reduce("SUM", gradients)
        if not self.shape.momentum:
            for variable, gradient in zip(variables, gradients, strict=True):
                tf.raw_ops.AssignSubVariableOp(resource=variable.value.handle, value=gradient * rate)
            return
        for variable, velocity, gradient in zip(variables, self._optimizer.momentums, gradients, strict=True):
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=variable.value.handle,
                accum=velocity.value.handle,
                lr=rate,
                grad=gradient,
                momentum=self.shape.momentum,
            )


def get_engine(shape: Shape, strategy: Any) -> Engine:
    """Returns the engine of a shape, compiled already if this process has used it before."""
    with _BUILDING:
        return _engines(strategy)(shape)


@functools.cache
def _engines(strategy: Any) -> Callable[[Shape], Engine]:
    """The engines of one strategy: devices that train members side by side do not drive out each other's."""

    @functools.lru_cache(maxsize=4)
    def make_prior(
        input_shape: tuple[int, int, int], num_classes: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> Predictor:
        """The prior's predictor, which engines of all widths and batches share."""
        return Predictor(lambda: vgg.build_conv_prior(input_shape, num_classes), num_classes, mean, std, strategy)

    @functools.lru_cache(maxsize=4)
    def make(shape: Shape) -> Engine:
        return Engine(shape, strategy, make_prior(shape.input_shape, shape.num_classes, shape.mean, shape.std))

    return make


def at_home(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    """Where data and what is not a replica's work belong: on the device itself where there is one, and no TPU."""
    if isinstance(strategy, tf.distribute.OneDeviceStrategy):
        return tf.device(strategy.extended.worker_devices[0])
    return contextlib.nullcontext()


def _gather(data: Tensors, rows: tf.Tensor, share: slice) -> Tensors:
    return Tensors(*(tf.gather(part, rows[share]) for part in data))


def _of_any_length(value: tf.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec([None, *value.shape[1:]] if value.shape.rank else [], value.dtype)


def _values(variables: Any) -> list[NDArray[Any]]:
    return [np.asarray(variable) for variable in variables]


@contextlib.contextmanager
def _policy(dtype: str) -> Iterator[None]:
    """Builds layers that compute in a dtype; variables stay float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _synchronize_batch_norm(model: keras.Model) -> None:
    """Makes batch norm use the statistics of the global batch."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of processes that train together."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    cluster = strategy.cluster_resolver.cluster_spec().as_dict()
    return max(1, sum(len(cluster.get(role, [])) for role in ("chief", "worker")))
