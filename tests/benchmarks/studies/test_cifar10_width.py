"""The check of figure 5 at two widths: what is trained, and that its table tells widths apart."""

import pandas as pd
import pytest

from benchmarks.figures import base, registry
from benchmarks.figures import tables as tables_lib
from benchmarks.studies import cifar10_width
from tests import image_rows
from trainers.images import config as member_config

FIGURE = cifar10_width.FIGURE


def _score(config):
    """At 1/16, p is 10% better than n and bp 10% better than p; at 1/4 bp is 20% worse than p."""
    prior, bootstrap = config["prior_scale"] > 0, config["bootstrap_probability"] is not None
    factor = (0.9 if prior else 1.0) * ((0.9 if config["width"] < 0.1 else 1.2) if bootstrap else 1.0)
    scale = 10.0 if config["width"] < 0.1 else 5.0
    return {"nll_marginal": scale * factor, "nll_marginal_error": 0.0, "nll_joint": 10 * scale * factor} | {
        "nll_joint_error": 0.0,
        "accuracy": 0.5,
        "ece": 0.1,
    }


def _rows(preset):
    return image_rows.make(FIGURE, preset, _score)


def test_widths_share_everything_but_the_width():
    rows, members = _rows("large")
    assert len(rows) == 2 * 3
    assert len({run.hash for run in members}) == len({run.id for run in members}) == 2 * 3 * 3
    configs = [member_config.from_dict(run.config).to_dict() for run in members]
    assert {config.pop("width") for config in configs} == {1 / 16, 1 / 4}
    assert configs[:9] == configs[9:]
    assert {(config["num_train"], config["noise"]) for config in configs} == {(50_000, "figure_5")}


def test_members_are_of_no_figure():
    _, members = _rows("large")
    figures = {figure.presets["large"].seed for figure in registry.select(["F3", "F4", "F5", "F11"])}
    assert {run.config["seed"] for run in members}.isdisjoint(figures)


def test_scores_are_relative_to_the_same_width(tmp_path):
    rows, _ = _rows("quick")
    lines = base.write(FIGURE, FIGURE.presets["quick"], rows, tmp_path)
    assert len(pd.read_csv(tmp_path / "cifar10_width_runs.csv")) == 6
    tables = tables_lib.Tables(tmp_path, FIGURE.part)
    table = FIGURE.table(tables).set_index(["width", "agent"]).nll_joint
    assert table[1 / 16, "ensemble-bp(0.75)"] == pytest.approx(0.81)
    assert table[1 / 4, "ensemble-bp(0.75)"] == pytest.approx(1.08)
    assert table[1 / 4, "ensemble-n"] == 1.0
    told = {name + pair: one.estimate for name, pair, one in FIGURE.differences(tables.of(FIGURE))}
    key = "dyadic NLL of 10 labels, width {}ensemble-bp(0.75) against ensemble-p"
    assert told[key.format("0.0625")] == pytest.approx(-0.1)
    assert told[key.format("0.25")] == pytest.approx(0.2)
    assert "1/16, 1/4" in FIGURE.caption(tables)
    assert not any("nan" in line for line in lines)  # One seed has no interval.


def test_one_width_alone_is_refused():
    rows, _ = _rows("quick")
    with pytest.raises(ValueError, match="at least one seed"):
        FIGURE.collect(FIGURE.presets["quick"], rows[:3])
