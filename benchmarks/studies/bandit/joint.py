"""Does joint KL predict regret, and marginal KL not? Some twenty agents on random networks, by both.

Usage: `python -m benchmarks.studies.bandit.joint --output results/bandit_joint`; the same command continues after a
kill. Agents are ensembles of different sizes, prior scales and bootstraps. Each is scored twice, with the same learner,
one update for each example: by its KL from the truth on Neural Testbed problems of d = 10, the mean over 100 and 1,000
examples, and by its regret on bandits of the same dimension and temperature. Nothing is tuned.

A first look had the seeds 0 to 19, which left both questions open; the others were added then, without a change.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import seals
from tf_ensembles import files
from trainers.sweeps import kinds

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("bandit-joint", "benchmarks.studies.bandit.joint:compute")
DIM, TEMPERATURE, RATIOS, HORIZON = 10, 0.1, (10, 100), 1000
SEEDS, PER_RUN, PER_SEED = tuple(range(100)), 20, 2
BATCHES = 500  # of joint predictions per problem
_KINDS = ((0.0, False), (0.3, False), (1.0, False), (3.0, False), (0.0, True), (0.3, True), (1.0, True))
# Members, prior scale, bootstrap.
AGENTS = ((1, 0.0, False), *((members, *kind) for members in (3, 10, 30) for kind in _KINDS))


def name_of(members: int, scale: float, bootstrap: bool) -> str:
    """Returns an agent's name, such as `M = 10, scale 0.3, bootstrap`."""
    return f"M = {members}, scale {scale:g}{', bootstrap' if bootstrap else ''}"


def compute(config: dict[str, Any]) -> dict[str, float]:
    """One run of the sweep: an agent's regret and both of its KLs, by seed."""
    import tf_ensembles as tfe
    from bandit_env.networks import problems, rollout

    scale, bootstrap = config["scale"], tfe.Bernoulli(0.5) if config["bootstrap"] else None
    agent = rollout.Agent(num_members=config["members"], prior_scale=scale, bootstrap=bootstrap)
    seeds = config["seeds"]
    numbers = [seed * PER_SEED + number for seed in seeds for number in range(PER_SEED)]
    made = problems.make_random_network(numbers, 100, DIM, TEMPERATURE)
    regret = rollout.run(agent, made, HORIZON).total.reshape(len(seeds), PER_SEED).mean(1)
    row = {f"regret_{seed}": float(value) for seed, value in zip(seeds, regret, strict=True)}
    for ratio in RATIOS:
        for seed, quality in zip(seeds, score(agent, seeds, ratio), strict=True):
            row |= {f"kl_marginal_{ratio}_{seed}": quality.kl_marginal, f"kl_joint_{ratio}_{seed}": quality.kl_joint}
    return row


def score(agent: Any, seeds: Sequence[int], ratio: int) -> list[Any]:
    """Returns the quality of an agent's predictions on a Neural Testbed problem of each seed, after `10 ratio` data."""
    from bandit_env.networks import export, problems, rollout
    from tf_ensembles import testbed

    tasks = [testbed.make_problem(DIM, ratio, TEMPERATURE, seed) for seed in seeds]
    x = np.stack([task.train.x for task in tasks])[:, :, None]
    labels = np.stack([task.train.y for task in tasks]).astype(np.float32)[:, :, None]
    # One arm: there is nothing to choose, and what it pays is the label.
    data = problems.NeuralProblems("testbed", tuple(seeds), x, labels, np.zeros_like(labels), problems.Noise.BINARY)
    found = rollout.run(agent, data, x.shape[1])
    scores = []
    for place, task in enumerate(tasks):
        predictive = export.make_predictive(found, place)
        scores.append(testbed.evaluate(predictive, task, num_batches=BATCHES))
    return scores


def make_runs(seeds: Sequence[int] = SEEDS) -> list[Any]:
    """Returns runs of each agent, for some seeds each."""
    from trainers.sweeps import sweep

    runs = []
    parts = [list(seeds[start : start + PER_RUN]) for start in range(0, len(seeds), PER_RUN)]
    for part, (members, scale, bootstrap) in itertools.product(parts, AGENTS):
        config = {"members": members, "scale": scale, "bootstrap": bootstrap, "seeds": part}
        name = f"bandit-joint/d{DIM}-t{TEMPERATURE:g}/m{members}-s{scale:g}-b{int(bootstrap)}/seed{part[0]}"
        runs.append(sweep.make_run(name, KIND, config, group=f"m{members}", cost=float(members)))
    return runs


def collect(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Returns regret and KLs by agent and seed."""
    import pandas as pd

    table = []
    for row in rows:
        about = {name: row[name] for name in ("members", "scale", "bootstrap")}
        for seed in row["seeds"]:
            scores = {"regret": row[f"regret_{seed}"]}
            for name in ("kl_marginal", "kl_joint"):
                scores[name] = float(np.mean([row[f"{name}_{ratio}_{seed}"] for ratio in RATIOS]))
            table.append({"agent": name_of(**about), **about, "seed": seed, **scores})
    return pd.DataFrame(table)


def plot(table: pd.DataFrame, path: pathlib.Path) -> None:
    """Draws regret against joint and against marginal KL, a point for each agent with standard errors over seeds."""
    from matplotlib.figure import Figure

    from benchmarks.claims import neural

    found = neural.rank_correlations(table)
    groups = table.groupby(["members", "scale", "bootstrap"])[["regret", "kl_joint", "kl_marginal"]]
    means, errors = groups.mean().reset_index(), groups.sem().fillna(0.0).reset_index()
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    colors = dict(zip(sorted(set(means.members)), ("#888888", "#e69f00", "#0072b2", "#009e73"), strict=False))
    for axes, (score, name) in zip(
        figure.subplots(1, 2, sharey=True), (("kl_joint", "joint KL"), ("kl_marginal", "marginal KL")), strict=True
    ):
        for mean, error in zip(means.to_dict("records"), errors.to_dict("records"), strict=True):
            members, scale, bootstrap = (mean[name] for name in ("members", "scale", "bootstrap"))
            style = {"color": colors[members], "marker": "s" if bootstrap else "o", "ms": 5, "lw": 0.8}
            axes.errorbar(mean[score], mean["regret"], error["regret"], error[score], **style)
            axes.annotate(f" {scale:g}", (mean[score], mean["regret"]), fontsize=7, color=colors[members])
        rank = found[score]
        axes.set(
            xlabel=f"{name}, nats", title=f"rank correlation {rank.estimate:.2f} [{rank.low:.2f}, {rank.high:.2f}]"
        )
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.3)
    first = figure.axes[0]
    first.set(ylabel=f"regret after {HORIZON:,} decisions")
    for members, color in colors.items():
        first.plot([], [], "o", color=color, label=f"M = {members}")
    first.plot([], [], "s", color="black", label="bootstrap")
    first.legend(fontsize=7, title="numbers: prior scale", title_fontsize=7)
    with files.atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130)


def main() -> None:
    """Computes what is missing, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1, help="processes; each uses all cores (default 1)")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("results/bandit_joint"))
    parser.add_argument("--members", type=int, nargs="*", help="sizes of the agents to run (default: all)")
    parser.add_argument(
        "--join", type=pathlib.Path, nargs="*", help="folders of earlier calls to join, without running"
    )
    args = parser.parse_args()
    if args.join:
        from trainers.sweeps import store

        found = {row["hash"]: row for folder in args.join for row in store.read_results(folder)}
        write([found[one.hash] for one in make_runs() if one.hash in found], args.output)
        return
    from trainers.sweeps import sweep

    runs = [one for one in make_runs() if args.members is None or one.config["members"] in args.members]
    with sweep.Sweep(args.output, num_workers=args.workers, show=True) as my_sweep:
        my_sweep.execute(runs)
        rows = [my_sweep.store.rows[one.hash] for one in runs if one.hash in my_sweep.store.rows]
    write(rows, args.output)


def write(rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> None:
    """Writes the table and draws it, where there are agents enough to compare."""
    table = collect(rows)
    with files.atomic_path(folder / "neural_joint.csv") as temporary:
        table.to_csv(temporary, index=False, float_format="%.6g")
    seals.add(folder / "neural_joint.csv")
    if table.agent.nunique() >= 5:
        plot(table, folder / "neural_joint.png")


if __name__ == "__main__":
    main()
