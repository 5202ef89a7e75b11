"""Where arguments enter: what passes, and the line that refuses what does not."""

import math
from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from tf_ensembles import checks, machine


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3), np.int64(3)])
def test_integers_are_those_of_python(value):
    assert type(checks.integer("n", value, 1)) is int
    assert checks.integer("n", value, 1) == 3
    assert checks.seed(value) == 3


@pytest.mark.parametrize("value", [1.5, 3.0, True, np.True_, "3", None, [3], np.array([3]), math.nan, 3 + 0j])
def test_what_is_no_integer(value):
    with pytest.raises(ValueError, match=r"^Expected n >= 1, an integer\. Received: .+$"):
        checks.integer("n", value, 1)
    with pytest.raises(ValueError, match=r"^Expected an integer seed in \[0, 2\*\*32\)\. Received: .+$"):
        checks.seed(value)


def test_integers_beyond_their_limits():
    with pytest.raises(ValueError, match=r"n >= 1, an integer. Received: 0"):
        checks.integer("n", 0, 1)
    with pytest.raises(ValueError, match=r"n <= 9, an integer. Received: 10"):
        checks.integer("n", 10, 1, 9)
    with pytest.raises(ValueError, match=r"n <= 9223372036854775807, an integer. Received: int"):
        checks.integer("n", 10**5000, 1)  # Python refuses to print it.
    with pytest.raises(ValueError, match=r"sizes\[1\] >= 1, an integer. Received: 0"):
        checks.integers("sizes", (4, 0), 1)
    assert checks.integers("sizes", range(1, 4), 1) == (1, 2, 3)
    assert checks.integers("sizes", (), 1, empty=True) == ()


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, 1]", [0.5, 1, np.float16(0.5), Fraction(1, 3)], [0.0, 1.1, -1]),
        ("[0, 1)", [0, 0.5], [1.0, -0.1]),
        ("(0, inf)", [5e-324, 1e308, 10**300], [0.0, -1.0]),
        ("(-inf, inf)", [-1e308, 0], []),
    ],
)
def test_numbers_lie_in_their_interval(interval, inside, outside):
    for value in inside:
        assert checks.number("x", value, interval) == float(value)
        assert type(checks.number("x", value, interval)) is float
    for value in [*outside, math.nan, math.inf, -math.inf, 10**400, True, "0.5", None, 1j, [0.5], np.array([0.5])]:
        with pytest.raises(ValueError, match=r"^Expected .*x.*\. Received: .+$"):
            checks.number("x", value, interval)


@pytest.mark.parametrize(
    "value",
    [[1, 2], np.float16([1.0]), np.array([True]), tf.constant([1.0]), tf.constant([1.0], tf.bfloat16), [[1.0]], 3.0],
)
def test_arrays_of_numbers_pass_as_they_are(value):
    np.testing.assert_array_equal(checks.array("x", value), np.asarray(value))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        object(),
        {"a": 1},
        [1.0, None],
        [[1.0], [2.0, 3.0]],
        np.array([1j]),
        np.array(["a"]),
        np.zeros(2, "datetime64[s]"),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        [10**30],
        np.zeros(2, [("a", float)]),
    ],
)
def test_what_is_no_array_of_numbers(value):
    with pytest.raises(ValueError, match=r"^Expected .*x.* Received: .+$") as raised:
        checks.array("x", value)
    assert len(str(raised.value)) < 200


def test_numbers_that_cannot_be_computed_with():
    x = np.arange(6.0).reshape(2, 3)
    assert checks.floats("x", x) is x  # nothing is copied
    for bad, words in (
        (math.nan, "1 NaN or infinite of 6"),
        (-math.inf, "1 NaN or infinite"),
        (1e200, "0 to 1e\\+200"),
    ):
        spoiled = np.where(x == 5.0, bad, x)
        with pytest.raises(ValueError, match=words):
            checks.floats("x", spoiled, 1e150)
    checks.check_range("x", np.float32([1e38]), 1e300)  # no overflow where the limit is beyond the dtype
    with pytest.raises(ValueError, match=r"with which a score can be computed.* Received: x=1e-320, y=1 to 3"):
        checks.check_result("a score", [1.0, np.inf], x=1e-320, y=np.array([1.0, 3.0]))


def test_sizes_are_compared_with_the_memory(monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 16 * 2**30)
    checks.fits(2**31, "n=2147483648")  # 16 GiB
    with pytest.raises(ValueError, match=r"fit in memory, 16 GiB. Received: n=10, which need 17 GiB"):
        checks.fits(2**31 + 2**27, "n=10")
    with pytest.raises(ValueError, match="Received: n=10"):
        checks.fits(10**30, "n=10")
    monkeypatch.setattr(machine, "memory_bytes", lambda: None)
    checks.fits(2**36, "n")
    with pytest.raises(ValueError, match="fit in memory, 1024 GiB"):
        checks.fits(2**40, "n")
