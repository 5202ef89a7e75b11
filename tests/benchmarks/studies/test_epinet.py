"""The cost of an epinet and of ensembles."""

import keras

import tf_ensembles as tfe
from tf_ensembles.benchmarks.studies import epinet


def test_parameters_are_those_of_the_models():
    trunk = keras.Sequential([keras.Input((10,)), *(keras.layers.Dense(size, "relu") for size in epinet.HIDDEN)])
    prior = tfe.PriorFunction(lambda: epinet.build_prior(10, 2))
    model = tfe.Epinet(trunk, epinet.INDEX, num_outputs=2, hidden=epinet.SMALL, prior=prior)
    assert epinet.cost_of_epinet(100, 10)[0] == model.count_params()
    member = keras.Sequential([*trunk.layers, keras.layers.Dense(2)])
    member.build((None, 10))
    assert epinet.cost_of_ensemble(3, 10)[0] == 2 * 3 * member.count_params()
    # Twice the products of two hidden layers and the last, for member and prior.
    assert epinet.cost_of_ensemble(1, 10)[1] == 2 * 2 * (10 * 50 + 50 * 50 + 50 * 2)
    # One more index costs its part of the first layer, the other layers, and two products with it: prior's and net's.
    more = epinet.cost_of_epinet(2, 10)[1] - epinet.cost_of_epinet(1, 10)[1]
    assert more == 2 * (8 * 15 + 15 * 15 + 15 * 16 + 2 * 16)
