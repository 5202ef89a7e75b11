"""Advice on a regression: targets in any unit, heads that know their noise, and a Gaussian process beside them."""

import keras
import numpy as np
import pytest

import tf_ensembles as tfe
from tests.needs import needs
from tf_ensembles.advice import regression, splits

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(200, 2)).astype(np.float32)
Y = X.sum(axis=1) + 0.5 * RANDOM.normal(size=200)
# A label costs the entropy of its noise, log(0.5 sqrt(2 pi e)) nats once fitted; the mean of 200 such costs has a
# standard deviation of 0.05, and what is not learned yet adds a little.
COST, ABOUT = 0.726, 0.25


def line():
    start = keras.initializers.RandomNormal(stddev=0.05)
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, kernel_initializer=start)])


@needs("sklearn")
def test_targets_in_other_units_get_the_same_advice():
    given = dict(priors=[], num_members=2, bootstrap=None, loss=tfe.losses.GaussianNLL(), epochs=20)
    given |= dict(optimizer=keras.optimizers.Adam(0.1), validation=5)
    with pytest.warns(UserWarning, match=r"standardized here: fit \(y - .*\) / "):
        advice = tfe.advise(line, X, 5000.0 + 100.0 * Y, **given)
    # Nats per label in units that are a hundred times as small.
    assert advice.recommended.marginal_nll == pytest.approx(COST + np.log(100.0), abs=ABOUT)
    assert advice.joint_nll.estimate == pytest.approx(10 * (COST + np.log(100.0)), abs=10 * ABOUT)
    text = str(advice)
    assert "warning: targets are not scaled, and were standardized here: fit (y - " in text
    (process,) = [note for note in advice.notes if note.startswith("a Gaussian process")]
    value = float(process.split("joint NLL of ")[1].split()[0])
    assert value == pytest.approx(10 * (COST + np.log(100.0)), abs=10 * ABOUT)


def test_units():
    assert regression.find_units(Y, None) is None
    units = regression.find_units(np.stack([100 * Y, 7 + 0.01 * Y], axis=1), None)
    made = units.standardize(np.stack([100 * Y, 7 + 0.01 * Y], axis=1))
    np.testing.assert_allclose([made.mean(0), made.std(0)], [[0, 0], [1, 1]], atol=1e-9)
    pooled = regression.find_units(np.stack([100 * Y, 300 * Y], axis=1), 50.0)
    np.testing.assert_allclose(pooled.std, np.sqrt((100**2 + 300**2) / 2) * Y.std())
    assert regression.find_units(["a", "b"], None) is None
    assert regression.find_units(np.full(9, 500.0), None) is None


@needs("sklearn")
def test_the_process_predicts_jointly():
    """Far from the data two examples at one input go together: alike they are likely, apart they are not."""
    examples = splits.Examples(X[:40], np.sin(2 * X[:40, 0]) + 0.01 * Y[:40], np.arange(40))

    def nlls(y, tau):
        judge = splits.Examples(np.full((2, 2), 6.0), np.array(y), np.arange(2))
        return sum(regression._joint_nlls(splits.Part(examples, examples.take(np.arange(0)), judge), tau))

    assert nlls([0.5, 0.5], 2) < nlls([0.5, 0.5], 1) - 1.0
    assert nlls([0.5, -0.5], 2) > nlls([0.5, -0.5], 1) + 1.0


def test_what_cannot_be_advised_on():
    given = {"num_members": 2}
    with pytest.raises(ValueError, match=r"Expected noise_std.*or loss=tfe.losses.GaussianNLL\(\)"):
        tfe.advise(line, X, Y, loss="mse", **given)
    with pytest.raises(ValueError, match="Expected a loss with a likelihood"):
        tfe.advise(line, X, Y, loss=tfe.losses.Pinball((0.1, 0.9)), **given)
    with pytest.raises(ValueError, match="noise_std for a regression only"):
        tfe.advise(line, X, Y, loss=tfe.losses.GaussianNLL(), noise_std=1.0, **given)
