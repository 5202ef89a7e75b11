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

from tf_ensembles.advice import candidates, regression, scaling, splits, text, training
from tf_ensembles.advice import scores as scoring
from tf_ensembles.advice.result import Advice as Advice
from tf_ensembles.advice.result import BootstrapDiagnosis as BootstrapDiagnosis
from tf_ensembles.advice.result import Comparison as Comparison
from tf_ensembles.advice.result import Confidence as Confidence
from tf_ensembles.advice.result import Row as Row
from tf_ensembles.advice.scores import DYADIC, JOINT, SINGLE, Scores
from tf_ensembles.advice.seen import compare, diagnose, look, read, table
from tf_ensembles.bootstrap import Bernoulli, Bootstrap
from tf_ensembles.ensemble import losses
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.metrics.kinds import Kind

_SIZES = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
_HALF = Bernoulli(0.5)
# Training may go on for this many steps and epochs unless told otherwise: members must be able to learn their data.
_LEAST_STEPS, _LEAST_EPOCHS = 1000, 10
_NUM_RESAMPLES = 500


@regression.in_own_units
def advise(
    build_member: Callable[[], keras.Model],
    x: Any,
    y: Any,
    *,
    build_prior: Any = None,
    prior_scales: Sequence[float] | None = None,
    length_scales: Sequence[float] | None = None,
    num_members: int = 20,
    sizes: Sequence[int] | None = None,
    bootstrap: Bootstrap | None = _HALF,
    loss: Any = None,
    optimizer: Any = "adam",
    epochs: int | None = None,
    batch_size: int = 100,
    l2: float = 0.0,
    noise_std: float | None = None,
    callbacks: training.Callbacks | None = None,
    early_stopping: bool = True,
    validation_split: float = 0.2,
    validation_data: tuple[Any, Any] | None = None,
    folds: int | None = None,
    tau: int = 10,
    seed: int = 0,
    progress: bool = True,
) -> Advice:
    """Says which prior scale, size and number of epochs to use, and whether bootstrapping helps.

    Trains an ensemble of `num_members` per prior scale and length scale, twice as many with a bootstrap, once per fold.
    It recommends a plain ensemble, or a single model, unless something is shown to beat it. The rule is told by the
    module, `tf_ensembles.advice.advise`, and the split by `tf_ensembles.advice.splits`.

    Args:
        build_member: returns a new Keras model at each call, as for `Ensemble`.
        x: inputs `[batch, ...]`, or a structure of them.
        y: labels `[batch]`, or what the loss takes.
        build_prior: returns a new prior network; or `"auto"`, or one of `tfe.priors`, whose scales have a unit. None
            means `build_member`.
        prior_scales: the scales to try; 0, an ensemble without prior, is always tried. None means 0.3, 1, 3 and 10 for
            a network of your own, and 1 and 3 for ready-made priors.
        length_scales: for `"auto"` on vectors and `tfe.priors.fourier`, the length scales to try with each scale; None
            means 0.5, 1 and 2.
        num_members: the largest ensemble, the one that is trained.
        sizes: the sizes to choose from; None means 1, 2, 3, 5, 10, 20, 30, ... up to `num_members`. 1 and
            `num_members` are always tried.
        bootstrap: the bootstrap weights to try against none, `tfe.Bernoulli(0.5)` by default; None tries none.
        loss: a Keras loss; None means softmax cross-entropy of integer labels from logits.
        optimizer: a name, or an optimizer whose configuration each training gets a copy of.
        epochs: the most epochs; None means enough for 1,000 steps, and at least 10.
        batch_size: examples per step.
        l2: weight decay per member, as for `Ensemble`.
        noise_std: for a regression whose members predict values, the standard deviation of its targets' Gaussian
            noise. Losses of `tfe.losses` know it themselves. Targets that are not scaled are standardized.
        callbacks: Keras callbacks, copied for each training, or a function that returns new ones. They may monitor
            `"val_loss"`, which is that of the examples that stop training.
        early_stopping: whether training stops where examples that do not train say so; if not, all train for `epochs`.
        validation_split: share of the examples, picked at random, that judges, and a like share that stops training.
        validation_data: `(x, y)` that judge instead.
        folds: how many folds take turns in training, stopping and judging; 1 for one split. None means 1 if at least
            500 examples would judge, and otherwise `1 / validation_split`, at least 5.
        tau: labels per joint prediction.
        seed: decides the split, initial weights, priors and bootstrap weights.
        progress: whether to show a progress bar.
    """
    tried = candidates.make(build_prior or build_member, x, prior_scales, length_scales)
    sizes = _check_sizes(num_members, sizes)
    _check_numbers(tau=tau, batch_size=batch_size, epochs=1 if epochs is None else epochs)
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise ValueError(f"Expected bootstrap such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss
    kind = losses.kind_of(losses.as_loss(loss), None)
    _check_regression(Kind.VALUES if kind is None else kind, loss, noise_std)  # A loss of one's own: a regression.
    split = splits.make_split(x, y, validation_split, validation_data, folds, early_stopping, seed, tau)
    train = split.parts[0].train
    if epochs is None:
        epochs = max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(len(train) / batch_size)))
    wrong = _wrong_scales(build_member, train, regression=noise_std is not None)
    settings = training.Settings(epochs, batch_size, tau, seed, callbacks, functools.partial(read, noise_std=noise_std))
    arms: tuple[Bootstrap | None, ...] = (None,) if bootstrap is None else (None, bootstrap)
    seen = []
    trainings = len(split.parts) + (split.whole is not None)
    for weights, one, step in _shown([(weights, one) for weights in arms for one in tried], trainings, progress):

        def make(weights: Bootstrap | None = weights, one: candidates.Candidate = one) -> Ensemble:
            model = Ensemble(build_member, num_members, prior=one.prior, bootstrap=weights, l2=l2, seed=seed)
            model.compile(_copied(optimizer), loss)
            return model

        with _without_retracing_warnings():
            trained = training.train(make, split, settings, step)
        seen.append(look(trained, split.num_judging, num_members, sizes, tau))
    grid = (len(arms), len(tried))
    scores = Scores(
        values=np.moveaxis(np.reshape([one.values for one in seen], (*grid, *seen[0].values.shape)), 2, 0),
        influence=np.moveaxis(np.reshape([one.influence for one in seen], (*grid, *seen[0].influence.shape)), 2, 0),
        usable=np.reshape([one.diverged == 0 for one in seen], grid),
    )
    if not scores.usable.any(axis=1).all():
        raise ValueError("Expected a prior scale at which no member diverges. Received: none; lower the learning rate")
    diagnosis = diagnose(scores, bootstrap, seen, tau)
    arm = int(diagnosis.verdict == "helps")
    comparison = compare(scores, arm)
    rule = scoring.make_rule(scores, arm, None if comparison is None else comparison.beaten)
    choice = rule(scores.means())
    best = seen[choice.arm * len(tried) + choice.scale]
    return Advice(
        prior=tried[choice.scale].prior,
        prior_scale=tried[choice.scale].scale,
        length_scale=tried[choice.scale].length_scale,
        num_members=sizes[choice.size],
        bootstrap=arms[choice.arm],
        epochs=best.epochs,
        joint_nll=scoring.crossed(scores, JOINT, rule),
        dyadic_nll=scoring.crossed(scores, DYADIC, rule),
        against_plain=comparison,
        against_single=scoring.crossed(scores, JOINT, rule, lambda _: SINGLE) if scores.usable[0, 0] else None,
        confidence=Confidence(*scoring.agreement(scores, choice, _NUM_RESAMPLES, seed)),
        diagnosis=diagnosis,
        table=tuple(table(scores, choice, arms, tried, sizes, seen)),
        tau=tau,
        num_validation=split.num_judging,
        split=split.how,
        warnings=wrong,
        notes=tuple(text.notes(scores, choice, tried, sizes, best.epochs == epochs if early_stopping else False)),
    )


def _wrong_scales(build_member: Any, train: splits.Examples, regression: bool) -> tuple[str, ...]:
    """Returns what is wrong with the data, and says it at once: training may take long."""
    member = build_member() if callable(build_member) and not isinstance(build_member, keras.Model) else None
    wrong = tuple(scaling.remarks(member, train.x, train.y, regression))
    for remark in wrong:
        warnings.warn(f"advise: {remark}", stacklevel=3)
    return wrong


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
    items: list[tuple[Bootstrap | None, candidates.Candidate]], trainings: int, progress: bool
) -> Iterator[tuple[Bootstrap | None, candidates.Candidate, Callable[[], Any]]]:
    """Yields candidates, each with a function that moves the bar by one training."""
    from tqdm import tqdm

    with tqdm(total=len(items) * trainings, desc="advise", unit="training", disable=not progress) as bar:
        for number, (weights, one) in enumerate(items):
            bar.set_postfix_str(f"prior scale {one}, bootstrap {text.bootstrap_name(weights)}")
            yield weights, one, bar.update
            bar.update((number + 1) * trainings - bar.n)  # One that diverged is not trained to the end.


def _check_sizes(num_members: int, sizes: Sequence[int] | None) -> tuple[int, ...]:
    if not isinstance(num_members, int) or num_members < 2:
        raise ValueError(f"Expected num_members >= 2, an integer. Received: {num_members!r}")
    if sizes is None:
        return (*(size for size in _SIZES if size < num_members), num_members)
    if not all(isinstance(size, int) and 1 <= size <= num_members for size in sizes):
        raise ValueError(f"Expected sizes between 1 and num_members={num_members}. Received: {sizes!r}")
    return tuple(sorted({1, *sizes, num_members}))


def _check_numbers(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"Expected {name} >= 1, an integer. Received: {number!r}")


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
    if noise_std is not None and not 0.0 < noise_std < math.inf:
        raise ValueError(f"Expected a finite noise_std > 0. Received: {noise_std}")
