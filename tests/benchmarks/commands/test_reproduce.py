"""`tf-ensembles reproduce`: chooses parts, skips what is complete, goes on after a failure, ends with verdicts."""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks.claims.paper import CLAIMS
from benchmarks.commands import main as cli
from benchmarks.commands import reproduce
from benchmarks.figures import registry
from benchmarks.report import content as report_content
from tests import claim_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return claim_world.write(tmp_path_factory.mktemp("world") / "results")


class Fake:
    """Stands for the processes of parts: writes what a part would, or fails where it is told to."""

    def __init__(self, world):
        self.world, self.calls, self.failing, self.images = world, [], set(), True

    def __call__(self, command, **options):
        assert command[:2] == [sys.executable, "-m"]
        if command[2] == "trainers.images.cifar10":
            self.calls.append("images")
            return subprocess.CompletedProcess(command, 0 if self.images else 1, "CIFAR10: npm\n")
        assert command[2] == "benchmarks.commands.main"
        name = " ".join(command[3:6])
        self.calls.append(name)
        if any(word in name for word in self.failing):
            return subprocess.CompletedProcess(command, 1)
        option = "--figures-to" if "--figures-to" in command else "--output"
        folder = pathlib.Path(command[command.index(option) + 1])
        folder.mkdir(parents=True, exist_ok=True)
        for path in (self.world / folder.name).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        for figure in registry.select([folder.name]):
            if figure.name in command or folder.name in command:
                (folder / f"{figure.name}.csv").write_text("what the figure shows")
        return subprocess.CompletedProcess(command, 0)


@pytest.fixture
def fake(world, monkeypatch):
    fake = Fake(world)
    monkeypatch.setattr(reproduce.subprocess, "run", fake)
    return fake


def test_every_figure_is_made_by_one_part():
    listed = reproduce.parts("quick", "local", pathlib.Path("out"))
    made = [figure for part in listed for figure in part.figures]
    assert sorted(figure.id for figure in made) == sorted(figure.id for figure in registry.figures())
    assert "F8" in [name for part in listed for name in part.names]
    for part in listed:
        if part.arguments[0] == "sweep":
            assert part.arguments[2 : part.arguments.index("--preset")] == tuple(one.name for one in part.figures)
        else:
            assert registry.select([part.arguments[0]]) == list(part.figures)
        assert part.made == f"{part.figures[0].part}/{part.figures[0].name}.csv"
        assert len({figure.part for figure in part.figures}) == 1  # Their tables share a folder.
    shared = {figure.id: part for part in listed for figure in part.figures}
    for figure in made:
        assert not figure.same_runs_as or shared[figure.id] is shared[figure.same_runs_as]
    assert {claim.figure for claim in CLAIMS} <= set(shared)


def test_the_arguments_of_parts_are_understood():
    for part in reproduce.parts("standard", "ray", pathlib.Path("out"), data="images"):
        parser = argparse.ArgumentParser()
        importlib.import_module(f"benchmarks.commands.{part.arguments[0]}").add_arguments(parser)
        args = parser.parse_args([*part.arguments[1:], *part.places])
        assert (args.preset, args.engine) == ("standard", "ray")
        if part.needs_images:
            assert (args.data_dir, args.store) == ("images", pathlib.Path("out/members").resolve())


def test_only_chooses_by_figure_or_kind():
    listed = reproduce.parts("quick", "ray", pathlib.Path("out"))
    assert [part.name for part in reproduce.choose(listed, "F2, f6")] == ["figures 6, 12", "figures 2, 8, 9"]
    assert len(reproduce.choose(listed, "cifar10")) == 4
    assert reproduce.choose(listed, None) == listed
    for wrong in ("F99", ""):
        with pytest.raises(ValueError, match=r"Expected --only of .*linear, F6.* Received: '") as caught:
            reproduce.choose(listed, wrong)
        named = str(caught.value).removeprefix("Expected --only of ").split(". ")[0].split(", ")
        assert {"F8", "linear", "testbed", "bandit", "cifar10"} <= set(named)
        assert {figure.id for figure in registry.figures()} <= set(named)
    engines = [part.arguments[part.arguments.index("--engine") + 1] for part in listed]
    assert set(engines) == {"ray"}


def test_a_whole_run_ends_with_verdicts_and_a_second_does_nothing(fake, tmp_path, capsys):
    arguments = ["reproduce", "--output", str(tmp_path / "out")]
    assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    assert f"{len(CLAIMS)} supported" in said
    # What can be decided is said before anything runs.
    assert said.index("figure_4 can decide no claim; not F4-marginal") < said.index("[1 of ")
    assert "\nfigure_2 can decide F2-marginal, F8-p, F2-bp\n" in said
    assert "Report: " + str(tmp_path / "out" / "report.html") in said
    assert "the real CIFAR10" in said
    facts = report_content.read_environment(tmp_path / "out")
    assert (facts["preset"], facts["engine"]) == ("quick", "local")
    assert "cores" in facts["machine"]
    times = json.loads((tmp_path / "out" / "times.json").read_text())
    assert set(times) == {part.name for part in reproduce.parts("quick", "local", tmp_path)} | {"all parts"}
    parts = len(reproduce.parts("quick", "local", tmp_path))
    assert len(fake.calls) == parts + 1  # and the images, once
    fake.calls.clear()
    assert cli.main(arguments) == 0
    again = capsys.readouterr().out
    assert fake.calls == []
    assert again.count("complete already") == parts
    assert f"{len(CLAIMS)} supported" in again
    # A part whose table was deleted is run again, and no other: be it what claims read, or what the figure shows.
    for name in ("figure_7_runs.csv", "figure_7.csv"):
        (tmp_path / "out" / "testbed" / name).unlink()
        fake.calls.clear()
        assert cli.main(arguments) == 0
        assert fake.calls == ["sweep run figure_7"]


def test_a_part_that_fails_does_not_stop_the_others(fake, tmp_path, capsys):
    fake.failing = {"figure_1", "bandit"}
    arguments = ["reproduce", "--only", "linear,testbed,F6", "--output", str(tmp_path)]
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert "Failed: figures 6, 12, figure 1" in said.err
    assert "F2-bp" in said.out
    assert (tmp_path / "report.html").is_file()
    fake.failing, fake.calls = set(), []
    assert cli.main(arguments) == 0
    assert len(fake.calls) == 2


def test_without_images_the_rest_is_measured_and_it_is_said(fake, tmp_path, capsys):
    fake.images = False
    assert cli.main(["reproduce", "--only", "linear,F4", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "left out, CIFAR10 could not be downloaded or read" in said
    assert "CIFAR10 could not be downloaded or read" in (tmp_path / "report.html").read_text()
    assert fake.calls == ["images", "linear --preset quick"]


def test_nothing_at_all_is_a_failure(fake, tmp_path, capsys):
    fake.failing = {"linear"}
    assert cli.main(["reproduce", "--only", "linear", "--output", str(tmp_path / "out")]) == 1
    assert "Nothing was measured" in capsys.readouterr().err


def test_an_interrupted_part_stops_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(reproduce.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 130))
    assert cli.main(["reproduce", "--only", "linear,F1", "--output", str(tmp_path)]) == 130
    assert "stopped" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"name": "b", "seconds": "x"}', '{"name": "b", "seconds": 1' + "0" * 400 + "}"]
)
def test_the_time_of_a_part_that_cannot_be_read_is_left_out(tmp_path, content):
    folder = tmp_path / reproduce._COMPLETE
    folder.mkdir()
    (folder / "a.json").write_text('{"name": "a", "seconds": 2.5}')
    (folder / "b.json").write_text(content)
    assert reproduce._times(tmp_path) == {"a": 2.5, "all parts": 2.5}
