"""Linear agents on TF-Agents' own environments: the context decides, by the model that the specs ask for."""

import numpy as np
import pytest
import tensorflow as tf

from tests.lazy import Lazy
from tf_ensembles import bandit_env

baselines = Lazy("tf_ensembles.bandit_env.agents.baselines")
features = Lazy("tf_ensembles.bandit_env.agents.features")
observations = Lazy("tf_ensembles.bandit_env.agents.observations")
stock = Lazy("tf_ensembles.bandit_env.agents.stock")
tensor_spec = Lazy("tf_agents.specs.tensor_spec")


def per_arm_spec(shared, arms, own):
    return {"global": tf.TensorSpec([shared], tf.float32), "per_arm": tf.TensorSpec([arms, own], tf.float32)}


def test_the_form_is_chosen_from_the_spec():
    for spec, form, dim in [
        (tf.TensorSpec([4], tf.float32), "disjoint", 5),
        (tf.TensorSpec([2, 3], tf.float32), "disjoint", 7),
        ({"global": tf.TensorSpec([4], tf.float32)}, "disjoint", 5),
        (per_arm_spec(0, 3, 2), "shared", 2),
        (per_arm_spec(4, 3, 2), "hybrid", 4 + 2 + 8),
    ]:
        design = features.make_design(spec, 3)
        assert (design.form, design.dim) == (form, dim)
        assert form in design.describe()
    with pytest.warns(UserWarning, match="cannot change the choice"):
        assert features.make_design(per_arm_spec(40, 3, 40), 3).form == "shared"


def test_hybrid_features_are_products():
    design = features.make_design(per_arm_spec(2, 3, 3), 3)
    rng = np.random.default_rng(0)
    shared, own = rng.normal(size=[4, 2]).astype(np.float32), rng.normal(size=[4, 3, 3]).astype(np.float32)
    got = design.expand(design.raw({"global": tf.constant(shared), "per_arm": tf.constant(own)}))
    for row in range(4):
        for arm in range(3):
            expected = [*shared[row], *own[row, arm], *np.outer(shared[row], own[row, arm]).ravel()]
            np.testing.assert_allclose(got[row, arm], expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["stationary", "per_arm"])
def test_the_context_decides_on_stock_environments(kind):
    task = {"stationary": stock.make_stationary, "per_arm": stock.make_per_arm}[kind](seed=0, batch_size=10)
    specs = task.env.time_step_spec(), task.env.action_spec()
    agent = bandit_env.EnsembleThompsonAgent(*specs, "ensemble-bp", noise_variance=None)
    assert {"stationary": "disjoint", "per_arm": "hybrid"}[kind] in agent.summary()
    regret = stock.run(task, agent, 30)
    means = np.concatenate([task.mean_rewards(task.env.reset().observation) for _ in range(20)])
    guessing = (means.max(1) - means.mean(1)).mean()
    assert regret[-10:].mean() < 0.25 * guessing
    # 0.25; arms of some 50 data may be off by 5 sqrt(2 / 50) of it, and 4 observations of about 2 count, too.
    variance = agent.noise_variance().numpy()
    assert ((variance > 0.1) & (variance < 0.7)).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stationary", "per_arm", "wheel", "piecewise"])
def test_no_worse_than_stock_linear_thompson_sampling(kind):
    make = getattr(stock, f"make_{kind}")

    def total(seed, ours):
        task = make(seed, 8)
        specs = task.env.time_step_spec(), task.env.action_spec()
        if ours:
            agent = bandit_env.EnsembleThompsonAgent(*specs, "ensemble-p", None, prior_scale=None, seed=seed)
        else:
            agent = baselines.make_lin_ts(*specs, seed)
        return stock.run(task, agent, 40).sum()

    gaps = np.array([total(seed, True) - total(seed, False) for seed in range(5)])
    assert gaps.mean() < 2.0 * gaps.std(ddof=1) / np.sqrt(5)


def test_arms_that_are_not_there_are_never_taken():
    spec = {**per_arm_spec(2, 4, 3), "num_actions": tf.TensorSpec([], tf.int32)}
    step_spec = stock.tasks.ts.time_step_spec(spec)
    action = tensor_spec.BoundedTensorSpec([], tf.int32, 0, 3, "action")
    agent = bandit_env.EnsembleThompsonAgent(step_spec, action, emit_propensity=True)
    rng = np.random.default_rng(0)
    observation = {
        "global": tf.constant(rng.normal(size=[50, 2]), tf.float32),
        "per_arm": tf.constant(rng.normal(size=[50, 4, 3]), tf.float32),
        "num_actions": tf.fill([50], 2),
    }
    taken = agent.policy.action(stock.tasks.ts.restart(observation, 50))
    assert set(taken.action.numpy()) == {0, 1}
    np.testing.assert_allclose(agent.policy.arm_values(observation).probability[:, 2:], 0.0)
