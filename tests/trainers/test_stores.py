"""Places: a folder and an object store keep the same promises."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.member_process import make_config, make_data, read_members
from tests.needs import needs
from tests.trainers.sweeps import test_sweep
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.sweeps import store as sweep_store

ROOT = pathlib.Path(__file__).parents[2]
ADDRESS = "memory://tests/members"


@pytest.fixture(autouse=True)
def _clean(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield
    if "fsspec" in sys.modules:
        sys.modules["fsspec"].filesystem("memory").store.clear()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Makes this process another machine, with a cache of its own."""

    def move(name="elsewhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    return move


@pytest.fixture(params=["folder", pytest.param("objects", marks=needs("fsspec"))])
def root(request, tmp_path):
    return tmp_path / "members" if request.param == "folder" else ADDRESS


def _objects():
    import fsspec

    return fsspec.filesystem("memory").store


def test_files_are_found_as_they_were_committed(root, elsewhere):
    place = stores.place(root, "one")
    place.fetch("a.json")
    assert not (place.folder / "a.json").exists()
    for content in ("first", "second"):
        with place.claimed():
            (place.folder / "a.json").write_text(content)
            place.commit("a.json")
        elsewhere(content)
        other = stores.place(root, "one")
        for _ in range(2):
            other.fetch("a.json", "b.json")
            assert (other.folder / "a.json").read_text() == content
        assert other.names(".json") == ["a.json"]
    other.remove("a.json", "a.json")
    place.fetch("a.json")
    assert not (place.folder / "a.json").exists()
    assert place.names(".json") == []


def test_one_works_at_a_place_at_a_time(root):
    place = stores.place(root, "one")
    assert not place.is_claimed()
    with place.claimed():
        assert place.is_claimed()
        with pytest.raises(stores.BusyError, match="to be free"), stores.place(root, "one").claimed(wait=False):
            pass
        with stores.place(root, "two").claimed(wait=False):
            pass
    assert not place.is_claimed()


@needs("fsspec")
def test_a_claim_of_another_machine_holds_until_its_owner_is_lost(elsewhere, monkeypatch):
    claim = stores.place(ADDRESS, "one").claimed()
    claim.__enter__()
    elsewhere()
    place = stores.place(ADDRESS, "one")
    with pytest.raises(stores.BusyError), place.claimed(wait=False):
        pass
    monkeypatch.setattr(stores, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(stores, "LEASE_SECONDS", 0.1)
    started = time.monotonic()
    with place.claimed():
        assert time.monotonic() - started >= 0.1
        before = _objects()["/tests/members/one/claim"].getvalue()
        (place.folder / "a").write_text("a")
        place.commit("a")
        assert _objects()["/tests/members/one/claim"].getvalue() != before  # A sign of life.
        claim.__exit__(None, None, None)  # What is not its own, the lost one leaves alone when it comes back.
        assert "/tests/members/one/claim" in _objects()
    assert "/tests/members/one/claim" not in _objects()


@needs("fsspec")
def test_a_claim_of_a_process_of_this_machine_that_was_killed_is_void_at_once():
    claim = b'{"owner": "%s:1", "host": "here", "sign": "1"}' % stores.machine_name().encode()
    place = stores.place(ADDRESS, "one")
    place._store.pipe_file("tests/members/one/claim", claim)
    with place.claimed(wait=False):
        assert f":{os.getpid()}".encode() in _objects()["/tests/members/one/claim"].getvalue()  # It is ours now.
        place.check_claim()
    assert "/tests/members/one/claim" not in _objects()


@pytest.mark.parametrize("root", ["http://host/members", "s4://bucket", "memory://", "memory:/members"])
def test_an_unknown_address_is_an_error(root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="Expected a folder of this machine, or an address of s3://"):
        stores.place(root)
    assert not (tmp_path / root.partition(":")[0]).exists()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(stores.extras, "is_available", lambda package: False)
    with pytest.raises(ImportError, match=r"A store at gs:// needs gcsfs\. Install it with: .*\[cloud\]"):
        stores.place("gs://bucket/members")


# Members.

CONFIG = make_config()
LOGITS, LABELS = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros(2, np.int32)


def _finish(files):
    files.begin()
    files.finish({"steps": 16}, LOGITS, LABELS, {"w": np.ones(4)})


def test_a_member_goes_on_and_ends_on_other_machines(root, elsewhere):
    with (files := member_store.MemberFiles(root, CONFIG)).locked():
        files.begin()
        files.save_checkpoint(5, {"w": np.arange(3)})
    elsewhere()
    files = member_store.MemberFiles(root, CONFIG)
    assert files.status() == member_store.Status(member_store.State.PARTIAL, 5)
    checkpoint = files.load_checkpoint()
    np.testing.assert_array_equal(checkpoint[1]["w"], np.arange(3))
    with files.locked():
        _finish(files)
    elsewhere("third")
    files = member_store.MemberFiles(root, CONFIG)
    assert files.status(verify=True) == member_store.Status(member_store.State.FINISHED, 16)
    assert files.load_checkpoint() is None
    np.testing.assert_array_equal(files.predictions()[0], LOGITS)
    np.testing.assert_array_equal(files.weights()["w"], np.ones(4))
    assert files.result() == {"steps": 16}
    files.reset()
    elsewhere("fourth")
    assert member_store.MemberFiles(root, CONFIG).status().state is member_store.State.PARTIAL


@needs("fsspec")
@pytest.mark.parametrize("lost", [member_store.PREDICTIONS, member_store.WEIGHTS, member_store.RESULT])
def test_an_upload_that_was_cut_off_is_never_seen(lost, elsewhere, monkeypatch):
    files = member_store.MemberFiles(ADDRESS, CONFIG)
    send = type(files._place._store).pipe_file

    def cut_off(self, path, value, **options):
        if path.endswith(lost):
            raise ConnectionResetError("connection lost")
        return send(self, path, value, **options)

    files.begin()
    files.save_checkpoint(5, {"w": np.arange(3)})
    monkeypatch.setattr(type(files._place._store), "pipe_file", cut_off)
    with pytest.raises(OSError, match=r"Expected to use the store at memory://.* Received: .*connection lost"):
        _finish(files)
    monkeypatch.undo()
    elsewhere()
    files = member_store.MemberFiles(ADDRESS, CONFIG)
    assert files.status(verify=True) == member_store.Status(member_store.State.PARTIAL, 5)
    _finish(files)
    assert files.status(verify=True).state is member_store.State.FINISHED


@needs("fsspec")
@pytest.mark.parametrize("name", [member_store.PREDICTIONS, member_store.WEIGHTS, member_store.RESULT])
def test_a_damaged_object_is_known_by_its_checksum(name, elsewhere):
    files = member_store.MemberFiles(ADDRESS, CONFIG)
    _finish(files)
    path = f"/tests/members/{CONFIG.key}/{name}"
    content = bytearray(_objects()[path].getvalue())
    content[len(content) // 2] ^= 1
    files._place._store.pipe_file(path, bytes(content))
    elsewhere()
    assert member_store.MemberFiles(ADDRESS, CONFIG).status(verify=True).state is member_store.State.CORRUPT


# Results of sweeps.


def _rows(runs):
    return [{"id": run.id, "hash": run.hash, "kind": run.kind, "wall_seconds": 1.0, "y": 4.0} for run in runs]


def test_results_of_a_sweep_are_found_on_other_machines(root, elsewhere, monkeypatch):
    runs = test_sweep.squares(3)
    with sweep_store.Store(root, shared=True) as store:
        store.plan(runs)
        store.append(_rows(runs[:1]))
        elsewhere()
        if not isinstance(root, str):
            assert store.folder == root
        else:
            with pytest.raises(sweep_store.FolderInUseError, match="Expected memory://tests/members to be free"):
                sweep_store.Store(root)
            assert sweep_store.read_results(root) == []  # Not yet: whole files are sent from time to time.
            monkeypatch.setattr(sweep_store, "COMMIT_SECONDS", 0.0)
        store.append(_rows(runs[1:2]))
        assert [row["id"] for row in sweep_store.read_results(root)] == [run.id for run in runs[:2]]
    elsewhere("third")
    with sweep_store.Store(root, shared=True) as store:
        assert set(store.timings) == {run.hash for run in runs[:2]}
        store.append(_rows(runs))
        store.append([], [{**_rows(runs)[0], "error": "none"}])
    elsewhere("fourth")
    assert [row["id"] for row in sweep_store.read_results(root)] == [run.id for run in runs]
    assert [run.id for run in sweep_store.read_plan(root)] == [run.id for run in runs]
    assert len(sweep_store.read_failures(root)) == 1


@needs("fsspec")
def test_a_writer_that_was_thought_lost_does_not_write_over_what_came_after(elsewhere, monkeypatch):
    runs = test_sweep.squares(2)
    first = sweep_store.Store(ADDRESS)
    elsewhere()
    monkeypatch.setattr(stores, "LEASE_SECONDS", 0.0)
    stores.place(ADDRESS)._remove(stores.CLAIM)
    with sweep_store.Store(ADDRESS) as second:
        second.append(_rows(runs[1:]))
        first.append(_rows(runs[:1]))
        with pytest.raises(stores.StoreError, match="Expected to be the only one at memory://"):
            first.close()
    assert [row["id"] for row in sweep_store.read_results(ADDRESS)] == [runs[1].id]


# A server that speaks S3, on loopback. It needs moto and s3fs, which nothing else here does.


@pytest.fixture
def s3(tmp_path, monkeypatch):
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with (tmp_path / "moto.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)
    try:
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None
            time.sleep(0.1)
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True).mkdir("tests")
        yield "s3://tests/members"
    finally:
        process.terminate()
        process.wait(timeout=30)


def _command(folder, store, cache, *options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    environment |= {"XDG_CACHE_HOME": str(folder / cache), "TF_NUM_INTRAOP_THREADS": "1"}
    command = [
        sys.executable,
        "-P",
        "-m",
        "tf_ensembles.benchmarks.commands.main",
        "cifar10",
        *options,
        "--store",
        store,
    ]
    return subprocess.Popen(
        [*map(str, command)], env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def _said(process, code=0):
    said, errors = process.communicate(timeout=500)
    assert process.returncode == code, errors
    return said


@pytest.mark.slow  # 90 s
def test_members_in_s3_are_those_of_a_folder_whatever_happens_to_who_trains_them(s3, tmp_path):
    """Two machines share the members of one store; one of them is taken away, and its member goes on elsewhere."""
    train, test = make_data(30), make_data(24, seed=1)
    arrays = dict(x_train=train.images, y_train=train.labels, x_test=test.images, y_test=test.labels)
    np.savez(tmp_path / "small.npz", **arrays)
    small = ("--num-train", 20, "--width", 0.05, "--batch-size", 10, "--learning-rate", 0.001, "--members", 4)
    options = ("train", "--arrays", tmp_path / "small.npz", *small, "--epochs", 600, "--name", "small")
    first = _command(tmp_path, s3, "first", *options)
    deadline = time.monotonic() + 100.0
    while not list((tmp_path / "first").rglob(member_store.CONFIG)) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(4.0)  # Tracing, and some steps.
    first.send_signal(signal.SIGTERM)
    _said(first, 128 + signal.SIGTERM)
    assert "of 2400 epochs" in _said(_command(tmp_path, s3, "other", "status"))
    both = [_command(tmp_path, s3, name, *options) for name in ("second", "third")]
    trained = [_said(process) for process in both]
    assert all("4 of 4 members finished" in said for said in trained)
    _said(_command(tmp_path, tmp_path / "near", "near", *options))
    assert "small: 4 of 4 members finished" in _said(_command(tmp_path, s3, "fourth", "status", "--verify"))
    scores = [_said(_command(tmp_path, store, "fifth", "evaluate")) for store in (s3, tmp_path / "near")]
    assert scores[0] == scores[1]
    os.environ["XDG_CACHE_HOME"] = str(tmp_path / "sixth")  # The fixture takes it back.
    for near in read_members(tmp_path / "near"):
        far = member_store.MemberFiles(s3, near.config)
        for name, value in near.weights().items():
            np.testing.assert_array_equal(far.weights()[name], value)
