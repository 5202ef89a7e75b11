"""Hostile arguments for public functions, and what may come of them.

A call is a function and arguments with which it works. Each argument in turn is replaced by values that a user may
pass by mistake. Allowed is a finite answer, or a `ValueError` or `TypeError` of one line that says what was expected
and what was received. Where an answer cannot be right, as for complex numbers, it has to be an error.
"""

import contextlib
import dataclasses
import inspect
import math
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

SECONDS = 15.0
HUGE = 10**12
LONGEST = 600  # characters of an error


@dataclasses.dataclass(frozen=True)
class Call:
    """A function with arguments that it accepts."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    fixed: tuple[str, ...] = ()  # arguments that are left alone
    infinite: tuple[str, ...] = ()  # arguments for which an infinite or NaN answer is documented
    dear: bool = False  # whether an answer takes long: then most values that may be answered are for the slow test
    accepted: tuple[tuple[str, str], ...] = ()  # arguments with names of values that are documented as good ones

    def optional(self, argument: str) -> bool:
        """Whether None is a documented value of the argument."""
        parameter = inspect.signature(self.function).parameters.get(argument)
        return parameter is not None and parameter.default is None


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A value that is no good, or may be none."""

    name: str
    value: Any
    must_raise: bool
    same: bool = False  # whether it holds the same numbers, so that the answer has to be the same


class TooLongError(BaseException):
    """A call took more than `SECONDS`."""


def mutations(value: Any, optional: bool) -> Iterator[Hostile]:
    """Yields hostile values in place of a good one."""
    yield Hostile("None", None, not optional)
    yield Hostile("object", object(), True)
    yield Hostile("complex", 1.0 + 2.0j, True)
    yield Hostile("dict", {"a": 1}, True)
    if isinstance(value, str):
        yield from (Hostile(str(wrong), wrong, True) for wrong in ("nonsense", "", 3, b"bytes"))
        return
    yield Hostile("text", "3", True)
    if isinstance(value, bool) or callable(value):
        return
    if isinstance(value, int | np.integer):
        yield from _integers()
    elif isinstance(value, float):
        yield from _floats()
    elif isinstance(value, np.ndarray):
        yield from _arrays(value)


def _integers() -> Iterator[Hostile]:
    for name, value in (("NaN", math.nan), ("inf", math.inf), ("1.5", 1.5), ("True", True), ("1e308", 1e308)):
        yield Hostile(name, value, True)
    yield Hostile("list", [1, 2], True)
    yield from (Hostile(str(value), value, False) for value in (-1, 0, HUGE, -HUGE, 2**63, 10**30))
    yield Hostile("int8", np.int8(2), False)


def _floats() -> Iterator[Hostile]:
    yield Hostile("NaN", math.nan, True)
    yield Hostile("list", [0.5, 0.6], True)
    for value in (math.inf, -math.inf, -1.0, 0.0, 1e308, -1e308, 5e-324, 10**400):
        yield Hostile("10**400" if value == 10**400 else str(value), value, False)
    yield Hostile("float16", np.float16(6e4), False)
    yield Hostile("array", np.array(0.5), False)


def _arrays(value: np.ndarray) -> Iterator[Hostile]:
    numeric = value.dtype.kind in "iuf"
    yield Hostile("complex array", value.astype(np.complex128) + 2.0j, True)
    yield Hostile("text array", np.full(value.shape, "a"), True)
    yield Hostile("object array", np.full(value.shape, None, object), True)
    yield Hostile("ragged", [[1.0, 2.0], [3.0]], True)
    yield Hostile("dates", np.zeros(value.shape, "datetime64[s]"), True)
    yield Hostile("masked", np.ma.masked_array(value, np.arange(value.size).reshape(value.shape) % 2 == 0), True)
    for name, wrong in (
        ("empty", value[:0]),
        ("no axes", value.reshape(-1)[0]),
        ("one axis more", value[..., None]),
        ("one axis less", value[0]),
        ("axis before", value[None]),
        ("one row less", value[:-1]),
        ("one column less", value[..., :-1]),
        ("zeros", np.zeros_like(value)),
        ("minus", -value.astype(np.float64)),
        ("int8", np.full(value.shape, 100, np.int8)),
        ("uint8", np.full(value.shape, 200, np.uint8)),
        ("bools", value > 0),
        ("float16", np.full(value.shape, 6e4, np.float16)),
        ("same numbers", np.ones_like(value)),
        ("1e308", np.full(value.shape, 1e308)),
        ("huge and tiny", np.where(np.arange(value.size).reshape(value.shape) % 2, 1e308, -1e308)),
        ("5e-324", np.full(value.shape, 5e-324)),
        ("1e160", np.full(value.shape, 1e160)),
    ):
        yield Hostile(name, wrong, False)
    if not numeric:
        return
    for name, one in (("NaN", math.nan), ("inf", math.inf), ("-inf", -math.inf)):
        spoiled = value.astype(np.float64)
        spoiled.flat[0] = one
        yield Hostile(name, spoiled, True)
    yield Hostile("as a list", value.tolist(), False, same=True)
    yield Hostile("columns first", np.asfortranarray(value), False, same=True)
    yield Hostile("other bytes", value.astype(value.dtype.newbyteorder()), False, same=True)
    yield Hostile("tensor", tf.constant(value), False, same=True)
    yield Hostile("every second", np.repeat(value, 2, axis=0)[::2], False, same=True)


def leaves(result: Any) -> list[np.ndarray]:
    """Returns all numbers in an answer, however it is nested."""
    if result is None or isinstance(result, str | bytes) or (callable(result) and not dataclasses.is_dataclass(result)):
        return []
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        result = [getattr(result, field.name) for field in dataclasses.fields(result)]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list | tuple):
        return [leaf for part in result for leaf in leaves(part)]
    array = np.asarray(result)
    return [array] if array.dtype.kind in "biufc" else []


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises within what takes longer."""

    def stop(*_: Any) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(call: Call, changes: dict[str, Hostile], usual: Any) -> str | None:
    """Returns what is wrong about the answer to a call with hostile arguments, or None.

    Args:
        call: what is called.
        changes: hostile values by argument.
        usual: the answer to the good arguments.
    """
    arguments = call.arguments | {name: hostile.value for name, hostile in changes.items()}
    start = time.monotonic()
    try:
        with limited(SECONDS), warnings.catch_warnings(record=True) as said, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            result = call.function(**arguments)
            numbers = leaves(result)
    except (ValueError, TypeError) as error:
        return _wrong_words(error)
    except TooLongError:
        return f"over {SECONDS:.0f} s"
    except Exception as error:
        return f"internal error {type(error).__name__}: {str(error)[:100]}"
    if time.monotonic() - start > SECONDS:
        return f"over {SECONDS:.0f} s"
    if any(hostile.must_raise and (name, hostile.name) not in call.accepted for name, hostile in changes.items()):
        return f"accepted in silence: {repr(result)[:100]}"
    if any(array.dtype.kind == "c" for array in numbers):
        return "complex answer"
    spoken = any(issubclass(one.category, UserWarning) for one in said)
    if not spoken and not set(changes) & set(call.infinite):
        usual_finite = [np.isfinite(array).all() for array in leaves(usual)]
        finite = [np.isfinite(array).all() for array in numbers]
        if not all(finite) and all(usual_finite):
            return f"not finite: {repr(result)[:100]}"
    if all(hostile.same for hostile in changes.values()) and not _equal(leaves(usual), numbers):
        return f"another answer: {repr(result)[:100]}"
    return None


def _wrong_words(error: Exception) -> str | None:
    text = str(error)
    if isinstance(error, UnicodeError) or type(error) not in (ValueError, TypeError):
        return f"internal error {type(error).__name__}: {text[:100]}"
    if "Expected" not in text or "Received" not in text:
        return f"says not both sides: {type(error).__name__}: {text[:100]}"
    if "\n" in text or len(text) > LONGEST:
        return f"not one line: {text[:100]!r}"
    return None


def _equal(usual: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(usual) == len(other) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True)
        for a, b in zip(usual, other, strict=True)
    )
