"""`advise`: which prior scale, how many members and epochs, and whether to bootstrap, for your model and your data.

It trains one ensemble per prior scale (and per length scale, where the prior has one), with and without bootstrap, and
compares them by two joint NLLs: of tau different examples, and the dyadic NLL, of two examples repeated with their
labels. Smaller sizes are sub-ensembles of the same members. A single model and a plain ensemble, without prior and
bootstrap, are always among them: they are the baselines.

Training is stopped by examples of its own, `tf_ensembles.advice.splits`: those that stop an ensemble do not judge it.
Few examples take turns (cross-fitting). The rule, in this order:

1. Bootstrap only if it is shown to help: if the 95% interval of the paired difference in joint NLL, each side with its
   own best prior scale, lies below zero. A bootstrap takes data away from every member, so it has to earn its place.
2. The prior scale, and length scale, with the lowest joint NLL at the largest size.
3. The plain ensemble after all, unless it is shown to be beaten: the 95% interval of the paired difference lies below
   zero for the joint NLL, or for the dyadic NLL while the joint NLL is no worse. The dyadic NLL sees best how members
   differ, but it repeats labels, so that it takes noise for something that members should know, and alone would ask for
   prior scales that are too large.
4. The smallest size whose NLLs are both within one standard error of the largest size's.

Standard errors are those of paired differences, and allow for other examples and for other members. Nothing is judged
by the examples that chose it: in the differences of steps 1 and 3 and in the NLLs of an `Advice`, one half of the
examples chooses and the other judges, both ways round. The table shows every candidate on all of them, so its lowest
values flatter.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tf_ensembles import checks
from tf_ensembles.advice import candidates, regression, scaling, splits, text, training
from tf_ensembles.advice import scores as scoring
from tf_ensembles.advice.comparison import compare, diagnose, evaluate, read, table
from tf_ensembles.advice.result import Advice, Confidence
from tf_ensembles.advice.scores import DYADIC, JOINT, SINGLE, Scores
from tf_ensembles.bootstrap import Bernoulli, Bootstrap
from tf_ensembles.ensemble import losses
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.prior import PriorFunction

_SIZES = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
_HALF = Bernoulli(0.5)
# Training may go on for this many steps and epochs by default: members must be able to learn their data.
_LEAST_STEPS, _LEAST_EPOCHS = 1000, 10
_NUM_RESAMPLES = 500


def advise(
    build_member: Callable[[], keras.Model],
    x: Any,
    y: Any,
    *,
    priors: Any = None,
    num_members: int = 20,
    bootstrap: Bootstrap | None = _HALF,
    loss: Any = None,
    noise_std: float | None = None,
    optimizer: Any = "adam",
    epochs: int | None = None,
    batch_size: int = 100,
    validation: tuple[Any, Any] | int | None = None,
    seed: int = 0,
) -> Advice:
    """Says which prior scale, size and number of epochs to use, and whether bootstrapping helps.

    Trains an ensemble of `num_members` per prior, twice as many with a bootstrap, once per fold. It recommends a plain
    ensemble, or a single model, unless something is shown to beat it. The module `tf_ensembles.advice.advise` has the
    rule, and `tf_ensembles.advice.splits` the split. At a terminal, a bar shows the progress.

    Args:
        build_member: returns a new Keras model at each call, as for `Ensemble`.
        x: inputs `[batch, ...]`, or a structure of them.
        y: labels `[batch]`, or what the loss takes.
        priors: a list of `tfe.PriorFunction` to try; no prior is always tried as well. Or a function that returns a
            prior network, to try at scales 0.3, 1, 3 and 10; or `"auto"` or one of `tfe.priors`, to try at scales 1 and
            3, each with length scales 0.5, 1 and 2 where it has one. None means `build_member`.
        num_members: the largest ensemble, the one that is trained. Sizes 1, 2, 3, 5, 10, 20, 30, ... below it are tried
            as well.
        bootstrap: the bootstrap weights to try against none, `tfe.Bernoulli(0.5)` by default; None tries none.
        loss: a Keras loss; None means softmax cross-entropy of integer labels from logits.
        noise_std: for a regression whose members predict values, the standard deviation of its targets' Gaussian
            noise. Losses of `tfe.losses` know it themselves. Targets that are not scaled are standardized.
        optimizer: a name, or an optimizer whose configuration each training gets a copy of.
        epochs: the most epochs, where training is not stopped before; None means enough for 1,000 steps, and at least
            10.
        batch_size: examples per step.
        validation: `(x, y)` that judge; or how many folds of the examples take turns in training, stopping and judging,
            1 for one split. None means one split if a fifth of the examples are at least 500, and otherwise five folds.
        seed: decides the split, initial weights, priors and bootstrap weights.
    """
    checks.integer("num_members", num_members, 2)
    checks.integer("batch_size", batch_size, 1)
    checks.seed(seed)
    if epochs is not None:
        checks.integer("epochs", epochs, 1)
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise ValueError(f"Expected bootstrap such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}")
    tried = candidates.make(build_member if priors is None else priors, x)
    sizes = (*(size for size in _SIZES if size < num_members), num_members)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss
    kind = losses.kind_of(losses.as_loss(loss), None)
    _check_regression(Kind.VALUES if kind is None else kind, loss, noise_std)  # A loss of one's own: a regression.
    is_regression = kind is not None and kind.is_regression
    units = regression.find_units(y, noise_std) if is_regression else None
    if units is not None:
        y = units.standardize(y)
        if isinstance(validation, tuple | list) and len(validation) == 2:
            validation = (validation[0], units.standardize(validation[1]))
        noise_std = None if noise_std is None else noise_std / float(units.std[0])
    split = splits.make_split(x, y, validation, seed)
    train = split.parts[0].train
    if epochs is None:
        epochs = max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(len(train) / batch_size)))
    remarks = () if units is None else (str(units),)
    remarks += tuple(scaling.remarks(build_member, train.x, train.y, regression=noise_std is not None))
    for remark in remarks:  # At once: training may take long.
        warnings.warn(f"advise: {remark}", stacklevel=2)
    log_density = 0.0 if units is None else units.log_density
    reads = functools.partial(read, noise_std=noise_std, log_density=log_density)
    settings = training.Settings(epochs, batch_size, seed, reads)
    arms: tuple[Bootstrap | None, ...] = (None,) if bootstrap is None else (None, bootstrap)
    results = []
    for weights, candidate, step in _shown([(weights, one) for weights in arms for one in tried], len(split.parts)):

        def make(weights: Bootstrap | None = weights, prior: PriorFunction | None = candidate.prior) -> Ensemble:
            model = Ensemble(build_member, num_members, prior=prior, bootstrap=weights, seed=seed)
            model.compile(_copied(optimizer), loss)
            return model

        with _without_retracing_warnings():
            trained = training.train(make, split, settings, step)
        results.append(evaluate(trained, split.num_judging, num_members, sizes, split.tau))
    grid = (len(arms), len(tried))
    scores = Scores(
        values=_stacked([result.values for result in results], grid),
        influence=_stacked([result.influence for result in results], grid),
        usable=np.reshape([result.diverged == 0 for result in results], grid),
    )
    if not scores.usable.any(axis=1).all():
        raise ValueError("Expected a prior scale at which no member diverges. Received: none; lower the learning rate")
    diagnosis = diagnose(scores, bootstrap, results, split.tau)
    arm = int(diagnosis.verdict == "helps")
    comparison = compare(scores, arm)
    rule = scoring.make_rule(scores, arm, None if comparison is None else comparison.beaten)
    choice = rule(scores.means())
    best = results[choice.arm * len(tried) + choice.scale]
    chosen = tried[choice.scale]
    notes = [*text.notes(scores, choice, tried, sizes, best.epochs == epochs)]
    if is_regression:
        notes += regression.notes(chosen.scale, units, split)
    return Advice(
        prior=chosen.prior,
        prior_scale=chosen.scale,
        length_scale=chosen.length_scale,
        num_members=sizes[choice.size],
        bootstrap=arms[choice.arm],
        epochs=best.epochs,
        joint_nll=scoring.crossed(scores, JOINT, rule),
        dyadic_nll=scoring.crossed(scores, DYADIC, rule),
        against_plain=comparison,
        against_single=scoring.crossed(scores, JOINT, rule, lambda _: SINGLE) if scores.usable[0, 0] else None,
        confidence=Confidence(*scoring.agreement(scores, choice, _NUM_RESAMPLES, seed)),
        diagnosis=diagnosis,
        table=tuple(table(scores, choice, arms, tried, sizes, results)),
        tau=split.tau,
        num_validation=split.num_judging,
        split=split.description,
        warnings=remarks,
        notes=tuple(notes),
    )


def _stacked(arrays: Sequence[Floats], grid: tuple[int, int]) -> Floats:
    """Returns `[metrics, arms, scales, ...]` of the candidates' `[metrics, ...]`."""
    return np.moveaxis(np.reshape(arrays, (*grid, *arrays[0].shape)), 2, 0)


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


def _shown(
    items: list[tuple[Bootstrap | None, candidates.Candidate]], trainings: int
) -> Iterator[tuple[Bootstrap | None, candidates.Candidate, Callable[[], Any]]]:
    """Yields candidates, each with a function that moves the bar by one training."""
    from tqdm import tqdm

    with tqdm(total=len(items) * trainings, desc="advise", unit="training", disable=None) as bar:
        for number, (weights, candidate) in enumerate(items):
            bar.set_postfix_str(f"prior scale {candidate}, bootstrap {text.bootstrap_name(weights)}")
            yield weights, candidate, bar.update
            bar.update((number + 1) * trainings - bar.n)  # A candidate that diverged is not trained to the end.


def _check_regression(kind: Kind, loss: Any, noise_std: float | None) -> None:
    if kind is Kind.QUANTILES:
        raise ValueError(f"Expected a loss with a likelihood. Received: {loss!r}, whose members predict quantiles")
    if kind is Kind.VALUES and noise_std is None:
        raise ValueError(
            "Expected noise_std, the noise of the targets: a joint likelihood of a regression needs it; or "
            "loss=tfe.losses.GaussianNLL() and members with two outputs per target. "
            f"Received: None, with the loss {loss!r}"
        )
    if kind is not Kind.VALUES and noise_std is not None:
        raise ValueError(f"Expected noise_std for a regression only. Received: {noise_std}, with the loss {loss!r}")
    if noise_std is not None:
        checks.number("noise_std", noise_std, "(0, inf)")
