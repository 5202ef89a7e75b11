"""From a run's networks to Keras: what the compiled loop trained serves in `EnsembleDqnAgent`, or as a `tfe.Epinet`."""

from __future__ import annotations

import keras
import numpy as np

from tf_ensembles.bandit_env.dqn.environments import Environment
from tf_ensembles.bandit_env.dqn.training import DqnResult, Learner
from tf_ensembles.bandit_env.networks import export
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.methods.epinet import Epinet


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
    layers = len(learner.hidden_sizes) + 1
    if len(result.kernels) != layers:
        raise ValueError(
            f"Expected a run of an ensemble with the learner's {layers} layers; make_epinet is for epinets. "
            f"Received: {len(result.kernels)} kernels"
        )

    def build() -> keras.Model:
        return build_member(environment, learner.hidden_sizes)

    members, prior = result.kernels[0].shape[1], export.make_prior(build, result)
    ensemble = Ensemble(build, members, prior, bootstrap, seed=seed)
    ensemble.compile(keras.optimizers.Adam(learner.learning_rate), keras.losses.MeanSquaredError(), jit_compile=False)
    return export.assigned(ensemble, environment.observation_shape, result, place)


def make_epinet(
    result: DqnResult,
    environment: Environment,
    learner: Learner | None = None,
    place: int = 0,
    num_members: int = 100,
    seed: int = 0,
) -> Epinet:
    """Returns the epinet of one seed as a `tfe.Epinet` of values, `[batch, members, actions]`, with its priors.

    Args:
      result: of a run.
      environment: that of the run.
      learner: that of the run.
      place: of the seed among the run's.
      num_members: indices that it draws to predict.
      seed: decides on those indices.
    """
    learner = learner or Learner()
    layers = len(learner.hidden_sizes) + 1
    base, small = ([kernel[place] for kernel in part] for part in (result.kernels[:layers], result.kernels[layers:]))
    if len(small) < 2:  # Its small network has a hidden layer at least.
        raise ValueError(
            f"Expected a run of an epinet with the learner's {layers} layers, and a small network's; make_ensemble is "
            f"for ensembles. Received: {len(result.kernels)} kernels"
        )
    whole = build_member(environment, learner.hidden_sizes)
    trunk = keras.Model(whole.inputs[0], whole.layers[-2].output)
    made = Epinet(
        trunk,
        small[0].shape[2] - base[-1].shape[2],  # features, index and a constant; features and a constant
        num_outputs=environment.num_actions,
        hidden=[kernel.shape[1] for kernel in small[:-1]],
        prior=export.make_prior(lambda: build_member(environment, learner.hidden_sizes), result),
        num_members=num_members,
        seed=seed,
    )
    made(np.zeros([1, *environment.observation_shape], np.float32))
    for layer_group, kernels in (([*trunk.layers, made.base], base), (made.small, small)):
        variables = [variable for layer in layer_group for variable in layer.variables]
        for variable, value in zip(variables, export.dense_weights(kernels), strict=True):
            variable.assign(value[0])
    if result.prior_kernels:
        export.assign(made.priors, [kernel[place] for kernel in result.prior_kernels])
    return made
