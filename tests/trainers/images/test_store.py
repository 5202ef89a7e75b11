"""The files of members: whole or not at all, and what is told about damaged ones."""

import os

import numpy as np
import pytest

from tests.member_process import read_members
from tests.tf_ensembles import test_files
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.images.store import MemberError, MemberFiles, State

LOGITS = np.random.default_rng(0).standard_normal((20, 3), dtype=np.float32)
LABELS = np.arange(20, dtype=np.int32) % 3
WEIGHTS = {**member_store.pack([np.ones((2, 2), np.float32), np.zeros(3, np.float32)], "model")}


def finished(folder, member=4, weights=WEIGHTS):
    files = MemberFiles(folder, MemberConfig(num_train=100, member=member))
    files.begin()
    files.finish({"steps": 400, "test_nll": 1.5}, LOGITS, LABELS, weights)
    return files


def test_life_of_a_member(tmp_path):
    files = MemberFiles(tmp_path, MemberConfig(num_train=100, member=4))
    assert files.status().state is State.ABSENT
    assert files.result() is None
    files.begin()
    assert files.status() == member_store.Status(State.PARTIAL, 0)
    assert files.load_checkpoint() is None
    files.save_checkpoint(7, {"model0": np.arange(3.0)})
    assert files.status() == member_store.Status(State.PARTIAL, 7)
    step, arrays = files.load_checkpoint()
    assert step == 7
    np.testing.assert_array_equal(arrays["model0"], np.arange(3.0))
    files = finished(tmp_path)
    assert files.status(verify=True) == member_store.Status(State.FINISHED, 400)
    assert files.result() == {"steps": 400, "test_nll": 1.5}
    logits, labels = files.predictions()
    np.testing.assert_array_equal(logits, LOGITS)
    np.testing.assert_array_equal(labels, LABELS)
    np.testing.assert_array_equal(member_store.unpack(files.weights(), "model")[1], np.zeros(3))
    assert files.load_checkpoint() is None
    assert [one.config for one in read_members(tmp_path)] == [files.config]
    files.reset()
    assert files.status().state is State.PARTIAL


def test_twelve_arrays_keep_their_order():
    arrays = [np.full(1, index) for index in range(12)]
    packed = {**member_store.pack(arrays, "model"), "model_other": np.zeros(1), "prior0": np.zeros(1)}
    assert [int(array[0]) for array in member_store.unpack(packed, "model")] == list(range(12))


def _flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_damage_is_noticed(tmp_path):
    files = finished(tmp_path)
    path = files.folder / member_store.PREDICTIONS
    _flip_a_byte(path)
    with pytest.raises(MemberError, match=r"member 4 .* to be whole\. Received: predictions.npz is not.*--retrain 4"):
        files.predictions()
    assert files.status().state is State.FINISHED  # A quick look does not read the file.
    assert files.status(verify=True).state is State.CORRUPT
    path.write_bytes(path.read_bytes()[:-10])
    assert files.status().state is State.CORRUPT
    with pytest.raises(MemberError, match="bytes instead of"):
        files.result()
    path.unlink()
    assert files.status().state is State.CORRUPT
    (files.folder / member_store.RESULT).write_text('{"steps": 4')
    assert files.status().state is State.CORRUPT


def test_flips_in_what_a_resume_trusts_are_noticed(tmp_path, caplog):
    """Of 7,500 in checkpoints 64 were silently read, of 400 in results 100, when they had no checksums."""
    files = finished(tmp_path)
    path = files.folder / member_store.RESULT
    for changed in test_files.flips(path.read_bytes(), 200):
        path.write_bytes(changed)
        assert files.status().state is State.CORRUPT
    files.reset()
    files.save_checkpoint(7, {"model0": np.arange(30.0), "losses": np.zeros(4)})
    path = files.folder / member_store.CHECKPOINT
    for changed in test_files.flips(path.read_bytes(), 200):
        path.write_bytes(changed)
        assert files.load_checkpoint() is None
        assert "begin anew" in files.status(verify=True).reason
    assert "damaged, so its training begins anew" in caplog.text
    files.fail(7, "diverged")
    path = files.folder / member_store.FAILURE
    for changed in test_files.flips(path.read_bytes(), 100):
        path.write_bytes(changed)
        assert files.status().reason.startswith("unknown")


def test_verify_looks_at_weights_and_results(tmp_path):
    files = finished(tmp_path)
    _flip_a_byte(files.folder / member_store.WEIGHTS)
    assert files.status().state is State.FINISHED
    status = files.status(verify=True)
    assert status.state is State.CORRUPT
    assert "weights.npz is not what was written" in status.reason


def test_a_pipe_in_the_place_of_a_file_is_no_file(tmp_path):
    files = finished(tmp_path)
    for name in (member_store.RESULT, member_store.CHECKPOINT, member_store.FAILURE):
        files.reset()
        os.mkfifo(files.folder / name)
        status = files.status(verify=True)
        assert "a pipe" in status.reason
        assert files.load_checkpoint() is None
        (files.folder / name).unlink()


def test_weights_are_optional_but_verified(tmp_path):
    with pytest.raises(MemberError, match=r"to have kept weights\.npz"):
        finished(tmp_path / "without", weights=None).weights()
    files = finished(tmp_path / "with")
    _flip_a_byte(files.folder / member_store.WEIGHTS)
    with pytest.raises(MemberError, match="to be whole"):
        files.weights()


def test_an_unfinished_member_has_no_predictions(tmp_path):
    files = MemberFiles(tmp_path, MemberConfig())
    with pytest.raises(MemberError, match=r"to be finished\. Received: absent"):
        files.predictions()


def test_failures_are_remembered(tmp_path):
    files = MemberFiles(tmp_path, MemberConfig())
    files.begin()
    files.save_checkpoint(3, {})
    files.fail(3, "diverged")
    assert files.status() == member_store.Status(State.FAILED, 3, "diverged")
    assert files.load_checkpoint() is None
