"""Active learning with Keras: how many labels does `tfe.acquire` save against random ones?

    tf-ensembles sweep run benchmarks.studies.active --preset standard --figures-to benchmarks/results/active

An ensemble of small Keras networks learns from few labels, asks for ten more, and is trained anew, until it has 120.
All methods of a seed begin with the same labels, networks and test examples. Data are digits of scikit-learn and
Fashion-MNIST, which Keras downloads.

What runs was fixed before it ran; nothing was chosen by its results. "Labels to reach random's end" is, for each seed,
how many labels a method needs for the accuracy that random labels have in the end, 120 where it never gets there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("active", "tf_ensembles.benchmarks.studies.active:compute")
DATA = ("digits", "fashion")
METHODS = ("random", "batchbald")
START, ASKED, END = 20, 10, 120
POOL, TEST = 1200, 500  # examples; the rest of the data is left out
MEMBERS, HIDDEN, STEPS, RATE, SCALE = 10, 50, 200, 0.01, 1.0


def load(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Returns inputs `[examples, features]` in [0, 1] and labels `[examples]`."""
    if name == "digits":
        from sklearn import datasets

        x, y = datasets.load_digits(return_X_y=True)
        return (x / 16.0).astype(np.float32), y.astype(np.int64)
    from tf_ensembles.benchmarks.studies.fashion import data

    train = data.load()["train"]
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
        rows = np.tile(np.arange(END) % len(y), STEPS)
        weights = np.tile(np.where(np.arange(END) < len(y), END / len(y), 0.0).astype(np.float32), STEPS)
        self._model.fit(x[rows], y[rows], sample_weight=weights, batch_size=END, shuffle=False, verbose=0)

    def predict(self, x: NDArray[np.float32]) -> Any:
        """Returns member outputs `[examples, members, classes]`."""
        return self._model.predict(x, batch_size=POOL, verbose=0)


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is."""

    seeds: tuple[tuple[str, int], ...] = (("digits", 10), ("fashion", 5))  # of each data set
    labels: int = END


_learner = functools.lru_cache(maxsize=1)(lambda name, pool, seed: Learner(load(name)[0][list(pool)], 10, seed))


def compute(config: Mapping[str, Any]) -> dict[str, float]:
    """One run, a method with a seed: accuracy and NLL on the test examples after so many labels."""
    import tf_ensembles as tfe

    name, seed, method = config["data"], config["seed"], config["method"]
    x, y = load(name)
    order = np.random.default_rng(seed).permutation(len(x))
    pool, test = order[:POOL], order[POOL : POOL + TEST]
    learner = _learner(name, tuple(pool), seed)
    labeled, left = pool[:START], pool[START:]
    row: dict[str, float] = {}
    while True:
        learner.fit(x[labeled], y[labeled])
        predictions = learner.predict(x[test])
        row[f"accuracy_{len(labeled)}"] = float(tfe.metrics.accuracy(predictions, y[test]))
        row[f"nll_{len(labeled)}"] = float(tfe.metrics.marginal_nll(predictions, y[test]))
        if len(labeled) == config["labels"]:
            return row
        asked = tfe.acquire(learner.predict(x[left]), num=ASKED, method=method, seed=1000 * seed + len(labeled))
        labeled, left = np.concatenate([labeled, left[asked]]), np.delete(left, asked)


class _Study(base.Study):
    name, part = "active", "active"
    title = "What to label next"
    about = "Means over seeds with 95% intervals."
    presets = {"quick": Size((("digits", 2),), START + ASKED), "standard": Size()}

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns a run per data set, seed and method; methods of a seed share what is compiled."""
        runs = []
        for name, count in size.seeds:
            for seed in range(count):
                for method in METHODS:
                    config = {"data": name, "seed": seed, "method": method, "labels": size.labels}
                    runs.append(
                        sweep.make_run(f"active/{name}/{method}/seed{seed}", KIND, config, group=f"{name}{seed}")
                    )
        return [lambda rows: runs]

    def collect(self, size: Size, rows: base.Rows) -> dict[str, pd.DataFrame]:
        """Returns a table per data set: a line per seed, method and number of labels."""
        import pandas as pd

        done = base.rows_of(rows, self.all_runs(size, {}, rows))
        tables = {}
        for name, _ in size.seeds:
            tables[name] = pd.DataFrame(
                {"seed": row["seed"], "method": row["method"], "labels": labels}
                | {score: round(row[f"{score}_{labels}"], 4) for score in ("accuracy", "nll")}
                for row in done
                if row["data"] == name
                for labels in range(START, size.labels + 1, ASKED)
            )
        return tables

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns all data sets, one after another."""
        import pandas as pd

        names = [name for name in DATA if tables.has(f"active/{name}.csv")]
        return pd.concat([tables.read(f"active/{name}.csv").assign(data=name) for name in names])

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns accuracy against labels, and how many labels fewer than random ones a method needs."""
        made = []
        for name, rows in table.groupby("data"):
            title = f"{name}, {rows.seed.nunique()} seeds"
            lines = base.lines(rows, "labels", "accuracy", "method")
            made.append(base.Panel(title, "accuracy", lines, kind="lines", x_label="labels", band=True))
        saved = [panels.Series(str(name), (panels.point(0.0, saving(rows)),)) for name, rows in table.groupby("data")]
        return [*made, base.Panel("labels saved by batchbald", "of those that random ones need", tuple(saved))]


def labels_needed(table: pd.DataFrame, method: str) -> list[float]:
    """Returns, for each seed, how many labels reach the accuracy that random labels have in the end."""
    goals, accuracies = (
        table[table.method == name].pivot(index="seed", columns="labels", values="accuracy").astype(float)
        for name in ("random", method)
    )
    labels = accuracies.columns.to_numpy(float)
    needed = []
    for goal, values in zip(goals.iloc[:, -1], accuracies.to_numpy(), strict=True):
        reached = values >= goal
        at = int(reached.argmax()) if reached.any() else len(labels) - 1
        if at and reached[at]:
            share = (goal - values[at - 1]) / (values[at] - values[at - 1])
            needed.append(float(labels[at - 1] + share * (labels[at] - labels[at - 1])))
        else:
            needed.append(float(labels[at]))
    return needed


def saving(table: pd.DataFrame) -> stats.Interval:
    """Returns how many labels fewer than random ones batchbald needs, paired by seed, with its 95% interval."""
    return stats.paired_difference(labels_needed(table, "random"), labels_needed(table, "batchbald"))


FIGURE = _Study()
