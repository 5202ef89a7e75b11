"""Calibration: fitted numbers against SciPy on NumPy's formulas, and against the truth that labels were drawn from."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_ensembles as tfe
from tests.tf_ensembles.decisions.fixed import Fixed
from tf_ensembles.decisions import calibration, noise
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import heads
from tf_ensembles.regression.distribution import PredictiveDistribution

optimize = pytest.importorskip("scipy.optimize")
RNG = np.random.default_rng(0)
M, CLASSES, EXAMPLES = 3, 4, 2000
LEVELS = np.linspace(0.05, 0.95, 19)
LOGITS = 2.0 * RNG.normal(size=(EXAMPLES, 1, CLASSES)) + RNG.normal(size=(EXAMPLES, M, CLASSES))
LOGITS = LOGITS.astype("float32")


def _softmax(logits):
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def _drawn(probabilities):
    return (RNG.random((len(probabilities), 1)) > np.cumsum(probabilities, axis=-1)).sum(axis=-1)


LABELS = _drawn(_softmax(LOGITS / 2.5).mean(axis=1))


def _nll(logits, labels=LABELS, tau=1):
    """The mixture's NLL of labels, or of tau together in calibrate's random order, per label."""
    order = np.arange(len(labels)) if tau == 1 else np.random.default_rng(0).permutation(len(labels))
    likelihood = _softmax(np.asarray(logits, np.float64))[np.arange(len(labels)), :, labels][order]
    return -np.mean(np.log(np.mean(np.prod(likelihood.reshape(-1, tau, likelihood.shape[1]), axis=1), axis=1))) / tau


@pytest.mark.parametrize("tau", [1, 10])
def test_one_temperature_is_where_the_nll_is_least(tau):
    objective = "marginal" if tau == 1 else "joint"
    calibrated = tfe.calibrate(Fixed(M), LOGITS, LABELS, objective=objective, tau=tau)
    best = optimize.minimize_scalar(lambda t: _nll(LOGITS / t, tau=tau), bounds=(0.1, 10), method="bounded",
                                    options={"xatol": 1e-8})  # fmt: skip
    assert calibrated.temperature == pytest.approx([best.x], rel=1e-5)
    np.testing.assert_allclose(calibrated.predict(LOGITS), LOGITS / best.x, rtol=1e-4)
    assert tfe.metrics.marginal_nll(calibrated.predict(LOGITS), LABELS) < tfe.metrics.marginal_nll(LOGITS, LABELS)
    if tau == 1:
        # Labels came from temperature 2.5. A finite difference of the NLL has its curvature, which gives the error.
        curvature = (_nll(LOGITS / 2.6) - 2 * _nll(LOGITS / 2.5) + _nll(LOGITS / 2.4)) / 0.01
        assert abs(best.x - 2.5) < 4 / np.sqrt(EXAMPLES * curvature)


def test_a_temperature_per_member_and_a_member_that_diverged():
    scaled = LOGITS * np.array([1.0, 3.0, 0.5])[:, None]
    model = Fixed(M, diverged=[False, False, True])
    calibrated = tfe.calibrate(
        model, np.where(model.diverged[:, None], np.float32(1e3), scaled), LABELS, per_member=True
    )

    def nll(logs):
        return _nll(scaled[:, :2] / np.exp(logs)[:, None])

    best = optimize.minimize(nll, np.zeros(2), options={"gtol": 1e-7})
    np.testing.assert_allclose(calibrated.temperature, [*np.exp(best.x), 1.0], rtol=1e-4)


def test_vector_scaling_undoes_a_factor_and_an_offset_per_class():
    factors, offsets = np.array([0.5, 1.0, 2.0, 1.5]), np.array([1.0, 0.0, -1.0, 0.0])
    labels = _drawn(_softmax(LOGITS[:, :1] * factors + offsets)[:, 0])
    calibrated = tfe.calibrate(Fixed(1), LOGITS[:, :1], labels, method="vector")

    def nll(parameters):
        return _nll(LOGITS[:, :1] * np.exp(parameters[:4]) + parameters[4:], labels)

    best = optimize.minimize(nll, np.zeros(8), options={"gtol": 1e-7})
    found = np.asarray(calibrated.predict(LOGITS[:, :1]), np.float64)
    np.testing.assert_allclose(_nll(found, labels), best.fun, atol=1e-7)
    # With 2,000 labels and eight numbers, the truth is 8 / 2 / 2,000 better or worse in expectation.
    assert _nll(found, labels) < _nll(LOGITS[:, :1] * factors + offsets, labels) < _nll(found, labels) + 5 * 8 / 4000


def test_other_kinds_have_the_temperature_of_their_logits():
    logit = LOGITS[..., :1]
    both = np.concatenate([np.zeros_like(logit), logit], axis=-1)
    labels = _drawn(_softmax(both / 2.0).mean(axis=1))
    expected = tfe.calibrate(Fixed(M), both, labels)
    for kind, outputs in [(Kind.BINARY_LOGITS, logit), (Kind.PROBABILITIES, _softmax(both)[..., 1:])]:
        found = tfe.calibrate(Fixed(M, kind), outputs, labels)
        np.testing.assert_allclose(found.temperature, expected.temperature, rtol=1e-5)
        np.testing.assert_allclose(found.predict_proba(outputs), expected.predict_proba(both), atol=1e-5)
    many = np.concatenate([logit, logit], axis=-1)
    found = tfe.calibrate(Fixed(M, Kind.MULTILABEL_LOGITS), many, np.stack([labels, labels], axis=1))
    assert found.kind is Kind.MULTILABEL_LOGITS
    np.testing.assert_allclose(found.predict(many), many / found.temperature[0], rtol=1e-5)


def test_isotonic_regression_is_the_nearest_monotone_function():
    x, y = RNG.permutation(np.repeat(np.arange(12) / 12, 2)), RNG.random(24)
    points, values = calibration.isotonic(x, y)
    fitted = np.interp(np.unique(x), points, values)
    means = np.array([y[x == place].mean() for place in np.unique(x)])  # of two each
    np.testing.assert_allclose(fitted, optimize.isotonic_regression(means).x, atol=1e-12)


def test_isotonic_calibration_moves_the_mixture_and_keeps_members_in_order():
    logit = LOGITS[..., :2]
    labels = (RNG.random(EXAMPLES) < _softmax(logit).mean(axis=1)[:, 1] ** 2).astype(int)
    calibrated = tfe.calibrate(Fixed(M), logit, labels, method="isotonic")
    members, before = calibrated.predict(logit), _softmax(logit)
    np.testing.assert_allclose(np.sum(members, axis=-1), 1.0, atol=1e-6)
    assert np.all((np.asarray(members) >= 0) & (np.asarray(members) <= 1))
    points, values = calibration.isotonic(before.mean(axis=1)[:, 1].astype(np.float64), labels.astype(float))
    limit = 1 / (EXAMPLES + 2)
    goal = np.interp(before.mean(axis=1)[:, 1], points, np.clip(values, limit, 1 - limit))
    off = np.abs(calibrated.predict_proba(logit)[:, 1] - goal)
    # Corners are float32, and some are so near to each other that its last bit decides where between them one is.
    assert np.quantile(off, 0.99) < 1e-5
    assert off.max() < 0.01
    np.testing.assert_array_equal(
        np.argsort(np.asarray(members)[:50, :, 1], axis=1), np.argsort(before[:50, :, 1], axis=1)
    )
    truth = before.mean(axis=1)[:, 1] ** 2
    assert np.abs(calibrated.predict_proba(logit)[:, 1] - truth).mean() < 0.05


def test_the_noise_of_a_regression_is_widened():
    mean, std = RNG.normal(size=(EXAMPLES, M, 1)), np.full((EXAMPLES, M, 1), 0.5)
    y = mean.mean(axis=1) + 1.5 * RNG.normal(size=(EXAMPLES, 1))
    head = heads.Gaussian()
    outputs = np.concatenate([mean, np.log(np.expm1(std - head.min_std))], axis=-1).astype("float32")
    calibrated = tfe.calibrate(Fixed(M, Kind.GAUSSIAN, head), outputs, y)

    def nll(factor):
        density = np.exp(-0.5 * ((y[:, None] - mean) / (factor * 0.5)) ** 2) / (factor * 0.5 * np.sqrt(2 * np.pi))
        return -np.mean(np.log(density.mean(axis=1)))

    best = optimize.minimize_scalar(nll, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-8})
    assert float(calibrated.factor) == pytest.approx(best.x, rel=1e-4)
    parts = calibrated.head.components(tf.constant(outputs))
    np.testing.assert_allclose(parts.scale, 0.5 * best.x, rtol=1e-4)


def _trained():
    def build():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])

    model = tfe.Ensemble(build, 3)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.mark.parametrize("method", ["vector", "isotonic"])
def test_it_saves_loads_and_exports_as_an_ensemble_does(method, tmp_path):
    x = RNG.normal(size=(200, 4)).astype("float32")
    y = (x[:, 0] + RNG.normal(size=200) > 0).astype(int)
    calibrated = tfe.calibrate(_trained(), x, y, method=method)
    calibrated.save(tmp_path / "calibrated.keras")
    loaded = keras.saving.load_model(tmp_path / "calibrated.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), calibrated.predict(x, verbose=0))
    tfe.export_saved_model(calibrated, tmp_path / "saved")
    served = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"](inputs=tf.constant(x))
    np.testing.assert_allclose(served["probabilities"], calibrated.predict_proba(x), atol=1e-6)
    assert calibrated.evaluate_joint(x, y)["joint_nll"] < tfe.metrics.joint_nll(
        calibrated.model.predict(x, verbose=0), y
    )


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"Expected method in .*'temperature'.*Received: 'platt'"):
        tfe.calibrate(Fixed(M), LOGITS, LABELS, method="platt")
    with pytest.raises(ValueError, match=r"Expected a tfe.Ensemble, or tfe.Ensemble.from_models"):
        tfe.calibrate(keras.Sequential(), LOGITS, LABELS)
    with pytest.raises(ValueError, match=r"Expected labels in \[0, 4\)"):
        tfe.calibrate(Fixed(M), LOGITS, LABELS + 1)
    with pytest.raises(ValueError, match="Expected two classes"):
        tfe.calibrate(Fixed(M), LOGITS, LABELS, method="isotonic")
    with pytest.raises(ValueError, match=r"Expected \['level'\] with method='conformal' only"):
        tfe.calibrate(Fixed(M), LOGITS, LABELS, level=0.9)
    with pytest.raises(
        ValueError, match=r"Expected options of method='conformal' among \['level'.*Received: \['lvl'\]"
    ):
        tfe.calibrate(Fixed(M), LOGITS, LABELS, method="conformal", lvl=0.9)
    with pytest.raises(ValueError, match=r"Expected at least tau=10 examples. Received: 5"):
        tfe.calibrate(Fixed(M), LOGITS[:5], LABELS[:5], objective="joint")
    for method in ("temperature", "conformal"):
        with pytest.raises(ValueError, match=r"Expected calibration data.*Received: y of shape \(0,\)"):
            tfe.calibrate(_trained(), np.zeros((0, 4), "float32"), LABELS[:0], method=method)
    with pytest.raises(ValueError, match="Expected fit on the ensemble"):
        tfe.calibrate(Fixed(M), LOGITS, LABELS).fit(LOGITS, LABELS)


def _skewed():
    """Members that agree on a wrong, symmetric noise: targets are skewed."""
    mean, std = RNG.normal(size=(EXAMPLES, M, 1)), np.exp(0.3 * RNG.normal(size=(EXAMPLES, M, 1)))
    y = (mean + std * (RNG.exponential(size=(EXAMPLES, M, 1)) - 1.0))[:, 0]
    head = heads.Gaussian()
    outputs = np.concatenate([mean, np.log(np.expm1(std - head.min_std))], axis=-1).astype("float32")
    return mean, std, y, Fixed(M, Kind.GAUSSIAN, head), outputs


def test_a_new_shape_of_the_noise_recalibrates_quantiles():
    mean, std, y, model, outputs = _skewed()
    calibrated = tfe.calibrate(model, outputs, y, method="quantiles")
    weights, shifts, factors = (
        np.asarray(part, np.float64) for part in (calibrated.log_weights, calibrated.shifts, calibrated.factors)
    )

    def nll(log_weights, shifts, factors):
        z = ((y[:, None] - mean) / std - shifts) / factors  # [batch, members, parts]
        parts = np.exp(log_weights - 0.5 * z**2) / (factors * std * np.sqrt(2 * np.pi))
        return -np.mean(np.log(parts.sum(axis=2).mean(axis=1)))

    assert np.exp(weights).sum() == pytest.approx(1.0, rel=1e-5)
    own = nll(weights, shifts, factors)
    distribution = PredictiveDistribution.of_outputs(calibrated.head, outputs)
    assert -distribution.log_prob(y).mean() == pytest.approx(own, rel=1e-4)
    # It is where the NLL is least of what is allowed: a step in any direction, and the noise as it was, are no better.
    assert own < nll(np.log([1.0, 1e-12, 1e-12]), np.zeros(3), np.ones(3)) - 0.05
    for index in range(3):
        for step in (-0.02, 0.02):
            assert own < nll(weights, shifts + step * np.eye(3)[index], factors) + 1e-5
            wider = np.maximum(factors * (1 + step * np.eye(3)[index]), noise.LEAST)
            assert own < nll(weights, shifts, wider) + 1e-5
    errors = [
        np.abs(np.mean(part.cdf(y) <= LEVELS, axis=0) - LEVELS).max()
        for part in (PredictiveDistribution.of_outputs(model.head, outputs), distribution)
    ]
    assert errors[1] < 0.5 * errors[0]
    np.testing.assert_allclose(distribution.cdf(distribution.quantile(0.3)), 0.3, atol=1e-5)
    expected = mean.mean(axis=1) + np.exp(weights) @ shifts * std.mean(axis=1)
    np.testing.assert_allclose(distribution.mean, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="Expected method='quantiles' for a regression only"):
        tfe.calibrate(Fixed(M), LOGITS, LABELS, method="quantiles")


@pytest.mark.slow
def test_a_new_shape_is_saved_and_exported(tmp_path):
    x = RNG.normal(size=(60, 4)).astype("float32")
    ensemble = tfe.Ensemble(lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]), 3)
    ensemble.compile("adam", tfe.losses.GaussianNLL())
    calibrated = tfe.calibrate(ensemble, x, RNG.exponential(size=60), method="quantiles")
    calibrated.save(tmp_path / "calibrated.keras")
    loaded = keras.saving.load_model(tmp_path / "calibrated.keras")
    quantiles = calibrated.predict_distribution(x).quantile([0.1, 0.9])
    np.testing.assert_allclose(loaded.predict_distribution(x).quantile([0.1, 0.9]), quantiles, rtol=1e-6)
    tfe.export_saved_model(calibrated, tmp_path / "saved")
    signatures = tf.saved_model.load(tmp_path / "saved").signatures
    served = signatures["quantiles"](inputs=tf.constant(x), levels=tf.constant([0.1, 0.9]))
    np.testing.assert_allclose(served["quantiles"], quantiles, rtol=1e-4, atol=1e-5)
    mean = signatures["serving_default"](inputs=tf.constant(x))["mean"]
    np.testing.assert_allclose(mean, calibrated.predict_proba(x), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean, calibrated.predict_distribution(x).mean, rtol=1e-4, atol=1e-5)


# Data that do not determine a constant.


def _grid_nll(logits, labels, spread):
    """The least NLL over a fine grid of temperatures whose calibrated logits are from 1/100 to 100 in size."""
    temperatures = spread / np.geomspace(0.01, 100.0, 2001)
    return min(_nll(logits / temperature, labels) for temperature in temperatures)


def _spread(logits):
    wide = np.asarray(logits, np.float64)
    return np.abs(wide - wide.mean(axis=-1, keepdims=True)).mean()


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("num", "right", "words"),
    [
        (1, True, "1 calibration example cannot determine the temperature: .*falls the more certain"),
        (1, False, "1 calibration example cannot determine the temperature: .*falls the less certain"),
        (40, True, "40 calibration examples cannot determine the temperature: .*falls the more certain"),
        (40, False, "40 calibration examples cannot determine the temperature: .*falls the less certain"),
    ],
)
def test_a_temperature_that_data_do_not_determine_is_bounded_and_told(num, right, words, scale):
    logits = scale * LOGITS[:num].astype(np.float64)
    mixture = _softmax(LOGITS[:num]).mean(axis=1)
    labels = mixture.argmax(axis=-1) if right else mixture.argmin(axis=-1)
    if right and num > 1:
        logits = np.repeat(logits[:, :1], M, axis=1)  # Members agree, so that certainty is never wrong.
        labels = logits[:, 0].argmax(axis=-1)
    with pytest.warns(UserWarning, match=words):
        calibrated = tfe.calibrate(Fixed(M), logits, labels)
    (temperature,) = calibrated.temperature
    spread = _spread(logits)
    assert spread / 101 < temperature < 101 * spread
    assert temperature < spread if right else temperature > spread
    # float32 keeps the temperature to seven digits, and the NLL is flat there.
    assert _nll(logits / temperature, labels) <= _grid_nll(logits, labels, spread) + 1e-6


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_temperature_that_data_determine_follows_the_size_of_logits(scale):
    """It is bounded in units of the logits: others have their own range."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own = tfe.calibrate(Fixed(M), LOGITS, LABELS).temperature
        other = tfe.calibrate(Fixed(M), scale * LOGITS.astype(np.float64), LABELS).temperature
    np.testing.assert_allclose(other, scale * own, rtol=1e-5)


def test_an_untrained_model_and_labels_of_chance():
    logits, labels = RNG.normal(size=(60, M, CLASSES)), np.arange(60) % CLASSES
    logits[np.arange(60), :, labels] -= 1.0  # What members say is wrong more often than chance.
    with pytest.warns(UserWarning, match=r"60 calibration examples.*the less certain.*Stopped at"):
        (temperature,) = tfe.calibrate(Fixed(M), logits, labels).temperature
    assert temperature == pytest.approx(100.0 * _spread(logits), rel=1e-5)
    with pytest.warns(UserWarning, match=r"the NLL is the same for all. Stopped at 1"):
        flat = tfe.calibrate(Fixed(M), np.zeros((60, M, CLASSES)), labels)
    np.testing.assert_array_equal(flat.temperature, [1.0])


@pytest.mark.parametrize("method", ["temperature", "vector"])
def test_classes_that_were_never_seen_have_finite_constants(method):
    logits = LOGITS[:50].astype(np.float64)
    labels = logits.mean(axis=1)[:, :2].argmax(axis=-1)  # Two of four classes do not occur.
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        calibrated = tfe.calibrate(Fixed(M), logits, labels, method=method)
    assert np.abs(np.asarray(calibrated.offsets)).max() <= 30.0
    assert np.asarray(calibrated.factors).max() <= 100.0 / _spread(logits) * (1 + 1e-6)
    assert any("50 calibration examples" in str(one.message) for one in said) == (method == "vector")


def test_noise_that_data_do_not_determine_is_bounded_and_told():
    outputs = np.repeat(RNG.normal(size=(30, 1, 2)), M, axis=1)
    model = Fixed(M, Kind.GAUSSIAN, heads.Gaussian(1e-3))
    exact = np.asarray(model.head.means(tf.constant(outputs)))[:, 0]
    with pytest.warns(
        UserWarning, match=r"30 calibration examples cannot determine the size of the noise.*less.*0.001"
    ):
        calibrated = tfe.calibrate(model, outputs, exact)
    assert float(calibrated.factor) == pytest.approx(1e-3, rel=1e-6)
    away = np.array([[0.1], [0.2], [-0.1]])
    with pytest.warns(UserWarning, match=r"3 calibration examples: constants .* mostly chance"):
        few = tfe.calibrate(model, outputs[:3], exact[:3] + away)
    std = np.asarray(model.head.components(tf.constant(outputs[:3])).scale)[:, 0, 0]
    # One normal distribution per example: the factor is the root of the mean squared distance, in closed form.
    np.testing.assert_allclose(float(few.factor), np.sqrt(np.mean((away / std) ** 2)), rtol=1e-5)


def test_outputs_and_targets_that_are_not_finite_are_refused():
    outputs, y = RNG.normal(size=(30, M, 2)), RNG.normal(size=30)
    model = Fixed(M, Kind.GAUSSIAN, heads.Gaussian(1e-3))
    spoiled = outputs.copy()
    spoiled[3, 1, 0] = np.nan
    for options in ({}, {"method": "quantiles"}, {"method": "conformal", "level": 0.5}):
        with pytest.raises(ValueError, match=r"Expected finite member outputs. Received: 1 NaN"):
            tfe.calibrate(model, spoiled, y, **options)
        with pytest.raises(ValueError, match=r"Expected .*30 examples, as x has. Received: 29|Expected finite targets"):
            tfe.calibrate(model, outputs, y[:-1], **options)
