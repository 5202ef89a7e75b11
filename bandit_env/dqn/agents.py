"""Agents, and how their networks learn: what a run of Bootstrapped DQN is told."""

from __future__ import annotations

import dataclasses
import math

from tf_ensembles.bandit_env.problems import check_sizes
from tf_ensembles.bootstrap import Bernoulli, Bootstrap

AGENTS = ("epsilon-greedy", "ensemble-n", "ensemble-p", "ensemble-bp", "epinet")
INDEX_DIM, INDEX_HIDDEN = 8, (50,)  # `tfe.Epinet`'s index; the small network of its authors' agent on bsuite


@dataclasses.dataclass(frozen=True)
class Agent:
    """What decides how an agent explores; `make_agent` names the usual ones."""

    num_members: int = 20  # M; one of them acts in each episode
    prior_scale: float = 0.0  # of frozen random networks added to values: their standard deviation, in units of value
    bootstrap: Bootstrap | None = None  # of a transition's weight for each member, fixed by its id
    epsilon: float = 0.0  # how often an action is drawn by chance
    # D, the numbers of an epinet's index; 0: members. One index acts in each episode, and an update averages over
    # `num_members` of them, drawn anew.
    index_dim: int = 0
    index_hidden: tuple[int, ...] = INDEX_HIDDEN  # units of the epinet's small network

    def __post_init__(self) -> None:
        check_sizes(num_members=self.num_members)
        if self.index_dim:
            check_sizes(index_dim=self.index_dim, **{f"index_hidden[{i}]": n for i, n in enumerate(self.index_hidden)})
            if not self.index_hidden:
                raise ValueError("Expected index_hidden of one layer at least. Received: ()")
            if self.bootstrap is not None:
                raise ValueError(
                    f"Expected no bootstrap for an epinet, which has no members. Received: {self.bootstrap!r}"
                )
        if not (0.0 <= self.prior_scale < math.inf):
            raise ValueError(f"Expected a finite prior_scale >= 0. Received: {self.prior_scale}")
        if not 0.0 <= self.epsilon <= 1.0:
            raise ValueError(f"Expected epsilon in [0, 1]. Received: {self.epsilon}")
        if self.bootstrap is not None and not isinstance(self.bootstrap, Bootstrap):
            raise ValueError(f"Expected a bootstrap such as tfe.Bernoulli(0.5), or None. Received: {self.bootstrap!r}")


def make_agent(name: str, num_members: int = 20, prior_scale: float = 1.0, epsilon: float = 0.1) -> Agent:
    """Returns an agent by its name; what does not belong to it is left out.

    Args:
      name: "epsilon-greedy" (one member), "ensemble-n" (no prior), "ensemble-p" (priors), "ensemble-bp" (priors, and
        each member sees each transition with probability 1/2) or "epinet" (one network and a small one with an index
        and priors).
      num_members: of an ensemble; of an epinet, indices per update.
      prior_scale: standard deviation of priors, in units of value.
      epsilon: of epsilon-greedy.
    """
    if name not in AGENTS:
        raise ValueError(f"Expected an agent of {list(AGENTS)}. Received: {name!r}")
    if name == "epsilon-greedy":
        return Agent(1, epsilon=epsilon)
    if name == "ensemble-n":
        return Agent(num_members)
    if name == "epinet":
        return Agent(num_members, prior_scale, index_dim=INDEX_DIM)
    return Agent(num_members, prior_scale, Bernoulli(0.5) if name == "ensemble-bp" else None)


@dataclasses.dataclass(frozen=True)
class Learner:
    """How networks learn; the defaults are those of bsuite's agents."""

    hidden_sizes: tuple[int, ...] = (50, 50)
    learning_rate: float = 1e-3  # Adam's
    batch_size: int = 128  # transitions per update, drawn with replacement
    discount: float = 0.99
    capacity: int = 10_000  # transitions that the replay buffer holds
    min_transitions: int = 128  # before the first update
    update_every: int = 1  # transitions per update
    target_period: int = 4  # updates per copy to the target network

    def __post_init__(self) -> None:
        sizes = {f"hidden_sizes[{place}]": size for place, size in enumerate(self.hidden_sizes)}
        whole = ("batch_size", "capacity", "min_transitions", "update_every", "target_period")
        check_sizes(**sizes, **{name: getattr(self, name) for name in whole})
        if not self.hidden_sizes:
            raise ValueError("Expected hidden_sizes of one layer at least. Received: ()")
        if not (self.learning_rate > 0.0 and math.isfinite(self.learning_rate)):
            raise ValueError(f"Expected a finite learning_rate > 0. Received: {self.learning_rate}")
        if not 0.0 <= self.discount <= 1.0:
            raise ValueError(f"Expected discount in [0, 1]. Received: {self.discount}")
