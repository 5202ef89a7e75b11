"""The files of members, one folder each, named by the hash of the member's configuration.

    STORE/3f9c.../config.json       what the member is
                  checkpoint.npz    how far its training is; gone once it is finished
                  predictions.npz   its test logits [examples, classes] and the labels [examples]
                  weights.npz       its variables and its prior's, unless they are not to be kept
                  result.json       written last: the member is finished, with checksums of the two files above
                  failure.json      why its training was given up

Every file appears whole or not at all, so a process may be killed anywhere. Importing this module imports no
TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import files
from trainers.images.config import MemberConfig

CONFIG, CHECKPOINT, PREDICTIONS = "config.json", "checkpoint.npz", "predictions.npz"
WEIGHTS, RESULT, FAILURE, LOCK = "weights.npz", "result.json", "failure.json", "lock"

# What reading a damaged file may raise.
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile)

Arrays = dict[str, NDArray[Any]]


class MemberError(ValueError):
    """A member that cannot be used, and what to do about it."""


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
        self.folder = pathlib.Path(root) / config.key

    def __str__(self) -> str:
        return f"member {self.config.member} ({self.config.key})"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Waits for its turn: one process trains a member at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def begin(self) -> None:
        """Writes what the member is."""
        if not (self.folder / CONFIG).exists():
            _write_json(self.folder / CONFIG, self.config.to_dict())

    # Training under way.

    def save_checkpoint(self, step: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Writes how far the training is."""
        _write_arrays(self.folder / CHECKPOINT, {"step": np.asarray(step), **arrays})

    def load_checkpoint(self) -> tuple[int, Arrays] | None:
        """Returns the steps made and the arrays saved then; None where there is no checkpoint that can be read."""
        try:
            arrays = _read_arrays(self.folder / CHECKPOINT)
            return int(arrays.pop("step")), arrays
        except _DAMAGE:
            return None

    def fail(self, step: int, reason: str) -> None:
        """Gives the training up, which only `reset` takes back."""
        _write_json(self.folder / FAILURE, {"steps": step, "reason": reason})
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

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
        _write_arrays(self.folder / PREDICTIONS, {"logits": logits, "labels": labels})
        checksums = {PREDICTIONS: _checksum(self.folder / PREDICTIONS)}
        if weights is not None:
            _write_arrays(self.folder / WEIGHTS, weights)
            checksums[WEIGHTS] = _checksum(self.folder / WEIGHTS)
        _write_json(self.folder / RESULT, {**result, "checksums": checksums})
        for name in (CHECKPOINT, FAILURE):
            (self.folder / name).unlink(missing_ok=True)

    def reset(self) -> None:
        """Removes all that was computed, so that the member is trained anew."""
        for name in (RESULT, FAILURE, CHECKPOINT, PREDICTIONS, WEIGHTS):  # The result first: it says "finished".
            (self.folder / name).unlink(missing_ok=True)

    # Finished members.

    def result(self) -> dict[str, Any] | None:
        """Returns the scalars of a finished member, or None. A result that cannot be read raises."""
        path = self.folder / RESULT
        if not path.exists():
            return None
        try:
            result = dict(json.loads(path.read_text()))
            self._check_size(PREDICTIONS, result["checksums"][PREDICTIONS])
        except _DAMAGE as error:
            raise self._corrupt(error) from None
        del result["checksums"]
        return result

    def predictions(self) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
        """Returns test logits `[examples, classes]` and labels `[examples]` of a finished member, verified."""
        arrays = self._verified(PREDICTIONS)
        return arrays["logits"], arrays["labels"]

    def weights(self) -> Arrays:
        """Returns the variables of a finished member and of its prior, verified."""
        return self._verified(WEIGHTS)

    def _verified(self, name: str) -> Arrays:
        if not (self.folder / RESULT).exists():
            raise MemberError(f"Expected {self} to be finished. Received: {self.status().state.value} in {self.folder}")
        try:
            expected = json.loads((self.folder / RESULT).read_text())["checksums"].get(name)
            if expected is None:
                raise MemberError(f"Expected {self} to have kept {name}. Received: a member trained without keeping it")
            if _checksum(self.folder / name) != expected:
                raise ValueError(f"{name} is not what was written")
            return _read_arrays(self.folder / name)
        except MemberError:
            raise
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
            verify: whether to read the files of a finished member and compare their checksums.
        """
        if (self.folder / RESULT).exists():
            try:
                result = self.result()
                assert result is not None
                if verify:
                    self.predictions()
                return Status(State.FINISHED, int(result["steps"]))
            except MemberError as error:
                return Status(State.CORRUPT, reason=str(error))
        if (self.folder / FAILURE).exists():
            try:
                failure = json.loads((self.folder / FAILURE).read_text())
                return Status(State.FAILED, int(failure["steps"]), str(failure["reason"]))
            except _DAMAGE as error:
                return Status(State.FAILED, reason=f"unknown: {error}")
        if not (self.folder / CONFIG).exists():
            return Status(State.ABSENT)
        try:
            with np.load(self.folder / CHECKPOINT) as file:
                return Status(State.PARTIAL, int(file["step"]))
        except _DAMAGE:
            return Status(State.PARTIAL)


def pack(values: Sequence[NDArray[Any]], prefix: str) -> Arrays:
    """Returns arrays under the names `prefix0`, `prefix1`, ..."""
    return {f"{prefix}{index}": value for index, value in enumerate(values)}


def unpack(arrays: Mapping[str, NDArray[Any]], prefix: str) -> list[NDArray[Any]]:
    """Returns the arrays that `pack` named, in their order."""
    count = sum(name.startswith(prefix) and name[len(prefix) :].isdigit() for name in arrays)
    return [arrays[f"{prefix}{index}"] for index in range(count)]


def _checksum(path: pathlib.Path) -> str:
    """Size and hash of a file."""
    with path.open("rb") as file:
        return f"{path.stat().st_size}-{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}"


def _read_arrays(path: pathlib.Path) -> Arrays:
    with np.load(path) as file:  # The archive has a checksum for every array.
        return {name: file[name] for name in file.files}


def _write_arrays(path: pathlib.Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    with _replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _write_json(path: pathlib.Path, content: Mapping[str, Any]) -> None:
    with _replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")


@contextlib.contextmanager
def _replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
    for left_over in path.parent.glob(f".{path.name}.*"):  # Of a process that was killed while it wrote.
        shutil.rmtree(left_over, ignore_errors=True)
    with files.atomic_path(path) as temporary:
        yield temporary
