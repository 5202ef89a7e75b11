"""What `advise` does for a regression: targets in other units are standardized, and a Gaussian process is a baseline.

Networks start around zero and learn targets of spread one. Where targets are neither, `advise` trains on
`(y - mean) / std`, says so with the numbers to use, and gives NLLs in the target's own units. Nothing else in `advise`
knows of it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from tf_ensembles import extras
from tf_ensembles.advice import scaling, splits
from tf_ensembles.advice import scores as scoring
from tf_ensembles.advice.result import Advice
from tf_ensembles.base import Array
from tf_ensembles.ensemble import losses
from tf_ensembles.metrics.kinds import Kind

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


def find_units(y: Any, noise_std: float | None) -> Units | None:
    """Returns the units of targets that networks would not take as they are; None for those that they would."""
    array = np.asarray(y)
    if array.ndim == 0 or array.dtype.kind not in "fiu" or not np.isfinite(array).all() or len(array) < 2:
        return None  # Somebody else will say so.
    columns = array.reshape(len(array), -1).astype(np.float64)
    if not list(scaling.about_targets(columns)) or not (columns.std(axis=0) > 0.0).all():
        return None
    std = columns.std(axis=0)
    if noise_std is not None:  # One noise for all targets wants one unit.
        std = np.full_like(std, math.sqrt(float(np.mean(std**2))))
    return Units(columns.mean(axis=0), std)


def in_own_units(advise: Callable[..., Advice]) -> Callable[..., Advice]:
    """Returns an `advise` that standardizes the targets of a regression where they need it, and adds a baseline."""

    @functools.wraps(advise)
    def advised(build_member: Any, x: Any, y: Any, **given: Any) -> Advice:
        kind = None if given.get("loss") is None else losses.kind_of(losses.as_loss(given["loss"]), None)
        if kind is None or not kind.is_regression:
            return advise(build_member, x, y, **given)
        units, noise_std = find_units(y, given.get("noise_std")), given.get("noise_std")
        told: list[str] = []
        if units is not None and (noise_std is None or noise_std > 0.0):
            y = units.standardize(y)
            if isinstance(given.get("validation_data"), tuple | list) and len(given["validation_data"]) == 2:
                given["validation_data"] = (given["validation_data"][0], units.standardize(given["validation_data"][1]))
            if noise_std is not None:
                given["noise_std"] = noise_std / float(units.std[0])
            told.append(_told(units))
            warnings.warn(f"advise: {told[0]}", stacklevel=2)
        advice = advise(build_member, x, y, **given)
        bound = inspect.signature(advise).bind(build_member, x, y, **given)
        bound.apply_defaults()
        baseline = _gaussian_process(bound.arguments, kind)
        return _restored(advice, units if told else None, told, baseline)

    return advised


def _told(units: Units) -> str:
    mean, std = (", ".join(f"{one:.4g}" for one in part) for part in (units.mean, units.std))
    many = len(units.mean) > 1
    return (
        f"targets are not scaled, and were standardized here: fit (y - {f'[{mean}]' if many else mean}) / "
        f"{f'[{std}]' if many else std}; prior scales are in standard deviations of targets, NLLs in their own units"
    )


def _restored(advice: Advice, units: Units | None, told: list[str], baseline: scoring.Estimate | None) -> Advice:
    """Returns the advice with NLLs in the target's own units, and with what else there is to say."""
    shift = 0.0 if units is None else float(np.log(units.std).sum())  # A density is per unit.
    joint = shift * advice.tau
    moved = {
        name: dataclasses.replace(getattr(advice, name), value=getattr(advice, name).value + joint)
        for name in ("joint_nll", "dyadic_nll")
    }
    rows = tuple(
        dataclasses.replace(
            row,
            dyadic_nll=row.dyadic_nll + joint,
            joint_nll=row.joint_nll + joint,
            marginal_nll=row.marginal_nll + shift,
        )
        for row in advice.table
    )
    notes = list(advice.notes)
    if units is not None and advice.prior_scale:
        own = ", ".join(f"{advice.prior_scale * std:.4g}" for std in units.std)
        notes.append(f"prior scale {advice.prior_scale:g} is {own} in the target's own units")
    if baseline is not None:
        process = dataclasses.replace(baseline, value=baseline.value + joint)
        notes.append(f"a Gaussian process (RBF kernel and noise) has a joint NLL of {process} on the same examples")
    return dataclasses.replace(advice, **moved, table=rows, warnings=(*told, *advice.warnings), notes=tuple(notes))


def _gaussian_process(arguments: dict[str, Any], kind: Kind) -> scoring.Estimate | None:
    """Returns the joint NLL of a Gaussian process on the examples that judge; None where it cannot be had cheaply."""
    if kind is Kind.QUANTILES or not extras.is_available("sklearn"):
        return None
    try:
        x = np.asarray(arguments["x"], np.float64)
        y = np.asarray(arguments["y"], np.float64)
    except (TypeError, ValueError):
        return None
    if x.ndim != 2 or y.size != len(y) or len(x) > _MOST_EXAMPLES:
        return None
    names = ("x", "y", "validation_split", "validation_data", "folds", "early_stopping", "seed", "tau")
    split = splits.make_split(*(arguments[name] for name in names))
    values: list[float] = []
    for part in split.parts if split.whole is None else (split.whole,):
        if part.judge is not None:
            values += _joint_nlls(part, arguments["tau"])
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return scoring.Estimate(float(np.mean(values)), error)


def _joint_nlls(part: splits.Part, tau: int) -> list[float]:
    """Returns the joint NLL of each group of tau examples that judge, by a process fitted to those that do not."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    fitted = [part.train] if part.stop is None else [part.train, part.stop]
    x, y = np.concatenate([one.x for one in fitted]), np.concatenate([one.y for one in fitted]).ravel()
    mean, std = x.mean(axis=0), np.where(x.std(axis=0) > 0.0, x.std(axis=0), 1.0)
    width = math.sqrt(x.shape[1])
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(width, (0.05 * width, 50.0 * width)) + WhiteKernel(0.1, (1e-6, 1e2))
    process = GaussianProcessRegressor(kernel, normalize_y=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of lengths at their bounds: this is a baseline.
        process.fit((x - mean) / std, y)
    judge = part.judge
    assert judge is not None
    values = []
    for start in range(0, len(judge) // tau * tau, tau):
        rows = slice(start, start + tau)
        centers, covariance = process.predict((judge.x[rows] - mean) / std, return_cov=True)
        root = np.linalg.cholesky(covariance + 1e-10 * np.eye(tau))
        white = np.linalg.solve(root, judge.y[rows].ravel() - centers)
        values.append(float(0.5 * white @ white + np.log(np.diag(root)).sum() + 0.5 * tau * math.log(2.0 * math.pi)))
    return values
