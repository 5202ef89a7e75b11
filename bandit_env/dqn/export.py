"""From a run's networks to a `tfe.Ensemble`: what the compiled loop trained serves in `EnsembleDqnAgent`."""

from __future__ import annotations

import keras
import numpy as np

from bandit_env.dqn.environments import Environment
from bandit_env.dqn.training import DqnResult, Learner
from bandit_env.networks import export
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.prior import PriorFunction


def build_member(environment: Environment, hidden_sizes: tuple[int, ...]) -> keras.Model:
    """Returns a network from an observation to a value for each action."""
    layers = [keras.layers.Dense(units, "relu") for units in hidden_sizes]
    start = [keras.Input(environment.observation_shape), keras.layers.Flatten()]
    return keras.Sequential([*start, *layers, keras.layers.Dense(environment.num_actions)])


def make_ensemble(
    result: DqnResult,
    environment: Environment,
    learner: Learner | None = None,
    place: int = 0,
    bootstrap: Bootstrap | None = None,
    seed: int = 0,
) -> Ensemble:
    """Returns the members of one seed as a compiled `tfe.Ensemble`, with their priors.

    Args:
      result: of a run.
      environment: that of the run.
      learner: that of the run.
      place: of the seed among the run's.
      bootstrap: that of the agent.
      seed: that of the run's draws.
    """
    learner = learner or Learner()

    def build() -> keras.Model:
        return build_member(environment, learner.hidden_sizes)

    prior = PriorFunction(build, 1.0, normalize=False) if result.prior_kernels else None
    ensemble = Ensemble(build, result.kernels[0].shape[1], prior, bootstrap, seed=seed)
    ensemble.compile(keras.optimizers.Adam(learner.learning_rate), keras.losses.MeanSquaredError(), jit_compile=False)
    ensemble(np.zeros([2, *environment.observation_shape], np.float32))
    export.assign(ensemble.members, [kernel[place] for kernel in result.kernels])
    if prior is not None:
        export.assign(ensemble.priors, [kernel[place] for kernel in result.prior_kernels])
    return ensemble
