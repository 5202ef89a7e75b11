"""Trains one member of an image ensemble, on one device or under a `tf.distribute` strategy.

Member m of an ensemble minimises `mean(W[t, m] * ce(f_m(x_t), y_t)) + (lambda / T) * ||theta_m||^2` with
`f_m(x) = g_m(x) + scale * p_m(x)` by SGD: `g_m` a VGG, `p_m` a frozen random network, W the bootstrap weights. All
random things are pure functions of (seed, member) and example ids, so a training that was killed continues to the very
numbers of one that was not.

The data set is in memory, and a graph runs many steps per call: it gathers a batch, gives it to the replicas, of which
each takes its own part, and sums their gradients. Batch statistics are those of the global batch (synchronised batch
norm), so replicas compute what one device would. A worker process keeps its graph for all members of one shape.

Shapes: images `[examples, height, width, channels]`, labels, ids and weights `[examples]`, logits
`[examples, classes]`, rows `[steps, batch]`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles import bootstrap, members
from trainers import image_data, member_store, vgg
from trainers.image_data import ImageData
from trainers.member_config import MemberConfig

# A checkpoint is written when so many seconds have passed since the last: a kill loses no more than them.
CHECKPOINT_SECONDS = 20.0
# Steps per call of the graph are chosen for calls of about this many seconds; results do not depend on them.
_CALL_SECONDS = 1.0
# Replicas in several processes must agree on the steps per call without talking about it.
_STEPS_PER_CALL_OF_WORKERS = 16
_PREDICT_BATCH = 500
# Priors must not repeat the draws that start the members; tfe.Ensemble has the same offset.
_PRIOR_SEED = 0x5EED_0001
_ORDER_STREAM = 1


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a graph is compiled for: members that share it differ in numbers only."""

    input_shape: tuple[int, int, int]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    width: float
    has_prior: bool
    augment: bool
    dtype: str
    batch: int
    momentum: float


class _Tensors(NamedTuple):
    """The training set of one member, on the device of the host."""

    images: tf.Tensor
    labels: tf.Tensor
    ids: tf.Tensor
    weights: tf.Tensor  # the bootstrap's; all 1 without one
    prior: tf.Tensor  # what the prior adds to the logits, scaled; used where images are not augmented


def make_shape(config: MemberConfig, data: ImageData) -> Shape:
    """Returns the shape of a member on a training set."""
    return Shape(
        data.input_shape,
        data.num_classes,
        data.mean,
        data.std,
        config.width,
        config.prior_scale > 0.0,
        config.augment,
        config.dtype,
        config.batch,
        config.momentum,
    )


@functools.lru_cache(maxsize=4)
def _engine(shape: Shape, strategy: Any) -> _Engine:
    return _Engine(shape, strategy)


class _Engine:
    """The compiled graphs of a shape, with variables for one member at a time."""

    def __init__(self, shape: Shape, strategy: tf.distribute.Strategy) -> None:
        replicas = strategy.num_replicas_in_sync
        if shape.batch % replicas:
            raise ValueError(
                f"Expected a batch that {replicas} replicas can share equally. Received: {shape.batch} examples. "
                "Choose another batch size, or --strategy cpu for few examples"
            )
        self.shape, self.strategy = shape, strategy
        empty = np.zeros(0, np.int64)
        self._statistics = ImageData(
            np.zeros((0, *shape.input_shape)), empty.astype(np.int32), empty, shape.num_classes, shape.mean, shape.std
        )
        self.steps_per_call = 1 if _num_workers(strategy) == 1 else _STEPS_PER_CALL_OF_WORKERS
        with strategy.scope(), _policy(shape.dtype):
            self.model = self._build_model()
            self._optimizer = keras.optimizers.SGD(0.0, momentum=shape.momentum)
            self._optimizer.build(self.model.trainable_variables)
        if replicas > 1:
            _synchronise_batch_norm(self.model)
        with strategy.scope():
            self.prior = self._build_prior() if shape.has_prior else None

    def _build_model(self) -> keras.Model:
        return vgg.build_vgg(self.shape.input_shape, self.shape.num_classes, self.shape.width)

    def _build_prior(self) -> keras.Model:
        return vgg.build_conv_prior(self.shape.input_shape, self.shape.num_classes)

    def start(self, seed: int, member: int) -> None:
        """Gives all variables the values that a member starts with."""
        with members.seeded(seed, member), _policy(self.shape.dtype):
            _copy(self._build_model(), self.model)
        if self.prior is not None:
            with members.seeded(seed + _PRIOR_SEED, member):
                _copy(self._build_prior(), self.prior)
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
            if [value.shape for value in values] != [tuple(variable.shape) for variable in variables]:
                raise ValueError(f"Expected the {prefix} variables of this network. Received: others")
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)

    def weights(self) -> member_store.Arrays:
        """Returns the variables of the model and of its prior, and what images they take."""
        prior = [] if self.prior is None else self.prior.variables
        return {
            "input_shape": np.asarray(self.shape.input_shape),
            "mean": np.asarray(self.shape.mean),
            "std": np.asarray(self.shape.std),
            **member_store.pack(_values(self.model.variables), "model"),
            **member_store.pack(_values(prior), "prior"),
        }

    # Graphs.

    @tf.function(reduce_retracing=True)
    def steps(
        self,
        data: _Tensors,
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
            images, ids = tf.gather(data.images, batch), tf.gather(data.ids, batch)
            if self.shape.augment:
                images = image_data.augment_images(images, ids, seed=seed, epoch=epochs[step])
            arguments = (
                self._standardise(images),
                tf.gather(data.labels, batch),
                tf.gather(data.weights, batch),
                tf.gather(data.prior, batch),
                rates[step],
                scale,
                decay,
            )
            parts = self.strategy.run(self._replica_step, args=arguments)
            losses = losses.write(step, self.strategy.reduce("SUM", parts, axis=None))
        return losses.stack()

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
        """One replica's part of a step, given the global batch; returns its part of the loss."""
        images, labels, weights, prior = (self._own(part) for part in (images, labels, weights, prior))
        if self.shape.augment and self.prior is not None:
            prior = scale * tf.cast(self.prior(images, training=False), tf.float32)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), tf.float32)
            if self.shape.has_prior:
                logits += tf.stop_gradient(prior)
            entropies = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            penalty = tf.add_n([tf.reduce_sum(tf.square(tf.cast(v.value, tf.float32))) for v in variables])
            # The optimizer sums gradients over replicas: their parts add up to the loss of the global batch.
            loss = tf.reduce_sum(weights * entropies) / self.shape.batch
            loss += decay * penalty / self.strategy.num_replicas_in_sync
        gradients = tape.gradient(loss, variables)
        self._optimizer.learning_rate.assign(rate)
        self._optimizer.apply(gradients, variables)
        return loss

    @tf.function(reduce_retracing=True)
    def predict(self, images: tf.Tensor, scale: tf.Tensor) -> Any:
        """Returns logits of `[batch, ...]` images as stored, prior included; each replica those of its own part."""

        def run(pixels: tf.Tensor) -> tf.Tensor:
            x = self._standardise(self._own(pixels))
            logits = tf.cast(self.model(x, training=False), tf.float32)
            return logits if self.prior is None else logits + scale * tf.cast(self.prior(x), tf.float32)

        return self.strategy.run(run, args=(images,))

    @tf.function(reduce_retracing=True)
    def predict_prior(self, images: tf.Tensor) -> Any:
        """Returns the unscaled prior's logits of images as stored; each replica those of its own part."""
        assert self.prior is not None
        prior = self.prior
        return self.strategy.run(lambda pixels: prior(self._standardise(self._own(pixels))), args=(images,))

    def _own(self, batch: tf.Tensor) -> tf.Tensor:
        """Returns this replica's part of a global batch."""
        replicas = self.strategy.num_replicas_in_sync
        if replicas == 1:
            return batch
        size = batch.shape[0] // replicas
        context = tf.distribute.get_replica_context()
        start = tf.cast(context.replica_id_in_sync_group, tf.int32) * size
        part = tf.slice(batch, [start, *[0] * (len(batch.shape) - 1)], [size, *batch.shape[1:]])
        return tf.ensure_shape(part, [size, *batch.shape[1:]])

    def _standardise(self, images: tf.Tensor) -> tf.Tensor:
        return image_data.standardise(self._statistics, images)

    def map(self, function: Callable[[tf.Tensor], Any], images: NDArray[Any]) -> NDArray[np.float32]:
        """Applies one of the functions above to many images, in batches of one size."""
        size = -(-min(_PREDICT_BATCH, len(images)) // self.strategy.num_replicas_in_sync)
        size *= self.strategy.num_replicas_in_sync
        results = []
        for start in range(0, len(images), size):
            batch = images[start : start + size]
            full = np.concatenate([batch, np.repeat(batch[:1], size - len(batch), axis=0)])
            gathered = self.strategy.gather(function(tf.constant(full)), axis=0)
            results.append(gathered.numpy()[: len(batch)])
        return np.concatenate(results)


def train(
    config: MemberConfig,
    train_data: ImageData,
    test_data: ImageData,
    store: str | Any,
    *,
    strategy: tf.distribute.Strategy | None = None,
    keep_weights: bool = True,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: Callable[[int, float], object] | None = None,
) -> dict[str, Any]:
    """Trains a member, or what is left of its training, and returns its scalars. A finished one returns at once.

    Args:
        config: the member.
        train_data: the member's training set: the subset, with its noise.
        test_data: what to predict when it is trained.
        store: the folder of all members. Processes of one multi-worker training must share it.
        strategy: by default one device.
        keep_weights: whether to keep the variables of the finished member.
        checkpoint_seconds: how often to write a checkpoint at most; 0: at the end of every epoch, at least.
        progress: called with the steps made so far and the last loss.

    Raises:
        member_store.MemberError: if the training diverges or has done so before, or if its files are corrupt.
    """
    if len(train_data) != config.num_train:
        raise ValueError(f"Expected {config.num_train} training examples. Received: {len(train_data)}")
    chosen = tf.distribute.get_strategy() if strategy is None else strategy
    files = member_store.MemberFiles(store, config)
    writes = is_chief(chosen)
    # Other workers than the chief only read: the chief holds the lock for all.
    with files.locked() if writes else contextlib.nullcontext():
        result = files.result()
        if result is not None:
            return result
        status = files.status()
        if status.state is member_store.State.FAILED:
            raise member_store.MemberError(
                f"Expected {files} to be trainable. Received: it failed at step {status.steps}: {status.reason}. "
                f"'tf-ensembles cifar10 train ... --retrain {config.member}' tries again"
            )
        training = _Training(config, train_data, chosen, files if writes else None)
        training.resume(member_store.MemberFiles(store, config))
        training.run(checkpoint_seconds, progress)
        return training.finish(test_data, keep_weights)


class _Training:
    """The training of one member."""

    def __init__(
        self,
        config: MemberConfig,
        data: ImageData,
        strategy: tf.distribute.Strategy,
        files: member_store.MemberFiles | None,
    ) -> None:
        self._config, self._data, self._files = config, data, files
        self._engine = _engine(make_shape(config, data), strategy)
        self._engine.start(config.seed, config.member)
        self._step = 0
        self._last_losses = np.zeros(0, np.float32)  # of the epoch under way or just completed
        entropy = np.random.SeedSequence([config.seed, config.member, _ORDER_STREAM]).generate_state(1, np.uint64)
        self._order_seed = int(entropy[0] >> np.uint64(1))
        self._fingerprint = np.frombuffer(_fingerprint(data), np.uint8)
        self._tensors = self._make_tensors()

    def _make_tensors(self) -> _Tensors:
        config, data = self._config, self._data
        weights = tf.ones([len(data)])
        if config.bootstrap_probability is not None:
            law = bootstrap.Bernoulli(config.bootstrap_probability)
            weights = law.weights(config.seed, data.ids, [config.member])[:, 0]
        # Without augmentation the prior sees each image once, not once per epoch.
        prior = np.zeros((len(data), data.num_classes), np.float32)
        if config.prior_scale and not config.augment:
            prior = np.float32(config.prior_scale) * self._engine.map(self._engine.predict_prior, data.images)
        return _Tensors(
            tf.constant(data.images), tf.constant(data.labels), tf.constant(data.ids), weights, tf.constant(prior)
        )

    def resume(self, files: member_store.MemberFiles) -> None:
        """Continues from the last checkpoint, if there is one."""
        found = files.load_checkpoint()
        if found is not None:
            step, arrays = found
            if not np.array_equal(arrays["fingerprint"], self._fingerprint):
                raise member_store.MemberError(
                    f"Expected the training data that {files} began with. Received: others. "
                    f"'tf-ensembles cifar10 train ... --retrain {self._config.member}' begins anew"
                )
            self._engine.restore(arrays)
            self._step, self._last_losses = step, arrays["losses"]
        elif self._files is not None:
            self._files.begin()
        _check_agreement(self._engine.strategy, self._step)

    def run(self, checkpoint_seconds: float, progress: Callable[[int, float], object] | None) -> None:
        """Makes all steps that are left."""
        config, engine, saved_at = self._config, self._engine, time.monotonic()
        constants = (
            tf.constant(self._order_seed, tf.int64),
            tf.constant(config.prior_scale, tf.float32),
            tf.constant(config.decay, tf.float32),
        )
        while self._step < config.num_steps:
            started = time.monotonic()
            count = min(engine.steps_per_call, config.num_steps - self._step)
            if not checkpoint_seconds:
                count = min(count, config.steps_per_epoch - self._step % config.steps_per_epoch)
            losses = engine.steps(self._tensors, *self._plan(count), *constants).numpy()
            self._advance(losses)
            if not np.isfinite(losses).all():
                self._give_up(losses)
            if progress is not None:
                progress(self._step, float(losses[-1]))
            now = time.monotonic()
            self._adapt(now - started)
            if self._files is not None and now - saved_at >= checkpoint_seconds and self._step < config.num_steps:
                self._files.save_checkpoint(
                    self._step,
                    {**engine.state(), "losses": self._last_losses, "fingerprint": self._fingerprint},
                )
                saved_at = time.monotonic()

    def _plan(self, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns rows `[steps, batch]`, epochs `[steps]` and learning rates `[steps]` of the next steps."""
        per_epoch, batch = self._config.steps_per_epoch, self._config.batch
        steps = np.arange(self._step, self._step + count)
        rows = [
            self._order(epoch)[: per_epoch * batch].reshape(per_epoch, batch)[
                steps[steps // per_epoch == epoch] % per_epoch
            ]
            for epoch in np.unique(steps // per_epoch).tolist()
        ]
        rates = [self._config.rate(epoch) for epoch in (steps // per_epoch).tolist()]
        return (
            tf.constant(np.concatenate(rows), tf.int64),
            tf.constant(steps // per_epoch, tf.int64),
            tf.constant(rates, tf.float32),
        )

    def _order(self, epoch: int) -> NDArray[np.int64]:
        return image_data.epoch_order(self._data.ids, seed=self._order_seed, epoch=epoch)

    def _advance(self, losses: NDArray[np.float32]) -> None:
        """Counts the steps and keeps the losses of the last epoch."""
        per_epoch = self._config.steps_per_epoch
        self._last_losses = np.concatenate([self._last_losses, losses])
        self._step += len(losses)
        self._last_losses = self._last_losses[-(self._step % per_epoch or per_epoch) :]

    def _adapt(self, seconds: float) -> None:
        """Chooses the steps of the next call by the time that this one took."""
        engine = self._engine
        if _num_workers(engine.strategy) > 1:
            return
        if seconds < _CALL_SECONDS / 2:
            engine.steps_per_call *= 2
        elif seconds > 2 * _CALL_SECONDS:
            engine.steps_per_call = max(1, engine.steps_per_call // 2)

    def _give_up(self, losses: NDArray[np.float32]) -> None:
        step = self._step - len(losses) + int(np.argmin(np.isfinite(losses)))
        epoch, loss = step // self._config.steps_per_epoch + 1, losses[~np.isfinite(losses)][0]
        reason = f"diverged: the loss of epoch {epoch} is {loss}"
        if self._files is not None:
            self._files.begin()
            self._files.fail(step, reason)
        raise member_store.MemberError(
            f"Expected a finite loss of member {self._config.member} ({self._config.key}). Received: it {reason}, "
            f"with a learning rate of {self._config.learning_rate}"
        )

    def finish(self, test_data: ImageData, keep_weights: bool) -> dict[str, Any]:
        """Predicts the test set, writes the member's files and returns its scalars."""
        scale = tf.constant(self._config.prior_scale, tf.float32)
        logits = self._engine.map(lambda images: self._engine.predict(images, scale), test_data.images)
        if not np.isfinite(logits).all():
            self._give_up(np.full(1, np.nan, np.float32))
        likelihood = logits - logits.max(axis=1, keepdims=True)
        likelihood -= np.log(np.exp(likelihood).sum(axis=1, keepdims=True))
        result = {
            "member_key": self._config.key,
            "steps": self._step,
            "train_loss": float(self._last_losses.mean()),
            "test_nll": float(-likelihood[np.arange(len(logits)), test_data.labels].mean(dtype=np.float64)),
            "test_accuracy": float(np.mean(logits.argmax(axis=1) == test_data.labels)),
        }
        if self._files is not None:
            weights = self._engine.weights() if keep_weights else None
            if weights is not None:
                weights["pixels_are_bytes"] = np.asarray(self._data.images.dtype == np.uint8)
            self._files.finish(result, logits, test_data.labels, weights)
        return result


def _fingerprint(data: ImageData) -> bytes:
    """A hash of a training set."""
    digest = hashlib.sha256(repr((data.images.shape, data.mean, data.std, data.num_classes)).encode())
    for array in (data.images, data.labels, data.ids):
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()


def _copy(source: keras.Model, target: keras.Model) -> None:
    for from_variable, to_variable in zip(source.variables, target.variables, strict=True):
        to_variable.assign(from_variable.value)


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


def _synchronise_batch_norm(model: keras.Model) -> None:
    """Makes batch norm use the statistics of the global batch."""
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.synchronized = True


def _num_workers(strategy: tf.distribute.Strategy) -> int:
    resolver = strategy.cluster_resolver
    is_multi_worker = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    return len(resolver.cluster_spec().as_dict().get("worker", [0])) if is_multi_worker else 1


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes files."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return True
    resolver = strategy.cluster_resolver
    return resolver.task_type == "chief" or (resolver.task_type in (None, "worker") and not resolver.task_id)


def _check_agreement(strategy: tf.distribute.Strategy, step: int) -> None:
    """Raises unless all workers continue from the same step."""
    if _num_workers(strategy) == 1:
        return
    total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(step, tf.float32)), axis=None)
    if float(total) != step * strategy.num_replicas_in_sync:
        raise ValueError(
            f"Expected a store that all workers share. Received: this one continues from step {step}, others do not"
        )
