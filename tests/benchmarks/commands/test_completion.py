"""What shells complete: commands, options, values, files; as bash says itself."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import pytest

from tests.benchmarks.commands import parsers
from tests.needs import imported
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.commands import options

imported("shtab")


@pytest.fixture
def script(tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "script.bash").write_text(capsys.readouterr().out)
    return tmp_path / "script.bash"


def complete(script, *words):
    """What bash offers for the last of some words."""
    code = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=(tf-ensembles {shlex.join(words)}); "
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_tf_ensembles; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    return subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=True, cwd=script.parent
    ).stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_options_and_values(script):
    assert complete(script, "re") == ["reproduce", "report"]
    assert complete(script, "sweep", "")[:3] == ["run", "draw", "status"]
    assert complete(script, "linear", "--pre") == ["--preset"]
    assert complete(script, "linear", "--preset", "") == list(options.PRESETS)
    assert complete(script, "testbed", "--agents", "mlp", "ensemble-b") == ["ensemble-bp"]
    assert complete(script, "report", "--results", "f") == ["folder"]
    assert set(complete(script, "export", "f")) == {"folder", "file"}
    assert complete(script, "sweep", "run", "linear_b") == ["linear_bound"]
    assert complete(script, "reproduce", "--only", "lin") == ["linear"]
    assert "--help" in complete(script, "bandit", "replay", "--")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_every_option(shell, capsys):
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for parser in parsers.leaves().values():
        for word in parser._option_string_actions:
            assert (f"-l {word[2:]}" if shell == "fish" else word) in text or not word.startswith("--"), word
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True)


def test_without_shtab_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert "pip install 'tf-ensembles[completion]'" in capsys.readouterr().err
