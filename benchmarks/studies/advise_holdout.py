"""Does `tfe.advise` make things better or worse? Its advice, trained and measured on examples that it never saw.

    tf-ensembles sweep run benchmarks.studies.advise_holdout --preset standard

Splits a data set at random into 60% for the advisor and 40% to measure on, asks for advice, trains what it says on the
60%, and scores joint NLLs of ten labels on the 40%: of the advice, of a plain ensemble trained for 20 epochs, of the
same trained for 1,000 steps, of a single model trained for 20 epochs, and of a linear model. Data are those of
scikit-learn, which must be installed, and one problem of the Neural Testbed. Inputs, and the targets of a regression,
are standardized on the 60%.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.benchmarks.studies import base
from tf_ensembles.trainers.sweeps import kinds

if TYPE_CHECKING:
    import pandas as pd

KIND = kinds.register("advise-holdout", "tf_ensembles.benchmarks.studies.advise_holdout:compute")
TAU, MEMBERS, BATCH = 10, 20, 100
NAMES = ("breast_cancer", "diabetes", "digits", "testbed")
ADVICE = "advice"
TRAINED = (ADVICE, "plain, 20 epochs", "plain, 1,000 steps", "single, 20 epochs", "linear")


@dataclasses.dataclass(frozen=True)
class Half:
    """Standardized inputs `[n, features]` and targets `[n]`."""

    x: Any
    y: Any


def load(name: str) -> tuple[Any, Any]:
    """Returns inputs `[n, features]` and targets `[n]`, integers for classes."""
    if name == "testbed":
        import tf_ensembles as tfe

        problem = tfe.testbed.make_problem(input_dim=10, data_ratio=100, temperature=0.1, seed=0)
        return problem.train.x, problem.train.y
    from sklearn import datasets

    loaded = getattr(datasets, f"load_{name}")()
    return loaded.data, loaded.target if name != "diabetes" else loaded.target.astype(float)


def split(x: Any, y: Any, seed: int) -> tuple[Half, Half]:
    """Returns both halves, standardized by the first."""
    order = np.random.default_rng(seed).permutation(len(y))
    at = len(y) * 3 // 5
    train, test = order[:at], order[at : at + (len(y) - at) // TAU * TAU]

    def scale(values: Any) -> Any:
        std = values[train].std(axis=0)
        return ((values - values[train].mean(axis=0)) / np.where(std > 0, std, 1.0)).astype(np.float32)

    x = scale(x)
    y = scale(y) if np.issubdtype(y.dtype, np.floating) else y.astype(np.int64)
    return Half(x[train], y[train]), Half(x[test], y[test])


def linear(train: Half, test: Half) -> tuple[Any, float | None]:
    """Returns log-likelihoods `[n, 1]` of a linear model, and for a regression the noise that it leaves."""
    if np.issubdtype(train.y.dtype, np.floating):
        one, other = (np.c_[half.x, np.ones(len(half.y))] for half in (train, test))
        weights = np.linalg.lstsq(one, train.y, rcond=None)[0]
        noise = float(np.sqrt(np.sum((train.y - one @ weights) ** 2) / (len(one) - one.shape[1])))
        return gaussian((other @ weights)[:, None], test.y, noise), noise
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(train.x, train.y)
    return model.predict_log_proba(test.x)[np.arange(len(test.y)), None, test.y], None


def gaussian(values: Any, y: Any, noise: float) -> Any:
    """Returns log-likelihoods `[n, members]` of values `[n, members]`."""
    return -0.5 * ((y[:, None] - values) / noise) ** 2 - math.log(noise * math.sqrt(2.0 * math.pi))


def joint_nll(likelihood: Any) -> Any:
    """Returns the joint NLL of each ten labels, `[n / 10]`."""
    from tf_ensembles.advice import scores

    return scores.joint_scores(likelihood[:, None], TAU)[0][:, 0]


def measure(train: Half, test: Half, seed: int, members: int) -> dict[str, Any]:
    """Returns the joint NLLs of each ten labels by what was trained, `[n / 10]`."""
    import keras

    import tf_ensembles as tfe

    base_line, noise = linear(train, test)
    outputs = 1 if noise is not None else int(train.y.max()) + 1
    loss = "mse" if noise is not None else keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build() -> keras.Model:
        hidden = [keras.layers.Dense(50, "relu") for _ in range(2)]
        return keras.Sequential([keras.Input(train.x.shape[1:]), *hidden, keras.layers.Dense(outputs)])

    def fitted(prior: Any, bootstrap: Any, count: int, epochs: int) -> Any:
        model = tfe.Ensemble(build, count, prior=prior, bootstrap=bootstrap, seed=seed)
        model.compile("adam", loss)
        model.fit(train.x, train.y, epochs=epochs, batch_size=BATCH, verbose=0)
        predicted = model.predict(test.x, verbose=0)
        if noise is not None:
            return joint_nll(gaussian(predicted[..., 0], test.y, noise))
        return joint_nll(tfe.metrics.member_log_likelihood(predicted, test.y))

    long = max(10, math.ceil(1000 / math.ceil(len(train.y) / BATCH)))
    options: dict[str, Any] = {"num_members": members, "batch_size": BATCH, "seed": seed}
    advice = tfe.advise(build, train.x, train.y, loss=loss, noise_std=noise, **options)
    scores = (
        fitted(advice.prior, advice.bootstrap, advice.num_members, advice.epochs),
        fitted(None, None, members, 20),
        fitted(None, None, members, long),
        fitted(None, None, 1, 20),
        joint_nll(base_line),
    )
    return dict(zip(TRAINED, scores, strict=True))


def compute(config: Mapping[str, Any]) -> dict[str, float]:
    """One run, a split of a data set: the joint NLL of each ten labels by what was trained."""
    x, y = load(config["data"])
    scores = measure(*split(x, y, config["split"]), config["split"], config["members"])
    return {
        f"{name}|{group}|nll": float(value) for name, values in scores.items() for group, value in enumerate(values)
    }


class _Study(base.Study):
    name, part, kept, kind = "advise_holdout", "advice", "holdout", KIND
    title = "What advice is worth: joint NLL of ten labels"
    about = (
        "Means over groups of ten labels with 95% intervals, which are a little narrow where there are several splits: "
        "they share examples."
    )
    presets = {"quick": (("breast_cancer",), 1, 3), "standard": (NAMES, 1, MEMBERS)}  # data, splits, members

    def configs(self, size: tuple[tuple[str, ...], int, int]) -> list[dict[str, Any]]:
        """Returns every split of every data set."""
        names, splits, members = size
        return [{"data": name, "split": s, "members": members} for name, s in itertools.product(names, range(splits))]

    def records(self, size: Any, rows: base.Rows) -> list[dict[str, Any]]:
        """Returns a line per data set, split, group of ten labels and what was trained."""
        return [
            {"data": row["data"], "seed": f"{row['split']}-{one.pop('group')}", **one}
            for row in base.rows_of(rows, self.all_runs(size, {}, rows))
            for one in base.unpack(row, "agent", "group")
        ]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns joint NLLs per data set, and what they are above the advice's on the same labels."""
        made = []
        for name, rows in table.groupby("data", sort=False):
            made.append(base.Panel(str(name), "joint NLL", base.bars(rows, "nll", "agent")))
            made.append(base.Panel(f"{name}: above the advice", "joint NLL", base.bars_above(rows, "nll", ADVICE)))
        return made


FIGURE = _Study()
