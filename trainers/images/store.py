"""The files of members, one folder each, named by the hash of the member's configuration.

    STORE/3f9c.../config.json       what the member is
                  checkpoint.npz    how far its training is; gone once it is finished
                  predictions.npz   its test logits [examples, classes] and the labels [examples]
                  weights.npz       its variables and its prior's, unless they are not to be kept
                  result.json       written last: the member is finished, with checksums of the two files above
                  failure.json      why its training was given up

Every file appears whole or not at all, so a process may be killed anywhere. All but config.json, which is its folder's
name spelled out, carry a checksum (`tf_ensembles.files`). STORE is a folder of this machine or an address such as
`gs://bucket/members` (`stores`). Importing this module imports no TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import files
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.images.config import MemberConfig

CONFIG, CHECKPOINT, PREDICTIONS = "config.json", "checkpoint.npz", "predictions.npz"
WEIGHTS, RESULT, FAILURE, LOCK = "weights.npz", "result.json", "failure.json", stores.LOCK

# What using a damaged file may raise.
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)

_log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]


class MemberError(ValueError):
    """A member that cannot be used, and what to do about it."""


class MemberBusyError(MemberError):
    """A member that another process trains now."""


class State(enum.Enum):
    """How far a member is."""

    ABSENT = "absent"
    PARTIAL = "partial"
    FINISHED = "finished"
    FAILED = "failed"
    CORRUPT = "corrupt"


@dataclasses.dataclass(frozen=True)
class Status:
    """A member's state, the steps it has made and, if it failed or is corrupt, why."""

    state: State
    steps: int = 0
    reason: str = ""


class MemberFiles:
    """The folder of one member."""

    def __init__(self, root: str | os.PathLike[str], config: MemberConfig):
        self.config = config
        self._place = stores.place(root, config.key)
        self.folder = self._place.folder  # of an object store: the cache of it

    def __str__(self) -> str:
        return f"member {self.config.member} ({self.config.key})"

    @contextlib.contextmanager
    def locked(self, wait: bool = True) -> Iterator[None]:
        """Waits for its turn, or raises `MemberBusyError`: one process trains a member at a time."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(self._place.claimed(wait))
            except stores.BusyError:
                raise MemberBusyError(f"Expected {self} to be free. Received: another process trains it") from None
            yield

    def is_busy(self) -> bool:
        """Whether another process trains the member now."""
        return self._place.is_claimed()

    def begin(self) -> None:
        """Writes what the member is."""
        if not (self.folder / CONFIG).exists():
            with files.atomic_path(self.folder / CONFIG) as temporary:
                temporary.write_text(json.dumps(self.config.to_dict(), indent=1) + "\n")
        self._place.commit(CONFIG)

    # Training under way.

    def save_checkpoint(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Writes how far the training is."""
        files.write_arrays(self.folder / CHECKPOINT, {"step": np.asarray(step), **arrays})
        self._place.commit(CHECKPOINT)

    def load_checkpoint(self) -> tuple[int, Arrays] | None:
        """Returns the step and the state of the training; None without a checkpoint, or with a damaged one (logged)."""
        self._place.fetch(CHECKPOINT)
        try:
            arrays = files.read_arrays(self.folder / CHECKPOINT)[0]
            return int(arrays.pop("step")), arrays
        except FileNotFoundError:
            return None
        except _DAMAGE as error:
            _log.warning("%s: its checkpoint is damaged, so its training begins anew: %s", self, error)
            return None

    def fail(self, step: int, reason: str) -> None:
        """Gives the training up, which only `reset` takes back."""
        files.write_json(self.folder / FAILURE, {"steps": step, "reason": reason})
        self._place.commit(FAILURE)
        self._place.remove(CHECKPOINT)

    def finish(
        self,
        result: Mapping[str, Any],
        logits: NDArray[np.float32],
        labels: NDArray[np.int32],
        weights: Mapping[str, NDArray[Any]] | None,
    ) -> None:
        """Writes the finished member.

        Args:
            result: scalars to remember.
            logits: of the test set, `[examples, classes]`.
            labels: of the test set, `[examples]`.
            weights: the member's variables and its prior's; None where they are not to be kept.
        """
        contents = {PREDICTIONS: {"logits": logits, "labels": labels}}
        contents |= {} if weights is None else {WEIGHTS: dict(weights)}
        checksums = {}
        for name, arrays in contents.items():
            files.write_arrays(self.folder / name, arrays)
            checksums[name] = files.checksum(self.folder / name)
        files.write_json(self.folder / RESULT, {**result, "checksums": checksums})
        self._place.commit(*contents, RESULT)
        self._place.remove(CHECKPOINT, FAILURE)

    def reset(self) -> None:
        """Removes all that was computed, so that the member is trained anew."""
        self._place.remove(RESULT, FAILURE, CHECKPOINT, PREDICTIONS, WEIGHTS)  # The result first: it says "finished".

    def reset_if_broken(self) -> Status:
        """Resets the member where it failed, or where one of its files is damaged; returns how it was."""
        status = self.status(verify=True)
        if status.state in (State.FAILED, State.CORRUPT):
            with self.locked():
                self.reset()
        return status

    # Finished members.

    def result(self) -> dict[str, Any] | None:
        """Returns the scalars of a finished member, or None. A result that cannot be read raises."""
        result = self._result()
        return result and {name: value for name, value in result.items() if name != "checksums"}

    def _result(self) -> dict[str, Any] | None:
        """The content of the result, checked."""
        path = self.folder / RESULT
        self._place.fetch(RESULT, PREDICTIONS)
        if not os.path.lexists(path):
            return None
        try:
            result = files.read_json(path)[0]
            if unknown := set(result["checksums"]) - {PREDICTIONS, WEIGHTS}:
                raise ValueError(f"checksums of {', '.join(sorted(map(str, unknown)))}")
            if type(result["steps"]) is not int:
                raise ValueError(f"{result['steps']!r} steps")
            self._check_size(PREDICTIONS, result["checksums"][PREDICTIONS])
        except _DAMAGE as error:
            raise self._corrupt(error) from None
        return result

    def predictions(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Returns test logits `[examples, classes]` and labels `[examples]` of a finished member, verified."""
        arrays = self._verified(PREDICTIONS)
        return arrays["logits"], arrays["labels"]

    def weights(self) -> Arrays:
        """Returns the variables of a finished member and of its prior, verified."""
        return self._verified(WEIGHTS)

    def _verified(self, name: str) -> Arrays:
        result = self._result()
        if result is None:
            raise MemberError(f"Expected {self} to be finished. Received: {self.status().state.value} in {self.folder}")
        if name not in result["checksums"]:
            raise MemberError(f"Expected {self} to have kept {name}. Received: a member trained without keeping it")
        self._check(name, result["checksums"][name])
        try:
            return files.read_arrays(self.folder / name)[0]
        except _DAMAGE as error:
            raise self._corrupt(error) from None

    def _check(self, name: str, expected: str) -> None:
        try:
            self._place.fetch(name)
            if files.checksum(self.folder / name) != expected:
                raise ValueError(f"{name} is not what was written")
        except _DAMAGE as error:
            raise self._corrupt(error) from None

    def _check_size(self, name: str, expected: str) -> None:
        size = (self.folder / name).stat().st_size
        if size != int(expected.split("-")[0]):
            raise ValueError(f"{name} has {size} bytes instead of {expected.split('-')[0]}")

    def _corrupt(self, error: Exception) -> MemberError:
        return MemberError(
            f"Expected the files of {self} in {self.folder} to be whole. Received: {error}. Train it again with "
            f"'tf-ensembles cifar10 train ... --retrain {self.config.member}'"
        )

    def status(self, verify: bool = False) -> Status:
        """Returns how far the member is.

        Args:
            verify: whether to read the files of a finished member, its weights as well, and compare their checksums.
        """
        try:
            result = self._result()
            if result is not None:
                for name, expected in result["checksums"].items() if verify else ():
                    self._check(name, expected)
                return Status(State.FINISHED, result["steps"])
        except MemberError as error:
            return Status(State.CORRUPT, reason=str(error))
        self._place.fetch(FAILURE, CONFIG)
        if os.path.lexists(self.folder / FAILURE):
            try:
                failure = files.read_json(self.folder / FAILURE)[0]
                return Status(State.FAILED, int(failure["steps"]), str(failure["reason"]))
            except _DAMAGE as error:
                return Status(State.FAILED, reason=f"unknown: {error}")
        if not (self.folder / CONFIG).exists():
            return Status(State.ABSENT)
        return self._partial(verify)

    def _partial(self, verify: bool) -> Status:
        """How far a training under way is: a quick look reads one number of the checkpoint only."""
        path = self.folder / CHECKPOINT
        self._place.fetch(CHECKPOINT)
        try:
            if verify:
                return Status(State.PARTIAL, int(files.read_arrays(path)[0]["step"]))
            with files.open_regular(path) as file, np.load(file) as archive:
                return Status(State.PARTIAL, int(archive["step"]))
        except FileNotFoundError:
            return Status(State.PARTIAL)
        except Exception as error:  # zipfile, zlib and numpy raise almost anything.
            return Status(State.PARTIAL, reason=f"its checkpoint is damaged, so it will begin anew: {error}")


def pack(values: Sequence[NDArray[Any]], prefix: str) -> Arrays:
    """Returns arrays under the names `prefix0`, `prefix1`, ..."""
    return {f"{prefix}{index}": value for index, value in enumerate(values)}


def unpack(arrays: Mapping[str, NDArray[Any]], prefix: str) -> list[NDArray[Any]]:
    """Returns the arrays that `pack` named, in their order."""
    count = sum(name.startswith(prefix) and name[len(prefix) :].isdigit() for name in arrays)
    return [arrays[f"{prefix}{index}"] for index in range(count)]
