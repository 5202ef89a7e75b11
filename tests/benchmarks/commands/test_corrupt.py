"""Corrupt input ends in success, or in one line and exit code 2: a fixed corpus, and the generator that found it."""

from __future__ import annotations

import os
import time

import pytest

from tests import corruption

# Seeds of `python -m tests.corruption` that gave a traceback, a wait without end or more than one line at some time,
# and some that stand for kinds of damage.
SEEDS = (11, 12)
NO_MODELS = {
    "garbage": b"garbage",
    "empty": b"",
    "half an archive": b"PK\x03\x04" + b"\0" * 100,
    "an archive without anything": b"PK\x05\x06" + b"\0" * 18,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return corruption.make_world(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("index", range(14))
def test_corrupt_files_end_in_one_line(world, index):
    for seed in SEEDS[:1] if world[index][0][0] in ("report", "bandit", "assess") else SEEDS:  # They take a second.
        path, how, code, wrong, err = corruption.try_one(world[index], 100 * seed + index)
        assert wrong is None, (seed, path, how, code, err)


@pytest.mark.parametrize("name", NO_MODELS)
def test_what_is_no_model_is_said_to_be_none(tmp_path, name):
    path = tmp_path / "model.keras"
    path.write_bytes(NO_MODELS[name])
    code, _, err = corruption.call(["export", path, tmp_path / "saved"])
    assert code == 2
    assert err.count("\n") == 1
    assert str(path) in err
    assert "not found" not in err.lower()


def test_pipes_are_not_waited_for(world, tmp_path):
    for arguments, paths in world:
        path = paths[0]
        kept = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        try:
            code, _, err = corruption.call(arguments)
            assert corruption.verdict(code, err) is None, (arguments, code, err)
        finally:
            path.unlink()
            path.write_bytes(kept)


def test_a_number_of_members_that_nobody_has_is_refused(world):
    arguments, paths = world[4]
    (path,) = [path for path in paths if path.name == "both.json"]
    kept = path.read_text()
    path.write_text(kept.replace('"num_members": 2', '"num_members": 1000000000000000000000'))
    try:
        code, _, err = corruption.call(arguments)
        assert (code, err.count("\n")) == (2, 1)
        assert "at most 100,000 members" in err
    finally:
        path.write_text(kept)


@pytest.mark.slow
def test_the_generator_finds_nothing(world):
    seed, deadline = 10**9, time.monotonic() + 60.0
    while time.monotonic() < deadline:
        seed += 1
        path, how, code, wrong, err = corruption.try_one(world[seed % len(world)], seed)
        assert wrong is None, (seed, path, how, code, err)
