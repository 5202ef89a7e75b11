"""Testbed problems against their definition, and exact scores against brute force over all label sequences."""

import dataclasses
import itertools
import math

import numpy as np
import pytest

from tf_ensembles import base, testbed

# Variance of a standard normal conditioned on [-2, 2]: 1 - 4 phi(2) / (Phi(2) - Phi(-2)).
TRUNCATED_VARIANCE = 1 - 4 * math.exp(-2) / math.sqrt(2 * math.pi) / math.erf(math.sqrt(2))


def _random_predictive(dim, members, classes, scale=1.0, seed=0):
    weights = scale * np.random.default_rng(seed).normal(size=(dim, members, classes))
    return lambda x: np.einsum("bd,dmc->bmc", x, weights)


def _log_softmax(logits):
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def _brute_force(logits, truth, tau, kappa):
    """KL of each batch by summing over every sequence of (anchor, label) pairs."""
    agent, truth = _log_softmax(logits.astype(np.float64)), truth.reshape(-1, kappa, truth.shape[-1])
    agent = agent.reshape(-1, kappa, *agent.shape[1:])
    cells = list(itertools.product(range(kappa), range(truth.shape[-1])))
    values = np.zeros(len(truth))
    for batch in range(len(truth)):
        for sequence in itertools.product(cells, repeat=tau):
            log_true = sum(truth[batch, a, c] for a, c in sequence)
            members = sum(agent[batch, a, :, c] for a, c in sequence)
            log_agent = np.logaddexp.reduce(members) - math.log(len(members))
            values[batch] += math.exp(log_true - tau * math.log(kappa)) * (log_true - log_agent)
    return values


@pytest.mark.parametrize(("kappa", "classes"), [(2, 2), (1, 2), (2, 3), (3, 2)])
def test_joint_kl_equals_a_sum_over_all_label_sequences(kappa, classes):
    random = np.random.default_rng(0)
    logits = 3 * random.normal(size=(4 * kappa, 5, classes))
    truth = _log_softmax(2 * random.normal(size=(4 * kappa, classes)))
    got = testbed.joint_kl(logits, truth, tau=3, kappa=kappa, random=random, exact=True)
    np.testing.assert_allclose(got, _brute_force(logits, truth, tau=3, kappa=kappa), rtol=1e-10)


def test_evaluate_equals_brute_force_at_its_own_inputs():
    problem = testbed.make_problem(2, 10, 0.1, seed=3)
    inputs = []
    weights = np.random.default_rng(1).normal(size=(2, 7, 2))

    def predictive(x):
        inputs.append(x)
        return np.einsum("bd,dmc->bmc", x, weights)

    quality = testbed.evaluate(predictive, problem, tau=3, num_batches=20)
    x = np.concatenate(inputs)
    truth = _log_softmax(problem.environment.logits(x))
    joint = _brute_force(predictive(x), truth, tau=3, kappa=2)
    marginal = _brute_force(predictive(x), truth, tau=1, kappa=1)
    assert quality.kl_joint == pytest.approx(joint.mean(), rel=1e-10)
    assert quality.kl_joint_error == pytest.approx(joint.std(ddof=1) / math.sqrt(20), rel=1e-8)
    assert quality.kl_marginal == pytest.approx(marginal.mean(), rel=1e-10)
    assert quality.kl_marginal_error == pytest.approx(marginal.std(ddof=1) / math.sqrt(40), rel=1e-8)


def test_slices_of_members_and_batches_do_not_change_the_score(monkeypatch):
    random = np.random.default_rng(0)
    logits = random.normal(size=(12, 50, 2)) * 30
    truth = _log_softmax(random.normal(size=(12, 2)))
    options = {"tau": 10, "kappa": 2, "random": random, "exact": True}
    whole = testbed.joint_kl(logits, truth, **options)
    monkeypatch.setattr("tf_ensembles.metrics.likelihood.SLICE_ELEMENTS", 286 * 7)
    np.testing.assert_allclose(testbed.joint_kl(logits, truth, **options), whole, rtol=1e-12)


def test_drawn_labels_agree_with_the_exact_expectation():
    problem = testbed.make_problem(10, 10, 0.1, seed=0)
    predictive = _random_predictive(10, 20, 2)
    exact = testbed.evaluate(predictive, problem, exact=True)
    drawn = testbed.evaluate(predictive, problem, exact=False)
    # Both use the same anchors; what remains is the draws' own noise, below the error over anchors.
    assert abs(exact.kl_joint - drawn.kl_joint) < 5 * drawn.kl_joint_error
    assert exact.kl_joint != drawn.kl_joint
    assert exact.kl_joint_error < drawn.kl_joint_error


def test_the_truth_scores_zero_and_any_other_predictive_more():
    problem = testbed.make_problem(10, 1, 0.5, seed=1)
    truth = testbed.evaluate(lambda x: problem.environment.logits(x)[:, None], problem)
    assert truth.kl_marginal == pytest.approx(0.0, abs=1e-12)
    assert truth.kl_joint == pytest.approx(0.0, abs=1e-12)
    other = testbed.evaluate(_random_predictive(10, 20, 2), problem)
    assert other.kl_marginal > 5 * other.kl_marginal_error
    assert other.kl_joint > 5 * other.kl_joint_error


def test_extreme_logits_keep_scores_finite():
    problem = testbed.make_problem(10, 1, 0.001, seed=1)
    quality = testbed.evaluate(_random_predictive(10, 20, 2, scale=1e4), problem, num_batches=50)
    assert all(map(math.isfinite, dataclasses.astuple(quality)))


def test_the_base_rate_agent_knows_how_frequent_the_classes_are():
    data = base.Data(np.zeros((10, 2), np.float32), np.array([1] * 7 + [0] * 2 + [2]))
    logits = testbed.base_rate_agent(data, base.PriorKnowledge(2, 10, 4, 0.1))(np.zeros((3, 2)))
    assert logits.shape == (3, 1, 4)
    shares = np.exp(logits[:, 0]) / np.exp(logits[:, 0]).sum(-1, keepdims=True)
    np.testing.assert_allclose(shares, [[3 / 14, 8 / 14, 2 / 14, 1 / 14]] * 3, rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.01, 0.5])
def test_the_uniform_agent_scores_log_two_less_the_entropy_of_the_truth(temperature):
    problem = testbed.make_problem(10, 10, temperature, seed=2)
    quality = testbed.evaluate(testbed.uniform_agent(problem.train, problem.prior_knowledge), problem)
    x = np.random.default_rng(0).normal(size=(100_000, 10))
    log_probs = problem.environment.log_probs(x)
    entropy = -np.sum(np.exp(log_probs) * log_probs, axis=-1)
    expected, error = math.log(2) - entropy.mean(), entropy.std() / math.sqrt(len(x))
    assert abs(quality.kl_marginal - expected) < 5 * (quality.kl_marginal_error + error)
    # One member: the joint KL is tau times the marginal one at the same anchors.
    assert quality.kl_joint == pytest.approx(10 * quality.kl_marginal, rel=1e-9)


def test_a_single_member_has_a_joint_kl_of_tau_marginal_kls():
    problem = testbed.make_problem(2, 10, 0.1, seed=2)
    quality = testbed.evaluate(_random_predictive(2, 1, 2), problem, tau=4)
    assert quality.kl_joint == pytest.approx(4 * quality.kl_marginal, rel=1e-9)


def test_accuracy_and_ece_of_the_truth_are_what_its_probabilities_say():
    problem = testbed.make_problem(10, 10, 0.5, seed=0)
    quality = testbed.evaluate(lambda x: problem.environment.logits(x)[:, None], problem, num_batches=5000)
    x = np.random.default_rng(0).normal(size=(100_000, 10))
    best = np.exp(problem.environment.log_probs(x)).max(axis=-1).mean()
    assert abs(quality.accuracy - best) < 5 * 0.5 / math.sqrt(10_000) + 0.005
    # A calibrated prediction's ECE is noise: each of 15 bins is off by at most about 0.5 / sqrt(n_b).
    assert quality.ece < 3 * math.sqrt(15 / 10_000)


def test_logits_have_the_variance_of_the_definition():
    # Given x, layer by layer: E h^2 = (|x|^2 v + 1) / (2 d) for the first, halved by each ReLU, times v per kernel.
    dim, temperature, count = 10, 0.1, 4000
    x = np.random.default_rng(0).normal(size=(1, dim))
    values = np.array(
        [testbed.make_problem(dim, 0.1, temperature, seed=s).environment.logits(x)[0, 0] for s in range(count)]
    )
    v = TRUNCATED_VARIANCE
    expected = v * (v * (((x**2).sum() * v + 1) / dim) / 2) / 2 / temperature**2
    assert abs(values.mean()) < 5 * math.sqrt(expected / count)
    spread = math.sqrt(np.mean(values**4) - expected**2)
    assert abs(np.mean(values**2) - expected) < 5 * spread / math.sqrt(count)


def test_labels_have_the_frequencies_of_the_environment():
    problem = testbed.make_problem(10, 1000, 0.1, seed=5, num_classes=3)
    probs = np.exp(problem.environment.log_probs(problem.train.x))
    counts = np.bincount(problem.train.y, minlength=3)
    deviation = np.sqrt(np.sum(probs * (1 - probs), axis=0))
    assert np.all(np.abs(counts - probs.sum(axis=0)) < 5 * deviation)
    # And example by example: labels of confident predictions follow them.
    picked = probs[np.arange(len(probs)), problem.train.y]
    expected, variance = np.sum(probs**2), np.sum(np.sum(probs**3, axis=1) - np.sum(probs**2, axis=1) ** 2)
    assert abs(picked.sum() - expected) < 5 * math.sqrt(variance)


def test_inputs_are_standard_normal():
    x = testbed.make_problem(100, 100, 0.1, seed=0).train.x
    assert x.shape == (10_000, 100)
    assert x.dtype == np.float32
    assert abs(x.mean()) < 5 / math.sqrt(x.size)
    assert abs(x.var() - 1) < 5 * math.sqrt(2 / x.size)


def test_there_are_36_settings_and_ids_round_trip():
    ids = [setting.id for setting in testbed.SETTINGS]
    assert len(set(ids)) == 36
    assert "d10-r100-t0.1" in ids
    special = testbed.Setting(10, 0.5, 0.01, 3, testbed.LabelFlip(0.1, 2, 1))
    for setting in (*testbed.SETTINGS, special):
        assert testbed.setting_from_id(setting.id) == setting
        assert testbed.setting_from_id(f"testbed/{setting.id}") == setting
    assert testbed.problem_from_id("d2-r10-t0.1", 3).train.x.shape == (20, 2)
    with pytest.raises(ValueError, match="Expected an id such as"):
        testbed.setting_from_id("d10")


def test_a_problem_is_a_function_of_setting_and_seed():
    first, again = (testbed.make_problem(2, 10, 0.1, seed=0) for _ in range(2))
    np.testing.assert_array_equal(first.train.x, again.train.x)
    np.testing.assert_array_equal(first.train.y, again.train.y)
    predictive = _random_predictive(2, 3, 2)
    assert testbed.evaluate(predictive, first) == testbed.evaluate(predictive, again)
    for other in (testbed.make_problem(2, 10, 0.1, seed=1), testbed.make_problem(2, 10, 0.5, seed=0)):
        assert not np.allclose(first.train.x, other.train.x)
    assert first.prior_knowledge == base.PriorKnowledge(2, 20, 2, 0.1)
    assert first.id == "testbed/d2-r10-t0.1"


@pytest.mark.parametrize(("fraction", "source", "target"), [(0.25, 1, 0), (0.5, 0, 2), (1.0, 2, 1)])
def test_flips_change_exactly_that_share_of_one_class(fraction, source, target):
    flip = testbed.LabelFlip(fraction, source, target)
    clean = testbed.make_problem(10, 30, 0.1, seed=0, num_classes=3)
    flipped = testbed.make_problem(10, 30, 0.1, seed=0, num_classes=3, flip=flip)
    np.testing.assert_array_equal(clean.train.x, flipped.train.x)
    changed = clean.train.y != flipped.train.y
    assert np.all(clean.train.y[changed] == source)
    assert np.all(flipped.train.y[changed] == target)
    assert changed.sum() == round(fraction * np.sum(clean.train.y == source))
    predictive = _random_predictive(10, 3, 3)
    # The truth stays clean.
    assert testbed.evaluate(predictive, clean) == testbed.evaluate(predictive, flipped)


def test_symmetric_flips_change_that_share_of_either_class():
    flip = testbed.LabelFlip(0.125, 2, 0, symmetric=True)
    clean = testbed.make_problem(10, 30, 0.1, seed=0, num_classes=3)
    flipped = testbed.make_problem(10, 30, 0.1, seed=0, num_classes=3, flip=flip)
    np.testing.assert_array_equal(clean.train.x, flipped.train.x)
    for source, target in ((2, 0), (0, 2)):
        changed = (clean.train.y == source) & (flipped.train.y != source)
        assert set(flipped.train.y[changed]) == {target}
        assert changed.sum() == round(0.125 * np.sum(clean.train.y == source)) > 5
    assert (flipped.train.y[clean.train.y == 1] == 1).all()
    # Those of the one direction are those of a flip in that direction alone.
    one = testbed.make_problem(10, 30, 0.1, seed=0, num_classes=3, flip=testbed.LabelFlip(0.125, 2, 0))
    moved = clean.train.y == 2
    np.testing.assert_array_equal(one.train.y[moved], flipped.train.y[moved])
    assert testbed.setting_from_id(flipped.setting.id) == flipped.setting != one.setting


def test_other_inputs_classes_and_anchors_are_options():
    problem = testbed.make_problem(10, 10, 0.1, seed=0, num_classes=4)
    predictive = _random_predictive(10, 5, 4)
    scores = {
        inputs: testbed.evaluate(predictive, problem, inputs=inputs, kappa=3, num_batches=100).kl_joint
        for inputs in ("gaussian", "uniform", testbed.InputDistribution.WIDE)
    }
    assert len(set(scores.values())) == 3
    assert all(score > 0 for score in scores.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": 0.0}, "temperature > 0"),
        ({"data_ratio": 0.0}, "at least one training example"),
        ({"num_classes": 1}, "num_classes >= 2"),
        ({"input_dim": 1.5}, "input_dim >= 1, an integer. Received: 1.5"),
        ({"input_dim": 10**12}, "fit in memory"),
        ({"seed": True}, "integer seed"),
        ({"flip": testbed.LabelFlip(0.25, 5, 0)}, "classes below 2"),
    ],
)
def test_wrong_settings_are_refused(arguments, message):
    valid = {"input_dim": 2, "data_ratio": 1, "temperature": 0.1}
    with pytest.raises(ValueError, match=message):
        testbed.make_problem(**{**valid, **arguments})


def test_wrong_predictives_and_options_are_refused():
    problem = testbed.make_problem(2, 10, 0.1)
    with pytest.raises(ValueError, match=r"returns logits \[2000, members, 2\]"):
        testbed.evaluate(lambda x: np.zeros((len(x), 2)), problem)
    with pytest.raises(ValueError, match="tau >= 1"):
        testbed.evaluate(_random_predictive(2, 1, 2), problem, tau=0)
    with pytest.raises(ValueError, match=r"Expected inputs to be one of.*cubic"):
        testbed.evaluate(_random_predictive(2, 1, 2), problem, inputs="cubic")
    with pytest.raises(ValueError, match="fraction"):
        testbed.LabelFlip(1.5)
