"""`tf-ensembles cifar10`, on small arrays in the place of CIFAR10."""

import csv

import numpy as np
import pytest

import tf_ensembles as tfe
from tests.member_process import make_data, read_members
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.trainers.images import runs as member_runs
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images.config import MemberConfig

SMALL = ("--num-train", "20", "--width", "0.05", "--epochs", "2", "--batch-size", "10", "--learning-rate", "0.01")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    path = tmp_path_factory.mktemp("arrays") / "small.npz"
    train, test = make_data(30), make_data(24, seed=1)
    sort = np.argsort(test.labels)  # Sorted, as users' test sets may be.
    np.savez(path, x_train=train.images, y_train=train.labels, x_test=test.images[sort], y_test=test.labels[sort, None])
    return path


def call(*arguments):
    return cli.main(["cifar10", *map(str, arguments)])


@pytest.fixture(scope="module")
def store(arrays, tmp_path_factory):
    """An ensemble of three trained members."""
    folder = tmp_path_factory.mktemp("store")
    options = ("--agent", "ensemble-bp", "--members", 3, "--name", "small", "--prior-scale", 2)
    assert call("train", "--store", folder, "--arrays", arrays, *SMALL, *options) == 0
    return folder


def _members(store, count=3):
    members = read_members(store)
    assert len(members) == count
    return members


def test_training_says_both_batches_and_trains_what_was_asked(store, arrays, capsys):
    options = ("--agent", "ensemble-bp", "--members", 3, "--name", "small", "--prior-scale", 2)
    results = [(files.folder / member_store.RESULT).stat().st_mtime_ns for files in _members(store)]
    assert call("train", "--store", store, "--arrays", arrays, *SMALL, *options) == 0
    shown = capsys.readouterr().out
    assert "1 replica, a batch of 10 examples in all, 10 per replica, learning rate 0.01 at the start" in shown
    assert "3 of 3 members finished" in shown
    assert results == [(files.folder / member_store.RESULT).stat().st_mtime_ns for files in _members(store)]
    expected = MemberConfig(
        data=member_runs.arrays_name(str(arrays)), num_train=20, width=0.05, epochs=2, batch_size=10,
        learning_rate=0.01, prior_scale=2.0, bootstrap_probability=0.9,
    )  # fmt: skip
    assert _members(store)[0].config == expected
    # Another ensemble under the name of this one would be a mix of both.
    assert call("train", "--store", store, "--arrays", arrays, *SMALL, *options, "--epochs", 3) == 2
    assert "epochs=2 (now 3)" in capsys.readouterr().err


def test_scores_of_every_size(store, tmp_path, capsys):
    output = tmp_path / "scores.csv"
    assert call("evaluate", "--store", store, "--output", output) == 0
    assert "small: 3 members, 24 test images" in capsys.readouterr().out
    with output.open() as file:
        rows = list(csv.DictReader(file))
    logits = np.stack([files.predictions()[0] for files in _members(store)], axis=1)
    labels = _members(store)[0].predictions()[1]
    assert (np.diff(labels) < 0).any()  # No longer sorted.
    for row in rows:
        first = logits[:, : int(row["size"])]
        assert float(row["nll_marginal"]) == pytest.approx(tfe.metrics.marginal_nll(first, labels))
        assert float(row["nll_joint"]) == pytest.approx(tfe.metrics.dyadic_nll(first, labels))
    # The functions of sweep runs read the same files.
    fields = {name: value for name, value in _members(store)[0].config.to_dict().items() if name != "member"}
    place = {"store": str(store)}
    scores = member_runs.evaluate_ensemble({**fields, "num_members": 3}, **place)
    assert scores["nll_joint"] == pytest.approx(float(rows[2]["nll_joint"]))
    second = member_runs.evaluate_ensemble({**fields, "num_members": 1, "first_member": 1}, **place)
    assert second["accuracy"] == np.mean(logits[:, 1].argmax(axis=1) == labels)
    assert member_runs.train_member(_members(store)[2].config.to_dict(), **place)["steps"] == 4
    with pytest.raises(ValueError, match=r"Expected finished members.*1 of 4 that are not: member 3"):
        member_runs.evaluate_ensemble({**fields, "num_members": 4}, **place)


def test_the_export_computes_the_members(store, arrays, tmp_path):
    import tensorflow as tf

    assert call("export", "--store", store, tmp_path / "saved", "--members", 2) == 0
    signatures = tf.saved_model.load(str(tmp_path / "saved")).signatures
    assert set(signatures) == {"serving_default", "members", "sample", "uncertainty"}
    config = _members(store)[0].config
    images = member_runs.load_member_data(config, str(arrays))[1].images
    exported = signatures["members"](inputs=tf.constant(images, tf.float32))["logits"]
    expected = np.stack([files.predictions()[0] for files in _members(store)[:2]], axis=1)
    np.testing.assert_allclose(exported, expected, rtol=1e-3, atol=1e-3)


def test_a_corrupt_member_is_reported_and_retrained_alone(store, arrays, capsys):
    files = _members(store)
    broken, other = (files[1].folder / member_store.PREDICTIONS, files[2].folder / member_store.RESULT)
    before, untouched = broken.read_bytes(), other.stat().st_mtime_ns
    broken.write_bytes(before[:100])
    assert call("status", "--store", store) == 1
    shown = capsys.readouterr().out
    assert "small: 2 of 3 members finished" in shown
    assert "member 1: corrupt" in shown
    assert call("evaluate", "--store", store) == 2
    assert "member 1" in capsys.readouterr().err
    assert call("evaluate", "--store", store, "--finished-only") == 0
    shown = capsys.readouterr()
    assert "small: 2 members" in shown.out
    assert shown.err.startswith("member 1 is left out: corrupt (")
    assert "predictions.npz has 100 bytes instead of" in shown.err
    assert shown.err.count("\n") == 1
    options = ("--agent", "ensemble-bp", "--members", 3, "--name", "small", "--prior-scale", 2)
    assert call("train", "--store", store, "--arrays", arrays, *SMALL, *options) == 1
    assert "--retrain 1" in capsys.readouterr().out
    assert call("train", "--store", store, "--arrays", arrays, *SMALL, *options, "--retrain", 1) == 0
    assert broken.read_bytes() == before
    assert other.stat().st_mtime_ns == untouched
    assert call("status", "--store", store, "--verify") == 0
    assert "3 of 3 members finished, 6 of 6 epochs" in capsys.readouterr().out
    # Weights that nobody has read yet, and a result: found by --verify, trained again by --retry-failed.
    weights, result = files[0].folder / member_store.WEIGHTS, files[2].folder / member_store.RESULT
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-300] + bytes([whole[-300] ^ 1]) + whole[-299:])
    result.write_text(result.read_text().replace('"steps": ', '"steps": 1'))
    assert call("status", "--store", store, "--verify") == 1
    shown = capsys.readouterr().out
    assert "weights.npz is not what was written" in shown
    assert "a checksum that does not match" in shown
    assert call("train", "--store", store, "--arrays", arrays, *SMALL, *options, "--retry-failed") == 0
    assert weights.read_bytes() == whole
    assert call("status", "--store", store, "--verify") == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--agent", "vgg", "--members", "2"], "--members 1 for vgg. Received: 2"),
        (["train", "--agent", "ensemble-n", "--prior-scale", "3"], "--prior-scale with ensemble-p"),
        (["train", "--agent", "ensemble-p", "--bootstrap", "0.5"], "--bootstrap with ensemble-bp only"),
        (["train", "--strategy", "mirrored", "--workers", "2"], "--strategy auto or cpu with --workers"),
        (
            ["train", "--validation", "--num-train", "45001"],
            "num_train <= 45000 of cifar10-validation. Received: 45001",
        ),
        (["train", "--arrays", "missing.npz"], "Expected a file for --arrays. Received: missing.npz"),
        (["train", "--members", "2", "--retrain", "2"], r"members in \[0, 2\). Received: \[2\]"),
        (["train", "--strategy", "tpu"], "Expected a TPU: give --tpu NAME"),
        (["evaluate"], "Expected one ensemble in .* Received: none. Train one first"),
        (["export", "out", "--name", "other"], "Expected an ensemble of this empty store. Received: other"),
    ],
)
def test_mistakes_take_one_line(arguments, message, tmp_path, capsys, monkeypatch):
    import re

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TPU_NAME", raising=False)
    assert call(*arguments, "--store", tmp_path / "store") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_members_as_runs_of_a_sweep(engine, store, arrays, tmp_path, capsys):
    """Two workers give what one process gives, and report a member that diverges."""
    options = ("--agent", "ensemble-bp", "--members", 3, "--prior-scale", 2, "--workers", 2, "--engine", engine)
    assert call("train", "--store", tmp_path, "--arrays", arrays, *SMALL, *options) == 0
    for ours, theirs in zip(_members(store), _members(tmp_path), strict=True):
        # Another number of threads may sum in another order.
        np.testing.assert_allclose(theirs.predictions()[0], ours.predictions()[0], rtol=1e-2, atol=1e-2)
    if engine == "local":
        assert call("train", "--store", tmp_path, "--arrays", arrays, *SMALL, *options, "--learning-rate", "1e30") == 1
        assert "diverged" in capsys.readouterr().out


def test_members_that_another_process_trains_are_left_to_it(arrays, tmp_path, monkeypatch):
    from tf_ensembles.trainers.images import training

    calls, others = [], {0, 1}

    def train(config, *_, wait, **__):
        calls.append((config.member, wait))
        if config.member in others and not wait:
            raise member_store.MemberBusyError("busy")

    monkeypatch.setattr(training, "train", train)
    options = ("--store", tmp_path, "--arrays", arrays, *SMALL, "--members", 3)
    assert call("train", *options) == 0
    # Both others' are skipped, until there is nothing else to do; then one is waited for, and all is looked at again.
    first, last = [(0, False), (1, False), (2, False)], [(0, False), (1, False), (0, True), (1, False), (1, True)]
    assert calls == first + last


def test_a_busy_member_is_known(tmp_path):
    files = member_store.MemberFiles(tmp_path, MemberConfig(num_train=20))
    assert not files.is_busy()
    with files.locked():
        assert files.is_busy()
        with pytest.raises(member_store.MemberBusyError, match="another process trains it"), files.locked(wait=False):
            pass
    assert not files.is_busy()


@pytest.mark.parametrize("place", ["http://bucket/members", "s4://bucket/members", "memory:/members"])
def test_unknown_addresses_are_no_folders(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        call("status", "--store", place)
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"Received: {place}. Try" in said
    assert "Expected a folder of this machine, or an address of s3://" in said
    with pytest.raises(ValueError, match="Expected a folder of this machine, or an address of s3://"):
        member_store.MemberFiles(place, MemberConfig(num_train=20))
    assert not list(tmp_path.iterdir())
