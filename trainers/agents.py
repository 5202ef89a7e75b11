"""The paper's agents for small problems: `mlp`, `ensemble-n`, `ensemble-p`, `ensemble-bp`.

    agent = make_agent("ensemble-bp", num_members=100, prior_scale=3.0, seed=0)
    predictive = agent(data, prior_knowledge)      # x -> logits [batch, members, classes]

Member m minimizes `mean_t W[t, m] ce(f_m(x_t), y_t) + (lambda / T) ||theta_m||^2` with
`f_m(x) = g_theta_m(x) + prior_scale * p_m(x)`; agents differ in prior `p` and weights `W`. The defaults are those of
the public testbed. Training is the compiled loop of `trainers.mlp.train`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any

from tf_ensembles import base, bootstrap, checks
from tf_ensembles.trainers.mlp import train as compiled


class AgentName(enum.Enum):
    """Which of the paper's agents."""

    MLP = "mlp"  # one network, a point estimate
    ENSEMBLE_N = "ensemble-n"  # networks that differ in their random start only
    ENSEMBLE_P = "ensemble-p"  # and in a frozen random prior function
    ENSEMBLE_BP = "ensemble-bp"  # and in bootstrapped loss weights


class DecayScaling(enum.Enum):
    """How lambda, the weight decay of the summed loss, follows from `l2`, d inputs and temperature rho."""

    REFERENCE = "d*sqrt(rho)"  # the public code
    PAPER = "d/sqrt(rho)"  # the paper's text
    NONE = "1"


class PriorScaling(enum.Enum):
    """How the scale of the prior function's logits follows from `prior_scale` and temperature rho."""

    SQRT = "1/sqrt(rho)"
    LINEAR = "1/rho"
    NONE = "1"


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """All that decides an agent. Vary it by `dataclasses.replace`."""

    name: AgentName  # decides which of prior and bootstrap there are
    num_members: int = 100  # M; always 1 for mlp
    l2: float = 1.0  # weight decay in the paper's sum form, before scaling
    decay_scaling: DecayScaling = DecayScaling.REFERENCE  # how decay follows dimension and temperature
    prior_scale: float = 3.0  # scale of the prior function, before scaling; 0 for agents without one
    prior_scaling: PriorScaling = PriorScaling.SQRT  # how the prior follows temperature
    bootstrap_probability: float | None = 0.5  # p of the weights Bernoulli(p) / p; None for agents without bootstrap
    hidden_sizes: tuple[int, ...] = (50, 50)  # hidden layers of members and priors
    learning_rate: float = 1e-3  # Adam's
    batch_size: int = 100  # examples per step; all of them where there are fewer
    num_steps: int = 1000  # steps of Adam
    seed: int = 0  # decides starts, priors, bootstrap weights and minibatches

    def __post_init__(self) -> None:
        for field, kind in (("name", AgentName), ("decay_scaling", DecayScaling), ("prior_scaling", PriorScaling)):
            object.__setattr__(self, field, _option(kind, field, getattr(self, field)))
        hidden = checks.integers("hidden_sizes", self.hidden_sizes, 1, empty=True)
        object.__setattr__(self, "hidden_sizes", hidden)
        for field in ("num_members", "batch_size", "num_steps"):
            object.__setattr__(self, field, checks.integer(field, getattr(self, field), 1))
        for field in ("l2", "prior_scale", "learning_rate"):
            object.__setattr__(self, field, checks.number(field, getattr(self, field), "[0, inf)"))
        object.__setattr__(self, "seed", checks.seed(self.seed))
        self._check_kind()

    def _check_kind(self) -> None:
        """A named agent is what its name says."""
        if self.name is AgentName.MLP and self.num_members != 1:
            raise ValueError(f"Expected num_members=1 for mlp. Received: {self.num_members}")
        if not self.has_prior and self.prior_scale:
            raise ValueError(f"Expected prior_scale=0 for {self.name.value}. Received: {self.prior_scale}")
        if (self.name is AgentName.ENSEMBLE_BP) != (self.bootstrap_probability is not None):
            raise ValueError(
                "Expected a bootstrap_probability for ensemble-bp and None for the others. "
                f"Received: {self.bootstrap_probability} for {self.name.value}"
            )
        if self.bootstrap_probability is not None:
            bootstrap.Bernoulli(self.bootstrap_probability)  # Raises outside (0, 1].

    @property
    def has_prior(self) -> bool:
        """Whether the agent adds prior functions; their members also start with a random first bias."""
        return self.name in (AgentName.ENSEMBLE_P, AgentName.ENSEMBLE_BP)


@dataclasses.dataclass(frozen=True)
class EnsembleAgent:
    """An agent: call it on data and prior knowledge to train it and get its predictive."""

    config: AgentConfig
    num_workers: int | None = None  # members trained at the same time, in blocks; None: as the cores allow

    def __call__(self, data: base.Data, prior_knowledge: base.PriorKnowledge) -> base.Predictive:
        """Trains on `data` and returns `x -> logits [batch, members, classes]`."""
        return train_many([self.config], data, prior_knowledge, num_workers=self.num_workers)[0]


def make_config(name: AgentName | str, **overrides: Any) -> AgentConfig:
    """Returns an agent's default configuration with some fields replaced."""
    kind: AgentName = _option(AgentName, "name", name)
    defaults: dict[str, Any] = {}
    if kind is AgentName.MLP:
        defaults["num_members"] = 1
    if kind in (AgentName.MLP, AgentName.ENSEMBLE_N):
        defaults["prior_scale"] = 0.0
    if kind is not AgentName.ENSEMBLE_BP:
        defaults["bootstrap_probability"] = None
    known = {field.name for field in dataclasses.fields(AgentConfig)}
    if unknown := sorted(set(overrides) - known):
        raise ValueError(f"Expected options among {', '.join(sorted(known))}. Received: {', '.join(unknown)}")
    return AgentConfig(kind, **{**defaults, **overrides})


def make_agent(name: AgentName | str, *, num_workers: int | None = None, **overrides: Any) -> EnsembleAgent:
    """Returns an agent by name, with the reference defaults unless overridden.

    Args:
        name: `"mlp"`, `"ensemble-n"`, `"ensemble-p"` or `"ensemble-bp"`.
        num_workers: blocks of members to train at the same time; no result depends on it.
        **overrides: fields of `AgentConfig`.
    """
    if num_workers is not None:
        checks.integer("num_workers", num_workers, 1)
    return EnsembleAgent(make_config(name, **overrides), num_workers)


def train_many(
    configs: Sequence[AgentConfig],
    data: base.Data,
    prior_knowledge: base.PriorKnowledge,
    *,
    num_workers: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> list[compiled.Trained]:
    """Trains several agents or settings on the same data, side by side as extra members; one predictive for each.

    Configurations that share seed, steps, batch size and network are trained in common blocks; others one after the
    other. Each result is, up to rounding, that of training its configuration alone.

    Args:
        configs: the agents.
        data: training data; inputs are flattened.
        prior_knowledge: what agents may know; its `num_classes` and `temperature` are used, `input_dim` must fit.
        num_workers: blocks of members to train at the same time.
        progress: called with the number of members that have finished.
    """
    _check_data(data, prior_knowledge)
    together: dict[tuple[compiled.Network, compiled.Schedule], list[int]] = {}
    for index, config in enumerate(configs):
        network = compiled.Network(prior_knowledge.input_dim, config.hidden_sizes, prior_knowledge.num_classes)
        schedule = compiled.Schedule(config.num_steps, config.batch_size, config.seed)
        together.setdefault((network, schedule), []).append(index)
    results: dict[int, compiled.Trained] = {}
    for (network, schedule), indices in together.items():
        groups = [member_group(configs[index], len(data), prior_knowledge) for index in indices]
        trained = compiled.train(data.x, data.y, network, groups, schedule, num_workers=num_workers, progress=progress)
        results.update(zip(indices, trained, strict=True))
    return [results[index] for index in range(len(configs))]


def member_group(config: AgentConfig, num_train: int, prior_knowledge: base.PriorKnowledge) -> compiled.Group:
    """Returns the hyperparameters of a configuration's members on a problem, all scalings applied."""
    dim, root = prior_knowledge.input_dim, math.sqrt(prior_knowledge.temperature)
    decay = {DecayScaling.REFERENCE: dim * root, DecayScaling.PAPER: dim / root, DecayScaling.NONE: 1.0}
    prior = {PriorScaling.SQRT: 1 / root, PriorScaling.LINEAR: 1 / root**2, PriorScaling.NONE: 1.0}
    probability = config.bootstrap_probability
    return compiled.Group(
        num_members=config.num_members,
        l2=config.l2 * decay[config.decay_scaling] / num_train,  # From the sum over examples to their mean.
        learning_rate=config.learning_rate,
        prior_scale=config.prior_scale * prior[config.prior_scaling],
        bootstrap=None if probability is None else bootstrap.Bernoulli(probability),
        random_bias=config.has_prior,
    )


def _check_data(data: base.Data, prior_knowledge: base.PriorKnowledge) -> None:
    x, y = data.x, data.y
    inputs = math.prod(x.shape[1:])
    if len(y) == 0 or inputs != prior_knowledge.input_dim:
        raise ValueError(
            f"Expected training inputs [examples, {prior_knowledge.input_dim}], as in the prior knowledge. "
            f"Received: {x.shape}"
        )
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= prior_knowledge.num_classes:
        raise ValueError(
            f"Expected integer labels in [0, {prior_knowledge.num_classes}). "
            f"Received: {y.dtype} from {y.min()} to {y.max()}"
        )
    checks.check_range("inputs", x, checks.LARGEST_SINGLE)


def _option(kind: Any, field: str, value: Any) -> Any:
    """Returns an enum's member from itself or its value."""
    try:
        return kind(value)
    except ValueError:
        options = ", ".join(repr(option.value) for option in kind)
        raise ValueError(f"Expected {field} to be one of {options}. Received: {value!r}") from None
