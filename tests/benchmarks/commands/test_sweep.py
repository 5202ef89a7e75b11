"""`tf-ensembles sweep`: run, continue, list, status, errors; through its module, as the command line calls it."""

from __future__ import annotations

import argparse
import shutil
import sys
import types

import numpy as np
import pandas as pd
import pytest

from tests import sweep_definition
from tf_ensembles import machine
from tf_ensembles.benchmarks.commands import sweep as sweep_command
from tf_ensembles.benchmarks.figures import tables
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import runs as member_runs
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.sweeps import engines as sweep_engines
from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps import sweep, worker

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
    cost = pd.read_csv(folder / "made_up_cost.csv")
    assert list(cost.runs) == [7]
    seconds = [row["wall_seconds"] for row in sweep_store.read_results(folder)]
    assert cost.hours[0] == pytest.approx(sum(seconds) / 3600)
    assert sum(seconds) > 6 * 0.05
    said = sweep_definition.FIGURE.settings(tables.Tables(folder, "made_up"))[-1]
    assert (said.name, said.differs) == ("hours of one worker", False)
    assert said.used.endswith(f"(7 runs; {machine.cpu_name()})")
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
                seen.append(len(rows))
                return stage(rows)

            return [more]

    class Apart(sweep_definition.More):
        id, name, sweep = "MU-apart", "apart", "apart"

    second, apart = (add_module(monkeypatch, figure) for figure in (Second(), Apart()))
    started, seen = [], []
    monkeypatch.setattr(sweep, "make_engine", lambda *a, **k: started.append(1) or sweep_engines.LocalEngine(1))
    assert call("run", NAME, second, apart, "--results", tmp_path) == 0
    output = capsys.readouterr().out
    assert output.index("made_up.png") < output.index("more, stage 1 of 1") < output.index("more.png")
    assert output.index("more.png") < output.index("apart.png")
    assert len(started) == 2
    assert seen[0] == 7  # The first figure's rows are there.
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


class Here:
    """An engine in this process, which computes when it is waited for."""

    num_slots = 1

    def submit(self, slot, message):
        self._event = sweep_engines.Event(slot, message)

    def wait(self, timeout):
        event, self._event = getattr(self, "_event", None), None
        return [] if event is None else [sweep_engines.Event(event.slot, tuple(worker.compute(event.outcomes)))]

    def close(self):
        pass


def test_retry_failed_trains_damaged_members_again(tmp_path, monkeypatch):
    """Members whose rows are there, but whose files are damaged, gone or given up, and no others."""
    trained = []

    def train_member(config, *, store):
        files = member_store.MemberFiles(store, member_config.from_dict(config))
        if files.status().state is member_store.State.FAILED:
            raise ValueError("given up before")
        if files.result() is None:
            trained.append(config["member"])
            files.begin()
            logits = np.full((4, 3), config["member"], np.float32)
            files.finish({"steps": 1}, logits, np.zeros(4, np.int32), {"model0": logits})
        return {"steps": 1}

    class Members(sweep_definition.More):
        id, name = "MU-members", "members"

        def stages(self, size, context):
            context = {"store": context["store"]}
            made = [
                sweep.make_run(
                    f"member{member}", member_runs.TRAIN, {"num_train": 100, "member": member}, context=context
                )
                for member in range(6)
            ]
            return [lambda rows: made]

        def collect(self, size, rows):
            return {"made_up_runs": pd.DataFrame([{**row, "x": 0.0, "square": 0.0} for row in rows])}

    monkeypatch.setattr(member_runs, "train_member", train_member)
    monkeypatch.setattr(sweep, "make_engine", lambda *a, **k: Here())
    name = add_module(monkeypatch, Members())
    arguments = ("run", name, "--results", tmp_path, "--store", tmp_path / "store")
    assert call(*arguments) == 0
    assert sorted(trained) == [0, 1, 2, 3, 4, 5]
    files = [
        member_store.MemberFiles(tmp_path / "store", member_config.MemberConfig(num_train=100, member=member))
        for member in range(6)
    ]
    results = tmp_path / "made_up-quick" / sweep_store.RESULTS
    whole, before = [one.predictions()[0] for one in files], results.read_text()
    for place, damaged in ((1, member_store.PREDICTIONS), (2, member_store.WEIGHTS), (3, member_store.RESULT)):
        path = files[place].folder / damaged
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    (files[4].folder / member_store.RESULT).unlink()
    files[5].reset()
    files[5].fail(1, "it diverged")
    trained.clear()
    assert call(*arguments) == 0
    assert trained == []  # Their rows are there, and nobody has asked.
    assert call(*arguments, "--retry-failed") == 0
    assert sorted(trained) == [1, 2, 3, 4, 5]
    for one, logits in zip(files, whole, strict=True):
        assert one.status(verify=True).state is member_store.State.FINISHED
        np.testing.assert_array_equal(one.predictions()[0], logits)
    rows = sweep_store.read_results(tmp_path / "made_up-quick")
    assert sorted(row["id"] for row in rows) == [f"member{member}" for member in range(6)]
    damaged = (tmp_path / "made_up-quick" / sweep_store.DAMAGED).read_text()
    assert sorted(damaged.splitlines()) == sorted(before.splitlines()[1:])
    trained.clear()
    assert call(*arguments, "--retry-failed") == 0
    assert trained == []
    # A member of which there is nothing, as where rows came from another machine, is trained without being asked for.
    shutil.rmtree(files[2].folder)
    assert call(*arguments) == 0
    assert trained == [2]
    np.testing.assert_array_equal(files[2].predictions()[0], whole[2])


def test_rows_are_packed_merged_and_continued(tmp_path, capsys):
    folder, packed = tmp_path / "a" / "made_up-quick", tmp_path / "rows.jsonl.xz"
    with sweep.Sweep(folder, num_workers=1) as half:
        half.execute(sweep_definition.FIGURE.stages(6, {})[0]([])[:3])
    assert call("pack", folder, packed) == 0
    assert f"wrote {packed}: 3 rows" in capsys.readouterr().out
    assert call("merge", tmp_path / "b" / "made_up-quick", packed) == 0
    assert f"{packed}: 3 rows added, 0 were there" in capsys.readouterr().out
    assert call("run", NAME, "--results", tmp_path / "b", "--workers", 1) == 0
    assert "6 runs, 3 done, 3 to do" in capsys.readouterr().out
    assert best_of(tmp_path / "b" / "made_up-quick") == 25.0**2
