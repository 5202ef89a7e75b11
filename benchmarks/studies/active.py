"""Active learning with Keras: how many labels does `tfe.acquire` save against random ones?

    python -m benchmarks.studies.active digits [--out benchmarks/results/active]
    python -m benchmarks.studies.active fashion --data FOLDER        # as benchmarks.studies.fashion.data fetches it
    python -m benchmarks.studies.active table                        # the table and the picture of what is stored

An ensemble of small Keras networks learns from few labels, asks for ten more, and is trained anew, until it has 120.
All methods of a seed begin with the same labels, networks and test examples. What is stored is not computed again.

What runs was fixed before it ran; nothing was chosen by its results. "Labels to reach random's end" is, for each seed,
how many labels a method needs for the accuracy that random labels have in the end, 120 where it never gets there.
"""

from __future__ import annotations

import argparse
import csv
import io
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks import seals, stats, style
from tf_ensembles import extras, files

METHODS = ("random", "batchbald", "entropy")
SEEDS = {"digits": 10, "fashion": 5}
START, ASKED, END = 20, 10, 120
POOL, TEST = 1200, 500  # examples; the rest of the data is left out
MEMBERS, HIDDEN, STEPS, RATE, SCALE = 10, 50, 200, 0.01, 1.0


class Row(NamedTuple):
    """Scores on the test examples after so many labels."""

    seed: int
    method: str
    labels: int
    accuracy: float
    nll: float


def load(name: str, folder: pathlib.Path | None) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns inputs `[examples, features]` in [0, 1] and labels `[examples]`."""
    if name == "digits":
        from sklearn import datasets

        x, y = datasets.load_digits(return_X_y=True)
        return (x / 16.0).astype(np.float32), y.astype(np.int64)
    from benchmarks.studies.fashion import data

    if folder is None:
        raise ValueError("Expected --data with the folder of Fashion-MNIST. Received: none")
    train = data.load(str(folder))["train"]
    return train.x.reshape(len(train.x), -1), train.y


class Learner:
    """An ensemble with priors, compiled once, that is trained from its beginning on whatever is labeled."""

    def __init__(self, x: NDArray[np.float32], num_classes: int, seed: int) -> None:
        import keras

        import tf_ensembles as tfe

        def build() -> keras.Model:
            layers = [keras.layers.Dense(HIDDEN, "relu"), keras.layers.Dense(num_classes)]
            return keras.Sequential([keras.Input(x.shape[1:]), *layers])

        self._model = tfe.Ensemble(build, MEMBERS, prior=tfe.PriorFunction("auto", scale=SCALE), seed=seed)
        self._model.adapt(x)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._model.compile(keras.optimizers.Adam(RATE), loss, steps_per_execution=STEPS // 4)
        self._start = self._model.get_weights()

    def fit(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        """Trains on all labeled examples at every step; rows of weight 0 fill them up, so that one graph serves all."""
        self._model.set_weights(self._start)
        for variable in self._model.optimizer.variables:
            if "learning_rate" not in variable.path:
                variable.assign(0 * variable)
        rows = np.arange(END) % len(y)
        weights = np.where(np.arange(END) < len(y), END / len(y), 0.0).astype(np.float32)
        many = np.tile(rows, STEPS)
        self._model.fit(
            x[many], y[many], sample_weight=np.tile(weights, STEPS), batch_size=END, shuffle=False, verbose=0
        )

    def predict(self, x: NDArray[np.float32]) -> Any:
        """Returns member outputs `[examples, members, classes]`."""
        return self._model.predict(x, batch_size=POOL, verbose=0)


def learn(
    x: NDArray[np.float32], y: NDArray[np.int64], seed: int, method: str, learner: Learner | None = None
) -> Iterator[Row]:
    """Yields a row for each number of labels."""
    import tf_ensembles as tfe

    order = np.random.default_rng(seed).permutation(len(x))
    pool, test = order[:POOL], order[POOL : POOL + TEST]
    learner = learner or Learner(x[pool], int(y.max()) + 1, seed)
    labeled, left = pool[:START], pool[START:]
    while True:
        learner.fit(x[labeled], y[labeled])
        predictions = learner.predict(x[test])
        scores = tfe.metrics.accuracy(predictions, y[test]), tfe.metrics.marginal_nll(predictions, y[test])
        yield Row(seed, method, len(labeled), *scores)
        if len(labeled) == END:
            return
        asked = tfe.acquire(learner.predict(x[left]), num=ASKED, method=method, seed=1000 * seed + len(labeled))  # type: ignore[arg-type]
        labeled, left = np.concatenate([labeled, left[asked]]), np.delete(left, asked)


def run(name: str, out: pathlib.Path, folder: pathlib.Path | None) -> None:
    """Computes what is missing, seed by seed: first random and BatchBALD, then the others."""
    path = out / f"{name}.csv"
    rows = read(path)
    x, y = load(name, folder)
    learners: dict[int, Learner] = {}
    for methods in (METHODS[:2], METHODS[2:]):
        for seed in range(SEEDS[name]):
            for method in methods:
                if any((row.seed, row.method, row.labels) == (seed, method, END) for row in rows):
                    continue
                pool = np.random.default_rng(seed).permutation(len(x))[:POOL]
                learners[seed] = learners.get(seed) or Learner(x[pool], int(y.max()) + 1, seed)
                rows += learn(x, y, seed, method, learners[seed])
                write(path, rows)
                print(f"{name}, seed {seed}, {method}: accuracy {rows[-1].accuracy:.3f}", flush=True)
            if methods == METHODS[:2]:
                learners.clear()


def write(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Writes rows; the file appears whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows([*row[:3], f"{row.accuracy:.4f}", f"{row.nll:.4f}"] for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_path(path) as temporary:
        temporary.write_text(text.getvalue())
    seals.add(path)


def read(path: pathlib.Path) -> list[Row]:
    """Returns stored rows; none where there is no file."""
    if not path.exists():
        return []
    with path.open() as file:
        return [
            Row(int(row["seed"]), row["method"], int(row["labels"]), float(row["accuracy"]), float(row["nll"]))
            for row in csv.DictReader(file)
        ]


def complete(rows: Sequence[Row], seeds: int) -> list[str]:
    """Returns the methods that all seeds have."""
    return [
        method
        for method in METHODS
        if {row.seed for row in rows if row.method == method and row.labels == END} >= set(range(seeds))
    ]


def values(rows: Sequence[Row], method: str, labels: int, score: str = "accuracy") -> list[float]:
    """Returns a score of each seed, in the order of seeds."""
    found = {row.seed: getattr(row, score) for row in rows if (row.method, row.labels) == (method, labels)}
    return [found[seed] for seed in sorted(found)]


def labels_needed(rows: Sequence[Row], method: str) -> list[float]:
    """Returns, for each seed, how many labels reach the accuracy that random labels have in the end."""
    needed = []
    for seed, goal in enumerate(values(rows, "random", END)):
        own = sorted((row.labels, row.accuracy) for row in rows if (row.seed, row.method) == (seed, method))
        before = own[0]
        if before[1] >= goal:
            needed.append(float(before[0]))
            continue
        for labels, accuracy in own[1:]:
            if accuracy >= goal:
                share = (goal - before[1]) / (accuracy - before[1])
                needed.append(before[0] + share * (labels - before[0]))
                break
            before = labels, accuracy
        else:
            needed.append(float(END))
    return needed


def labels_saved(rows: Sequence[Row], method: str) -> stats.Interval:
    """Returns how many labels fewer than random ones a method needs, paired by seed, with its 95% interval."""
    return stats.paired_difference(labels_needed(rows, "random"), labels_needed(rows, method))


def markdown(stored: dict[str, list[Row]]) -> str:
    """Returns the table of the methods that are complete."""
    lines = [
        f"| data, seeds | method | accuracy at {(START + END) // 2} labels | at {END} | labels to reach random's end |",
        "|---|---|---|---|---|",
    ]
    for name, rows in stored.items():
        for number, method in enumerate(complete(rows, SEEDS[name])):
            cells = [_text(stats.mean_interval(values(rows, method, at)), 3) for at in ((START + END) // 2, END)]
            needed = _text(stats.mean_interval(labels_needed(rows, method)), 0)
            lines.append(
                f"| {f'{name}, {SEEDS[name]}' if not number else ''} | {method} | {' | '.join(cells)} | {needed} |"
            )
    return "\n".join(lines)


def _text(interval: stats.Interval, digits: int) -> str:
    return f"{interval.estimate:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def draw(stored: dict[str, list[Row]], path: pathlib.Path) -> list[pathlib.Path]:
    """Draws accuracy against labels with 95% intervals over seeds, and returns the paths of PNG and SVG."""
    extras.require("matplotlib", "The picture of the study")
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9, 3.6), layout="constrained")
    panels = canvas.subplots(1, len(stored), squeeze=False)[0]
    for axes, (name, rows) in zip(panels, stored.items(), strict=True):
        for method in complete(rows, SEEDS[name]):
            number = METHODS.index(method)
            labels = list(range(START, END + 1, ASKED))
            intervals = [stats.mean_interval(values(rows, method, at)) for at in labels]
            color = style.LIGHT[(0, 3, 2)[number]]
            axes.plot(
                labels,
                [one.estimate for one in intervals],
                color=color,
                marker=style.MARKERS[number],
                ms=4,
                label=method,
            )
            axes.fill_between(
                labels, [one.low for one in intervals], [one.high for one in intervals], color=color, alpha=0.2, lw=0
            )
        axes.set(title=f"{name}, {SEEDS[name]} seeds", xlabel="labels", ylabel="accuracy")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return style.save(canvas, path)


def main() -> None:
    """Runs the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*SEEDS, "table"])
    parser.add_argument("--data", type=pathlib.Path, metavar="FOLDER", help="of Fashion-MNIST")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results/active"), metavar="FOLDER")
    args = parser.parse_args()
    if args.what != "table":
        run(args.what, args.out, args.data)
        return
    stored = {name: rows for name in SEEDS if complete(rows := read(args.out / f"{name}.csv"), SEEDS[name])}
    if not stored:
        raise SystemExit(f"error: Expected results in {args.out}. Received: none complete")
    print(markdown(stored))
    for name, rows in stored.items():
        for method in complete(rows, SEEDS[name])[1:]:
            print(f"{name}: labels saved by {method}: {_text(labels_saved(rows, method), 0)}")
    draw(stored, args.out / "active")


if __name__ == "__main__":
    main()
