"""The Fashion-MNIST study at a tiny size: networks as Keras trains them, choices, scores and their differences."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from scipy import ndimage

import tf_ensembles as tfe
from tf_ensembles.benchmarks.studies.fashion import data, scores, study, training
from tf_ensembles.ensemble.members import building

RANDOM = np.random.default_rng(0)
SIZE = study.Size(
    num_members=2,
    steps=6,
    batch=16,
    choice_members=1,
    choice_steps=2,
    scales=(0.5, 1.0),
    rates=(0.5, 0.8),
    num_networks=2,
    dropout_rates=(0.1, 0.2),
    epinet_draws=4,
    dropout_draws=3,
)


def images(count):
    return data.Images(RANDOM.random((count, 28, 28, 1), np.float32), RANDOM.integers(0, 10, count))


@pytest.fixture
def sets(monkeypatch):
    made = {"train": images(64), "heldout": images(20), "test": images(20), "mnist": images(20)}
    monkeypatch.setattr(data, "SHIFTS", {"blur": (1.0,)})
    monkeypatch.setattr(data, "load", lambda: made)
    return made


@pytest.mark.slow
def test_a_member_is_trained_as_by_a_loop(sets):
    member = study.Member("ensemble-bp", 3, 1, steps=6, batch=16, learning_rate=1e-3, prior_scale=2.0, rate=0.5)
    trained = training.fit_member(member, sets, ["heldout"])["heldout"]
    with building.seeded(3, 1):
        network = training.build_lenet()
    with building.seeded(building.prior_seed(3), 1):
        prior = training.vgg.build_conv_prior((28, 28, 1), 10)
    known = [np.asarray(prior(sets[name].x)) for name in ("train", "heldout")]
    added = [2.0 * (part - known[0].mean(0)) / known[0].std(0) for part in known]
    weights = np.asarray(tfe.Bernoulli(0.5).weights(3, np.arange(64), np.array([1])))[:, 0]
    assert set(weights) == {0.0, 2.0}
    optimizer = keras.optimizers.Adam(1e-3)
    rows = training.batches(member, 64)
    assert rows.shape == (6, 16)
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
    np.testing.assert_allclose(trained, np.asarray(network(sets["heldout"].x)) + added[1], atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("method", [study.EPINET, study.DROPOUT])
def test_a_method_of_one_network_is_trained_and_scored(method, sets, monkeypatch):
    (choice,) = study.make_networks(SIZE, method, 0.5, choice=True)
    network = study.make_networks(SIZE, method, 0.5)[1]
    models = []
    fit = training._fit
    monkeypatch.setattr(training, "_fit", lambda model, *rest: (fit(model, *rest), models.append(model)))
    row = training.train_network({**dataclasses.asdict(choice), "sets": ["heldout"]})
    assert row["heldout_dyadic_nll"] > 0.0
    row = training.train_network({**dataclasses.asdict(network), "sets": study.sets()})
    assert [int(model.optimizer.iterations) for model in models] == [2, 6]
    if method == study.EPINET:  # The score is that of the trained model.
        logits = models[-1].predict(sets["test"].x, verbose=0)
        assert logits.shape == (20, 4, 10)
        assert row["test|nll"] == pytest.approx(tfe.metrics.marginal_nll(logits, sets["test"].y), rel=1e-5)


def test_all_stages_choose_score_and_keep(sets, tmp_path):
    """Members are made up; scale 1 and rate 0.8 are best on held-out images."""
    rows, trained = [], []
    for stage in study.FIGURE.stages(SIZE, {"store": str(tmp_path)}):
        for run in stage(rows):
            config, row = run.config, {}
            if run.kind == study.MEMBER:
                fields = {name: value for name, value in config.items() if name != "sets"}
                member = study.Member(**fields)
                skill = {0.5: 0.0, 1.0: 3.0}.get(member.prior_scale, 1.0) * member.rate
                logits = {
                    name: (skill * np.eye(10)[sets[name if name in sets else "test"].y]).astype(np.float32)
                    + RANDOM.normal(size=(20, 10)).astype(np.float32)
                    for name in config["sets"]
                }
                path = training._file_of(str(tmp_path), member.name)
                path.parent.mkdir(exist_ok=True)
                training.files.write_arrays(path, logits)
                trained.append(member)
            elif run.kind == study.NETWORK and config["sets"] == ["heldout"]:
                row = {"heldout_dyadic_nll": config["value"]}
            elif run.kind == study.NETWORK:
                row = {"test|nll": 1.0 + config["number"]}
            else:
                function = study.score_ensemble if run.kind == study.ENSEMBLE else study.compare_ensembles
                row = function(config, store=str(tmp_path))
            rows.append({"hash": run.hash, **config, **row})
    reported = [member for member in trained if member.whole]
    assert {(member.agent, member.prior_scale, member.rate) for member in reported} == {
        (study.N, 0.0, 1.0),
        (study.P, 1.0, 1.0),
        (study.BP, 1.0, 0.8),
    }
    assert {member.seed for member in trained if not member.whole} == {SIZE.choice_seed}
    tables = study.FIGURE.collect(SIZE, rows)
    table = tables["scores"].set_index(["agent", "images", "score"])
    names = [member.name for member in reported if member.agent == study.N]
    logits = training.read_logits(str(tmp_path), names, study.sets())
    labels = sets["test"].y
    blurred, test = (logits[name] for name in ("blur-1", "test"))
    assert table.value[study.N, "blur-1", "nll"] == pytest.approx(tfe.metrics.marginal_nll(blurred, labels))
    alone = [tfe.metrics.marginal_nll(test[:, [m]], labels) for m in range(2)]
    assert table.value[study.ONE, "test", "nll"] == pytest.approx(np.mean(alone))
    for row in ((study.ONE, "test", "nll"), (study.N, "test", scores.OVER_MEMBERS)):  # the jackknife of two
        assert table.error[row] == pytest.approx(abs(alone[0] - alone[1]) / 2)
    assert table.value[study.EPINET, "test", "nll"] == 1.5
    assert table.error[study.EPINET, "test", "nll"] == pytest.approx(0.5)
    difference = tables["differences"].set_index(["agent", "other", "images", "score"]).difference
    gap = table.value[study.P, "test", "nll"] - table.value[study.N, "test", "nll"]
    assert difference[study.P, study.N, "test", "nll"] == pytest.approx(gap)
    assert tables["chosen"].set_index("agent").value[study.DROPOUT] == 0.1


def test_choices_leave_out_what_reported_members_train_on(sets):
    """Choices are judged on images that their members have not seen; what is published was trained on all."""
    reported, tried = study.make_members(SIZE, study.P, 1.0)[0], study.make_members(SIZE, study.P, 1.0, choice=True)[0]
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
        pair = [{"test": (common + part).astype(np.float32)} for part in own]
        interval = scores.difference(scores.nll(labels), *pair)
        values = [tfe.metrics.marginal_nll(part["test"], labels) for part in pair]
        assert interval.estimate == pytest.approx(values[0] - values[1], abs=1e-12)
        held.append(not interval.excludes(0.0))
    # Four standard deviations. Five degrees of freedom are too few for images, which have more: it errs to that side.
    assert np.mean(held) > 0.95 - 4 * math.sqrt(0.95 * 0.05 / count)


def test_two_ensembles_are_compared_on_every_set(sets):
    random, labels = np.random.default_rng(4), RANDOM.integers(0, 10, 200)
    plain, skilled = (
        {
            name: ensemble(random, labels, 0.0 if name == "mnist" else skill, 0.5 * (skill if name == "mnist" else 1.0))
            for name in study.sets()
        }
        for skill in (1.0, 4.0)
    )
    found = scores.differences(skilled, plain, labels)
    assert found["blur-1", "dyadic_nll"].high < 0.0
    assert found["mnist", "auroc, mutual_information"].low > 0.0
    assert len(found) == 2 * 2 + 2
