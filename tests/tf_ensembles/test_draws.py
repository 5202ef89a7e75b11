"""The generator: its bits, against one written anew in NumPy, and the purposes that share them."""

import numpy as np
import pytest
import tensorflow as tf

from tests.needs import needs
from tf_ensembles import draws
from tf_ensembles.draws import Purpose


def _mix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def test_uniform_equals_a_scalar_numpy_version():
    golden = np.uint64(0x9E3779B97F4A7C15)
    got = draws.uniform(-7, [3, -1, 2**40], [0, 5], num_streams=2).numpy()
    with np.errstate(over="ignore"):
        for i, example in enumerate([3, -1, 2**40]):
            for j, member in enumerate([0, 5]):
                for stream in (1, 2):
                    key = _mix(np.uint64(-7 & (2**64 - 1)) + golden)
                    key = _mix(key + np.uint64(example & (2**64 - 1)) * golden)
                    bits = _mix(key + (np.uint64(member) + (np.uint64(stream) << np.uint64(32))) * golden)
                    assert got[i, j, stream - 1] == np.float32(bits >> np.uint64(40)) * np.float32(2.0**-24)


@pytest.mark.parametrize("purpose", Purpose)
def test_a_purpose_is_an_offset_of_seed_ids_and_members(purpose):
    got = draws.uniform(5, [3, 4], [1, 2], 2, purpose).numpy()
    shifted = 5 + purpose.seed, np.array([3, 4]) + purpose.ids, np.array([1, 2]) + purpose.members
    np.testing.assert_array_equal(got, draws.uniform(*shifted, 2).numpy())
    np.testing.assert_array_equal(got, tf.function(lambda s: draws.uniform(s, [3, 4], [1, 2], 2, purpose))(5).numpy())
    assert draws.key(5, purpose) == shifted[0]


def test_purposes_of_the_generator_have_numbers_of_their_own():
    """All but the three that share the plain seed, and those that other generators draw."""
    plain = {Purpose.BOOTSTRAP, Purpose.ANCHOR_COUNTS, Purpose.SERVED_MEMBER}
    others = [
        one
        for one in Purpose
        if one.name.startswith(("TESTBED", "LINEAR"))
        or one.name in ("IMAGE_ORDER_SEED", "IMAGE_SUBSET", "INITIAL_WEIGHTS")
    ]
    mine = [one for one in Purpose if one not in plain and one not in others]
    assert len({(one.seed, one.ids, one.members) for one in mine}) == len(mine)
    assert (0, 0, 0) not in {(one.seed, one.ids, one.members) for one in mine}
    for family in ("TESTBED", "LINEAR_"):
        streams = [one.stream for one in others if one.name.startswith(family)]
        assert streams[:4] == [0, 1, 2, 3]


def test_the_numbers_of_purposes_stay_as_they_are():
    """Every stored result rests on them."""
    assert Purpose.PRIOR.seed == 0x5EED_0001
    assert [one.ids for one in (Purpose.MLP_WEIGHTS, Purpose.MLP_PRIOR, Purpose.MLP_ORDER)] == [
        -(2**40) * k for k in (1, 2, 3)
    ]
    assert (Purpose.LABEL_NOISE.members, Purpose.IMAGE_EPOCH.members) == (2**31, 2**31 + 1)
    bandit = ["BANDIT_NORMAL", "BANDIT_UNIFORM", "BANDIT_REWARD", "BANDIT_POLICY", "BANDIT_ANCHOR", "BANDIT_TARGET"]
    assert [Purpose[name].seed >> 32 for name in bandit] == [1, 2, 3, 4, 6, 7]


def test_seeds_that_would_meet_another_purpose_are_refused():
    with pytest.raises(ValueError, match="seed in"):
        draws.key(2**32, Purpose.BANDIT_POLICY)
    assert draws.key(-1, Purpose.PRIOR) == 0x5EED_0000


@needs("scipy")
def test_normals_invert_the_normal_distribution_on_the_whole_grid():
    from scipy import special

    steps = np.concatenate([np.arange(0, 2**24, 4999), np.arange(500), 2**24 - 1 - np.arange(500)])
    z = np.asarray(draws.to_normal(tf.constant(steps * 2.0**-24, tf.float32)))
    np.testing.assert_allclose(z, special.ndtri((steps + 0.5) * 2.0**-24), rtol=1e-6, atol=1e-6)  # some ulps of float32
