"""Members and ensembles on CIFAR10, or on a user's arrays, as functions of sweep runs: JSON in, scalars out.

    sweep.make_run("cifar10/n/member3", "trainers.images.runs:train_member", {"num_train": 1000, "member": 3})

Where things are on a machine is no part of a configuration. It comes from the environment:

    TF_ENSEMBLES_STORE          the folder of all members (`member_store`)
    TF_ENSEMBLES_DATA           the TFDS folder of CIFAR10, or an .npz file with x_train, y_train, x_test and y_test
    TF_ENSEMBLES_KEEP_WEIGHTS   0: of finished members, keep their predictions only
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainers.images import config as member_config
from trainers.images import store as member_store
from trainers.images.config import MemberConfig

if TYPE_CHECKING:
    from tf_ensembles.metrics.by_size import Scores
    from trainers.images.data import ImageData

DATA_VARIABLE = "TF_ENSEMBLES_DATA"
KEEP_VARIABLE = "TF_ENSEMBLES_KEEP_WEIGHTS"
TRAIN, EVALUATE = "trainers.images.runs:train_member", "trainers.images.runs:evaluate_ensemble"

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


class Splits(NamedTuple):
    """The full training set and the test set."""

    train: ImageData
    test: ImageData


@dataclasses.dataclass(frozen=True)
class EnsembleConfig:
    """Consecutive members of one seed, and how to score them."""

    first: MemberConfig  # the first member
    num_members: int
    tau: int = 10  # labels per joint prediction

    def __post_init__(self) -> None:
        if self.num_members < 1 or self.tau < 1:
            raise ValueError(f"Expected num_members >= 1 and tau >= 1. Received: {self.num_members} and {self.tau}")

    @property
    def members(self) -> list[MemberConfig]:
        """The members, in their order."""
        start = self.first.member
        return [dataclasses.replace(self.first, member=start + index) for index in range(self.num_members)]


def train_member(config: dict[str, Any]) -> dict[str, Any]:
    """Trains a member, or what is left of its training: `member_key, steps, train_loss, test_nll, test_accuracy`.

    Args:
        config: fields of `MemberConfig`; those left out have their defaults.
    """
    member = member_config.from_dict(config)
    store = member_store.default_root()
    finished = member_store.MemberFiles(store, member).result()
    if finished is not None:
        return finished  # Without loading data, or TensorFlow.
    from trainers.images import training as member_training

    train, test = load_member_data(member)
    keep = os.environ.get(KEEP_VARIABLE, "1") != "0"
    return member_training.train(member, train, test, store, keep_weights=keep)


def evaluate_ensemble(config: dict[str, Any]) -> dict[str, Any]:
    """Scores an ensemble of trained members from their stored logits.

    Args:
        config: fields of `MemberConfig` but `member`; `num_members`; and, if not the defaults, `first_member` (0) and
            `tau` (10).

    Returns:
        `nll_marginal, nll_marginal_error, nll_joint, nll_joint_error, accuracy, ece`; the joint NLL is dyadic.
    """
    scores = dataclasses.asdict(score_ensemble(ensemble_from_dict(config))[-1])
    del scores["size"]
    return scores


def evaluate_sizes(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns what `evaluate_ensemble` does for the first member, the first two, ...; `size` tells how many."""
    return [dataclasses.asdict(scores) for scores in score_ensemble(ensemble_from_dict(config))]


def ensemble_from_dict(config: Mapping[str, Any]) -> EnsembleConfig:
    """Returns the ensemble of `evaluate_ensemble`'s configuration."""
    fields = dict(config)
    if "num_members" not in fields or "member" in fields:
        raise ValueError(f"Expected num_members, and first_member instead of member. Received: {sorted(fields)}")
    num_members, first_member, tau = fields.pop("num_members"), fields.pop("first_member", 0), fields.pop("tau", 10)
    return EnsembleConfig(member_config.from_dict({**fields, "member": first_member}), num_members, tau)


def score_ensemble(ensemble: EnsembleConfig, store: str | os.PathLike[str] | None = None) -> list[Scores]:
    """Scores every size up to that of the ensemble, reading one member at a time.

    Args:
        ensemble: the ensemble; all its members must be finished.
        store: the folder of all members; by default the environment's.
    """
    return score_members(ensemble.members, ensemble.tau, store)


def score_members(
    configs: list[MemberConfig], tau: int = 10, store: str | os.PathLike[str] | None = None
) -> list[Scores]:
    """Scores the first of some members, the first two, and so on."""
    from tf_ensembles.metrics import by_size as member_scores

    root = member_store.default_root() if store is None else store
    files = [member_store.MemberFiles(root, config) for config in configs]
    missing = [str(one.config.member) for one in files if one.status().state is not member_store.State.FINISHED]
    if missing:
        raise ValueError(
            f"Expected finished members in {root}. Received: {len(missing)} of {len(files)} that are not: member "
            f"{', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}"
        )
    labels = files[0].predictions()[1]

    def logits() -> Iterator[NDArray[np.float32]]:
        for one in files:
            own, own_labels = one.predictions()
            if not np.array_equal(own_labels, labels):
                raise ValueError(f"Expected members with the same test labels. Received: others for {one}")
            yield own

    return member_scores.score_sizes(logits(), labels, tau)


# Data.


def load_member_data(config: MemberConfig, location: str | None = None) -> tuple[ImageData, ImageData]:
    """Returns a member's training set, with its noise, and its test set.

    Args:
        config: the member.
        location: of the data; by default the environment's.
    """
    where = location or os.environ.get(DATA_VARIABLE) or None
    test = _load(config.data, where).test
    num_test = len(test) if config.num_test is None else config.num_test
    if num_test > len(test):
        raise ValueError(f"Expected num_test <= {len(test)}. Received: {num_test}")
    train = _load_train(config.data, where, config.num_train, config.subset, config.noise, config.noise_seed)
    return train, test.select(slice(num_test))


@functools.lru_cache(maxsize=4)
def _load_train(data: str, location: str | None, num_train: int, subset: str, noise: str, noise_seed: int) -> ImageData:
    from trainers.images import data as image_data

    train = image_data.take(_load(data, location).train, num_train, image_data.Subset(subset))
    kind = member_config.Noise(noise)
    if kind is member_config.Noise.NONE:
        return train
    law = image_data.FIGURE_5_NOISE if kind is member_config.Noise.FIGURE_5 else image_data.FIGURE_11_NOISE
    return dataclasses.replace(law, seed=noise_seed).apply(train)


@functools.lru_cache(maxsize=2)
def _load(data: str, location: str | None) -> Splits:
    if data not in member_config.TRAINING_IMAGES:
        return load_arrays(data, location)
    from trainers.images import cifar10 as cifar10_data

    if location is not None and location.endswith(".npz"):
        raise ValueError(f"Expected the TFDS folder of CIFAR10. Received: {location}")
    splits = cifar10_data.load_cifar10(location, progress=False)
    if data == member_config.CIFAR10:
        return Splits(splits.train, splits.test)
    last = member_config.TRAINING_IMAGES[data]
    return Splits(splits.train.select(slice(last)), splits.train.select(slice(last, None)))


def arrays_name(location: str) -> str:
    """Returns the `data` field of members that are trained on a user's arrays: their content decides it."""
    with np.load(location) as file:
        if missing := sorted(set(_ARRAYS) - set(file.files)):
            raise ValueError(f"Expected {', '.join(_ARRAYS)} in {location}. Received: no {', '.join(missing)}")
        digest = hashlib.sha256()
        for name in _ARRAYS:
            array = np.ascontiguousarray(file[name])
            digest.update(repr((name, array.shape, array.dtype.str)).encode())
            digest.update(array.data)
    return f"arrays-{digest.hexdigest()[:16]}"


def load_arrays(data: str, location: str | None) -> Splits:
    """Returns a user's arrays: x `[n, height, width(, channels)]` and y `[n]` for training and test."""
    from trainers.images import data as image_data

    if location is None or not location.endswith(".npz"):
        raise ValueError(f"Expected the .npz file of {data} in ${DATA_VARIABLE}. Received: {location}")
    if arrays_name(location) != data:
        raise ValueError(f"Expected the arrays named {data}. Received: {location}, which holds {arrays_name(location)}")
    with np.load(location) as file:
        x_train, y_train, x_test, y_test = (file[name] for name in _ARRAYS)
    classes = int(max(y_train.max(), y_test.max())) + 1
    train = image_data.make_data(x_train, y_train, classes)
    # In an order of its own: a joint likelihood of neighbours must not meet a sorted test set.
    order = np.random.default_rng(0).permutation(len(y_test))
    test = image_data.make_data(x_test[order], y_test[order], classes, train.mean, train.std)
    return Splits(train, test)
