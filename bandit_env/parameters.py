"""What tells the ensembles of the paper's Table 2 apart in a bandit: the parameters of one perturbed loss."""

from __future__ import annotations

import dataclasses
import enum
import math

import numpy as np

from tf_ensembles.base import Array
from tf_ensembles.linear.distribution import LinearAgent

AGENT_NAMES = tuple(agent.value for agent in LinearAgent)


class Spread(enum.Enum):
    """How the members of an infinite ensemble scatter around their mean; `A` is the precision, `z ~ N(0, I)`."""

    PRIOR = "prior"  # A^-1 (lambda s0_hat z): anchors only. Zero for ensemble-n
    PRECISION = "precision"  # A^-1/2 z: the exact posterior's, by proposition 1


@dataclasses.dataclass(frozen=True)
class AgentParameters:
    """Tunable parameters; None stands for Table 2's value for an agent that knows the noise and the prior.

    ensemble-bp takes none of them: proposition 1 fixes all.
    """

    noise_variance: float | None = None  # 1 / nu of n and p, equal for all data; None: the problem's mean variance
    regularizer: float | None = None  # lambda; None: 1 / s0^2
    prior_scale: float | None = None  # s0_hat, the scale of the members' anchors; None: s0

    def __post_init__(self) -> None:
        for name in ("noise_variance", "regularizer", "prior_scale"):
            value = getattr(self, name)
            if value is not None and not (value > 0.0 and math.isfinite(value)):
                raise ValueError(f"Expected {name} None, or finite and > 0. Received: {value}")


@dataclasses.dataclass(frozen=True)
class Loss:
    """The perturbed loss of J problems with N actions each."""

    weight: Array  # nu, [J, N]
    regularizer: float  # lambda
    anchor_scale: float  # s0_hat
    target_noise: Array  # sigma_hat, the standard deviation of the noise on members' targets, [J, N]
    spread: Spread

    def part(self, rows: Array) -> Loss:
        """Returns the loss of some of the problems."""
        return dataclasses.replace(self, weight=self.weight[rows], target_noise=self.target_noise[rows])


def make_loss(
    agent: LinearAgent | str, noise_variance: Array, prior_scale: float, parameters: AgentParameters | None = None
) -> Loss:
    """Returns the loss of an agent of Table 2 on problems with these noise variances `[J, N]`."""
    if agent not in AGENT_NAMES:
        raise ValueError(f"Expected an agent name of {list(AGENT_NAMES)}. Received: {agent!r}")
    agent, parameters = LinearAgent(agent), parameters or AgentParameters()
    _check_accepts(agent, parameters)
    variance = np.asarray(noise_variance, np.float64)
    if not (np.isfinite(variance).all() and (variance > 0.0).all()):
        raise ValueError(f"Expected finite noise variances > 0. Received: a smallest one of {variance.min()}")
    if not (prior_scale > 0.0 and math.isfinite(prior_scale)):
        raise ValueError(f"Expected a finite prior_scale > 0. Received: {prior_scale}")
    regularizer = prior_scale**-2.0 if parameters.regularizer is None else parameters.regularizer
    scale = prior_scale if parameters.prior_scale is None else parameters.prior_scale
    if agent in (LinearAgent.ENSEMBLE_N, LinearAgent.ENSEMBLE_P):
        fixed = variance.mean(axis=1, keepdims=True) if parameters.noise_variance is None else parameters.noise_variance
        weight = np.broadcast_to(1.0 / fixed, variance.shape)
    else:
        weight = 1.0 / variance
    exact = agent is LinearAgent.ENSEMBLE_BP
    return Loss(
        weight=weight,
        regularizer=regularizer,
        anchor_scale=0.0 if agent is LinearAgent.ENSEMBLE_N else scale,
        target_noise=np.sqrt(variance) if exact else np.zeros_like(variance),
        spread=Spread.PRECISION if exact else Spread.PRIOR,
    )


def _check_accepts(agent: LinearAgent, parameters: AgentParameters) -> None:
    refused = {
        LinearAgent.ENSEMBLE_N: ("prior_scale",),
        LinearAgent.ENSEMBLE_P: (),
        LinearAgent.WEIGHTED_P: ("noise_variance",),
        LinearAgent.ENSEMBLE_BP: ("noise_variance", "regularizer", "prior_scale"),
    }[agent]
    for name in refused:
        if getattr(parameters, name) is not None:
            raise ValueError(f"Expected {name}=None for {agent.value}. Received: {getattr(parameters, name)}")
