"""What runs, written before it ran: agents, sizes, seeds, limits, what is chosen, from what and by what.

Deep sea is learned at the first episode up to which less than 90% of episodes were bad: bsuite's rule, and that of
Osband et al. (2018). It counts from the tenth episode on, so that one lucky episode is not enough. A seed stops there,
or at its limit of episodes. What is chosen (epsilon, the priors' scale) has
the lowest mean learning time on seeds of its own, where a seed that did not learn counts as twice its limit. All else
is as in bsuite's agents: two layers of 50 units, Adam at 0.001, minibatches of 128, a buffer of 10,000, discount 0.99.

Changed once, after the choice, sizes up to 8 of ensembles with priors and sizes up to 7 of epsilon-greedy had been
seen: limits of ensembles were 25 N, which ensemble-bp sometimes passed in the choice, and epsilon-greedy had size 9.
The scales at size 15 were added after those at size 10 had been seen to matter little, where no priors are needed.

The epinet came last. It first had a small network of (15, 15), 10 indices per update and the choice of ensembles (250
episodes, in which no scale learned): it learned sizes 5 and 8 in each reported seed, 10 in seven, 12 in none. It then
got the small network and the 20 indices of its authors' public agent on bsuite, smaller scales, and 100 N episodes to
choose in. That agent's index has 2 numbers; on the seeds of the choice, 2 learned in fewer seeds than 8 at the scales
that both were tried at (0.1 and 0.3), so 8 stayed. Its claim had been written before all of this.
"""

from __future__ import annotations

import dataclasses

EPSILON, N, P, BP = "epsilon-greedy", "ensemble-n", "ensemble-p", "ensemble-bp"
EPINET = "epinet"
AGENTS = (EPSILON, N, P, BP, EPINET)
SHARE, LEAST = 0.9, 10  # of bad episodes, and the first episode that counts


@dataclasses.dataclass(frozen=True)
class Preset:
    """How large the study is."""

    sizes: tuple[int, ...]  # of ensembles with priors
    plain_sizes: tuple[int, ...]  # of ensemble-n, and of the epinet
    greedy_sizes: tuple[int, ...]  # of epsilon-greedy
    seeds: tuple[int, ...]
    num_members: int
    chance: int  # episodes that an ensemble with priors, or the epinet, has per unit of size: 100 N
    plain_chance: int  # the same for ensemble-n
    greedy_limit: int  # episodes that epsilon-greedy has at any size
    # The choice.
    choice_seeds: tuple[int, ...]
    choice_size: int  # of ensembles
    greedy_choice_size: int
    scales: tuple[float, ...]
    epsilons: tuple[float, ...]
    # Sensitivity of ensemble-p, on the reported seeds.
    sensitivity_size: int
    sensitivity_scales: tuple[float, ...]  # in units of value
    sensitivity_members: tuple[int, ...]
    deep_size: int  # where an ensemble without priors stalls
    deep_scales: tuple[float, ...]
    num_indices: int = 20  # of the epinet, per update
    index_scales: tuple[float, ...] = (0.1, 0.3, 1.0)  # of its priors

    def limit(self, agent: str, size: int) -> int:
        """Returns the episodes that an agent has at most."""
        if agent == EPSILON:
            return self.greedy_limit
        return (self.plain_chance if agent == N else self.chance) * size


PRESETS = {
    "quick": Preset(
        (3, 4),
        (3,),
        (3,),
        (0, 1),
        2,
        10,
        10,
        40,
        (100,),
        3,
        3,
        (1.0,),
        (0.1,),
        3,
        (1.0, 3.0),
        (1, 2),
        4,
        (1.0,),
        2,
        (1.0,),
    ),
    "standard": Preset(
        sizes=(5, 8, 10, 12, 15, 20, 25, 30),
        plain_sizes=(5, 8, 10, 12, 15, 20),
        greedy_sizes=(4, 5, 6, 7, 8, 10, 12, 15, 20),
        seeds=tuple(range(10)),
        num_members=10,
        chance=100,
        plain_chance=50,
        greedy_limit=8_000,
        choice_seeds=tuple(range(100, 105)),
        choice_size=10,
        greedy_choice_size=7,
        scales=(0.3, 1.0, 3.0),
        epsilons=(0.02, 0.05, 0.1, 0.2),
        sensitivity_size=10,
        sensitivity_scales=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        sensitivity_members=(1, 2, 3, 5, 10, 20),
        deep_size=15,
        deep_scales=(0.01, 0.1, 1.0, 10.0),
    ),
}
