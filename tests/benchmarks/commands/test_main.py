"""The command line: quick help, quiet output, one-line errors."""

import subprocess
import sys
import time

import pytest

from tests.needs import needs
from tf_ensembles.benchmarks.commands import main as cli


def _run(*arguments, code=None):
    command = (
        [sys.executable, "-c", code]
        if code
        else [sys.executable, "-m", "tf_ensembles.benchmarks.commands.main", *arguments]
    )
    return subprocess.run(command, capture_output=True, text=True)


def test_help_answers_without_tensorflow():
    """That of every command, and of its sub-commands; in one process, so that it takes a second."""
    code = """
import contextlib, io, sys
from tf_ensembles.benchmarks.commands import main as cli
from tests.benchmarks.commands import parsers
listed = [[]] + [name.split() for name in parsers.leaves()]
for words in listed:
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            cli.main([*words, '--help'])
        except SystemExit as end:
            assert end.code == 0, words
    assert said.getvalue().startswith(' '.join(['usage: tf-ensembles', *words])), words
heavy = {'tensorflow', 'keras', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules)
assert not heavy, heavy
print(len(listed))
"""
    result = _run(code=code)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == 1 + len(cli.COMMANDS) + 10


def test_help_is_far_below_a_second_of_work():
    start = time.process_time()
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nonsense"], "argument COMMAND: invalid choice: 'nonsense' (choose from "),
        (["testbed", "--input-dim", "ten"], "invalid int value: 'ten'"),
        (["testbed", "--input-dim", "0"], "Expected input_dim >= 1, an integer. Received: 0"),
        (["report", "no/such/folder"], "Received: no/such/folder"),
        (["export", "nothing.keras", "saved"], "does not exist"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_mistakes_end_in_one_line_and_exit_code_2(arguments, text):
    result = _run(*arguments)
    assert result.returncode == 2, result.stderr
    assert text in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_debug_shows_the_traceback():
    result = _run("report", "no/such/folder", "--debug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_info_is_quiet_and_tells_what_is_there():
    result = _run("info")
    assert result.returncode == 0
    assert result.stderr == ""
    for name in ("tensorflow", "keras", "tf-agents", "devices", "cores", "bandit", "ray engine", "CIFAR10 data", "npm"):
        assert f"\n{name}" in f"\n{result.stdout}"


@needs("tf_agents")
def test_no_banner_reaches_a_person_and_real_messages_do():
    code = """
import os, sys
from tf_ensembles.benchmarks.commands import quiet
with quiet.quiet():
    from tf_ensembles import legacy_keras
    legacy_keras.import_tf_agents()
    import tensorflow as tf
    tf.config.list_physical_devices()
    os.write(2, b"a message of a child process\\n")
    print("a message of ours", file=sys.stderr)
print("afterwards", file=sys.stderr)
"""
    lines = _run(code=code).stderr.splitlines()
    assert sorted(lines) == ["a message of a child process", "a message of ours", "afterwards"]


def test_version():
    result = _run("--version")
    assert result.stdout.startswith("tf-ensembles 0.")


def test_interrupt_ends_quietly(monkeypatch, capsys):
    from tf_ensembles.benchmarks.commands import info

    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "run", interrupted)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "tf-ensembles info: stopped\n"


def test_a_reader_that_has_seen_enough_is_no_error():
    command = f"{sys.executable} -m benchmarks.commands.main info --json | head -1; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert result.stdout == "{\n"
    assert result.stderr == ""
    assert result.returncode in (0, 141)  # The first where all was written before anybody stopped reading.
