"""Assessments against the metrics themselves, intervals against closed forms and brute force, pages that stay whole."""

import html.parser
import json
import math

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests.tf_ensembles.decisions import fixed
from tf_ensembles.assessment import classes, statistics
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import heads

RANDOM = np.random.default_rng(0)
LOGITS = 2.0 * RANDOM.normal(size=(60, 4, 3)).astype(np.float32)
LABELS = np.where(RANDOM.random(60) < 0.6, LOGITS.mean(axis=1).argmax(axis=1), RANDOM.integers(0, 3, 60))
OOD = 0.3 * RANDOM.normal(size=(40, 4, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    return fixed.Fixed(4)


@pytest.fixture(scope="module")
def found(model):
    calibrated = tfe.calibrate(model, LOGITS, LABELS)
    groups = np.array(["<script>alert(1)</script>", "b"])[np.arange(60) % 2]
    return tfe.assess(
        calibrated,
        LOGITS,
        LABELS,
        x_ood=OOD,
        groups=groups,
        class_names=["a & b", '"><img src=x onerror=alert(1)>', "c"],
        num_draws=50,
        title="</title><script>alert(1)</script>",
    )


def test_scores_are_those_of_the_metrics(found):
    factor = 1.0 / float(tfe.calibrate(fixed.Fixed(4), LOGITS, LABELS).temperature[0])
    order = np.random.default_rng(0).permutation(60)
    for subject, logits in (("calibrated", LOGITS * factor), ("before calibration", LOGITS)):
        expected = {
            "accuracy": tfe.metrics.accuracy(logits, LABELS),
            "nll": tfe.metrics.marginal_nll(logits, LABELS),
            "joint_nll": tfe.metrics.joint_nll(logits[order], LABELS[order], tau=10),
            "dyadic_nll": tfe.metrics.dyadic_nll(logits[order], LABELS[order], tau=10),
            "brier": tfe.metrics.brier(logits, LABELS),
            "ece": tfe.metrics.ece(logits, LABELS),
        }
        for name, value in expected.items():
            got, low, high = found.score(name, subject)
            assert got == pytest.approx(value, rel=1e-5)
            assert low <= got <= high
    alone = [tfe.metrics.marginal_nll(LOGITS[:, [m]], LABELS) for m in range(4)]
    assert found.score("nll", "one member")[0] == pytest.approx(np.mean(alone), rel=1e-6)
    scores = [tfe.ood_score(part * factor, "entropy") for part in (LOGITS, OOD)]
    stored = found.content["ood"]["scores"]["entropy"]
    assert stored["auroc"]["value"] == pytest.approx(tfe.metrics.auroc(*scores), abs=1e-9)
    assert stored["fpr95"]["value"] == pytest.approx(tfe.metrics.fpr_at(*scores), abs=1e-9)
    by_class, by_group = found.content["slices"]
    right = tfe.metrics.mixture(LOGITS * factor).argmax(axis=1) == LABELS
    for place, row in enumerate(by_class["rows"]):
        assert row["count"] == (place == LABELS).sum()
        assert row["scores"]["accuracy"]["value"] == pytest.approx(right[place == LABELS].mean())
    assert [row["count"] for row in by_group["rows"]] == [30, 30]
    # What the model has less than another subject, and paired: the same draws for both.
    less = found.content["subjects"][2]["model_less_this"]["nll"]
    assert less["value"] == pytest.approx(found.score("nll")[0] - found.score("nll", "one member")[0])
    with pytest.raises(ValueError, match="Expected a subject and one of its scores"):
        found.score("rmse")


def test_fewer_examples_than_labels_of_a_joint_score_leave_it_out():
    few = tfe.assess(fixed.Fixed(4), LOGITS[:6], LABELS[:6], num_draws=5)
    scores = few.content["subjects"][0]["scores"]
    assert "joint_nll" not in scores
    assert scores["dyadic_nll"]["value"] > 0.0


def test_resampled_scores_are_those_of_resampled_examples():
    scores = classes.Classes(LOGITS, LABELS, 0.9).scores()
    indices = RANDOM.integers(0, 60, (5, 60))
    weights = np.stack([np.bincount(row, minlength=60) for row in indices]).astype(np.float32)
    for row, own in enumerate(indices):
        drawn = {
            "accuracy": tfe.metrics.accuracy(LOGITS[own], LABELS[own]),
            "nll": tfe.metrics.marginal_nll(LOGITS[own], LABELS[own]),
            "ece": tfe.metrics.ece(LOGITS[own], LABELS[own]),
        }
        for name, value in drawn.items():
            assert scores[name].of(weights)[row] == pytest.approx(value, rel=1e-5)
        # Copies of an example count at the end of their place, instead of one after the other.
        probabilities = tfe.metrics.mixture(LOGITS[own])
        area = tfe.metrics.aurc(probabilities.max(axis=1), probabilities.argmax(axis=1) == LABELS[own])
        assert scores["aurc"].of(weights)[row] == pytest.approx(area, abs=0.05)
    sets = classes.probable_sets(np.array([[0.5, 0.3, 0.2], [0.05, 0.92, 0.03]]), 0.8)
    np.testing.assert_array_equal(sets, [[True, True, False], [False, True, False]])


def test_intervals_have_the_width_of_the_closed_form():
    values = RANDOM.normal(size=400)
    statistic = statistics.mean(values)
    drawn = statistics.resample({0: statistic}, 400, 2000, 0)[0]
    interval = statistics.estimate(statistic, drawn)
    width = 2 * 1.96 * values.std() / math.sqrt(400)
    assert interval.high - interval.low == pytest.approx(width, rel=0.1)  # quantiles of 2,000 draws: some 3%
    whole = statistics.draws(7, 30, 0)
    assert [part.sum(axis=1).tolist() for part in whole] == [[30.0] * 7]
    all_right = statistics.mean(np.ones(20, bool))
    low = statistics.estimate(all_right, np.ones(5)).low
    assert pytest.approx(low**20) == 0.025  # so improbable are twenty of twenty then
    half = statistics.mean(np.arange(10.0), inside=np.arange(10) < 2)
    assert half.value == 0.5
    assert half.of(np.eye(10, dtype=np.float32)[[1]] * 3)[0] == 1.0


def test_shares_that_differ_in_few_examples_are_not_told_apart():
    def compare(gained, lost):
        first, second = np.arange(200) < 150, np.arange(200) < 150
        first[:lost] = False  # it misses what the other one hits
        first[199 - gained : 199] = True
        both = [statistics.mean(part) for part in (first, second)]
        drawn = statistics.resample(dict(enumerate(both)), 200, 1000, 0)
        found = statistics.difference(*both, drawn[0], drawn[1])
        assert found.estimate == pytest.approx((gained - lost) / 200)
        return found.low > 0.0 or found.high < 0.0

    # A fair coin: five of five have a two-sided probability of 2 / 32, six of six of 2 / 64.
    assert [compare(count, 0) for count in (1, 5, 6)] == [False, False, True]
    assert [compare(2, count) for count in (10, 12)] == [True, True]  # 2 of 12: 0.0386
    assert not compare(2, 9)  # 2 of 11: 0.0654


class Page(html.parser.HTMLParser):
    """What a browser would see."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.text = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in ("meta", "line", "circle", "polyline", "polygon"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_stays_whole_whatever_names_say(found, tmp_path):
    paths = found.save(tmp_path / "page.html")
    page = Page(paths[0].read_text())
    assert not page.open
    assert {"script", "img", "b"} & set(page.tags) <= {"b"}
    assert not [name for name in page.attributes if name.startswith("on")]
    assert "http" not in paths[0].read_text()  # It needs no other file.
    assert "<script>alert(1)</script>" in "".join(page.text)  # shown, not obeyed
    content = json.loads(paths[1].read_text())
    assert content == json.loads(found.to_json())
    assert content["subjects"][0]["name"] == "calibrated"
    assert f"{content['subjects'][0]['scores']['nll']['value']:.3f}" in "".join(page.text)
    assert "NLL" in str(found)
    with pytest.raises(ValueError, match=r"ends in \.html"):
        found.save(tmp_path / "page.pdf")
    with pytest.raises(ValueError, match="folder that exists"):
        found.save(tmp_path / "nowhere" / "page.html")


def test_conformal_models_are_asked_for_their_sets(model):
    conformal = tfe.calibrate(model, LOGITS, LABELS, method="conformal", level=0.8)
    assessed = tfe.assess(conformal, LOGITS, LABELS, num_draws=5)
    sets = conformal.predict_set(LOGITS)
    assert assessed.score("coverage")[0] == pytest.approx(sets[np.arange(60), LABELS].mean())
    assert assessed.score("set_size")[0] == pytest.approx(sets.sum(axis=1).mean())
    assert assessed.content["settings"]["level"] == 0.8
    assert [one["name"] for one in assessed.content["subjects"]] == ["conformal", "before calibration", "one member"]


def test_plain_keras_models_are_assessed():
    network = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    x = RANDOM.normal(size=(60, 5)).astype(np.float32)
    with pytest.raises(ValueError, match="Expected a compiled model, whose loss says"):
        tfe.assess(network, x, LABELS)
    before = np.asarray(network(x))
    named = tfe.assess(network, x, LABELS, kind="logits", num_draws=5)
    network.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assessed = tfe.assess(network, x, LABELS, num_draws=5)
    assert assessed.score("nll")[0] == named.score("nll")[0]
    assert assessed.score("nll")[0] == pytest.approx(tfe.metrics.marginal_nll(before[:, None], LABELS), rel=1e-5)
    assert [one["name"] for one in assessed.content["subjects"]] == ["model"]
    np.testing.assert_array_equal(np.asarray(network(x)), before)
    assert "no difference" not in assessed.to_html()


def test_regressions_are_assessed():
    mean, std = RANDOM.normal(size=(50, 3)), np.exp(0.3 * RANDOM.normal(size=(50, 3)))
    y = mean.mean(axis=1) + RANDOM.normal(size=50)
    ensemble = fixed.Fixed(3, Kind.GAUSSIAN, heads.Gaussian(min_std=0.0))
    x = np.stack([mean, np.log(np.expm1(std))], axis=-1)
    calibrated = tfe.calibrate(ensemble, x, y)
    assessed = tfe.assess(calibrated, x, y, x_ood=x, groups=np.arange(50) % 2, num_draws=20)
    # Scales are float32 numbers through a softplus.
    expected = {
        "rmse": tfe.metrics.rmse(mean, y),
        "nll": tfe.metrics.gaussian_nll(mean, std, y),
        "crps": tfe.metrics.crps(mean, std, y),
        "coverage": tfe.metrics.coverage(mean, std, y, level=0.9),
    }
    for name, value in expected.items():
        assert assessed.score(name, "before calibration")[0] == pytest.approx(value, rel=1e-4)
    wider = std * float(calibrated.factor)
    assert assessed.score("nll")[0] == pytest.approx(tfe.metrics.gaussian_nll(mean, wider, y), rel=1e-4)
    assert assessed.content["ood"]["scores"]["variance"]["auroc"]["value"] == 0.5  # the same inputs
    assert not Page(assessed.to_html()).open
    values = tfe.assess(
        fixed.Fixed(3, Kind.VALUES, heads.Values()), mean[..., None], y, num_draws=5
    )  # no noise is known
    assert values.score("rmse")[0] == pytest.approx(expected["rmse"], rel=1e-5)
    assert {score["name"] for score in values.content["scores"]} == {"rmse", "mae"}
    with pytest.raises(ValueError, match="Expected finite targets"):
        tfe.assess(ensemble, x, np.full(50, np.nan))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": LABELS[:1]}, "at least two test examples"),
        ({"y": LABELS[:50]}, "Expected as many y as x, 60"),
        ({"y": LABELS + 3}, "Expected labels"),
        ({"groups": np.arange(50)}, r"Expected groups \[60\]"),
        ({"groups": np.full(60, 0.5)}, r"Expected groups \[60\] of strings"),
        ({"groups": [str(i) for i in range(59)] + ["0"], "class_names": ["a"]}, "Expected 3 class names"),
        ({"level": 1.0}, "Expected level"),
        ({"num_draws": 1}, "num_draws >= 2, an integer"),
        ({"kind": "logits"}, "Expected kind for a plain Keras model only"),
        ({"x": np.full_like(LOGITS, np.nan)}, "Expected finite member outputs"),
    ],
)
def test_bad_input_is_one_line(model, options, message):
    given = {"x": LOGITS, "y": LABELS, **options}
    with pytest.raises(ValueError, match=message) as error:
        tfe.assess(model, **given)
    assert "\n" not in str(error.value)
