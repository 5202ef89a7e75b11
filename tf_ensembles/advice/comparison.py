"""What `advise` keeps of each trained ensemble, and how it compares all of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles import metrics
from tf_ensembles.advice import scores as scoring
from tf_ensembles.advice import text
from tf_ensembles.advice.candidates import Candidate
from tf_ensembles.advice.result import BootstrapDiagnosis, Comparison, Row, Verdict
from tf_ensembles.advice.scores import DYADIC, JOINT, Choice, Scores
from tf_ensembles.advice.training import Trained
from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import outputs
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.intervals import Interval
from tf_ensembles.metrics import kinds
from tf_ensembles.metrics import likelihood as formulas
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.regression.distribution import PredictiveDistribution


@dataclasses.dataclass(frozen=True)
class Result:
    """What is kept of one candidate."""

    values: Floats  # [metrics, sizes, blocks]
    influence: Floats  # [metrics, sizes, 2, members]
    likelihood: Floats  # [examples, members]
    noise: Floats | None  # [examples]
    epochs: int
    diverged: int


def read(
    model: Ensemble, predictions: Array, y: Array, noise_std: float | None, log_density: float
) -> tuple[Floats, Floats | None]:
    """Returns likelihoods `[examples, members]` of targets, and the label noise `[examples]` that members predict.

    Args:
        model: the ensemble.
        predictions: its outputs `[examples, members, outputs]`.
        y: targets.
        noise_std: of a regression whose members predict values.
        log_density: to subtract, where targets are in other units.
    """
    if noise_std is not None:
        errors = (np.asarray(y, np.float64).reshape(len(y), 1, -1) - predictions) / noise_std
        densities = -0.5 * errors**2 - math.log(noise_std * math.sqrt(2.0 * math.pi))
        return np.sum(densities, axis=-1) - log_density, None
    kind = outputs.require(model.kind, model.loss)
    if model.head is not None:
        distribution = PredictiveDistribution.of_outputs(model.head, predictions)
        return distribution.member_log_prob(y) - log_density, distribution.aleatoric_std.mean(axis=1)
    labels = np.asarray(kinds.labels_tensor(tf.convert_to_tensor(y), kind, predictions.shape[-1]))
    likelihood = metrics.member_log_likelihood(predictions, labels, kind=kind)
    return likelihood, metrics.uncertainty(predictions, kind=kind).aleatoric


def evaluate(trained: Trained, num_judging: int, num_members: int, sizes: tuple[int, ...], tau: int) -> Result:
    """Scores all sub-ensembles of a candidate."""
    if trained.likelihood is None:
        values = np.full((2, len(sizes), num_judging // scoring.block_length(tau)), math.inf)
        influence = np.zeros((2, len(sizes), 2, num_members))
        return Result(values, influence, np.zeros((num_judging, num_members)), None, 0, trained.diverged)
    scored = scoring.score_members(trained.likelihood, sizes, tau)
    return Result(*scored, trained.likelihood, trained.noise, trained.epochs, 0)


def diagnose(scores: Scores, bootstrap: Bootstrap | None, results: Sequence[Result], tau: int) -> BootstrapDiagnosis:
    """Compares the arms as a whole, and where labels are noisy and where not."""
    noises = [one.noise for one in results if one.noise is not None]
    # A mean over all trained ensembles, so that none of those compared decides alone what is noisy.
    noise = np.mean(noises, axis=0) if noises else None
    spread = None if noise is None else (float(np.quantile(noise, 0.1)), float(np.quantile(noise, 0.9)))
    if bootstrap is None:
        return BootstrapDiagnosis("not tried", "none", math.nan, noise=spread)
    difference = scoring.bootstrap_difference(scores, JOINT)
    verdict: Verdict = "no difference shown"
    if difference.high < 0.0:
        verdict = "helps"
    elif difference.low > 0.0:
        verdict = "hurts"
    noisy = quiet = None
    if noise is not None:
        order = np.argsort(-noise, kind="stable")
        plain, other = (scoring.best_scale(scores, arm, scores.means()) for arm in (0, 1))
        pair = results[plain].likelihood, results[scores.usable.shape[1] + other].likelihood
        noisy, quiet = (_difference(*pair, rows, tau) for rows in np.array_split(order, 2))
    return BootstrapDiagnosis(
        verdict,
        repr(bootstrap),
        probability=0.5 * math.erfc(difference.estimate / (max(difference.error, 1e-300) * math.sqrt(2.0))),
        difference=difference,
        dyadic=scoring.bootstrap_difference(scores, DYADIC),
        noisy=noisy,
        quiet=quiet,
        noise=spread,
    )


def _difference(plain: Floats, other: Floats, rows: NDArray[np.int64], tau: int) -> Interval:
    """Returns the difference in joint NLL on some of the examples, in the order in which they were drawn."""
    rows = np.sort(rows)
    groups, pseudo = zip(*(scoring.joint_scores(part[rows][:, None], tau) for part in (plain, other)), strict=True)
    by_member = (pseudo[1] - pseudo[0]).mean(axis=(0, 1))
    return scoring.mean_estimate((groups[1] - groups[0])[:, 0], by_member - by_member.mean())


def table(
    scores: Scores,
    choice: Choice,
    arms: Sequence[Bootstrap | None],
    tried: Sequence[Candidate],
    sizes: Sequence[int],
    results: Sequence[Result],
) -> Iterator[Row]:
    """Yields a row per candidate."""
    for arm, scale, size in np.ndindex(len(arms), len(tried), len(sizes)):
        result, at = results[arm * len(tried) + scale], Choice(arm, scale, size)
        numbers: dict[str, float] = {}
        for metric, name in ((DYADIC, "dyadic"), (JOINT, "joint")):
            with np.errstate(invalid="ignore"):  # Where members diverged.
                value, behind = scores.estimate(metric, at), scores.estimate(metric, at, choice)
            numbers |= {f"{name}_nll": value.estimate, f"{name}_error": value.error}
            numbers |= {f"{name}_behind": behind.estimate, f"{name}_behind_error": behind.error}
        numbers["marginal_nll"] = float(-formulas.log_mean_exp(result.likelihood).mean())
        if result.diverged:
            numbers = dict.fromkeys(numbers, math.nan)
        prior = tried[scale]
        yield Row(
            prior.scale,
            text.bootstrap_name(arms[arm]),
            sizes[size],
            length_scale=prior.length_scale,
            epochs=result.epochs,
            diverged=result.diverged,
            **numbers,
        )


def compare(scores: Scores, arm: int) -> Comparison | None:
    """Compares the best of the others with the plain ensemble; None if there is no other, or the plain one diverged."""
    if not scores.usable[0, 0] or not scores.others(arm).any():
        return None
    joint, dyadic = (scoring.gain(scores, arm, metric) for metric in (JOINT, DYADIC))
    return Comparison(scoring.beats_plain(joint, dyadic), joint, dyadic)
