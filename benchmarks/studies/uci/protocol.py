"""The protocol: which examples train and test in which split, and what was published.

Shapes: inputs `[splits, rows, features]`, targets `[splits, rows]`, standardized by the training part of each split.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
NAMES = ("concrete", "energy", "wine", "yacht")
NUM_SPLITS = 20


@dataclasses.dataclass(frozen=True)
class Published:
    """Test results of deep ensembles (2017): means over splits, and the standard errors given with them."""

    rmse: float
    rmse_error: float
    nll: float
    nll_error: float


PUBLISHED = {
    "concrete": Published(6.03, 0.58, 3.06, 0.18),
    "energy": Published(2.09, 0.29, 1.38, 0.22),
    "wine": Published(0.64, 0.04, 0.94, 0.12),
    "yacht": Published(1.58, 0.48, 1.18, 0.21),
}


@dataclasses.dataclass(frozen=True)
class Splits:
    """A data set, cut and standardized in every split."""

    x_train: Floats  # [splits, train, features]
    y_train: Floats  # [splits, train]
    x_test: Floats
    y_test: NDArray[np.float64]  # [splits, test], in its own units
    y_mean: NDArray[np.float64]  # [splits]
    y_std: NDArray[np.float64]


def load(path: str | pathlib.Path, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns inputs `[rows, features]` and targets `[rows]` of a data set in an archive."""
    with np.load(path) as archive:
        missing = [key for key in (f"{name}_x", f"{name}_y") if key not in archive.files]
        if missing:
            raise ValueError(f"Expected an archive with {name}_x and {name}_y. Received: {sorted(archive.files)}")
        return archive[f"{name}_x"], archive[f"{name}_y"]


def split(x: NDArray[Any], y: NDArray[Any], num_splits: int = NUM_SPLITS) -> Splits:
    """Returns all splits: a permutation each, one after another from seed 1; nine tenths train."""
    random = np.random.RandomState(1)
    orders = [random.choice(range(len(x)), len(x), replace=False) for _ in range(num_splits)]
    cut = round(0.9 * len(x))
    train, test = np.stack([order[:cut] for order in orders]), np.stack([order[cut:] for order in orders])
    x_mean, x_std = x[train].mean(axis=1, keepdims=True), x[train].std(axis=1, keepdims=True)
    x_std = np.where(x_std > 0, x_std, 1.0)
    y_mean, y_std = y[train].mean(axis=1), y[train].std(axis=1)
    return Splits(
        ((x[train] - x_mean) / x_std).astype(np.float32),
        ((y[train] - y_mean[:, None]) / y_std[:, None]).astype(np.float32),
        ((x[test] - x_mean) / x_std).astype(np.float32),
        y[test],
        y_mean,
        y_std,
    )
