"""Section 4 and appendices A.1 and B as numbers: every check returns what was measured beside what theory predicts.

Built on `linear` and its `problems`, with their shapes: leading dimensions are independent problems.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import tensorflow as tf

from tf_ensembles import linear
from tf_ensembles.base import Array
from tf_ensembles.linear import problems as linear_problems
from tf_ensembles.linear.inputs import DTYPE, Tensor
from tf_ensembles.linear.problems import Problems, Setting


@dataclasses.dataclass(frozen=True)
class Check:
    """What was measured, its standard error (zero where nothing is averaged), and what theory predicts."""

    measured: Array
    error: Array
    predicted: Array


def gamma_and_bound(setting: Setting, num_inputs: int = 400_000, seed: int = 0) -> tuple[Array, float, float]:
    """Returns gamma, theorem 1's bound and the bound's standard error: exact where noise is constant."""
    if isinstance(setting.noise, linear_problems.ConstantNoise):
        gamma = linear_problems.exact_gamma(setting)
        return gamma, float(linear.lower_bound(gamma, setting.num_data)), 0.0
    gamma, parts = linear_problems.monte_carlo_gamma(setting, num_inputs, seed)
    scatter = np.std(linear.lower_bound(parts, setting.num_data), ddof=1) / math.sqrt(len(parts))
    return gamma, float(linear.lower_bound(gamma, setting.num_data)), float(scatter)


def best_prior_variance(gamma: Array, num_data: int, prior_variance: float) -> float:
    """Returns the `s0_hat^2` with which unbiased ensemble-p has the least expected KL: `(1 + T mean(gamma)) s0^2`.

    The expected KL is `d ln eta + E[tr Sigma^-1] / eta` and constants, so `eta = s0_hat^2 / s0^4` is best at
    `E[tr Sigma^-1] / d`, which is known exactly.
    """
    return float((1.0 + num_data * np.mean(gamma)) * prior_variance)


def tuned_prior_variance(target: linear.Gaussian, unit: linear.Gaussian) -> float:
    """Returns the `s0_hat^2` with the least mean `KL(target || N(mu_hat, s0_hat^2 K))` over problems.

    Without bootstrap `Sigma_hat = s K` with `s = s0_hat^2`; the mean over problems of `d ln s + q / s` is least at
    `s = mean(q) / d`, `q = tr(K^-1 Sigma) + (mu_hat - mu)' K^-1 (mu_hat - mu)`.

    Args:
      target: the posteriors.
      unit: the members' distributions at `s0_hat^2 = 1`, `N(mu_hat, K)`.
    """
    stacked = tf.concat([target.scale, (unit.mean - target.mean)[..., tf.newaxis]], axis=-1)
    solved = tf.linalg.triangular_solve(unit.scale, stacked)
    quadratic = tf.reduce_sum(tf.square(solved), axis=[-2, -1])
    return float(tf.reduce_mean(quadratic)) / target.mean.shape[-1]


def proposition_1(problems: Problems) -> Check:
    """Measures the KL from the posterior to ensemble-bp with the matching parameters; predicted: zero everywhere."""
    measured = linear.kl(problems.posterior(), problems.distribution(linear.LinearAgent.ENSEMBLE_BP)).numpy()
    return Check(measured, np.zeros_like(measured), np.zeros_like(measured))


def proposition_2(problems: Problems, num_members: int, seed: int) -> Check:
    """Measures how far ensemble-n's members differ within a problem, `[problems]`; predicted: not at all."""
    loss = linear.agent_parameters(linear.LinearAgent.ENSEMBLE_N, problems.noise_variance, problems.prior_variance)
    members = linear.sample_members(problems.x, problems.y, *loss.arguments(), num_members=num_members, seed=seed)
    measured = np.ptp(members.numpy(), axis=-2).max(axis=-1)
    return Check(measured, np.zeros_like(measured), np.zeros_like(measured))


def theorem_1(setting: Setting, num_problems: int, seed: int) -> Check:
    """Measures the expected KL of the best unbiased ensemble-p; predicted: the lower bound. Scalars.

    The error combines that of the mean over problems with that of the bound where gamma is a Monte Carlo estimate.
    """
    gamma, bound, bound_error = gamma_and_bound(setting, seed=seed)
    kls = unbiased_kls(setting, gamma, num_problems, seed)
    return Check(np.asarray(np.mean(kls)), np.hypot(standard_error(kls), bound_error), np.asarray(bound))


def concentration_gap(gamma: Array, num_data: int) -> float:
    """Predicts how far theorem 1's bound lies below the best unbiased ensemble-p; Gaussian inputs, constant noise.

    The proof loses only `ln det E[A] - E[ln det A]`, `A = I + sum_t s0^2 x x' / sigma^2`. To second order in the
    fluctuations of the Wishart matrix `A` this is `((sum_i k_i)^2 + sum_i k_i^2) / (2 T)`, `k_i = T g_i / (1 + T g_i)`,
    and half of it is the gap: about `d (d + 1) / (4 T)`. The bound is tight where this is small beside it.
    """
    shrinkage = num_data * gamma / (1.0 + num_data * gamma)
    return float((np.sum(shrinkage) ** 2 + np.sum(shrinkage**2)) / (4.0 * num_data))


def homoscedastic_case(dim: int, num_data: int, snr: float, num_problems: int, seed: int) -> Check:
    """Appendix B.4, first case: inputs `N(0, I)`, constant noise, `s0_hat^2 = (1 + T s0^2 / sigma^2) s0^2`.

    Measures the expected KL; predicted: `concentration_gap`, which vanishes as T grows (the lower bound is zero).
    """
    setting = linear_problems.make_setting(dim, num_data, snr=snr)
    tuned = (1.0 + num_data * snr) * setting.prior_variance
    kls = _weighted_kls(setting, tuned, num_problems, seed)
    return Check(
        np.asarray(np.mean(kls)),
        standard_error(kls),
        np.asarray(concentration_gap(linear_problems.exact_gamma(setting), num_data)),
    )


def unbiased_kls(setting: Setting, gamma: Array, num_problems: int, seed: int) -> Array:
    """Returns the KL of the best unbiased ensemble-p on each of many problems, `[problems]`.

    Settings that differ in their noise alone have the same inputs for the same seed, so that their KLs are paired.

    Args:
      setting: the setting.
      gamma: its gamma, `[d]`.
      num_problems: how many problems.
      seed: of the problems.
    """
    best = best_prior_variance(gamma, setting.num_data, setting.prior_variance)
    return _weighted_kls(setting, best, num_problems, seed)


def high_snr_kl(gamma: Array, num_data: int) -> float:
    """Returns the limit of the best unbiased ensemble-p's expected KL as the noise vanishes; Gaussian inputs.

    `1/2 sum_i ln(mean(gamma) / gamma_i) + 1/2 (d ln T - E[ln det W])`, `W = sum_t z z'` with `z ~ N(0, I)`, Wishart:
    theorem 1's bound in that limit, and what few data add. It depends on the SNR no more: `gamma`, `[d]`, counts up to
    a factor. With `T < d` the KL grows without bound, as `(d - T) / 2 ln SNR`: infinite.
    """
    dim = len(gamma)
    if num_data < dim:
        return math.inf
    halves = (num_data - np.arange(dim)) / 2.0
    few_data = np.sum(np.log(num_data / 2.0) - tf.math.digamma(tf.constant(halves, DTYPE)).numpy())
    return float(0.5 * (np.sum(np.log(np.mean(gamma) / np.asarray(gamma))) + few_data))


def missed_spread(target: linear.Gaussian, distribution: linear.Gaussian) -> Tensor:
    """Returns the squared Wasserstein-2 distance as a share of the target's variance, `tr Sigma`: `[...]`.

    0 for the target itself and 1 for a point at its mean. It stays a fair measure where all variances vanish: the plain
    distance then vanishes for a point, too.
    """
    return wasserstein(target, distribution) / tf.linalg.trace(target.cov)


def least_missed_prior_variance(target: linear.Gaussian, unit: linear.Gaussian) -> float:
    """Returns the `s0_hat^2` with the least mean `missed_spread` over problems.

    Without bootstrap `Sigma_hat = s K`, and the distance is `s tr K - 2 sqrt(s) overlap` and constants.

    Args:
      target: the posteriors.
      unit: the members' distributions at `s0_hat^2 = 1`, `N(mu_hat, K)`.
    """
    total = tf.linalg.trace(target.cov)
    root = tf.reduce_mean(_overlap(target, unit) / total) / tf.reduce_mean(tf.linalg.trace(unit.cov) / total)
    return float(root) ** 2


def wasserstein(p: linear.Gaussian, q: linear.Gaussian) -> Tensor:
    """Returns the squared Wasserstein-2 distance of two distributions of `linear`, `[...]`; finite for a point too."""
    variances = tf.linalg.trace(p.cov) + tf.linalg.trace(q.cov)
    return tf.reduce_sum(tf.square(p.mean - q.mean), axis=-1) + variances - 2.0 * _overlap(p, q)


def predictive_kl(p: linear.Gaussian, q: linear.Gaussian, x: Tensor, noise_variance: Tensor) -> Tensor:
    """Returns `KL` between the predictions of tau outcomes when coefficients are `p` and `q` (appendix A.1).

    Outcomes at `x` `[..., tau, d]` are `N(X mu, X Sigma X' + diag(noise))`. All they tell about the coefficients is in
    `d` numbers, so the KL in tau dimensions is one in d, whatever tau: with `R'R = X' diag(1 / noise) X`, it is the KL
    of the two `N(R mu, R Sigma R' + I)`. It is at most `KL(p || q)` and approaches it as tau grows.
    """
    root = _information_root(x, noise_variance)
    return linear.kl(_observed(p, root), _observed(q, root))


def information_gain(p: linear.Gaussian, x: Tensor, noise_variance: Tensor) -> Tensor:
    """Returns the mutual information of the coefficients `~ p` and tau outcomes: `1/2 ln det(I + R Sigma R')`.

    The paper's `KL^tau` against the environment is `predictive_kl` plus this, which is the same for all agents.
    """
    return 0.5 * tf.linalg.logdet(_observed(p, _information_root(x, noise_variance)).cov)


def finite_ensemble_kl(target: linear.Gaussian, distribution: linear.Gaussian, num_members: int) -> Tensor:
    """Returns the expected `KL(target || fit(members))` of `num_members` draws, `[...]`; both must be regular.

    From the Wishart distribution of the sample covariance: with `n = M - 1` and `a = n / (n - d - 1)`,
    `KL(target || distribution) + 1/2 [(a - 1) q + a d / M + sum_{i=0}^{d-1} (digamma((n - i) / 2) - ln(n / 2))]`, `q`
    the trace and mean terms of twice that KL. Infinite for `M <= d + 2`; tends to the KL of the infinite ensemble.
    """
    dim, count = int(target.mean.shape[-1]), num_members - 1
    infinite = linear.kl(target, distribution)
    if num_members <= dim + 2:
        return tf.fill(tf.shape(infinite), tf.constant(np.inf, DTYPE))
    inflation = count / (count - dim - 1)
    diagonals = (tf.math.log(tf.abs(tf.linalg.diag_part(one.scale))) for one in (distribution, target))
    determinants = 2.0 * tf.reduce_sum(tf.subtract(*diagonals), -1)
    quadratic = 2.0 * infinite + dim - determinants
    halves = tf.constant((count - np.arange(dim)) / 2.0, DTYPE)
    shape_term = tf.reduce_sum(tf.math.digamma(halves) - math.log(count / 2.0))
    return infinite + 0.5 * ((inflation - 1.0) * quadratic + inflation * dim / num_members + shape_term)


def standard_error(values: Array) -> Array:
    """Returns the standard error of the mean over the first axis; NaN for infinite values, which have no scatter."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.std(values, axis=0, ddof=1) / math.sqrt(len(values)))


def _weighted_kls(setting: Setting, agent_prior_variance: float, num_problems: int, seed: int) -> Array:
    """Returns the KL of unbiased ensemble-p on each of many problems, `[problems]`."""
    chunks = linear_problems.problem_chunks(setting, num_problems, seed)
    agent = linear.LinearAgent.WEIGHTED_P
    return np.concatenate([linear.kl(p.posterior(), p.distribution(agent, agent_prior_variance)) for p in chunks])


def _overlap(p: linear.Gaussian, q: linear.Gaussian) -> Tensor:
    """Returns `tr (P^1/2 Q P^1/2)^1/2`: the sum of the singular values of P's factor times Q's."""
    return tf.reduce_sum(tf.linalg.svd(tf.matmul(p.scale, q.scale, transpose_a=True), compute_uv=False), axis=-1)


def _information_root(x: Tensor, noise_variance: Tensor) -> Tensor:
    """Returns `R`, `[..., d, d]`, with `R'R = X' diag(1 / noise) X`."""
    gram = tf.matmul(x / noise_variance[..., tf.newaxis], x, transpose_a=True)
    # By eigenvalues, because fewer outcomes than dimensions make the matrix singular.
    values, vectors = tf.linalg.eigh(gram)
    return tf.sqrt(tf.maximum(values, 0.0))[..., tf.newaxis] * tf.linalg.matrix_transpose(vectors)


def _observed(of: linear.Gaussian, root: Tensor) -> linear.Gaussian:
    """Returns the distribution of `R theta + noise`, noise `N(0, I)`."""
    factor = tf.matmul(root, of.scale)
    identity = tf.eye(tf.shape(factor)[-1], dtype=DTYPE)
    return linear.Gaussian(tf.linalg.matvec(root, of.mean), tf.matmul(factor, factor, transpose_b=True) + identity)
