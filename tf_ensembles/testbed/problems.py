"""The Neural Testbed's random classification problems, whose truth is known.

A problem is a random 2-hidden-layer MLP (50, 50) with ReLU whose logits are divided by a temperature; inputs are
`N(0, I_d)` and labels are drawn from the softmax. Section 5.1 and appendices A and C of the paper.

    problem = make_problem(input_dim=10, data_ratio=100, temperature=0.1, seed=0)

Shapes: inputs `[batch, input_dim]`, labels `[batch]`.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles import base, checks
from tf_ensembles.draws import Purpose
from tf_ensembles.metrics import likelihood
from tf_ensembles.metrics.likelihood import Floats

INPUT_DIMS = (2, 10, 100)
DATA_RATIOS = (1, 10, 100, 1000)
TEMPERATURES = (0.01, 0.1, 0.5)
HIDDEN_SIZES = (50, 50)


class InputDistribution(enum.Enum):
    """What test inputs are drawn from. Training inputs are always Gaussian."""

    GAUSSIAN = "gaussian"  # N(0, I), as in training
    UNIFORM = "uniform"  # uniform on a cube, with the same variance
    WIDE = "wide"  # N(0, 4 I): mostly further out than training inputs

    @classmethod
    def _missing_(cls, value: object) -> InputDistribution:
        raise ValueError(f"Expected inputs to be one of {[one.value for one in cls]}. Received: {value!r}")


@dataclasses.dataclass(frozen=True)
class LabelFlip:
    """Training labels to corrupt: a fraction of those of class `source` becomes `target`.

    With `symmetric`, the same fraction of those of class `target` becomes `source` at once.
    """

    fraction: float = 0.25
    source: int = 1
    target: int = 0
    symmetric: bool = False

    def __post_init__(self) -> None:
        checks.number("a fraction", self.fraction, "[0, 1]")
        checks.integer("source", self.source, 0)
        checks.integer("target", self.target, 0)
        if self.source == self.target:
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
        for name, value in (
            ("input_dim", checks.integer("input_dim", self.input_dim, 1)),
            ("data_ratio", checks.number("data_ratio", self.data_ratio, "[0, inf)")),
            ("temperature", checks.number("temperature", self.temperature, "(0, inf)")),
            ("num_classes", checks.integer("num_classes", self.num_classes, 2)),
        ):
            object.__setattr__(self, name, value)
        if not 0.5 < self.input_dim * self.data_ratio < checks.LARGEST_INTEGER:
            raise ValueError(
                "Expected input_dim >= 1 and at least one training example. "
                f"Received: input_dim={self.input_dim}, data_ratio={self.data_ratio}"
            )
        if not isinstance(self.flip, LabelFlip | None):
            raise ValueError(f"Expected flip, a LabelFlip or None. Received: {checks.shown(self.flip)}")
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
            both = "-both" if self.flip.symmetric else ""
            name += f"-flip{self.flip.fraction:g}-{self.flip.source}-{self.flip.target}{both}"
        return name


SETTINGS = tuple(Setting(*values) for values in itertools.product(INPUT_DIMS, map(float, DATA_RATIOS), TEMPERATURES))

_NUMBER = r"(\d+(?:\.\d+)?(?:e-?\d+)?)"
_ID = re.compile(rf"(?:testbed/)?d(\d+)-r{_NUMBER}-t{_NUMBER}(?:-c(\d+))?(?:-flip{_NUMBER}-(\d+)-(\d+)(-both)?)?")


def setting_from_id(setting_id: str) -> Setting:
    """Returns the setting that `Setting.id` names."""
    match = _ID.fullmatch(setting_id) if isinstance(setting_id, str) else None
    if match is None:
        raise ValueError(f"Expected an id such as {SETTINGS[0].id!r}. Received: {checks.shown(setting_id)}")
    dim, ratio, temperature, classes, fraction, source, target, both = match.groups()
    flip = LabelFlip(float(fraction), int(source), int(target), both is not None) if fraction is not None else None
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
        logits = (hidden @ kernel + bias) / self.temperature
        checks.check_result("logits", logits, temperature=self.temperature)
        return logits

    def log_probs(self, x: base.Array) -> Floats:
        """Returns `log P*(y | x)`, `[batch, classes]`."""
        return likelihood.log_softmax(self.logits(x))

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
    setting = Setting(input_dim, data_ratio, temperature, num_classes, flip)
    seed = checks.seed(seed)
    checks.fits(
        setting.num_train * (setting.input_dim + max(HIDDEN_SIZES)) + max(HIDDEN_SIZES) * setting.num_classes,
        f"{setting.num_train} training examples, input_dim={input_dim}, num_classes={num_classes}",
    )
    environment = _make_environment(setting, generator(setting, seed, Purpose.TESTBED_ENVIRONMENT))
    random = generator(setting, seed, Purpose.TESTBED_TRAIN)
    x = random.standard_normal((setting.num_train, setting.input_dim), np.float32)
    y = environment.draw_labels(x, random)
    if flip is not None:
        y = flip_labels(y, flip, generator(setting, seed, Purpose.TESTBED_FLIP))
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
    flipped = y.copy()
    for source, target in ((flip.source, flip.target), (flip.target, flip.source))[: 1 + flip.symmetric]:
        candidates = np.flatnonzero(y == source)
        chosen = random.permutation(candidates)[: round(flip.fraction * len(candidates))]
        flipped[chosen] = target
    return flipped


def uniform_agent(data: base.Data, prior_knowledge: base.PriorKnowledge) -> base.Predictive:
    """The agent that calls every class equally likely: its score is what others are normalized by."""
    return lambda x: np.zeros((len(x), 1, prior_knowledge.num_classes), np.float32)


def base_rate_agent(data: base.Data, prior_knowledge: base.PriorKnowledge) -> base.Predictive:
    """The agent that knows how frequent each class is and looks at no input: what labels alone tell.

    Each class counts once more than it was seen (Laplace's rule), so that none is impossible.
    """
    counts = np.bincount(data.y, minlength=prior_knowledge.num_classes) + 1.0
    logits = np.log(counts / counts.sum()).astype(np.float32)
    return lambda x: np.tile(logits, (len(x), 1, 1))


def generator(setting: Setting, seed: int, purpose: Purpose, *numbers: int) -> np.random.Generator:
    """Returns the randomness of one purpose of a problem.

    Settings have unrelated problems, but a flip changes nothing else.
    """
    ratios = np.array([setting.data_ratio, setting.temperature], np.float64).view(np.uint32)
    entropy = (seed, setting.input_dim, setting.num_classes, *map(int, ratios), purpose.stream, *numbers)
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
