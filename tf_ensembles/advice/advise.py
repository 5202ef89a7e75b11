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
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tf_ensembles.advice import scores as scoring
from tf_ensembles.advice import text
from tf_ensembles.advice.result import Advice as Advice
from tf_ensembles.advice.result import BootstrapDiagnosis as BootstrapDiagnosis
from tf_ensembles.advice.result import Confidence as Confidence
from tf_ensembles.advice.result import Row as Row
from tf_ensembles.advice.scores import DYADIC, JOINT, Scores
from tf_ensembles.advice.seen import diagnose, look, table
from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bernoulli, Bootstrap
from tf_ensembles.ensemble import data as checks
from tf_ensembles.ensemble import losses
from tf_ensembles.ensemble.model import Ensemble
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.prior import PriorFunction

_SIZES = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
_HALF = Bernoulli(0.5)
# Training goes on for at least this many steps and epochs unless told otherwise: members must have learned their data.
_LEAST_STEPS, _LEAST_EPOCHS = 1000, 10
# Blocks of validation examples that a split must have: fewer tell nothing about the spread between them.
_LEAST_BLOCKS = 10
_NUM_RESAMPLES = 500


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
        bootstrap: the bootstrap weights to try against none, `tfe.Bernoulli(0.5)` by default; None tries none.
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
        raise ValueError(f"Expected bootstrap such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True) if loss is None else loss
    kind = losses.kind_of(losses.as_loss(loss), None)
    _check_regression(Kind.VALUES if kind is None else kind, loss, noise_std)  # A loss of one's own: a regression.
    train, validation = _split(x, y, validation_split, validation_data, seed, tau)
    if epochs is None:
        epochs = max(_LEAST_EPOCHS, math.ceil(_LEAST_STEPS / math.ceil(len(train[1]) / batch_size)))
    arms: tuple[Bootstrap | None, ...] = (None,) if bootstrap is None else (None, bootstrap)
    seen = []
    for weights, scale in _shown([(weights, scale) for weights in arms for scale in scales], progress):
        prior = PriorFunction(build_prior or build_member, scale) if scale else None
        model = Ensemble(build_member, num_members, prior=prior, bootstrap=weights, l2=l2, seed=seed)
        model.compile(_copied(optimizer), loss)
        with _without_retracing_warnings():
            model.fit(*train, epochs=epochs, batch_size=batch_size, verbose=0)
            seen.append(look(model, validation, sizes, tau, noise_std))
    grid = (len(arms), len(scales))
    scores = Scores(
        values=np.moveaxis(np.reshape([one.values for one in seen], (*grid, *seen[0].values.shape)), 2, 0),
        influence=np.moveaxis(np.reshape([one.influence for one in seen], (*grid, *seen[0].influence.shape)), 2, 0),
        usable=np.reshape([one.diverged == 0 for one in seen], grid),
    )
    if not scores.usable.any(axis=1).all():
        raise ValueError("Expected a prior scale at which no member diverges. Received: none; lower the learning rate")
    diagnosis = diagnose(scores, bootstrap, seen, tau)
    choice = scoring.choose(scores, int(diagnosis.verdict == "helps"), scores.means())
    return Advice(
        prior_scale=scales[choice.scale],
        num_members=sizes[choice.size],
        bootstrap=arms[choice.arm],
        joint_nll=scoring.cross_fitted(scores, choice.arm, JOINT),
        dyadic_nll=scoring.cross_fitted(scores, choice.arm, DYADIC),
        confidence=Confidence(*scoring.agreement(scores, choice, _NUM_RESAMPLES, seed)),
        diagnosis=diagnosis,
        table=tuple(table(scores, choice, arms, scales, sizes, seen)),
        tau=tau,
        num_validation=len(validation[1]),
        notes=tuple(text.notes(scores, choice, scales, sizes)),
    )


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
    for weights, scale in bar:
        bar.set_postfix_str(f"prior scale {scale:g}, bootstrap {text.bootstrap_name(weights)}")
        yield weights, scale


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
    unit = 2 * scoring.block_length(tau)  # Two folds of whole blocks.
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
