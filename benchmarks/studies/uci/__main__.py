"""The regression table of 2017 on UCI data: one model, and ensembles with and without priors and bootstrap.

    python -m benchmarks.studies.uci --data uci.npz [--out benchmarks/results/uci] [--names yacht wine]
    python -m benchmarks.studies.uci --data uci.npz --speed yacht

The archive has `NAME_x` `[rows, features]` and `NAME_y` `[rows]`. Learning rate, decay and the prior's scale are
chosen on a tenth of the training parts. Data sets that are stored already, by the same settings, are not trained again.
All networks of a data set train in one compiled call; `--speed` compares that with fits of Keras models in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time
from typing import Any

import numpy as np

from benchmarks.studies.uci import claims, protocol, table, training
from tf_ensembles import metrics

# What is chosen from: for the plain ensemble, and then, for the others, the prior's scale.
GRID = tuple((rate, l2) for rate in (0.003, 0.01) for l2 in (0.0, 1e-3, 1e-2))
SCALES = (0.1, 0.3, 1.0)
TIMED_FITS = 3


def choose(data: protocol.Splits, settings: training.Settings, seed: int) -> dict[str, Any]:
    """Returns the learning rate and decay of least NLL, and then the prior scale of least joint NLL, over all splits.

    Both on a tenth of the training parts, which takes no part in the training that is judged by it.
    """
    cut = round(0.9 * data.x_train.shape[1])
    inner = protocol.Splits(
        data.x_train[:, :cut],
        data.y_train[:, :cut],
        data.x_train[:, cut:],
        data.y_train[:, cut:].astype(np.float64),
        np.zeros(len(data.y_mean)),
        np.ones(len(data.y_std)),
    )

    def best(agents: list[training.Agent], tau: int) -> int:
        mean, std = training.train(inner, agents, settings, seed)
        tests = list(zip(mean, std, inner.y_test, strict=True))
        values = [
            np.mean([metrics.gaussian_joint_nll(m[:, k], s[:, k], y, tau=tau) for m, s, y in tests])
            for k in range(len(agents))
        ]
        return int(np.argmin(values))

    rate, l2 = GRID[best([training.Agent("", learning_rate=rate, l2=l2) for rate, l2 in GRID], 1)]
    agents = [training.Agent("", prior_scale=scale, learning_rate=rate, l2=l2) for scale in SCALES]
    return {"learning_rate": rate, "l2": l2, "prior_scale": SCALES[best(agents, table.TAU)]}


def run(path: str, name: str, out: pathlib.Path, settings: training.Settings, seed: int) -> list[table.Row]:
    """Returns the rows of a data set: stored ones, or trained, scored and stored now."""
    target, key = out / f"{name}.csv", {**dataclasses.asdict(settings), "seed": seed}
    key |= {"grid": [list(pair) for pair in GRID], "scales": list(SCALES)}
    if target.exists():
        stored, rows = table.read(target)
        if {k: v for k, v in stored.items() if k not in ("chosen", "seconds")} == key:
            return rows
    data = protocol.split(*protocol.load(path, name))
    chosen = choose(data, settings, seed + 1)
    plain = {**chosen, "prior_scale": 0.0}
    agents = [dataclasses.replace(agent, **(chosen if agent.prior_scale else plain)) for agent in training.AGENTS]
    start = time.perf_counter()
    mean, std = training.train(data, agents, settings, seed)
    seconds = time.perf_counter() - start
    rows = []
    for s, y in enumerate(data.y_test):
        rows.append(table.score_one_model(s, mean[s, :, 0], std[s, :, 0], y))
        rows += [table.score(agent.name, s, mean[s, :, k], std[s, :, k], y) for k, agent in enumerate(agents)]
    table.write(target, {**key, "chosen": chosen, "seconds": round(seconds, 1)}, rows)
    return rows


def speed(path: str, name: str, settings: training.Settings, seed: int) -> None:
    """Prints how long all splits take in one call, against fits of Keras models and of ensembles, one after another."""
    import keras

    import tf_ensembles as tfe

    data = protocol.split(*protocol.load(path, name))
    plain = training.AGENTS[:1]

    def build() -> Any:
        layers = [keras.layers.Dense(settings.hidden, "relu"), keras.layers.Dense(2)]
        return keras.Sequential([keras.Input(data.x_train.shape[2:]), *layers])

    def fit(model: Any) -> None:
        steps = data.x_train.shape[1] // settings.batch_size * settings.epochs
        rate = keras.optimizers.schedules.CosineDecay(plain[0].learning_rate, steps)
        model.compile(keras.optimizers.Adam(rate), tfe.losses.GaussianNLL(min_std=settings.min_std))
        model.fit(data.x_train[0], data.y_train[0], settings.batch_size, settings.epochs, verbose=0)

    def seconds(call: Any, turns: int = TIMED_FITS) -> float:
        start = time.perf_counter()
        for _ in range(turns):
            call()
        return (time.perf_counter() - start) / turns

    together = seconds(lambda: training.train(data, plain, settings, seed), 1)
    compiled = seconds(lambda: training.train(data, plain, settings, seed))
    one = seconds(lambda: fit(build()))
    ensemble = seconds(lambda: fit(tfe.Ensemble(build, settings.num_members)))
    networks = protocol.NUM_SPLITS * settings.num_members
    print(f"{name}: {networks} networks in one call {together:.1f} s, {compiled:.1f} s when compiled already")
    print(f"one Keras fit {one:.1f} s; {networks} of them would take {networks * one / together:.0f} times as long")
    print(f"one call takes {together / one:.2f} times as long as one fit, {compiled / one:.2f} when compiled already")
    whole = protocol.NUM_SPLITS * ensemble
    print(f"{protocol.NUM_SPLITS} fits of tfe.Ensemble would take {whole / together:.0f} times as long")


def main() -> None:
    """Runs the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, metavar="NPZ", help="the archive of data sets")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results/uci"), metavar="FOLDER")
    parser.add_argument("--names", nargs="+", choices=protocol.NAMES, default=protocol.NAMES)
    parser.add_argument("--epochs", type=int, default=training.Settings.epochs)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--speed", choices=protocol.NAMES, metavar="NAME", help="measure times on this data set instead"
    )
    args = parser.parse_args()
    settings = training.Settings(epochs=args.epochs)
    if args.speed:
        speed(args.data, args.speed, settings, args.seed)
        return
    stored = {name: run(args.data, name, args.out, settings, args.seed) for name in args.names}
    print(table.markdown(stored))
    print(claims.markdown(claims.evaluate(stored)))


if __name__ == "__main__":
    main()
