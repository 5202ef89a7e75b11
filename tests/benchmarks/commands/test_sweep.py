"""`tf-ensembles sweep`: run, continue, list, status, errors; through its module, as the command line calls it."""

from __future__ import annotations

import argparse
import json
import sys
import types

import pytest

from benchmarks.commands import sweep as sweep_command
from tests import sweep_definition
from trainers.sweeps import engines as sweep_engines
from trainers.sweeps import store as sweep_store
from trainers.sweeps import sweep

NAME = "tests.sweep_definition"


def call(*arguments):
    parser = argparse.ArgumentParser()
    sweep_command.add_arguments(parser)
    return sweep_command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_run_draws_and_continues(tmp_path, capsys):
    assert call("run", NAME, "--output", tmp_path, "--workers", 2) == 0
    output = capsys.readouterr().out
    assert "stage 1 of 2: 6 runs, 0 done, 6 to do" in output
    assert "from the measured time" in output
    assert "stage 2 of 2: 1 runs" in output
    assert "best is 5" in output
    assert json.loads((tmp_path / "made_up-quick" / "best.json").read_text()) == 5
    assert call("run", NAME, "--output", tmp_path) == 0
    assert "6 runs, 6 done, 0 to do" in capsys.readouterr().out
    assert call("draw", NAME, "--output", tmp_path, "--figures-to", tmp_path / "drawn") == 0
    assert (tmp_path / "drawn" / "best.json").exists()


def test_dry_run_lists_and_writes_nothing(tmp_path, capsys):
    assert call("run", NAME, "--output", tmp_path, "--dry-run") == 0
    output = capsys.readouterr().out
    assert "stage 1: 6 runs, 0 done" in output
    assert "todo  made_up/seed3" in output
    assert "depends on the stages before" in output
    assert not list(tmp_path.iterdir())


def test_time_limit_then_status_then_the_rest(tmp_path, capsys):
    folder = tmp_path / "made_up-quick"
    assert call("run", NAME, "--output", tmp_path, "--time-limit", 0.01, "--workers", 1) == 0
    assert "the same command continues" in capsys.readouterr().out
    done = len(sweep_store.read_results(folder))
    assert done < 6
    assert call("status", folder) == 0
    assert f"6 runs: {done} done, 0 failed, {6 - done} left" in capsys.readouterr().out
    assert call("run", NAME, "--output", tmp_path) == 0
    capsys.readouterr()
    assert call("status", folder) == 0
    assert "complete" in capsys.readouterr().out


def test_failures_show_in_code_and_status(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep_definition, "FUNCTION", "tests.sweep_functions:no_such")
    with pytest.raises(ValueError, match="nothing to choose from"):
        call("run", NAME, "--output", tmp_path)
    capsys.readouterr()
    call("status", tmp_path / "made_up-quick")
    assert "6 failed" in capsys.readouterr().out


def test_mistakes_say_so(tmp_path):
    with pytest.raises(ValueError, match="figure_1"):
        call("run", "figure_99", "--output", tmp_path)
    with pytest.raises(ValueError, match="define SWEEP"):
        call("run", "json", "--output", tmp_path)
    with pytest.raises(ValueError, match="results folder of a sweep"):
        call("status", tmp_path)
    with pytest.raises(ValueError, match="Expected rows"):
        call("draw", NAME, "--output", tmp_path)


def test_figures_of_one_folder_share_their_workers(tmp_path, capsys, monkeypatch):
    def more(rows):
        assert len(rows) == 7  # The first figure's are there.
        return [sweep.make_run("made_up/more", sweep_definition.FUNCTION, {"x": 9.0, "seed": 0})]

    def report(preset, rows, folder):
        return [f"{len(rows)} rows"]

    other = types.SimpleNamespace(SWEEP="made_up", stages=lambda preset: [more], report=report)
    apart = types.SimpleNamespace(SWEEP="apart", stages=lambda preset: [lambda rows: more([0] * 7)], report=report)
    monkeypatch.setitem(sys.modules, "other_figure", other)
    monkeypatch.setitem(sys.modules, "figure_apart", apart)
    started = []
    monkeypatch.setattr(sweep, "make_engine", lambda *a, **k: started.append(1) or sweep_engines.LocalEngine(1))
    assert call("run", NAME, "other_figure", "figure_apart", "--output", tmp_path) == 0
    output = capsys.readouterr().out
    assert output.index("best is 5") < output.index("other_figure, stage 1 of 1") < output.index("8 rows")
    assert output.index("8 rows") < output.index("1 rows")
    assert len(started) == 2
    assert len(sweep_store.read_results(tmp_path / "made_up-quick")) == 8


def test_out_of_time_complete_figures_are_drawn_all_the_same(tmp_path, capsys, monkeypatch):
    assert call("run", NAME, "--output", tmp_path) == 0
    more = sweep.make_run("made_up/more", sweep_definition.FUNCTION, {"x": 9.0, "seed": 0})
    late = types.SimpleNamespace(SWEEP="made_up", stages=lambda preset: [lambda rows: [more]], report=None)
    monkeypatch.setitem(sys.modules, "late_figure", late)
    capsys.readouterr()
    assert call("run", "late_figure", NAME, "--output", tmp_path, "--time-limit", 0) == 0
    output = capsys.readouterr().out
    assert "late_figure: out of time with 1 runs" in output
    assert "best is 5" in output
