"""Bayesian linear regression with known noise: the exact posterior and the exact distribution of an ensemble's members.

The problem (section 4): `y_t = theta* . x_t + w_t`, `w_t ~ N(0, sigma^2(x_t))`, prior `theta* ~ N(0, s0^2 I)`.
A member minimizes the perturbed loss

    sum_t nu(x_t)/2 (theta . x_t - y_t - z_t)^2 + lambda/2 |theta - anchor|^2,
    z_t ~ N(0, sigma_hat^2(x_t)),  anchor ~ N(0, s0_hat^2 I).

Shapes; the leading dimensions `...` are independent problems and all functions are batched over them:
  x:                                              [..., T, d]
  y:                                              [..., T]
  noise_variance, weight, bootstrap_variance:     [..., T], or what broadcasts to it: a number, `[T]`, `[..., 1]`
  prior_variance, regularizer:                    [...], or a number
All results are float64 tensors. Every function also works inside a `tf.function`, where values are not checked.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow as tf

from tf_ensembles import checks, legacy_keras
from tf_ensembles.draws import Purpose
from tf_ensembles.linear import inputs as linear_input
from tf_ensembles.linear.agents import LinearAgent, Perturbation, table_2
from tf_ensembles.linear.inputs import DTYPE, Tensor


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Normal distributions `N(mean, cov)`, one per problem.

    `scale` is carried along because `cov` squares the condition number: what is lost there cannot be won back. A
    Gaussian made by hand needs only `mean` and `cov`.
    """

    mean: Tensor  # [..., d]
    cov: Tensor  # [..., d, d]
    scale: Tensor | None = None  # [..., d, d], scale @ scale' = cov; lower triangular where the distribution is regular
    regular: Tensor | None = None  # [...] bool, False where cov is singular and there is no density


@linear_input.graph_ready
def posterior(x: Tensor, y: Tensor, noise_variance: Tensor, prior_variance: Tensor) -> Gaussian:
    """Returns the exact posterior of `theta*`.

    Sigma = (I / s0^2 + sum_t x_t x_t' / sigma^2(x_t))^-1 and mu = Sigma sum_t x_t y_t / sigma^2(x_t).
    """
    x, y = linear_input.data(x, y)
    noise_variance = linear_input.per_point("noise_variance", noise_variance, y, above_zero=True)
    prior_variance = linear_input.per_problem("prior_variance", prior_variance, x, above_zero=True)
    precision, target = _sums(x, y, 1.0 / noise_variance, 1.0 / prior_variance)
    linear_input.check_loss(precision, target, 1.0 / prior_variance, x=x, y=y)
    made = _from_sums(precision, target)
    linear_input.check_result("the posterior", made.mean, made.cov, noise_variance=noise_variance, y=y)
    return made


@linear_input.graph_ready
def ensemble_distribution(
    x: Tensor, y: Tensor, weight: Tensor, regularizer: Tensor, prior_variance: Tensor, bootstrap_variance: Tensor
) -> Gaussian:
    """Returns the distribution `N(mu_hat, Sigma_hat)` of a member given the data (appendix B.1).

    With `A = sum_t nu x x' + lambda I` and `B = sum_t nu^2 sigma_hat^2 x x' + lambda^2 s0_hat^2 I`:
    mu_hat = A^-1 sum_t nu y x and Sigma_hat = A^-1 B A^-1. Without prior and bootstrap, `B = 0` and it is a point.
    """
    x, y = linear_input.data(x, y)
    loss = _perturbation(x, y, weight, regularizer, prior_variance, bootstrap_variance)
    precision, target = _sums(x, y, loss.weight, loss.regularizer)
    linear_input.check_loss(precision, target, loss.regularizer, x=x, y=y)
    floor = tf.square(loss.regularizer) * loss.prior_variance
    spread = floor[..., tf.newaxis, tf.newaxis] * tf.eye(tf.shape(x)[-1], dtype=DTYPE)
    bootstrap = tf.get_static_value(loss.bootstrap_variance)
    if bootstrap is None or np.any(bootstrap != 0.0):  # The sum over the data is most of the work: skip it if zero.
        spread += _gram(x, tf.square(loss.weight) * loss.bootstrap_variance)
    linear_input.check_result("their spread", spread, **vars(loss))
    made = _from_sums(precision, target, tf.broadcast_to(spread, tf.shape(precision)), floor)
    linear_input.check_result("the distribution", made.mean, made.cov, **vars(loss))
    return made


@linear_input.graph_ready
def distribution_from_sums(
    precision: Tensor, target: Tensor, spread: Tensor | None = None, spread_floor: Tensor | None = None
) -> Gaussian:
    """Returns `N(A^-1 b, A^-1 B A^-1)` from sums over the data, for callers that update the sums as data arrive.

    `precision` must be positive definite; in graphs, that is not checked. It never fails on a singular `spread`.

    Args:
      precision: `A`, `[..., d, d]`.
      target: `b = sum_t nu y x`, `[..., d]`.
      spread: `B`, `[..., d, d]`; None means `B = A`, the posterior's.
      spread_floor: a lower bound of the eigenvalues of `B`, `[...]`; known where there is a prior, and it saves an
        eigendecomposition per problem.
    """
    precision, target = linear_input.tensor("precision", precision), linear_input.tensor("target", target)
    shape = precision.shape
    if not shape.rank or shape.rank < 2 or shape[-1] == 0 or not shape[-1:].is_compatible_with(shape[-2:-1]):
        raise ValueError(f"Expected precision of shape [..., d, d]. Received: {precision.shape}")
    if not target.shape.is_compatible_with(precision.shape[:-1]):
        raise ValueError(f"Expected target of shape {precision.shape[:-1]}. Received: {target.shape}")
    given = {"precision": precision, "target": target}
    linear_input.check_finite(given)
    linear_input.check_loss(precision, target, tf.constant(-np.inf, DTYPE))  # Nothing is known of its eigenvalues.
    if spread is not None:
        spread = given["spread"] = linear_input.tensor("spread", spread)
        if not spread.shape.is_compatible_with(precision.shape):
            raise ValueError(f"Expected spread of shape {precision.shape}. Received: {spread.shape}")
        linear_input.check_finite({"spread": spread})
    if spread_floor is not None:
        spread_floor = linear_input.per_problem("spread_floor", spread_floor, precision)
    made = _from_sums(precision, target, spread, spread_floor)
    linear_input.check_result("the distribution", made.mean, made.cov, **given)
    return made


def _from_sums(
    precision: Tensor, target: Tensor, spread: Tensor | None = None, spread_floor: Tensor | None = None
) -> Gaussian:
    # A = U U' with U upper triangular makes U'^-1 a lower triangular factor of A^-1 and keeps everything below a
    # product of triangles: no matrix is ever worse conditioned than A, though A^-1 A^-1 would square it.
    upper = tf.reverse(tf.linalg.cholesky(tf.reverse(precision, [-2, -1])), [-2, -1])
    identity = tf.eye(tf.shape(precision)[-1], batch_shape=tf.shape(precision)[:-2], dtype=DTYPE)
    inverse = tf.linalg.triangular_solve(upper, identity, lower=False)
    half = tf.linalg.triangular_solve(upper, target[..., tf.newaxis], lower=False)
    mean = tf.linalg.triangular_solve(upper, half, lower=False, adjoint=True)[..., 0]
    root = tf.linalg.matrix_transpose(inverse)
    if spread is None:
        regular = tf.ones(tf.shape(precision)[:-2], tf.bool)
        return Gaussian(mean, tf.matmul(root, inverse), root, regular)
    middle = tf.matmul(tf.matmul(inverse, spread), inverse, transpose_b=True)
    floor = None if spread_floor is None else spread_floor / tf.linalg.trace(precision)
    factor, regular = _factor(middle, floor)
    scale = tf.matmul(root, factor)
    return Gaussian(mean, tf.matmul(scale, scale, transpose_b=True), scale, regular)


@linear_input.graph_ready
def minimize(x: Tensor, targets: Tensor, weight: Tensor, regularizer: Tensor, anchors: Tensor) -> Tensor:
    """Minimizes the perturbed loss of many members at once, each with its own targets and anchor.

    theta_m = (sum_t nu x x' + lambda I)^-1 (sum_t nu targets_mt x_t + lambda anchor_m): one factorization per problem,
    one triangular solve with all members as right-hand sides.

    Args:
      x: `[..., T, d]`.
      targets: `y + z`, `[..., members, T]`.
      weight: as in `ensemble_distribution`.
      regularizer: as in `ensemble_distribution`.
      anchors: `[..., members, d]`.

    Returns:
      Members `[..., members, d]`.
    """
    x, targets, anchors = (
        linear_input.tensor("x", x),
        linear_input.tensor("targets", targets),
        linear_input.tensor("anchors", anchors),
    )
    if not x.shape.rank or x.shape.rank < 2 or targets.shape.rank != x.shape.rank:
        raise ValueError(
            "Expected x of shape [..., T, d] and targets of shape [..., members, T]. "
            f"Received: {x.shape} and {targets.shape}"
        )
    wanted = [*x.shape[:-2], targets.shape[-2], x.shape[-2]]
    if list(targets.shape) != wanted:
        raise ValueError(f"Expected targets of shape [..., members, T] = {wanted}. Received: {targets.shape}")
    if list(anchors.shape) != [*wanted[:-1], x.shape[-1]]:
        raise ValueError(f"Expected anchors of shape {[*wanted[:-1], x.shape[-1]]}. Received: {anchors.shape}")
    weight = linear_input.per_point("weight", weight, targets[..., 0, :])
    regularizer = linear_input.per_problem("regularizer", regularizer, x)
    precision, _ = _sums(x, targets[..., 0, :], weight, regularizer)
    # Not x * weight: weighting the small side keeps the [members, T] block untouched.
    right = tf.matmul(targets, x * weight[..., tf.newaxis]) + regularizer[..., tf.newaxis, tf.newaxis] * anchors
    linear_input.check_loss(
        precision, tf.reduce_sum(right, axis=-2), regularizer, x=x, targets=targets, anchors=anchors
    )
    solution = tf.linalg.cholesky_solve(tf.linalg.cholesky(precision), tf.linalg.matrix_transpose(right))
    return tf.linalg.matrix_transpose(solution)


@linear_input.graph_ready
def sample_members(
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    regularizer: Tensor,
    prior_variance: Tensor,
    bootstrap_variance: Tensor,
    num_members: int,
    seed: int,
) -> Tensor:
    """Draws perturbations and minimizes the perturbed loss for each of `num_members`: members `[..., members, d]`.

    The same seed gives the same members; problems and members have independent perturbations.
    """
    checks.integer("num_members", num_members, 1)
    x, y = linear_input.data(x, y)
    checks.fits(2 * num_members * (x.shape.num_elements() or 1), f"num_members={num_members} of x {x.shape}")
    loss = _perturbation(x, y, weight, regularizer, prior_variance, bootstrap_variance)
    batch, num_data, dim = tf.shape(y)[:-1], tf.shape(x)[-2], tf.shape(x)[-1]
    noise = linear_input.normals(tf.concat([batch, [num_members, num_data]], 0), seed, Purpose.LINEAR_TARGET.stream)
    anchors = linear_input.normals(tf.concat([batch, [num_members, dim]], 0), seed, Purpose.LINEAR_ANCHOR.stream)
    deviation = tf.sqrt(tf.broadcast_to(loss.bootstrap_variance, tf.shape(y)))
    targets = y[..., tf.newaxis, :] + deviation[..., tf.newaxis, :] * noise
    anchors *= tf.sqrt(loss.prior_variance)[..., tf.newaxis, tf.newaxis]
    return minimize(x, targets, loss.weight, loss.regularizer, anchors)


@linear_input.graph_ready
def fit(members: Tensor) -> Gaussian:
    """Returns the normal distribution with the members' mean and unbiased covariance; `members` is `[..., members, d]`.

    Singular, so at an infinite KL from any posterior, unless there are more members than dimensions.
    """
    members = linear_input.tensor("members", members)
    if members.shape.rank is None or members.shape.rank < 2 or 0 in members.shape[-2:].as_list():
        raise ValueError(f"Expected members of shape [..., members, d]. Received: {members.shape}")
    linear_input.check_finite({"members": members})
    count = members.shape[-2]
    mean = tf.reduce_mean(members, axis=-2)
    centered = members - mean[..., tf.newaxis, :]
    cov = tf.matmul(centered, centered, transpose_a=True) / max(count - 1, 1)
    linear_input.check_result("their covariance", cov, members=members)
    if count <= members.shape[-1]:  # Singular for certain; rounding must not decide.
        scale, regular = tf.zeros_like(cov), tf.zeros(tf.shape(cov)[:-2], tf.bool)
        return Gaussian(mean, cov, scale, regular)
    return Gaussian(mean, cov)


@linear_input.graph_ready
def kl(p: Gaussian, q: Gaussian) -> Tensor:
    """Returns `KL(p || q)` in nats, `[...]`, by TensorFlow Probability in float64.

    `inf` for the problems in which `p` or `q` is degenerate: no density, such as ensemble-n's point. Equal
    distributions give zero up to rounding, which may be negative.
    """
    p, q = _factored("p", p), _factored("q", q)
    if p.mean.shape[-1] != q.mean.shape[-1] or linear_input.broadcast(p.mean.shape, q.mean.shape) is None:
        raise ValueError(
            "Expected p and q of one dimension, for problems that broadcast. "
            f"Received: p {p.mean.shape}, q {q.mean.shape}"
        )
    regular = tf.logical_and(p.regular, q.regular)
    # Degenerate problems take the identity through the computation: a zero on the diagonal would give NaN.
    identity = tf.eye(tf.shape(p.mean)[-1], dtype=DTYPE)
    keep = regular[..., tf.newaxis, tf.newaxis]
    tfd = legacy_keras.import_tfp().distributions
    first = tfd.MultivariateNormalTriL(p.mean, tf.where(keep, p.scale, identity))
    second = tfd.MultivariateNormalTriL(q.mean, tf.where(keep, q.scale, identity))
    divergence = first.kl_divergence(second)
    linear_input.check_result("the KL", divergence, p=p.mean, q=q.mean)
    return tf.where(regular, divergence, tf.constant(np.inf, DTYPE))


@linear_input.graph_ready
def lower_bound(gamma: Tensor, num_data: Tensor) -> Tensor:
    """Returns theorem 1's bound for unbiased ensemble-p: `1/2 sum_i ln((1 + T mean(gamma)) / (1 + T gamma_i))`.

    Args:
      gamma: eigenvalues of `Gamma = E[s0^2 x x' / sigma^2(x)]`, `[..., d]`.
      num_data: `T`, a number or `[...]`.
    """
    gamma, num_data = linear_input.tensor("gamma", gamma), linear_input.tensor("num_data", num_data)
    linear_input.check_sign("gamma", gamma)
    linear_input.check_sign("num_data", num_data)
    if not gamma.shape.rank or gamma.shape[-1] == 0 or linear_input.broadcast(num_data.shape, gamma.shape[:-1]) is None:
        raise ValueError(
            f"Expected gamma of shape [..., d] and num_data a number or [...]. "
            f"Received: {gamma.shape} and {num_data.shape}"
        )
    scaled = num_data[..., tf.newaxis] * gamma
    average = tf.reduce_mean(scaled, axis=-1, keepdims=True)
    bound = 0.5 * tf.reduce_sum(tf.math.log1p(average) - tf.math.log1p(scaled), axis=-1)
    linear_input.check_result("the bound", bound, gamma=gamma, num_data=num_data)
    return tf.maximum(bound, 0.0)  # Jensen's inequality; equal gammas give zero up to rounding.


@linear_input.graph_ready
def agent_parameters(
    agent: LinearAgent | str,
    noise_variance: Tensor,
    prior_variance: Tensor,
    agent_prior_variance: Tensor | None = None,
) -> Perturbation:
    """Returns the loss parameters of an agent of Table 2, knowing the noise `[..., T]` and the prior variance `[...]`.

    Args:
      agent: which one; ensemble-n and ensemble-p weigh all data pairs of a problem by one over their mean variance.
      noise_variance: `sigma^2(x_t)`.
      prior_variance: `s0^2`.
      agent_prior_variance: `s0_hat^2`, tuned for ensemble-p and its weighted kin; `prior_variance` when None. The other
        agents have it fixed.
    """
    checks.option("agent", agent, [str(one) for one in LinearAgent])
    agent = LinearAgent(agent)
    tuned = agent in (LinearAgent.ENSEMBLE_P, LinearAgent.WEIGHTED_P)
    if agent_prior_variance is not None and not tuned:
        raise ValueError(f"Expected agent_prior_variance None for {agent.value}. Received: {agent_prior_variance}")
    noise, prior = (
        linear_input.tensor("noise_variance", noise_variance),
        linear_input.tensor("prior_variance", prior_variance),
    )
    linear_input.check_sign("noise_variance", noise, above_zero=True)
    linear_input.check_sign("prior_variance", prior, above_zero=True)
    if noise.shape.num_elements() == 0:
        raise ValueError(f"Expected noise_variance, a number or [..., T]. Received: shape {noise.shape}")
    agent_prior = (
        prior if agent_prior_variance is None else linear_input.tensor("agent_prior_variance", agent_prior_variance)
    )
    linear_input.check_sign("agent_prior_variance", agent_prior)
    average = tf.reduce_mean(noise, axis=-1, keepdims=True) if noise.shape.rank else noise
    row = table_2(agent, noise, average, 1.0 / prior, agent_prior)
    names = (field.name for field in dataclasses.fields(row))
    return Perturbation(*(linear_input.tensor(name, getattr(row, name)) for name in names))


def _gram(x: Tensor, weight: Tensor) -> Tensor:
    """Returns `sum_t weight_t x_t x_t'`, `[..., d, d]`."""
    return tf.matmul(x * weight[..., tf.newaxis], x, transpose_a=True)


def _sums(x: Tensor, y: Tensor, weight: Tensor, regularizer: Tensor) -> tuple[Tensor, Tensor]:
    """Returns `A = sum_t nu x x' + lambda I` and `b = sum_t nu y x`."""
    identity = tf.eye(tf.shape(x)[-1], dtype=DTYPE)
    precision = _gram(x, weight) + regularizer[..., tf.newaxis, tf.newaxis] * identity
    return precision, tf.matmul(x, (weight * y)[..., tf.newaxis], transpose_a=True)[..., 0]


def _factor(matrix: Tensor, floor: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Returns `F` with `F F' = matrix` and which matrices are regular; never asks Cholesky about a singular one.

    Args:
      matrix: positive semi-definite, `[..., d, d]`.
      floor: a lower bound of the eigenvalues, `[...]`. Where it is above rounding no eigenvalue is computed.
    """
    dim = tf.shape(matrix)[-1]
    trace = tf.linalg.trace(matrix)
    certain = tf.zeros_like(trace, tf.bool) if floor is None else floor > linear_input.threshold(dim) * trace

    def by_eigenvalues() -> tuple[Tensor, Tensor]:
        values, vectors = tf.linalg.eigh(matrix)
        cut = linear_input.threshold(dim) * values[..., -1:]
        kept = tf.where(values > cut, values, tf.zeros_like(values))
        return tf.logical_or(certain, values[..., 0] > cut[..., 0]), vectors * tf.sqrt(kept)[..., tf.newaxis, :]

    known = tf.reduce_all(tf.logical_or(certain, tf.equal(trace, 0.0)))
    regular, singular_factor = tf.cond(known, lambda: (certain, tf.zeros_like(matrix)), by_eigenvalues)
    keep = regular[..., tf.newaxis, tf.newaxis]
    safe = tf.where(keep, matrix, tf.eye(dim, dtype=DTYPE))
    return tf.where(keep, tf.linalg.cholesky(safe), singular_factor), regular


def _factored(name: str, given: Gaussian) -> Gaussian:
    """Returns the distribution with its factor; one made by hand is checked and factored here."""
    if given.scale is not None and given.regular is not None:
        return given
    mean, cov = linear_input.tensor(f"{name}.mean", given.mean), linear_input.tensor(f"{name}.cov", given.cov)
    if (
        mean.shape.rank == 0
        or cov.shape.rank != mean.shape.rank + 1
        or list(cov.shape) != [*mean.shape, mean.shape[-1]]
    ):
        raise ValueError(f"Expected {name}.mean [..., d] and cov [..., d, d]. Received: {mean.shape} and {cov.shape}")
    if tf.executing_eagerly():
        linear_input.check_finite({f"{name}.mean": mean, f"{name}.cov": cov})
        size = tf.reduce_max(tf.abs(cov), axis=[-2, -1])
        skew = tf.reduce_max(tf.abs(cov - tf.linalg.matrix_transpose(cov)), axis=[-2, -1])
        if bool(tf.reduce_any(skew > 1e-9 * size)):
            raise ValueError(f"Expected a symmetric {name}.cov. Received: it differs from its transpose by {skew}")
        smallest = tf.linalg.eigvalsh(cov)[..., 0]
        if bool(tf.reduce_any(smallest < -1e-9 * size)):
            lowest = float(tf.reduce_min(smallest))
            raise ValueError(f"Expected {name}.cov without negative eigenvalues. Received: {lowest:.3g}")
    scale, regular = _factor(cov)
    return Gaussian(mean, cov, scale, regular)


def _perturbation(
    x: Tensor, y: Tensor, weight: Tensor, regularizer: Tensor, prior_variance: Tensor, bootstrap_variance: Tensor
) -> Perturbation:
    return Perturbation(
        linear_input.per_point("weight", weight, y),
        linear_input.per_problem("regularizer", regularizer, x),
        linear_input.per_problem("prior_variance", prior_variance, x),
        linear_input.per_point("bootstrap_variance", bootstrap_variance, y),
    )
