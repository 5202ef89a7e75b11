"""How CIFAR10's weight decay and prior scale are chosen, from made-up scores, and that figures use what was chosen."""

import pathlib

import pandas as pd
import pytest

from benchmarks.figures.cifar10 import figure_3, figure_4, figure_5, figure_11
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.studies import cifar10_settings
from trainers.images import config as member_config
from trainers.images import runs as functions

RESULTS = pathlib.Path(__file__).parents[3] / "benchmarks" / "results" / "cifar10"


def _score(config):
    """Ensemble-n is best with decay 10; scale 3 is best of 3 members, 30 of more."""
    marginal = 2.0 + 0.1 * abs(config["weight_decay"] - 10.0) - (0.5 if config["num_train"] == 1000 else 0.0)
    joint = 20.0 - config["first_member"] / 100
    if config["prior_scale"]:
        joint *= 0.9 + 0.001 * abs(config["prior_scale"] - (3.0 if config["num_members"] == 3 else 30.0))
    return {"nll_marginal": marginal, "nll_joint": joint, "accuracy": 0.3}


def _rows(preset):
    rows, members = [], []
    for stage in cifar10_settings.stages(preset):
        for run in stage(rows):
            if run.kind == functions.TRAIN:
                members.append(run)
            else:
                rows.append({"id": run.id, "hash": run.hash, **run.config, **_score(run.config)})
    return rows, members


def test_both_are_chosen_on_images_and_members_of_no_figure(tmp_path):
    rows, members = _rows("standard")
    assert {run.config["data"] for run in members} == {"cifar10-validation"}
    figures = {
        member_config.from_dict(run.config).seed
        for figure in (figure_3, figure_4, figure_5, figure_11)
        for stage in figure.stages("standard")
        for run in stage([])
        if run.kind == functions.TRAIN
    }
    assert {run.config["seed"] for run in members}.isdisjoint(figures)
    assert len({run.id for run in members}) == len({run.hash for run in members})
    # Five members for each decay; with the best, fifteen of n and of p at four scales, five of n being there already.
    decays = len(cifar10_settings.DECAYS)
    assert len({run.hash for run in members}) == 3 * (5 * decays + 5 * 15 - 5)

    assert cifar10_settings.choose_decay("standard", rows) == 10.0
    cifar10_settings.report("standard", rows, tmp_path)
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
        cifar10_settings.stages("paper")


@pytest.mark.parametrize("preset", ["quick", "standard"])
def test_figures_use_what_was_chosen(preset):
    chosen = pd.read_csv(RESULTS / f"settings_{preset}.csv").query("chosen")
    (decay,) = set(chosen[chosen.question == "weight decay"].weight_decay)
    for figure in (figure_3, figure_4, figure_5, figure_11):
        assert {problem.weight_decay for problem in figure.SIZES[preset].problems} == {decay}
    scales = chosen[chosen.question == "prior scale"].groupby("num_members").prior_scale.first()
    for figure in (figure_3, figure_4, figure_5):  # Figure 11 has the paper's scale at every ensemble size.
        assert figure.SIZES[preset].prior_scales == (scales[figure.SIZES[preset].num_members],)


def test_ids_of_runs_tell_candidates_apart():
    size = cifar10_settings._size("quick", 3.0, 3, 15)
    run = cifar10_runs.member_runs(size.problems[0], [cifar10_runs.Agent("ensemble-n")], size, 0)[0]
    assert run.id.startswith("cifar10-validation/decay3/T10-")
