"""The closed forms against brute force in NumPy, extended precision and sampled members."""

import numpy as np
import pytest
import tensorflow as tf

from tests.needs import needs
from tf_ensembles import linear
from tf_ensembles.linear import problems as linear_problems

AGENTS = list(linear.LinearAgent)


def _problems(num_problems=6, num_data=12, dim=3, seed=0):
    setting = linear_problems.make_setting(dim, num_data, condition=10.0, heteroscedasticity=3.0, seed=seed)
    return linear_problems.sample_problems(setting, num_problems, seed)


def _orthogonal(dim, seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))[0]


def _long_cholesky(matrix):
    """Cholesky in NumPy's extended precision, which its linear algebra does not offer."""
    matrix = np.array(matrix, np.longdouble)
    lower = np.zeros_like(matrix)
    for j in range(len(matrix)):
        lower[j, j] = np.sqrt(matrix[j, j] - lower[j, :j] @ lower[j, :j])
        lower[j + 1 :, j] = (matrix[j + 1 :, j] - lower[j + 1 :, :j] @ lower[j, :j]) / lower[j, j]
    return lower


def _long_solve(lower, right):
    right = np.array(right, np.longdouble)
    for i in range(len(lower)):
        right[i] = (right[i] - lower[i, :i] @ right[:i]) / lower[i, i]
    return right


def _long_kl(mean_p, cov_p, mean_q, cov_q):
    first, second = _long_cholesky(cov_p), _long_cholesky(cov_q)
    quadratic = np.sum(_long_solve(second, first) ** 2) + np.sum(_long_solve(second, mean_q - mean_p) ** 2)
    return np.sum(np.log(np.diag(second)) - np.log(np.diag(first))) + 0.5 * (quadratic - len(mean_p))


def _perturbed_loss(theta, x, targets, weight, regularizer, anchor):
    residual = x @ theta - targets
    return 0.5 * np.sum(weight * residual**2) + 0.5 * regularizer * np.sum((theta - anchor) ** 2)


def test_posterior_conditions_the_joint_normal_distribution():
    # An independent route: theta and y are jointly normal, cov(theta, y) = s0^2 X', cov(y) = s0^2 X X' + D.
    p = _problems()
    x, y, noise = p.x.numpy(), p.y.numpy(), p.noise_variance.numpy()
    result = linear.posterior(x, y, noise, 0.7)
    for i in range(len(x)):
        gain = 0.7 * x[i].T @ np.linalg.inv(0.7 * x[i] @ x[i].T + np.diag(noise[i]))
        np.testing.assert_allclose(result.mean[i], gain @ y[i], atol=1e-12)
        np.testing.assert_allclose(result.cov[i], 0.7 * np.eye(3) - gain @ x[i] * 0.7, atol=1e-12)


def test_posterior_without_data_is_the_prior():
    result = linear.posterior(np.zeros((2, 0, 3)), np.zeros((2, 0)), 1.0, [0.5, 2.0])
    np.testing.assert_array_equal(result.mean, np.zeros((2, 3)))
    np.testing.assert_allclose(result.cov, np.array([0.5, 2.0])[:, None, None] * np.eye(3), rtol=1e-15)


def test_ensemble_distribution_is_the_linear_image_of_its_perturbations():
    p = _problems()
    rng = np.random.default_rng(3)
    weight, bootstrap = rng.uniform(0.2, 2.0, (2, 6, 12))
    regularizer, prior = rng.uniform(0.2, 2.0, (2, 6))
    dist = linear.ensemble_distribution(p.x, p.y, weight, regularizer, prior, bootstrap)
    for i, x in enumerate(p.x.numpy()):
        inverse = np.linalg.inv((x.T * weight[i]) @ x + regularizer[i] * np.eye(3))
        jacobian = np.hstack([inverse @ (x.T * weight[i]), regularizer[i] * inverse])  # of theta in (z, anchor)
        variances = np.concatenate([bootstrap[i], np.full(3, prior[i])])
        np.testing.assert_allclose(dist.mean[i], jacobian[:, :12] @ p.y[i].numpy(), atol=1e-12)
        np.testing.assert_allclose(dist.cov[i], (jacobian * variances) @ jacobian.T, rtol=1e-10)
        np.testing.assert_allclose(dist.scale[i] @ tf.transpose(dist.scale[i]), dist.cov[i], rtol=1e-12)


def test_arguments_broadcast_and_problems_are_independent():
    p = _problems()
    batched = linear.ensemble_distribution(p.x, p.y, 0.5, 1.5, 2.0, np.linspace(0.1, 1.0, 12))
    for i in range(6):
        alone = linear.ensemble_distribution(p.x[i], p.y[i], 0.5, 1.5, 2.0, np.linspace(0.1, 1.0, 12))
        np.testing.assert_allclose(batched.mean[i], alone.mean, rtol=1e-13)
        np.testing.assert_allclose(batched.cov[i], alone.cov, rtol=1e-13)
    nested = linear.posterior(
        tf.reshape(p.x, [2, 3, 12, 3]), tf.reshape(p.y, [2, 3, 12]), tf.reshape(p.noise_variance, [2, 3, 12]), 1.0
    )
    np.testing.assert_allclose(tf.reshape(nested.mean, [6, 3]), p.posterior().mean, rtol=1e-13)


def test_python_numbers_keep_double_precision():
    dist = linear.posterior(np.zeros((0, 1)), np.zeros(0), 1.0, 0.1)
    assert float(dist.cov[0, 0]) == pytest.approx(0.1, rel=1e-15)


def test_minimize_has_zero_gradient_and_no_lower_neighbor():
    rng = np.random.default_rng(1)
    x, targets, anchors = rng.normal(size=(7, 2)), rng.normal(size=(4, 7)), rng.normal(size=(4, 2))
    weight = rng.uniform(0.1, 3.0, 7)
    members = linear.minimize(x, targets, weight, 0.3, anchors).numpy()
    for m, theta in enumerate(members):
        gradient = x.T @ (weight * (x @ theta - targets[m])) + 0.3 * (theta - anchors[m])
        np.testing.assert_allclose(gradient, 0.0, atol=1e-13)
        least = _perturbed_loss(theta, x, targets[m], weight, 0.3, anchors[m])
        for step in rng.normal(scale=1e-3, size=(20, 2)):
            assert _perturbed_loss(theta + step, x, targets[m], weight, 0.3, anchors[m]) > least


def test_sampled_members_follow_the_closed_form():
    p = _problems(num_problems=2, num_data=30, dim=5)
    loss = linear.agent_parameters("ensemble-bp", p.noise_variance, 1.0).arguments()
    dist, count = linear.ensemble_distribution(p.x, p.y, *loss), 100_000
    members = linear.sample_members(p.x, p.y, *loss, num_members=count, seed=7)
    fitted = linear.fit(members)
    variance = tf.linalg.diag_part(dist.cov).numpy()
    # Standard errors of a normal sample's mean and covariance: sqrt(v_i / M) and sqrt((v_i v_j + c_ij^2) / M).
    mean_error = np.sqrt(variance / count)
    cov_error = np.sqrt((variance[:, :, None] * variance[:, None, :] + dist.cov.numpy() ** 2) / count)
    assert np.all(np.abs(fitted.mean - dist.mean) < 4.5 * mean_error)
    assert np.all(np.abs(fitted.cov - dist.cov) < 4.5 * cov_error)
    # Not suspiciously close either: the members must really scatter.
    assert np.abs((fitted.mean - dist.mean) / mean_error).max() > 0.1


def test_sample_members_by_seed():
    p = _problems(num_problems=2)
    loss = linear.agent_parameters("ensemble-bp", p.noise_variance, 1.0).arguments()
    first, again, other = (linear.sample_members(p.x, p.y, *loss, num_members=4, seed=s).numpy() for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).min() > 0
    assert first.shape == (2, 4, 3)


@needs("tensorflow_probability")
def test_kl_matches_extended_precision():
    rng = np.random.default_rng(0)
    factors, means = rng.normal(size=(2, 20, 4, 4)), rng.normal(size=(2, 20, 4))
    covs = factors @ factors.swapaxes(-1, -2) + 0.1 * np.eye(4)
    result = linear.kl(linear.Gaussian(means[0], covs[0]), linear.Gaussian(means[1], covs[1]))
    expected = [float(_long_kl(means[0, i], covs[0, i], means[1, i], covs[1, i])) for i in range(20)]
    np.testing.assert_allclose(result, expected, rtol=1e-11)


@pytest.mark.parametrize("condition", [1e4, 1e10])
@needs("tensorflow_probability")
def test_kl_of_ill_conditioned_covariances(condition):
    # Both distributions share a rotated basis, so the KL is a sum over eigenvalues. float64 holds the smallest
    # eigenvalue of such a matrix only to d * eps * condition, and the KL follows it.
    dim = 6
    basis = _orthogonal(dim, 4)
    p_values, q_values = np.geomspace(1.0, 1.0 / condition, dim), np.geomspace(2.0, 3.0 / condition, dim)
    p = linear.Gaussian(np.zeros(dim), (basis * p_values) @ basis.T)
    q = linear.Gaussian(np.zeros(dim), (basis * q_values) @ basis.T)
    expected = 0.5 * np.sum(p_values / q_values - 1.0 - np.log(p_values / q_values))
    assert float(linear.kl(p, q)) == pytest.approx(expected, rel=4 * dim * 2.2e-16 * condition)


@pytest.mark.parametrize("condition", [1e2, 1e6, 1e10])
@needs("tensorflow_probability")
def test_distribution_stays_accurate_where_its_covariance_squares_the_condition_number(condition):
    # Ensemble-p has Sigma_hat = eta Sigma^2: at a precision of condition 1e10 it is beyond any float64 covariance.
    dim = 5
    values = np.geomspace(1.0, condition, dim)  # of the posterior precision
    eta = values.mean()  # the best one: keeps the KL near 10 nats, so that a lost eigenvalue would show
    x = (_orthogonal(dim, 5) * np.sqrt(values - 1.0)).T  # X'X = Q diag(values - 1) Q'
    y = np.ones(dim)
    p = linear.posterior(x, y, 1.0, 1.0)
    dist = linear.ensemble_distribution(
        x, y, *linear.agent_parameters("ensemble-p-weighted", 1.0, 1.0, eta).arguments()
    )
    expected = 0.5 * np.sum(np.log(eta) - np.log(values) - 1.0 + values / eta)
    # The sums over the data hold the smallest eigenvalue to eps * condition; d of them enter the KL.
    assert float(linear.kl(p, dist)) == pytest.approx(expected, abs=max(dim * 2.2e-16 * condition, 1e-13))
    bootstrapped = linear.ensemble_distribution(x, y, *linear.agent_parameters("ensemble-bp", 1.0, 1.0).arguments())
    assert abs(float(linear.kl(p, bootstrapped))) < 1e-10


@needs("tensorflow_probability")
def test_degenerate_distributions_are_infinite_one_problem_at_a_time():
    p = _problems()
    prior = np.array([1.0, 0.0, 2.0, 0.0, 1.0, 0.5])  # no prior, no bootstrap: a point
    dist = linear.ensemble_distribution(p.x, p.y, 1.0 / p.noise_variance, 1.0, prior, 0.0)
    value = linear.kl(p.posterior(), dist).numpy()
    np.testing.assert_array_equal(np.isinf(value), prior == 0.0)
    alone = linear.ensemble_distribution(p.x[2], p.y[2], 1.0 / p.noise_variance[2], 1.0, 2.0, 0.0)
    post = p.posterior()
    expected = linear.kl(linear.Gaussian(post.mean[2], post.cov[2], post.scale[2], post.regular[2]), alone)
    assert value[2] == pytest.approx(float(expected), rel=1e-13)
    assert not np.isnan(value).any()


@needs("tensorflow_probability")
def test_bootstrap_without_prior_is_degenerate_below_full_rank():
    x, y = np.random.default_rng(0).normal(size=(2, 5, 4)), np.ones((2, 5))
    x[1, :, 3] = x[1, :, 0]  # collinear inputs: the members of problem 1 scatter in three directions only
    post = linear.posterior(x, y, 1.0, 1.0)
    dist = linear.ensemble_distribution(x, y, 1.0, 1.0, 0.0, 1.0)
    np.testing.assert_array_equal(dist.regular, [True, False])
    np.testing.assert_array_equal(np.isfinite(linear.kl(post, dist)), [True, False])
    # The factor still reproduces the singular covariance, so that it can be sampled from.
    inverse = np.linalg.inv(x[1].T @ x[1] + np.eye(4))
    np.testing.assert_allclose(
        dist.scale[1] @ tf.transpose(dist.scale[1]), inverse @ x[1].T @ x[1] @ inverse, atol=1e-14
    )


@needs("tensorflow_probability")
def test_singular_covariances_made_by_hand_are_infinite():
    singular = np.stack([np.eye(3), np.ones((3, 3)), np.zeros((3, 3)), np.diag([1.0, 1e-10, 1.0])])
    regular = linear.Gaussian(np.zeros((4, 3)), np.broadcast_to(np.eye(3), (4, 3, 3)))
    degenerate = linear.Gaussian(np.zeros((4, 3)), singular)
    value = linear.kl(regular, degenerate).numpy()
    np.testing.assert_allclose(value, [0.0, np.inf, np.inf, 0.5 * (1e10 - 1.0 + np.log(1e-10))], rtol=1e-12)
    np.testing.assert_array_equal(np.isinf(linear.kl(degenerate, regular)), [False, True, True, False])


@needs("tensorflow_probability")
def test_fit_needs_more_members_than_dimensions():
    members = np.random.default_rng(0).normal(size=(2, 4, 3))
    reference = linear.Gaussian(np.zeros((2, 3)), np.broadcast_to(np.eye(3), (2, 3, 3)))
    assert np.all(np.isinf(linear.kl(reference, linear.fit(members[:, :3]))))
    fitted = linear.fit(members)
    np.testing.assert_allclose(fitted.cov[1], np.cov(members[1], rowvar=False), rtol=1e-13)
    assert np.all(np.isfinite(linear.kl(reference, fitted)))


@pytest.mark.parametrize("agent", AGENTS)
@needs("tensorflow_probability")
def test_functions_agree_inside_a_graph_with_unknown_shapes(agent):
    p = _problems()

    def compute(x, y, noise):
        loss = linear.agent_parameters(agent, noise, 1.0).arguments()
        dist = linear.ensemble_distribution(x, y, *loss)
        members = linear.sample_members(x, y, *loss, num_members=3, seed=0)
        return linear.kl(linear.posterior(x, y, noise, 1.0), dist), dist.mean, dist.scale, members

    unknown = [tf.TensorSpec([None] * rank, tf.float64) for rank in (3, 2, 2)]
    graph = tf.function(compute, input_signature=unknown)
    for eager, traced in zip(compute(p.x, p.y, p.noise_variance), graph(p.x, p.y, p.noise_variance), strict=True):
        np.testing.assert_allclose(eager, traced, rtol=1e-12, atol=1e-14)


def test_running_sums_give_the_distribution_of_the_data():
    p = _problems()
    loss = linear.agent_parameters("ensemble-bp", p.noise_variance, 1.0)
    precision = np.broadcast_to(np.eye(3), (6, 3, 3)).copy()
    spread, target = precision.copy(), np.zeros((6, 3))
    for t in range(12):
        x, weight = p.x[:, t].numpy(), loss.weight[:, t, None].numpy()
        precision += weight[..., None] * x[:, :, None] * x[:, None, :]
        spread += weight[..., None] * x[:, :, None] * x[:, None, :]  # nu^2 sigma^2 = nu
        target += weight * x * p.y[:, t, None].numpy()
    whole = linear.ensemble_distribution(p.x, p.y, *loss.arguments())
    for floor in (None, tf.ones(6, tf.float64)):
        running = linear.distribution_from_sums(*map(tf.constant, (precision, target, spread)), floor)
        np.testing.assert_allclose(running.mean, whole.mean, rtol=1e-10)
        np.testing.assert_allclose(running.cov, whole.cov, rtol=1e-10, atol=1e-14)


def test_lower_bound_by_hand():
    gamma = np.array([[1.0, 3.0], [2.0, 2.0]])
    np.testing.assert_allclose(linear.lower_bound(gamma, 4), [0.5 * np.log(81.0 / 65.0), 0.0], atol=2e-15)
    np.testing.assert_allclose(linear.lower_bound(gamma[0], [0, 4]), [0.0, 0.5 * np.log(81.0 / 65.0)], rtol=1e-14)


def test_agents_are_parameter_choices():
    noise = np.array([1.0, 4.0, 4.0])
    n, p, weighted, bp = (linear.agent_parameters(agent, noise, 2.0) for agent in AGENTS)
    assert (float(n.prior_variance), float(n.bootstrap_variance), float(n.regularizer)) == (0.0, 0.0, 0.5)
    np.testing.assert_allclose(p.weight, [1.0 / 3.0])
    assert (float(p.prior_variance), float(p.bootstrap_variance)) == (2.0, 0.0)
    np.testing.assert_allclose(weighted.weight, 1.0 / noise)
    np.testing.assert_allclose(bp.weight, 1.0 / noise)
    np.testing.assert_allclose(bp.bootstrap_variance, noise)
    tuned = linear.agent_parameters("ensemble-p", noise, 2.0, agent_prior_variance=5.0)
    assert float(tuned.prior_variance) == 5.0
    with pytest.raises(ValueError, match="agent_prior_variance None for ensemble-bp"):
        linear.agent_parameters("ensemble-bp", noise, 2.0, agent_prior_variance=5.0)
    with pytest.raises(ValueError, match="ensemble-q"):
        linear.agent_parameters("ensemble-q", noise, 2.0)


X, Y = np.ones((2, 3, 2)) * np.arange(1, 4)[:, None], np.ones((2, 3))
NAN = np.where(np.arange(3) == 1, np.nan, 1.0) * np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: linear.posterior(X, Y, -1.0, 1.0), r"noise_variance > 0\. Received: -1\.0"),
        (lambda: linear.posterior(X, Y, 0.0, 1.0), "noise_variance > 0"),
        (lambda: linear.posterior(X, Y, 1.0, [1.0, -2.0]), r"prior_variance > 0\. Received: -2\.0"),
        (lambda: linear.posterior(X, Y[:, :2], 1.0, 1.0), r"Received: x \(2, 3, 2\), y \(2, 2\)"),
        (lambda: linear.posterior(X, Y, np.ones((2, 4)), 1.0), "noise_variance to broadcast"),
        (lambda: linear.posterior(X, Y, np.ones((5, 2, 3)), 1.0), "noise_variance to broadcast"),
        (lambda: linear.posterior(X, Y, 1.0, np.ones(3)), "prior_variance to broadcast"),
        (lambda: linear.posterior(X, NAN, 1.0, 1.0), "finite numbers in y"),
        (lambda: linear.posterior(X * np.inf, Y, 1.0, 1.0), "finite numbers in x"),
        (lambda: linear.posterior(X, Y, NAN, 1.0), "finite noise_variance > 0. Received: nan"),
        (lambda: linear.posterior(X * 1e200, Y, 1.0, 1.0), "overflow"),
        (lambda: linear.posterior("abc", Y, 1.0, 1.0), "x of a real dtype. Received: 'abc'"),
        (lambda: linear.ensemble_distribution(X, Y, -1.0, 1.0, 1.0, 1.0), "weight >= 0"),
        (lambda: linear.ensemble_distribution(X, Y, 1.0, -1.0, 1.0, 1.0), "regularizer >= 0"),
        (lambda: linear.ensemble_distribution(X, Y, 1.0, 1.0, -1.0, 1.0), "prior_variance >= 0"),
        (lambda: linear.ensemble_distribution(X, Y, 1.0, 1.0, 1.0, -1.0), "bootstrap_variance >= 0"),
        (lambda: linear.ensemble_distribution(X, Y, 1.0, 0.0, 1.0, 1.0), "one minimizer"),
        (lambda: linear.sample_members(X, Y, 1.0, 1.0, 1.0, 1.0, num_members=0, seed=0), "num_members >= 1"),
        (lambda: linear.minimize(X, Y, 1.0, 1.0, np.ones((2, 2))), "targets of shape"),
        (lambda: linear.minimize(X, Y[:, None], 1.0, 1.0, np.ones((2, 2))), "anchors of shape"),
        (lambda: linear.lower_bound([1.0, -1.0], 3), "gamma >= 0"),
        (lambda: linear.lower_bound([1.0, 1.0], -3), "num_data >= 0"),
        (lambda: linear.kl(_gaussian(1.0, 0.5, 0.4), _gaussian(1.0)), "symmetric p.cov"),
        (lambda: linear.kl(_gaussian(1.0), _gaussian(-1.0)), "q.cov without negative eigenvalues"),
        (lambda: linear.kl(_gaussian(1.0), _gaussian(np.nan)), "finite numbers in q.cov"),
        (lambda: linear.kl(_gaussian(1.0), linear.Gaussian(np.zeros(3), np.eye(3))), "one dimension"),
        (lambda: linear.kl(_gaussian(1.0), linear.Gaussian(np.zeros(3), np.eye(2))), "q.mean"),
        (
            lambda: linear.kl(linear.fit(np.eye(6).reshape(2, 3, 6)[..., :2]), linear.fit(np.ones((3, 4, 2)))),
            "broadcast",
        ),
        (lambda: linear.fit(np.full((4, 2), np.nan)), "finite numbers in members"),
        (lambda: linear.posterior(X + 1j, Y, 1.0, 1.0), "x of a real dtype. Received: complex128 of shape"),
        (
            lambda: linear.posterior(tf.constant(X + 1j), Y, 1.0, 1.0),
            "x of a real dtype. Received: complex128 of shape",
        ),
        (lambda: linear.lower_bound([1.0, 1e308], 1e308), "the bound can be computed"),
    ],
)
def test_bad_input_gets_a_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def _gaussian(variance, upper=0.0, lower=0.0):
    return linear.Gaussian(np.zeros(2), np.array([[variance, upper], [lower, 1.0]]))
