"""The whole of an experiment: an agent trains on a problem's data, predicts, and is compared with the truth.

agent = make_agent("ensemble-bp", num_members=100, prior_scale=3.0, seed=0)
problem = tfe.testbed.make_problem(input_dim=10, data_ratio=100, temperature=0.1, seed=0)
quality = experiment.run(agent, problem)       # quality.kl_marginal, quality.kl_joint, quality.accuracy, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tf_ensembles import base, testbed
from tf_ensembles.trainers import agents


def run(agent: base.Agent, problem: testbed.Problem, *, tau: int = 10, num_batches: int = 1000) -> base.Quality:
    """Returns how good an agent is on a problem.

    Args:
        agent: any function from data and prior knowledge to a predictive.
        problem: training data, what the agent may know, and the truth.
        tau: labels per joint prediction.
        num_batches: batches of test inputs.
    """
    predictive = agent(problem.train, problem.prior_knowledge)  # x -> logits [batch, members, classes]
    return testbed.evaluate(predictive, problem, tau=tau, num_batches=num_batches)


def run_many(
    configs: Sequence[agents.AgentConfig],
    problem: testbed.Problem,
    *,
    tau: int = 10,
    num_batches: int = 1000,
    num_workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[base.Quality]:
    """Returns what `run` does for each of several agents, which are trained side by side.

    Args:
        configs: the agents.
        problem: training data, what agents may know, and the truth.
        tau: labels per joint prediction.
        num_batches: batches of test inputs.
        num_workers: blocks of members to train at the same time; by default one per core.
        progress: called with the number of members that have finished.
    """
    predictives = agents.train_many(
        configs, problem.train, problem.prior_knowledge, num_workers=num_workers, progress=progress
    )
    return [testbed.evaluate(predictive, problem, tau=tau, num_batches=num_batches) for predictive in predictives]
