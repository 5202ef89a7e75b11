"""Backups of a training: whole after a kill at any moment, checked before they are used, and to the same weights."""

from __future__ import annotations

import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import warnings

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests.needs import CHECKOUT
from tf_ensembles import files

ROOT = pathlib.Path(__file__).parents[3]


def make_data():
    chance = np.random.default_rng(0)
    return chance.normal(size=(40, 4)).astype(np.float32), chance.integers(0, 3, 40)


def fit(backup, epochs=6, width=8, **options):
    """Trains a new ensemble, as a process that was started again does; returns it."""

    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(3)])

    model = tfe.Ensemble(build, 3, bootstrap=tfe.Bernoulli(0.5), seed=0)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    callbacks = [] if backup is None else [backup]
    model.fit(*make_data(), batch_size=10, epochs=epochs, verbose=0, callbacks=[*callbacks, *options.pop("then", ())])
    return model


class Crash(keras.callbacks.Callback):
    def __init__(self, at):
        super().__init__()
        self._at = at

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self._at:
            raise RuntimeError("power cut")


def assert_same_weights(one, other):
    for value, expected in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(value, expected)


def crash(folder, at, **options):
    with pytest.raises(RuntimeError, match="power cut"):
        fit(tfe.BackupAndRestore(folder, **options), then=[Crash(at)])


def test_a_cut_training_ends_with_the_weights_of_one_that_was_not(tmp_path):
    folder = tmp_path / "backup"
    crash(folder, 2)
    crash(folder, 4)
    epochs = []
    count = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(epoch))
    model = fit(tfe.BackupAndRestore(folder), then=[count])
    assert epochs == [4, 5]
    assert not folder.exists()
    assert_same_weights(model, fit(None))
    model.fit(*make_data(), epochs=2, verbose=0, callbacks=[count])  # Another `fit` begins at its first epoch.
    assert epochs == [4, 5, 0, 1]


@pytest.mark.parametrize("double", [False, True])
def test_a_damaged_backup_is_not_used(tmp_path, double):
    crash(tmp_path, 3, double_checkpoint=double)
    path = tmp_path / "latest" / "model.weights.h5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    said = "Training goes on after epoch 2" if double else "Training begins anew"
    with pytest.warns(UserWarning, match=f"Received: model.weights.h5, which does not match its checksum. {said}"):
        model = fit(tfe.BackupAndRestore(tmp_path, double_checkpoint=double))
    assert_same_weights(model, fit(None))


def test_files_of_others_stay_and_batches_are_counted(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    saved = []
    backup = tfe.BackupAndRestore(tmp_path, save_freq=6, delete_checkpoint=False)
    save = backup._save
    backup._save = lambda: saved.append((backup._epoch, backup._batches)) or save()
    fit(backup, epochs=4)
    assert saved == [(1, 2), (2, 4)]  # after 6 and 12 of 16 batches: whole epochs, and batches of the next
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt", "latest"}
    fit(tfe.BackupAndRestore(tmp_path), epochs=4)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.txt"}


@pytest.mark.parametrize("frequency", [0, -1, False, 1.5, "batch"])
def test_arguments_are_checked(tmp_path, frequency):
    with pytest.raises(ValueError, match=r"Expected save_freq 'epoch', or a number of batches >= 1\. Received: "):
        tfe.BackupAndRestore(tmp_path, save_freq=frequency)
    with pytest.raises(ValueError, match="Expected a folder of this machine"):
        tfe.BackupAndRestore("gs://bucket/backup")
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="Expected a model that is built before `fit`"):
        model.fit(np.ones((4, 2)), np.ones(4), verbose=0, callbacks=[tfe.BackupAndRestore(tmp_path)])


class Numbers:
    """A model whose weights are its epoch, many times: it takes a while to write, and a part of it can be told."""

    built, optimizer = True, None

    def __init__(self):
        self.epoch = 0

    def save_weights(self, filepath, overwrite=True):
        with pathlib.Path(filepath).open("wb", buffering=0) as file:
            for _ in range(300):
                file.write(np.full(100, self.epoch).tobytes())

    def load_weights(self, path):
        values = np.frombuffer(pathlib.Path(path).read_bytes(), int)
        if len(values) != 30_000 or len(set(values)) != 1:
            raise OSError("a part of the weights")
        self.epoch = int(values[0])


def test_a_kill_at_any_moment_leaves_a_whole_backup(tmp_path):
    chance, last = random.Random(0), 0
    for _ in range(40):
        child = os.fork()
        if child == 0:  # Saves until it is killed. No TensorFlow here.
            backup = tfe.BackupAndRestore(tmp_path)
            backup.set_model(model := Numbers())
            for epoch in range(last, 1_000_000):
                model.epoch = epoch + 1
                backup.on_epoch_end(epoch)
        time.sleep(chance.uniform(0.005, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        backup = tfe.BackupAndRestore(tmp_path)
        backup.set_model(model := Numbers())
        with warnings.catch_warnings(action="error"):
            backup.on_train_begin()
        assert model.epoch == getattr(model, "_initial_epoch", 0)  # Weights and number are of one epoch.
        assert model.epoch >= last
        last = model.epoch
    assert last > 10  # Children come to save, also where the machine is busy.


@pytest.mark.slow  # minutes: sixteen processes that import TensorFlow
@pytest.mark.skipif(not CHECKOUT, reason="a process of its own")
def test_fit_starts_again_after_every_kill_and_ends_with_the_same_weights(tmp_path):
    script = f"""
import sys
from {__name__} import *
model = fit(tfe.BackupAndRestore({str(tmp_path / "backup")!r}), epochs=400, width=300)
np.savez({str(tmp_path / "weights.npz")!r}, *model.get_weights())
"""
    chance, kills = random.Random(0), 0
    while not (tmp_path / "weights.npz").exists():
        process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if kills < 15:
            deadline = time.monotonic() + 120.0
            before = _epoch(tmp_path)
            while _epoch(tmp_path) <= before and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 0.3))
            process.kill()
            kills += 1
        errors = process.communicate()[1]
        assert process.returncode in (0, -signal.SIGKILL), errors[-3000:]
    assert kills == 15
    with np.load(tmp_path / "weights.npz") as archive:
        for value, expected in zip(archive.values(), fit(None, epochs=400, width=300).get_weights(), strict=True):
            np.testing.assert_array_equal(value, expected)


def _epoch(folder):
    """Of the last backup."""
    try:
        return files.read_json(folder / "backup" / "latest" / "training.json")[0]["epoch"]
    except OSError:
        return 0
