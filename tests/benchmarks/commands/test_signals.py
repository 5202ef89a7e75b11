"""Signals: each command ends with 128 and the signal's number and says so in one line; so does what it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.needs import imported
from tests.soak import descendants
from tests.trainers.sweeps.test_faults import is_alive, wait_until
from tests.trainers.sweeps.test_sweep import ROOT
from tf_ensembles.benchmarks.commands import main as cli

imported("pandas")
imported("matplotlib")
imported("scipy")

LONG = ("--problems", "20000", "--tuning-problems", "20000", "--horizon", "5000", "--part", "500")
COMMANDS = {
    "bandit": ("bandit", *LONG),
    "sweep": ("sweep", "run", "figure_7", "--preset", "standard"),
    "linear": ("linear", "--preset", "standard"),
    "reproduce": ("reproduce", "--only", "F7", "--preset", "standard"),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
@pytest.mark.parametrize(
    "name", ["bandit", "reproduce", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sweep", "linear"))]
)
def test_the_exit_code_is_that_of_the_signal(tmp_path, name, number):
    words = ("-u", "-m", "tf_ensembles.benchmarks.commands.main", *COMMANDS[name], "--results", str(tmp_path / "new"))
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        wait_until(lambda: " to do in " in _read(tmp_path), 60.0)  # Workers are about to start.
        started = descendants(process.pid)
        if number == signal.SIGINT:  # As a terminal does, to all processes at a time.
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(30) == 128 + number, _read(tmp_path)
    said = (tmp_path / "log").read_text().splitlines()
    stopped = f"tf-ensembles {name}: stopped" + (" by SIGTERM" if number == signal.SIGTERM else "")
    assert len([line for line in said if line.startswith(stopped)]) == 1, said
    wait_until(lambda: not any(map(is_alive, started)), 10.0)


def _read(folder):
    """All that a command and the parts of it have printed."""
    return "".join(path.read_text() for path in (folder / "log", *folder.glob("new/logs/*.txt")))


def test_sigterm_ends_a_command_that_computes_no_runs_and_the_handler_is_given_back(monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("tf_ensembles.benchmarks.commands.info.run", lambda args: signal.raise_signal(signal.SIGTERM))
    assert cli.main(["info"]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "tf-ensembles info: stopped by SIGTERM\n"
    assert signal.getsignal(signal.SIGTERM) == before
