"""Public functions and hostile arguments: a finite answer, or one clear line. See `fuzz` for what is tried."""

import warnings
import zlib

import numpy as np
import pytest

from tests import fuzz
from tests.fuzz_calls import CALLS

DEAR_EVERY = 6
PAIRS = 60  # of hostile arguments at once, for each function, in the slow test


def _usual(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return call.function(**call.arguments)


def _hostile(call):
    return {
        name: list(fuzz.mutations(value, call.optional(name)))
        for name, value in call.arguments.items()
        if name not in call.fixed
    }


def _faults(call, every):
    """What is wrong where one argument is hostile; of values that may be answered, every so many are tried."""
    usual, faults = _usual(call), {}
    for name, values in _hostile(call).items():
        answered = [value for value in values if not value.must_raise]
        for value in [value for value in values if value.must_raise] + answered[::every]:
            fault = fuzz.fault(call, {name: value}, usual)
            if fault is not None:
                faults[f"{name}={value.name}"] = fault
    return faults


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_every_argument_in_turn(call):
    assert _faults(call, DEAR_EVERY if call.dear else 1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("call", [call for call in CALLS if call.dear], ids=lambda call: call.name)
def test_every_argument_in_turn_where_it_takes_long(call):
    assert _faults(call, 1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_two_arguments_at_once(call):
    usual, hostile, rng = _usual(call), _hostile(call), np.random.default_rng(zlib.crc32(call.name.encode()))
    faults = {}
    for _ in range(PAIRS if len(hostile) > 1 else 0):
        names = rng.choice(sorted(hostile), 2, replace=False)
        changes = {name: hostile[name][rng.integers(len(hostile[name]))] for name in names}
        fault = fuzz.fault(call, changes, usual)
        if fault is not None:
            faults[", ".join(f"{name}={change.name}" for name, change in changes.items())] = fault
    assert faults == {}


def test_the_judge():
    """Each kind of fault is one that the judge names, and what is right has none."""

    def refuse(x):
        raise ValueError("Expected a number. Received: something else")

    def tall(x):
        raise ValueError("Expected a number.\nReceived: two lines")

    def curt(x):
        raise ValueError("no")

    def lost(x):
        raise IndexError("Expected this. Received: that")

    hostile = {"x": fuzz.Hostile("1e308", 1e308, False)}
    same = {"x": fuzz.Hostile("as a list", [1.0], False, same=True)}
    wrong = {"x": fuzz.Hostile("complex", 1j, True)}
    for function, changes, start in (
        (refuse, wrong, None),
        (refuse, hostile, None),
        (lambda x: 2.0, hostile, None),
        (lambda x: 1.0, same, None),
        (lambda x: 2.0, same, "another answer"),
        (lambda x: 1.0, wrong, "accepted in silence"),
        (lambda x: np.inf, hostile, "not finite"),
        (lambda x: {"a": (1.0, [np.nan])}, hostile, "not finite"),
        (lambda x: 1j, hostile, "complex answer"),
        (tall, hostile, "not one line"),
        (curt, hostile, "says not both sides"),
        (lost, hostile, "internal error IndexError"),
        (lambda x: np.linalg.inv(np.zeros((2, 2))), hostile, "internal error LinAlgError"),
        (lambda x: warnings.warn("It diverges.", stacklevel=1) or np.inf, hostile, None),
    ):
        found = fuzz.fault(fuzz.Call("f", function, {"x": 1.0}), changes, 1.0)
        assert found is None if start is None else str(found).startswith(start), (start, found)
