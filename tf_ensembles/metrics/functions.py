"""How good an ensemble's predictions are, one example at a time and jointly.

Every function takes member logits `[batch, members, classes]` and integer labels `[batch]` (NumPy or anything NumPy
can read) and computes in float64, so logits of ±1e4 and far beyond are safe. The ensemble's prediction is the
mixture of its members, evaluated exactly: `P(y_1..y_tau) = mean_m prod_i p_m(y_i | x_i)`. Values are in nats.

Outputs that are no logits have another `kind`: `"binary_logits"` (one logit, of class 1), `"probabilities"` (after a
softmax, or one column after a sigmoid), `"multilabel_logits"` and `"multilabel_probabilities"` (one column per label,
labels `[batch, labels]`). An ensemble can be given as `kind`, and what its `predict` returns knows its own. Anything
else is read as logits, one column as a binary logit, and numbers that look like probabilities raise. A member's labels
of an example are independent: likelihoods and entropies are those of all of them; `accuracy`, `brier` and `ece`
count each label as an example of two classes.

Outputs may have positions: logits of maps are `[batch, members, height, width, classes]` and those of sequences
`[batch, members, time, classes]`, with labels `[batch, height, width]` and `[batch, time]`. An example is an input with
all its positions, which are read as labels of the example are: `joint_nll` is of tau inputs, in nats of all positions.

The counterparts for `compile(metrics=[...])`, such as `JointNLL`, are in `streaming`: with the same options they equal
the functions, whatever the batch size.

The joint metrics read examples in the order given: **shuffle test data that are sorted**, by class for example.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks
from tf_ensembles.metrics import kinds
from tf_ensembles.metrics import likelihood as formulas
from tf_ensembles.metrics.likelihood import Floats

Anchors = Literal["consecutive", "random"]

# How near to an edge, in bins, a confidence counts as on it: above float32 rounding, so that both precisions agree.
EDGE_TOLERANCE = 1e-5
MOST_BINS = 10**6  # Finer ones are below the precision of float32.
# Classes whose probabilities are this near to the largest are tied with it, for the same reason.
TIE_TOLERANCE = 1e-6
# From this many labels on, sorted labels are no accident.
_SORTED_LENGTH = 30


class Uncertainty(NamedTuple):
    """Predictive uncertainty per example, each `[batch]` in nats: `total = aleatoric + epistemic`."""

    total: Floats  # entropy of the mixture
    aleatoric: Floats  # mean entropy of the members
    epistemic: Floats  # mutual information between label and member: how much the members disagree


def member_log_likelihood(logits: ArrayLike, labels: ArrayLike, *, kind: Any = None) -> Floats:
    """Returns `log p_m(y_i | x_i)`, `[batch, members]`: all that the likelihood metrics need to know."""
    return formulas.log_likelihood(*_read(logits, labels, kind))


def mixture(logits: ArrayLike, *, kind: Any = None) -> Floats:
    """Returns the ensemble's marginal probabilities `mean_m p_m(y | x)`, `[batch, classes]` or `[batch, labels]`."""
    read, several = kinds.read(logits, kind)
    probabilities = formulas.mixture_probabilities(read)
    shape = np.shape(logits)
    if len(shape) == 3:
        return probabilities[..., 1] if several else probabilities
    if shape[-1] == 1:
        return probabilities.reshape(*shape[:1], *shape[2:-1], 2)
    whole = probabilities.size == math.prod(shape) // shape[1]  # One number per column; else two, of each label.
    return (probabilities if whole else probabilities[..., 1]).reshape(*shape[:1], *shape[2:])


def _read(logits: ArrayLike, labels: ArrayLike, kind: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Returns checked logits and labels, in the shapes of `likelihood`."""
    read, several = kinds.read(logits, kind)
    array, positions = checks.array("integer labels", labels), np.shape(logits)[2:-1]
    if several and array.shape == (len(read),) and read.shape[2] == 1:
        array = array[:, None]
    if positions and array.shape[: 1 + len(positions)] == (len(read), *positions) and array.ndim < len(positions) + 3:
        array = array.reshape(len(read), -1)
    return read, formulas.check_labels(read, array)


def _by_label(logits: ArrayLike, labels: ArrayLike, kind: Any) -> tuple[Floats, NDArray[np.int64]]:
    """Returns the mixture's probabilities `[batch, classes]` and classes `[batch]`; each label is an example here."""
    read, checked = _read(logits, labels, kind)
    probabilities = formulas.mixture_probabilities(read)
    return probabilities.reshape(-1, probabilities.shape[-1]), checked.reshape(-1)


@overload
def marginal_nll(
    logits: ArrayLike, labels: ArrayLike, *, kind: Any = None, standard_error: Literal[False] = False
) -> float: ...
@overload
def marginal_nll(
    logits: ArrayLike, labels: ArrayLike, *, kind: Any = None, standard_error: Literal[True]
) -> tuple[float, float]: ...
def marginal_nll(
    logits: ArrayLike, labels: ArrayLike, *, kind: Any = None, standard_error: bool = False
) -> float | tuple[float, float]:
    """Mean over examples of `-log mean_m p_m(y_i | x_i)`, in nats per label; uniform logits give `log(classes)`.

    Args:
        logits: `[batch, members, classes]`.
        labels: `[batch]` integers.
        kind: what the outputs are, a name or the ensemble; see the top of this module.
        standard_error: whether to return `(value, error)`, the error being that of a mean of independent examples.
    """
    return joint_of(member_log_likelihood(logits, labels, kind=kind), 1, standard_error)


@overload
def joint_nll(
    logits: ArrayLike, labels: ArrayLike, tau: int = 10, *, kind: Any = None, standard_error: Literal[False] = False
) -> float: ...
@overload
def joint_nll(
    logits: ArrayLike, labels: ArrayLike, tau: int = 10, *, kind: Any = None, standard_error: Literal[True]
) -> tuple[float, float]: ...
def joint_nll(
    logits: ArrayLike, labels: ArrayLike, tau: int = 10, *, kind: Any = None, standard_error: bool = False
) -> float | tuple[float, float]:
    """Mean over batches of tau examples of `-log mean_m prod_i p_m(y_i | x_i)`, in nats **per tau labels**.

    Uniform logits give `tau * log(classes)`, a single member gives `tau` times its marginal NLL, and `tau=1` is
    `marginal_nll`. Batches are consecutive and disjoint: examples `0..tau-1`, `tau..2 tau-1`, and so on. The last
    `batch % tau` examples fill no batch and are left out.

    Args:
        logits: `[batch, members, classes]`, `batch >= tau`, in random order.
        labels: `[batch]` integers.
        tau: labels per joint prediction.
        kind: what the outputs are, a name or the ensemble; see the top of this module.
        standard_error: whether to return `(value, error)`; the error is NaN for fewer than two batches.
    """
    likelihood = member_log_likelihood(logits, labels, kind=kind)
    warn_if_sorted(labels)
    return joint_of(likelihood, tau, standard_error)


def joint_of(likelihood: Floats, tau: int, standard_error: bool = False) -> Any:
    """Returns the joint NLL of members' log-likelihoods `[batch, members]`, of classes or of numbers."""
    tau = checks.integer("tau", tau, 1)
    _num_groups(likelihood, "tau", tau)
    return with_error(-formulas.log_mean_exp(formulas.joint(likelihood, tau)), standard_error)


@overload
def dyadic_nll(
    logits: ArrayLike,
    labels: ArrayLike,
    tau: int = 10,
    kappa: int = 2,
    seed: int = 0,
    *,
    anchors: Anchors = "consecutive",
    num_batches: int | None = None,
    kind: Any = None,
    standard_error: Literal[False] = False,
) -> float: ...
@overload
def dyadic_nll(
    logits: ArrayLike,
    labels: ArrayLike,
    tau: int = 10,
    kappa: int = 2,
    seed: int = 0,
    *,
    anchors: Anchors = "consecutive",
    num_batches: int | None = None,
    kind: Any = None,
    standard_error: Literal[True],
) -> tuple[float, float]: ...
def dyadic_nll(
    logits: ArrayLike,
    labels: ArrayLike,
    tau: int = 10,
    kappa: int = 2,
    seed: int = 0,
    *,
    anchors: Anchors = "consecutive",
    num_batches: int | None = None,
    kind: Any = None,
    standard_error: bool = False,
) -> float | tuple[float, float]:
    """Joint NLL of tau inputs drawn, with replacement, from kappa anchors, in nats **per tau labels**.

    An anchor is a labeled test example and its label is repeated with it, so a batch is known by how often each anchor
    was drawn, `(n_1..n_kappa) ~ Multinomial(tau, 1/kappa)`, and costs `-log mean_m exp(sum_k n_k log p_m(y_k | x_k))`.
    For kappa <= 2 this is averaged over the counts **exactly**, which has the same mean as drawing them and less
    variance. For larger kappa the counts are drawn once per batch, as a pure function of (seed, batch index). Uniform
    logits give `tau * log(classes)`.

    Args:
        logits: `[batch, members, classes]`, `batch >= kappa`.
        labels: `[batch]` integers.
        tau: labels per joint prediction.
        kappa: anchors per batch.
        seed: decides all that is drawn: random anchors, and counts for kappa > 2. With consecutive anchors and
            kappa <= 2 nothing is drawn, and the value does not depend on it.
        anchors: `"consecutive"`: disjoint groups of kappa neighbors (shuffle sorted data; the last `batch % kappa`
            examples fill no group and are left out), as in the streaming `DyadicNLL`. `"random"`: random groups of
            kappa different examples, for data in any order; all examples serve about equally often.
        num_batches: how many random anchor groups; `None` means `batch` of them.
        kind: what the outputs are, a name or the ensemble; see the top of this module.
        standard_error: whether to return `(value, error)`. The error allows for examples that groups share; it is NaN
            for fewer than two groups.
    """
    likelihood = member_log_likelihood(logits, labels, kind=kind)
    if anchors == "consecutive":
        warn_if_sorted(labels)
    return dyadic_of(likelihood, tau, kappa, seed, anchors, num_batches, standard_error)


def dyadic_of(
    likelihood: Floats,
    tau: int,
    kappa: int = 2,
    seed: int = 0,
    anchors: Anchors = "consecutive",
    num_batches: int | None = None,
    standard_error: bool = False,
) -> Any:
    """Returns the dyadic NLL of members' log-likelihoods `[batch, members]`, of classes or of numbers."""
    tau, kappa, seed = formulas.check_dyadic(tau, kappa, seed)
    checks.option("anchors", anchors, get_args(Anchors))
    per_pass = _num_groups(likelihood, "kappa", kappa)
    if anchors == "consecutive":
        if num_batches is not None:
            raise ValueError(f"Expected num_batches=None with consecutive anchors. Received: {num_batches}")
        groups = np.arange(per_pass * kappa).reshape(per_pass, kappa)
    else:
        num_batches = len(likelihood) if num_batches is None else num_batches
        num_batches = checks.integer("num_batches", num_batches, 1)
        checks.fits(2 * num_batches * (kappa + likelihood.shape[1]), f"num_batches={num_batches} of kappa={kappa}")
        groups = _random_groups(len(likelihood), kappa, num_batches, seed)
    values = dyadic_values(likelihood, groups, tau, seed)
    value = float(values.mean())
    return (value, _shared_error(values, groups, len(likelihood))) if standard_error else value


def accuracy(logits: ArrayLike, labels: ArrayLike, *, kind: Any = None) -> float:
    """Share of examples whose most probable class under the mixture is the label.

    Of classes tied within float32 rounding, as when members vote, the first counts.
    """
    probabilities, classes = _by_label(logits, labels, kind)
    return float(np.mean(predicted(probabilities) == classes))


def brier(logits: ArrayLike, labels: ArrayLike, *, kind: Any = None) -> float:
    """Mean of `sum_k (p_k - 1[y = k])^2` over examples, with the mixture's `p`: between 0 and 2.

    This is Brier's own multi-class form; the form for two classes that scores one class only is half of it.
    """
    errors, classes = _by_label(logits, labels, kind)
    errors[np.arange(len(errors)), classes] -= 1.0
    return float(np.mean(np.sum(errors**2, axis=-1)))


def ece(logits: ArrayLike, labels: ArrayLike, num_bins: int = 15, *, kind: Any = None) -> float:
    """Expected calibration error of the mixture: `sum_b (n_b / n) |accuracy_b - confidence_b|`.

    Confidence is the mixture's largest probability. Bins have equal width over [0, 1] and contain their upper edge,
    `(0, 1/num_bins], (1/num_bins, 2/num_bins], ...`; a confidence within float32 rounding of an edge counts as on it.
    """
    num_bins = checks.integer("num_bins", num_bins, 1, MOST_BINS)
    probabilities, classes = _by_label(logits, labels, kind)
    confidence = probabilities.max(axis=-1)
    gaps = (predicted(probabilities) == classes) - confidence
    bins = confidence_bins(confidence, num_bins)
    # n_b |accuracy_b - confidence_b| is the absolute sum of the gaps in bin b.
    return float(np.abs(np.bincount(bins, weights=gaps, minlength=num_bins)).sum() / len(gaps))


def confidence_bins(confidence: Floats, num_bins: int) -> NDArray[np.int64]:
    """Returns the bin of each confidence, `[batch]`, as `ece` has them."""
    return np.clip(np.ceil(confidence * num_bins - EDGE_TOLERANCE) - 1, 0, num_bins - 1).astype(np.int64)


def uncertainty(logits: ArrayLike, *, kind: Any = None) -> Uncertainty:
    """Splits each example's predictive entropy into aleatoric and epistemic parts.

    `H[mean_m p_m] = mean_m H[p_m] + I(y; m)`: the noise the members agree on, and their disagreement, which lies
    between 0 and `log(members)` for each label of an example.
    """
    total, members = formulas.entropies(kinds.read(logits, kind)[0])
    # Jensen's inequality makes the difference non-negative; rounding may not.
    return Uncertainty(total, members, np.maximum(total - members, 0.0))


def entropy(logits: ArrayLike, *, kind: Any = None) -> float:
    """Mean over examples of the mixture's entropy: total predictive uncertainty."""
    return float(uncertainty(logits, kind=kind).total.mean())


def aleatoric(logits: ArrayLike, *, kind: Any = None) -> float:
    """Mean over examples of the members' mean entropy: the uncertainty that more data would not remove."""
    return float(uncertainty(logits, kind=kind).aleatoric.mean())


def mutual_information(logits: ArrayLike, *, kind: Any = None) -> float:
    """Mean over examples of the mutual information of label and member: epistemic uncertainty, total - aleatoric."""
    return float(uncertainty(logits, kind=kind).epistemic.mean())


def predicted(probabilities: Floats) -> NDArray[np.int64]:
    """Returns the first of the most probable classes, `[batch]`."""
    largest = probabilities.max(axis=-1, keepdims=True)
    return np.argmax(probabilities >= largest - TIE_TOLERANCE, axis=-1)


def _num_groups(likelihood: Floats, name: str, size: int) -> int:
    if len(likelihood) < size:
        raise ValueError(f"Expected at least {name}={size} examples. Received: {len(likelihood)}")
    return len(likelihood) // size


def warn_if_sorted(labels: ArrayLike) -> None:
    """Warns of classes `[batch]` in order: neighbors are no random batch."""
    if np.ndim(labels) > 1:
        return  # Examples with several labels have no order.
    steps = np.diff(np.asarray(labels).astype(np.int64))
    if len(steps) >= _SORTED_LENGTH - 1 and np.any(steps) and (np.all(steps >= 0) or np.all(steps <= 0)):
        message = "The labels are sorted, so neighbors are alike and a joint NLL of neighbors is biased. Shuffle them."
        warnings.warn(message, stacklevel=3)


def _random_groups(num_examples: int, kappa: int, num_groups: int, seed: int) -> NDArray[np.int64]:
    """Returns `[num_groups, kappa]` example indices: fresh permutations, each cut into groups."""
    random = np.random.default_rng(seed)
    per_pass = num_examples // kappa
    passes = [random.permutation(num_examples)[: per_pass * kappa] for _ in range(math.ceil(num_groups / per_pass))]
    return np.concatenate(passes).reshape(-1, kappa)[:num_groups]


def with_error(values: Floats, standard_error: bool) -> Any:
    """Returns the mean of values `[n]`, with its standard error if asked."""
    value = float(values.mean())
    if not standard_error:
        return value
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return value, error


def dyadic_values(likelihood: Floats, groups: NDArray[np.int64], tau: int, seed: int) -> Floats:
    """Returns the joint NLL given each group of anchors, `[groups]`: expected over the counts, or of drawn ones."""
    values = np.zeros(len(groups))
    kappa, members = groups.shape[1], likelihood.shape[1]
    step = max(1, formulas.SLICE_ELEMENTS // (members if kappa <= 2 else max(members, tau * kappa)))
    for start in range(0, len(groups), step):
        rows = slice(start, min(start + step, len(groups)))
        anchors = [likelihood[groups[rows, k]] for k in range(kappa)]
        if kappa > 2:
            counts = np.asarray(formulas.draw_counts_tensor(seed, np.arange(rows.start, rows.stop), tau, kappa))
            joint = np.sum([counts[:, k, None] * anchor for k, anchor in enumerate(anchors)], axis=0)
            values[rows] = -formulas.log_mean_exp(joint)
            continue
        for count, probability in enumerate(formulas.count_probabilities(tau, kappa)):
            values[rows] -= probability * formulas.log_mean_exp(formulas.dyadic(anchors[0], anchors[-1], count, tau))
    return values


def _shared_error(values: Floats, groups: NDArray[np.int64], num_examples: int) -> float:
    """Standard error of the mean of group values, where groups are correlated through the examples they share.

    The variance of the mean sums the covariances of all pairs of groups that share an example. Squared sums over each
    example's groups hold those pairs, and each group's pair with itself kappa times instead of once. (Two groups that
    share several examples count too often; they are rare as long as there are far fewer groups than pairs of examples.)
    """
    num_groups, kappa = groups.shape
    if num_groups < 2:
        return math.nan
    deviations = values - values.mean()
    per_example = np.bincount(groups.ravel(), weights=np.repeat(deviations, kappa), minlength=num_examples)
    own = float(np.sum(deviations**2))
    # Sharing cannot lower the variance; an estimate that says so is noise.
    squares = max(float(np.sum(per_example**2)) - (kappa - 1) * own, own)
    return math.sqrt(squares / (num_groups * (num_groups - 1)))
