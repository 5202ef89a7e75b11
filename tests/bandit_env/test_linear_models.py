"""Linear models that learn online, against closed forms in NumPy over all data at once."""

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles.bandit_env import linear_models, thompson
from tf_ensembles.bandit_env.linear_models import LinearModels, Rewards, Sizes


def make(actions=3, models=1, dim=4, members=None, problems=1, agent="ensemble-bp", variance=None, **options):
    table = np.full([problems, actions], 0.5) if variance is None else np.asarray(variance)[None]
    loss = thompson.make_loss(agent, table, 2.0)
    return LinearModels(Sizes(problems, actions, models, dim, members), loss, seed=1, **options), loss


def draw(rows, dim, actions=3, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    action = rng.integers(actions, size=rows)
    x = rng.normal(size=[rows, dim])
    y = x @ rng.normal(size=dim) + scale * (1.0 + action) * rng.normal(size=rows)
    return action, x, y


def rewards(action, x, y, rows=slice(None), keep=None, first=0):
    count = len(y[rows])
    ids = np.arange(len(y))[rows] + first
    weight = np.ones(count) if keep is None else keep[rows]
    problem = np.zeros(count, np.int64)
    return Rewards(*map(tf.constant, (problem, action[rows], x[rows], y[rows], weight, ids)))


def closed_form(x, y, weight, regularizer):
    precision = (x * weight[:, None]).T @ x + regularizer * np.eye(x.shape[1])
    return precision, np.linalg.solve(precision, x.T @ (weight * y))


def test_potter_s_root_is_that_of_the_inverse_after_100_000_rewards():
    dim, steps = 17, 100_000
    rng = np.random.default_rng(0)
    x = rng.normal(size=[steps, dim]) * np.geomspace(0.01, 1.0, dim)  # some directions are hardly seen
    weight = rng.uniform(0.1, 10.0, size=steps)

    @tf.function(jit_compile=True, autograph=False)
    def all_steps(root, x, weight):
        def body(i, root):
            return i + 1, linear_models.potter(root, x[i], weight[i])

        return tf.while_loop(lambda i, _: i < steps, body, (tf.constant(0), root))[1]

    root = all_steps(tf.eye(dim, dtype=tf.float64), tf.constant(x), tf.constant(weight)).numpy()
    precision = np.eye(dim) + (x * weight[:, None]).T @ x
    # Rounding of each step is random: 100,000 of 1e-16 add up to some 1e-13, as far as the condition allows.
    error = np.abs(root @ root.T @ precision - np.eye(dim)).max()
    assert error < 1e-16 * np.sqrt(steps) * np.sqrt(np.linalg.cond(precision)) * dim


@pytest.mark.parametrize("models", [1, 3])
def test_many_features_in_small_batches_give_the_closed_form(models, monkeypatch):
    monkeypatch.setattr(linear_models, "MIN_ROWS", 40)  # Made anew from the sums within the test.
    dim, rows = 20, 130
    variance = np.array([0.5, 1.0, 2.0])
    action, x, y = draw(rows, dim)
    made, loss = make(models=models, dim=dim, variance=variance)
    parts = np.split(np.arange(rows), [1, 2, 5, 9, *range(14, rows, 5)])
    for part in parts:
        made.learn(rewards(action, x, y, part))
    roots = made.roots().numpy()
    for model in range(models):
        own = action == model if models > 1 else np.ones(rows, bool)
        precision, mean = closed_form(x[own], y[own], 1.0 / variance[action[own]], loss.regularizer)
        np.testing.assert_allclose(roots[model] @ roots[model].T, np.linalg.inv(precision), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(made.means(made.roots())[model], mean, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(made.precision()[model], precision, rtol=1e-12, atol=1e-12)


def test_members_of_many_features_solve_their_own_perturbed_problems():
    dim, members = 20, 3
    action, x, y = draw(30, dim)
    variance = np.array([0.5, 1.0, 2.0])
    made, loss = make(dim=dim, members=members, variance=variance)
    for first in range(0, 30, 5):
        made.learn(rewards(action, x, y, slice(first, first + 5)))
    noise = linear_models.steps.member_normals(made._noise_key, tf.range(30, dtype=tf.int64), members).numpy()
    precision, _ = closed_form(x, y, 1.0 / variance[action], loss.regularizer)
    for m in range(members):
        target = y + np.sqrt(variance[action]) * noise[m]
        right = x.T @ (target / variance[action]) + loss.regularizer * made.anchors[0, m].numpy()
        expected = np.linalg.solve(precision, right)
        np.testing.assert_allclose(made.members(made.roots())[0, m], expected, rtol=1e-8, atol=1e-10)


def test_draws_have_the_mean_and_the_covariance_of_the_closed_form():
    action, x, y = draw(50, 18)
    made, loss = make(dim=18, variance=[1.0, 1.0, 1.0])
    made.learn(rewards(action, x, y))
    normals = np.random.default_rng(1).normal(size=[4000, 1, 18])
    theta = made.sample(tf.constant(normals)).numpy()[:, 0]
    precision, mean = closed_form(x, y, np.ones(50), loss.regularizer)
    whitened = (theta - mean) @ np.linalg.cholesky(precision)
    np.testing.assert_allclose(whitened.mean(0), 0.0, atol=5.0 / np.sqrt(4000))
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(18), atol=6.0 * np.sqrt(2.0 / 4000))


def expected_noise(estimated, action, x, y, regularizer, rounds):
    """The documented estimator, from raw data: `[arms]`."""
    arms = [np.flatnonzero(action == arm) for arm in range(3)]
    place, groups = (np.zeros_like(action), [np.arange(len(y))]) if estimated == "pooled" else (action, arms)
    squares, means = np.mean([[np.mean(y[rows] ** 2), y[rows].mean()] for rows in groups], axis=0)
    guess = squares - means**2 + squares / len(y)
    variance = np.ones(len(groups))
    for _ in range(rounds):
        precision, mean = closed_form(x, y, 1.0 / variance[place], regularizer)
        used = np.einsum("ri,ij,rj->r", x, np.linalg.inv(precision), x) / variance[place]
        rest = np.array([((y - x @ mean)[rows] ** 2).sum() for rows in groups])
        free = np.array([len(rows) - used[rows].sum() for rows in groups])
        if estimated == "pooled":
            variance = (guess + rest) / (1.0 + free)
            continue
        prior = (guess + (rest / (4.0 + free)).sum()) / (1.0 + (free / (4.0 + free)).sum())
        variance = (4.0 * prior + rest) / (4.0 + free) if estimated == "arm" else np.full(3, prior)
    return variance


@pytest.mark.parametrize("estimated", ["arm", "mean", "pooled"])
def test_noise_is_estimated_as_documented(estimated):
    action, x, y = draw(60, 4, scale=0.3)
    made, loss = make(estimated=estimated)
    made.learn(rewards(action, x, y))
    expected = expected_noise(estimated, action, x, y, loss.regularizer, rounds=2)
    np.testing.assert_allclose(made.noise_variance()[0], np.broadcast_to(expected, 3), rtol=1e-9)


@pytest.mark.parametrize(("dim", "models"), [(4, 1), (4, 3), (20, 1)])
def test_estimated_noise_comes_close_to_the_truth(dim, models):
    action, x, y = draw(3000, dim, scale=0.5)
    made, _ = make(estimated="arm", dim=dim, models=models)
    for part in np.split(np.arange(3000), 10):
        made.learn(rewards(action, x, y, part))
    truth = 0.25 * np.array([1.0, 4.0, 9.0])
    # A variance of 1,000 data has a relative error of sqrt(2 / 1000).
    np.testing.assert_allclose(made.noise_variance()[0], truth, rtol=5.0 * np.sqrt(2.0 / 1000))


def test_the_unit_of_rewards_does_not_matter_where_the_prior_s_scale_is_theirs():
    action, x, y = draw(40, 4)
    one, other = (make(estimated="arm", in_units=True, members=2)[0] for _ in range(2))
    for made, scale in ((one, 1.0), (other, 100.0)):
        made.learn(rewards(action, x, scale * y))
        for _ in range(3):  # until the noise has come to rest
            made.refresh()
    members = [made.members(made.roots()).numpy() for made in (one, other)]
    np.testing.assert_allclose(100.0 * members[0], members[1], rtol=1e-3, atol=0.1)
    np.testing.assert_allclose(100.0 * one.roots(), other.roots(), rtol=1e-3, atol=0.01)


def test_a_discount_weighs_older_data_less():
    action, x, y = draw(30, 4)
    made, loss = make(discount=0.9)
    for first in range(0, 30, 10):
        made.learn(rewards(action, x, y, slice(first, first + 10)))
    weight = np.repeat([0.81, 0.9, 1.0], 10) / 0.5
    precision, mean = closed_form(x, y, weight, loss.regularizer)
    np.testing.assert_allclose(made.precision()[0], precision, rtol=1e-12)
    np.testing.assert_allclose(made.means(made.roots())[0], mean, rtol=1e-9)


def test_five_hundred_features_and_any_size_of_batch_take_one_graph():
    dim = 500
    made, loss = make(dim=dim, models=3)
    action, x, y = draw(40, dim)
    for first, last in [(0, 1), (1, 3), (3, 40)]:
        made.learn(rewards(action, x, y, slice(first, last)))
    assert made._learn_any.experimental_get_tracing_count() == 1
    own = action == 2
    _, mean = closed_form(x[own], y[own], np.full(own.sum(), 2.0), loss.regularizer)
    np.testing.assert_allclose(made.means(made.roots())[2], mean, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"members": 2}, marks=pytest.mark.slow),
        {"dim": 20},  # with a root that is kept
        {"models": 3, "estimated": "mean", "members": 2},
    ],
)
def test_a_window_is_what_its_last_rewards_alone_would_have_given(options):
    dim = options.get("dim", 4)
    data = draw(30, dim)
    windowed, alone = make(**options, window=7)[0], make(**options)[0]
    for part in (slice(0, 3), slice(3, 14), slice(14, 19), slice(19, 29), slice(29, 30)):
        windowed.learn(rewards(*data, part))
    alone.learn(rewards(*data, slice(23, 30)))
    for name in ("gram", "target", "perturbation", "count", "square", "total"):
        one, other = (getattr(models, name) for models in (windowed, alone))
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    if "estimated" not in options:  # Estimates of the noise start where the last one was.
        np.testing.assert_allclose(windowed.means(windowed.roots()), alone.means(alone.roots()), rtol=1e-8, atol=1e-8)


def test_windows_are_of_each_problem():
    windowed, alone = (make(problems=2, window=size)[0] for size in (1, None))
    action, x, y = draw(4, 4)
    for part in (slice(0, 2), slice(2, 4)):
        rows = rewards(action, x, y, part)._replace(problem=tf.constant([0, 1], tf.int64))
        windowed.learn(rows)
    alone.learn(rows)
    np.testing.assert_allclose(windowed.precision(), alone.precision(), rtol=1e-12)
