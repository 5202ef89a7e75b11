"""Experiments: an agent alone, agents side by side, and an agent whose score is known."""

import dataclasses

import numpy as np
import pytest

from tf_ensembles import testbed
from tf_ensembles.trainers import agents, experiment

PROBLEM = testbed.make_problem(input_dim=2, data_ratio=5, temperature=0.1, seed=3)
SMALL = {"num_steps": 20, "seed": 3}
SCORES = {"num_batches": 20}


def test_the_environment_itself_has_no_divergence():
    """The truth, as an agent that has nothing to learn: both KLs are 0, whatever tau is."""

    def truth(data, prior_knowledge):
        return lambda x: PROBLEM.environment.log_probs(x)[:, None]

    quality = experiment.run(truth, PROBLEM, tau=5, **SCORES)
    assert quality.kl_marginal == pytest.approx(0.0, abs=1e-6)
    assert quality.kl_joint == pytest.approx(0.0, abs=1e-5)


def test_tau_reaches_the_score():
    """Labels of equally likely classes, independent of each other: tau of them have tau times the KL of one."""
    for tau in (1, 4):
        quality = experiment.run(testbed.uniform_agent, PROBLEM, tau=tau, **SCORES)
        assert quality.kl_joint == pytest.approx(tau * quality.kl_marginal, rel=1e-6)


def test_agents_side_by_side_are_those_alone():
    configs = [agents.make_config("mlp", **SMALL), agents.make_config("ensemble-bp", num_members=3, **SMALL)]
    finished = []
    together = experiment.run_many(configs, PROBLEM, num_workers=1, progress=finished.append, **SCORES)
    assert sum(finished) == 4
    for config, quality in zip(configs, together, strict=True):
        alone = experiment.run(agents.EnsembleAgent(config), PROBLEM, **SCORES)
        # Blocks of another size may sum in another order.
        np.testing.assert_allclose(dataclasses.astuple(quality), dataclasses.astuple(alone), rtol=1e-4, atol=1e-6)
