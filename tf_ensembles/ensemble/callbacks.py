"""Training one ensemble: each member's losses, divergence, early stopping, frozen members, and backups of a `fit`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import files
from tf_ensembles.base import Array
from tf_ensembles.ensemble import keras_private

# Within the folder of backups: the last one, and the one before; within a backup: weights and the epoch.
_LATEST, _PREVIOUS, _WEIGHTS, _STATE = "latest", "previous", "model.weights.h5", "training.json"


class StepCounter(keras.callbacks.Callback):
    """Keeps, in a variable, how many steps a model had taken when `fit` asked for batches. `fit` adds one itself.

    Args:
        every_epoch: whether batches are asked for at the start of each epoch, or once for all.
    """

    def __init__(self, every_epoch: bool) -> None:
        super().__init__()
        self._every_epoch = every_epoch
        self._begun = False
        self.first_step = tf.Variable(0, dtype=tf.int64, trainable=False)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts; not before the first epoch, since only then has every callback restored what it restores."""
        if self._every_epoch or not self._begun:
            self.first_step.assign(tf.cast(keras_private.steps_taken(self.model.optimizer), tf.int64))
            self._begun = True


class MemberMonitor(StepCounter):
    """Records each member's losses in `model.member_history` and takes diverged members out. `fit` adds one itself."""

    def __init__(self, every_epoch: bool = False) -> None:
        super().__init__(every_epoch)
        self._train: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Starts a new record."""
        self.model.member_history = {"loss": []}

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forgets the last epoch."""
        super().on_epoch_begin(epoch, logs)
        self._train = None

    def on_test_begin(self, logs: Any = None) -> None:
        """Keeps the training losses before validation resets them."""
        self._train = self.model.member_losses

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Appends the epoch's losses `[members]` and looks for members that diverged in it."""
        history = self.model.member_history
        if self._train is not None:
            history.setdefault("val_loss", []).append(self.model.member_losses)
        losses = self.model.member_losses if self._train is None else self._train
        history["loss"].append(losses)
        lost = np.flatnonzero(~np.isfinite(losses) & ~self.model.diverged)
        if lost.size == 0:
            return
        self.model.mark_diverged(lost)
        left = self.model.num_members - int(self.model.diverged.sum())
        warnings.warn(
            f"Members {lost.tolist()} diverged in epoch {epoch + 1} (loss {losses[lost[0]]}); "
            f"they are left out from now on, the other {left} go on.",
            stacklevel=2,
        )
        if left == 0:
            self.model.stop_training = True


def with_ours(callbacks: Any, ours: StepCounter, metrics: Mapping[str, Any]) -> Any:
    """Returns what a user gave to `fit` as callbacks, with ours among them.

    Args:
        callbacks: None, a callback, a list of them, or a `CallbackList`.
        ours: put first in a list, so that the user's callbacks find `member_history` up to date.
        metrics: our metrics by the names that they are reported under, by which Keras callbacks may go.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.insert(0, ours)
        callbacks.set_model(callbacks.model)
        return callbacks
    given = callbacks if isinstance(callbacks, list | tuple) else [callbacks] if callbacks else []
    _tell_direction(given, metrics)
    return [ours, *given]


def _tell_direction(callbacks: Sequence[Any], metrics: Mapping[str, Any]) -> None:
    """Tells Keras callbacks that monitor one of our metrics whether less is better: they look at Keras's own only."""
    modes = {name: "min" if keras_private.less_is_better(metric) else "max" for name, metric in metrics.items()}
    for callback in callbacks:
        name = str(getattr(callback, "monitor", "")).removeprefix("val_")
        if getattr(callback, "mode", None) == "auto" and name in modes:
            callback.mode = modes[name]


class MemberEarlyStopping(keras.callbacks.Callback):
    """Stops each member when its own loss has not improved for `patience` epochs, and training when all have stopped.

    Args:
        monitor: `"val_loss"` or `"loss"`, per member.
        patience: epochs without improvement.
        min_delta: what counts as an improvement.
        restore_best_weights: whether a stopped member goes back to its best epoch.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 0,
        min_delta: float = 0.0,
        restore_best_weights: bool = False,
    ) -> None:
        super().__init__()
        if monitor not in ("val_loss", "loss"):
            raise ValueError(f"Expected monitor in ['val_loss', 'loss']. Received: {monitor!r}")
        if patience < 0 or min_delta < 0:
            raise ValueError(f"Expected patience and min_delta >= 0. Received: {patience}, {min_delta}")
        self._monitor, self._patience, self._min_delta = monitor, patience, min_delta
        self._restore = restore_best_weights

    def on_train_begin(self, logs: Any = None) -> None:
        """Forgets earlier runs."""
        members = self.model.num_members
        self._best = np.full(members, np.inf)
        self._waited = np.zeros(members, int)
        self._best_weights: Snapshot | None = None
        self.stopped_epoch = np.full(members, -1)  # the epoch in which each member stopped, -1: it did not

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stops the members whose patience is over."""
        series = self.model.member_history.get(self._monitor)
        if not series:
            raise ValueError(f"Expected validation data to monitor {self._monitor!r}. Received: none")
        losses, running = series[-1], ~self.model.frozen
        improved = running & (losses < self._best - self._min_delta)
        self._best = np.where(improved, losses, self._best)
        self._waited = np.where(improved, 0, self._waited + running)
        if self._restore and self._best_weights is None:
            self._best_weights = Snapshot(self.model.owned_variables)
        if self._best_weights is not None:
            self._best_weights.keep(improved)
        stopping = np.flatnonzero(running & (self._waited > self._patience))
        if stopping.size:
            self.stopped_epoch[stopping] = epoch
            if self._best_weights is not None:
                self._best_weights.put_back(stopping)
            self.model.freeze_members(stopping)
        if self.model.frozen.all():
            self.model.stop_training = True


class BackupAndRestore(keras.callbacks.BackupAndRestore):
    """Keras's callback of this name, whose backups survive a kill at any moment: `fit` begins again at the last epoch.

    Keras writes weights in place, and the epoch into another file: a process that is killed meanwhile may leave a
    backup that cannot be read, or weights of one epoch with the number of another. Here a backup is a folder that
    appears whole or not at all, with a checksum. It works for any `keras.Model`.

    Args:
        backup_dir: a folder of this machine; backups are in `latest` and `previous` in it.
        save_freq: `"epoch"`, or a number of batches. As with Keras, an epoch that was stopped is begun again.
        double_checkpoint: whether to keep the backup before the last as well, which is used where that is damaged.
        delete_checkpoint: whether to remove backups when training is complete.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: str | int = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
    ) -> None:
        if save_freq != "epoch" and (isinstance(save_freq, bool) or not isinstance(save_freq, int) or save_freq < 1):
            raise ValueError(f"Expected save_freq 'epoch', or a number of batches >= 1. Received: {save_freq!r}")
        super().__init__(os.fspath(backup_dir), save_freq, double_checkpoint, delete_checkpoint)
        self._folder = files.local_path(backup_dir)
        self._epoch = self._batches = self._batches_unsaved = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Restores the last whole backup, if there is one."""
        if not self.model.built:
            raise ValueError("Expected a model that is built before `fit`, to restore it. Received: one that is not")
        damaged = ""
        for name in (_LATEST, _PREVIOUS):
            files.recover(self._folder / name)
            try:
                self._epoch = self._restore(self._folder / name)
            except FileNotFoundError:
                continue
            except files.DamagedError as error:
                damaged = f"Expected a whole backup in {self._folder / name}. Received: {error}. "
                continue
            break
        if damaged:
            begun = f"Training goes on after epoch {self._epoch}" if self._epoch else "Training begins anew"
            warnings.warn(f"{damaged}{begun}.", stacklevel=2)

    def _restore(self, folder: pathlib.Path) -> int:
        """Gives the model the weights of a backup, checked before; returns how many epochs it has seen."""
        state, _ = files.read_json(folder / _STATE)
        if files.checksum(folder / _WEIGHTS) != state.get("weights"):
            raise files.DamagedError(f"{_WEIGHTS}, which does not match its checksum")
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self.model.load_weights(folder / _WEIGHTS)
        keras_private.begin_at(self.model, int(state["epoch"]))
        return int(state["epoch"])

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Counts its batches from the first."""
        self._batches = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Backs up where so many batches are over; several may have been one call."""
        self._batches_unsaved += batch + 1 - self._batches
        self._batches = batch + 1
        if self.save_freq != "epoch" and self._batches_unsaved >= self.save_freq:
            self._save()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Backs up, unless batches are counted."""
        self._epoch = epoch + 1
        if self.save_freq == "epoch":
            self._save()

    def _save(self) -> None:
        self._batches_unsaved = 0
        latest = self._folder / _LATEST
        if self.double_checkpoint and latest.exists():
            with files.atomic_path(self._folder / _PREVIOUS) as temporary:
                shutil.copytree(latest, temporary)
        with files.atomic_path(latest) as temporary:
            temporary.mkdir()
            weights = temporary / _WEIGHTS
            self.model.save_weights(weights)
            with weights.open("rb") as file:
                os.fsync(file.fileno())
            files.write_json(temporary / _STATE, {"epoch": self._epoch, "weights": files.checksum(weights)})

    def on_train_end(self, logs: Any = None) -> None:
        """Removes backups, unless they are kept."""
        keras_private.begin_at(self.model, None)  # Or else the next `fit` would begin there.
        if not self.delete_checkpoint:
            return
        for name in (_PREVIOUS, _LATEST):
            (self._folder / name / _STATE).unlink(missing_ok=True)  # First: without it, there is no backup.
            shutil.rmtree(self._folder / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Marks:
    """Marks on members, kept in a variable of the model so that they are saved with it.

    Args:
        model: gets the variable.
        num_members: M.
        name: the variable's.
    """

    def __init__(self, model: keras.Model, num_members: int, name: str) -> None:
        self._variable = model.add_weight(shape=(num_members,), initializer="zeros", trainable=False, name=name)
        self._remembered = np.zeros(num_members, bool)

    def read(self) -> Array:
        """Returns which members are marked, `[members]` of bool."""
        return np.asarray(self._variable) > 0

    def add(self, indices: Sequence[int]) -> None:
        """Marks these members as well."""
        flags = np.array(self._variable)
        flags[np.asarray(indices, int)] = 1.0
        self._variable.assign(flags)

    def remember(self) -> None:
        """Keeps the marks for a step that is about to be compiled, where the variable cannot be read."""
        self._remembered = self.read()

    def in_step(self) -> Array:
        """Returns which members are marked, inside a step that may be compiled."""
        return self.read() if tf.executing_eagerly() else self._remembered


@contextlib.contextmanager
def frozen_members_kept(owned: Sequence[tuple[Any, int | None]], frozen: Array) -> Iterator[None]:
    """Puts the frozen members' part of the variables back, after a step, to what it was before it.

    Args:
        owned: variables, each with the member whose it is, or None: `[members, ...]`.
        frozen: which members are frozen, `[members]` of bool. Without any, nothing is read or written.
    """
    kept = [(variable, owner) for variable, owner in owned if (frozen.any() if owner is None else frozen[owner])]
    before = [tf.identity(variable.value) for variable, _ in kept]
    yield
    for (variable, owner), value in zip(kept, before, strict=True):
        is_frozen = tf.constant(frozen if owner is None else True)
        variable.assign(tf.where(_like(is_frozen, value), value, variable.value))


def _like(frozen: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """`[members]` in a shape that broadcasts against `[members, ...]`; a scalar as it is."""
    return tf.reshape(frozen, [-1, *([1] * (len(value.shape) - 1))]) if frozen.shape.rank else frozen


class Snapshot:
    """The variables of members at different times: each member's as they were when it was last kept."""

    def __init__(self, owned: Sequence[tuple[Any, int | None]]) -> None:
        self._owned = list(owned)
        self._values = [np.array(variable) for variable, _ in self._owned]

    def keep(self, members: Array) -> None:
        """Takes the present variables of these members, `[members]` of bool."""
        for place, (variable, owner) in enumerate(self._owned):
            if owner is None:
                self._values[place][members] = np.asarray(variable)[members]
            elif members[owner]:
                self._values[place] = np.array(variable)

    def put_back(self, members: Array) -> None:
        """Gives these members the variables that were kept."""
        for (variable, owner), kept in zip(self._owned, self._values, strict=True):
            if owner is None:
                value = np.array(variable)
                value[members] = kept[members]
                variable.assign(value)
            elif owner in members:
                variable.assign(kept)
