"""The advisor: its advice on problems whose truth is known, and what users get wrong."""

import dataclasses
import warnings

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests.needs import needs
from tf_ensembles import intervals
from tf_ensembles.advice import advise as advisor
from tf_ensembles.advice import scaling, splits, training
from tf_ensembles.advice.result import Comparison
from tf_ensembles.advice.text import interval

# Advice. A testbed problem with 100 training examples, of which the truth is known.

PROBLEM = tfe.testbed.make_problem(input_dim=10, data_ratio=10, temperature=0.5, seed=0)
TEST_X = np.random.default_rng(1).normal(size=(600, 10)).astype(np.float32)
TEST_Y = PROBLEM.environment.draw_labels(TEST_X, np.random.default_rng(2))
TRAINING = {"epochs": 80, "optimizer": keras.optimizers.Adam(0.01)}


def build():
    start = {"kernel_initializer": keras.initializers.VarianceScaling(1.0)}
    bias = keras.initializers.RandomNormal(stddev=0.3)
    return keras.Sequential(
        [
            keras.Input((10,)),
            keras.layers.Dense(50, "relu", bias_initializer=bias, **start),
            keras.layers.Dense(2, **start),
        ]
    )


def advise_and_evaluate(problem, **arguments):
    """Returns advice on a problem, and the joint KL from the truth of each ensemble that the advisor trained."""
    trained = {}

    class Recorded(tfe.Ensemble):
        def __init__(self, build_member, num_members, *, prior, bootstrap, **kwargs):
            super().__init__(build_member, num_members, prior=prior, bootstrap=bootstrap, **kwargs)
            trained[prior.scale if prior else 0.0, bootstrap is not None] = self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advisor, "Ensemble", Recorded)
        patch.setattr(tfe.Ensemble, "_resolve_auto_jit_compile", lambda self: False)
        # The ensembles whose KL is measured are those that were judged.
        patch.setattr(training, "checkpoints", lambda epochs: [epochs])
        patch.setattr(splits, "_MOST_TO_STOP", 1)
        labels = problem.environment.draw_labels(TEST_X, np.random.default_rng(2))
        advice = tfe.advise(build, problem.train.x, problem.train.y, validation=(TEST_X, labels), **arguments)
    return advice, {
        key: tfe.testbed.evaluate(lambda x, m=model: np.asarray(m(x)), problem, num_batches=200).kl_joint
        for key, model in trained.items()
    }


@pytest.fixture(scope="module")
def advised():
    return advise_and_evaluate(PROBLEM, priors=[tfe.PriorFunction(build, 10.0)], num_members=10, **TRAINING)


def test_advice_agrees_with_the_truth(advised):
    """The joint KL from the known truth, on test inputs that the advisor never saw, is what advice should lower."""
    advice, kl = advised
    print(kl, advice, sep="\n")
    advised_kl = kl[advice.prior_scale, advice.bootstrap is not None]
    assert advised_kl == min(kl.values())
    assert advised_kl < 0.6 * kl[0.0, False]
    assert advice.prior_scale == 10.0
    assert advice.confidence.prior_scale > 0.95
    # With this prior, bootstrapping is slightly worse.
    assert kl[10.0, False] < kl[10.0, True]
    assert advice.diagnosis.verdict != "helps"


@pytest.mark.slow
def test_bootstrapping_is_advised_where_it_helps():
    """Without prior functions, it is all that makes members differ."""
    advice, kl = advise_and_evaluate(PROBLEM, priors=[], num_members=10, **TRAINING)
    print(kl, advice, sep="\n")
    assert kl[0.0, True] < 0.7 * kl[0.0, False]
    assert advice.diagnosis.verdict == "helps"
    assert advice.diagnosis.probability > 0.975
    assert isinstance(advice.bootstrap, tfe.Bernoulli)


@pytest.mark.slow
def test_the_right_prior_scale_is_advised_where_labels_are_noisy():
    """Repeated labels make the dyadic NLL prefer a prior that is far too wide; none is too little."""
    priors = [tfe.PriorFunction(build, scale) for scale in (10, 100)]
    arguments = TRAINING | {"priors": priors, "epochs": 300, "num_members": 20, "bootstrap": None}
    advice, kl = advise_and_evaluate(PROBLEM, **arguments)
    print(kl, advice, sep="\n")
    dyadic = {row.prior_scale: row.dyadic_nll for row in advice.table if row.num_members == 20}
    assert dyadic[100.0] < dyadic[10.0]
    assert kl[10.0, False] < 0.9 * min(kl[0.0, False], kl[100.0, False])
    assert advice.prior_scale == 10.0
    assert advice.confidence.prior_scale > 0.8


def test_the_table_holds_every_candidate_and_marks_the_recommended_one(advised):
    advice, _ = advised
    assert len(advice.table) == 2 * 2 * 5
    names = [row.baseline for row in advice.table]
    assert (names.count("single model"), names.count("plain ensemble")) == (1, 4)
    assert {row.num_members for row in advice.table} == {1, 2, 3, 5, 10}
    chosen = advice.recommended
    assert (chosen.prior_scale, chosen.num_members) == (advice.prior_scale, advice.num_members)
    assert chosen.dyadic_behind == chosen.joint_behind == 0.0
    one = next(row for row in advice.table if row.num_members == 1)
    assert one.joint_nll == pytest.approx(one.dyadic_nll)  # One member: tau times its marginal NLL, either way.


def test_advice_can_be_read(advised):
    advice, _ = advised
    text = str(advice)
    assert f"num_members={advice.num_members}" in text
    assert f"prior scale {advice.prior_scale:g}: " in text
    assert "bootstrap Bernoulli(p=0.5): " in text
    assert text.count("recommended") == 1
    assert f"epochs={advice.epochs}" in text
    assert text.count("single model\n") == 1
    assert "plain ensemble" in text
    assert f"joint NLL {interval(advice.against_plain.joint)}" in text


@needs("matplotlib")
def test_advice_can_be_drawn(advised, tmp_path):
    from PIL import Image

    path = advised[0].plot(tmp_path / "advice.png")
    assert Image.open(path).size == (1200, 960)
    assert list(tmp_path.iterdir()) == [path]


def test_a_bootstrap_that_changes_nothing_shows_no_difference():
    """Bernoulli(1) gives every weight 1: both arms are the same training."""
    x, y = np.tile(TEST_X, (2, 1)), np.tile(TEST_Y, 2)
    # The only other candidate is the plain ensemble itself, which does not beat itself.
    advice = tfe.advise(build, x, y, priors=[], num_members=2, bootstrap=tfe.Bernoulli(1.0), validation=1, epochs=1)
    assert advice.diagnosis.verdict == "no difference shown"
    assert advice.diagnosis.difference.estimate == pytest.approx(0.0, abs=1e-6)
    assert advice.bootstrap is None
    assert advice.num_validation == 240
    assert advice.against_plain.beaten is False


def test_regression_by_its_gaussian_noise():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True) + 0.5 * rng.normal(size=(300, 1))

    def line():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    advice = tfe.advise(
        line,
        x,
        y,
        priors=[],
        num_members=2,
        bootstrap=None,
        loss="mse",
        noise_std=0.5,
        epochs=30,
        optimizer=keras.optimizers.Adam(0.05),
        validation=3,
    )
    # Once fitted, a label costs the entropy of its noise, log(0.5 sqrt(2 pi e)) = 0.726 nats. The mean of 300 such
    # costs has a standard deviation of sqrt(0.5 / 300) = 0.041; estimating three weights from 100 examples adds 0.02.
    assert advice.recommended.marginal_nll == pytest.approx(0.726, abs=4 * 0.046)
    assert advice.diagnosis.verdict == "not tried"
    assert advice.diagnosis.noise is None
    assert advice.against_plain is None  # There is nothing but the plain ensemble.
    assert advice.prior_scale == 0.0
    assert advice.warnings == ()


def test_unscaled_data_are_said_at_once_and_in_the_advice(advised):
    with pytest.warns(UserWarning, match="advise: inputs are not scaled"), pytest.raises(ValueError, match="labels"):
        tfe.advise(build, 300.0 * TEST_X, TEST_Y + 1, priors=[], num_members=2)
    remarks = tuple(scaling.remarks(build, 300.0 * TEST_X, 152.0 + 77.0 * TEST_X[:, 0], regression=True))
    text = str(dataclasses.replace(advised[0], warnings=remarks))
    assert "warning: inputs are not scaled: 10 of 10 features" in text
    assert "warning: targets are not scaled: mean 1" in text


@needs("matplotlib")
def test_a_baseline_that_nothing_beats_is_said_and_drawn(advised, tmp_path):
    plain = next(row for row in advised[0].table if row.baseline and row.num_members == 10)
    difference = intervals.normal(-0.1, 0.2)
    advice = dataclasses.replace(
        advised[0],
        prior_scale=plain.prior_scale,
        bootstrap=None,
        num_members=10,
        against_plain=Comparison(False, difference, difference),
    )
    text = str(advice)
    assert "NOTHING TRIED IS SHOWN TO BEAT A PLAIN ENSEMBLE" in text
    assert "joint NLL -0.1 (95% interval -0.492 to 0.292)" in text
    assert "plain ensemble, recommended" in text
    assert advice.plot(tmp_path / "plain.svg").exists()


def fail(match, *args, **kwargs):
    with pytest.raises(ValueError, match=match):
        tfe.advise(*(args or (build, TEST_X, TEST_Y)), **kwargs)


def test_what_users_get_wrong():
    fail("num_members >= 2", num_members=1)
    fail("epochs >= 1", epochs=0)
    fail("bootstrap such as", bootstrap=0.5)
    fail("noise_std, the noise of the targets", loss="mse")
    fail("noise_std for a regression only", noise_std=1.0)
    fail("noise_std > 0", loss="mse", noise_std=-1.0)
    fail("number of folds, 1 for one split, or 3 or more", validation=2)
    fail("validation=\\(x, y\\)", validation=TEST_X)
    fail("as many targets as inputs, 600", build, TEST_X, TEST_Y[:-1])
    fail("finite features", build, np.where(TEST_X > 1, np.nan, TEST_X), TEST_Y)
    fail("Expected arrays", build, iter(()), TEST_Y)
    fail("labels in \\[0, 2\\)", build, TEST_X, TEST_Y + 1)
    fail("function that returns a Keras model", build(), TEST_X, TEST_Y)


def test_diverged_training_is_said_and_left_out():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fail(
            "lower the learning rate",
            priors=[],
            num_members=2,
            bootstrap=None,
            optimizer=keras.optimizers.SGD(1e30),
            epochs=3,
        )
