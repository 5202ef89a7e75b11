"""One vocabulary: the same words in every sub-command, examples, JSON, completion, empty folders."""

from __future__ import annotations

import argparse
import json
import pathlib
import shlex
import shutil

import pytest

from tests import claim_world
from tests.benchmarks.commands import parsers
from tests.member_process import make_data
from tf_ensembles.benchmarks.claims.paper import CLAIMS
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.commands import options

LEAVES = parsers.leaves()


def shown(parser):
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    return {name: action for action in actions for name in action.option_strings}


def parse(line):
    return vars(cli.make_parser().parse_args(shlex.split(line)))


@pytest.mark.parametrize("name", LEAVES)
def test_every_help_has_examples_that_are_understood(name):
    lines = LEAVES[name].format_help().partition("examples:\n")[2].split("\n")
    found = [line.strip() for line in lines if line.strip()]
    assert found
    for line in found:
        assert line.startswith(f"tf-ensembles {name}")
        parse(line.removeprefix("tf-ensembles "))


def test_the_same_word_is_the_same_thing_everywhere():
    kinds = {}
    for name, parser in LEAVES.items():
        words = shown(parser)
        assert {"--debug", "--json"} <= set(words), name
        assert not {"--num-members", "--folder", "--out", "--num-workers"} & set(words), name
        for word in ("--results", "--members", "--seeds", "--seed", "--workers", "--engine", "--store", "--data-dir"):
            if word in words:
                # A folder, which sweeps and members may have in an object store as well.
                kind = options.local_path if words[word].type is options.store_root else words[word].type
                kinds.setdefault(word, set()).add((kind, words[word].metavar))
        if "--preset" in words:
            assert tuple(words["--preset"].choices)[:3] == options.PRESETS
    assert {word: len(found) for word, found in kinds.items() if len(found) > 1} == {}
    experiments = ("linear", "testbed", "bandit", "sweep run", "sweep draw", "sweep status", "reproduce", "report")
    assert [name for name in experiments if "--results" not in shown(LEAVES[name])] == []
    # What is written elsewhere than in the results folder is an output.
    assert [name for name, one in LEAVES.items() if "--output" in shown(one)] == [
        "cifar10 evaluate",
        "report",
        "assess",
    ]


def test_debug_and_json_are_taken_before_and_after_a_sub_command():
    for line in ("--debug --json sweep status", "sweep status --debug --json", "--json sweep --debug status"):
        args = parse(line)
        assert (args["debug"], args["json"]) == (True, True)


def test_two_results_folders_are_refused(capsys):
    assert cli.main(["report", "a", "--results", "b"]) == 2
    assert "Expected one results folder. Received: a and --results b" in capsys.readouterr().err


@pytest.fixture
def wrong(tmp_path):
    """A folder without anything, and one that only looks like results."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "looks" / "linear").mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "looked_for"),
    [
        ("report {}/empty", "any of linear/, testbed/, bandit/, cifar10/ in it"),
        ("report {}/none", "which is no folder"),
        ("report --results {}/looks", "such as linear/checks.csv"),
        ("report --compare {}/looks {}/looks", "such as linear/checks.csv"),
        ("report --compare {}/empty {}/looks", "any of linear/"),
        ("sweep status {}/empty", "with a plan.jsonl in it"),
        ("sweep draw figure_2 --results {}/empty", "Expected rows in"),
        ("cifar10 status --store {}/empty", "empty/ensembles/NAME.json"),
        ("cifar10 evaluate --store {}/empty", "Received: none. Train one first"),
    ],
)
def test_an_empty_or_wrong_folder_is_an_error_that_says_what_was_looked_for(wrong, capsys, line, looked_for):
    before = sorted(wrong.rglob("*"))
    assert cli.main(line.replace("{}", str(wrong)).split()) == 2
    said = capsys.readouterr()
    assert looked_for in said.err
    assert said.err.count("\n") == 1
    assert sorted(wrong.rglob("*")) == before  # No report of nothing.


def test_json_is_all_that_stdout_has(tmp_path, capsys):
    shutil.copytree(claim_world.write(tmp_path / "all") / "bandit", tmp_path / "some" / "bandit")
    assert cli.main(["report", "--results", str(tmp_path / "some"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["claim"] for one in found["claims"]] == [claim.id for claim in CLAIMS]
    (best,) = [one for one in found["claims"] if one["claim"] == "F6-bp"]
    assert best["verdict"] == "supported"
    assert best["effects"][0]["estimate"] == pytest.approx(25 / 60 - 1, abs=0.02)
    assert found["wrote"][0] == str(tmp_path / "some" / "report.html")
    arguments = ["sweep", "run", "tests.sweep_definition", "--results", str(tmp_path / "sweeps"), "--workers", "1"]
    assert cli.main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["figures"][0]["figure"] == "made_up"
    assert "stage 1 of 2" in said.err
    # `status` takes the folder of all sweeps, as `run` does, or that of one.
    for folder in (tmp_path / "sweeps", tmp_path / "sweeps" / "made_up-quick"):
        assert cli.main(["sweep", "status", "--results", str(folder), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        one = found[0] if isinstance(found, list) else found
        assert (one["total"], one["done"], one["running"]) == (7, 7, False)


def test_numbers_that_json_does_not_know_are_null():
    value = {"a": float("nan"), "b": [float("inf"), 1.5], "c": pathlib.Path("x"), "d": None}
    assert options.plain(value) == {"a": None, "b": [None, 1.5], "c": "x", "d": None}


def test_arguments_are_checked_before_anything_is_registered(tmp_path, capsys):
    import numpy as np

    train, test = make_data(30), make_data(24, seed=1)
    arrays, store = tmp_path / "small.npz", tmp_path / "store"
    np.savez(arrays, x_train=train.images, y_train=train.labels, x_test=test.images, y_test=test.labels)
    line = ["cifar10", "train", "--arrays", str(arrays), "--store", str(store), "--width", "0.05", "--members", "1"]
    assert cli.main([*line, "--num-train", "31"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not store.exists()
    # Without --num-train it is all of the arrays' images, as the help says.
    args = argparse.Namespace(**parse(shlex.join(line)))
    from tf_ensembles.benchmarks.commands.cifar10 import train as training

    assert training._first_member(args, replicas=1).num_train == 30
