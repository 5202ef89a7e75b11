"""The Neural Testbed: random classification problems whose truth is known, and exact scores for any predictive.

A problem is a random 2-hidden-layer MLP (50, 50) with ReLU whose logits are divided by a temperature; inputs are
`N(0, I_d)` and labels are drawn from the softmax. Because the truth is known, a predictive is scored by its KL from it.
Section 5.1 and appendices A and C of the paper.

    problem = make_problem(input_dim=10, data_ratio=100, temperature=0.1, seed=0)
    quality = evaluate(predictive, problem)

Shapes: inputs `[batch, input_dim]`, labels `[batch]`, logits of a predictive `[batch, members, classes]`.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import enum
import functools
import itertools
import math
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import base, metrics
from tf_ensembles.metrics import likelihood as member_logits

Floats = NDArray[np.float64]

INPUT_DIMS = (2, 10, 100)
DATA_RATIOS = (1, 10, 100, 1000)
TEMPERATURES = (0.01, 0.1, 0.5)
HIDDEN_SIZES = (50, 50)

# Above this many label counts per batch, an exact expectation costs more than it gains: labels are drawn instead.
MAX_EXACT_COUNTS = 4000
# Draws of the labels per batch where they are drawn.
_NUM_DRAWS = 20
# Inputs go to a predictive in pieces of this many: a large ensemble then answers in bounded memory.
_PREDICT_ROWS = 2048

# Streams of randomness of one problem. Flips have their own, so that they leave inputs and environment as they were.
_ENVIRONMENT, _TRAIN, _FLIP, _TEST = range(4)


class InputLaw(enum.Enum):
    """What test inputs are drawn from. Training inputs are always Gaussian."""

    GAUSSIAN = "gaussian"  # N(0, I), as in training
    UNIFORM = "uniform"  # uniform on a cube, with the same variance
    WIDE = "wide"  # N(0, 4 I): mostly further out than training inputs

    @classmethod
    def _missing_(cls, value: object) -> InputLaw:
        raise ValueError(f"Expected inputs to be one of {[law.value for law in cls]}. Received: {value!r}")


@dataclasses.dataclass(frozen=True)
class LabelFlip:
    """Training labels to corrupt: a fraction of those of class `source` becomes `target`."""

    fraction: float = 0.25
    source: int = 1
    target: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fraction <= 1.0:
            raise ValueError(f"Expected a fraction in [0, 1]. Received: {self.fraction}")
        if self.source == self.target or min(self.source, self.target) < 0:
            raise ValueError(f"Expected two different classes >= 0. Received: {self.source} to {self.target}")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One kind of problem; `id` names it from a table to a plot. A problem is a setting and a seed."""

    input_dim: int  # d
    data_ratio: float  # r: T = d * r training examples
    temperature: float  # rho
    num_classes: int = 2
    flip: LabelFlip | None = None  # None: labels as drawn

    def __post_init__(self) -> None:
        if self.input_dim < 1 or self.num_train < 1:
            raise ValueError(
                "Expected input_dim >= 1 and at least one training example. "
                f"Received: input_dim={self.input_dim}, data_ratio={self.data_ratio}"
            )
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"Expected a finite temperature > 0. Received: {self.temperature}")
        if self.num_classes < 2:
            raise ValueError(f"Expected num_classes >= 2. Received: {self.num_classes}")
        if self.flip is not None and max(self.flip.source, self.flip.target) >= self.num_classes:
            raise ValueError(f"Expected classes below {self.num_classes} to flip. Received: {self.flip}")

    @property
    def num_train(self) -> int:
        """The number T of training examples."""
        return round(self.input_dim * self.data_ratio)

    @property
    def id(self) -> str:
        """Such as `d10-r100-t0.1`, or `d10-r100-t0.1-c3-flip0.25-1-0` with three classes and flipped labels."""
        name = f"d{self.input_dim}-r{self.data_ratio:g}-t{self.temperature:g}"
        if self.num_classes != 2:
            name += f"-c{self.num_classes}"
        if self.flip is not None:
            name += f"-flip{self.flip.fraction:g}-{self.flip.source}-{self.flip.target}"
        return name


SETTINGS = tuple(Setting(*values) for values in itertools.product(INPUT_DIMS, map(float, DATA_RATIOS), TEMPERATURES))

_NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
_ID = re.compile(rf"(?:testbed/)?d(\d+)-r{_NUMBER}-t{_NUMBER}(?:-c(\d+))?(?:-flip{_NUMBER}-(\d+)-(\d+))?")


def setting_from_id(setting_id: str) -> Setting:
    """Returns the setting that `Setting.id` names."""
    match = _ID.fullmatch(setting_id)
    if match is None:
        raise ValueError(f"Expected an id such as {SETTINGS[0].id!r}. Received: {setting_id!r}")
    dim, ratio, temperature, classes, fraction, source, target = match.groups()
    flip = LabelFlip(float(fraction), int(source), int(target)) if fraction is not None else None
    return Setting(int(dim), float(ratio), float(temperature), int(classes or 2), flip)


@dataclasses.dataclass(frozen=True)
class Environment:
    """The random MLP that makes labels: a list of (kernel `[in, out]`, bias `[out]`)."""

    layers: tuple[tuple[Floats, Floats], ...]
    temperature: float

    def logits(self, x: base.Array) -> Floats:
        """Returns the true logits `[batch, classes]`, already divided by the temperature."""
        hidden = np.asarray(x, np.float64)
        for kernel, bias in self.layers[:-1]:
            hidden = np.maximum(hidden @ kernel + bias, 0.0)
        kernel, bias = self.layers[-1]
        return (hidden @ kernel + bias) / self.temperature

    def log_probs(self, x: base.Array) -> Floats:
        """Returns `log P*(y | x)`, `[batch, classes]`."""
        return _log_softmax(self.logits(x))

    def draw_labels(self, x: base.Array, random: np.random.Generator) -> NDArray[np.int32]:
        """Draws one label per input, `[batch]`."""
        # The largest of logits plus Gumbel noise is a draw from their softmax, however extreme they are.
        logits = self.logits(x)
        return np.argmax(logits + random.gumbel(size=logits.shape), axis=-1).astype(np.int32)


@dataclasses.dataclass(frozen=True)
class Problem:
    """One random problem: what an agent may see (`train`, `prior_knowledge`) and the truth (`environment`)."""

    setting: Setting
    seed: int
    environment: Environment = dataclasses.field(repr=False)
    train: base.Data = dataclasses.field(repr=False)

    @property
    def prior_knowledge(self) -> base.PriorKnowledge:
        """What an agent may know before it sees data."""
        setting = self.setting
        return base.PriorKnowledge(setting.input_dim, len(self.train), setting.num_classes, setting.temperature)

    @property
    def id(self) -> str:
        """Such as `testbed/d10-r100-t0.1`; agent and seed complete the id of a run."""
        return f"testbed/{self.setting.id}"


def make_problem(
    input_dim: int,
    data_ratio: float,
    temperature: float,
    seed: int = 0,
    *,
    num_classes: int = 2,
    flip: LabelFlip | None = None,
) -> Problem:
    """Returns the random problem of these settings and seed: the same one on every call and machine.

    Args:
        input_dim: d, the number of inputs.
        data_ratio: r; there are `T = d * r` training examples.
        temperature: rho; the environment divides its logits by it.
        seed: decides environment, training data and test data. A flip changes training labels and nothing else.
        num_classes: classes of the labels.
        flip: training labels to corrupt; the truth that predictions are scored by stays clean.
    """
    setting = Setting(int(input_dim), float(data_ratio), float(temperature), int(num_classes), flip)
    environment = _make_environment(setting, _generator(setting, seed, _ENVIRONMENT))
    random = _generator(setting, seed, _TRAIN)
    x = random.standard_normal((setting.num_train, setting.input_dim), np.float32)
    y = environment.draw_labels(x, random)
    if flip is not None:
        y = flip_labels(y, flip, _generator(setting, seed, _FLIP))
    return Problem(setting, seed, environment, base.Data(x, y))


def problem_from_id(setting_id: str, seed: int = 0) -> Problem:
    """Returns the problem of a setting's id, such as `d10-r100-t0.1`, and a seed."""
    setting = setting_from_id(setting_id)
    return make_problem(
        setting.input_dim,
        setting.data_ratio,
        setting.temperature,
        seed,
        num_classes=setting.num_classes,
        flip=setting.flip,
    )


def flip_labels(y: NDArray[Any], flip: LabelFlip, random: np.random.Generator) -> NDArray[Any]:
    """Returns labels of which the given share of class `source`, picked at random, has become `target`."""
    candidates = np.flatnonzero(y == flip.source)
    chosen = random.permutation(candidates)[: round(flip.fraction * len(candidates))]
    flipped = y.copy()
    flipped[chosen] = flip.target
    return flipped


def uniform_agent(data: base.Data, prior_knowledge: base.PriorKnowledge) -> base.Predictive:
    """The agent that calls every class equally likely: its score is what others are normalised by."""
    return lambda x: np.zeros((len(x), 1, prior_knowledge.num_classes), np.float32)


def evaluate(
    predictive: base.Predictive,
    problem: Problem,
    *,
    tau: int = 10,
    kappa: int = 2,
    num_batches: int = 1000,
    inputs: InputLaw | str = InputLaw.GAUSSIAN,
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
        inputs: the law of the anchors, an `InputLaw` or its name.
        seed: decides the test inputs, together with the problem.
        exact: whether to sum over all label counts rather than draw some; `None` chooses by their number.
    """
    for name, value, least in (("tau", tau, 1), ("kappa", kappa, 1), ("num_batches", num_batches, 2)):
        if value < least:
            raise ValueError(f"Expected {name} >= {least}. Received: {value}")
    random = _generator(problem.setting, problem.seed, _TEST, seed)
    x = _draw_inputs(InputLaw(inputs), random, num_batches * kappa, problem.setting.input_dim)
    labels = problem.environment.draw_labels(x, random)
    logits = _predict(predictive, x, problem.setting.num_classes)
    truth = problem.environment.log_probs(x)
    marginal = np.sum(np.exp(truth) * (truth - _log_mixture(logits)), axis=-1)
    joint = joint_kl(logits, truth, tau=tau, kappa=kappa, random=random, exact=exact)
    return base.Quality(
        kl_marginal=float(marginal.mean()),
        kl_marginal_error=_standard_error(marginal),
        kl_joint=float(joint.mean()),
        kl_joint_error=_standard_error(joint),
        accuracy=metrics.accuracy(logits, labels),
        ece=metrics.ece(logits, labels),
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
    _, members, classes = logits.shape
    cells = kappa * classes
    truth = true_log_probs.reshape(-1, cells)
    num_counts = math.comb(tau + cells - 1, cells - 1)
    if exact is None:
        exact = num_counts <= MAX_EXACT_COUNTS
    probs = np.exp(truth) / kappa
    if exact:
        counts = np.broadcast_to(_count_vectors(tau, cells), (len(truth), num_counts, cells))
        weights = np.exp(_log_multinomial(tau, cells) + counts @ np.log(np.maximum(probs, 1e-300))[..., None])[..., 0]
    else:
        # Softmax sums to 1 up to rounding; NumPy is strict about it.
        draws = random.multinomial(tau, probs / probs.sum(axis=-1, keepdims=True), size=(_NUM_DRAWS, len(probs)))
        counts = draws.transpose(1, 0, 2).astype(np.float64)
        weights = np.full(counts.shape[:2], 1.0 / _NUM_DRAWS)
    members_first = _log_softmax(logits).reshape(-1, kappa, members, classes).transpose(0, 2, 1, 3)
    agent = _log_joint(members_first.reshape(-1, members, cells), counts)
    return np.sum(weights * ((counts @ truth[..., None])[..., 0] - agent), axis=-1)


def _generator(setting: Setting, seed: int, *streams: int) -> np.random.Generator:
    """A stream of randomness of one problem. Settings have unrelated problems, but a flip changes nothing else."""
    numbers = np.array([setting.data_ratio, setting.temperature], np.float64).view(np.uint32)
    entropy = (seed, setting.input_dim, setting.num_classes, *map(int, numbers), *streams)
    return np.random.default_rng(np.random.SeedSequence([value & 0xFFFFFFFF for value in entropy]))


def _make_environment(setting: Setting, random: np.random.Generator) -> Environment:
    sizes = (setting.input_dim, *HIDDEN_SIZES, setting.num_classes)
    layers = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        kernel = _truncated_normal(random, (fan_in, fan_out)) / math.sqrt(fan_in)
        # Only the first bias is random: without it every function would be homogeneous in x.
        bias = random.standard_normal(fan_out) / math.sqrt(fan_in) if index == 0 else np.zeros(fan_out)
        layers.append((kernel, bias))
    return Environment(tuple(layers), setting.temperature)


def _truncated_normal(random: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Normal draws conditioned on lying within two standard deviations of zero (their own std is then 0.88)."""
    values = random.standard_normal(shape)
    while (outside := np.abs(values) > 2.0).any():
        values[outside] = random.standard_normal(np.count_nonzero(outside))
    return values


def _draw_inputs(law: InputLaw, random: np.random.Generator, num: int, dim: int) -> NDArray[np.float32]:
    draw: dict[InputLaw, Callable[[], NDArray[Any]]] = {
        InputLaw.GAUSSIAN: lambda: random.standard_normal((num, dim)),
        InputLaw.UNIFORM: lambda: random.uniform(-math.sqrt(3.0), math.sqrt(3.0), (num, dim)),
        InputLaw.WIDE: lambda: 2.0 * random.standard_normal((num, dim)),
    }
    return draw[law]().astype(np.float32)


def _predict(predictive: base.Predictive, x: NDArray[np.float32], num_classes: int) -> base.Array:
    parts = [np.asarray(predictive(x[start : start + _PREDICT_ROWS])) for start in range(0, len(x), _PREDICT_ROWS)]
    logits = np.concatenate(parts)
    if logits.ndim != 3 or logits.shape[0] != len(x) or logits.shape[2] != num_classes:
        raise ValueError(
            f"Expected a predictive that returns logits [{len(x)}, members, {num_classes}]. Received: {logits.shape}"
        )
    return member_logits.check_logits(logits)


def _log_softmax(logits: base.Array) -> Floats:
    values = np.asarray(logits, np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    return values - np.log(np.sum(np.exp(values), axis=-1, keepdims=True))


def _log_mixture(logits: base.Array) -> Floats:
    """Returns `log mean_m p_m(y | x)`, `[batch, classes]`, finite however unlikely the class."""
    return member_logits.log_mean_exp(_log_softmax(logits).swapaxes(1, 2))


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


def _log_joint(log_probs: Floats, counts: Floats) -> Floats:
    """Returns `log mean_m exp(sum_cells n log p_m)`, `[batches, counts]`, in bounded memory.

    Args:
        log_probs: `[batches, members, cells]`.
        counts: `[batches, counts, cells]`.
    """
    batches, members, _ = log_probs.shape
    result = np.empty(counts.shape[:2])
    # Slices of members and of batches: a likelihood per (batch, member, count) never exists all at once.
    member_step = max(1, member_logits.SLICE_ELEMENTS // counts.shape[1])
    step = max(1, member_step // members)

    def fill(start: int) -> None:
        rows = slice(start, start + step)
        total = np.full(result[rows].shape, -np.inf)
        for first in range(0, members, member_step):
            part = log_probs[rows, first : first + member_step] @ counts[rows].swapaxes(1, 2)
            largest = part.max(axis=1)
            part -= largest[:, None]
            np.exp(part, out=part)
            total = np.logaddexp(total, largest + np.log(part.sum(axis=1)))
        result[rows] = total - math.log(members)

    # NumPy releases the interpreter lock; every slice is computed alike whoever computes it.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(fill, range(0, batches, step)))
    return result


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))
