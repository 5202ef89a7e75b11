"""The exact mixture, against brute force: bisection in Python, draws, moments of NumPy."""

import math

import numpy as np
import pytest

from tests.tf_ensembles.regression.test_scores import brute_quantile
from tf_ensembles import draws
from tf_ensembles.regression import components, heads
from tf_ensembles.regression.distribution import PredictiveDistribution

FLOAT32 = 2.0**-24


def raw_of(std, min_std=1e-3):
    """The raw scale whose softplus and floor is `std`."""
    return np.log(np.expm1(np.asarray(std) - min_std))


def gaussians(mean, std):
    """A distribution of arrays [batch, members, targets]."""
    return PredictiveDistribution.of_outputs(heads.Gaussian(), np.concatenate([mean, raw_of(std)], axis=-1))


def some(batch=7, members=4, targets=2, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=(batch, members, targets)), 0.2 + random.random((batch, members, targets))


def test_moments_split_the_variance():
    mean, std = some()
    d = gaussians(mean, std)
    np.testing.assert_allclose(d.mean, mean.mean(1), rtol=1e-12)
    np.testing.assert_allclose(d.aleatoric_std, np.sqrt((std**2).mean(1)), rtol=1e-9)
    np.testing.assert_allclose(d.epistemic_std, mean.std(1), rtol=1e-9)
    np.testing.assert_allclose(d.std**2, d.aleatoric_std**2 + d.epistemic_std**2, rtol=1e-9)
    np.testing.assert_allclose(d.member_mean, mean)
    np.testing.assert_allclose(d.member_std, std, rtol=1e-9)


@pytest.mark.parametrize("widths", [(1.0, 1.0), (1e-6, 1e6), (1e6, 1e6)])
@pytest.mark.parametrize("level", [1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
def test_quantiles_equal_bisection(widths, level):
    random = np.random.default_rng(0)
    mean = random.normal(size=(3, 4, 1)) * widths[0]
    std = np.where(np.arange(4) % 2, widths[0], widths[1])[None, :, None] * (0.5 + random.random((3, 4, 1)))
    d = PredictiveDistribution(
        heads.Gaussian(1e-9),
        lambda: iter([np.concatenate([mean, np.where(std > 30, std, raw_of(np.minimum(std, 30), 1e-9))], axis=-1)]),
    )
    got = d.quantile(level)
    for i in range(3):
        expected = brute_quantile(mean[i, :, 0], d.member_std[i, :, 0], level)
        # Of the number itself, or of the narrowest member where that is near 0.
        assert abs(got[i, 0] - expected) <= FLOAT32 * (abs(expected) + std[i].min())


def test_quantiles_invert_the_cdf_and_go_by_several_levels():
    mean, std = some()
    d = gaussians(mean, std)
    levels = [0.05, 0.5, 0.99]
    found = d.quantile(levels)
    assert found.shape == (7, 2, 3)
    for k, level in enumerate(levels):
        np.testing.assert_allclose(d.cdf(found[..., k]), level, rtol=1e-8)
        np.testing.assert_allclose(found[..., k], d.quantile(level), rtol=1e-9)
    lower, upper = d.interval(0.9)
    np.testing.assert_allclose(np.stack([lower, upper], -1), d.quantile([0.05, 0.95]), rtol=1e-12)


def test_densities_are_the_slope_of_the_cdf():
    mean, std = some(targets=1)
    d = gaussians(mean, std)
    y = np.linspace(-1, 1, 7)
    step = 1e-5
    slope = (d.cdf(y + step) - d.cdf(y - step))[:, 0] / (2 * step)
    np.testing.assert_allclose(np.exp(d.log_prob(y)), slope, rtol=1e-7)


@pytest.mark.parametrize("head", [heads.StudentT(1e-3, 3.5), heads.Mixture(3)], ids=["student_t", "mixture"])
def test_other_heads_agree_with_themselves(head):
    """Density, cdf, quantiles, moments and draws are written apart from each other."""
    outputs = np.random.default_rng(0).normal(size=(1, 3, head.blocks[0]))
    d = PredictiveDistribution.of_outputs(head, outputs)
    grid = np.linspace(-400.0, 400.0, 400_001)
    wide = PredictiveDistribution.of_outputs(head, np.repeat(outputs, 1, axis=0))
    density = np.exp(_along(wide, outputs, head, grid))
    step = grid[1] - grid[0]
    at = 200_300  # x = 0.6
    # The t distribution with 3.5 degrees of freedom has 4e-9 of its mass and 3e-3 of its variance beyond 400.
    np.testing.assert_allclose(np.sum(density) * step, 1.0, atol=1e-6)
    np.testing.assert_allclose(d.cdf([grid[at]])[0, 0], np.sum(density[:at]) * step + density[at] * step / 2, atol=1e-6)
    mean = np.sum(grid * density) * step
    np.testing.assert_allclose(d.mean[0, 0], mean, atol=1e-4)
    variance = np.sum((grid - mean) ** 2 * density) * step
    np.testing.assert_allclose(d.std[0, 0] ** 2, variance, rtol=5e-3)
    for level in (0.01, 0.5, 0.9):
        np.testing.assert_allclose(d.cdf(d.quantile(level)[:, 0]), level, rtol=1e-8)
    for draw in (d.sample(40_000, seed=1)[0, :, 0], d.joint_sample(40_000, seed=1)[0, :, 0]):
        for level in (0.1, 0.5, 0.9):
            share = np.mean(draw <= d.quantile(level)[0, 0])
            assert abs(share - level) < 5 * math.sqrt(level * (1 - level) / 40_000)


def _along(d, outputs, head, grid):
    many = PredictiveDistribution.of_outputs(head, np.broadcast_to(outputs, (len(grid), *outputs.shape[1:])))
    return many.log_prob(grid)


def test_draws_row_by_row_are_independent_and_joint_ones_share_a_member():
    # Two members far apart, the same for both rows.
    mean, std = np.array([[[-5.0], [5.0]]] * 2), np.full((2, 2, 1), 0.5)
    d = gaussians(mean, std)
    own, joint = d.sample(10_000, seed=3), d.joint_sample(10_000, seed=3)
    assert own.shape == joint.shape == (2, 10_000, 1)
    same = {"own": np.mean((own[0] > 0) == (own[1] > 0)), "joint": np.mean((joint[0] > 0) == (joint[1] > 0))}
    assert abs(same["own"] - 0.5) < 5 * 0.5 / 100
    assert same["joint"] == 1.0
    for draws_of in (own, joint):
        assert abs(draws_of.mean()) < 5 * 5.1 / 100
        residual = draws_of - 5.0 * np.sign(draws_of)
        np.testing.assert_allclose(residual.std(), 0.5, rtol=0.03)
        # Noise of two rows has nothing in common.
        assert abs(np.corrcoef(residual[0, :, 0], residual[1, :, 0])[0, 1]) < 0.05
    functions = d.joint_sample(50, seed=3, noise=False)
    assert set(np.unique(functions)) == {-5.0, 5.0}
    np.testing.assert_array_equal(np.sign(functions), np.sign(joint[:, :50]))
    np.testing.assert_array_equal(d.joint_sample(keys=[7]), d.joint_sample(10)[:, 7:8])
    np.testing.assert_array_equal(d.sample(5, seed=3), d.sample(5, seed=3))
    assert (d.sample(5, seed=3) != d.sample(5, seed=4)).all()
    assert not np.isin(d.joint_sample(100, seed=1), d.joint_sample(100, seed=0)).any()


def test_rows_do_not_depend_on_how_they_come(monkeypatch):
    mean, std = some(batch=11)
    whole = gaussians(mean, std)
    outputs = np.concatenate([mean, raw_of(std)], axis=-1)
    parts = PredictiveDistribution(heads.Gaussian(), lambda: iter([outputs[:4], outputs[4:5], outputs[5:]]))
    monkeypatch.setattr("tf_ensembles.regression.distribution.SLICE_ELEMENTS", 40)
    y = np.zeros((11, 2))
    for ask in (
        lambda d: d.mean,
        lambda d: d.std,
        lambda d: d.quantile(0.3),
        lambda d: d.log_prob(y),
        lambda d: d.cdf(y),
        lambda d: d.sample(3),
        lambda d: d.joint_sample(3),
    ):
        np.testing.assert_allclose(ask(parts), ask(whole), rtol=1e-12)


def test_bad_questions():
    mean, std = some()
    d = gaussians(mean, std)
    for level in (0.0, 1.0, -0.2, 2.0, float("nan")):
        with pytest.raises(ValueError, match=r"Expected level in \(0, 1\). Received"):
            d.quantile(level)
        with pytest.raises(ValueError, match=r"Expected level in \(0, 1\). Received"):
            d.interval(level)
    with pytest.raises(ValueError, match=r"Expected level in \(0, 1\). Received: 1.5"):
        d.quantile([0.5, 1.5])
    with pytest.raises(ValueError, match=r"Expected targets \[batch, 2\]"):
        d.log_prob(np.zeros((7, 3)))
    with pytest.raises(ValueError, match="Expected targets of 7 rows"):
        d.cdf(np.zeros((8, 2)))
    with pytest.raises(ValueError, match="num_draws"):
        d.sample(0)
    values = PredictiveDistribution.of_outputs(heads.Values(), mean)
    np.testing.assert_allclose(values.epistemic_std, mean.std(1))
    for ask in ("aleatoric_std", "std", "member_std"):
        with pytest.raises(ValueError, match=r"Expected the noise of the targets.*fit.*Received: no estimate yet"):
            getattr(values, ask)
    with pytest.raises(ValueError, match="Expected the noise of the targets"):
        values.quantile(0.5)
    noisy = PredictiveDistribution.of_outputs(heads.Values((0.5, 2.0)), mean)
    np.testing.assert_allclose(noisy.aleatoric_std, [[0.5, 2.0]] * 7)


def test_heads_read_their_columns():
    head = heads.Mixture(2)
    outputs = np.arange(12.0)[None, None]
    c = head.components(outputs)
    np.testing.assert_allclose(np.asarray(c.loc)[0, 0], [[0, 1], [2, 3]])
    np.testing.assert_allclose(np.asarray(c.scale)[0, 0], np.log1p(np.exp([[4, 5], [6, 7]])) + 1e-3)
    np.testing.assert_allclose(np.exp(np.asarray(c.log_weight)[0, 0]).sum(0), [1, 1])
    added = head.add_prior(outputs.astype(np.float32), np.array([[[10.0, 20.0]]], np.float32))
    np.testing.assert_allclose(np.asarray(added)[0, 0], [10, 21, 12, 23, *range(4, 12)])
    crossed = heads.Quantiles((0.1, 0.9)).quantiles(np.array([[[3.0, 1.0]]]))
    np.testing.assert_allclose(np.asarray(crossed)[0, 0, :, 0], [1.0, 3.0])
    for one in (heads.Values((1.0,)), heads.Gaussian(), heads.StudentT(), head, heads.Quantiles((0.1, 0.9))):
        assert heads.read(heads.write(one)) == one
    assert components.num_streams(2) == 6
    assert draws.Purpose.VALUE_DRAW.seed != draws.Purpose.JOINT_NOISE.seed
