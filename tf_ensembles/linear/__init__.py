"""Bayesian linear regression, where everything is known exactly: posteriors, ensembles, their KL, theorem 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.linear.agents import LinearAgent as LinearAgent
    from tf_ensembles.linear.agents import Perturbation as Perturbation
    from tf_ensembles.linear.distribution import Gaussian as Gaussian
    from tf_ensembles.linear.distribution import agent_parameters as agent_parameters
    from tf_ensembles.linear.distribution import distribution_from_sums as distribution_from_sums
    from tf_ensembles.linear.distribution import ensemble_distribution as ensemble_distribution
    from tf_ensembles.linear.distribution import fit as fit
    from tf_ensembles.linear.distribution import kl as kl
    from tf_ensembles.linear.distribution import lower_bound as lower_bound
    from tf_ensembles.linear.distribution import minimize as minimize
    from tf_ensembles.linear.distribution import posterior as posterior
    from tf_ensembles.linear.distribution import sample_members as sample_members

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Gaussian": "tf_ensembles.linear.distribution",
        "LinearAgent": "tf_ensembles.linear.agents",
        "Perturbation": "tf_ensembles.linear.agents",
        "agent_parameters": "tf_ensembles.linear.distribution",
        "distribution_from_sums": "tf_ensembles.linear.distribution",
        "ensemble_distribution": "tf_ensembles.linear.distribution",
        "fit": "tf_ensembles.linear.distribution",
        "kl": "tf_ensembles.linear.distribution",
        "lower_bound": "tf_ensembles.linear.distribution",
        "minimize": "tf_ensembles.linear.distribution",
        "posterior": "tf_ensembles.linear.distribution",
        "sample_members": "tf_ensembles.linear.distribution",
    },
)
