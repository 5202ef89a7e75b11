"""The cost of an epinet and of ensembles, and the table of the study."""

import math

import keras
import pytest

import tf_ensembles as tfe
from benchmarks.studies import epinet


def test_parameters_are_those_of_the_models():
    trunk = keras.Sequential([keras.Input((10,)), *(keras.layers.Dense(size, "relu") for size in epinet.HIDDEN)])
    prior = tfe.PriorFunction(lambda: epinet._build_prior(10, 2))
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


def test_a_table_is_read_again_and_summarized(tmp_path):
    same = {"kl_marginal": 0.5, "parameters": 7, "flops": 9}
    rows = [
        {"method": name, "problem": problem, "seed": seed, "kl_joint": kl + seed, **same}
        for name, kl in (("ensemble-p of 1", 4.0), ("epinet, 100 indices", 1.0))
        for problem in (1, 2)
        for seed in (0, 1)
    ]
    epinet._write(tmp_path / "table.csv", rows)
    one, other = epinet.summarize(tmp_path / "table.csv")
    assert (one["method"], one["kl_joint"], one["parameters"]) == ("ensemble-p of 1", 4.5, 7)
    assert other["kl_joint"] == pytest.approx(1.5)
    assert other["error"] == pytest.approx(math.sqrt(0.5) / math.sqrt(2))
