"""What is loaded runs no code: hostile model files, results folders and arrays; see docs/security.md."""

from __future__ import annotations

import base64
import json
import marshal
import os
import pickle
import zipfile

import keras
import numpy as np
import pytest

from tests import corruption
from tf_ensembles import files
from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps import sweep


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "it-ran"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.keras"
    corruption._write_model(path)
    return path


class Evil:
    """Runs a command where it is unpickled."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def lambda_layer(command):
    def payload(x):
        import os

        os.system("COMMAND")
        return x

    code = payload.__code__.replace(
        co_consts=tuple(command if const == "COMMAND" else const for const in payload.__code__.co_consts)
    )
    text = base64.b64encode(marshal.dumps(code)).decode()
    function = {"class_name": "__lambda__", "config": {"code": text, "defaults": None, "closure": None}}
    return {"module": "keras.layers", "class_name": "Lambda", "config": {"name": "evil", "function": function}}


HOSTILE = {
    "lambda layer": lambda_layer,
    "function os.system": lambda c: {"module": "os", "class_name": "function", "config": "system"},
    "class of subprocess": lambda c: {"module": "subprocess", "class_name": "Popen", "config": {"args": c}},
    "exec of builtins": lambda c: {"module": "builtins", "class_name": "function", "config": "exec"},
    "partial": lambda c: {"module": "functools", "class_name": "partial", "config": {"func": "os.system", "args": [c]}},
    "module of the folder": lambda c: {"module": "evil_module", "class_name": "Evil", "config": {}},
    "registered name": lambda c: {"class_name": "os>system", "registered_name": "os>system", "config": c},
}  # fmt: skip


def rewrite(source, target, change):
    """Copies a .keras file with every layer that members are made of replaced."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, json.dumps(change(json.loads(data))) if name == "config.json" else data)


def replace_dense(content, evil):
    if isinstance(content, dict):
        if content.get("class_name") == "Dense":
            return evil
        return {name: replace_dense(value, evil) for name, value in content.items()}
    return [replace_dense(value, evil) for value in content] if isinstance(content, list) else content


@pytest.mark.parametrize("where", ["layer", "model", "loss"])
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_model_files_run_nothing(tmp_path, monkeypatch, marker, saved, name, where):
    (tmp_path / "evil_module.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\n")
    monkeypatch.chdir(tmp_path)
    evil = HOSTILE[name](f"touch {marker}")
    changes = {
        "layer": lambda config: replace_dense(config, evil),
        "model": lambda config: evil,
        "loss": lambda config: {**config, "compile_config": {**config["compile_config"], "loss": evil}},
    }
    path = tmp_path / "model.keras"
    rewrite(saved, path, changes[where])
    code, _, err = corruption.call(["export", path, tmp_path / "saved"])
    assert not marker.exists()
    assert (code, err.count("\n")) == (2, 1), err
    with pytest.raises(Exception):  # noqa: B017 - Keras raises many kinds.
        keras.saving.load_model(path)
    assert not marker.exists()


def test_a_results_folder_runs_nothing(tmp_path, marker):
    """Kinds and functions that a folder names are never looked up."""
    run = sweep.make_run("a", "os:system", {"x": f"touch {marker}"})
    with sweep_store.Store(tmp_path / "made_up-quick") as store:
        store.plan([run])
    row = {"id": "a", "hash": run.hash, "kind": "os:system", "config": run.config, **run.config}
    row |= {"function": "os:system", "wall_seconds": 1.0, "session": "s", "finished_at": "t"}
    (tmp_path / "made_up-quick" / "results.jsonl").write_text(json.dumps(row) + "\n")
    figure = ["tests.sweep_definition", "--results", tmp_path]
    for arguments in (["status", tmp_path / "made_up-quick"], ["run", *figure, "--dry-run"], ["draw", *figure]):
        corruption.call(["sweep", *arguments])
    assert corruption.call(["sweep", "run", *figure, "--workers", "1"])[0] == 0
    assert not marker.exists()


def test_arrays_and_checkpoints_are_not_unpickled(tmp_path, marker):
    evil = np.array([Evil(f"touch {marker}")], dtype=object)
    np.savez(tmp_path / "arrays.npz", x_train=evil, y_train=evil, x_test=evil, y_test=evil)
    for name in ("arrays.npz", "plain.npz"):
        if name == "plain.npz":
            (tmp_path / name).write_bytes(pickle.dumps(Evil(f"touch {marker}")))
        store = ["--store", tmp_path / "store"]
        code, _, err = corruption.call(["cifar10", "train", "--arrays", tmp_path / name, *store])
        assert (code, err.count("\n")) == (2, 1)
        with pytest.raises(files.DamagedError):
            files.read_arrays(tmp_path / name)
    assert not marker.exists()
