"""Which examples train, stop and judge: never the same for one ensemble."""

import numpy as np
import pytest

from tf_ensembles.advice import splits


def make(n, validation=None):
    return splits.make_split(np.arange(n, dtype=np.float32)[:, None], np.arange(n), validation, seed=0)


def ids(examples):
    return set(examples.ids.tolist())


def test_small_data_take_turns():
    """442 rows, as scikit-learn's diabetes data: 5 folds of 80, and 42 that always train."""
    split = make(442)
    assert split.num_judging == 400
    assert [len(part.train) for part in split.parts] == [282] * 5
    judged = [row for part in split.parts for row in part.judge.ids]
    assert len(judged) == len(set(judged))
    for part in split.parts:
        assert not ids(part.train) & ids(part.stop)
        assert not ids(part.judge) & (ids(part.train) | ids(part.stop))
        assert len(ids(part.train) | ids(part.stop) | ids(part.judge)) == 442
    np.testing.assert_array_equal(split.parts[0].train.y, split.parts[0].train.ids)  # Ids name rows.


def test_large_data_are_split_into_three():
    (part,) = make(5000).parts
    assert (len(part.train), len(part.stop), len(part.judge)) == (3200, 800, 1000)
    assert len(ids(part.train) | ids(part.stop) | ids(part.judge)) == 5000


def test_given_validation_data_only_judge():
    given = (np.zeros((205, 1), np.float32), np.zeros(205, int))
    for count, to_stop in ((100, 20), (5000, 1000)):
        (part,) = make(count, given).parts
        assert (len(part.train), len(part.stop), len(part.judge)) == (count - to_stop, to_stop, 200)
        assert ids(part.train) | ids(part.stop) == set(range(count))


def test_an_even_number_of_blocks_judges():
    assert make(350, 5).num_judging == 340  # 35 blocks of ten, less one.


def test_few_examples_are_judged_in_pairs():
    split = make(90)
    assert (split.tau, split.num_judging) == (2, 88)  # 45 blocks of two, less one, in five folds of 18.
    assert make(100).tau == 10
    with pytest.raises(ValueError, match="at least 20 examples that judge"):
        make(19)
