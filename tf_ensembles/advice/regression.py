"""What `advise` does for a regression: targets in other units are standardized, and a Gaussian process is a baseline.

Networks start around zero and learn targets of spread one. Where targets are neither, `advise` trains on
`(y - mean) / std`, says so with the numbers to use, and gives NLLs in the target's own units.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from tf_ensembles import extras, intervals
from tf_ensembles.advice import scaling, splits, text
from tf_ensembles.base import Array
from tf_ensembles.intervals import Interval

# A Gaussian process takes the cube of this many examples.
_MOST_EXAMPLES = 1000


@dataclasses.dataclass(frozen=True)
class Units:
    """The units of targets: what to subtract from each and divide it by."""

    mean: Array  # [targets]
    std: Array  # [targets]

    def standardize(self, y: Any) -> Array:
        """Returns targets `[batch]` or `[batch, targets]` in these units, in the shape that they had."""
        array = np.asarray(y, np.float64)
        return ((array.reshape(len(array), -1) - self.mean) / self.std).reshape(array.shape)

    @property
    def log_density(self) -> float:
        """What standardizing adds to a log-likelihood: a density is per unit."""
        return float(np.log(self.std).sum())

    def __str__(self) -> str:
        mean, std = (", ".join(f"{number:.4g}" for number in numbers) for numbers in (self.mean, self.std))
        formula = f"(y - {mean}) / {std}" if len(self.mean) == 1 else f"(y - [{mean}]) / [{std}]"
        return (
            f"targets are not scaled, and were standardized here: fit {formula}; "
            "prior scales are in standard deviations of targets, NLLs in their own units"
        )


def find_units(y: Any, noise_std: float | None) -> Units | None:
    """Returns the units of targets that networks would not take as they are; None for those that they would."""
    array = np.asarray(y)
    if array.ndim == 0 or array.dtype.kind not in "fiu" or not np.isfinite(array).all() or len(array) < 2:
        return None  # Refused elsewhere.
    columns = array.reshape(len(array), -1).astype(np.float64)
    std = columns.std(axis=0)
    if not list(scaling.about_targets(columns)) or not (std > 0.0).all():
        return None
    if noise_std is not None:  # One noise for all targets wants one unit.
        std = np.full_like(std, math.sqrt(float(np.mean(std**2))))
    return Units(columns.mean(axis=0), std)


def notes(prior_scale: float, units: Units | None, split: splits.Split) -> Iterator[str]:
    """Yields the recommended prior scale in the target's units, and how a Gaussian process does."""
    if units is not None and prior_scale:
        scales = ", ".join(f"{prior_scale * std:.4g}" for std in units.std)
        yield f"prior scale {prior_scale:g} is {scales} in the target's own units"
    baseline = gaussian_process(split)
    if baseline is not None:
        baseline = baseline.plus(0.0 if units is None else units.log_density * split.tau)
        described = text.interval(baseline)
        yield f"a Gaussian process (RBF kernel and noise) has a joint NLL of {described} on the same examples"


def gaussian_process(split: splits.Split) -> Interval | None:
    """Returns the joint NLL of a Gaussian process on the examples that judge; None where it would take long."""
    part = split.parts[0]
    x, y = part.train.x, part.train.y
    is_table = isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype.kind in "biuf" and y.size == len(y)
    size = len(part.train) + len(part.stop) + len(part.judge)
    if not extras.is_available("sklearn") or not is_table or size > _MOST_EXAMPLES:
        return None
    values = np.concatenate([_joint_nlls(part, split.tau) for part in split.parts])
    return intervals.normal(values.mean(), values.std(ddof=1) / math.sqrt(len(values)))


def _joint_nlls(part: splits.Part, tau: int) -> list[float]:
    """Returns the joint NLL of each group of tau examples that judge, by a process fitted to those that do not."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    x = np.concatenate([part.train.x, part.stop.x]).astype(np.float64)
    y = np.concatenate([part.train.y, part.stop.y]).astype(np.float64).ravel()
    mean, std = x.mean(axis=0), np.where(x.std(axis=0) > 0.0, x.std(axis=0), 1.0)
    width = math.sqrt(x.shape[1])
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(width, (0.05 * width, 50.0 * width)) + WhiteKernel(0.1, (1e-6, 1e2))
    process = GaussianProcessRegressor(kernel, normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of lengths at their bounds: this is a baseline.
        process.fit((x - mean) / std, y)
    judge, values = part.judge, []
    for start in range(0, len(part.judge) // tau * tau, tau):
        rows = slice(start, start + tau)
        centers, covariance = process.predict((judge.x[rows] - mean) / std, return_cov=True)
        root = np.linalg.cholesky(covariance + 1e-10 * np.eye(tau))
        white = np.linalg.solve(root, judge.y[rows].ravel() - centers)
        values.append(float(0.5 * white @ white + np.log(np.diag(root)).sum() + 0.5 * tau * math.log(2.0 * math.pi)))
    return values
