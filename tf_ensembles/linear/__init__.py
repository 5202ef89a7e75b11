"""Bayesian linear regression, where everything is known exactly: posteriors, ensembles, their KL, theorem 1."""

from tf_ensembles.linear.distribution import (
    Gaussian,
    LinearAgent,
    Perturbation,
    agent_parameters,
    ensemble_law,
    fit,
    kl,
    law_from_sums,
    lower_bound,
    minimise,
    posterior,
    sample_members,
)

__all__ = [
    "Gaussian",
    "LinearAgent",
    "Perturbation",
    "agent_parameters",
    "ensemble_law",
    "fit",
    "kl",
    "law_from_sums",
    "lower_bound",
    "minimise",
    "posterior",
    "sample_members",
]
