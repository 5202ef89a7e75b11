"""How `advise` trains one candidate: on every part of the split, looked at as it goes, and stopped by its own examples.

Looks are taken after 1, 2, 3, ... epochs, further and further apart. A look keeps what members say about the examples
that stop training and about those that judge. Which look counts is decided afterwards, by the joint NLL of the examples
that stop: no example has a say about the ensembles that it judges.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.advice import scores as scoring
from tf_ensembles.advice.splits import Examples, Part, Split
from tf_ensembles.ensemble import data
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.metrics.likelihood import Floats

Callbacks = Sequence[keras.callbacks.Callback] | Callable[[], Sequence[keras.callbacks.Callback]]
# Returns likelihoods `[examples, members]` and label noise `[examples]` or None.
Read = Callable[[Ensemble, Any, Any], tuple[Floats, Floats | None]]

_GROWTH = 1.25
# Training ends after so many looks without a better one: at twice the best number of epochs.
_PATIENCE = 4
# Random groupings over which the joint NLL of the examples that stop is averaged: few examples make few groups.
_NUM_ORDERS = 8
_PREDICTED_AT_ONCE = 256


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is the same for all trainings."""

    epochs: int
    batch_size: int
    tau: int
    seed: int
    callbacks: Callbacks | None
    read: Read


@dataclasses.dataclass(frozen=True)
class Trained:
    """What is kept of a candidate: likelihoods `[examples, members]` of all that judges, and label noise."""

    likelihood: Floats | None  # None if members diverged
    noise: Floats | None  # [examples]
    epochs: int  # the best number, by all examples that stop
    diverged: int


@dataclasses.dataclass(frozen=True)
class _Look:
    epoch: int
    stop: float  # joint NLL of the examples that stop; 0 if there are none
    judged: tuple[Floats, Floats | None] | None


def looks(epochs: int) -> Iterator[int]:
    """Yields the numbers of epochs after which to look."""
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
    curves: list[list[_Look]] = []
    for number, part in enumerate(split.parts):
        if number and model.frozen.any():  # A callback has stopped members, which is part of the compiled steps.
            model, start = make(), _Start()
        curves.append(_fit(model, part, settings, settings.epochs, start))
        step()
        if model.diverged.any():
            return Trained(None, None, 0, int(model.diverged.sum()))
    if split.whole is None:
        chosen = [_best(_others(curves, number)) for number in range(len(curves))]
        judged = [_at(curve, epoch).judged for curve, epoch in zip(curves, chosen, strict=True)]
    else:
        if model.frozen.any():
            model, start = make(), _Start()
        judged = [_fit(model, split.whole, settings, _best(curves), start)[-1].judged]
        step()
        if model.diverged.any():
            return Trained(None, None, 0, int(model.diverged.sum()))
    parts = [one for one in judged if one is not None]
    noises = [noise for _, noise in parts if noise is not None]
    return Trained(
        np.concatenate([likelihood for likelihood, _ in parts]),
        np.concatenate(noises) if noises else None,
        _best(curves),
        0,
    )


def _others(curves: list[list[_Look]], number: int) -> list[list[_Look]]:
    """The parts that may choose for a part: all but the one that is stopped by the examples that judge this one."""
    return [curve for other, curve in enumerate(curves) if len(curves) == 1 or (other + 1) % len(curves) != number]


def _best(curves: list[list[_Look]]) -> int:
    """Returns the number of epochs with the lowest mean joint NLL, of those that all parts have reached."""
    values: dict[int, list[float]] = {}
    for curve in curves:
        for look in curve:
            values.setdefault(look.epoch, []).append(look.stop)
    shared = {epoch: float(np.mean(listed)) for epoch, listed in values.items() if len(listed) == len(curves)}
    if not shared:  # Callbacks stopped each part at another epoch.
        shared = {look.epoch: look.stop for look in min(curves, key=lambda curve: curve[-1].epoch)}
    return min(shared, key=lambda epoch: (shared[epoch], epoch))


def _at(curve: list[_Look], epoch: int) -> _Look:
    """Returns the look after so many epochs, or the last one before."""
    return max((look for look in curve if look.epoch <= epoch), key=lambda look: look.epoch, default=curve[0])


def _fit(model: Ensemble, part: Part, settings: Settings, epochs: int, start: _Start) -> list[_Look]:
    """Trains an ensemble from its start and returns what was seen of it."""
    own = _copied(settings.callbacks)
    looking = _Looks(part, settings, epochs, keep_last=bool(own))
    stop = part.stop if own else None  # Callbacks may go by the validation loss.
    model.fit(
        data.with_ids(part.train.x, part.train.ids),
        part.train.y,
        epochs=epochs,
        batch_size=settings.batch_size,
        validation_data=None if stop is None else (stop.x, stop.y),
        # The start comes before what callbacks change at the beginning, the last look after what they do at the end.
        callbacks=[start, *own, looking],
        verbose=0,
    )
    return looking.curve


def _copied(callbacks: Callbacks | None) -> list[keras.callbacks.Callback]:
    """New callbacks for each training: those that have seen one remember it."""
    if callbacks is None:
        return []
    if callable(callbacks):
        return list(callbacks())
    try:
        return copy.deepcopy(list(callbacks))
    except Exception as error:
        raise ValueError(
            "Expected callbacks that can be copied, or a function that returns new ones for each training. "
            f"Received: {[type(callback).__name__ for callback in callbacks]}"
        ) from error


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


class _Looks(keras.callbacks.Callback):
    """Looks at an ensemble in training, and ends it when looks get no better."""

    def __init__(self, part: Part, settings: Settings, epochs: int, keep_last: bool) -> None:
        super().__init__()
        self.curve: list[_Look] = []
        self._part, self._settings, self._keep_last = part, settings, keep_last
        self._when = set(looks(epochs)) if part.stop is not None else {epochs}
        self._epoch = 0
        if part.stop is not None:
            self._tau = min(settings.tau, len(part.stop))
            random = np.random.default_rng(settings.seed)
            used = len(part.stop) // self._tau * self._tau
            self._orders = [random.permutation(len(part.stop))[:used] for _ in range(_NUM_ORDERS)]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Looks if it is time, and ends training if looking has not paid for long."""
        self._epoch = epoch + 1
        if self._epoch not in self._when or self.model.diverged.any():
            return
        self._look()
        best = int(np.argmin([look.stop for look in self.curve]))
        if self._part.stop is not None and len(self.curve) - 1 - best >= _PATIENCE:
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Looks once more if callbacks ended training, or may have changed weights at its end."""
        if self.model.diverged.any():
            return
        if self.curve and self.curve[-1].epoch == self._epoch:
            if not self._keep_last:
                return
            self.curve.pop()
        self._look()

    def _look(self) -> None:
        stop = judged = None
        if self._part.stop is not None:
            likelihood, _ = self._read(self._part.stop)
            groups = [scoring.joint_scores(likelihood[order][:, None], self._tau)[0] for order in self._orders]
            stop = float(np.mean(groups))
        if self._part.judge is not None:
            judged = self._read(self._part.judge)
        worst = math.inf if stop is not None else 0.0
        self.curve.append(_Look(self._epoch, stop if stop is not None and math.isfinite(stop) else worst, judged))

    def _read(self, examples: Examples) -> tuple[Floats, Floats | None]:
        # Batch by batch: `predict` would make a new dataset at each look, which takes longer than small ensembles do.
        starts = range(0, len(examples), _PREDICTED_AT_ONCE)
        batches = [
            self.model.predict_on_batch(
                tf.nest.map_structure(lambda leaf: leaf[at : at + _PREDICTED_AT_ONCE], examples.x)  # noqa: B023
            )
            for at in starts
        ]
        return self._settings.read(self.model, np.concatenate(batches), examples.y)
