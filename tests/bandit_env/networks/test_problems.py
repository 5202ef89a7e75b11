"""Bandits that are not linear, against their definitions."""

import numpy as np
import pytest

from tests.needs import needs
from tf_ensembles import testbed
from tf_ensembles.bandit_env.networks import problems


def test_a_random_network_pays_what_the_testbed_says():
    made = problems.make_random_network([3, 8], num_actions=6, dim=4, temperature=0.5)
    assert (made.contexts.shape, made.means.shape, made.heads, made.binary) == ((2, 1, 6, 4), (2, 1, 6), 1, True)
    for place, seed in enumerate((3, 8)):
        environment = testbed.make_problem(4, 1, 0.5, seed).environment
        truth = np.exp(environment.log_probs(made.contexts[place, 0]))[:, 1]
        np.testing.assert_allclose(made.means[place, 0], truth, rtol=1e-5)
    alone = problems.make_random_network([8], num_actions=6, dim=4, temperature=0.5)
    np.testing.assert_array_equal(alone.contexts[0], made.contexts[1])


def test_the_wheel_pays_beyond_its_radius_in_the_right_quadrant():
    made = problems.make_wheel(range(3), 2000, delta=0.8)
    x, means = made.contexts[:, :, 0], made.means
    radius = np.linalg.norm(x, axis=2)
    assert radius.max() <= 1.0 + 1e-6
    # Uniform on the disk: the share within a radius is its square.
    assert np.mean(radius < 0.8) == pytest.approx(0.64, abs=5 * np.sqrt(0.64 * 0.36 / 6000))
    best = means.argmax(2)
    assert set(best[radius < 0.8 - 1e-6]) == {0}
    np.testing.assert_array_equal(means.max(2), np.where(radius > 0.8, np.float32(50.0), np.float32(1.2)))
    for arm, signs in {1: (1, 1), 2: (1, -1), 3: (-1, 1), 4: (-1, -1)}.items():
        assert {tuple(row) for row in np.sign(x[(best == arm) & (radius > 0.8)])} == {signs}


@needs("sklearn")
def test_data_pay_for_the_class_of_an_example():
    from sklearn import datasets

    made = problems.make_data("digits", [0, 1], 50)
    assert (made.contexts.shape, made.heads, made.binary) == ((2, 50, 1, 64), 10, True)
    np.testing.assert_array_equal(made.means.sum(2), 1.0)
    x, y = datasets.load_digits(return_X_y=True)
    scaled = np.clip((x - x.mean(0)) / np.maximum(x.std(0), 1e-3), -3, 3).astype(np.float32)
    for row, label in zip(made.contexts[0, :5, 0], made.means[0, :5].argmax(1), strict=True):
        assert label in y[(np.abs(scaled - row).max(1) < 1e-5)]
    tumors = problems.make_data("tumors", [0], 400)
    np.testing.assert_array_equal(tumors.means[..., 0], 0.0)
    malignant = tumors.means[..., 1] < 0
    assert set(tumors.means[malignant][:, 1] + tumors.deviations[malignant][:, 1]) == {5.0}
    assert set(tumors.means[malignant][:, 1] - tumors.deviations[malignant][:, 1]) == {-35.0}
    assert np.mean(malignant) == pytest.approx(212 / 569, abs=5 * 0.5 / np.sqrt(400))


def test_what_is_no_problem_is_told():
    with pytest.raises(ValueError, match=r"delta in \(0, 1\)"):
        problems.make_wheel([0], 10, 1.5)
    with pytest.raises(ValueError, match="Expected data of"):
        problems.make_data("iris", [0], 10)
    with pytest.raises(ValueError, match="seeds, a sequence that is not empty"):
        problems.make_wheel([], 10)
