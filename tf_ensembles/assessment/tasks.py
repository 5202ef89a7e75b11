"""Puts together what is said of a model: one task for classes, one for numbers.

Shapes: member outputs `[examples, members, outputs]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles.assessment import classes, intervals, numbers
from tf_ensembles.assessment.intervals import Statistic
from tf_ensembles.decisions.conformal import Conformal
from tf_ensembles.decisions.wrapped import Wrapped
from tf_ensembles.ensemble import outputs as outputs_lib
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.metrics import functions, kinds, likelihood
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.version import __version__

MOST_MEMBERS = 10  # of which the mean is taken for "one member"
MOST_SLICES = 100
_FOREIGN_DRAWS = 200  # at most: each sorts both sets
_BINS = 30  # of the histograms of foreignness
ONE_MEMBER, BEFORE = "one member", "before calibration"

# What the page says of each score: label, which is better, and what it is.
SCORES = {
    "accuracy": ("accuracy", "higher", "share of examples whose most probable class is the label"),
    "rmse": ("RMSE", "lower", "root mean squared error, in units of the target"),
    "mae": ("MAE", "lower", "mean absolute error, in units of the target"),
    "nll": ("NLL", "lower", "negative log-likelihood per example, in nats"),
    "joint_nll": ("joint NLL", "lower", "of the labels of {tau} different examples together, in nats"),
    "dyadic_nll": ("dyadic NLL", "lower", "of {tau} labels together, drawn from two examples that repeat, in nats"),
    "brier": ("Brier score", "lower", "squared error of the probabilities, between 0 and 2"),
    "ece": ("ECE", "lower", "expected calibration error: how far confidence is from accuracy, over 15 bins"),
    "aurc": ("AURC", "lower", "area under the risk-coverage curve: errors left, averaged over how many are answered"),
    "crps": ("CRPS", "lower", "continuous ranked probability score, in units of the target"),
    "coverage": ("coverage", "{level}", "how often the truth is in the {what} of {level}"),
    "set_size": ("set size", "smaller", "labels per set of {level}"),
    "width": ("interval width", "smaller", "of the interval of {level}, in units of the target"),
}


class Questions:
    """What is asked of the model once: member outputs, of its own and of what it was before calibration."""

    def __init__(self, model: Served, x: Any, x_ood: Any, groups: NDArray[Any] | None, batch_size: int | None) -> None:
        self.model, self.groups, self._x, self._batch_size = model, groups, x, batch_size
        self.chain = [model]  # the model, and what it was made from
        while isinstance(self.chain[-1], Wrapped):
            self.chain.append(self.chain[-1].model)
        self.healthy = np.flatnonzero(~model.diverged)
        if not len(self.healthy):
            raise ValueError("Expected a member that has not diverged. Received: none")
        self.own = self._predict(x)
        self.before = self._predict(x, self.chain[-1]) if len(self.chain) > 1 else None
        self.foreign = None if x_ood is None else self._predict(x_ood)

    def _predict(self, x: Any, model: Any = None) -> NDArray[Any]:
        found = np.asarray((model or self.model).predict(x, batch_size=self._batch_size, verbose=0))
        if found.ndim != 3 or not np.isfinite(found[:, self.healthy]).all():
            raise ValueError(
                f"Expected finite member outputs [examples, members, outputs]. Received: shape {found.shape}"
                f"{'' if found.ndim != 3 else ', with NaN or infinite values'}"
            )
        return found[:, self.healthy]

    def promise(self, method: str) -> Any:
        """Returns the sets or intervals of a conformal model; None where nothing is promised."""
        for one in self.chain:
            if isinstance(one, Conformal):
                groups = self.groups if one.by == "group" else None
                return getattr(one, method)(self._x, groups=groups, batch_size=self._batch_size)
        return None

    @property
    def name(self) -> str:
        """What the model is called."""
        if isinstance(self.model, Conformal):
            return "conformal"
        if len(self.chain) > 1:
            return "calibrated"
        return "ensemble" if len(self.healthy) > 1 else "model"


class Task:
    """Puts the content together; subclasses know classes or numbers."""

    what, slice_scores, task = "", (), ""
    least_nll = -math.inf  # densities have no bound

    def __init__(
        self, ask: Questions, y: Any, names: Sequence[str] | None, settings: dict[str, Any], title: str
    ) -> None:
        self.ask, self.names, self.settings, self.title = ask, names, settings, title
        self.size = len(ask.own)
        if len(np.asarray(y)) != self.size:
            raise ValueError(f"Expected as many y as x, {self.size}. Received: {len(np.asarray(y))}")
        self.prepare(y)

    def prepare(self, y: Any) -> None:
        """Reads labels or targets, and makes the subjects."""

    def subjects(self) -> list[tuple[str, list[Any]]]:
        """Returns names, each with the subjects whose scores are averaged."""
        raise AssertionError  # Subclasses have it.

    def dyadic(self, subject: Any) -> dict[str, Statistic]:
        """Returns the score of pairs, where there is a density."""
        values = self.log_likelihoods(subject)
        if values is None:
            return {}
        scores = classes.dyadic(values, self.settings["tau"], self.settings["seed"])
        return {"dyadic_nll": intervals.mean(scores, self.least_nll)}

    def joint(self, subject: Any) -> dict[str, Statistic]:
        """Returns the score of groups of different examples, where there is a density and a group."""
        values = self.log_likelihoods(subject)
        if values is None or len(values) < self.settings["tau"]:
            return {}
        scores = classes.joint(values, self.settings["tau"], self.settings["seed"])
        return {"joint_nll": intervals.mean(scores, self.least_nll)}

    def content(self) -> dict[str, Any]:
        """Returns all that is said."""
        settings = self.settings
        words = {"tau": settings["tau"], "level": f"{settings['level']:.0%}", "what": self.what}
        subjects = self.subjects()
        singles = {name: _averaged([self.statistics(one) for one in ones]) for name, ones in subjects}
        drawn = self._drawn(singles, self.size)
        pairs = {name: _averaged([self.dyadic(one) for one in ones]) for name, ones in subjects}
        groups = {name: _averaged([self.joint(one) for one in ones]) for name, ones in subjects}
        found = {name: singles[name] | pairs[name] | groups[name] for name in singles}
        all_drawn = drawn | self._drawn(pairs, self.size // 2) | self._drawn(groups, self.size // settings["tau"])
        first = subjects[0][0]
        order = [score for score in SCORES if any(score in own for own in found.values())]
        return {
            "schema": 2,  # 1 had the dyadic NLL under the name of the joint one.
            "title": str(self.title),
            "task": self.task,
            "facts": self.facts(),
            "settings": {**settings, "interval": intervals.LEVEL, "version": __version__},
            "scores": [
                {
                    "name": score,
                    "label": SCORES[score][0],
                    "better": SCORES[score][1].format(**words),
                    "about": SCORES[score][2].format(**words),
                }
                for score in order
            ],
            "subjects": [
                {
                    "name": name,
                    "scores": {
                        score: intervals.estimate(found[name][score], all_drawn[name, score]).to_dict()
                        for score in order
                        if score in found[name]
                    },
                    "model_less_this": {
                        score: intervals.difference(
                            found[first][score],
                            found[name][score],
                            all_drawn[first, score],
                            all_drawn[name, score],
                        ).to_dict()
                        for score in order
                        if score in found[name] and score in found[first] and name != first
                    },
                }
                for name, _ in subjects
            ],
            "curves": {name: self.curves(ones) for name, ones in subjects},
            "slices": self.slices(),
            "foreign": self.foreign(),
        }

    def _drawn(self, found: dict[str, dict[str, Statistic]], size: int) -> dict[Any, Floats]:
        flat = {(name, score): one for name, own in found.items() for score, one in own.items()}
        return intervals.resample(flat, size, self.settings["num_draws"], self.settings["seed"]) if flat else {}

    def facts(self) -> dict[str, Any]:
        """Returns what was assessed."""
        facts: dict[str, Any] = {"examples": self.size, "members": len(self.ask.healthy)}
        if self.ask.foreign is not None:
            facts["foreign examples"] = len(self.ask.foreign)
        left_out = len(self.ask.model.diverged) - len(self.ask.healthy)
        return facts | ({"members left out, diverged": left_out} if left_out else {})

    def _slices_of(self, what: str, labels: NDArray[Any], names: dict[Any, str]) -> dict[str, Any]:
        values = self.values()
        members = {place: labels == place for place in names}
        flat = {
            (place, score): intervals.mean(own, inside=inside)
            for place, inside in members.items()
            for score, own in values.items()
        }
        drawn = intervals.resample(flat, self.size, self.settings["num_draws"], self.settings["seed"])
        rows = [
            {
                "name": names[place],
                "count": int(members[place].sum()),
                "scores": {
                    score: intervals.estimate(flat[place, score], drawn[place, score]).to_dict() for score in values
                },
            }
            for place in names
        ]
        return {"what": what, "labels": {score: SCORES[score][0] for score in values}, "rows": rows}

    def slices(self) -> list[dict[str, Any]]:
        """Returns scores by group."""
        if self.ask.groups is None:
            return []
        return [self._slices_of("group", self.ask.groups, {one: str(one) for one in np.unique(self.ask.groups)})]

    def foreign(self) -> dict[str, Any] | None:
        """Returns how well foreign examples are told from known ones."""
        if self.ask.foreign is None:
            return None
        count = min(self.settings["num_draws"], _FOREIGN_DRAWS)
        pairs = self.foreign_scores()
        found = {
            method: {
                name: one.to_dict()
                for name, one in classes.detection(known, strange, count, self.settings["seed"]).items()
            }
            for method, (known, strange) in pairs.items()
        }
        if not pairs:
            return {"scores": {}, "histogram": None}
        method = list(pairs)[-1]
        known, strange = pairs[method]
        edges = np.histogram_bin_edges(np.concatenate([known, strange]), _BINS)
        shares = [(np.histogram(part, edges)[0] / len(part)).tolist() for part in (known, strange)]
        histogram = {"method": method, "edges": edges.tolist(), "known": shares[0], "foreign": shares[1]}
        return {"scores": found, "histogram": histogram}

    statistics: Any
    log_likelihoods: Any
    curves: Any
    values: Any
    foreign_scores: Any


class Classes(Task):
    """Of class predictions."""

    what, task = "set", "classification"
    least_nll = 0.0

    def prepare(self, y: Any) -> None:
        """Reads labels and logits."""
        model, own = self.ask.model, self.ask.own
        self.kind = outputs_lib.require(model.kind, model._member_loss)
        if self.kind.is_multilabel:
            raise ValueError("Expected one label per example. Received: outputs of several labels")
        self.logits = kinds.read(own, self.kind)[0]
        labels = np.asarray(kinds.labels_tensor(tf.convert_to_tensor(np.asarray(y)), self.kind, own.shape[-1]))
        self.labels = likelihood.check_labels(self.logits, labels)
        count = self.logits.shape[-1]
        self.class_names = [str(one) for one in (range(count) if self.names is None else self.names)]
        if len(self.class_names) != count:
            raise ValueError(f"Expected {count} class names. Received: {len(self.class_names)}")

    def subjects(self) -> list[tuple[str, list[classes.Subject]]]:
        """Returns the model, what it was before calibration, and members alone."""
        found = [(self.ask.name, [classes.Subject(self.ask.name, self.logits, self.ask.promise("predict_set"))])]
        members = self.logits
        if self.ask.before is not None:
            members = kinds.read(self.ask.before, outputs_lib.require(self.ask.chain[-1].kind, None))[0]
            found.append((BEFORE, [classes.Subject(BEFORE, members)]))
        if members.shape[1] > 1:
            alone = range(min(members.shape[1], MOST_MEMBERS))
            found.append((ONE_MEMBER, [classes.Subject(ONE_MEMBER, members[:, [one]]) for one in alone]))
        return found

    def statistics(self, subject: classes.Subject) -> dict[str, Statistic]:
        """Returns scores of examples."""
        return classes.scores(subject, self.labels, self.settings["level"])

    def log_likelihoods(self, subject: classes.Subject) -> Floats:
        """Returns that of each label by each member, `[examples, members]`."""
        return likelihood.log_likelihood(subject.logits, self.labels)

    def curves(self, ones: list[classes.Subject]) -> dict[str, Any]:
        """Returns curves, of several members those of the first."""
        return classes.curves(ones[0], self.labels)

    def values(self) -> dict[str, Any]:
        """Returns what slices average."""
        (_, (subject, *_)), *_ = self.subjects()
        probabilities = likelihood.mixture_probabilities(self.logits)
        sets = subject.sets
        if sets is None:
            sets = classes.probable_sets(probabilities, self.settings["level"])
        return {
            "accuracy": functions.predicted(probabilities) == self.labels,
            "nll": classes.nll(self.logits, self.labels),
            "coverage": sets[np.arange(self.size), self.labels],
        }

    def slices(self) -> list[dict[str, Any]]:
        """Returns scores by class, and by group."""
        names = dict(enumerate(self.class_names))
        by_class = [self._slices_of("class", self.labels, names)] if len(names) <= MOST_SLICES else []
        return by_class + super().slices()

    def facts(self) -> dict[str, Any]:
        """Returns what was assessed."""
        return super().facts() | {"classes": len(self.class_names)}

    def foreign_scores(self) -> dict[str, tuple[Floats, Floats]]:
        """Returns how foreign examples look."""
        strange: Any = self.ask.foreign
        return classes.foreign_scores(self.logits, kinds.read(strange, self.kind)[0])


class Numbers(Task):
    """Of a regression."""

    what, task = "interval", "regression"

    def prepare(self, y: Any) -> None:
        """Reads targets."""
        if self.names is not None:
            raise ValueError("Expected class_names for classes only. Received: a regression")
        self.head = self.ask.model.head
        self.targets = numbers.check(self.ask.own, self.head, y)

    def subjects(self) -> list[tuple[str, list[numbers.Subject]]]:
        """Returns the model, what it was before calibration, and members alone."""
        bounds = self.ask.promise("predict_interval")
        found = [(self.ask.name, [numbers.Subject(self.ask.name, self.head, self.ask.own, bounds)])]
        members, head = self.ask.own, self.head
        if self.ask.before is not None:
            members, head = self.ask.before, self.ask.chain[-1].head
            found.append((BEFORE, [numbers.Subject(BEFORE, head, members)]))
        if members.shape[1] > 1:
            alone = range(min(members.shape[1], MOST_MEMBERS))
            found.append((ONE_MEMBER, [numbers.Subject(ONE_MEMBER, head, members[:, [one]]) for one in alone]))
        return found

    def statistics(self, subject: numbers.Subject) -> dict[str, Statistic]:
        """Returns scores of examples."""
        return numbers.statistics(subject, self.targets, self.settings["level"])

    def log_likelihoods(self, subject: numbers.Subject) -> Floats | None:
        """Returns that of each target by each member, `[examples, members]`; None where there is no density."""
        return subject.distribution().member_log_prob(self.targets) if subject.has_noise else None

    def curves(self, ones: list[numbers.Subject]) -> dict[str, Any]:
        """Returns curves, of several members those of the first."""
        return numbers.curves(ones[0], self.targets)

    def values(self) -> dict[str, Any]:
        """Returns what slices average."""
        (_, (subject, *_)), *_ = self.subjects()
        distribution = subject.distribution()
        found = {"mae": np.abs(distribution.mean - self.targets).mean(axis=1)}
        if subject.has_noise:
            found["nll"] = -distribution.log_prob(self.targets)
        return found

    def foreign_scores(self) -> dict[str, tuple[Floats, Floats]]:
        """Returns how much members disagree."""
        strange: Any = self.ask.foreign
        return numbers.foreign_scores(*(numbers.Subject("", self.head, part) for part in (self.ask.own, strange)))


def _averaged(parts: list[dict[str, Statistic]]) -> dict[str, Statistic]:
    if len(parts) == 1:
        return parts[0]
    return {score: intervals.average([part[score] for part in parts]) for score in parts[0]}
