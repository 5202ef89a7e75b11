"""The ensembles of the paper's Table 2: which parameters of one perturbed loss make which agent."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any


class LinearAgent(enum.StrEnum):
    """The ensembles of Table 2."""

    ENSEMBLE_N = "ensemble-n"  # no prior, no bootstrap
    ENSEMBLE_P = "ensemble-p"  # prior; every data pair weighs the same
    WEIGHTED_P = "ensemble-p-weighted"  # prior; data pairs weighted by 1 / noise variance, so its mean is exact
    ENSEMBLE_BP = "ensemble-bp"  # prior and bootstrap, with the parameters of proposition 1


@dataclasses.dataclass(frozen=True)
class Perturbation:
    """The parameters of the perturbed loss, in the order that `ensemble_distribution` and `sample_members` take."""

    weight: Any  # nu(x_t)
    regularizer: Any  # lambda
    prior_variance: Any  # s0_hat^2, the variance of a member's anchor
    bootstrap_variance: Any  # sigma_hat^2(x_t), the variance of the noise added to a member's targets

    def arguments(self) -> tuple[Any, Any, Any, Any]:
        """The four parameters, to be unpacked into a call."""
        return self.weight, self.regularizer, self.prior_variance, self.bootstrap_variance


def table_2(
    agent: LinearAgent, noise_variance: Any, mean_variance: Any, regularizer: Any, prior_variance: Any
) -> Perturbation:
    """Returns Table 2's row of an agent, of arrays or tensors alike; zeros are numbers.

    Args:
      agent: which one.
      noise_variance: `sigma^2(x_t)`, which weighted ensembles know.
      mean_variance: the one variance that the others take all data to have.
      regularizer: `lambda`, `1 / s0^2` unless tuned.
      prior_variance: `s0_hat^2`, `s0^2` unless tuned.
    """
    knows_noise = agent in (LinearAgent.WEIGHTED_P, LinearAgent.ENSEMBLE_BP)
    return Perturbation(
        weight=1.0 / (noise_variance if knows_noise else mean_variance),
        regularizer=regularizer,
        prior_variance=0.0 if agent is LinearAgent.ENSEMBLE_N else prior_variance,
        bootstrap_variance=noise_variance if agent is LinearAgent.ENSEMBLE_BP else 0.0,
    )
