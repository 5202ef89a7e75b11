"""oneDNN: our command and workers ask for it, their users decide, the library does neither."""

import os
import subprocess
import sys

import pytest

from tf_ensembles.trainers import onednn
from tf_ensembles.trainers.sweeps import engines, worker


@pytest.fixture
def fresh(monkeypatch):
    """A process that has not imported TensorFlow."""
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr(onednn, "_preferred", False)


@pytest.mark.parametrize("on", [True, False])
def test_preferred_unless_the_user_has_decided(fresh, monkeypatch, on):
    monkeypatch.setattr(onednn, "is_on", lambda: on)
    state = "on" if on else "off"
    assert onednn.explain() == f"{state}: TensorFlow's choice for this processor"
    monkeypatch.setenv(onednn.VARIABLE, str(int(on)))
    onednn.prefer()
    assert onednn.explain() == f"{state}: TF_ENABLE_ONEDNN_OPTS={int(on)} in the environment"
    assert onednn.variables() == {onednn.VARIABLE: str(int(on))}


def test_preferred_by_our_own_processes(fresh, monkeypatch):
    assert onednn.variables() == {onednn.VARIABLE: "1"}
    monkeypatch.setenv(onednn.VARIABLE, "")  # To be restored after the test.
    monkeypatch.delenv(onednn.VARIABLE)
    onednn.prefer()
    assert os.environ[onednn.VARIABLE] == "1"
    monkeypatch.setattr(onednn, "is_on", lambda: True)
    assert onednn.explain().startswith("on: this command's choice")
    monkeypatch.setattr(onednn, "is_on", lambda: False)
    assert onednn.explain().startswith("off: whatever TF_ENABLE_ONEDNN_OPTS says")


def test_not_once_tensorflow_is_there(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    onednn.prefer()
    assert onednn.VARIABLE not in os.environ


def _environment(**variables):
    return {**{name: value for name, value in os.environ.items() if name != onednn.VARIABLE}, **variables}


def test_the_library_leaves_the_environment_alone():
    code = (
        "import os, tf_ensembles, tf_ensembles.trainers.images.training; tf_ensembles.Ensemble; print(dict(os.environ))"
    )
    output = subprocess.run([sys.executable, "-c", code], env=_environment(), capture_output=True, check=True).stdout
    assert onednn.VARIABLE.encode() not in output


@pytest.mark.parametrize(("value", "expected"), [(None, "1"), ("0", "0")])
def test_workers_of_a_sweep(monkeypatch, value, expected):
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(onednn.VARIABLE, value)
    started = {}

    class Process:
        def __init__(self, command, env, **options):
            started.update(env)

    monkeypatch.setattr(subprocess, "Popen", Process)
    engines._Worker().connection.close()
    assert started[onednn.VARIABLE] == expected


def test_rows_tell_what_they_were_computed_by(monkeypatch):
    import tensorflow as tf

    facts = worker._computing()
    assert facts == {"onednn": onednn.is_on(), "threads": facts["threads"]}
    chosen = tf.config.threading.get_intra_op_parallelism_threads()
    assert facts["threads"] == chosen or chosen == 0
    monkeypatch.delitem(sys.modules, "tensorflow")
    assert worker._computing() == {}  # A run without TensorFlow does not import it to say so.


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "line"), [({}, "this command's choice"), ({onednn.VARIABLE: "0"}, "off: TF_")])
def test_info_tells(variables, line):
    command = [sys.executable, "-m", "tf_ensembles.benchmarks.commands.main", "info"]
    result = subprocess.run(command, env=_environment(**variables), capture_output=True, text=True, check=True)
    assert line in next(text for text in result.stdout.splitlines() if text.startswith("oneDNN"))
