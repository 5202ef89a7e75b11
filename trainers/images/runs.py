"""Members and ensembles on CIFAR10, or on a user's arrays, as functions of sweep runs: JSON in, scalars out.

    config = {"num_train": 1000, "member": 3}
    sweep.make_run("cifar10/n/member3", runs.TRAIN, config, context={"store": "results/members"})

Where things are on a machine is no part of a configuration. It travels in the context of a run:

    store          the folder of all members (`images.store`)
    data           the TFDS folder of CIFAR10 (None: TFDS's own), or an .npz with x_train, y_train, x_test and y_test
    keep_weights   False: of finished members, keep their predictions only
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import files
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.images import cifar10
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images.cifar10 import Splits
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.sweeps import kinds

if TYPE_CHECKING:
    from tf_ensembles.metrics.by_size import Scores
    from tf_ensembles.trainers.images.data import ImageData

TRAIN = kinds.register(
    "cifar10-member",
    "tf_ensembles.trainers.images.runs:train_member",
    progress="tf_ensembles.trainers.images.runs:steps_of_member",
)
EVALUATE = kinds.register("cifar10-ensemble", "tf_ensembles.trainers.images.runs:evaluate_ensemble")

MAX_MEMBERS = 100_000  # of an ensemble: more are a damaged description

WRONG_FIT = "wrong_labels_fit"  # the share of training labels moved by noise that a member predicts
# How a member was computed stays in its own files: rows of sweeps have their facts of the machine.
_ROW = ("member_key", "steps", "train_loss", "test_nll", "test_accuracy", WRONG_FIT)
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclasses.dataclass(frozen=True)
class EnsembleConfig:
    """Consecutive members of one seed, and how to score them."""

    first: MemberConfig  # the first member
    num_members: int
    tau: int = 10  # labels per joint prediction

    def __post_init__(self) -> None:
        if self.num_members < 1 or self.tau < 1:
            raise ValueError(f"Expected num_members >= 1 and tau >= 1. Received: {self.num_members} and {self.tau}")
        if self.num_members > MAX_MEMBERS:
            raise ValueError(f"Expected at most {MAX_MEMBERS:,} members. Received: {self.num_members}")

    @property
    def members(self) -> list[MemberConfig]:
        """The members, in their order."""
        start = self.first.member
        return [dataclasses.replace(self.first, member=start + index) for index in range(self.num_members)]


def train_member(
    config: dict[str, Any], *, store: str, data: str | None = None, keep_weights: bool = True
) -> dict[str, Any]:
    """Trains a member, or what is left of its training: `member_key, steps, train_loss, test_nll, test_accuracy`.

    Where noise has moved training labels, `wrong_labels_fit` is the share of these that the member predicts.

    Args:
        config: fields of `MemberConfig`; those left out have their defaults.
        store: the folder of all members.
        data: where the images are; None: where TFDS keeps CIFAR10.
        keep_weights: whether to keep the variables of the finished member.
    """
    member = member_config.from_dict(config)
    result = member_store.MemberFiles(store, member).result()
    if result is None:  # Otherwise without loading data, or TensorFlow.
        from tf_ensembles.trainers.images import training

        result = training.train(
            member,
            *load_member_data(member, data),
            store,
            keep_weights=keep_weights,
            wrong_labels=_load_wrong_labels(member, data),
        )
    return {name: result[name] for name in _ROW if name in result}


def steps_of_member(config: dict[str, Any], *, store: str, **_: Any) -> int:
    """Returns how many steps of a member are kept."""
    return member_store.MemberFiles(store, member_config.from_dict(config)).status().steps


def evaluate_ensemble(config: dict[str, Any], *, store: str) -> dict[str, Any]:
    """Scores an ensemble of trained members from their stored logits.

    Args:
        config: fields of `MemberConfig` but `member`; `num_members`; and, if not the defaults, `first_member` (0) and
            `tau` (10).
        store: the folder of all members.

    Returns:
        `nll_marginal, nll_marginal_error, nll_joint, nll_joint_error, accuracy, ece`; `nll_joint` is the dyadic NLL.
        Where noise has moved training labels, also `wrong_labels_fit`, the mean over members.
    """
    ensemble = ensemble_from_dict(config)
    scores = dataclasses.asdict(score_members(ensemble.members, ensemble.tau, store)[-1])
    del scores["size"]
    results = [member_store.MemberFiles(store, member).result() or {} for member in ensemble.members]
    if all(WRONG_FIT in result for result in results):
        scores[WRONG_FIT] = float(np.mean([result[WRONG_FIT] for result in results]))
    return scores


def ensemble_from_dict(config: Mapping[str, Any]) -> EnsembleConfig:
    """Returns the ensemble of `evaluate_ensemble`'s configuration."""
    fields = dict(config)
    if "num_members" not in fields or "member" in fields:
        raise ValueError(f"Expected num_members, and first_member instead of member. Received: {sorted(fields)}")
    num_members, first_member, tau = fields.pop("num_members"), fields.pop("first_member", 0), fields.pop("tau", 10)
    return EnsembleConfig(member_config.from_dict({**fields, "member": first_member}), num_members, tau)


def score_members(configs: Sequence[MemberConfig], tau: int, store: str | os.PathLike[str]) -> list[Scores]:
    """Scores the first of some members, the first two, and so on, reading one member at a time.

    Args:
        configs: the members; all must be finished.
        tau: labels per joint prediction.
        store: the folder of all members.
    """
    from tf_ensembles.metrics import by_size

    members = [member_store.MemberFiles(store, config) for config in configs]
    missing = [str(one.config.member) for one in members if one.status().state is not member_store.State.FINISHED]
    if missing:
        raise ValueError(
            f"Expected finished members in {store}. Received: {len(missing)} of {len(members)} that are not: member "
            f"{', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}"
        )
    labels = members[0].predictions()[1]

    def logits() -> Iterator[NDArray[np.float32]]:
        for one in members:
            own, own_labels = one.predictions()
            if not np.array_equal(own_labels, labels):
                raise ValueError(
                    f"Expected members with the same test labels. Received: {one}, whose labels are not those of "
                    f"{members[0]}"
                )
            yield own

    return by_size.score_sizes(logits(), labels, tau)


# Data.


def load_member_data(config: MemberConfig, data: str | None = None) -> tuple[ImageData, ImageData]:
    """Returns a member's training set, with its noise, and its test set.

    Args:
        config: the member.
        data: where the images are; None: where TFDS keeps CIFAR10.
    """
    test = _load(config.data, data).test
    num_test = len(test) if config.num_test is None else config.num_test
    if num_test > len(test):
        raise ValueError(f"Expected num_test <= {len(test)}. Received: {num_test}")
    train = _load_train(config.data, data, config.num_train, config.subset, config.noise, config.noise_seed)
    return train, test.select(slice(num_test))


def _load_wrong_labels(config: MemberConfig, data: str | None) -> ImageData | None:
    """Returns the training examples whose labels noise has moved; None where there are none."""
    fields = (config.data, data, config.num_train, config.subset)
    noisy = _load_train(*fields, config.noise, config.noise_seed)
    wrong = noisy.labels != _load_train(*fields, member_config.Noise.NONE.value, 0).labels
    return noisy.select(wrong) if wrong.any() else None


@functools.lru_cache(maxsize=4)
def _load_train(name: str, data: str | None, num_train: int, subset: str, noise: str, noise_seed: int) -> ImageData:
    from tf_ensembles.trainers.images import data as image_data

    if noise == member_config.Noise.NONE.value:
        return image_data.take(_load(name, data).train, num_train, subset)
    clean = _load_train(name, data, num_train, subset, member_config.Noise.NONE.value, 0)
    # The paper's appendix draws from {1..10}; CIFAR10's classes are 0..9.
    moves: dict[str, Any] = {"figure_5": (0.25, range(5), range(5, 10)), "figure_11": (0.01,)}
    return image_data.move_labels(clean, *moves[noise], seed=noise_seed)


@functools.lru_cache(maxsize=2)
def _load(name: str, data: str | None) -> Splits:
    if name not in member_config.TRAINING_IMAGES:
        return _load_arrays(name, data)
    if data is not None and data.endswith(".npz"):
        raise ValueError(f"Expected the TFDS folder of CIFAR10. Received: {data}")
    splits = cifar10.load_cifar10(data)
    if name == member_config.CIFAR10:
        return splits
    last = member_config.TRAINING_IMAGES[name]
    return Splits(splits.train.select(slice(last)), splits.train.select(slice(last, None)))


def arrays_name(path: str) -> str:
    """Returns the `data` field of members that are trained on a user's arrays: their content decides it."""
    arrays = files.load_arrays(_here(path))
    if missing := sorted(set(_ARRAYS) - set(arrays)):
        raise ValueError(f"Expected {', '.join(_ARRAYS)} in {path}. Received: no {', '.join(missing)}")
    digest = hashlib.sha256()
    for name in _ARRAYS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(repr((name, array.shape, array.dtype.str)).encode())
        digest.update(array.data)
    return f"arrays-{digest.hexdigest()[:16]}"


def num_train_images(path: str) -> int:
    """Returns how many training images a user's arrays hold."""
    return len(files.load_arrays(_here(path))["y_train"])


def _here(path: str) -> str:
    """Returns where a file can be read; one of an object store in the cache of that."""
    if not stores.is_address(path):
        return path
    folder, _, name = path.rpartition("/")
    place = stores.place(folder)
    place.fetch(name)
    if not (place.folder / name).exists():
        raise ValueError(f"Expected a file at {path}. Received: none there")
    return str(place.folder / name)


def _load_arrays(name: str, path: str | None) -> Splits:
    """Returns a user's arrays: x `[n, height, width(, channels)]` and y `[n]` for training and test."""
    from tf_ensembles.trainers.images import data as image_data

    if path is None or not path.endswith(".npz"):
        raise ValueError(f"Expected the .npz file of {name} as data. Received: {path}")
    if (found := arrays_name(path)) != name:
        raise ValueError(f"Expected the arrays named {name}. Received: {path}, which holds {found}")
    arrays = files.load_arrays(_here(path))
    x_train, y_train, x_test, y_test = (arrays[part] for part in _ARRAYS)
    classes = int(max(y_train.max(), y_test.max())) + 1
    train = image_data.make_data(x_train, y_train, classes)
    # In an order of its own: a joint likelihood of neighbors must not meet a sorted test set.
    order = np.random.default_rng(0).permutation(len(y_test))
    test = image_data.make_data(x_test[order], y_test[order], classes, train.mean, train.std)
    return Splits(train, test)
