"""Files appear whole or not at all, whatever happens to their writers; damage is told from content."""

import contextlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest

from tf_ensembles import files

# The calls that change what is on the disk, or may fail.
CALLS = [(os, name) for name in ("mkdir", "open", "rename", "replace", "fsync", "scandir", "listdir", "rmdir")]
CALLS += [(shutil, "rmtree"), (files.fcntl, "flock")]


def test_a_file_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "sub" / "table.csv"
    with files.atomic_path(path) as temporary:
        temporary.write_text("old")
        assert not path.exists()
        assert temporary.name == path.name
    with files.atomic_path(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def fail_half_way():
        with files.atomic_path(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def write_folder(path, content):
    with files.atomic_path(path) as temporary:
        temporary.mkdir()
        for name in ("a", "b"):
            (temporary / name).write_text(content)


def read_folder(path):
    """The one version that all files of a folder have."""
    contents = {(path / name).read_text() for name in ("a", "b")}
    assert len(contents) == 1, contents
    return contents.pop()


@pytest.fixture(params=["exchange", "no exchange"])
def exchange(request, monkeypatch):
    """Systems that can exchange two folders in one step, and those that cannot."""
    if request.param == "no exchange":
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    elif not sys.platform.startswith("linux"):
        pytest.skip("Linux only")
    return request.param


def test_a_folder_is_replaced_too(tmp_path, exchange):
    for content in ("old", "new"):
        write_folder(tmp_path / "folder", content)
    assert read_folder(tmp_path / "folder") == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]


def count_calls(monkeypatch, action):
    """Wraps the calls so that `action` is called with the number of each; returns how to ask for the count."""
    count = [0]

    def wrapping(function):
        def wrapped(*arguments, **options):
            count[0] += 1
            action(count[0])
            return function(*arguments, **options)

        return wrapped

    for owner, name in CALLS:
        monkeypatch.setattr(owner, name, wrapping(getattr(owner, name)))
    monkeypatch.setattr(files, "_exchange", wrapping(files._exchange))
    return lambda: count[0]


@pytest.mark.parametrize("error", [OSError(5, "made up"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("again", [False, True], ids=["once", "from then on"])
def test_a_folder_survives_an_error_at_every_call(tmp_path, exchange, error, again):
    """Old or new and whole at every instant afterwards, also where rolling back fails as well."""
    number = survived = 0
    while True:
        number += 1
        path = tmp_path / str(number) / "folder"
        write_folder(path, "old")

        def fail(count, limit=number):
            if count == limit or (again and count > limit):
                raise error

        with pytest.MonkeyPatch.context() as patch:
            calls = count_calls(patch, fail)
            try:
                write_folder(path, "new")
            except (OSError, KeyboardInterrupt):
                survived += 1
        if calls() < number:
            break
        files.recover(path)  # As the next writer does.
        assert read_folder(path) in ("old", "new")
    assert survived >= 4


def test_a_folder_survives_a_kill_at_every_call(tmp_path, exchange):
    number = killed = 0
    while True:
        number += 1
        path = tmp_path / str(number) / "folder"
        write_folder(path, "old")
        child = os.fork()
        if child == 0:
            count_calls(pytest.MonkeyPatch(), lambda count, limit=number: os._exit(9) if count == limit else None)
            try:
                write_folder(path, "new")
            finally:
                os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if exchange == "exchange":
            assert read_folder(path) in ("old", "new")  # At once: no writer has to come first.
        files.recover(path)
        assert read_folder(path) in ("old", "new")
        assert [one.name for one in path.parent.iterdir()] == ["folder"]
        if code == 0:
            break
        killed += 1
    assert killed >= 8


def test_two_writers_at_once_get_along(tmp_path, exchange):
    path = tmp_path / "folder"
    errors = []

    def write(content):
        for _ in range(80):
            try:
                write_folder(path, content)
            except Exception as error:
                errors.append(error)

    writers = [threading.Thread(target=write, args=(name,)) for name in ("one", "two")]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        if exchange == "exchange" and seen:
            assert path.is_dir()
        seen += path.is_dir()
    assert not errors
    assert read_folder(path) in ("one", "two")
    assert [one.name for one in tmp_path.iterdir()] == ["folder"]


def test_folders_of_other_names_and_users_are_left_alone(tmp_path):
    others = [".folder.backup01", ".folder.other.abcdefgh.tfe-new", ".folder.x.tfe-new"]
    for name in others:
        (tmp_path / name).mkdir()
    write_folder(tmp_path / "folder", "new")
    assert {one.name for one in tmp_path.iterdir()} == {"folder", *others}


def flips(data, count, seed=0):
    """Copies of some bytes, each with one of them changed."""
    chance = np.random.default_rng(seed)
    for _ in range(count):
        changed = bytearray(data)
        changed[chance.integers(len(data))] ^= int(chance.integers(1, 256))
        yield bytes(changed)


def test_flips_in_a_json_object_are_noticed():
    content = {"id": "a/b", "value": 0.1, "infinite": float("inf"), "nested": {"x": [1, None]}, "text": "ä\n"}
    for indent in (None, 1):
        text = files.seal(content, indent)
        assert files.unseal(text) == (content, True)
        assert files.unseal(text + b"\n") == (content, True)
        assert files.unseal(json.dumps(content).encode()) == (content, False)  # From before.
        assert json.loads(text) == {**content, "checksum": json.loads(text)["checksum"]}
        for changed in [*flips(text, 500), *(text[:end] for end in range(len(text)))]:
            with pytest.raises(files.DamagedError):
                files.unseal(changed)


@pytest.mark.parametrize("text", [b"", b"[1]", b"nan", b"1" * 5000, b"[" * 100_000, b'{"a": \xff}', b"\0"])
def test_what_is_no_json_object_says_so(text):
    with pytest.raises(files.DamagedError):
        files.unseal(text)


def test_flips_in_arrays_are_noticed(tmp_path):
    path = tmp_path / "arrays.npz"
    arrays = {"a": np.arange(12.0).reshape(3, 4), "step": np.asarray(7)}
    files.write_arrays(path, arrays)
    data = path.read_bytes()
    found, verified = files.read_arrays(path)
    assert verified
    with np.load(path) as plain:
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            np.testing.assert_array_equal(plain[name], array)
    for changed in [*flips(data, 300), *(data[:end] for end in range(0, len(data), 7))]:
        path.write_bytes(changed)
        with pytest.raises(files.DamagedError):
            files.read_arrays(path)
    np.savez(path, **arrays)
    assert not files.read_arrays(path)[1]


def test_damaged_arrays_from_before_checksums_raise_nothing_else(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, a=np.arange(12.0).reshape(3, 4), step=np.asarray(7))
    for changed in flips(path.read_bytes(), 300):
        path.write_bytes(changed)
        with contextlib.suppress(files.DamagedError):
            assert not files.read_arrays(path)[1]


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    code = f"from tf_ensembles import files; files.read_bytes({str(tmp_path / 'pipe')!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert "Received:" in result.stderr
    assert "a pipe" in result.stderr
    with pytest.raises(files.DamagedError, match="a folder"):
        files.read_bytes(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.read_bytes(tmp_path / "none")


@pytest.mark.parametrize("durable", [False, True])
def test_a_full_disk_names_the_file_that_was_written(tmp_path, durable):
    """A file that cannot grow stands for a full disk; the system's error names no file."""
    path, (before, most) = tmp_path / "picture.png", resource.getrlimit(resource.RLIMIT_FSIZE)
    path.write_bytes(b"old")

    def write():
        with files.atomic_path(path, durable=durable) as temporary, temporary.open("wb", buffering=0) as file:
            while True:
                file.write(b"new " * 100)

    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        with pytest.raises(OSError, match=re.escape(f"File too large: '{path}'")):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
    assert path.read_bytes() == b"old"
    with pytest.raises(FileNotFoundError, match="another"), files.atomic_path(path):
        (tmp_path / "another").read_bytes()  # An error that names a file keeps its name.
