"""oneDNN, which makes convolutions on CPUs fast: whether TensorFlow uses it, and how our own processes ask for it.

TensorFlow decides when it is imported: by a variable of the environment, else by the processor (on where it has
AVX512-VNNI or AMX). A library must not decide for its users, so importing ours never sets the variable. Our command and
the workers of sweeps are processes of our own, and do, unless their user has.

Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import os
import sys

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"

_preferred = False  # whether `prefer` set the variable of this process


def prefer() -> None:
    """Switches oneDNN on in this process, unless its user has decided, or TensorFlow is there already."""
    global _preferred
    if VARIABLE not in os.environ and "tensorflow" not in sys.modules:
        os.environ[VARIABLE] = "1"
        _preferred = True


def variables() -> dict[str, str]:
    """Returns what a process that this one starts should find in its environment."""
    return {VARIABLE: os.environ.get(VARIABLE, "1")}


def is_on() -> bool:
    """Whether TensorFlow computes convolutions by oneDNN; imports TensorFlow."""
    from tensorflow.python.util import _pywrap_util_port  # There is no public way to ask.

    return bool(getattr(_pywrap_util_port, "IsMklEnabled", bool)())


def explain() -> str:
    """Returns whether oneDNN is on, and why; imports TensorFlow."""
    on, value = is_on(), os.environ.get(VARIABLE)
    state = "on" if on else "off"
    if value is None:
        return f"{state}: TensorFlow's choice for this processor"
    if on != (value.strip() not in ("0", "false", "False")):
        return f"{state}: whatever {VARIABLE} says, this TensorFlow was built so, or imported before"
    if _preferred:
        return f"{state}: this command's choice; {VARIABLE}=0 switches it off"
    return f"{state}: {VARIABLE}={value} in the environment"
