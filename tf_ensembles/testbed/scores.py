"""How far a predictive is from the truth of a testbed problem: exact scores, marginal and joint.

    quality = evaluate(predictive, problem)

Because the truth is known, a predictive is scored by its KL from it: appendices A and C of the paper. Shapes: inputs
`[batch, input_dim]`, labels `[batch]`, logits of a predictive `[batch, members, classes]`.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import base, checks
from tf_ensembles.draws import Purpose
from tf_ensembles.metrics import functions, likelihood
from tf_ensembles.metrics.likelihood import Floats
from tf_ensembles.testbed.problems import InputDistribution, Problem, generator

# Above this many label counts per batch, an exact expectation costs more than it gains: labels are drawn instead.
MAX_EXACT_COUNTS = 4000
# Draws of the labels per batch where they are drawn.
_NUM_DRAWS = 20
# Inputs go to a predictive in pieces of this many: a large ensemble then answers in bounded memory.
_PREDICT_ROWS = 2048


def evaluate(
    predictive: base.Predictive,
    problem: Problem,
    *,
    tau: int = 10,
    kappa: int = 2,
    num_batches: int = 1000,
    inputs: InputDistribution | str = InputDistribution.GAUSSIAN,
    seed: int = 0,
    exact: bool | None = None,
) -> base.Quality:
    """Returns how far a predictive is from the truth: marginal KL and `KL^{tau,kappa}`, with their standard errors.

    A batch draws kappa anchors, tau inputs from the anchors with replacement, and a label for **each** of the inputs
    from the environment. `KL = E[log P*(y_1..tau) - log P_hat(y_1..tau)]`, `P_hat` the mean over all members of the
    product over the tau points. A batch's likelihoods depend only on how often each (anchor, class) occurs, and the
    expectation over these counts is taken exactly where they are few enough (286 for two classes at two anchors,
    tau = 10): only the anchors are left to chance. The marginal KL is exact over labels at the same anchors.

    Args:
        predictive: inputs `[batch, input_dim]` to logits `[batch, members, classes]`.
        problem: gives the test inputs and the truth. The same test inputs for every predictive, so that differences
            between agents are less noisy than their scores.
        tau: labels per joint prediction.
        kappa: anchors per batch; 2 is the dyadic KL.
        num_batches: how many batches to draw.
        inputs: the distribution of the anchors, an `InputDistribution` or its name.
        seed: decides the test inputs, together with the problem.
        exact: whether to sum over all label counts rather than draw some; `None` chooses by their number.
    """
    for name, value, least in (("tau", tau, 1), ("kappa", kappa, 1), ("num_batches", num_batches, 2)):
        checks.integer(name, value, least)
    tau, kappa, num_batches, seed = int(tau), int(kappa), int(num_batches), checks.seed(seed)
    dim = problem.setting.input_dim
    checks.fits(2 * num_batches * kappa * dim, f"num_batches={num_batches} of kappa={kappa} inputs [{dim}]")
    random = generator(problem.setting, problem.seed, Purpose.TESTBED_TEST, seed)
    x = _draw_inputs(InputDistribution(inputs), random, num_batches * kappa, problem.setting.input_dim)
    labels = problem.environment.draw_labels(x, random)
    logits = _predict(predictive, x, problem.setting.num_classes)
    truth = problem.environment.log_probs(x)
    marginal = np.sum(np.exp(truth) * (truth - likelihood.log_mixture(logits)), axis=-1)
    joint = joint_kl(logits, truth, tau=tau, kappa=kappa, random=random, exact=exact)
    return base.Quality(
        kl_marginal=float(marginal.mean()),
        kl_marginal_error=_standard_error(marginal),
        kl_joint=float(joint.mean()),
        kl_joint_error=_standard_error(joint),
        accuracy=functions.accuracy(logits, labels),
        ece=functions.ece(logits, labels),
    )


def joint_kl(
    logits: base.Array,
    true_log_probs: Floats,
    *,
    tau: int,
    kappa: int,
    random: np.random.Generator,
    exact: bool | None = None,
) -> Floats:
    """Returns the joint KL of each batch given its anchors, `[batches]`; consecutive kappa rows are one batch.

    Each of the tau points falls into cell (anchor a, class c) with probability `P*(c | x_a) / kappa`, so the counts
    `n` are multinomial, `log P = sum n[a, c] log p[a, c]` and
    `KL = sum_n Multinomial(n) * (log P*(n) - log mean_m P_m(n))`.

    Args:
        logits: `[batches * kappa, members, classes]`.
        true_log_probs: `log P*(y | x)`, `[batches * kappa, classes]`.
        tau: labels per joint prediction.
        kappa: anchors per batch.
        random: draws the counts where they are not summed over.
        exact: as in `evaluate`.
    """
    logits = likelihood.check_logits(logits)
    log_probs = checks.floats("true_log_probs", true_log_probs, checks.LARGEST_LOGIT)
    tau, kappa = checks.integer("tau", tau, 1), checks.integer("kappa", kappa, 1)
    if logits.ndim != 3:
        raise ValueError(f"Expected logits [batches * kappa, members, classes]. Received: {logits.shape}")
    batch, members, classes = logits.shape
    if log_probs.shape != (batch, classes) or batch % kappa:
        raise ValueError(
            f"Expected true_log_probs {(batch, classes)}, as logits say, and rows in groups of kappa={kappa}. "
            f"Received: {log_probs.shape}"
        )
    if np.abs(np.exp(np.minimum(log_probs, 1.0)).sum(axis=-1) - 1.0).max() > 1e-6:
        raise ValueError(
            "Expected true_log_probs, logarithms of rows that add up to 1. "
            f"Received: numbers from {log_probs.min():g} to {log_probs.max():g}"
        )
    cells = kappa * classes
    truth = log_probs.reshape(-1, cells)
    num_counts = math.comb(tau + cells - 1, cells - 1)
    if exact is None:
        exact = num_counts <= MAX_EXACT_COUNTS
    probs = np.exp(truth) / kappa
    if exact:
        checks.fits(num_counts * cells, f"all {num_counts} label counts of tau={tau} and kappa={kappa}")
        counts = np.broadcast_to(_count_vectors(tau, cells), (len(truth), num_counts, cells))
        weights = np.exp(_log_multinomial(tau, cells) + counts @ np.log(np.maximum(probs, 1e-300))[..., None])[..., 0]
    else:
        # Softmax sums to 1 up to rounding; NumPy is strict about it.
        draws = random.multinomial(tau, probs / probs.sum(axis=-1, keepdims=True), size=(_NUM_DRAWS, len(probs)))
        counts = draws.transpose(1, 0, 2).astype(np.float64)
        weights = np.full(counts.shape[:2], 1.0 / _NUM_DRAWS)
    members_first = likelihood.log_softmax(logits).reshape(-1, kappa, members, classes).transpose(0, 2, 1, 3)
    agent = likelihood.log_joint_counts(members_first.reshape(-1, members, cells), counts)
    return np.sum(weights * ((counts @ truth[..., None])[..., 0] - agent), axis=-1)


def _draw_inputs(kind: InputDistribution, random: np.random.Generator, num: int, dim: int) -> NDArray[np.float32]:
    if kind is InputDistribution.UNIFORM:
        return random.uniform(-math.sqrt(3.0), math.sqrt(3.0), (num, dim)).astype(np.float32)
    width = 2.0 if kind is InputDistribution.WIDE else 1.0
    return (width * random.standard_normal((num, dim))).astype(np.float32)


def _predict(predictive: base.Predictive, x: NDArray[np.float32], num_classes: int) -> base.Array:
    parts = []
    for start in range(0, len(x), _PREDICT_ROWS):
        rows = x[start : start + _PREDICT_ROWS]
        logits = checks.array("logits of the predictive", predictive(rows))
        if logits.ndim != 3 or logits.shape[0] != len(rows) or logits.shape[2] != num_classes:
            raise ValueError(
                f"Expected a predictive that returns logits [{len(rows)}, members, {num_classes}]. "
                f"Received: {logits.shape}"
            )
        parts.append(likelihood.check_logits(logits))
    return np.concatenate(parts)


@functools.lru_cache(maxsize=16)
def _count_vectors(tau: int, cells: int) -> Floats:
    """Returns every way to put tau points into the cells, `[ways, cells]`."""
    # Stars and bars: the counts are the gaps between cells - 1 bars among tau + cells - 1 places.
    bars = np.array(list(itertools.combinations(range(tau + cells - 1), cells - 1)), np.int64)
    bars = bars.reshape(math.comb(tau + cells - 1, cells - 1), cells - 1)
    return (np.diff(bars, axis=1, prepend=-1, append=tau + cells - 1) - 1).astype(np.float64)


@functools.lru_cache(maxsize=16)
def _log_multinomial(tau: int, cells: int) -> Floats:
    """Returns the log multinomial coefficient of each count vector, `[ways, 1]`."""
    log_factorial = np.array([math.lgamma(count + 1) for count in range(tau + 1)])
    counts = _count_vectors(tau, cells).astype(np.int64)
    return (log_factorial[tau] - log_factorial[counts].sum(axis=1))[:, None]


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))
