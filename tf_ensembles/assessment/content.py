"""All that an assessment says of a model, as the dictionary that the JSON file holds.

Shapes: member outputs `[examples, members, outputs]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import intervals
from tf_ensembles.assessment import classes, statistics
from tf_ensembles.assessment.classes import Classes
from tf_ensembles.assessment.numbers import Numbers
from tf_ensembles.assessment.statistics import Statistic
from tf_ensembles.decisions.conformal import Conformal
from tf_ensembles.decisions.wrapped import Wrapped
from tf_ensembles.ensemble import outputs as outputs_lib
from tf_ensembles.ensemble.serving import Served
from tf_ensembles.metrics import functions, likelihood
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.version import __version__

MOST_SLICES = 100
_MOST_MEMBERS = 10  # of which the mean is taken for "one member"
_OOD_DRAWS = 200  # at most: each sorts both sets
_BINS = 30  # of the histograms of scores
_ONE_MEMBER, _BEFORE = "one member", "before calibration"

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


def make(
    model: Served,
    x: Any,
    y: Any,
    *,
    x_ood: Any,
    groups: NDArray[Any] | None,
    class_names: Sequence[str] | None,
    settings: dict[str, Any],
    batch_size: int | None,
    title: str,
) -> dict[str, Any]:
    """Returns the content; arguments are as for `tfe.assess`, checked."""
    chain = [model]  # the model, and what it was made from
    while isinstance(chain[-1], Wrapped):
        chain.append(chain[-1].model)
    healthy = np.flatnonzero(~model.diverged)
    if not len(healthy):
        raise ValueError("Expected a member that has not diverged. Received: none")
    conformal = next((one for one in chain if isinstance(one, Conformal)), None)
    settings = settings | ({"level": conformal.level} if conformal is not None else {})

    def outputs_of(one: Served, inputs: Any) -> NDArray[Any]:
        outputs = np.asarray(one.predict(inputs, batch_size=batch_size, verbose=0))
        if outputs.ndim != 3 or not np.isfinite(outputs[:, healthy]).all():
            raise ValueError(
                f"Expected finite member outputs [examples, members, outputs]. Received: shape {outputs.shape}"
                f"{'' if outputs.ndim != 3 else ', with NaN or infinite values'}"
            )
        return outputs[:, healthy]

    def read(one: Served, promised: Any = None) -> Classes | Numbers:
        outputs = outputs_of(one, x)
        if len(np.asarray(y)) != len(outputs):
            raise ValueError(f"Expected as many y as x, {len(outputs)}. Received: {len(np.asarray(y))}")
        if one.head is not None:
            return Numbers.read(outputs, one.head, y, settings["level"], promised)
        kind = outputs_lib.require(one.kind, one._member_loss)
        return Classes.read(outputs, kind, y, settings["level"], promised)

    promised = None
    if conformal is not None:
        predict: Any = conformal.predict_set if model.head is None else conformal.predict_interval
        promised = predict(x, groups=groups if conformal.by == "group" else None, batch_size=batch_size)
    whole = members = read(model, promised)
    name = "ensemble" if len(healthy) > 1 else "model"
    if len(chain) > 1:
        name = "conformal" if isinstance(model, Conformal) else "calibrated"
    subjects: dict[str, list[Any]] = {name: [whole]}  # by name, those whose scores are averaged
    if len(chain) > 1:
        members = read(chain[-1])
        subjects[_BEFORE] = [members]
    if members.num_members > 1:
        subjects[_ONE_MEMBER] = [members.member(one) for one in range(min(members.num_members, _MOST_MEMBERS))]
    known, facts = None, {"examples": len(np.asarray(y)), "members": len(healthy)}
    if x_ood is not None:
        strange = outputs_of(model, x_ood)
        facts["out-of-distribution examples"] = len(strange)
        known = _ood(whole.ood_scores(strange, model.kind), settings)
    if len(model.diverged) > len(healthy):
        facts["members left out, diverged"] = len(model.diverged) - len(healthy)
    slices = []
    if isinstance(whole, Classes):
        names = _check_names(class_names, whole.logits.shape[-1])
        facts["classes"] = len(names)
        if len(names) <= MOST_SLICES:
            slices.append(_slices("class", whole.labels, dict(enumerate(names)), whole, settings))
    elif class_names is not None:
        raise ValueError("Expected class_names for classes only. Received: a regression")
    if groups is not None:
        slices.append(_slices("group", groups, {one: str(one) for one in np.unique(groups)}, whole, settings))
    return {
        "schema": 3,
        "title": str(title),
        "task": whole.task,
        "facts": facts,
        "settings": {**settings, "interval": 1.0 - intervals.LEVEL, "version": __version__},
        **_scores(subjects, facts["examples"], settings, whole.covers),
        "curves": {name: ones[0].curves() for name, ones in subjects.items()},
        "slices": slices,
        "ood": known,
    }


def _check_names(names: Sequence[str] | None, count: int) -> list[str]:
    listed = [str(one) for one in (range(count) if names is None else names)]
    if len(listed) != count:
        raise ValueError(f"Expected {count} class names. Received: {len(listed)}")
    return listed


def _scores(subjects: dict[str, list[Any]], size: int, settings: dict[str, Any], covers: str) -> dict[str, Any]:
    """Returns what the scores are, and those of each subject with their differences from the first."""
    tau = settings["tau"]
    values: dict[str, dict[str, Statistic]] = {name: {} for name in subjects}
    drawn: dict[Any, Floats] = {}
    for count, of in ((size, _single), (size // 2, _dyadic), (size // tau, _joint)):
        averages = {name: _averaged([of(one, settings) for one in ones]) for name, ones in subjects.items()}
        flat = {(name, score): one for name, own in averages.items() for score, one in own.items()}
        drawn |= statistics.resample(flat, count, settings["num_draws"], settings["seed"]) if flat else {}
        values = {name: values[name] | averages[name] for name in values}
    first = next(iter(subjects))
    order = [score for score in SCORES if any(score in own for own in values.values())]
    words = {"tau": tau, "level": f"{settings['level']:.0%}", "what": covers}
    about = [(score, *(text.format(**words) for text in SCORES[score])) for score in order]
    listed = []
    for name, own in values.items():
        shared = [score for score in order if score in own and score in values[first] and name != first]
        differences = {
            score: statistics.difference(values[first][score], own[score], drawn[first, score], drawn[name, score])
            for score in shared
        }
        estimates = {score: statistics.estimate(own[score], drawn[name, score]) for score in order if score in own}
        listed.append(
            {
                "name": name,
                "scores": {score: statistics.to_dict(one) for score, one in estimates.items()},
                "model_less_this": {score: statistics.to_dict(one) for score, one in differences.items()},
            }
        )
    return {
        "scores": [dict(zip(("name", "label", "better", "about"), row, strict=True)) for row in about],
        "subjects": listed,
    }


def _single(predictions: Any, settings: dict[str, Any]) -> dict[str, Statistic]:
    """Returns the scores of single examples."""
    return dict(predictions.scores())


def _dyadic(predictions: Any, settings: dict[str, Any]) -> dict[str, Statistic]:
    """Returns the dyadic NLL of each pair of a random order, where there is a density."""
    values = predictions.log_likelihoods()
    if values is None:
        return {}
    pairs = len(values) // 2
    order = np.random.default_rng(settings["seed"]).permutation(len(values))[: 2 * pairs].reshape(pairs, 2)
    nll = functions.dyadic_values(values, order, settings["tau"], settings["seed"])
    return {"dyadic_nll": statistics.mean(nll, predictions.least_nll)}


def _joint(predictions: Any, settings: dict[str, Any]) -> dict[str, Statistic]:
    """Returns the joint NLL of each group of tau examples of a random order, where there is a density and a group."""
    values = predictions.log_likelihoods()
    if values is None or len(values) < settings["tau"]:
        return {}
    order = np.random.default_rng(settings["seed"]).permutation(len(values))
    nll = -likelihood.log_mean_exp(likelihood.joint(values[order], settings["tau"]))
    return {"joint_nll": statistics.mean(nll, predictions.least_nll)}


def _averaged(parts: list[dict[str, Statistic]]) -> dict[str, Statistic]:
    if len(parts) == 1:
        return parts[0]
    return {score: statistics.average([part[score] for part in parts]) for score in parts[0]}


def _slices(
    what: str, labels: NDArray[Any], names: dict[Any, str], predictions: Any, settings: dict[str, Any]
) -> dict[str, Any]:
    """Returns scores of the examples of each label."""
    values = predictions.values()
    inside = {label: labels == label for label in names}
    flat = {
        (label, score): statistics.mean(own, inside=inside[label]) for label in names for score, own in values.items()
    }
    drawn = statistics.resample(flat, len(labels), settings["num_draws"], settings["seed"])
    estimates = {key: statistics.to_dict(statistics.estimate(flat[key], drawn[key])) for key in flat}
    rows = [
        {
            "name": name,
            "count": int(inside[label].sum()),
            "scores": {score: estimates[label, score] for score in values},
        }
        for label, name in names.items()
    ]
    return {"what": what, "labels": {score: SCORES[score][0] for score in values}, "rows": rows}


def _ood(pairs: dict[str, tuple[Floats, Floats]], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns how well out-of-distribution examples are told from known ones, by each method."""
    if not pairs:
        return {"scores": {}, "histogram": None}
    count = min(settings["num_draws"], _OOD_DRAWS)
    scores = {}
    for method, (known, strange) in pairs.items():
        estimates = classes.detection(known, strange, count, settings["seed"])
        scores[method] = {name: statistics.to_dict(one) for name, one in estimates.items()}
    method, (known, strange) = list(pairs.items())[-1]
    edges = np.histogram_bin_edges(np.concatenate([known, strange]), _BINS)
    shares = [(np.histogram(part, edges)[0] / len(part)).tolist() for part in (known, strange)]
    histogram = {"method": method, "edges": edges.tolist(), "known": shares[0], "ood": shares[1]}
    return {"scores": scores, "histogram": histogram}
