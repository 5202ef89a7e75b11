"""`tf-ensembles reproduce`: chooses parts, skips what is complete, goes on after a failure, ends with verdicts."""

from __future__ import annotations

import json
import re

import pytest

from tests import claim_world
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.commands import reproduce
from tf_ensembles.benchmarks.figures import registry, running
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.report import content as report_content
from tf_ensembles.trainers import preemption
from tf_ensembles.trainers.images import cifar10


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return claim_world.write(tmp_path_factory.mktemp("world") / "results")


class Fake:
    """Stands for `running.run`: writes what it would, or fails where it is told to."""

    def __init__(self, world):
        self.world, self.calls, self.failing, self.images = world, [], set(), True

    def run(self, plans, folder, context, *, engine, address, stage_begins):
        names = [plan.figure.name for plan in plans]
        self.calls.append(names)
        stage_begins(f"{names[0]}, stage 1 of 1")
        if self.failing & set(names):
            print("because it was told to")
            if "figure_1" in names:
                return running.Outcome(3, ())
            raise ValueError("and this is why")
        results = []
        for plan in plans:
            plan.output.mkdir(parents=True, exist_ok=True)
            for path in (self.world / plan.output.name).iterdir():
                (plan.output / path.name).write_bytes(path.read_bytes())
            (plan.output / f"{plan.figure.name}.csv").write_text("what the figure shows")
            results += running.print_verdicts(plan)
        return running.Outcome(0, tuple(results))

    def prepare_cifar10(self, folder):
        self.calls.append("images")
        if not self.images:
            raise ValueError("no network")
        return "npm"


@pytest.fixture
def fake(world, monkeypatch):
    fake = Fake(world)
    monkeypatch.setattr(running, "run", fake.run)
    monkeypatch.setattr(cifar10, "prepare_cifar10", fake.prepare_cifar10)
    return fake


def test_every_figure_is_made_by_one_part():
    parts = reproduce.choose()
    made = [figure for part in parts for figure in part.figures]
    assert sorted(figure.id for figure in made) == sorted(figure.id for figure in registry.figures())
    for part in parts:
        assert len({figure.part for figure in part.figures}) == 1  # Their tables share a folder.
    shared = {figure.id: part for part in parts for figure in part.figures}
    for figure in made:
        assert not figure.same_runs_as or shared[figure.id] is shared[figure.same_runs_as]
    assert {claim.figure for claim in CLAIMS} <= set(shared)


def test_only_chooses_by_figure_or_part():
    assert [part.name for part in reproduce.choose("F2, f6")] == ["figures 6, 12", "figures 2, 8, 9"]
    assert reproduce.choose("F8") == reproduce.choose("figure_2")
    # What shares workers is made alone if it is asked for alone; what shows the same runs is made together.
    for only, ids in (
        ("cifar10", ["F3", "F4", "F5", "F10", "F11"]),
        ("F4", ["F4"]),
        ("F10,F5", ["F3", "F5", "F10"]),
        ("F4,cifar10", ["F3", "F4", "F5", "F10", "F11"]),
        ("F12", ["F6", "F12", "F6-members"]),  # They have one folder of tables and runs.
    ):
        (part,) = reproduce.choose(only)
        assert [figure.id for figure in part.figures] == ids
    assert reproduce.choose("F4")[0].name == "figure 4"
    for wrong in ("F99", ""):
        with pytest.raises(ValueError, match=r"Expected figures of .*linear.* Received: '"):
            reproduce.choose(wrong)


def test_parts_are_made_where_their_commands_would(world, monkeypatch, tmp_path):
    calls = {}

    def run(plans, folder, context, *, engine, address, stage_begins):
        calls[folder] = [plan.figure.id for plan in plans], {plan.output for plan in plans}, context
        assert (engine, address) == ("ray", "somewhere")
        return running.Outcome(1, ())

    monkeypatch.setattr(running, "run", run)
    monkeypatch.setattr(cifar10, "prepare_cifar10", lambda folder: "made up")
    words = ["--only", "linear,F9,F4", "--preset", "standard", "--address", "somewhere", "--data-dir", str(tmp_path)]
    assert cli.main(["reproduce", *words, "--results", str(tmp_path)]) == 1
    linear = [figure.id for figure in registry.select(["linear"])]
    assert calls == {
        tmp_path / "linear": (linear, {tmp_path / "linear"}, {}),
        tmp_path / "sweep" / "flipped-standard": (["F2", "F9"], {tmp_path / "testbed"}, {}),
        tmp_path / "sweep" / "cifar10-standard": (
            ["F4"],
            {tmp_path / "cifar10"},
            {"store": str(tmp_path / "members"), "data": str(tmp_path)},
        ),
    }


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
    assert "figures 2, 8, 9: ✓ F2-marginal, ✓ F2-bp-marginal, ✓ F8-p, ✓ F2-bp, " in said
    # What a larger run adds comes with the verdicts.
    assert "--preset standard: decides the same claims, with more seeds" in said
    assert "Report: " + str(tmp_path / "out" / "report.html") in said
    assert "the real CIFAR10" in said
    facts = report_content.read_environment(tmp_path / "out")
    assert (facts["preset"], facts["engine"]) == ("quick", "local")
    assert "cores" in facts["machine"]
    times = json.loads((tmp_path / "out" / "times.json").read_text())
    assert set(times) == {part.name for part in reproduce.choose()} | {"all parts"}
    parts = len(reproduce.choose())
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
        assert fake.calls == [["figure_7"]]


def test_a_part_that_fails_does_not_stop_the_others(fake, tmp_path, capsys):
    fake.failing = {"figure_1", "figure_6"}
    arguments = ["reproduce", "--only", "linear,testbed,F6", "--results", str(tmp_path)]
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert "Failed: figures 6, 12, figure 1" in said.err
    assert "because it was told to\n" in said.err
    assert "ValueError: and this is why" in (tmp_path / "logs" / "F6-F12-F6-members.txt").read_text()
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
    assert fake.calls == ["images", [figure.name for figure in registry.select(["linear"])]]


def test_what_a_larger_run_adds_is_what_presets_say(world):
    from tf_ensembles.benchmarks.claims import presets

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
    fake.failing = {"linear_bound"}
    assert cli.main(["reproduce", "--only", "linear", "--results", str(tmp_path / "out")]) == 1
    assert "Nothing was measured" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (preemption.Preempted, 143)])
def test_an_interrupted_part_stops_the_command(monkeypatch, tmp_path, capsys, kind, code):
    def run(*_, **__):
        raise kind

    monkeypatch.setattr(running, "run", run)
    assert cli.main(["reproduce", "--only", "linear,F1", "--results", str(tmp_path)]) == code
    assert "stopped" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_verdicts_of_the_report_are_those_of_the_parts(fake, tmp_path, monkeypatch):
    """They are judged once, and as one family all the same."""
    judged = []
    judge_one = judge.judge
    monkeypatch.setattr(judge, "judge", lambda claim, tables: judged.append(claim.id) or judge_one(claim, tables))
    assert cli.main(["reproduce", "--only", "testbed", "--results", str(tmp_path)]) == 0
    parts = [claim.id for claim in CLAIMS if registry.figure(claim.figure).part == "testbed"]
    assert [judged.count(name) for name in parts] == [1] * len(parts)
    written = [(tmp_path / name).read_bytes() for name in ("report.html", "claims.csv")]
    assert cli.main(["report", str(tmp_path)]) == 0
    assert written == [(tmp_path / name).read_bytes() for name in ("report.html", "claims.csv")]


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"name": "b", "seconds": "x"}', '{"name": "b", "seconds": 1' + "0" * 400 + "}"]
)
def test_the_time_of_a_part_that_cannot_be_read_is_left_out(tmp_path, content):
    folder = tmp_path / reproduce._COMPLETE
    folder.mkdir()
    (folder / "a.json").write_text('{"name": "a", "seconds": 2.5}')
    (folder / "b.json").write_text(content)
    assert reproduce._times(tmp_path) == {"a": 2.5, "all parts": 2.5}
