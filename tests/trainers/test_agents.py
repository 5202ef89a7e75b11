"""Agents: defaults, closed options, any data, and what distinguishes them."""

import dataclasses

import numpy as np
import pytest

from tf_ensembles import base, testbed, trainers
from tf_ensembles.trainers import agents

NAMES = ("mlp", "ensemble-n", "ensemble-p", "ensemble-bp")


@pytest.fixture(scope="module")
def problem():
    return testbed.make_problem(2, 20, 0.1, seed=0)


def _short(name, **overrides):
    members = {} if name == "mlp" else {"num_members": 10}
    return agents.make_config(name, **{"num_steps": 50, **members, **overrides})


def test_defaults_are_those_of_the_reference():
    knowledge = base.PriorKnowledge(input_dim=10, num_train=1000, temperature=0.25)
    groups = {name: agents.member_group(agents.make_config(name), 1000, knowledge) for name in NAMES}
    assert {name: group.num_members for name, group in groups.items()} == {
        "mlp": 1,
        "ensemble-n": 100,
        "ensemble-p": 100,
        "ensemble-bp": 100,
    }
    for name, group in groups.items():
        assert group.l2 == pytest.approx(10 * 0.5 / 1000)
        assert group.learning_rate == 1e-3
        assert group.prior_scale == pytest.approx(6.0 if name in ("ensemble-p", "ensemble-bp") else 0.0)
        assert group.random_bias == (name in ("ensemble-p", "ensemble-bp"))
        assert (group.bootstrap is not None) == (name == "ensemble-bp")
    assert groups["ensemble-bp"].bootstrap.p == 0.5
    config = agents.make_config("ensemble-bp")
    assert (config.num_steps, config.batch_size, config.hidden_sizes) == (1000, 100, (50, 50))


@pytest.mark.parametrize(("scaling", "expected"), [("d*sqrt(rho)", 5.0), ("d/sqrt(rho)", 20.0), ("1", 1.0)])
def test_decay_scalings(scaling, expected):
    knowledge = base.PriorKnowledge(input_dim=10, num_train=4, temperature=0.25)
    config = agents.make_config("mlp", decay_scaling=scaling, l2=2.0)
    assert agents.member_group(config, 4, knowledge).l2 == pytest.approx(2.0 * expected / 4)


@pytest.mark.parametrize(("scaling", "expected"), [("1/sqrt(rho)", 2.0), ("1/rho", 4.0), ("1", 1.0)])
def test_prior_scalings(scaling, expected):
    knowledge = base.PriorKnowledge(input_dim=10, num_train=4, temperature=0.25)
    config = agents.make_config("ensemble-p", prior_scaling=scaling, prior_scale=0.3)
    assert agents.member_group(config, 4, knowledge).prior_scale == pytest.approx(0.3 * expected)


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("ensemble-x", {}, "Expected name to be one of 'mlp'"),
        ("ensemble-p", {"prior_scaling": "lin"}, "Expected prior_scaling to be one of"),
        ("ensemble-p", {"decay_scaling": "d"}, "Expected decay_scaling to be one of"),
        ("ensemble-p", {"bootstrap_probability": 0.5}, "None for the others"),
        ("ensemble-bp", {"bootstrap_probability": 1.5}, r"p in \(0, 1\]"),
        ("ensemble-bp", {"bootstrap_probability": None}, "bootstrap_probability for ensemble-bp"),
        ("ensemble-n", {"prior_scale": 1.0}, "Expected prior_scale=0"),
        ("ensemble-n", {"num_members": 0}, "num_members >= 1"),
        ("mlp", {"num_members": 2}, "num_members=1 for mlp"),
        ("mlp", {"l2": -1.0}, "l2 >= 0"),
        ("mlp", {"members": 3}, "Received: members"),
        ("mlp", {"hidden_sizes": (50, 0)}, r"hidden_sizes\[1\] >= 1"),
    ],
)
def test_options_are_closed(name, overrides, message):
    with pytest.raises(ValueError, match=message):
        trainers.make_agent(name, **overrides)


def test_configs_are_frozen_and_varied_by_copy():
    config = agents.make_config("ensemble-p")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1
    assert dataclasses.replace(config, seed=1).seed == 1
    assert dataclasses.replace(config, prior_scaling="1/rho").prior_scaling is agents.PriorScaling.LINEAR
    assert len({config, agents.make_config("ensemble-p")}) == 1


@pytest.mark.parametrize("name", NAMES)
def test_agents_learn_what_the_uniform_agent_does_not(name, problem):
    agent = agents.EnsembleAgent(_short(name, num_steps=300))
    quality = testbed.evaluate(agent(problem.train, problem.prior_knowledge), problem, num_batches=200)
    uniform = testbed.evaluate(testbed.uniform_agent(problem.train, problem.prior_knowledge), problem, num_batches=200)
    assert quality.kl_marginal < 0.8 * uniform.kl_marginal
    assert quality.kl_joint < 0.8 * uniform.kl_joint


def test_settings_trained_side_by_side_equal_each_alone(problem):
    configs = [
        _short("mlp"),
        _short("ensemble-n", l2=0.1, num_members=9),
        _short("ensemble-p", prior_scale=1.0),
        _short("ensemble-bp", learning_rate=0.01),
        _short("ensemble-p", prior_scaling="1/rho", seed=1),
    ]
    together = agents.train_many(configs, problem.train, problem.prior_knowledge)
    x = np.random.default_rng(0).normal(size=(50, 2))
    for config, predictive in zip(configs, together, strict=True):
        alone = agents.EnsembleAgent(config)(problem.train, problem.prior_knowledge)
        logits = predictive(x)
        assert logits.shape == (50, config.num_members, 2)
        np.testing.assert_allclose(logits, alone(x), rtol=1e-3, atol=1e-3)
    assert not np.allclose(together[2](x), together[3](x), atol=0.1)


def test_any_data_of_any_input_shape_and_number_of_classes():
    random = np.random.default_rng(0)
    y = random.integers(0, 3, 60)
    x = random.normal(size=(60, 3, 4)) + 3.0 * np.eye(3)[y][:, :, None]
    agent = agents.EnsembleAgent(_short("ensemble-bp", num_steps=300, learning_rate=0.01, batch_size=16))
    predictive = agent(base.Data(x, y), base.PriorKnowledge(12, 60, 3, 1.0))
    logits = predictive(x)
    assert logits.shape == (60, 10, 3)
    assert np.mean(logits.mean(axis=1).argmax(axis=-1) == y) > 0.9


@pytest.mark.parametrize(
    ("data", "knowledge", "message"),
    [
        (base.Data(np.zeros((5, 3)), np.zeros(5, int)), base.PriorKnowledge(2, 5), r"\[examples, 2\]"),
        (base.Data(np.zeros((5, 2)), np.full(5, 2)), base.PriorKnowledge(2, 5), r"labels in \[0, 2\)"),
        (base.Data(np.zeros((5, 2)), np.zeros(5)), base.PriorKnowledge(2, 5), "integer labels"),
        (base.Data(np.full((5, 2), 1e38), np.zeros(5, int)), base.PriorKnowledge(2, 5), "inputs within ±1e\\+30"),
    ],
)
def test_wrong_data_are_refused(data, knowledge, message):
    with pytest.raises(ValueError, match=message):
        trainers.make_agent("mlp", num_steps=1)(data, knowledge)


def test_data_and_knowledge_are_checked_where_they_are_made():
    with pytest.raises(ValueError, match=r"Expected finite x. Received: 10 NaN"):
        base.Data(np.full((5, 2), np.nan), np.zeros(5, int))
    with pytest.raises(ValueError, match=r"Expected a finite temperature > 0. Received: 0.0"):
        base.PriorKnowledge(2, 5, temperature=0.0)
