"""Scores of mixtures, against NumPy written anew: numerical integration, drawing, and loops over members."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles import metrics

erf = np.vectorize(math.erf)


def normal_cdf(x, mean, std):
    return 0.5 * (1.0 + erf((x - mean) / (std * math.sqrt(2.0))))


def make_data(batch=24, members=5, targets=1, unit=1.0, seed=0):
    random = np.random.default_rng(seed)
    mean = random.normal(size=(batch, members, targets))
    std = np.exp(random.normal(size=(batch, members, targets)) * 0.5)
    y = mean.mean(axis=1) + 1.5 * random.normal(size=(batch, targets))
    return unit * mean, unit * std, unit * y


def log_likelihood(mean, std, y):
    """[batch, members], by Python's own numbers."""
    result = np.zeros(mean.shape[:2])
    for i, m, k in np.ndindex(mean.shape):
        z = (y[i, k] - mean[i, m, k]) / std[i, m, k]
        result[i, m] += -0.5 * z * z - math.log(std[i, m, k]) - 0.5 * math.log(2 * math.pi)
    return result


def log_mean_exp(values):
    top = values.max()
    return top + math.log(np.exp(values - top).mean())


@pytest.mark.parametrize("targets", [1, 2])
def test_likelihoods_average_products_over_members(targets):
    mean, std, y = make_data(targets=targets)
    logs = log_likelihood(mean, std, y)
    marginal = -np.mean([log_mean_exp(row) for row in logs])
    joint = -np.mean([log_mean_exp(logs[i : i + 4].sum(0)) for i in range(0, 24, 4)])
    pairs = logs.reshape(12, 2, -1)
    dyadic = -np.mean(
        [
            sum(math.comb(3, n) / 8 * log_mean_exp(n * first + (3 - n) * second) for n in range(4))
            for first, second in pairs
        ]
    )
    # Sums of a few tens of float64 terms of size one.
    np.testing.assert_allclose(metrics.gaussian_nll(mean, std, y), marginal, rtol=1e-12)
    np.testing.assert_allclose(metrics.gaussian_joint_nll(mean, std, y, tau=4), joint, rtol=1e-12)
    np.testing.assert_allclose(metrics.gaussian_dyadic_nll(mean, std, y, tau=3), dyadic, rtol=1e-12)
    assert metrics.gaussian_joint_nll(mean, std, y, tau=1) == metrics.gaussian_nll(mean, std, y)
    value, error = metrics.gaussian_nll(mean, std, y, standard_error=True)
    each = np.array([log_mean_exp(row) for row in logs])
    np.testing.assert_allclose([value, error], [marginal, each.std(ddof=1) / math.sqrt(24)], rtol=1e-12)


def test_crps_equals_its_integral():
    mean, std, y = make_data(batch=6)
    values = []
    for i in range(6):
        grid = np.linspace(-12.0, 12.0, 40_001)
        below = normal_cdf(grid[:, None], mean[i, :, 0], std[i, :, 0]).mean(axis=1)
        values.append(np.trapezoid((below - (grid >= y[i, 0])) ** 2, grid))
    # The step at y falls within one cell of the grid, 6e-4 wide; all else is smooth.
    np.testing.assert_allclose(metrics.crps(mean, std, y), np.mean(values), atol=6e-4)
    each = [metrics.crps(mean[[i]], std[[i]], y[[i]]) for i in range(6)]
    np.testing.assert_allclose(each, values, atol=6e-4)


def test_crps_equals_its_expectation_over_draws():
    mean, std, y = make_data(batch=1, members=3)
    random = np.random.default_rng(1)
    one, other = (
        random.normal(mean[0, member, 0], std[0, member, 0]) for member in random.integers(3, size=(2, 200_000))
    )
    terms = np.abs(one - y[0, 0]) - 0.5 * np.abs(one - other)
    error = terms.std() / math.sqrt(len(terms))
    assert abs(metrics.crps(mean, std, y) - terms.mean()) < 5 * error
    # One sharp member: the absolute error.
    np.testing.assert_allclose(metrics.crps([[2.0]], [[1e-9]], [5.0]), 3.0, rtol=1e-8)


def brute_quantile(mean, std, level):
    """One mixture's quantile, by bisection in Python."""
    low, high = (mean - 40 * std).min(), (mean + 40 * std).max()
    for _ in range(200):
        middle = 0.5 * (low + high)
        below = np.mean([0.5 * math.erfc(-(middle - m) / (s * math.sqrt(2))) for m, s in zip(mean, std, strict=True)])
        low, high = (middle, high) if below < level else (low, middle)
    return middle


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_intervals_and_calibration_equal_loops_at_any_unit(unit):
    mean, std, y = make_data(batch=12, targets=2, unit=unit)
    cells = list(np.ndindex(12, 2))
    ends = np.array([[brute_quantile(mean[i, :, k], std[i, :, k], q) for q in (0.1, 0.9)] for i, k in cells])
    flat = np.array([y[i, k] for i, k in cells])
    inside = (ends[:, 0] <= flat) & (flat <= ends[:, 1])
    missed = np.maximum(ends[:, 0] - flat, 0) + np.maximum(flat - ends[:, 1], 0)
    assert metrics.coverage(mean, std, y, level=0.8) == inside.mean()
    score = metrics.interval_score(mean, std, y, level=0.8)
    np.testing.assert_allclose(score, np.mean(ends[:, 1] - ends[:, 0] + missed / 0.1), rtol=1e-7)
    curve = metrics.calibration_curve(mean, std, y, num_levels=4)
    np.testing.assert_allclose(curve.levels, [0.2, 0.4, 0.6, 0.8])
    observed = [
        np.mean([y[i, k] <= brute_quantile(mean[i, :, k], std[i, :, k], level) for i, k in cells])
        for level in curve.levels
    ]
    np.testing.assert_allclose(curve.observed, observed)
    error = np.mean(np.abs(np.array(observed) - curve.levels))
    np.testing.assert_allclose(metrics.calibration_error(mean, std, y, num_levels=4), error)
    np.testing.assert_allclose(metrics.rmse(mean, y), np.sqrt(np.mean((mean.mean(1) - y) ** 2)), rtol=1e-12)
    total = np.sqrt((std**2).mean(1) + mean.var(1))
    np.testing.assert_allclose(metrics.sharpness(mean, std), total.mean(), rtol=1e-12)
    # Units: an NLL shifts by their logarithm, the others scale with them.
    plain = [one / unit for one in (mean, std, y)]
    shifted = metrics.gaussian_nll(*plain) + 2 * math.log(unit)
    np.testing.assert_allclose(metrics.gaussian_nll(mean, std, y), shifted, rtol=1e-9)
    np.testing.assert_allclose(metrics.crps(mean, std, y), unit * metrics.crps(*plain), rtol=1e-9)


def test_members_of_very_different_width():
    """One member with std 1e-6 and one with 1e6: nothing overflows, nothing is lost."""
    mean, std = np.array([[1.0, 1.0]]), np.array([[1e-6, 1e6]])
    expected = -math.log(0.5 * (1 / 1e-6 + 1 / 1e6) / math.sqrt(2 * math.pi))
    np.testing.assert_allclose(metrics.gaussian_nll(mean, std, [1.0]), expected, rtol=1e-12)
    assert metrics.coverage(mean, std, [1.0], level=0.01) == 1.0
    spread = math.sqrt(2 / math.pi)
    crps = 0.5 * 1e6 * spread - 0.5 * (0.25 * 1e6 * math.sqrt(2) * spread + 0.5 * 1e6 * spread)
    np.testing.assert_allclose(metrics.crps(mean, std, [1.0]), crps, rtol=1e-6)


def test_a_calibrated_ensemble_is_seen_to_be():
    random = np.random.default_rng(0)
    mean, std = random.normal(size=(4000, 1)), np.exp(random.normal(size=(4000, 1)))
    y = mean[:, 0] + std[:, 0] * random.normal(size=4000)
    # A share of 4,000 has a standard deviation of at most 0.008.
    assert abs(metrics.coverage(mean, std, y, level=0.9) - 0.9) < 5 * math.sqrt(0.09 / 4000)
    assert metrics.calibration_error(mean, std, y) < 4 * 0.008
    assert metrics.calibration_error(mean, 3 * std, y) > 0.1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"std": np.full((4, 2), -1.0)}, "Expected finite standard deviations > 0. Received: -1.0"),
        ({"std": np.ones((4, 3))}, "Expected a standard deviation for each mean"),
        ({"mean": np.full((4, 2), np.nan)}, "Expected finite means"),
        ({"mean": np.ones(4), "std": np.ones(4)}, r"Expected non-empty means \[batch, members\]"),
        ({"y": np.array([1.0, np.nan, 1.0, 1.0])}, "Expected finite targets. Received: 1 NaN or infinite of 4 values"),
        ({"y": np.ones((4, 2))}, "Expected targets of shape"),
    ],
)
def test_bad_input_is_one_clear_error(change, match):
    given = {"mean": np.zeros((4, 2)), "std": np.ones((4, 2)), "y": np.zeros(4)} | change
    for score in (metrics.gaussian_nll, metrics.crps, metrics.coverage):
        with pytest.raises(ValueError, match=match):
            score(**given)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5, -0.1, float("nan"), True, "0.9"])
def test_levels_are_within_zero_and_one(level):
    for score in (metrics.coverage, metrics.interval_score):
        with pytest.raises(ValueError, match=r"Expected level in \(0, 1\). Received"):
            score([[0.0]], [[1.0]], [0.0], level=level)


# Streaming.

CASES = {
    "marginal_nll": (metrics.MarginalNLL, metrics.gaussian_nll),
    "joint_nll": (lambda **k: metrics.JointNLL(tau=4, **k), lambda *a: metrics.gaussian_joint_nll(*a, tau=4)),
    "dyadic_nll": (metrics.DyadicNLL, metrics.gaussian_dyadic_nll),
    "crps": (metrics.CRPS, metrics.crps),
    "rmse": (metrics.RMSE, lambda mean, std, y: metrics.rmse(mean, y)),
    "coverage": (lambda **k: metrics.Coverage(0.5, **k), lambda *a: metrics.coverage(*a, level=0.5)),
    "interval_score": (metrics.IntervalScore, metrics.interval_score),
    "calibration_error": (metrics.CalibrationError, metrics.calibration_error),
    "sharpness": (metrics.Sharpness, lambda mean, std, y: metrics.sharpness(mean, std)),
}


@pytest.mark.parametrize("jit", [False, True])
def test_streaming_equals_the_functions_whatever_the_batch_size(jit):
    random = np.random.default_rng(3)
    outputs = random.normal(size=(46, 3, 4)).astype(np.float32)
    y = random.normal(size=(46, 2)).astype(np.float32)
    std = np.log1p(np.exp(outputs[..., 2:].astype(np.float64))) + 1e-3
    # XLA compiles for long: those whose loops and carried groups it might not like.
    cases = {name: CASES[name] for name in (("joint_nll", "crps", "interval_score") if jit else CASES)}
    made = {name: make(kind="gaussian") for name, (make, _) in cases.items()}
    signature = [tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, 3, 4], tf.float32)]

    def update(y, outputs):
        for metric in made.values():
            metric.update_state(y, outputs)

    update = tf.function(update, input_signature=signature, jit_compile=True) if jit else update
    for size in (23,) if jit else (7, 46):
        for metric in made.values():
            metric.reset_state()
        for start in range(0, 46, size):
            update(y[start : start + size], outputs[start : start + size])
        for name, (_, function) in cases.items():
            # float32, some tens of operations.
            expected = function(outputs[..., :2], std, y)
            np.testing.assert_allclose(float(made[name].result()), expected, rtol=5e-6, err_msg=name)
    for metric in made.values():
        assert type(metric).from_config(metric.get_config()).get_config() == metric.get_config()


def test_weights_and_classes():
    outputs, y = np.zeros((4, 2, 2), np.float32), np.array([1.0, 2.0, 3.0, 4.0], np.float32)
    metric = metrics.RMSE()
    metric.update_state(y, outputs, sample_weight=[1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(float(metric.result()), math.sqrt(5.0), rtol=1e-6)
    with pytest.raises(ValueError, match=r"Expected a regression for rmse. Received: outputs of kind 'logits'"):
        metrics.RMSE(kind="logits").update_state(y, outputs)
    with pytest.raises(ValueError, match=r"Expected class predictions for accuracy. Received: a regression"):
        metrics.Accuracy(kind="gaussian").update_state(y, outputs)
    with pytest.raises(ValueError, match="Expected a loss of distributions for crps"):
        metrics.CRPS(kind="values").update_state(y, outputs[..., :1])
    with pytest.raises(ValueError, match=r"Expected level in \(0, 1\)"):
        metrics.Coverage(level=2.0)
    assert isinstance(metric, keras.metrics.Metric)


@pytest.mark.parametrize("wrong", [None, "text", [None] * 4, [[1.0], [2.0, 3.0]], np.ones(4) + 1j, np.nan])
@pytest.mark.parametrize(
    "score",
    [
        metrics.gaussian_nll,
        metrics.gaussian_joint_nll,
        metrics.gaussian_dyadic_nll,
        metrics.crps,
        metrics.coverage,
        metrics.interval_score,
        metrics.calibration_curve,
        metrics.calibration_error,
        lambda mean, std, y: metrics.rmse(mean, y),
    ],
)
def test_what_is_no_target_is_not_scored(score, wrong):
    """Targets of None were scored as zeros."""
    with pytest.raises(ValueError, match=r"Expected .*targets.* Received: "):
        score(np.zeros((4, 2)), np.ones((4, 2)), wrong)


def test_a_calibration_curve_counts_targets_at_or_below_each_quantile():
    rng = np.random.default_rng(3)
    mean, std, y = rng.normal(size=(40, 3, 2)), rng.uniform(0.5, 2.0, (40, 3, 2)), rng.normal(size=(40, 2))
    curve = metrics.calibration_curve(mean, std, y, num_levels=7)
    cdf = normal_cdf(y[:, None], mean, std).mean(axis=1).ravel()
    np.testing.assert_array_equal(curve.observed, [np.mean(cdf <= level) for level in curve.levels])
