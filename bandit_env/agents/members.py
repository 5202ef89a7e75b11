"""Members of a `tfe.Ensemble` as models of an agent: what they have to take and give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_ensembles.ensemble import losses
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.linear.inputs import Tensor
from tf_ensembles.metrics.kinds import Kind


def check_compiled(ensemble: Any) -> None:
    """Raises unless it is an ensemble that has been compiled."""
    if not isinstance(ensemble, Ensemble) or not ensemble.compiled:
        raise ValueError(f"Expected a tfe.Ensemble that has been compiled. Received: {ensemble!r}")


def check_inputs(ensemble: Ensemble, shape: Any, words: str) -> None:
    """Raises unless members, where they know their inputs, take examples of this shape.

    Args:
        ensemble: of the members.
        shape: of an example.
        words: what it consists of, for the message.
    """
    if ensemble.members is None and ensemble.trunk is None:
        return  # They take what they are shown first.
    specs = ensemble.input_specs()
    single = isinstance(specs, tuple) and len(specs) == 2 and isinstance(specs[1], str)
    if not single or not tf.TensorShape(specs[0][1:]).is_compatible_with(shape):
        received = list(specs[0][1:]) if single else specs
        raise ValueError(f"Expected members whose input is {words}. Received: members with inputs {received}")


def values_loss(ensemble: Ensemble) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the loss that the ensemble was compiled with as a function of targets and values, number by number."""
    loss = losses.as_loss(ensemble.loss)
    if losses.kind_of(loss, None) is not Kind.VALUES or not losses.is_per_example(loss):
        raise ValueError(f'Expected one of Keras\'s losses for values, such as "mse" or "huber". Received: {loss.name}')
    return lambda target, value: loss.call(target[..., tf.newaxis], value[..., tf.newaxis])
