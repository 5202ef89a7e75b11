"""`tfe.assess`: a model on test data, as numbers with intervals, and as a page.

All content is one dictionary: the JSON file is that dictionary, and the page is drawn from it.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks, files
from tf_ensembles.assessment import content, page
from tf_ensembles.ensemble import outputs
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.metrics import likelihood
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import heads


class Assessment:
    """The result of `tfe.assess`. `content` is all of it, as JSON has it; the page shows nothing else."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def score(self, name: str, subject: str | None = None) -> tuple[float, float, float]:
        """Returns a score and the ends of its 95% interval.

        Args:
            name: such as `"nll"`.
            subject: whose, such as `"one member"`; by default the model's own.
        """
        subjects = {one["name"]: one["scores"] for one in self.content["subjects"]}
        whose = next(iter(subjects)) if subject is None else subject
        if whose not in subjects or name not in subjects[whose]:
            known = {one: sorted(scores) for one, scores in subjects.items()}
            raise ValueError(f"Expected a subject and one of its scores: {known}. Received: {whose!r} and {name!r}")
        score = subjects[whose][name]
        value, low, high = (np.nan if score[part] is None else score[part] for part in ("value", "low", "high"))
        return value, low, high

    def to_json(self) -> str:
        """Returns all numbers as a JSON document."""
        return json.dumps(self.content, indent=1, allow_nan=False) + "\n"

    def to_html(self) -> str:
        """Returns the page, which needs no other file."""
        return page.render(self.content)

    def save(self, path: str | os.PathLike[str]) -> list[pathlib.Path]:
        """Writes the page, and the numbers beside it; returns both paths.

        Args:
            path: such as `"assessment.html"`; the numbers are in `"assessment.json"`.
        """
        target = pathlib.Path(path)
        if target.suffix != ".html":
            raise ValueError(f"Expected a path that ends in .html. Received: {str(path)!r}")
        if target.is_dir() or not target.parent.is_dir():
            raise ValueError(f"Expected a file in a folder that exists. Received: {str(path)!r}")
        paths = [target, target.with_suffix(".json")]
        for one, text in zip(paths, (self.to_html(), self.to_json()), strict=True):
            with files.atomic_path(one) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return paths

    def __str__(self) -> str:
        return page.text(self.content)


def assess(
    model: Any,
    x: Any,
    y: ArrayLike,
    *,
    x_ood: Any = None,
    groups: ArrayLike | None = None,
    class_names: Sequence[str] | None = None,
    level: float = 0.9,
    tau: int = 10,
    kind: str | None = None,
    num_draws: int = 1000,
    seed: int = 0,
    batch_size: int | None = None,
    title: str = "Assessment",
) -> Assessment:
    """Returns how good a model is on test data: scores with 95% intervals, curves, slices, and OOD detection.

    An ensemble is compared with one member, the mean over up to ten of what each scores alone; a calibrated model also
    with what it was before. Intervals come from examples drawn with replacement, the same for all.

    Args:
        model: a `tfe.Ensemble`, what `tfe.calibrate` returned, or a plain Keras model.
        x: test inputs `[examples, ...]`, which took no part in training or calibration.
        y: their labels `[examples]` or one-hot rows; targets `[examples, targets]` for a regression.
        x_ood: out-of-distribution inputs, `[ood, ...]`: how well do scores tell them from `x`?
        groups: `[examples]` of strings or whole numbers, to score each group by itself.
        class_names: one per class.
        level: of sets and intervals; a conformal model has its own.
        tau: labels per joint prediction.
        kind: what a plain model's outputs are, such as `"logits"`, where its loss does not say.
        num_draws: of the examples, for intervals.
        seed: of these draws, and of the pairs of the joint score.
        batch_size: examples per prediction.
        title: of the page.
    """
    checks.integer("num_draws", num_draws, 2)
    checks.integer("tau", tau, 1, likelihood.MOST_DRAWS)
    checks.seed(seed)
    heads.check_level(level)
    served = _served(model, kind)
    if np.ndim(y) == 0 or len(np.asarray(y)) < 2:
        raise ValueError(f"Expected at least two test examples. Received: y of shape {np.shape(y)}")
    settings = {"level": level, "tau": tau, "num_draws": num_draws, "seed": seed}
    return Assessment(
        content.make(
            served,
            x,
            y,
            x_ood=x_ood,
            groups=_check_groups(groups, len(np.asarray(y))),
            class_names=class_names,
            settings=settings,
            batch_size=batch_size,
            title=title,
        )
    )


def _served(model: Any, kind: str | None) -> Served:
    """Returns the model as one that has members; a plain Keras model is an ensemble of one."""
    if isinstance(model, Served):
        if kind is not None:
            raise ValueError(f"Expected kind for a plain Keras model only. Received: {kind!r}")
        outputs.the_one(model, "tfe.assess").refuse_positions("tfe.assess")
        return model
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected a Keras model or a tfe.Ensemble. Received: {type(model).__name__}")
    if kind is None and getattr(model, "loss", None) is None:
        raise ValueError(
            "Expected a compiled model, whose loss says what its outputs are, or kind= in "
            f"{[one.value for one in Kind]}. Received: a model without a loss"
        )
    ensemble = Ensemble.from_models([model], **({"outputs": kind} if kind is not None else {}))
    if kind is None:
        ensemble.compile(loss=model.loss)
    return ensemble


def _check_groups(groups: ArrayLike | None, size: int) -> NDArray[Any] | None:
    if groups is None:
        return None
    given = np.asarray(groups)
    if given.shape != (size,) or given.dtype.kind not in "iubUS":
        raise ValueError(
            f"Expected groups [{size}] of strings or whole numbers. Received: {given.dtype} of shape {given.shape}"
        )
    if len(np.unique(given)) > content.MOST_SLICES:
        raise ValueError(f"Expected at most {content.MOST_SLICES} groups. Received: {len(np.unique(given))}")
    return given
