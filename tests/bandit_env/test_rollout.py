"""The compiled rollout against exact Thompson sampling written in NumPy, with its own problems and generator."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles import bandit_env, draws, linear
from tf_ensembles.bandit_env import problems, rollout, simulation, steps, thompson

AGENTS = thompson.AGENT_NAMES


def numpy_thompson(num_problems, horizon, seed, num_actions=4, dim=2, prior_scale=1.0):
    """Exact posterior Thompson sampling: cumulative regret `[horizon, problems]`. Shares no code with the package."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_problems, num_actions, dim))
    theta = prior_scale * rng.standard_normal((num_problems, dim))
    noise = rng.uniform(size=(num_problems, dim))
    variance, mean = np.einsum("jnd,jd->jn", x**2, noise), np.einsum("jnd,jd->jn", x, theta)
    precision = np.tile(np.eye(dim) / prior_scale**2, (num_problems, 1, 1))
    target, every = np.zeros((num_problems, dim)), np.arange(num_problems)
    regret = np.zeros((horizon, num_problems))
    for t in range(horizon):
        cov = np.linalg.inv(precision)
        center = np.einsum("jde,je->jd", cov, target)
        draw = center + np.einsum("jde,je->jd", np.linalg.cholesky(cov), rng.standard_normal((num_problems, dim)))
        action = np.einsum("jnd,jd->jn", x, draw).argmax(1)
        chosen, var = x[every, action], variance[every, action]
        reward = mean[every, action] + np.sqrt(var) * rng.standard_normal(num_problems)
        precision += chosen[:, :, None] * chosen[:, None, :] / var[:, None, None]
        target += chosen * (reward / var)[:, None]
        regret[t] = mean.max(1) - mean[every, action]
    return regret.cumsum(0)


def numpy_ensemble_sampling(num_problems, horizon, num_members, seed):
    """Ensemble sampling with M members of ensemble-bp, d=2, N=4, s0=1, written anew: regret `[horizon, problems]`."""
    rng, every = np.random.default_rng(seed), np.arange(num_problems)
    x, theta = rng.standard_normal((num_problems, 4, 2)), rng.standard_normal((num_problems, 2))
    variance = np.einsum("jnd,jd->jn", x**2, rng.uniform(size=(num_problems, 2)))
    mean = np.einsum("jnd,jd->jn", x, theta)
    precision = np.tile(np.eye(2), (num_problems, 1, 1))
    target = rng.standard_normal((num_problems, num_members, 2))  # anchors
    regret = np.zeros((horizon, num_problems))
    for t in range(horizon):
        member = target[every, rng.integers(num_members, size=num_problems)]
        action = np.einsum("jnd,jd->jn", x, np.linalg.solve(precision, member[..., None])[..., 0]).argmax(1)
        chosen, var = x[every, action], variance[every, action]
        reward = mean[every, action] + np.sqrt(var) * rng.standard_normal(num_problems)
        told = reward[:, None] + np.sqrt(var)[:, None] * rng.standard_normal((num_problems, num_members))
        precision += chosen[:, :, None] * chosen[:, None, :] / var[:, None, None]
        target += told[..., None] * (chosen / var[:, None])[:, None]
        regret[t] = mean.max(1) - mean[every, action]
    return regret.cumsum(0)


def check_equal_means(result, reference, horizon):
    theirs = reference[horizon - 1]
    error = np.hypot(result.standard_error[horizon - 1], theirs.std() / np.sqrt(len(theirs)))
    assert abs(result.regret[horizon - 1] - theirs.mean()) < 4.0 * error


def test_bp_has_the_regret_of_exact_thompson_sampling():
    result = bandit_env.run_bandit("ensemble-bp", num_problems=5000, horizon=100, seed=3)
    reference = numpy_thompson(5000, 100, seed=11)
    for horizon in (1, 10, 100):
        check_equal_means(result, reference, horizon)


@pytest.mark.slow
def test_bp_has_the_regret_of_exact_thompson_sampling_after_500_steps():
    result = bandit_env.run_bandit("ensemble-bp", num_problems=20_000, horizon=500, seed=4)
    reference = numpy_thompson(20_000, 500, seed=12)
    for horizon in (100, 500):
        check_equal_means(result, reference, horizon)


def test_other_sizes_have_the_regret_of_exact_thompson_sampling():
    result = bandit_env.run_bandit("ensemble-bp", 1000, 20, num_actions=9, dim=6, prior_scale=0.5, seed=5)
    check_equal_means(result, numpy_thompson(1000, 20, 13, num_actions=9, dim=6, prior_scale=0.5), 20)


@pytest.mark.parametrize("dim", [1, 2, 4, 6])
@pytest.mark.parametrize("agent", AGENTS)
def test_samples_follow_the_closed_form(agent, dim):
    made = problems.make_problems(2, 5, dim, prior_scale=1.5, seed=1)
    loss = thompson.make_loss(agent, made.noise_variance, 1.5)
    counts, rewards = np.array([[3, 0, 1, 7, 2], [1, 1, 0, 0, 5]]), np.random.default_rng(0).normal(size=(2, 5))
    sums = thompson.initial_sums(dim, 2, loss.regularizer)
    x, y, place = [], [], []
    for n in range(5):
        for k in range(7):
            used = (counts[:, n] > k).astype(float)
            new = thompson.added(made.features[:, n].T.astype(float), rewards[:, n], loss.weight[:, n] * used)
            sums = thompson.Sums(sums.precision + new.precision, sums.target + new.target)
            x.append(made.features[:, n])
            y.append(rewards[:, n])
            place.append(np.where(used, loss.weight[:, n], 0.0))
    noise = np.repeat(loss.target_noise, 7, axis=1) ** 2
    expected = linear.ensemble_distribution(
        np.stack(x, 1), np.stack(y, 1), np.stack(place, 1), loss.regularizer, loss.anchor_scale**2, noise
    )
    tiled = thompson.Sums(*(np.repeat(part, dim + 1, axis=-1) for part in sums))
    # A draw is linear in its normals: unit vectors give the factor of the covariance, zeros the mean.
    normals = np.tile(np.concatenate([np.zeros([dim, 1]), np.eye(dim)], axis=1), (1, 2))
    theta = np.stack(thompson.sample(tiled, normals, loss.spread, loss.regularizer * loss.anchor_scale))
    theta = theta.reshape(dim, 2, dim + 1)
    factor = np.transpose(theta[..., 1:] - theta[..., :1], [1, 0, 2])
    np.testing.assert_allclose(theta[..., 0].T, expected.mean, atol=1e-9)
    np.testing.assert_allclose(factor @ np.transpose(factor, [0, 2, 1]), expected.cov, atol=1e-9)


def test_tables_and_sums_give_the_same_run(monkeypatch):
    for agent in AGENTS:
        looked_up = bandit_env.run_bandit(agent, 200, 130, seed=2, marks=[7, 130])
        with monkeypatch.context() as patch:
            patch.setattr(simulation, "MAX_TABLE", 0)
            summed = bandit_env.run_bandit(agent, 200, 130, seed=2, marks=[7, 130])
        # Rounding may turn a decision; it must stay rare.
        same = np.isclose(looked_up.problem_regret, summed.problem_regret, atol=1e-4)
        assert same.mean() > 0.99
        np.testing.assert_allclose(looked_up.regret[:50], summed.regret[:50], rtol=1e-2)


def test_a_run_does_not_depend_on_how_it_is_split(monkeypatch):
    whole = bandit_env.run_bandit("ensemble-bp", 30, 40, seed=6, marks=[10, 40])
    with monkeypatch.context() as patch:
        patch.setattr(rollout, "CHUNK", 15)
        chunks = bandit_env.run_bandit("ensemble-bp", 30, 40, seed=6, marks=[10, 40])
    for name in ("regret", "standard_error", "problem_regret"):
        np.testing.assert_allclose(getattr(whole, name), getattr(chunks, name), rtol=1e-9)
    parts = [bandit_env.run_bandit("ensemble-bp", 15, 40, seed=6, marks=[10, 40], first_problem=k) for k in (0, 15)]
    np.testing.assert_allclose(whole.problem_regret, np.hstack([p.problem_regret for p in parts]), atol=1e-5)
    np.testing.assert_allclose(whole.regret[[9, 39]], whole.problem_regret.mean(1), rtol=1e-5)
    error = whole.problem_regret.std(axis=1, ddof=1) / np.sqrt(30)
    np.testing.assert_allclose(whole.standard_error[[9, 39]], error, rtol=1e-4)


def test_finite_ensembles_approach_the_infinite_one():
    def final(num_members):
        return bandit_env.run_bandit("ensemble-bp", 2000, 100, seed=7, num_members=num_members).problem_regret[0]

    regret = {m: final(m) for m in (1, 4, 64, None)}
    error = {m: (regret[m] - regret[None]).std() / np.sqrt(2000) for m in (1, 64)}
    gap = {m: (regret[m] - regret[None]).mean() for m in (1, 4, 64)}
    assert gap[1] > gap[4] > gap[64]
    assert gap[1] > 5.0 * error[1]
    assert abs(gap[64]) < 4.0 * error[64]


@pytest.mark.slow
def test_a_finite_ensemble_has_the_regret_of_ensemble_sampling():
    result = bandit_env.run_bandit("ensemble-bp", 6000, 500, seed=9, num_members=30)
    reference = numpy_ensemble_sampling(6000, 500, 30, seed=14)
    for horizon in (1, 10, 100, 500):
        check_equal_means(result, reference, horizon)


def test_ensemble_n_is_greedy_and_pays_for_it():
    regret = {agent: bandit_env.run_bandit(agent, 2000, 300, seed=8) for agent in ("ensemble-n", "ensemble-bp")}
    error = np.hypot(*(result.standard_error[-1] for result in regret.values()))
    assert regret["ensemble-n"].regret[-1] - regret["ensemble-bp"].regret[-1] > 5.0 * error


def test_problems_follow_their_distribution():
    made = problems.make_problems(20_000, 3, 2, prior_scale=2.0, seed=0)
    values = made.theta.ravel() / 2.0
    assert abs(values.mean()) < 5.0 / np.sqrt(values.size)
    assert abs(values.var() - 1.0) < 5.0 * np.sqrt(2.0 / values.size)
    ratio = made.noise_variance / (made.features**2).sum(-1)  # a weighted mean of two U(0, 1)
    assert 0.0 < ratio.min() < ratio.max() < 1.0
    assert abs(ratio.mean() - 0.5) < 5.0 * 0.3 / np.sqrt(20_000)
    products = made.features * made.theta[:, None]
    rounding = 2 * np.finfo(np.float32).eps * np.abs(products).sum(-1)  # Two products and their sum, which may cancel.
    assert (np.abs(made.mean_reward - products.astype(np.float64).sum(-1)) <= rounding).all()


def test_normals_are_normal_and_independent():
    z = np.asarray(steps.normals(draws.key(1, draws.Purpose.BANDIT_POLICY), tf.range(100), tf.range(1000), 2))
    count = z.size
    assert np.isfinite(z).all()
    assert abs(z.mean()) < 5.0 / np.sqrt(count)
    assert abs((z**2).mean() - 1.0) < 5.0 * np.sqrt(2.0 / count)
    assert abs((z**4).mean() - 3.0) < 5.0 * np.sqrt(96.0 / count)
    for other in (np.roll(z, 1, axis=0), np.roll(z, 1, axis=1), np.roll(z, 1, axis=2)):
        assert abs((z * other).mean()) < 5.0 * np.sqrt(2.0 / count)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_actions": 0}, "num_actions >= 1"),
        ({"dim": 0}, "dim >= 1"),
        ({"num_problems": 0}, "num_problems >= 1"),
        ({"horizon": 0}, "horizon >= 1"),
        ({"num_members": 0}, "num_members >= 1"),
        ({"prior_scale": -1.0}, "prior_scale > 0"),
        ({"prior_scale": 1e308}, r"mean rewards can be computed.*Received: prior_scale=1e\+308"),
        ({"prior_scale": 1e-200}, r"the loss can be computed.*prior_scale=1e-200"),
        ({"num_problems": 10**12}, r"fit in memory.*Received: 1000000000000 problems"),
        ({"num_members": 10**12}, r"fit in memory.*Received: num_members=1000000000000"),
        ({"horizon": 10**12}, r"fit in memory.*Received: horizon=1000000000000"),
        ({"horizon": 5.5}, "horizon >= 1, an integer. Received: 5.5"),
        ({"first_problem": 2**32 - 2}, "first <= 4294967293"),
        ({"agent_name": "ensemble-x"}, "agent name"),
        ({"marks": [0]}, r"marks\[0\] >= 1"),
        ({"marks": [5, 6]}, r"marks\[1\] <= 5"),
        ({"seed": -1}, "seed"),
        ({"noise": lambda features, uniforms: 0.0 * features[..., 0]}, "noise variances > 0"),
        ({"noise": lambda features, uniforms: uniforms}, "noise to return shape"),
        ({"parameters": thompson.AgentParameters(regularizer=2.0)}, "regularizer=None for ensemble-bp"),
    ],
)
def test_bad_arguments_are_named(change, message):
    arguments = {"agent_name": "ensemble-bp", "num_problems": 3, "horizon": 5, "num_actions": 4, "dim": 3}
    with pytest.raises(ValueError, match=message):
        bandit_env.run_bandit(**{**arguments, **change})


def test_bad_parameters_are_named():
    with pytest.raises(ValueError, match="noise_variance"):
        thompson.AgentParameters(noise_variance=0.0)
    with pytest.raises(ValueError, match="variance in"):
        problems.constant_noise(0.0)


def test_only_agents_need_tf_agents():
    code = """
import sys
sys.modules["tf_agents"] = None
from tf_ensembles import bandit_env
from tf_ensembles.bandit_env import problems, rollout, simulation, steps, thompson
result = bandit_env.run_bandit("ensemble-bp", 2, 3)
assert "tf_agents" not in vars(bandit_env) and "tensorflow_probability" not in sys.modules
for name in ("linear", "neural", "environment", "driver", "tasks"):
    try:
        __import__(f"bandit_env.agents.{name}")
        raise SystemExit(f"{name} needs no TF-Agents")
    except ImportError as error:
        assert "tf-ensembles[bandit]" in str(error), error
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
