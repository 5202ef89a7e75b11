"""What decides one member of an image ensemble: data, network, prior, bootstrap, schedule and seeds, as flat JSON.

A member is named by the hash of its configuration, which holds no path: the same member is found again by every figure,
on every machine. This module imports no TensorFlow.

Three conventions, stated once:

* **Weight decay** is the paper's lambda of the loss that *sums* over examples. Training minimizes the mean over
  examples, so it adds `(weight_decay / T) * ||theta||^2`, over all trainable variables. The paper's "weight decay of
  30 / T" is read as that coefficient of the mean loss, lambda = 30: at T = 50,000 it is 6e-4, the customary size. Read
  as lambda itself it would be 1.2e-8 there, and no decay at all; `weight_decay=30 / T` gives that reading.
* **The batch** is global: the examples of one step over all replicas together. What a replica gets is
  `batch_size / replicas`. The **learning rate** belongs to the mean over the global batch. So neither changes meaning
  with the number of devices. The paper's 32 per device on four devices is 128.
* **An epoch** is `floor(T / batch)` steps of exactly one batch, `batch = min(batch_size, T)`: the remainder of each
  epoch's own random order is left out, so every step has the same shape, as TPUs need.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

from tf_ensembles.trainers.sweeps import runs as sweep_runs

CIFAR10 = "cifar10"
# For choosing settings: the last 5,000 training images take the place of the test images, and are not trained on.
VALIDATION = "cifar10-validation"
TRAINING_IMAGES = {CIFAR10: 50_000, VALIDATION: 45_000}

# The paper's initial learning rates, by the number of training examples.
PAPER_RATES = {10: 1e-4, 100: 1e-3, 1000: 1e-2, 50_000: 2.5e-2}
# Fractions of the epochs after which the rate is divided by ten once more: 200, 300 and 350 of 400.
DROPS = (0.5, 0.75, 0.875)

_SUBSET = re.compile(r"first|balanced(-[1-9][0-9]*)?")
_ARRAYS = re.compile(r"arrays-[0-9a-f]{16}")


class Noise(enum.Enum):
    """Which labels of the training set are wrong: the paper's two settings."""

    NONE = "none"
    FIGURE_5 = "figure_5"  # 25% of the labels of classes 0-4 moved to one of 5-9
    FIGURE_11 = "figure_11"  # 1% of the labels uniformly random


def paper_learning_rate(num_train: int) -> float:
    """Returns the paper's initial rate; between its four sizes, that of the next smaller one."""
    return PAPER_RATES[max((size for size in PAPER_RATES if size <= num_train), default=min(PAPER_RATES))]


@dataclasses.dataclass(frozen=True)
class MemberConfig:
    """One member. Vary it by `dataclasses.replace`; options take the strings named here, so that it is JSON."""

    data: str = CIFAR10  # or "cifar10-validation", or "arrays-..." for a user's arrays, named by their content
    num_train: int = 50_000  # T
    subset: str = "balanced"  # which examples where there are more: "balanced", "balanced-7" (drawn by seed 7), "first"
    noise: str = "none"  # "none", "figure_5" or "figure_11"
    noise_seed: int = 0  # which labels are noisy
    num_test: int | None = None  # the first so many test images; None: all
    width: float = 1.0  # of the VGG
    prior_scale: float = 0.0  # of the frozen network added to the logits; 0: none
    bootstrap_probability: float | None = None  # p of the weights Bernoulli(p) / p; None: no bootstrap
    weight_decay: float = 30.0  # lambda of the summed loss; the mean loss has (weight_decay / T) * ||theta||^2
    learning_rate: float | None = None  # at the start; None: the paper's for T, which takes its place here
    momentum: float = 0.9  # the paper names none; this is what schedules of this kind are customarily used with
    epochs: int = 400
    batch_size: int = 128  # global
    augment: bool = False  # the paper names none; without it the prior is evaluated once per image
    dtype: str = "float32"  # or "bfloat16": activations in it, variables and losses in float32
    seed: int = 0  # of the ensemble
    member: int = 0  # start, prior, bootstrap weights and order are functions of (seed, member)

    def __post_init__(self) -> None:
        if self.data not in TRAINING_IMAGES and not _ARRAYS.fullmatch(self.data):
            raise ValueError(
                f"Expected data '{CIFAR10}', '{VALIDATION}' or 'arrays-' and 16 hexadecimal digits. "
                f"Received: {self.data!r}"
            )
        for field, options in (
            ("noise", tuple(option.value for option in Noise)),
            ("dtype", ("float32", "bfloat16")),
        ):
            if getattr(self, field) not in options:
                raise ValueError(f"Expected {field} to be one of {options}. Received: {getattr(self, field)!r}")
        if not _SUBSET.fullmatch(self.subset):
            raise ValueError(f"Expected subset 'balanced', 'first' or such as 'balanced-7'. Received: {self.subset!r}")
        for field, least in (("num_train", 1), ("epochs", 1), ("batch_size", 1), ("noise_seed", 0), ("member", 0)):
            self._check_integer(field, least)
        self._check_integer("seed", 0)
        if self.num_train > (most := TRAINING_IMAGES.get(self.data, self.num_train)):
            raise ValueError(f"Expected num_train <= {most} of {self.data}. Received: {self.num_train}")
        if self.num_test is not None:
            self._check_integer("num_test", 1)
        if self.learning_rate is None:
            whole = self.num_train == TRAINING_IMAGES.get(self.data)  # With or without those held out.
            rate = paper_learning_rate(TRAINING_IMAGES[CIFAR10] if whole else self.num_train)
            object.__setattr__(self, "learning_rate", rate)
        for field in ("width", "prior_scale", "weight_decay", "learning_rate", "momentum"):
            value = getattr(self, field)
            if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise ValueError(f"Expected a finite {field} >= 0. Received: {value!r}")
            object.__setattr__(self, field, float(value))  # 1 and 1.0 are one configuration.
        if self.width == 0.0 or self.momentum >= 1.0:
            raise ValueError(
                f"Expected width > 0 and momentum < 1. Received: width={self.width}, momentum={self.momentum}"
            )
        probability = self.bootstrap_probability
        if probability is not None:
            if not 0.0 < probability <= 1.0:
                raise ValueError(f"Expected bootstrap_probability in (0, 1], or None. Received: {probability}")
            # Weights Bernoulli(1) / 1 are no bootstrap.
            object.__setattr__(self, "bootstrap_probability", None if probability == 1.0 else float(probability))
        object.__setattr__(self, "augment", bool(self.augment))

    def _check_integer(self, field: str, least: int) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"Expected a whole number {field} >= {least}. Received: {value!r}")

    @property
    def key(self) -> str:
        """The name of the member's files: a hash of all fields, the same on every machine."""
        return hashlib.sha256(sweep_runs.canonical_json(dataclasses.asdict(self)).encode()).hexdigest()[:16]

    @property
    def batch(self) -> int:
        """Examples per step."""
        return min(self.batch_size, self.num_train)

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch; the remainder of the order is left out."""
        return self.num_train // self.batch

    @property
    def num_steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    @property
    def decay(self) -> float:
        """The coefficient of `||theta||^2` in the mean loss."""
        return self.weight_decay / self.num_train

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch, counted from 0: a tenth after each of `DROPS`."""
        assert self.learning_rate is not None
        return self.learning_rate / 10 ** sum(epoch >= drop * self.epochs for drop in DROPS)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields, as JSON values."""
        return dataclasses.asdict(self)


def from_dict(fields: Mapping[str, Any]) -> MemberConfig:
    """Returns the configuration with some fields given and the others at their defaults."""
    known = [field.name for field in dataclasses.fields(MemberConfig)]
    if unknown := sorted(set(fields) - set(known)):
        raise ValueError(f"Expected fields among {', '.join(known)}. Received: {', '.join(unknown)}")
    return MemberConfig(**fields)
