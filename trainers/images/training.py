"""Trains one member of an image ensemble, on one device or under a `tf.distribute` strategy.

Member m of an ensemble minimizes `mean(W[t, m] * ce(f_m(x_t), y_t)) + (lambda / T) * ||theta_m||^2` with
`f_m(x) = g_m(x) + scale * p_m(x)` by SGD: `g_m` a VGG, `p_m` a frozen random network, W the bootstrap weights. All
random things are pure functions of (seed, member) and example ids, so a training that was killed continues to the very
numbers of one that was not.

The steps themselves are graphs of `engine`; here is what to feed them, what to remember, and where to go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles import bootstrap, draws
from tf_ensembles.trainers import preemption
from tf_ensembles.trainers.images import data as image_data
from tf_ensembles.trainers.images import engine as member_engine
from tf_ensembles.trainers.images import settings
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.images.data import ImageData

# A checkpoint is written when so many seconds have passed since the last: a kill loses no more than them.
CHECKPOINT_SECONDS = 20.0
# Steps per call of the graph are chosen for calls of about this many seconds; results do not depend on them.
_CALL_SECONDS = 1.0


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
    wait: bool = True,
    wrong_labels: ImageData | None = None,
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
        wait: whether to wait where another process trains the member now.
        wrong_labels: training examples whose labels noise has moved, as they are trained on: the share of them whose
            label the member predicts is kept as `wrong_labels_fit`.

    Raises:
        member_store.MemberBusyError: if it is not to wait, and would have to.
        member_store.MemberError: if the training diverges or has done so before, or if its files are corrupt.
        WorkersLostError: if another process of the same training has gone.
        preemption.Preempted: after SIGTERM, or its like; the training is kept up to its last step.
    """
    if len(train_data) != config.num_train:
        raise ValueError(f"Expected {config.num_train} training examples. Received: {len(train_data)}")
    chosen = tf.distribute.get_strategy() if strategy is None else strategy
    files = member_store.MemberFiles(store, config)
    writes = is_chief(chosen)
    # Other workers than the chief only read: the chief holds the lock for all.
    with preemption.listening(), files.locked(wait) if writes else contextlib.nullcontext():
        result = files.result()
        if result is not None:
            return result
        status = files.status()
        if status.state is member_store.State.FAILED:
            raise member_store.MemberError(
                f"Expected {files} to be trainable. Received: it failed at step {status.steps}: {status.reason}. "
                f"'tf-ensembles cifar10 train ... --retrain {config.member}' tries again"
            )
        training = Training(config, train_data, chosen, files if writes else None)
        try:
            training.resume(member_store.MemberFiles(store, config))
            training.run(checkpoint_seconds, progress)
            return training.finish(test_data, keep_weights, wrong_labels)
        except tf.errors.OpError as error:
            if (workers := member_engine.num_workers(chosen)) == 1:
                raise
            said = str(error.message).partition("aborted by:")
            reason = f"{type(error).__name__}: {(said[2] or said[0]).strip().splitlines()[0]}"[:300]
            raise WorkersLostError(
                f"Expected all {workers} workers of $TF_CONFIG to stay. Received: another has gone while member "
                f"{config.member} was at step {training.step} ({reason}). Start the same command on all again, or on "
                f"others in their place: it goes on from the last checkpoint in {store}"
            ) from error


class WorkersLostError(ConnectionError):
    """Another process of a training that several do together has gone."""


class Training:
    """The training of one member."""

    def __init__(
        self,
        config: MemberConfig,
        data: ImageData,
        strategy: tf.distribute.Strategy,
        files: member_store.MemberFiles | None,
    ) -> None:
        self._config, self._data, self._files = config, data, files
        self.engine = member_engine.get_engine(member_engine.make_shape(config, data), strategy)
        self.engine.start(config.seed, config.member)
        if config.prior_scale:
            self.engine.prior.start(draws.key(config.seed, draws.Purpose.PRIOR), config.member)
        self._step = 0
        self._last_losses = np.zeros(0, np.float32)  # of the epoch under way or just completed
        words = [config.seed, config.member, draws.Purpose.IMAGE_ORDER_SEED.stream]
        entropy = np.random.SeedSequence(words).generate_state(1, np.uint64)
        self._order_seed = int(entropy[0] >> np.uint64(1))
        self._known_order = -1, np.zeros(0, np.int64)  # an epoch and its order
        self._fingerprint = np.frombuffer(_fingerprint(data), np.uint8)
        with member_engine.at_home(strategy):
            self._tensors = self._make_tensors()

    def _make_tensors(self) -> member_engine.Tensors:
        config, data = self._config, self._data
        weights = tf.ones([len(data)])
        if config.bootstrap_probability is not None:
            bernoulli = bootstrap.Bernoulli(config.bootstrap_probability)
            weights = bernoulli.weights(config.seed, data.ids, [config.member])[:, 0]
        # Without augmentation the prior sees each image once, not once per epoch.
        prior = np.zeros((len(data), data.num_classes), np.float32)
        if config.prior_scale and not config.augment:
            prior = self._scaled_prior(data)
        return member_engine.Tensors(
            tf.constant(data.images), tf.constant(data.labels), tf.constant(data.ids), weights, tf.constant(prior)
        )

    def _scaled_prior(self, data: ImageData) -> NDArray[np.float32]:
        return np.float32(self._config.prior_scale) * self.engine.prior.predict(data.images)

    def resume(self, files: member_store.MemberFiles) -> None:
        """Continues from the last checkpoint, if there is one."""
        checkpoint = files.load_checkpoint()
        if checkpoint is not None:
            self._restore(files, *checkpoint)
        elif self._files is not None:
            self._files.begin()
        check_agreement(self.engine.strategy, self._step)

    def _restore(self, files: member_store.MemberFiles, step: int, arrays: member_store.Arrays) -> None:
        if not np.array_equal(arrays["fingerprint"], self._fingerprint):
            raise member_store.MemberError(
                f"Expected the training data that {files} began with. Received: data with another content. "
                f"'tf-ensembles cifar10 train ... --retrain {self._config.member}' begins anew"
            )
        # Another setting rounds differently.
        now, began = self.engine.setting, settings.from_json(str(arrays["setting"]))
        if now != began:
            raise member_store.MemberError(
                f"Expected {files} to go on as it began, with {began.against(now)}. Received: {now.against(began)}, "
                f"which rounds differently. {began.way_back(now)} lets it go on, "
                f"'tf-ensembles cifar10 train ... --retrain {self._config.member}' begins anew"
            )
        self.engine.restore(arrays)
        self._step, self._last_losses = step, arrays["losses"]

    def run(self, checkpoint_seconds: float, progress: Callable[[int, float], object] | None) -> None:
        """Makes all steps that are left."""
        config, engine, saved_at = self._config, self.engine, time.monotonic()
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
            if self._step == config.num_steps:
                return
            if self._files is not None and (now - saved_at >= checkpoint_seconds or preemption.is_asked()):
                self._files.save_checkpoint(self._step, {**engine.state(), **self._notes()})
                saved_at = time.monotonic()
            if preemption.is_asked():
                raise preemption.Preempted(f"member {config.member} is kept up to step {self._step}")

    @property
    def step(self) -> int:
        """How many steps have been made."""
        return self._step

    def _notes(self) -> member_store.Arrays:
        """Returns what a checkpoint holds beside the engine's state."""
        return {
            "losses": self._last_losses,
            "fingerprint": self._fingerprint,
            "setting": np.asarray(self.engine.setting.to_json()),
        }

    def _plan(self, count: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns rows `[steps, batch]`, epochs `[steps]` and learning rates `[steps]` of the next steps."""
        per_epoch, batch = self._config.steps_per_epoch, self._config.batch
        steps = np.arange(self._step, self._step + count)
        epochs = steps // per_epoch
        rows = np.empty((count, batch), np.int64)
        for epoch in np.unique(epochs).tolist():
            batches = self._order(epoch)[: per_epoch * batch].reshape(per_epoch, batch)
            rows[epochs == epoch] = batches[steps[epochs == epoch] % per_epoch]
        rates = [self._config.rate(epoch) for epoch in epochs.tolist()]
        return tf.constant(rows), tf.constant(epochs, tf.int64), tf.constant(rates, tf.float32)

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if self._known_order[0] != epoch:  # A long epoch takes many calls.
            rows = image_data.epoch_order(self._data.ids, seed=self._order_seed, epoch=epoch)
            self._known_order = epoch, rows
        return self._known_order[1]

    def _advance(self, losses: NDArray[np.float32]) -> None:
        """Counts the steps and keeps the losses of the last epoch."""
        per_epoch = self._config.steps_per_epoch
        self._last_losses = np.concatenate([self._last_losses, losses])
        self._step += len(losses)
        self._last_losses = self._last_losses[-(self._step % per_epoch or per_epoch) :]

    def _adapt(self, seconds: float) -> None:
        """Chooses the steps of the next call by the time that this one took."""
        engine = self.engine
        if member_engine.num_workers(engine.strategy) > 1:
            return
        if seconds < _CALL_SECONDS / 2:
            engine.steps_per_call = min(2 * engine.steps_per_call, engine.most_steps_per_call)
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

    def _predict(self, data: ImageData) -> NDArray[np.float32]:
        logits = self.engine.predict(data.images)
        return logits + self._scaled_prior(data) if self._config.prior_scale else logits

    def finish(self, test_data: ImageData, keep_weights: bool, wrong_labels: ImageData | None) -> dict[str, Any]:
        """Predicts the test set, writes the member's files and returns its scalars."""
        logits = self._predict(test_data)
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
            "setting": self.engine.setting.to_json(),
        }
        if wrong_labels is not None:
            result["wrong_labels_fit"] = float(
                np.mean(self._predict(wrong_labels).argmax(axis=1) == wrong_labels.labels)
            )
        if self._files is not None:
            weights = self.engine.weights(self._config.prior_scale > 0.0) if keep_weights else None
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


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes files."""
    if member_engine.num_workers(strategy) == 1:
        return True
    resolver = strategy.cluster_resolver
    if "chief" in resolver.cluster_spec().as_dict():
        return resolver.task_type == "chief"
    return resolver.task_id == 0


def check_agreement(strategy: tf.distribute.Strategy, step: int) -> None:
    """Waits for all workers, and raises unless they continue from the same step."""
    if member_engine.num_workers(strategy) == 1:
        return
    total = strategy.reduce("SUM", strategy.run(lambda: tf.constant(step, tf.float32)), axis=None)
    if float(total) != step * strategy.num_replicas_in_sync:
        raise ValueError(
            f"Expected a store that all workers share. Received: this one continues from step {step}, others do not"
        )
