"""Which examples train, stop and judge: never the same for one ensemble."""

import numpy as np
import pytest

from tf_ensembles.advice import splits


def make(n, given=None, folds=None, stops=True, fraction=0.2, tau=10):
    x, y = np.arange(n, dtype=np.float32)[:, None], np.arange(n)
    return splits.make_split(x, y, fraction, given, folds, stops, seed=0, tau=tau)


def ids(examples):
    return set() if examples is None else set(examples.ids.tolist())


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
    split = make(100, given)
    assert [part.judge for part in split.parts] == [None] * 5
    assert sorted(row for part in split.parts for row in part.stop.ids) == list(range(100))
    assert (len(split.whole.train), split.whole.stop, len(split.whole.judge)) == (100, None, 200)
    (part,) = make(5000, given).parts
    assert (len(part.train), len(part.stop), len(part.judge)) == (4000, 1000, 200)
    (part,) = make(100, given, stops=False).parts
    assert (len(part.train), part.stop) == (100, None)


def test_an_even_number_of_blocks_judges():
    assert make(350, folds=5).num_judging == 340  # 35 blocks of ten, less one.


def test_too_few_are_refused():
    with pytest.raises(ValueError, match="at least 100 examples that judge for tau=10"):
        make(90)
    assert make(90, tau=2).num_judging == 88  # 45 blocks of two, less one, in five folds of 18.
