"""What holds exactly in section 4 and appendix A, computed a second way: without the formulas of `theory`.

Shapes are those of `linear`: leading dimensions are independent problems.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tf_ensembles import legacy_keras, linear
from tf_ensembles.base import Array
from tf_ensembles.draws import Purpose
from tf_ensembles.linear import inputs as linear_input
from tf_ensembles.linear.inputs import Tensor
from tf_ensembles.linear.problems import Problems


def unclipped_bounds(gamma: Array, num_data: Array) -> Array:
    """Returns theorem 1's bound as `d/2 ln(arithmetic over geometric mean of 1 + T gamma_i)`, `[...]`, as it comes out.

    `linear.lower_bound` puts 0 where rounding makes it negative; whether it is negative cannot be learned there.

    Args:
      gamma: `[..., d]`.
      num_data: `T`, `[...]`.
    """
    scaled = 1.0 + np.asarray(num_data)[..., np.newaxis] * gamma
    largest = scaled.max(axis=-1, keepdims=True)  # Spectra may span many orders: both means of numbers up to 1.
    ratio = scaled / largest
    return np.asarray(0.5 * gamma.shape[-1] * (np.log(ratio.mean(axis=-1)) - np.log(ratio).mean(axis=-1)))


def bias(problems: Problems, weight: Tensor, regularizer: Tensor) -> Array:
    """Returns how far `mu_hat` is from `mu`, in the posterior's standard deviations, `[problems]`.

    Args:
      problems: the problems.
      weight: `nu`, `[problems, T]`.
      regularizer: `lambda`, `[problems]`.
    """
    posterior = problems.posterior()
    members = linear.ensemble_distribution(problems.x, problems.y, weight, regularizer, 0.0, 0.0)
    away = tf.linalg.triangular_solve(posterior.scale, (members.mean - posterior.mean)[..., tf.newaxis])
    return np.asarray(tf.norm(away[..., 0], axis=-1))


def unbiased_choices(problems: Problems) -> tuple[Array, Array]:
    """Tells whether other choices than `nu = c / sigma^2`, `lambda = c / s0^2` are unbiased *whatever the targets*.

    `mu_hat = mu` for all y means `(sum_t nu_t x_t x_t' + lambda I) M = X' diag(nu)`, `M = Sigma X' diag(1 / sigma^2)`:
    `d T` equations, linear in the `T + 1` numbers nu and lambda. They are taken in units of the known solution.

    Returns:
      The smallest and the second smallest singular value of the equations as shares of the largest, `[problems]`: the
      known solution and its multiples solve them where the first is 0; nothing else does where the second is not.
    """
    x, noise = np.asarray(problems.x), np.asarray(problems.noise_variance)
    mean_map = np.asarray(problems.posterior().cov) @ (x / noise[..., np.newaxis]).swapaxes(-1, -2)  # [problems, d, T]
    count, num_data, dim = x.shape
    equations = np.zeros((count, dim, num_data, num_data + 1))
    # Column t: nu_t x_t (x_t' M - e_t'), the t-th weight's part of both sides.
    fitted = x @ mean_map - np.eye(num_data)  # [problems, T, T]
    equations[..., :num_data] = np.einsum("ntd,nts->ndst", x / noise[..., np.newaxis], fitted)
    equations[..., num_data] = mean_map / problems.prior_variance
    values = np.linalg.svd(equations.reshape(count, dim * num_data, num_data + 1), compute_uv=False)
    # Fewer equations than unknowns have solutions that no singular value tells of.
    padded = np.pad(values, ((0, 0), (0, num_data + 1 - values.shape[-1])))
    return padded[:, -1] / padded[:, 0], padded[:, -2] / padded[:, 0]


def outcome_log_likelihoods(
    problems: Problems, distributions: Mapping[str, linear.Gaussian], x: Tensor, noise_variance: Tensor, seed: int
) -> tuple[Array, dict[str, Array]]:
    """Draws tau outcomes from the environment, and returns their log-likelihoods: of the environment, and by name.

    Nothing but the definition: `y ~ N(X theta*, D)` with the problem's own coefficients, and normal densities in tau
    dimensions, `N(X mu, X Sigma X' + D)`.

    Args:
      problems: the problems.
      distributions: of coefficients, by name.
      x: `[problems, tau, d]`.
      noise_variance: `[problems, tau]`, the diagonal of `D`.
      seed: of the outcomes.
    """
    tfd = legacy_keras.import_tfp().distributions
    deviation = tf.sqrt(noise_variance)
    center = tf.linalg.matvec(x, problems.theta)
    y = center + deviation * linear_input.normals(tf.shape(deviation), seed, Purpose.LINEAR_OUTCOMES.stream)
    environment = tf.reduce_sum(tfd.Normal(center, deviation).log_prob(y), axis=-1)
    found = {}
    for name, one in distributions.items():
        covariance = tf.matmul(x, tf.matmul(one.cov, x, transpose_b=True)) + tf.linalg.diag(noise_variance)
        prediction = tfd.MultivariateNormalTriL(tf.linalg.matvec(x, one.mean), tf.linalg.cholesky(covariance))
        found[name] = np.asarray(prediction.log_prob(y))
    return np.asarray(environment), found


def random_spectra(num: int, dim: int, spread: float, seed: int) -> Array:
    """Returns eigenvalues `exp(spread z)`, z standard normal, `[num, dim]`: all 1 where the spread is 0."""
    if num < 1 or dim < 1 or not (math.isfinite(spread) and spread >= 0.0):
        raise ValueError(f"Expected num >= 1, dim >= 1 and a finite spread >= 0. Received: {num}, {dim}, {spread}")
    return np.exp(spread * np.random.default_rng(seed).normal(size=(num, dim)))
