"""Does joint KL predict regret, and marginal KL not? Some twenty agents on random networks, by both.

    tf-ensembles sweep run benchmarks.studies.bandit.joint --preset standard

Agents are ensembles of different sizes, prior scales and bootstraps. Each is scored twice, with the same learner, one
update for each example: by its KL from the truth on Neural Testbed problems of d = 10, the mean over 100 and 1,000
examples, and by its regret on bandits of the same dimension and temperature. Nothing is tuned.

A first look had the seeds 0 to 19, which left both questions open; the others were added then, without a change.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.benchmarks.claims import neural as claims
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("bandit-joint", "tf_ensembles.benchmarks.studies.bandit.joint:compute")
DIM, TEMPERATURE, RATIOS, HORIZON = 10, 0.1, (10, 100), 1000
PER_RUN, PER_SEED = 20, 2  # seeds; problems
BATCHES = 500  # of joint predictions per problem
_KINDS = ((0.0, False), (0.3, False), (1.0, False), (3.0, False), (0.0, True), (0.3, True), (1.0, True))
# Members, prior scale, bootstrap.
AGENTS = ((1, 0.0, False), *((members, *kind) for members in (3, 10, 30) for kind in _KINDS))


def name_of(members: int, scale: float, bootstrap: bool) -> str:
    """Returns an agent's name, such as `M = 10, scale 0.3, bootstrap`."""
    return f"M = {members}, scale {scale:g}{', bootstrap' if bootstrap else ''}"


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run: an agent's regret and both of its KLs, by seed."""
    import tf_ensembles as tfe
    from tf_ensembles.bandit_env.networks import problems, rollout

    scale, bootstrap = config["scale"], tfe.Bernoulli(0.5) if config["bootstrap"] else None
    agent = rollout.Agent(num_members=config["members"], prior_scale=scale, bootstrap=bootstrap)
    seeds = config["seeds"]
    numbers = [seed * PER_SEED + number for seed in seeds for number in range(PER_SEED)]
    networks = problems.make_random_network(numbers, 100, DIM, TEMPERATURE)
    regret = rollout.run(agent, networks, HORIZON).total.reshape(len(seeds), PER_SEED).mean(1)
    row = {f"regret_{seed}": float(value) for seed, value in zip(seeds, regret, strict=True)}
    for ratio in RATIOS:
        for seed, quality in zip(seeds, score(agent, seeds, ratio), strict=True):
            row |= {f"kl_marginal_{ratio}_{seed}": quality.kl_marginal, f"kl_joint_{ratio}_{seed}": quality.kl_joint}
    return row


def score(agent: Any, seeds: Sequence[int], ratio: int) -> list[Any]:
    """Returns the quality of an agent's predictions on a Neural Testbed problem of each seed, after `10 ratio` data."""
    from tf_ensembles import testbed
    from tf_ensembles.bandit_env.networks import export, problems, rollout

    tasks = [testbed.make_problem(DIM, ratio, TEMPERATURE, seed) for seed in seeds]
    x = np.stack([task.train.x for task in tasks])[:, :, None]
    labels = np.stack([task.train.y for task in tasks]).astype(np.float32)[:, :, None]
    # One arm: there is nothing to choose, and what it pays is the label.
    data = problems.NeuralProblems("testbed", tuple(seeds), x, labels, np.zeros_like(labels), problems.Noise.BINARY)
    result = rollout.run(agent, data, x.shape[1])
    return [
        testbed.evaluate(export.make_predictive(result, index), task, num_batches=BATCHES)
        for index, task in enumerate(tasks)
    ]


class _Study(base.Study):
    name, part, kept = "bandit_joint", "bandit", "neural_joint"
    title = "Neural bandits: regret against KL"
    about = f"A point per agent: means over seeds; regret after {HORIZON:,} decisions, with its 95% interval."
    presets = {"quick": 2, "standard": 100}  # seeds

    def stages(self, size: int, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns runs of each agent, for some seeds each."""
        runs = []
        parts = [list(range(size))[start : start + PER_RUN] for start in range(0, size, PER_RUN)]
        for part, (members, scale, bootstrap) in itertools.product(parts, AGENTS):
            config = {"members": members, "scale": scale, "bootstrap": bootstrap, "seeds": part}
            name = f"bandit-joint/d{DIM}-t{TEMPERATURE:g}/m{members}-s{scale:g}-b{int(bootstrap)}/seed{part[0]}"
            runs.append(sweep.make_run(name, KIND, config, group=f"m{members}", cost=float(members)))
        return [lambda rows: runs]

    def records(self, size: int, rows: base.Rows) -> list[dict[str, Any]]:
        """Returns a line per agent and seed."""
        table = []
        for row in base.rows_of(rows, self.all_runs(size, {}, rows)):
            about = {name: row[name] for name in ("members", "scale", "bootstrap")}
            for seed in row["seeds"]:
                scores = {"regret": row[f"regret_{seed}"]}
                for name in ("kl_marginal", "kl_joint"):
                    scores[name] = float(np.mean([row[f"{name}_{ratio}_{seed}"] for ratio in RATIOS]))
                table.append({"agent": name_of(**about), **about, "seed": seed, **scores})
        return table

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns regret against joint and against marginal KL, a line per number of members."""
        correlations = claims.rank_correlations(table)
        made = []
        for score, name in (("kl_joint", "joint KL"), ("kl_marginal", "marginal KL")):
            x = table.groupby("agent")[score].transform("mean")
            sizes = "M = " + table.members.astype(str)
            series = base.lines(table.assign(x=x, size=sizes), "x", "regret", "size")
            rank = correlations[score]
            title = f"rank correlation {rank.estimate:.2f} [{rank.low:.2f}, {rank.high:.2f}]"
            made.append(panels.Panel(title, "regret", series, kind="points", x_label=f"{name}, nats"))
        return made


FIGURE = _Study()
