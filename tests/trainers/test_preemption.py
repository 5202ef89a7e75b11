"""SIGTERM as a notice: what is under way is kept, and goes on to the same bits."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tests.member_process import make_data, read_members
from tf_ensembles.trainers import preemption
from tf_ensembles.trainers.images import store as member_store


def test_a_notice_is_noted_while_somebody_listens_and_handed_on_if_nobody_answered():
    heard = []

    def answer():
        with preemption.listening():
            signal.raise_signal(signal.SIGTERM)
            assert preemption.is_asked()
            raise preemption.Preempted

    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(preemption.Preempted):
            answer()
        assert (heard, preemption.is_asked()) == ([], False)
        with preemption.listening():
            signal.raise_signal(signal.SIGTERM)
        assert (heard, preemption.is_asked()) == ([signal.SIGTERM], False)
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_train_without_listening():
    before = signal.getsignal(signal.SIGTERM)  # Not always the default: Ray has a handler of its own.
    thread = threading.Thread(target=lambda: preemption.listening().__enter__())
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) == before


SMALL = ("--num-train", "20", "--width", "0.05", "--batch-size", "10", "--learning-rate", "0.001", "--members", "2")


@pytest.mark.slow  # 60 s
@pytest.mark.parametrize("how", [("--workers", "1"), ("--parallel", "members"), ()], ids=["worker", "devices", "here"])
def test_sigterm_to_the_command_keeps_what_its_members_have_learned(tmp_path, how):
    """Long before the first checkpoint of every twenty seconds is due."""
    train, test = make_data(30), make_data(24, seed=1)
    arrays = dict(x_train=train.images, y_train=train.labels, x_test=test.images, y_test=test.labels)
    np.savez(tmp_path / "small.npz", **arrays)
    epochs = 2000
    command = [sys.executable, "-P", "-m", "tf_ensembles.benchmarks.commands.main", "cifar10", "train", *SMALL, *how]
    command += ["--arrays", tmp_path / "small.npz", "--epochs", epochs, "--store"]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).parents[2]), "TF_NUM_INTRAOP_THREADS": "1"}

    def start(store):
        return subprocess.Popen(
            [*map(str, command), str(store)], env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )

    process = start(tmp_path / "again")
    deadline = time.monotonic() + 120.0
    while not list((tmp_path / "again").glob(f"*/{member_store.CONFIG}")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(8.0)  # Tracing, and some steps.
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM, errors
    steps = [files.status(verify=True).steps for files in read_members(tmp_path / "again")]
    assert 0 < sum(steps) < 2 * 2 * epochs, errors
    for store in ("again", "whole"):
        process = start(tmp_path / store)
        errors = process.communicate(timeout=500)[1]
        assert process.returncode == 0, errors
    for one, other in zip(*(read_members(tmp_path / store) for store in ("again", "whole")), strict=True):
        np.testing.assert_array_equal(one.predictions()[0], other.predictions()[0])
