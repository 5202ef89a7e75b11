"""`tf-ensembles reproduce`: chooses parts, skips what is complete, goes on after a failure, ends with verdicts."""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import re
import sys

import pytest

from benchmarks.claims.paper import CLAIMS
from benchmarks.commands import main as cli
from benchmarks.commands import reproduce
from benchmarks.figures import registry
from benchmarks.figures.tables import Tables
from benchmarks.report import content as report_content
from tests import claim_world


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return claim_world.write(tmp_path_factory.mktemp("world") / "results")


class Fake:
    """Stands for the processes of parts: writes what a part would, or fails where it is told to."""

    def __init__(self, world):
        self.world, self.calls, self.failing, self.images = world, [], set(), True

    def __call__(self, command, log, hear):
        assert command[:3] == [sys.executable, "-u", "-m"]
        if command[3] == "trainers.images.cifar10":
            self.calls.append("images")
            hear("CIFAR10: npm")
            return 0 if self.images else 1
        assert command[3] == "benchmarks.commands.main"
        name = " ".join(command[4:7])
        self.calls.append(name)
        hear("F2-bp: supported: -6.8%" if "figure_2" in name else "something else")
        if any(word in name for word in self.failing):
            hear("because it was told to")
            return 1
        option = "--figures-to" if "--figures-to" in command else "--results"
        folder = pathlib.Path(command[command.index(option) + 1])
        folder.mkdir(parents=True, exist_ok=True)
        for path in (self.world / folder.name).iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        for figure in registry.select([folder.name]):
            if figure.name in command or folder.name in command:
                (folder / f"{figure.name}.csv").write_text("what the figure shows")
        return 0


@pytest.fixture
def fake(world, monkeypatch):
    fake = Fake(world)
    monkeypatch.setattr(reproduce.stages, "follow", fake)
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
    (images,) = reproduce.choose(listed, "cifar10")
    assert [figure.id for figure in images.figures] == ["F3", "F4", "F5", "F10", "F11"]
    # What shares workers is made alone if it is asked for alone; what shows the same runs is made together.
    for only, ids in (
        ("F4", ["F4"]),
        ("F10,F5", ["F3", "F5", "F10"]),
        ("F4,cifar10", ["F3", "F4", "F5", "F10", "F11"]),
    ):
        (part,) = reproduce.choose(listed, only)
        assert [figure.id for figure in part.figures] == ids
        names = [figure.name for figure in part.figures]
        assert part.arguments == ("sweep", "run", *names, *images.arguments[images.arguments.index("--preset") :])
        assert part.made == f"cifar10/{names[0]}.csv"
    assert reproduce.choose(listed, "F4")[0].name == "figure 4"
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
    arguments = ["reproduce", "--results", str(tmp_path / "out")]
    assert cli.main(arguments) == 0
    said = capsys.readouterr().out
    assert re.search(r"At the paper.s size: \d+ supported\n  Reduced: \d+ supported\n", said)
    # Something is said at once; what can be decided is said before anything runs.
    assert said.startswith("Reproducing the paper at preset quick, about 6 minutes on two idle cores")
    undecided = said.index("figure_4 can decide F4-marginal, F4-p, F4-bp, F4-bp50, F4-except; not F4-members")
    assert undecided < said.index("; linear: starting")
    assert "\nfigure_2 can decide F2-marginal, F2-bp-marginal, F8-p, F2-bp\n" in said
    assert "figures 2, 8, 9: ✓ F2-bp (" in said
    # What a larger run adds comes with the verdicts.
    assert "--preset standard: decides the same claims, with more seeds" in said
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
    assert re.search(r"At the paper.s size: \d+ supported\n  Reduced: \d+ supported\n", again)
    # A part whose table was deleted is run again, and no other: be it what claims read, or what the figure shows.
    for name in ("figure_7_runs.csv", "figure_7.csv"):
        (tmp_path / "out" / "testbed" / name).unlink()
        fake.calls.clear()
        assert cli.main(arguments) == 0
        assert fake.calls == ["sweep run figure_7"]


def test_a_part_that_fails_does_not_stop_the_others(fake, tmp_path, capsys):
    fake.failing = {"figure_1", "bandit"}
    arguments = ["reproduce", "--only", "linear,testbed,F6", "--results", str(tmp_path)]
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert "Failed: figures 6, 12, figure 1" in said.err
    assert "because it was told to" in said.err
    assert "F2-bp" in said.out
    assert (tmp_path / "report.html").is_file()
    fake.failing, fake.calls = set(), []
    assert cli.main(arguments) == 0
    assert len(fake.calls) == 2


def test_without_images_the_rest_is_measured_and_it_is_said(fake, tmp_path, capsys):
    fake.images = False
    assert cli.main(["reproduce", "--only", "linear,F4", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "left out, CIFAR10 could not be downloaded or read" in said
    assert "CIFAR10 could not be downloaded or read" in (tmp_path / "report.html").read_text()
    assert fake.calls == ["images", "linear --preset quick"]


def test_what_a_larger_run_adds_is_what_presets_say(world):
    from benchmarks.claims import judge, presets

    claims = [claim for claim in CLAIMS if claim.figure in ("F7", "F4")]
    results = [judge.judge(claim, Tables(world / "linear", "linear")) for claim in claims]
    lines = reproduce._more(results, "quick")
    # All of them are missing, but only what quick cannot decide is said to be added.
    missing = [claim.id for claim in claims if presets.missing(claim, presets.preset_sizes("quick"))]
    assert missing == ["F7-depends-others", "F7-flat-others", "F7-zero-text", "F4-members"]
    assert lines[0].startswith("--preset standard: can also decide F7-zero-text, F4-members, ")
    assert lines[1].startswith("--preset paper: can also decide F7-depends-others, F7-flat-others, ")
    assert reproduce._more(results, "paper") == []


def test_nothing_at_all_is_a_failure(fake, tmp_path, capsys):
    fake.failing = {"linear"}
    assert cli.main(["reproduce", "--only", "linear", "--results", str(tmp_path / "out")]) == 1
    assert "Nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize("code", [130, 143])
def test_an_interrupted_part_stops_the_command(monkeypatch, tmp_path, capsys, code):
    follow = reproduce.stages.follow
    command = [sys.executable, "-c", f"raise SystemExit({code})"]
    monkeypatch.setattr(reproduce.stages, "follow", lambda _, log, hear: follow(command, log, hear))
    assert cli.main(["reproduce", "--only", "linear,F1", "--results", str(tmp_path)]) == code
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
