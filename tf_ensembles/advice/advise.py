"""`advise`: which prior scale, how many members, and whether to bootstrap, for your model and your data.

It trains one ensemble per prior scale, with and without bootstrap, and compares them on a validation split by two joint
NLLs: of tau different examples, and the dyadic NLL, of two examples repeated with their labels. Smaller sizes are
sub-ensembles of the same members. The rule, in this order:

1. Bootstrap only if it is shown to help: if the 95% interval of the paired difference in joint NLL, each side with its
   own best prior scale, lies below zero. A bootstrap takes data away from every member, so it has to earn its place.
2. Of the prior scales whose joint NLL at the largest size is within one standard error of the lowest, the one with the
   lowest dyadic NLL. The dyadic NLL sees best how members differ, but it repeats labels, so that it takes noise for
   something that members should know, and alone would ask for prior scales that are too large.
3. The smallest size whose NLLs are both within one standard error of the largest size's.

Standard errors are those of paired differences, and allow for other validation examples and for other members. Nothing
is judged by the examples that chose it: in the difference of step 1 and in the NLLs of an `Advice`, one half of the
validation split chooses and the other judges, both ways round. The table shows every candidate on the whole split, so
its lowest values flatter.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles import metrics
from tf_ensembles.advice import scores as advisor_scores
from tf_ensembles.advice.scores import DYADIC, JOINT, Choice, Estimate, Scores
from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bernoulli, Bootstrap
from tf_ensembles.ensemble import data as checks
from tf_ensembles.ensemble import outputs
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.ensemble.outputs import Kind
from tf_ensembles.metrics import likelihood as member_logits
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.prior import PriorFunction

Verdict = Literal["helps", "hurts", "no difference shown", "not tried"]

_SIZES = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
_HALF = Bernoulli(0.5)
# Training goes on for at least this many steps and epochs unless told otherwise: members must have learnt their data.
_LEAST_STEPS, _LEAST_EPOCHS = 1000, 10
# Blocks of validation examples that a split must have: fewer tell nothing about the spread between them.
_LEAST_BLOCKS = 10
_NUM_RESAMPLES = 500

_NUMBERS = (
    *(f"{name}_{what}" for name in ("dyadic", "joint") for what in ("nll", "error", "behind", "behind_error")),
    "marginal_nll",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One candidate on the whole validation split. NLLs are in nats per tau labels, with their standard errors.

    `behind` is the paired difference from the recommended candidate: above 0 is worse.
    """

    prior_scale: float
    bootstrap: str  # the law, or "none"
    num_members: int
    dyadic_nll: float
    dyadic_error: float
    dyadic_behind: float
    dyadic_behind_error: float
    joint_nll: float
    joint_error: float
    joint_behind: float
    joint_behind_error: float
    marginal_nll: float  # of all trained members, in nats per label
    diverged: int  # members whose training diverged; such a configuration is never recommended


@dataclasses.dataclass(frozen=True)
class Confidence:
    """How often other validation examples and other members would lead to the same advice, as shares of resamples."""

    prior_scale: float
    num_members: float


@dataclasses.dataclass(frozen=True)
class BootstrapDiagnosis:
    """Whether bootstrapping helps here. Differences are with minus without, in nats per tau labels: below 0 it helps.

    The paper's message is that bootstrapping pays where the signal-to-noise ratio differs between inputs. `noise` has
    the 10% and 90% quantiles over examples of the label noise that members see, their mean entropy in nats; `noisy` and
    `quiet` are the difference on the half of the validation split where they see more of it, and on the other. Members
    that fit noise do not see it: a gain on the quiet half may mean just that.
    """

    verdict: Verdict
    law: str
    probability: float  # that it helps, by the normal law of the difference; NaN if not tried
    difference: Estimate | None = None  # of the joint NLL: it decides
    dyadic: Estimate | None = None
    noisy: Estimate | None = None  # of the joint NLL
    quiet: Estimate | None = None
    noise: tuple[float, float] | None = None  # None for a regression, whose noise is what `noise_std` says


@dataclasses.dataclass(frozen=True)
class Advice:
    """What `advise` recommends, what it saw, and how sure it is. `print` it, or `plot` it."""

    prior_scale: float
    num_members: int
    bootstrap: Bootstrap | None
    joint_nll: Estimate  # of advice like this: chosen on one half of the validation split, judged on the other
    dyadic_nll: Estimate  # likewise
    confidence: Confidence
    diagnosis: BootstrapDiagnosis
    table: tuple[Row, ...]
    tau: int
    num_validation: int
    notes: tuple[str, ...]  # what to try next

    @property
    def recommended(self) -> Row:
        """The recommended row of the table."""
        wanted = (self.prior_scale, _law_name(self.bootstrap), self.num_members)
        return next(row for row in self.table if (row.prior_scale, row.bootstrap, row.num_members) == wanted)

    def plot(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Draws both NLLs against ensemble size and against prior scale, with intervals, and returns the path."""
        from tf_ensembles.advice import plot as advisor_plot

        return advisor_plot.plot(self, path)

    def __str__(self) -> str:
        prior = f"tfe.PriorFunction(build_prior, scale={self.prior_scale:g})" if self.prior_scale else "None"
        law = "None" if self.bootstrap is None else f"tfe.{self.bootstrap!r}"
        chosen, largest = self.recommended, max(row.num_members for row in self.table)
        shown = [row for row in self.table if row.num_members == largest]
        same = [
            row
            for row in self.table
            if (row.prior_scale, row.bootstrap) == (chosen.prior_scale, chosen.bootstrap) and row not in shown
        ]
        return "\n".join(
            [
                f"tfe.Ensemble(build_member, num_members={self.num_members}, prior={prior}, bootstrap={law})",
                f"  prior scale {self.prior_scale:g}: {_sureness(self.confidence.prior_scale)}",
                f"  {self.num_members} members: {_sureness(self.confidence.num_members)}",
                *(f"  {line}" for line in _told(self.diagnosis)),
                f"  joint NLL of {self.tau} labels {self.joint_nll}",
                f"  dyadic NLL {self.dyadic_nll}",
                f"  both chosen on one half of {self.num_validation} validation examples and judged on the other",
                *(f"  note: {note}" for note in self.notes),
                "",
                f"{'prior scale':>11}  {'bootstrap':<16}  {'members':>7}  {'joint NLL':>15}  {'dyadic NLL':>15}",
                *(_line(row, chosen) for row in [*same, *shown]),
            ]
        )


def advise(
    build_member: Callable[[], keras.Model],
    x: Any,
    y: Any,
    *,
    build_prior: Callable[[], keras.Model] | None = None,
    prior_scales: Sequence[float] = (0.0, 0.3, 1.0, 3.0, 10.0),
    num_members: int = 20,
    sizes: Sequence[int] | None = None,
    bootstrap: Bootstrap | None = _HALF,
    loss: Any = None,
    optimizer: Any = "adam",
    epochs: int | None = None,
    batch_size: int = 100,
    l2: float = 0.0,
    noise_std: float | None = None,
    validation_split: float = 0.2,
    validation_data: tuple[Any, Any] | None = None,
    tau: int = 10,
    seed: int = 0,
    progress: bool = True,
) -> Advice:
    """Says which prior scale and ensemble size to use, and whether bootstrapping helps, from a validation split.

    Trains `len(prior_scales)` ensembles of `num_members`, twice as many with a bootstrap, one after the other. The
    rule is told by the module, `tf_ensembles.advice.advise`.

    Args:
        build_member: returns a new Keras model at each call, as for `Ensemble`.
        x: inputs `[batch, ...]`, or a structure of them.
        y: labels `[batch]`, or what the loss takes.
        build_prior: returns a new prior network; None means `build_member`.
        prior_scales: the scales to try; 0 is an ensemble without prior.
        num_members: the largest ensemble, the one that is trained.
        sizes: the sizes to choose from; None means 1, 2, 3, 5, 10, 20, 30, ... up to `num_members`.
        bootstrap: the law to try against none, by default `tfe.Bernoulli(0.5)`; None tries no other.
        loss: a Keras loss; None means softmax cross-entropy of integer labels from logits.
        optimizer: a name, or an optimizer whose configuration each training gets a copy of.
        epochs: None means enough for 1,000 steps, and at least 10.
        batch_size: examples per step.
        l2: weight decay per member, as for `Ensemble`.
        noise_std: for a regression, the standard deviation of its targets' Gaussian noise.
        validation_split: share of the examples, picked at random, that chooses and judges.
        validation_data: `(x, y)` to use instead of a split.
        tau: labels per joint prediction.
        seed: decides the split, initial weights, priors and bootstrap weights.
        progress: whether to show a progress bar.
    """
    scales, sizes = _check_scales(prior_scales), _check_sizes(num_members, sizes)
    _check_numbers(tau=tau, batch_size=batch_size, epochs=1 if epochs is None else epochs)
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise ValueError(f"Expected bootstrap to be a law such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss
    _check_regression(outputs.infer_kind(outputs.as_loss(loss)), loss, noise_std)
    train, validation = _split(x, y, validation_split, validation_data, seed, tau)
    if epochs is None:
        epochs = max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(len(train[1]) / batch_size)))
    arms: tuple[Bootstrap | None, ...] = (None,) if bootstrap is None else (None, bootstrap)
    seen = []
    for law, scale in _shown([(law, scale) for law in arms for scale in scales], progress):
        prior = PriorFunction(build_prior or build_member, scale) if scale else None
        model = Ensemble(build_member, num_members, prior=prior, bootstrap=law, l2=l2, seed=seed)
        model.compile(_copied(optimizer), loss)
        with _without_retracing_warnings():
            model.fit(*train, epochs=epochs, batch_size=batch_size, verbose=0)
            seen.append(_look(model, validation, sizes, tau, noise_std))
    grid = (len(arms), len(scales))
    scores = Scores(
        values=np.moveaxis(np.reshape([one.values for one in seen], (*grid, *seen[0].values.shape)), 2, 0),
        influence=np.moveaxis(np.reshape([one.influence for one in seen], (*grid, *seen[0].influence.shape)), 2, 0),
        usable=np.reshape([one.diverged == 0 for one in seen], grid),
    )
    if not scores.usable.any(axis=1).all():
        raise ValueError("Expected a prior scale at which no member diverges. Received: none; lower the learning rate")
    diagnosis = _diagnose(scores, bootstrap, seen, tau)
    choice = advisor_scores.choose(scores, int(diagnosis.verdict == "helps"), scores.means())
    return Advice(
        prior_scale=scales[choice.scale],
        num_members=sizes[choice.size],
        bootstrap=arms[choice.arm],
        joint_nll=advisor_scores.cross_fitted(scores, choice.arm, JOINT),
        dyadic_nll=advisor_scores.cross_fitted(scores, choice.arm, DYADIC),
        confidence=Confidence(*advisor_scores.agreement(scores, choice, _NUM_RESAMPLES, seed)),
        diagnosis=diagnosis,
        table=tuple(_rows(scores, choice, arms, scales, sizes, seen)),
        tau=tau,
        num_validation=len(validation[1]),
        notes=tuple(_notes(scores, choice, scales, sizes)),
    )


@dataclasses.dataclass(frozen=True)
class _Seen:
    """What is kept of one trained ensemble."""

    values: Floats  # [metrics, sizes, blocks]
    influence: Floats  # [metrics, sizes, 2, members]
    likelihood: Floats  # [examples, members]
    noise: Floats | None  # [examples]
    diverged: int


def _look(
    model: Ensemble, validation: tuple[Any, Array], sizes: tuple[int, ...], tau: int, noise_std: float | None
) -> _Seen:
    """Predicts the validation split and scores all sub-ensembles."""
    x, y = validation
    predictions = model.predict(x, batch_size=min(len(y), 256), verbose=0)
    diverged = int(model.diverged.sum())
    if diverged:
        blocks = len(y) // advisor_scores.block_length(tau)
        values = np.full((2, len(sizes), blocks), math.inf)
        influence = np.zeros((2, len(sizes), 2, model.num_members))
        return _Seen(values, influence, np.zeros((len(y), model.num_members)), None, diverged)
    if noise_std is not None:
        likelihood, noise = _gaussian_likelihood(predictions, y, noise_std), None
    else:
        logits = np.asarray(outputs.class_logits(model.kind, tf.convert_to_tensor(predictions)))
        labels = np.asarray(outputs.class_labels(tf.convert_to_tensor(y), logits.shape[-1]))
        likelihood, noise = metrics.member_log_likelihood(logits, labels), metrics.uncertainty(logits).aleatoric
    return _Seen(*advisor_scores.score_members(likelihood, sizes, tau), likelihood, noise, diverged)


def _gaussian_likelihood(predictions: Array, y: Array, noise_std: float) -> Floats:
    """Returns `log N(y_i; f_m(x_i), noise_std^2)`, `[examples, members]`, summed over targets."""
    errors = (np.asarray(y, np.float64).reshape(len(y), 1, -1) - predictions) / noise_std
    return np.sum(-0.5 * errors**2 - math.log(noise_std * math.sqrt(2.0 * math.pi)), axis=-1)


def _diagnose(scores: Scores, law: Bootstrap | None, seen: Sequence[_Seen], tau: int) -> BootstrapDiagnosis:
    """Compares the arms as a whole, and where labels are noisy and where not."""
    noises = [one.noise for one in seen if one.noise is not None]
    # A mean over all trained ensembles, so that none of those compared decides alone what is noisy.
    noise = np.mean(noises, axis=0) if noises else None
    spread = None if noise is None else (float(np.quantile(noise, 0.1)), float(np.quantile(noise, 0.9)))
    if law is None:
        return BootstrapDiagnosis("not tried", "none", math.nan, noise=spread)
    difference = advisor_scores.bootstrap_difference(scores, JOINT)
    verdict: Verdict = "no difference shown"
    if difference.high < 0.0:
        verdict = "helps"
    elif difference.low > 0.0:
        verdict = "hurts"
    noisy = quiet = None
    if noise is not None:
        order = np.argsort(-noise, kind="stable")
        plain, other = (advisor_scores.best_scale(scores, arm, scores.means()) for arm in (0, 1))
        pair = seen[plain].likelihood, seen[scores.usable.shape[1] + other].likelihood
        noisy, quiet = (_difference(*pair, rows, tau) for rows in np.array_split(order, 2))
    return BootstrapDiagnosis(
        verdict,
        repr(law),
        probability=0.5 * math.erfc(difference.value / (max(difference.error, 1e-300) * math.sqrt(2.0))),
        difference=difference,
        dyadic=advisor_scores.bootstrap_difference(scores, DYADIC),
        noisy=noisy,
        quiet=quiet,
        noise=spread,
    )


def _difference(plain: Floats, other: Floats, rows: NDArray[np.int64], tau: int) -> Estimate:
    """Returns the difference in joint NLL on some of the examples, in the order in which they were drawn."""
    rows = np.sort(rows)
    groups, pseudo = zip(
        *(advisor_scores.joint_scores(part[rows][:, None], tau) for part in (plain, other)), strict=True
    )
    by_member = (pseudo[1] - pseudo[0]).mean(axis=(0, 1))
    return advisor_scores.mean_estimate((groups[1] - groups[0])[:, 0], by_member - by_member.mean())


def _rows(
    scores: Scores,
    choice: Choice,
    arms: Sequence[Bootstrap | None],
    scales: Sequence[float],
    sizes: Sequence[int],
    seen: Sequence[_Seen],
) -> Iterator[Row]:
    for arm, scale, size in np.ndindex(len(arms), len(scales), len(sizes)):
        one, at = seen[arm * len(scales) + scale], Choice(arm, scale, size)
        numbers = dict.fromkeys(_NUMBERS, math.nan)
        if scores.usable[arm, scale]:
            for metric, name in ((DYADIC, "dyadic"), (JOINT, "joint")):
                own, behind = scores.estimate(metric, at), scores.estimate(metric, at, choice)
                numbers |= {f"{name}_nll": own.value, f"{name}_error": own.error}
                numbers |= {f"{name}_behind": behind.value, f"{name}_behind_error": behind.error}
            numbers["marginal_nll"] = float(-member_logits.log_mean_exp(one.likelihood).mean())
        yield Row(scales[scale], _law_name(arms[arm]), sizes[size], **numbers, diverged=one.diverged)


def _notes(scores: Scores, choice: Choice, scales: Sequence[float], sizes: Sequence[int]) -> Iterator[str]:
    if choice.scale == len(scales) - 1 and len(scales) > 1:
        yield f"{scales[-1]:g} is the largest prior scale tried: try larger ones"
    largest = Choice(choice.arm, choice.scale, len(sizes) - 1)
    others = [dataclasses.replace(largest, scale=scale) for scale in range(len(scales)) if scale != choice.scale]
    alike = [
        f"{scales[other.scale]:g}"
        for other in others
        if scores.usable[other.arm, other.scale]
        and all(scores.estimate(metric, other, largest).low < 0.0 for metric in (JOINT, DYADIC))
    ]
    if alike:
        yield f"not shown at 95% to be worse: prior scale {', '.join(alike)}"
    if len(sizes) > 1 and choice.size == len(sizes) - 1:
        yield f"{sizes[-1]} members, the most tried, are still better than {sizes[-2]}: more may be better yet"
    if not scores.usable.all():
        yield "configurations with members that diverged are left out: a lower learning rate may help"


def _told(diagnosis: BootstrapDiagnosis) -> Iterator[str]:
    """Yields lines about bootstrapping."""
    if diagnosis.difference is None:
        yield "bootstrap: not tried"
        return
    yield f"bootstrap {diagnosis.law}: {diagnosis.verdict}"
    yield f"  joint NLL with minus without {diagnosis.difference}"
    if diagnosis.noisy is not None and diagnosis.quiet is not None:
        yield f"  where members see more label noise {diagnosis.noisy}"
        yield f"  where they see less {diagnosis.quiet}"


def _line(row: Row, chosen: Row) -> str:
    joint = f"{row.joint_nll:.3f} ± {row.joint_error:.3f}" if not row.diverged else "diverged"
    dyadic = f"{row.dyadic_nll:.3f} ± {row.dyadic_error:.3f}" if not row.diverged else ""
    mark = "  recommended" if row is chosen else ""
    line = f"{row.prior_scale:>11g}  {row.bootstrap:<16}  {row.num_members:>7}  {joint:>15}  {dyadic:>15}{mark}"
    return line.rstrip()


def _sureness(share: float) -> str:
    word = "sure" if share >= 0.95 else "fairly sure" if share >= 0.8 else "not sure"
    return f"{word}, chosen in {share:.0%} of resamples"


def _law_name(law: Bootstrap | None) -> str:
    return "none" if law is None else repr(law)


def _copied(optimizer: Any) -> Any:
    """A new optimizer for each training: one that has taken steps remembers them."""
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return type(optimizer).from_config(optimizer.get_config())
    return optimizer


@contextlib.contextmanager
def _without_retracing_warnings() -> Iterator[None]:
    """TensorFlow warns of many compilations of like functions; here each ensemble is another model, trained once."""
    logger = logging.getLogger("tensorflow")
    kept = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(kept)


def _shown(items: list[Any], progress: bool) -> Iterator[Any]:
    from tqdm import tqdm

    bar = tqdm(items, desc="advise", unit="ensemble", disable=not progress)
    for law, scale in bar:
        bar.set_postfix_str(f"prior scale {scale:g}, bootstrap {_law_name(law)}")
        yield law, scale


def _split(
    x: Any, y: Any, fraction: float, given: tuple[Any, Any] | None, seed: int, tau: int
) -> tuple[tuple[Any, Array], tuple[Any, Array]]:
    """Returns training and validation arrays, the latter in random order."""
    x, y = _checked_arrays(x, y, "x, y")
    random = np.random.default_rng(seed)
    if given is not None:
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise ValueError(f"Expected validation_data=(x, y). Received: {type(given)}")
        validation = _take(_checked_arrays(*given, "validation_data"), random.permutation(len(given[1])))
        train = (x, y)
    else:
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"Expected a validation_split between 0 and 1. Received: {fraction}")
        order = random.permutation(len(y))
        at = math.floor(len(y) * (1.0 - fraction))
        train, validation = _take((x, y), order[:at]), _take((x, y), order[at:])
    unit = 2 * advisor_scores.block_length(tau)  # Two folds of whole blocks.
    kept = len(validation[1]) // unit * unit
    if kept < _LEAST_BLOCKS * unit // 2 or not len(train[1]):
        raise ValueError(
            f"Expected at least {_LEAST_BLOCKS * unit // 2} validation examples for tau={tau}, and some to train on. "
            f"Received: {len(validation[1])} and {len(train[1])}"
        )
    return train, _take(validation, np.arange(kept))


def _checked_arrays(x: Any, y: Any, name: str) -> tuple[Any, Array]:
    if not checks.is_arrays(x) or y is None:
        raise ValueError(f"Expected arrays for {name}. Received: {type(x)} and {type(y)}")
    x, y = checks.as_arrays(x), np.asarray(y)
    length = checks.check_inputs(x)
    if y.ndim == 0 or len(y) != length:
        raise ValueError(f"Expected as many targets as inputs, {length}. Received: y of shape {y.shape}")
    return x, y


def _take(data: tuple[Any, Array], rows: NDArray[np.int64]) -> tuple[Any, Array]:
    return tf.nest.map_structure(lambda leaf: leaf[rows], data[0]), data[1][rows]


def _check_scales(scales: Sequence[float]) -> tuple[float, ...]:
    listed = tuple(float(scale) for scale in scales)
    if not listed or len(set(listed)) < len(listed) or not all(0.0 <= scale < math.inf for scale in listed):
        raise ValueError(f"Expected different finite prior_scales >= 0. Received: {scales!r}")
    return tuple(sorted(listed))


def _check_sizes(num_members: int, sizes: Sequence[int] | None) -> tuple[int, ...]:
    if not isinstance(num_members, int) or num_members < 2:
        raise ValueError(f"Expected num_members >= 2, an integer. Received: {num_members!r}")
    if sizes is None:
        return (*(size for size in _SIZES if size < num_members), num_members)
    if not all(isinstance(size, int) and 1 <= size <= num_members for size in sizes):
        raise ValueError(f"Expected sizes between 1 and num_members={num_members}. Received: {sizes!r}")
    return tuple(sorted({*sizes, num_members}))


def _check_numbers(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"Expected {name} >= 1, an integer. Received: {number!r}")


def _check_regression(kind: Kind, loss: Any, noise_std: float | None) -> None:
    if kind is Kind.VALUES and noise_std is None:
        raise ValueError(
            "Expected noise_std, the noise of the targets: a joint likelihood of a regression needs it. "
            f"Received: None, with the loss {loss!r}"
        )
    if kind is not Kind.VALUES and noise_std is not None:
        raise ValueError(f"Expected noise_std for a regression only. Received: {noise_std}, with the loss {loss!r}")
    if noise_std is not None and not 0.0 < noise_std < math.inf:
        raise ValueError(f"Expected a finite noise_std > 0. Received: {noise_std}")
