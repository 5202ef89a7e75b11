"""An epinet beside ensembles with priors of 1 to 100 members: joint KL against cost, on exported reference problems.

    python -m benchmarks.studies.epinet tune --out tuning.csv                       # problems of our own, other seeds
    python -m benchmarks.studies.epinet run problems.npz --out benchmarks/results/testbed/epinet.csv
    python -m benchmarks.studies.epinet draw benchmarks/results/testbed/epinet.csv --out docs/epinet.png

The archive is that of `benchmarks.studies.testbed_reference`. The epinet has the shape of its authors' testbed agent:
an MLP of two hidden layers of 50, an index of 8 numbers, a small network of (15, 15) on the last hidden layer, eight
prior functions of (5, 5) on the inputs, the loss averaged over 8 indices a step, 1,000 steps of Adam. Its prior scale
and weight decay were chosen by `tune` on problems of other seeds. Ensembles are `trainers`' "ensemble-p" as it is; that
of M members is the first M of 100. `tune` and `run` go on where they were stopped.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import seals, style
from benchmarks.studies import testbed_reference
from tf_ensembles import base, extras, files

SIZES = (1, 3, 10, 30, 100)
DRAWN = (100, 1000)  # indices that an epinet is asked with
HIDDEN, INDEX, SMALL, PRIOR = (50, 50), 8, (15, 15), (5, 5)
STEPS, BATCH = 1000, 100
# Chosen by `tune`: the prior's standard deviation in logits times the temperature, and l2 / (d / T)^0.7.
CHOSEN = {"prior": 0.1, "l2": 0.2}
GRID = {"prior": (0.03, 0.1, 0.3, 1.0), "l2": (0.01, 0.05, 0.2, 1.0)}
TUNING_SEEDS = (1000, 1001, 1002)


def train_epinet(data: base.Data, knowledge: base.PriorKnowledge, prior: float, l2: float, seed: int) -> Any:
    """Returns a trained epinet."""
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe
    from tf_ensembles.ensemble.batches import shuffled_batches

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(size, "relu") for size in HIDDEN]
    decay = l2 * (knowledge.input_dim / knowledge.num_train) ** 0.7
    epinet = tfe.Epinet(
        keras.Sequential([keras.Input((knowledge.input_dim,)), *layers]),
        INDEX,
        num_outputs=knowledge.num_classes,
        hidden=SMALL,
        prior=tfe.PriorFunction(
            lambda: _build_prior(knowledge.input_dim, knowledge.num_classes), prior / knowledge.temperature, True
        ),
        num_members=DRAWN[0],
        l2=decay,
        seed=seed,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    epinet.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False, steps_per_execution=50)
    epinet.adapt(data.x)
    first = tf.Variable(0, dtype=tf.int64, trainable=False)
    arrays = np.asarray(data.x, np.float32), np.asarray(data.y).reshape(-1)
    batches = shuffled_batches(arrays, len(arrays[1]), min(BATCH, len(arrays[1])), seed, first, True)
    epinet.fit(batches, steps_per_epoch=STEPS, epochs=1, verbose=0)
    return epinet


def _build_prior(dim: int, classes: int) -> Any:
    """Returns a small random network without biases, as the authors have them."""
    import keras

    sizes = [dim, *PRIOR]
    initial = [keras.initializers.TruncatedNormal(stddev=size**-0.5) for size in sizes]
    layers = [keras.layers.Dense(size, "relu", kernel_initializer=initial[i]) for i, size in enumerate(PRIOR)]
    return keras.Sequential([keras.Input((dim,)), *layers, keras.layers.Dense(classes, kernel_initializer=initial[-1])])


def as_predictive(model: Any) -> base.Predictive:
    """Returns a model as a function from inputs to logits `[batch, members, classes]`."""
    return lambda x: np.asarray(model.predict(np.asarray(x, np.float32), batch_size=500, verbose=0))


# What it costs.


def _mlp(sizes: Sequence[int]) -> tuple[int, int]:
    """Parameters, and floating-point operations of one pass for one example."""
    pairs = list(itertools.pairwise(sizes))
    return sum(a * b + b for a, b in pairs), sum(2 * a * b for a, b in pairs)


def cost_of_ensemble(members: int, dim: int, classes: int = 2) -> tuple[int, int]:
    """Returns all parameters, priors included, and the operations of a prediction."""
    parameters, flops = _mlp([dim, *HIDDEN, classes])
    return 2 * members * parameters, 2 * members * flops


def cost_of_epinet(drawn: int, dim: int, classes: int = 2) -> tuple[int, int]:
    """Returns all parameters, priors included, and the operations of a prediction with `drawn` indices."""
    base_net, small = _mlp([dim, *HIDDEN, classes]), _mlp([HIDDEN[-1] + INDEX, *SMALL, classes * INDEX])
    prior = _mlp([dim, *PRIOR, classes])
    # Features meet the first layer once; the index, and all layers after it, once per draw.
    shared = base_net[1] + INDEX * prior[1] + 2 * HIDDEN[-1] * SMALL[0]
    each = small[1] - 2 * HIDDEN[-1] * SMALL[0] + 2 * 2 * INDEX * classes
    return base_net[0] + small[0] + INDEX * prior[0], shared + drawn * each


# The parts of the study.


def tune(out: pathlib.Path) -> list[dict[str, Any]]:
    """Scores a grid of prior scales and weight decays on problems of other seeds, and writes the mean joint KLs."""
    from tf_ensembles import testbed

    settings = list(itertools.product((1, 10, 100), (0.1,), TUNING_SEEDS))
    rows = _read(out)
    done = {(float(row["prior"]), float(row["l2"])) for row in rows}
    for prior, l2 in itertools.product(GRID["prior"], GRID["l2"]):
        if (prior, l2) in done:
            continue
        scores, start = [], time.process_time()
        for ratio, temperature, seed in settings:
            problem = testbed.make_problem(input_dim=10, data_ratio=ratio, temperature=temperature, seed=seed)
            model = train_epinet(problem.train, problem.prior_knowledge, prior, l2, seed)
            scores.append(testbed.evaluate(as_predictive(model), problem, num_batches=1000).kl_joint)
        rows.append({"prior": prior, "l2": l2, "kl_joint": float(np.mean(scores)), "problems": len(scores)})
        print(rows[-1], f"{time.process_time() - start:.0f} s", flush=True)
        _write(out, rows)
    return rows


def run(problems: pathlib.Path, out: pathlib.Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Trains and scores all on the exported problems, and writes one row per method, problem and seed."""
    from trainers import agents

    rows = _read(out)
    done = {(int(row["seed"]), int(row["problem"])) for row in rows}
    for seed, problem in itertools.product(seeds, testbed_reference.load_problems(problems)):
        if (seed, problem.index) in done:
            continue
        dim = problem.prior_knowledge.input_dim
        config = agents.make_config("ensemble-p", seed=seed, num_members=max(SIZES))
        (predictive,) = agents.train_many([config], problem.train, problem.prior_knowledge)
        for size in SIZES:
            cost = cost_of_ensemble(size, dim)
            rows.append(_row(f"ensemble-p of {size}", problem, seed, _first(predictive, size), cost))
        model = train_epinet(problem.train, problem.prior_knowledge, CHOSEN["prior"], CHOSEN["l2"], seed)
        for drawn in DRAWN:
            model.num_members = drawn
            cost = cost_of_epinet(drawn, dim)
            rows.append(_row(f"epinet, {drawn} indices", problem, seed, as_predictive(model), cost))
        _write(out, rows)
        print(problem.index, seed, {row["method"]: round(row["kl_joint"], 3) for row in rows[-7:]}, flush=True)
    return rows


def _first(predictive: base.Predictive, size: int) -> base.Predictive:
    return lambda x: np.asarray(predictive(x))[:, :size]


def _row(method: str, problem: Any, seed: int, predictive: base.Predictive, cost: tuple[int, int]) -> dict[str, Any]:
    joint, marginal = (testbed_reference.score(predictive, problem, points)[0] for points in ("10", "1"))
    found = {"method": method, "problem": problem.index, "seed": seed, "kl_joint": joint, "kl_marginal": marginal}
    return {**found, "parameters": cost[0], "flops": cost[1]}


def _read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of a table that was begun before; none if there is none."""
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def _write(path: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_path(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows
        )
    seals.add(path)


def summarize(path: pathlib.Path) -> list[dict[str, Any]]:
    """Returns one row per method: means over problems and seeds, with the error over seeds, and costs."""
    rows = _read(path)
    found: list[dict[str, Any]] = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        seeds = sorted({row["seed"] for row in mine})
        by_seed = {
            name: [float(np.mean([float(row[name]) for row in mine if row["seed"] == seed])) for seed in seeds]
            for name in ("kl_joint", "kl_marginal")
        }
        error = float(np.std(by_seed["kl_joint"], ddof=1)) / math.sqrt(len(seeds)) if len(seeds) > 1 else math.nan
        found.append(
            {
                "method": method,
                "kl_joint": float(np.mean(by_seed["kl_joint"])),
                "error": error,
                "kl_marginal": float(np.mean(by_seed["kl_marginal"])),
                "parameters": int(mine[0]["parameters"]),
                "flops": int(mine[0]["flops"]),
            }
        )
    return found


def draw(path: pathlib.Path, out: pathlib.Path) -> None:
    """Draws joint KL against parameters and against operations of a prediction."""
    extras.require("matplotlib", "The picture of the study")
    from matplotlib.figure import Figure

    rows = summarize(path)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, cost, label in zip(
        axes, ("parameters", "flops"), ("parameters", "operations per prediction"), strict=True
    ):
        for name, series in (("ensemble-p", "ensemble-p"), ("epinet", "epinet")):
            mine = [row for row in rows if row["method"].startswith(name)]
            number = style.color_number(series, ["ensemble-n", "ensemble-p", "ensemble-bp", "epinet"])
            axis.errorbar(
                [row[cost] for row in mine],
                [row["kl_joint"] for row in mine],
                yerr=[2.0 * row["error"] for row in mine],
                marker=style.MARKERS[number],
                color=style.LIGHT[number],
                label="ensemble-p, by members" if name == "ensemble-p" else name,
            )
            for row in mine:
                text = row["method"].removeprefix("ensemble-p of ").removeprefix("epinet, ").replace("1000", "1,000")
                if name == "epinet" and cost == "parameters":
                    if row is not mine[0]:
                        continue  # As many parameters for any number of indices.
                    text = " and ".join(f"{count:,}" for count in DRAWN) + " indices"
                below = (
                    {"xytext": (-5, -11), "ha": "right"} if name == "ensemble-p" else {"xytext": (0, 11), "ha": "left"}
                )
                place = (row[cost], row["kl_joint"])
                axis.annotate(text, place, textcoords="offset points", fontsize=8, color=style.LIGHT[number], **below)
        axis.set(xscale="log", yscale="log", xlabel=label, ylim=(0.5, 13.0))
        axis.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("joint KL, tau = 10 (nats)")
    axes[0].legend(frameon=False)
    with files.atomic_path(out) as temporary:
        figure.savefig(temporary, dpi=150)


def main() -> None:
    """Runs a part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    one = parts.add_parser("tune", help="choose the prior scale and weight decay")
    one.add_argument("--out", type=pathlib.Path, required=True, help="the table to write")
    two = parts.add_parser("run", help="train and score all on exported problems")
    two.add_argument("problems", type=pathlib.Path, help="the .npz archive of problems")
    two.add_argument("--out", type=pathlib.Path, required=True, help="the table to write")
    two.add_argument("--seeds", type=int, default=2, help="how many seeds")
    three = parts.add_parser("draw", help="print the table by method, and draw it")
    three.add_argument("table", type=pathlib.Path, help="the table of `run`")
    three.add_argument("--out", type=pathlib.Path, required=True, help="the picture to write")
    args = parser.parse_args()
    if args.part == "tune":
        tune(args.out)
    elif args.part == "run":
        run(args.problems, args.out, range(args.seeds))
    else:
        for row in summarize(args.table):
            print(row)
        draw(args.table, args.out)


if __name__ == "__main__":
    main()
