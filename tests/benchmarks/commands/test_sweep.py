"""`tf-ensembles sweep`: run, continue, list, status, errors; through its module, as the command line calls it."""

from __future__ import annotations

import argparse
import sys
import types

import pandas as pd
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


def best_of(folder):
    """The largest square that a figure's table holds, as it was drawn."""
    table = pd.read_csv(folder / "made_up.csv").set_index("series")
    assert {"made_up.png", "made_up.svg", "made_up_runs.csv"} <= {path.name for path in folder.iterdir()}
    return table.loc["made_up/best", "estimate"]


def test_run_draws_and_continues(tmp_path, capsys):
    folder = tmp_path / "made_up-quick"
    assert call("run", NAME, "--results", tmp_path, "--workers", 2) == 0
    output = capsys.readouterr().out
    assert "stage 1 of 2: 6 runs, 0 done, 6 to do" in output
    assert "from the measured time" in output
    assert "stage 2 of 2: 1 runs" in output
    assert f"wrote {folder / 'made_up.png'}" in output
    assert best_of(folder) == 25.0**2
    assert call("run", NAME, "--results", tmp_path) == 0
    assert "6 runs, 6 done, 0 to do" in capsys.readouterr().out
    assert call("draw", NAME, "--results", tmp_path, "--figures-to", tmp_path / "drawn") == 0
    assert best_of(tmp_path / "drawn") == 25.0**2


def test_dry_run_lists_and_writes_nothing(tmp_path, capsys):
    assert call("run", NAME, "--results", tmp_path, "--dry-run") == 0
    output = capsys.readouterr().out
    assert "stage 1: 6 runs, 0 done" in output
    assert "todo  made_up/seed3" in output
    assert "depends on the stages before" in output
    assert not list(tmp_path.iterdir())


def test_time_limit_then_status_then_the_rest(tmp_path, capsys):
    folder = tmp_path / "made_up-quick"
    assert call("run", NAME, "--results", tmp_path, "--time-limit", 0.01, "--workers", 1) == 0
    assert "the same command continues" in capsys.readouterr().out
    done = len(sweep_store.read_results(folder))
    assert done < 6
    assert call("status", folder) == 0
    assert f"6 runs: {done} done, 0 failed, {6 - done} left" in capsys.readouterr().out
    assert call("run", NAME, "--results", tmp_path) == 0
    capsys.readouterr()
    assert call("status", folder) == 0
    assert "complete" in capsys.readouterr().out


def test_failures_show_in_code_and_status(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep_definition, "FUNCTION", "tests.sweep_functions:no_such")
    with pytest.raises(ValueError, match="nothing to choose from"):
        call("run", NAME, "--results", tmp_path)
    capsys.readouterr()
    call("status", tmp_path / "made_up-quick")
    assert "6 failed" in capsys.readouterr().out


def test_mistakes_say_so(tmp_path):
    with pytest.raises(ValueError, match="figure_1"):
        call("run", "figure_99", "--results", tmp_path)
    with pytest.raises(ValueError, match="a module without"):
        call("run", "json", "--results", tmp_path)
    with pytest.raises(ValueError, match="results folder of a sweep"):
        call("status", tmp_path)
    with pytest.raises(ValueError, match="Expected rows"):
        call("draw", NAME, "--results", tmp_path)
    with pytest.raises(ValueError, match=r"--preset of quick for made_up\. Received: paper"):
        call("run", NAME, "--results", tmp_path, "--preset", "paper")


def test_figures_are_named_by_id_name_or_module():
    assert sweep_command.load("F2") is sweep_command.load("figure_2")
    assert sweep_command.load(NAME) is sweep_definition.FIGURE


def add_module(monkeypatch, figure):
    """Makes a figure a module of its own."""
    monkeypatch.setitem(sys.modules, f"its_{figure.name}", types.SimpleNamespace(FIGURE=figure))
    return f"its_{figure.name}"


def test_figures_of_one_folder_share_their_workers(tmp_path, capsys, monkeypatch):
    class Second(sweep_definition.More):
        def stages(self, size, context):
            (stage,) = super().stages(size, context)

            def more(rows):
                assert len(rows) == 7  # The first figure's are there.
                return stage(rows)

            return [more]

    class Apart(sweep_definition.More):
        id, name, sweep = "MU-apart", "apart", "apart"

    second, apart = (add_module(monkeypatch, figure) for figure in (Second(), Apart()))
    started = []
    monkeypatch.setattr(sweep, "make_engine", lambda *a, **k: started.append(1) or sweep_engines.LocalEngine(1))
    assert call("run", NAME, second, apart, "--results", tmp_path) == 0
    output = capsys.readouterr().out
    assert output.index("made_up.png") < output.index("more, stage 1 of 1") < output.index("more.png")
    assert output.index("more.png") < output.index("apart.png")
    assert len(started) == 2
    assert len(sweep_store.read_results(tmp_path / "made_up-quick")) == 8
    assert len(sweep_store.read_results(tmp_path / "apart-quick")) == 1


def test_out_of_time_complete_figures_are_drawn_all_the_same(tmp_path, capsys, monkeypatch):
    assert call("run", NAME, "--results", tmp_path) == 0
    late = add_module(monkeypatch, sweep_definition.More())
    capsys.readouterr()
    assert call("run", late, NAME, "--results", tmp_path, "--time-limit", 0) == 0
    output = capsys.readouterr().out
    assert "more: out of time with 1 runs" in output
    assert "made_up.png" in output
    assert "more.png" not in output
