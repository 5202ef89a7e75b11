"""How `advise` trains one candidate: on every part of the split, evaluated as it goes, and stopped by its own examples.

Checkpoints are taken after 1, 2, 3, ... epochs, further and further apart. A checkpoint keeps the members' likelihoods
of the examples that judge, and the score of those that stop training. Which checkpoint counts is decided afterwards, by
the joint NLL of the examples that stop: no example has a say about the ensembles that it judges.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.advice import scores as scoring
from tf_ensembles.advice.splits import Examples, Part, Split
from tf_ensembles.ensemble import data
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.metrics.likelihood import Floats

# Returns likelihoods `[examples, members]` and label noise `[examples]` or None.
Read = Callable[[Ensemble, Any, Any], tuple[Floats, Floats | None]]

_GROWTH = 1.25
# Training ends after so many checkpoints without a better one: at twice the best number of epochs.
_PATIENCE = 4
# Random groupings over which the joint NLL of the examples that stop is averaged: few examples make few groups.
_NUM_ORDERS = 8
_PREDICTED_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is the same for all trainings."""

    epochs: int
    batch_size: int
    seed: int
    read: Read


@dataclasses.dataclass(frozen=True)
class Trained:
    """What is kept of a candidate: likelihoods `[examples, members]` of all that judges, and label noise."""

    likelihood: Floats | None  # None if members diverged
    noise: Floats | None  # [examples]
    epochs: int  # the best number, by all examples that stop
    diverged: int


@dataclasses.dataclass(frozen=True)
class _Checkpoint:
    epoch: int
    stop: float  # joint NLL of the examples that stop
    likelihood: Floats  # of the examples that judge
    noise: Floats | None


def checkpoints(epochs: int) -> Iterator[int]:
    """Yields the numbers of epochs after which to evaluate."""
    epoch = 1
    while epoch < epochs:
        yield epoch
        epoch = max(epoch + 1, math.ceil(_GROWTH * epoch))
    yield epochs


def train(make: Callable[[], Ensemble], split: Split, settings: Settings, step: Callable[[], Any]) -> Trained:
    """Trains a candidate on every part.

    Args:
        make: returns the compiled ensemble, untrained.
        split: from `splits.make_split`.
        settings: the same for all candidates.
        step: called after each training.
    """
    model, start = make(), _Start()
    curves: list[list[_Checkpoint]] = []
    for part in split.parts:
        evaluation = _Evaluation(part, settings, split.tau)
        model.fit(
            data.with_ids(part.train.x, part.train.ids),
            part.train.y,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            callbacks=[start, evaluation],
            verbose=0,
        )
        curves.append(evaluation.curve)
        step()
        if model.diverged.any():
            return Trained(None, None, 0, int(model.diverged.sum()))
    judged = [_at(curve, _best(_others(curves, number))) for number, curve in enumerate(curves)]
    noises = [checkpoint.noise for checkpoint in judged if checkpoint.noise is not None]
    likelihood = np.concatenate([checkpoint.likelihood for checkpoint in judged])
    return Trained(likelihood, np.concatenate(noises) if noises else None, _best(curves), 0)


def _others(curves: list[list[_Checkpoint]], number: int) -> list[list[_Checkpoint]]:
    """The parts that may choose for a part: all but the one that is stopped by the examples that judge this one."""
    return [curve for other, curve in enumerate(curves) if len(curves) == 1 or (other + 1) % len(curves) != number]


def _best(curves: list[list[_Checkpoint]]) -> int:
    """Returns the number of epochs with the lowest mean joint NLL, of those that all parts have reached."""
    shortest = min(curves, key=len)
    means = {
        checkpoint.epoch: float(np.mean([curve[number].stop for curve in curves]))
        for number, checkpoint in enumerate(shortest)
    }
    return min(means, key=lambda epoch: (means[epoch], epoch))


def _at(curve: list[_Checkpoint], epoch: int) -> _Checkpoint:
    """Returns the checkpoint after so many epochs, or the last one before."""
    return [checkpoint for checkpoint in curve if checkpoint.epoch <= epoch][-1]


class _Start(keras.callbacks.Callback):
    """Puts an ensemble back to where it started: compiled once, it is trained on every part."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Keeps all variables the first time, and restores them from then on."""
        variables = [*self.model.variables, *self.model.optimizer.variables]
        if self._kept is None:
            self._kept = [np.array(variable) for variable in variables]
        else:
            for variable, value in zip(variables, self._kept, strict=True):
                variable.assign(value)


class _Evaluation(keras.callbacks.Callback):
    """Evaluates an ensemble in training, and ends it when checkpoints get no better."""

    def __init__(self, part: Part, settings: Settings, tau: int) -> None:
        super().__init__()
        self.curve: list[_Checkpoint] = []
        self._part, self._settings, self._tau = part, settings, min(tau, len(part.stop))
        self._epochs = set(checkpoints(settings.epochs))
        random = np.random.default_rng(settings.seed)
        used = len(part.stop) // self._tau * self._tau
        self._orders = [random.permutation(len(part.stop))[:used] for _ in range(_NUM_ORDERS)]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Evaluates if it is time, and ends training if that has not paid for long."""
        if epoch + 1 not in self._epochs or self.model.diverged.any():
            return
        likelihood, _ = self._read(self._part.stop)
        groups = [scoring.joint_scores(likelihood[order][:, None], self._tau)[0] for order in self._orders]
        stop = float(np.mean(groups))
        judged = self._read(self._part.judge)
        self.curve.append(_Checkpoint(epoch + 1, stop if math.isfinite(stop) else math.inf, *judged))
        best = int(np.argmin([checkpoint.stop for checkpoint in self.curve]))
        if len(self.curve) - 1 - best >= _PATIENCE:
            self.model.stop_training = True

    def _read(self, examples: Examples) -> tuple[Floats, Floats | None]:
        # Batch by batch: `predict` would make a new dataset each time, which takes longer than small ensembles do.
        starts = range(0, len(examples), _PREDICTED_AT_ONCE)
        batches = [
            self.model.predict_on_batch(
                tf.nest.map_structure(lambda leaf: leaf[at : at + _PREDICTED_AT_ONCE], examples.x)  # noqa: B023
            )
            for at in starts
        ]
        return self._settings.read(self.model, np.concatenate(batches), examples.y)
