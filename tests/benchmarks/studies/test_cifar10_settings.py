"""How CIFAR10's weight decay and prior scale are chosen, from made-up scores, and that figures use what was chosen."""

import pathlib
import shutil

import pandas as pd
import pytest

from tests import image_rows
from tf_ensembles.benchmarks.figures import base, registry
from tf_ensembles.benchmarks.figures import tables as tables_lib
from tf_ensembles.benchmarks.figures.cifar10 import runs as cifar10_runs
from tf_ensembles.benchmarks.studies import cifar10_settings
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import runs as functions

FIGURE = cifar10_settings.FIGURE
FIGURES = registry.select(["F3", "F4", "F5", "F11"])
RESULTS = pathlib.Path(__file__).parents[3] / "benchmarks" / "results" / "cifar10"


def _score(config):
    """Ensemble-n is best with decay 10; scale 3 is best of 3 members, 30 of more."""
    marginal = 2.0 + 0.1 * abs(config["weight_decay"] - 10.0) - (0.5 if config["num_train"] == 1000 else 0.0)
    joint = 20.0 - config["first_member"] / 100
    if config["prior_scale"]:
        joint *= 0.9 + 0.001 * abs(config["prior_scale"] - (3.0 if config["num_members"] == 3 else 30.0))
    return {"nll_marginal": marginal, "nll_joint": joint, "accuracy": 0.3}


def _rows(preset):
    return image_rows.make(FIGURE, preset, _score)


def test_both_are_chosen_on_images_and_members_of_no_figure(tmp_path):
    rows, members = _rows("standard")
    assert {run.config["data"] for run in members} == {"cifar10-validation"}
    figures = {
        member_config.from_dict(run.config).seed
        for figure in FIGURES
        for stage in figure.stages(figure.presets["standard"], {})
        for run in stage([])
        if run.kind == functions.TRAIN
    }
    assert {run.config["seed"] for run in members}.isdisjoint(figures)
    assert len({run.id for run in members}) == len({run.hash for run in members})
    # Five members for each decay; with the best, fifteen of n and of p at four scales, five of n being there already.
    decays = len(cifar10_settings.DECAYS)
    assert len({run.hash for run in members}) == 3 * (5 * decays + 5 * 15 - 5)

    assert cifar10_settings.choose_decay("standard", rows) == 10.0
    base.write(FIGURE, FIGURE.presets["standard"], rows, tmp_path)
    table = pd.read_csv(tmp_path / "settings_standard.csv")
    chosen = table[table.chosen]
    assert set(chosen[chosen.question == "weight decay"].weight_decay) == {10.0}
    scales = chosen[chosen.question == "prior scale"].groupby("num_members").prior_scale.unique()
    assert {members: list(scales[members]) for members in scales.index} == {3: [3.0], 10: [30.0], 15: [30.0]}
    # Five disjoint ensembles of three members: the mean of their scores.
    mine = table[(table.num_members == 3) & (table.prior_scale == 3.0)]
    assert mine.nll_joint.tolist() == pytest.approx([0.9 * (20.0 - 0.06)] * 3, abs=1e-5)


def test_a_part_of_the_grid_is_not_chosen_from():
    rows, _ = _rows("quick")
    with pytest.raises(ValueError, match=r"ensembles to choose from\. Received: 1 missing"):
        cifar10_settings.choose_decay("quick", rows[1:])
    with pytest.raises(ValueError, match="Expected preset quick or standard: the paper states its own"):
        FIGURE.stages("paper", {})
    assert "paper" not in FIGURE.presets


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_figures_use_what_was_chosen(preset):
    chosen = pd.read_csv(RESULTS / f"settings_{preset}.csv").query("chosen")
    (decay,) = set(chosen[chosen.question == "weight decay"].weight_decay)
    for figure in FIGURES:
        assert {problem.weight_decay for problem in figure.presets[preset].problems} == {decay}
    scales = chosen[chosen.question == "prior scale"].groupby("num_members").prior_scale.first()
    for figure in FIGURES[:-1]:  # Figure 11 has the paper's scale at every ensemble size.
        assert figure.presets[preset].prior_scales == (scales[figure.presets[preset].num_members],)


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_the_committed_tables_are_drawn(preset, tmp_path):
    shutil.copy(RESULTS / f"settings_{preset}.csv", tmp_path)
    tables = tables_lib.Tables(tmp_path, "cifar10")
    base.draw(FIGURE, tables, tmp_path)
    assert {path.suffix for path in tmp_path.glob("cifar10_settings.*")} == {".csv", ".png", ".svg"}
    assert "0.03" in FIGURE.caption(tables)  # At the end of what was tried, and the caption says so.
    header, rows = FIGURE.chosen(tables)
    assert {row[header.index("question")] for row in rows} == {"weight decay", "prior scale"}


def test_ids_of_runs_tell_candidates_apart():
    size = cifar10_settings._size("quick", 3.0, 3, 15)
    run = cifar10_runs.member_runs(size.problems[0], [cifar10_runs.Agent("ensemble-n")], size, 0)[0]
    assert run.id.startswith("cifar10-validation/decay3/T10-")
