"""What runs, written before it ran: agents, sizes, what is chosen, from what, and by which score on which images.

Nothing here was chosen by a test image. Members of the choice have another seed, train on the same 50,000 images and
are judged on the 10,000 training images that nobody trains on.
"""

from __future__ import annotations

import dataclasses

ONE, N, P, BP = "one", "ensemble-n", "ensemble-p", "ensemble-bp"
AGENTS = (N, P, BP)  # "one" is a member of ensemble-n by itself: the mean over them of each one's scores.
TAU = 10  # labels per joint prediction


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is."""

    num_members: int = 10
    steps: int = 5000
    batch: int = 256
    learning_rate: float = 1e-3
    seed: int = 0
    # The choice: first the prior's scale for ensemble-p, then, with it, the bootstrap's rate for ensemble-bp, each by
    # the least joint NLL on held-out images. Shorter trainings and fewer members, for the sake of time.
    choice_seed: int = 1
    choice_members: int = 3
    choice_steps: int = 2000
    scales: tuple[float, ...] = (0.3, 1.0, 3.0)  # standard deviations of the prior's logits over training images
    rates: tuple[float, ...] = (0.5, 0.8)  # p of the weights Bernoulli(p) / p


PRESETS = {
    "quick": Size(num_members=2, steps=20, choice_members=1, choice_steps=10, scales=(0.3, 1.0), rates=(0.5, 0.8)),
    "standard": Size(),
}


@dataclasses.dataclass(frozen=True)
class Member:
    """One network: all that its training depends on but the data."""

    agent: str
    seed: int
    member: int
    steps: int
    batch: int
    learning_rate: float
    prior_scale: float = 0.0
    rate: float = 1.0

    @property
    def name(self) -> str:
        """Its run, and its file."""
        what = f"{self.agent}-scale{self.prior_scale:g}-rate{self.rate:g}"
        return f"{what}-steps{self.steps}-batch{self.batch}-lr{self.learning_rate:g}-seed{self.seed}-{self.member}"


def members(size: Size, agent: str, scale: float = 0.0, rate: float = 1.0, *, choice: bool = False) -> list[Member]:
    """Returns the members of an ensemble, of the study or of its choice."""
    count, steps, seed = (
        (size.choice_members, size.choice_steps, size.choice_seed)
        if choice
        else (size.num_members, size.steps, size.seed)
    )
    return [Member(agent, seed, m, steps, size.batch, size.learning_rate, scale, rate) for m in range(count)]
