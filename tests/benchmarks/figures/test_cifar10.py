"""CIFAR10 figures: what is run, what is shared, and what tables say, from rows made up with known effects."""

import itertools
import json

import numpy as np
import pandas as pd
import pytest

from tf_ensembles.benchmarks.figures import base, registry, tables
from tf_ensembles.benchmarks.studies import cifar10_bootstrap, cifar10_largest, cifar10_memorized
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import runs as functions

FIGURES = {figure.name: figure for figure in registry.select(["cifar10"])}
FIGURE_3, FIGURE_4, FIGURE_11 = (FIGURES[f"figure_{number}"] for number in (3, 4, 11))
COLUMNS = {
    "agent",
    "seed",
    "num_train",
    "num_members",
    "prior_scale",
    "bootstrap_probability",
    "nll_marginal",
    "nll_joint",
    "accuracy",
    "ece",
}


def _runs(figure, preset):
    runs = list(itertools.chain(*(stage([]) for stage in figure.stages(figure.presets[preset], {}))))
    trained = [run for run in runs if run.kind == functions.TRAIN]
    return trained, [run for run in runs if run.kind == functions.EVALUATE]


def _scores(config):
    """Joint NLL: a prior takes off a fifth, a bootstrap adds a tenth, and a block of members has an offset."""
    block = config["first_member"] / 1000
    joint = 20.0 + block
    if config["prior_scale"]:
        joint *= 0.8 + 0.001 * abs(config["prior_scale"] - 3.0)
    if config["bootstrap_probability"]:
        joint *= 1.1
    return {
        "nll_marginal": 2.0 + block,
        "nll_marginal_error": 0.1,
        "nll_joint": joint,
        "nll_joint_error": 0.1,
        "accuracy": 0.3,
        "ece": 0.1,
    }


def _rows(figure, preset):
    found = []
    for run in _runs(figure, preset)[1]:
        found.append({"id": run.id, "hash": run.hash, **run.config, **_scores(run.config)})
    return found


def _write(figure, preset, rows, folder):
    return base.write(figure, figure.presets[preset], rows, folder)


def _table(figure, preset, rows, folder):
    """The table of a figure, as it is read back from what is kept of rows."""
    _write(figure, preset, rows, folder)
    return tables.Tables(folder, "cifar10").of(figure)


@pytest.mark.parametrize(
    ("name", "members", "ensembles"),
    [
        # Five seeds of 100 members of n and p, and five networks of vgg, which are scored alone.
        ("figure_3", 4 * 5 * (200 + 5), 4 * 5 * (5 + 2)),
        ("figure_10", 4 * 5 * (200 + 5), 4 * 5 * (5 + 2)),
        # n, and p and three bp at four prior scales; ten members and five seeds each.
        ("figure_4", 4 * 17 * 50, 4 * 17 * 5),
        # Without prior and bootstrap, p is n: trained once, scored as both.
        ("figure_5", (1 + 4 + 15) * 50, (1 + 5 + 15) * 5),
        ("figure_11", 4 * 5 * 5 * 100, 4 * 5 * 5 * 5),
    ],
)
def test_paper_preset_is_the_papers_size(name, members, ensembles):
    trained, scored = _runs(FIGURES[name], "paper")
    assert (len(trained), len(scored)) == (members, ensembles)
    assert len({run.id for run in trained + scored}) == len(trained) + len(scored)
    configs = [member_config.from_dict(run.config) for run in trained]
    rates = {10: 1e-4, 100: 1e-3, 1000: 1e-2, 50_000: 2.5e-2}
    for config in configs:
        assert (config.epochs, config.batch_size, config.width, config.num_test) == (400, 128, 1.0, None)
        assert config.weight_decay == 30.0
        assert config.learning_rate == rates[config.num_train]
    noise = {"figure_5": "figure_5", "figure_11": "figure_11"}.get(name, "none")
    assert {config.noise for config in configs} == {noise}


def test_every_ensemble_has_its_members_trained_and_seeds_share_none():
    for figure in FIGURES.values():
        trained, scored = _runs(figure, "quick")
        keys = {member_config.from_dict(run.config).key for run in trained}
        blocks = {}
        for run in scored:
            members = functions.ensemble_from_dict(run.config).members
            assert {member.key for member in members} <= keys
            blocks.setdefault(run.id.rsplit("/", 1)[0], []).append({member.key for member in members})
        for seeds in blocks.values():
            assert sum(map(len, seeds)) == len(set().union(*seeds))


def test_figures_share_members():
    trained = {name: {run.hash for run in _runs(figure, "quick")[0]} for name, figure in FIGURES.items()}
    assert trained["figure_3"] == trained["figure_10"]
    # Five seeds of three members of n, and of p, on the one training set that both have.
    assert len(trained["figure_3"] & trained["figure_4"]) == 5 * 3 * 2
    standard = {name: {run.hash for run in _runs(FIGURES[name], "standard")[0]} for name in ("figure_3", "figure_4")}
    # Ensembles of half the size: the first half of n, and of p at the scale that both have, on three training sets.
    assert len(standard["figure_3"] & standard["figure_4"]) == 3 * 2 * 50


def test_smaller_presets_name_their_problems_apart():
    for preset in ("quick", "standard", "paper"):
        problems = {problem for figure in FIGURES.values() for problem in figure.presets[preset].problems}
        assert len({problem.id for problem in problems}) == len(problems)


@pytest.mark.parametrize("name", FIGURES)
def test_figures_write_tables_and_pictures(name, tmp_path):
    lines = _write(FIGURES[name], "quick", _rows(FIGURES[name], "quick"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "checksums.json",
        f"{name}.csv",
        f"{name}_runs.csv",
        f"{name}.png",
        f"{name}.svg",
    }
    runs = pd.read_csv(tmp_path / f"{name}_runs.csv")
    assert set(runs.columns) >= COLUMNS
    assert not runs[list(COLUMNS)].isna().any().any()
    assert not runs.duplicated(
        ["agent", "seed", "num_train", "num_members", "prior_scale", "bootstrap_probability"]
    ).any()
    assert any("ensemble-p against ensemble-n" in line for line in lines)


def test_figure_3_says_what_the_rows_say(tmp_path):
    _write(FIGURE_3, "quick", _rows(FIGURE_3, "quick"), tmp_path)
    table = pd.read_csv(tmp_path / "figure_3.csv").set_index(["panel", "series"])
    joint, marginal = "dyadic NLL of 10 labels", "marginal NLL"
    # Blocks of three members, scored by their first. A vgg is a network of its own, from a million on.
    offsets = 20.0 + np.arange(0, 15, 3) / 1000
    single = 20.0 + (1_000_000 + np.arange(5)) / 1000
    expected = 0.8 * offsets.mean() / single.mean()
    assert table.loc[(joint, "ensemble-p"), "estimate"] == pytest.approx(expected, rel=1e-5)  # Six digits are kept.
    assert table.loc[(joint, "vgg"), "estimate"] == 1.0
    difference = table.loc[(f"{joint}, relative difference", "ensemble-p against ensemble-n")]
    assert difference["estimate"] == pytest.approx(-0.2)
    assert -0.2 * offsets.max() / offsets.mean() <= difference["low"] <= difference["estimate"]
    assert difference["verdict"] == "lower"
    first = table.loc[(f"{marginal}, relative difference", "ensemble-n against vgg")]
    assert first["estimate"] == pytest.approx((offsets.mean() - 18.0) / (single.mean() - 18.0) - 1.0, rel=1e-4)


def test_figure_4_takes_the_scale_that_is_best_on_other_seeds(tmp_path):
    rows = _rows(FIGURE_4, "paper")
    lucky = next(row for row in rows if row["prior_scale"] == 10.0 and row["num_train"] == 10)
    lucky["nll_joint"] = 1.0  # One seed on which the scale that is worse elsewhere does wonders.
    chosen = _table(FIGURE_4, "paper", rows, tmp_path)
    mine = chosen[(chosen.agent == "ensemble-p") & (chosen.num_train == 10)].sort_values("seed")
    assert mine.prior_scale.tolist() == [3.0, 10.0, 10.0, 10.0, 10.0]
    assert len(chosen) == len(chosen.drop_duplicates(["num_train", "agent", "seed"])) == 4 * 5 * 5


def test_verdicts_with_enough_seeds(tmp_path):
    _write(FIGURE_3, "standard", _rows(FIGURE_3, "standard"), tmp_path)
    verdicts = pd.read_csv(tmp_path / "figure_3.csv").set_index(["panel", "series"]).verdict
    pair = "ensemble-p against ensemble-n"
    assert verdicts["dyadic NLL of 10 labels, relative difference", pair] == "lower"
    assert verdicts["marginal NLL, relative difference", pair] == "no difference shown"
    assert pd.isna(verdicts["dyadic NLL of 10 labels", "ensemble-p"])


def test_training_sets_with_fewer_seeds_are_left_out(tmp_path):
    rows = [row for row in _rows(FIGURE_3, "standard") if row["num_train"] != 1000]
    size = FIGURE_3.presets["standard"]
    assert set(FIGURE_3.collect(size, rows)["figure_3_runs"].num_train) == {10, 100}
    assert FIGURE_3.collect(size, rows[:7])["figure_3_runs"].seed.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="all ensembles of at least one seed"):
        _write(FIGURE_3, "standard", rows[:6], tmp_path)


def test_figure_11_compares_ensembles_of_one_size(tmp_path):
    rows = _rows(FIGURE_11, "standard")
    for row in rows:
        row["nll_joint"] *= 2.0 if row["num_members"] == 1 else 1.0
    normalized = _table(FIGURE_11, "standard", rows, tmp_path)
    means = normalized[normalized.agent == "ensemble-p"].groupby("num_members").nll_joint.mean()
    assert means.index.tolist() == [1, 3, 10]
    np.testing.assert_allclose(means, 0.8, rtol=1e-9)


def test_figure_10_is_figure_3_training_set_by_training_set(tmp_path):
    rows = _rows(FIGURE_3, "quick")
    for row in rows:
        row["nll_joint"] *= 0.5 if row["num_train"] == 10 and row["prior_scale"] else 1.0
    figure, folder = FIGURES["figure_10"], tmp_path
    _write(FIGURE_3, "quick", rows, folder)
    base.draw(figure, tables.Tables(folder, "cifar10"), folder)  # It has no table of its own.
    table = pd.read_csv(folder / "figure_10.csv").set_index(["panel", "series"]).sort_index()
    for count, expected in ((10, -0.6), (100, -0.2)):
        row = table.loc[(f"dyadic NLL of 10 labels, T = {count}, relative difference", "ensemble-p against ensemble-n")]
        assert row["estimate"].item() == pytest.approx(expected)


def test_without_cifar10_nothing_starts(monkeypatch, tmp_path, capsys):
    from tf_ensembles.benchmarks.commands import main as cli
    from tf_ensembles.trainers.images import cifar10 as cifar10_data

    def cannot(*args, **kwargs):
        raise ValueError("Expected CIFAR10 in X, or a way to get it. Received: none")

    monkeypatch.setattr(cifar10_data, "prepare_cifar10", cannot)
    assert cli.main(["sweep", "run", "figure_3", "--results", str(tmp_path)]) != 0
    assert "Expected CIFAR10" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert cli.main(["sweep", "run", "figure_3", "--results", str(tmp_path), "--dry-run"]) == 0


def test_configurations_hold_no_place():
    for figure in FIGURES.values():
        for run in itertools.chain(*_runs(figure, "quick")):
            assert "/" not in json.dumps(run.config)


def _large(figure):
    """Trained members, scored ensembles and rows of the large preset; the joint NLL is best at scale 3."""
    size, rows, trained, scored = figure.presets["large"], {}, {}, {}
    for stage in figure.stages(size, {}):
        for run in stage(list(rows.values())):
            if run.kind == functions.TRAIN:
                trained[run.hash] = run.config
            else:
                scored[run.hash] = run.config
                rows[run.hash] = {"id": run.id, "hash": run.hash, **run.config, **_scores(run.config)}
    return trained, scored, list(rows.values())


STUDIES = {"largest": cifar10_largest.FIGURE, "memorized": cifar10_memorized.FIGURE}
LARGE = {**{name: figure for name, figure in FIGURES.items() if name != "figure_10"}, **STUDIES}
TUNED = ("figure_4", "figure_5", "largest")


@pytest.mark.parametrize("name", LARGE)
def test_large_seeds_have_their_own_images_and_label_noise(name, tmp_path):
    figure = LARGE[name]
    trained, scored, rows = _large(figure)
    reported = [config for config in scored.values() if config["data"] == "cifar10"]
    small = [config for config in reported if config["num_train"] < 50_000]
    assert {config["subset"] for config in small} == ({f"balanced-{k}" for k in range(1, 6)} if small else set())
    noise = {config["noise_seed"] for config in reported}
    assert noise == (set(range(1, 6)) if name in ("figure_5", "figure_11", "memorized") else {0})
    keys = {member_config.from_dict(config).key for config in trained.values()}
    for config in scored.values():
        assert {member.key for member in functions.ensemble_from_dict(config).members} <= keys
    made = figure.collect(figure.presets["large"], rows)
    runs = made[f"{figure.name}_runs"]
    assert runs.seed.nunique() == 5
    if name not in TUNED:  # One scale, and nothing to choose.
        assert {config["data"] for config in scored.values()} == {"cifar10"}
        assert set(made) == {f"{figure.name}_runs"}
        return
    tuned = [config for config in scored.values() if config["data"] == "cifar10-validation"]
    assert tuned
    assert max(config["num_train"] for config in tuned) <= 45_000
    fields = ("subset", "noise_seed", "first_member")
    assert not {tuple(c[f] for f in fields) for c in tuned} & {tuple(c[f] for f in fields) for c in reported}
    with_prior = runs[runs.agent.isin(["ensemble-p", "ensemble-bp"])]
    assert set(with_prior.prior_scale) == {3.0}
    _write(figure, "large", rows, tmp_path)
    written = tables.Tables(tmp_path, "cifar10")
    assert "3" in {row[-1] for row in figure.chosen(written)[1]}
    assert "by dyadic NLL on held-out training images" in figure.caption(written)
    with pytest.raises(ValueError, match=r"candidates to choose prior scales from\. Received: 1 missing"):
        figure.stages(figure.presets["large"], {})[-1](rows[1:])


def test_large_blocks_are_as_large_as_they_were_designed():
    """Members and training images of every block; written down before any of them ran."""
    blocks = {
        "A": (["figure_3", "figure_4"], 4155, 31.9),
        "B": (["figure_11"], 4800, 36.8),
        "C": (["figure_5"], 220, 90.6),
        "D": (["memorized"], 150, 44.9),
        "E": (["largest"], 280, 80.2),
    }
    for block, (names, members, images) in blocks.items():
        trained = {key: config for name in names for key, config in _large(LARGE[name])[0].items()}
        configs = [member_config.from_dict(config) for config in trained.values()]
        assert len(configs) == members, block
        assert sum(config.num_steps * config.batch for config in configs) / 1e6 == pytest.approx(images, abs=0.05), (
            block
        )
        tested = {(config.num_train, config.num_test) for config in configs if config.data == "cifar10"}
        assert all((count <= 100) == (num_test == 2000) for count, num_test in tested)
        assert {num_test for count, num_test in tested if count > 100} <= {None}


def test_large_agents_have_the_scales_epochs_and_members_of_the_design():
    def configs(name, data):
        return [config for config in _large(LARGE[name])[1].values() if config["data"] == data]

    def scales(name, probability):
        tuned = configs(name, "cifar10-validation")
        return sorted({config["prior_scale"] for config in tuned if config["bootstrap_probability"] == probability})

    assert scales("figure_5", None) == [1.0, 3.0, 10.0]  # Without a prior, p is n.
    assert scales("figure_5", 0.9) == [0.0, 1.0, 3.0, 10.0]
    assert scales("figure_4", None) == scales("figure_4", 0.5) == [1.0, 3.0, 10.0, 30.0]
    assert scales("largest", None) == [3.0, 10.0, 30.0]
    assert {config["epochs"] for config in configs("figure_5", "cifar10-validation")} == {5}
    assert {(c["num_train"], c["epochs"]) for c in configs("largest", "cifar10-validation")} == {
        (10_000, 7),
        (45_000, 5),
    }
    assert {(c["num_train"], c["epochs"]) for c in configs("largest", "cifar10")} == {(10_000, 15), (50_000, 10)}
    assert {(c["num_train"], c["epochs"]) for c in configs("figure_11", "cifar10")} == {
        (10, 100),
        (100, 20),
        (1000, 20),
    }
    sizes = {}
    for config in configs("figure_11", "cifar10"):
        sizes.setdefault(config["bootstrap_probability"], set()).add(config["num_members"])
    assert sizes == {None: {1, 3, 10, 30, 100}, 0.9: {1, 3, 10, 30, 100}, 0.5: {1, 3, 10}, 0.75: {1, 3, 10}}


def test_large_clean_figures_are_nested_and_vgg_has_networks_of_its_own():
    """Figure 4's ten members are the first of figure 3's hundred; no other large figures share any."""
    members = {}
    for name, figure in LARGE.items():
        trained, scored, _ = _large(figure)
        members[name] = {member_config.from_dict(config) for config in trained.values()}
        if name in ("figure_3", "largest"):
            single = {config["first_member"] for config in scored.values() if config["num_members"] == 1}
            assert len(single) == 5 * figure.presets["large"].own_vgg
            assert min(single) >= 1_000_000
    shared = members["figure_3"] & members["figure_4"]
    assert {(config.member // 100, config.member % 100) for config in shared} == set(
        itertools.product(range(5), range(10))
    )
    assert {config.prior_scale for config in shared} == {0.0}  # Of p, too, where scale 30 is chosen.
    others = [name for name in members if name != "figure_4"]
    keys = [config.key for name in others for config in members[name]]
    assert len(keys) == len(set(keys))


def test_bootstrap_study_adds_one_agent_to_figure_5():
    study, figure = cifar10_bootstrap.FIGURE, FIGURES["figure_5"]
    assert (study.name, study.sweep_folder("large")) == (figure.name, figure.sweep_folder("large"))
    added = set(_large(study)[0]) - set(_large(figure)[0])
    assert set(_large(figure)[0]) < set(_large(study)[0])
    assert len(added) == 4 * 10 + 5 * 10


def test_figures_3_and_10_show_larger_training_sets_where_they_are_there(tmp_path):
    _write(FIGURE_3, "large", _large(FIGURE_3)[2], tmp_path)
    assert set(tables.Tables(tmp_path, "cifar10").of(FIGURE_3).num_train) == {10, 100, 1000}
    _write(STUDIES["largest"], "large", _large(STUDIES["largest"])[2], tmp_path)
    written = tables.Tables(tmp_path, "cifar10")
    for figure in (FIGURE_3, FIGURES["figure_10"]):
        assert set(written.of(figure).num_train) == {10, 100, 1000, 10_000, 50_000}
    assert set(written.of(STUDIES["largest"]).num_train) == {10_000, 50_000}


def test_seeds_and_candidates_are_scored_piece_by_piece_and_scored_members_are_not_trained_again():
    figure = FIGURES["figure_5"]
    size, rows, pieces = figure.presets["large"], {}, []
    stages = figure.stages(size, {})
    for train, score in zip(stages[::2], stages[1::2], strict=True):
        known = list(rows.values())
        members = {run.id for run in train(known)}
        scored = score(known)
        needed = {
            m.key for run in scored for m in functions.ensemble_from_dict(run.config).members
        }  # what this piece scores is what it trains
        assert {member_config.from_dict(run.config).key for run in train(known)} == needed
        pieces.append(len(members))
        rows |= {run.hash: {"id": run.id, "hash": run.hash, **run.config, **_scores(run.config)} for run in scored}
        assert train(list(rows.values())) == []  # Their files may be deleted, or be on another machine.
    # 3 candidates of 10 members each for p, 4 for bp; then 3 agents of 10 members in each of 5 seeds.
    assert pieces == [50, 20] + [30] * 5
    # One ensemble whose score is missing is trained again, and no other.
    lost = next(h for h, row in rows.items() if row["data"] == "cifar10" and row["first_member"] == 20)
    left = [row for key, row in rows.items() if key != lost]
    again = [run.config["member"] for train in stages[::2] for run in train(left)]
    assert again == list(range(20, 30))
    # Small presets have few pieces: 15 members per seed, of three seeds and of two; 7, of all five.
    assert len(figure.stages(figure.presets["quick"], {})) == 4
    assert len(FIGURES["figure_3"].stages(FIGURES["figure_3"].presets["quick"], {})) == 4
    # What it took counts all of them, whatever is left of their files.
    assert len(figure.all_runs(size, {}, list(rows.values()))) == 70 + 5 * 30 + 7 + 15
