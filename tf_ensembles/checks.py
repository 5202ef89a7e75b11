"""Where arguments enter: what is no number, no size or no array is refused in one line, before anything is computed.

Integers are integers, not 1.5 or True; numbers are finite; arrays hold real numbers, not text, objects, complex numbers
or rows of different lengths; and sizes fit in memory. All of these raise `ValueError` with both sides.
"""

from __future__ import annotations

import math
import numbers as abstract
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import machine

Floats = NDArray[np.float64]

LARGEST_INTEGER = 2**63 - 1
LARGEST_FLOAT = float(np.finfo(np.float64).max)
# Sums of millions of logits or squares of as many deviations stay below float64's largest number.
LARGEST_LOGIT, LARGEST_VALUE = 1e300, 1e150
LARGEST_SINGLE = 1e30  # of numbers that float32 computes with
SINGLE, SINGLE_BOTH = "(0, 1e+30]", "[1e-30, 1e+30]"
_LONGEST = 80  # characters of a value in an error
_UNKNOWN_MEMORY = 2**40


def shown(value: Any) -> str:
    """Returns a value as errors show it: one line of bounded length, arrays by dtype and shape."""
    if hasattr(value, "shape") and hasattr(value, "dtype") and np.ndim(value):
        return f"{getattr(value.dtype, 'name', value.dtype)} of shape {tuple(value.shape)}"
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # An integer of thousands of digits.
        text = type(value).__name__
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def integer(name: str, value: Any, least: int, most: int = LARGEST_INTEGER) -> int:
    """Returns an integer in [least, most], or raises."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"Expected {name} >= {least}, an integer. Received: {shown(value)}")
    if value > most:
        raise ValueError(f"Expected {name} <= {most}, an integer. Received: {shown(value)}")
    return int(value)


def sequence(name: str, values: Any, empty: bool = False) -> list[Any]:
    """Returns the entries of a list, tuple, range or array `[entries]`, at least one unless `empty`, or raises."""
    listed = isinstance(values, list | tuple | range) or (isinstance(values, np.ndarray) and values.ndim == 1)
    if not listed or (not len(values) and not empty):
        raise ValueError(f"Expected {name}, a sequence that is not empty. Received: {shown(values)}")
    return list(values)


def integers(name: str, values: Any, least: int, most: int = LARGEST_INTEGER, empty: bool = False) -> tuple[int, ...]:
    """Returns a sequence of integers in [least, most], at least one unless `empty`, or raises."""
    entries = enumerate(sequence(name, values, empty))
    return tuple(integer(f"{name}[{place}]", value, least, most) for place, value in entries)


def seed(value: Any) -> int:
    """Returns a seed, an integer in [0, 2**32), or raises."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**32:
        raise ValueError(f"Expected an integer seed in [0, 2**32). Received: {shown(value)}")
    return int(value)


def number(name: str, value: Any, interval: str = "(-inf, inf)") -> float:
    """Returns a finite number within an interval such as `"(0, 1]"` or `"[0, inf)"`, or raises."""
    value = value.item() if isinstance(value, np.number) else value  # float16 cannot be compared with large limits
    low, high = map(float, interval[1:-1].split(","))
    real: bool = isinstance(value, abstract.Real) and not isinstance(value, bool)
    real = real and bool(-LARGEST_FLOAT <= value <= LARGEST_FLOAT)
    above = real and (value > low or (value == low and interval[0] == "["))
    below = real and (value < high or (value == high and interval[-1] == "]"))
    if above and below:
        return float(value)
    if math.isinf(high):
        bound = "" if math.isinf(low) else f" {'>' if interval[0] == '(' else '>='} {low:g}"
        raise ValueError(f"Expected a finite {name}{bound}. Received: {shown(value)}")
    raise ValueError(f"Expected {name} in {interval}. Received: {shown(value)}")


def option(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raises unless a value is one of the choices."""
    if not (isinstance(value, str) and value in choices):
        raise ValueError(f"Expected {name} in {list(choices)}. Received: {shown(value)}")


def array(name: str, values: ArrayLike) -> NDArray[Any]:
    """Returns an array of real numbers in their own dtype, or raises."""
    try:
        read = np.asarray(values)
    except (ValueError, TypeError, OverflowError, NotImplementedError):
        raise ValueError(f"Expected {name}, an array of numbers. Received: {shown(values)}") from None
    if read.dtype.kind not in "biuf" and read.dtype.name != "bfloat16":
        received = shown(values) if read.ndim == 0 else shown(read)
        raise ValueError(f"Expected {name} of a real dtype. Received: {received}")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"Expected {name} without masked values. Received: {np.ma.getmaskarray(values).sum()} masked")
    return read


def floats(name: str, values: ArrayLike, largest: float = LARGEST_FLOAT) -> Floats:
    """Returns an array of finite numbers as float64, or raises.

    Args:
        name: of the argument.
        values: the argument.
        largest: the largest size of a number, for those that are squared or summed.
    """
    read = array(name, values).astype(np.float64, copy=False)
    check_range(name, read, largest)
    return read


def ids(name: str, values: ArrayLike) -> NDArray[np.int64]:
    """Returns integers `[ids]` as int64, one number as `[1]`, or raises."""
    read = np.atleast_1d(array(name, values))
    if read.ndim != 1 or not read.size or read.dtype.kind not in "iu" or read.max() > LARGEST_INTEGER:
        raise ValueError(f"Expected {name}, integers that are not empty. Received: {shown(read)}")
    return read.astype(np.int64)


def check_range(name: str, values: NDArray[Any], largest: float) -> None:
    """Raises on NaN, infinity and numbers beyond what can be computed with."""
    # Both ends carry NaN along, and need no array beside this one.
    if values.size and not (-largest <= float(values.min()) and float(values.max()) <= largest):
        num_bad = values.size - int(np.count_nonzero(np.isfinite(values)))
        if num_bad:
            raise ValueError(f"Expected finite {name}. Received: {num_bad} NaN or infinite of {values.size} values")
        raise ValueError(f"Expected {name} within ±{largest:g}. Received: {values.min():g} to {values.max():g}")


def check_result(what: str, result: Any, **received: Any) -> None:
    """Raises unless a result is finite: where arguments are so large or so small that computing with them overflows."""
    if not np.isfinite(result).all():
        given = ", ".join(f"{name}={_range(value)}" for name, value in received.items())
        raise ValueError(f"Expected arguments with which {what} can be computed in floating point. Received: {given}")


def _range(value: Any) -> str:
    read = np.asarray(value)
    return f"{read.min():.3g} to {read.max():.3g}" if read.ndim and read.size else shown(value)


def fits(count: int, what: str) -> None:
    """Raises unless so many float64 numbers fit in this machine's memory; `what` names the sizes that ask for them."""
    limit = machine.memory_bytes() or _UNKNOWN_MEMORY
    if 8 * count > limit:
        raise ValueError(
            f"Expected sizes that fit in memory, {limit / 2**30:.0f} GiB. Received: {what}, "
            f"which need {8 * count // 2**30} GiB"
        )
