"""The Fashion-MNIST study at a tiny size: networks as Keras trains them, which resume; scores of what is complete."""

import dataclasses
import gzip
import math

import keras
import numpy as np
import pytest
from scipy import ndimage

import tf_ensembles as tfe
from benchmarks.studies.fashion import compare, data, networks, preset, runs, table, training
from tf_ensembles.ensemble.members import building

RANDOM = np.random.default_rng(0)
SIZE = preset.Size(num_members=2, steps=6, batch=16, choice_members=1, choice_steps=2, scales=(1.0,), rates=(0.5,))


def images(count):
    return data.Images(RANDOM.random((count, 28, 28, 1), np.float32), RANDOM.integers(0, 10, count))


@pytest.fixture(scope="module")
def sets():
    return {"train": images(64), "heldout": images(20), "test": images(20), "mnist": images(20)}


@pytest.mark.slow
def test_a_member_is_trained_as_keras_trains_it_and_resumes(sets, tmp_path, monkeypatch):
    member = preset.Member("ensemble-bp", 3, 1, steps=6, batch=16, learning_rate=1e-3, prior_scale=2.0, rate=0.5)
    whole = training._train(member, sets, ["heldout"], tmp_path / "none")
    monkeypatch.setattr(training, "_CHECKPOINT_STEPS", 4)
    graph = training._graph(16)
    kept = []
    monkeypatch.setattr(training, "_keep", lambda path, step, own: (keep(path, step, own), kept.append(step)))
    training._train(member, sets, ["heldout"], tmp_path / "checkpoint")
    assert kept == [4]
    graph.weights[0].assign(0.0 * graph.weights[0])  # What it left is not what it goes on from.
    again = training._train(member, sets, ["heldout"], tmp_path / "checkpoint")
    np.testing.assert_array_equal(again["heldout"], whole["heldout"])

    with building.seeded(3, 1):
        network = training.build_lenet()
    with building.seeded(building.prior_seed(3), 1):
        prior = training.vgg.build_conv_prior((28, 28, 1), 10)
    known = [np.asarray(prior(sets[name].x)) for name in ("train", "heldout")]
    added = [2.0 * (part - known[0].mean(0)) / known[0].std(0) for part in known]
    weights = np.asarray(tfe.Bernoulli(0.5).weights(3, np.arange(64), np.array([1])))[:, 0]
    assert set(weights) == {0.0, 2.0}
    optimizer = keras.optimizers.Adam(1e-3)
    rows = training._rows(member, 64, 0, 6)
    assert sorted(rows[:4].ravel()) == list(range(64))  # an epoch reads every image once
    import tensorflow as tf

    for batch in rows:
        with tf.GradientTape() as tape:
            entropies = keras.losses.sparse_categorical_crossentropy(
                sets["train"].y[batch], network(sets["train"].x[batch]) + added[0][batch], from_logits=True
            )
            loss = tf.reduce_mean(entropies * weights[batch])
        optimizer.apply(tape.gradient(loss, network.trainable_variables), network.trainable_variables)
    # Six steps of Adam in float32: each moves a weight by 1e-3 at most, and rounding turns a few of them.
    np.testing.assert_allclose(whole["heldout"], np.asarray(network(sets["heldout"].x)) + added[1], atol=2e-3)


keep = training._keep


@pytest.mark.slow
@pytest.mark.parametrize("method", [preset.EPINET, preset.DROPOUT])
def test_a_method_of_one_network_is_trained_chosen_and_averaged(method, sets, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "SHIFTS", {"blur": (1.0,)})
    monkeypatch.setattr(runs, "SETS", ("test", "mnist", "blur-1"))
    monkeypatch.setattr(data, "load", lambda folder: sets)
    size = dataclasses.replace(
        SIZE, steps=5, scales=(0.5, 1.0), num_networks=2, dropout_rates=(0.1, 0.2), epinet_draws=4, dropout_draws=3
    )
    stored, trained = [], []
    monkeypatch.setattr(runs.store, "read_results", lambda folder: stored)
    fit = networks._fit
    monkeypatch.setattr(networks, "_fit", lambda model, *rest: (fit(model, *rest), trained.append(model)))
    assert runs.choose_value(size, tmp_path, method) is None

    def run(those, names):
        for one in those:
            made = runs._network_run(one, names, tmp_path)
            stored.append({**made.config, "hash": made.hash, **networks.train_network(made.config, folder="")})
            yield stored[-1]

    choices = [one for v in preset.values(size, method) for one in preset.networks(size, method, v, choice=True)]
    scores = [row["heldout_dyadic_nll"] for row in run(choices, ["heldout"])]
    best = preset.values(size, method)[int(np.argmin(scores))]
    assert runs.choose_value(size, tmp_path, method) == best
    assert table.complete_networks(size, tmp_path, method) == []
    rows = list(run(preset.networks(size, method, best), runs.SETS))
    assert [int(model.optimizer.iterations) for model in trained] == [2, 2, 5, 5]
    assert table.complete_networks(size, tmp_path, method)[1] == rows[1]
    found = {(row.images, row.score): row for row in table.score_all(size, tmp_path, tmp_path) if row.agent == method}
    both = [row["blur-1|nll"] for row in rows]
    assert both[0] != both[1]
    assert found["blur-1", "nll"].value == pytest.approx(np.mean(both))
    assert found["blur-1", "nll"].error == pytest.approx(abs(both[0] - both[1]) / 2)
    if method == preset.EPINET:  # The score is that of the trained model.
        logits = trained[-1].predict(sets["test"].x, verbose=0)
        assert logits.shape == (20, 4, 10)
        assert rows[1]["test|nll"] == pytest.approx(tfe.metrics.marginal_nll(logits, sets["test"].y), rel=1e-5)


def test_choices_leave_out_what_reported_members_train_on(sets):
    """Choices are judged on images that their members have not seen; what is published was trained on all."""
    reported, tried = preset.members(SIZE, preset.P, 1.0)[0], preset.members(SIZE, preset.P, 1.0, choice=True)[0]
    assert len(data.train_on(sets, reported.whole).y) == len(sets["train"].y) + len(sets["heldout"].y)
    np.testing.assert_array_equal(data.train_on(sets, reported.whole).x[-20:], sets["heldout"].x)
    np.testing.assert_array_equal(data.train_on(sets, tried.whole).x, sets["train"].x)
    assert reported.name != dataclasses.replace(reported, whole=False).name


def test_shifts_are_what_they_are_called():
    x = np.zeros((3, 28, 28, 1), np.float32)
    x[:, 4:8, 13:15] = 1.0
    turned = data.shifted(x, "rotation-30")
    np.testing.assert_allclose(turned[1, ..., 0], ndimage.rotate(x[1, ..., 0], 30, (1, 0), False, order=1), atol=1e-6)
    blurred = data.shifted(x, "blur-2")
    np.testing.assert_allclose(blurred[2, ..., 0], ndimage.gaussian_filter(x[2, ..., 0], 2.0), atol=1e-6)
    gray = np.full((50, 28, 28, 1), 0.5, np.float32)
    noise = data.shifted(gray, "noise-0.1") - gray
    assert abs(noise.std() - 0.1) < 5 * 0.1 / math.sqrt(2 * noise.size)
    assert data.shift_names()[0] == "rotation-15"
    assert len(data.shift_names()) == 9


def test_files_of_the_data_set_are_read_and_others_refused(tmp_path):
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    pixels = RANDOM.integers(0, 256, (5, 28, 28), np.uint8)
    header = bytes([0, 0, 8, 3]) + np.array([5, 28, 28], ">u4").tobytes()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
    np.testing.assert_array_equal(data._idx(folder / "train-images-idx3-ubyte.gz"), pixels)
    with pytest.raises(ValueError, match=r"Expected train-labels-idx1-ubyte or .* fetches the data"):
        data.load(str(tmp_path))
    for name in data._FILES[1:]:
        (folder / f"{name}.gz").write_bytes((folder / "train-images-idx3-ubyte.gz").read_bytes())
    with pytest.raises(ValueError, match="Expected the images and labels of fashion-mnist"):
        data.load(str(tmp_path))


def test_what_is_complete_is_scored_stored_and_drawn(sets, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "SHIFTS", {"blur": (1.0,)})
    monkeypatch.setattr(runs, "SETS", ("test", "mnist", "blur-1"))
    monkeypatch.setattr(data, "load", lambda folder: sets)
    store = tmp_path / "members"
    store.mkdir()

    def train(members, names):
        for member in members:
            logits = {name: RANDOM.normal(size=(20, 10)).astype(np.float32) for name in names}
            training.files.write_arrays(training.file_of(store, member), logits)

    assert table.complete(SIZE, tmp_path, tmp_path) == {}
    train(preset.members(SIZE, preset.N), runs.SETS)
    train(preset.members(SIZE, preset.P, 1.0)[:1], runs.SETS)  # not the whole ensemble, and no choice yet
    assert list(table.complete(SIZE, tmp_path, tmp_path)) == [preset.N]
    train(preset.members(SIZE, preset.P, 1.0, choice=True), ["heldout"])
    train(preset.members(SIZE, preset.P, 1.0), runs.SETS)
    assert list(table.complete(SIZE, tmp_path, tmp_path)) == [preset.N, preset.P]

    rows = table.score_all(SIZE, tmp_path, tmp_path)
    found = {(row.agent, row.images, row.score): row for row in rows}
    logits = training.read_logits(store, preset.members(SIZE, preset.N), "blur-1")
    assert found[preset.N, "blur-1", "nll"].value == tfe.metrics.marginal_nll(logits, sets["test"].y)
    alone = [tfe.metrics.marginal_nll(logits[:, [m]], sets["test"].y) for m in range(2)]
    assert found[preset.ONE, "blur-1", "nll"].value == pytest.approx(np.mean(alone))
    assert found[preset.ONE, "blur-1", "nll"].error == pytest.approx(abs(alone[0] - alone[1]) / 2)
    table.write(tmp_path / "scores.csv", {"chosen": 1}, rows)
    settings, stored = table.read(tmp_path / "scores.csv")
    assert settings == {"chosen": 1}
    for row, again in zip(rows, stored, strict=True):
        expected = dataclasses.astuple(row)[3:]
        assert dataclasses.astuple(again)[3:] == pytest.approx(expected, rel=6e-3, nan_ok=True)
    both = training.read_logits(store, preset.members(SIZE, preset.N), "test")
    one = [tfe.metrics.marginal_nll(both[:, [m]], sets["test"].y) for m in range(2)]
    over = found[preset.N, "test", table.OVER_MEMBERS]
    assert over.value == found[preset.N, "test", "nll"].value
    assert over.error == pytest.approx(abs(one[0] - one[1]) / 2)  # the jackknife of two
    text = table.markdown(stored)
    assert f"error over members: ensemble-n {over.value:.4f} ± " in text
    assert "| published, ensemble-n | 93.2% | 0.200 | 0.010 |" in text
    assert "| ensemble-p | " in text
    assert "ensemble-bp" not in text
    assert [path.suffix for path in table.draw(stored, tmp_path / "shift")] == [".png", ".svg"]


def ensemble(random, labels, skill, spread, members=6):
    """Logits `[images, members, classes]` that know the label by `skill`; images and members differ by chance."""
    known = skill * np.eye(10)[labels] + random.normal(size=(len(labels), 10))
    return (known[:, None] + spread * random.normal(size=(len(labels), members, 10))).astype(np.float32)


@pytest.mark.parametrize("source", ["members", "images"])
def test_differences_are_those_of_the_scores_and_as_wide_as_chance_makes_them(source):
    """Two ensembles alike, but for what members or images do by chance: 95% of intervals hold 0, or a few more."""
    random = np.random.default_rng(3)
    images, count = (2000, 50) if source == "members" else (120, 150)  # Members' share does not shrink with images.
    held, shape = [], (1, 6, 10) if source == "members" else (images, 1, 10)
    for _ in range(count):
        labels = random.integers(0, 10, images)
        common = 2.0 * np.eye(10)[labels][:, None] + random.normal(size=(images, 1, 10))
        own = [random.normal(size=shape) + 0.1 * random.normal(size=(images, 6, 10)) for _ in range(2)]
        pair = [[(common + part).astype(np.float32)] for part in own]
        interval = compare._difference(compare._of_labels("nll", labels), pair)
        scores = [tfe.metrics.marginal_nll(part[0], labels) for part in pair]
        assert interval.estimate == pytest.approx(scores[0] - scores[1], abs=1e-12)
        held.append(not interval.excludes(0.0))
    # Four standard deviations. Five degrees of freedom are too few for images, which have more: it errs to that side.
    assert np.mean(held) > 0.95 - 4 * math.sqrt(0.95 * 0.05 / count)


def test_pairs_that_are_there_are_compared_on_every_set(sets, monkeypatch):
    monkeypatch.setattr(data, "SHIFTS", {"blur": (1.0,)})
    random, labels = np.random.default_rng(4), RANDOM.integers(0, 10, 200)
    agents = {name: {} for name in (preset.N, preset.P)}
    for name, skill in ((preset.N, 1.0), (preset.P, 4.0)):
        for images_of in ("test", "blur-1"):
            agents[name][images_of] = ensemble(random, labels, skill, 0.5)
        agents[name]["mnist"] = ensemble(random, labels, 0.0, 0.5 * skill)
    found = compare.differences(agents, labels)
    assert {key[:2] for key in found} == {(preset.P, preset.N)}
    assert found[preset.P, preset.N, "blur-1", "dyadic_nll"].high < 0.0
    assert found[preset.P, preset.N, "mnist", "auroc, mutual_information"].low > 0.0
    text = compare.markdown(found)
    assert "| images | ensemble-p less ensemble-n, NLL | ensemble-p less ensemble-n, dyadic NLL |" in text
    assert text.count("\n| ") == 2
    assert "AUROC, mutual information: ensemble-p less ensemble-n: **+" in text
