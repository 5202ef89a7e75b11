"""An epinet beside ensembles with priors of 1 to 100 members: joint KL against cost, on exported reference problems.

    tf-ensembles sweep run benchmarks.studies.epinet --preset standard --data-dir FOLDER

FOLDER has `problems.npz`, the archive of `benchmarks.studies.testbed_reference`. The epinet has the shape of its
authors' testbed agent: an MLP of two hidden layers of 50, an index of 8 numbers, a small network of (15, 15) on the
last hidden layer, eight prior functions of (5, 5) on the inputs, the loss averaged over 8 indices a step, 1,000 steps
of Adam. Its prior scale and weight decay are chosen on problems of our own with other seeds. Ensembles are `trainers`'
"ensemble-p" as it is; that of M members is the first M of 100.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.base import Data, Predictive, PriorKnowledge
from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.studies import base, testbed_reference
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

TUNE = kinds.register("epinet-tune", "tf_ensembles.benchmarks.studies.epinet:tune")
SCORE = kinds.register("epinet-score", "tf_ensembles.benchmarks.studies.epinet:compute")
SIZES = (1, 3, 10, 30, 100)
DRAWN = (100, 1000)  # indices that an epinet is asked with
HIDDEN, INDEX, SMALL, PRIOR = (50, 50), 8, (15, 15), (5, 5)
BATCH = 100
SCORES = ("kl_joint", "kl_marginal", "parameters", "flops")


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is."""

    seeds: int = 5
    problems: int = 9  # of the archive
    tuning_seeds: tuple[int, ...] = (1000, 1001, 1002)
    steps: int = 1000
    # The prior's standard deviation in logits times the temperature, and l2 / (d / T)^0.7, to choose from.
    priors: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    decays: tuple[float, ...] = (0.01, 0.05, 0.2, 1.0)


def train_epinet(data: Data, knowledge: PriorKnowledge, prior: float, l2: float, seed: int, steps: int) -> Any:
    """Returns a trained epinet."""
    import keras
    import tensorflow as tf

    import tf_ensembles as tfe
    from tf_ensembles.ensemble.batches import shuffled_batches

    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(size, "relu") for size in HIDDEN]
    epinet = tfe.Epinet(
        keras.Sequential([keras.Input((knowledge.input_dim,)), *layers]),
        INDEX,
        num_outputs=knowledge.num_classes,
        hidden=SMALL,
        prior=tfe.PriorFunction(
            lambda: build_prior(knowledge.input_dim, knowledge.num_classes), prior / knowledge.temperature, True
        ),
        num_members=DRAWN[0],
        l2=l2 * (knowledge.input_dim / knowledge.num_train) ** 0.7,
        seed=seed,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    epinet.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False, steps_per_execution=50)
    epinet.adapt(data.x)
    first = tf.Variable(0, dtype=tf.int64, trainable=False)
    arrays = np.asarray(data.x, np.float32), np.asarray(data.y).reshape(-1)
    batches = shuffled_batches(arrays, len(arrays[1]), min(BATCH, len(arrays[1])), seed, first, True)
    epinet.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0)
    return epinet


def build_prior(dim: int, classes: int) -> Any:
    """Returns a small random network without biases, as the authors have them."""
    import keras

    sizes = [dim, *PRIOR]
    initial = [keras.initializers.TruncatedNormal(stddev=size**-0.5) for size in sizes]
    layers = [keras.layers.Dense(size, "relu", kernel_initializer=initial[i]) for i, size in enumerate(PRIOR)]
    return keras.Sequential([keras.Input((dim,)), *layers, keras.layers.Dense(classes, kernel_initializer=initial[-1])])


def as_predictive(model: Any) -> Predictive:
    """Returns a model as a function from inputs to logits `[batch, members, classes]`."""
    return lambda x: np.asarray(model.predict(np.asarray(x, np.float32), batch_size=500, verbose=0))


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


def tune(config: Mapping[str, Any]) -> dict[str, float]:
    """One run: the joint KL of an epinet on a problem to choose by."""
    from tf_ensembles import testbed

    problem = testbed.make_problem(10, config["data_ratio"], 0.1, config["seed"])
    names = ("prior", "l2", "seed", "steps")
    model = train_epinet(problem.train, problem.prior_knowledge, *(config[name] for name in names))
    return {"kl_joint": testbed.evaluate(as_predictive(model), problem, num_batches=1000).kl_joint}


def compute(config: Mapping[str, Any], *, data: str) -> dict[str, float]:
    """One run, a problem with a seed: scores and costs of ensembles and epinets."""
    from tf_ensembles.trainers import agents

    problem = list(testbed_reference.load_problems(f"{data}/problems.npz"))[config["number"]]
    seed, dim = config["seed"], problem.prior_knowledge.input_dim
    agent = agents.make_config("ensemble-p", seed=seed, num_members=max(SIZES))
    (predictive,) = agents.train_many([agent], problem.train, problem.prior_knowledge)
    row: dict[str, float] = {"problem": problem.index}

    def add(method: str, scored: Predictive, cost: tuple[int, int]) -> None:
        joint, marginal = (testbed_reference.score(scored, problem, points)[0] for points in ("10", "1"))
        row.update({f"{method}|{name}": value for name, value in zip(SCORES, (joint, marginal, *cost), strict=True)})

    for size in SIZES:
        add(f"ensemble-p of {size}", lambda x, m=size: predictive(x)[:, :m], cost_of_ensemble(size, dim))
    names = ("prior", "l2", "seed", "steps")
    model = train_epinet(problem.train, problem.prior_knowledge, *(config[name] for name in names))
    for drawn in DRAWN:
        model.num_members = drawn
        add(f"epinet, {drawn} indices", as_predictive(model), cost_of_epinet(drawn, dim))
    return row


class _Study(base.Study):
    name, part, kept = "epinet_cost", "testbed", "epinet"
    title = "An epinet and ensembles with priors: joint KL of 10 labels against cost"
    about = (
        "Means over reference problems, with 95% intervals over seeds. Ensembles have 1 to 100 members, the epinet 100 "
        "and 1,000 indices."
    )
    presets = {"quick": Size(1, 1, (1000,), 50, (0.1, 0.3), (0.2,)), "standard": Size()}

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns the choice of prior scale and weight decay, and then all that is reported."""
        grid: dict[tuple[float, float], list[Any]] = {}
        for prior, l2 in itertools.product(size.priors, size.decays):
            for data_ratio, seed in itertools.product((1, 10, 100), size.tuning_seeds):
                config = {"prior": prior, "l2": l2, "data_ratio": data_ratio, "seed": seed, "steps": size.steps}
                name = f"epinet/tune/p{prior:g}-l{l2:g}/r{data_ratio}/seed{seed}"
                grid.setdefault((prior, l2), []).append(sweep.make_run(name, TUNE, config))

        def report(rows: base.Rows) -> list[Any]:
            means = {key: np.mean([row["kl_joint"] for row in base.complete(rows, runs)]) for key, runs in grid.items()}
            prior, l2 = min(means, key=lambda key: float(means[key]))
            runs, where = [], {"data": context.get("data") or "."}
            for seed, number in itertools.product(range(size.seeds), range(size.problems)):
                config = {"number": number, "seed": seed, "prior": prior, "l2": l2, "steps": size.steps}
                runs.append(sweep.make_run(f"epinet/problem{number}/seed{seed}", SCORE, config, context=where))
            return runs

        return [lambda rows: [run for runs in grid.values() for run in runs], report]

    def records(self, size: Size, rows: base.Rows) -> list[dict[str, Any]]:
        """Returns a line per method, problem and seed."""
        reported = base.rows_of(rows, self.stages(size, {})[1](rows))
        return [
            {"problem": row["problem"], "seed": row["seed"], **one}
            for row in reported
            for one in base.unpack(row, "method")
        ]

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns joint KL against parameters and against operations of a prediction."""
        seeds = table.groupby(["method", "seed"], sort=False)[list(SCORES)].mean()
        made = []
        for cost, label in (("parameters", "parameters"), ("flops", "operations per prediction")):
            series = []
            for agent in ("ensemble-p", "epinet"):
                points = [
                    panels.point(float(rows[cost].iloc[0]), stats.mean_interval(rows.kl_joint))
                    for method, rows in seeds.groupby("method", sort=False)
                    if str(method).startswith(agent)
                ]
                series.append(panels.Series(agent, tuple(points)))
            options: dict[str, Any] = {"kind": "lines", "x_label": label, "log_x": True, "log_y": True}
            made.append(base.Panel(f"by {label}", "joint KL (nats)", tuple(series), **options))
        return made


FIGURE = _Study()
