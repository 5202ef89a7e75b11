"""The regression table of 2017 on UCI data: one model, and ensembles with and without priors and bootstrap.

    tf-ensembles sweep run benchmarks.studies.uci.study --preset standard --data-dir FOLDER
    python -m benchmarks.studies.uci.study benchmarks/results        # judges the claims

FOLDER has `uci.npz`: `NAME_x` `[rows, features]` and `NAME_y` `[rows]` per data set. Learning rate, decay and the
prior's scale are chosen on a tenth of the training parts. All networks of a data set train in one compiled call.

Two claims per data set: as good as published, and better jointly with a prior. What was published are means over the
very same splits, so that comparison is about these splits. Whether a prior helps is asked of the data set, and its
splits share data: an interval over them as if they were independent is too narrow. It is widened by
`sqrt(1 + splits * test / train)`, the correction of Nadeau and Bengio (Inference for the generalization error, 2003).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims import judge
from tf_ensembles.benchmarks.claims.base import LOWER, Claim, Effect, Estimator, Region, Unit
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.benchmarks.studies.uci import protocol
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.benchmarks.studies.uci import training

KIND = kinds.register("uci", "tf_ensembles.benchmarks.studies.uci.study:compute")
# What is chosen from: for the plain ensemble, and then, for the others, the prior's scale.
GRID = tuple((rate, l2) for rate in (0.003, 0.01) for l2 in (0.0, 1e-3, 1e-2))
SCALES = (0.1, 0.3, 1.0)
ONE_MODEL, N, P, BP = "one model", "ensemble-n", "ensemble-p", "ensemble-bp"
SCORES = {"rmse": "RMSE", "nll": "NLL", "joint_nll": "joint NLL", "crps": "CRPS", "coverage": "coverage of 90%"}
TAU, LEVEL = 10, 0.9
# One tenth of the data tests, nine tenths train.
_WIDER = math.sqrt(1.0 + protocol.NUM_SPLITS / 9.0)


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is."""

    epochs: int = 40
    splits: int = protocol.NUM_SPLITS


def compute(config: Mapping[str, Any], *, data: str) -> dict[str, float]:
    """One run, a data set: the scores of each agent in each split, and what was chosen."""
    from tf_ensembles.benchmarks.studies.uci import training

    settings = training.Settings(epochs=config["epochs"])
    splits = protocol.split(*protocol.load(f"{data}/uci.npz", config["data_set"]), config["splits"])
    seed = config["seed"]
    chosen = choose(splits, settings, seed + 1)
    plain = chosen | {"prior_scale": 0.0}
    agents = [dataclasses.replace(agent, **(chosen if agent.prior_scale else plain)) for agent in training.AGENTS]
    mean, std = training.train(splits, agents, settings, seed)
    row = {f"chosen_{name}": value for name, value in chosen.items()}
    for s, y in enumerate(splits.y_test):
        alone = [score(mean[s, :, 0, m : m + 1], std[s, :, 0, m : m + 1], y) for m in range(settings.num_members)]
        of_agents = {ONE_MODEL: {name: float(np.mean([one[name] for one in alone])) for name in SCORES}}
        of_agents |= {agent.name: score(mean[s, :, k], std[s, :, k], y) for k, agent in enumerate(agents)}
        row |= {f"{agent}|{s}|{name}": v for agent, values in of_agents.items() for name, v in values.items()}
    return row


def score(mean: Any, std: Any, y: Any) -> dict[str, float]:
    """Returns the scores of an ensemble `[rows, members]`, in units of the target; `joint_nll` is per ten examples."""
    from tf_ensembles import metrics

    return {
        "rmse": metrics.rmse(mean, y),
        "nll": metrics.gaussian_nll(mean, std, y),
        "joint_nll": metrics.gaussian_joint_nll(mean, std, y, tau=TAU),
        "crps": metrics.crps(mean, std, y),
        "coverage": metrics.coverage(mean, std, y, level=LEVEL),
    }


def choose(data: protocol.Splits, settings: training.Settings, seed: int) -> dict[str, Any]:
    """Returns the learning rate and decay of least NLL, and then the prior scale of least joint NLL, over all splits.

    Both on a tenth of the training parts, which takes no part in the training that is judged by it.
    """
    from tf_ensembles import metrics
    from tf_ensembles.benchmarks.studies.uci import training

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
    return {"learning_rate": rate, "l2": l2, "prior_scale": SCALES[best(agents, TAU)]}


class _Study(base.Study):
    name, part = "uci", "uci"
    title = "Regression on UCI data"
    about = "Means over 20 splits with their standard errors times 1.96; dotted: as published (2017)."
    presets = {"quick": Size(epochs=2, splits=3), "standard": Size()}

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns a run per data set."""
        where = {"data": context.get("data") or "."}
        runs = [
            sweep.make_run(
                f"uci/{name}", KIND, {"data_set": name, "seed": 0, **dataclasses.asdict(size)}, context=where
            )
            for name in protocol.NAMES
        ]
        return [lambda rows: runs]

    def prepare(self, context: Mapping[str, Any]) -> None:
        """Makes sure that the archive is there."""
        protocol.load(f"{context.get('data') or '.'}/uci.npz", protocol.NAMES[0])

    def collect(self, size: Size, rows: base.Rows) -> dict[str, pd.DataFrame]:
        """Returns a table per data set: a line per agent and split."""
        import pandas as pd

        return {
            row["data_set"]: pd.DataFrame(base.unpack(row, "agent", "split")).astype({"split": int})
            for row in base.rows_of(rows, self.all_runs(size, {}, rows))
        }

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns all data sets, one after another."""
        import pandas as pd

        return pd.concat([base.read(tables, f"uci/{name}.csv").assign(data=name) for name in protocol.NAMES])

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns RMSE and NLL per data set, beside what was published, and joint NLLs."""
        made = []
        for name, published in protocol.PUBLISHED.items():
            for column in ("rmse", "nll", "joint_nll"):
                bars = []
                for agent in (ONE_MODEL, N, P, BP):
                    mean, error = standard_error(table, name, agent, column)
                    bars.append(panels.Series(agent, (panels.point(0, stats.normal_interval(mean, error, 20)),)))
                made.append(
                    base.Panel(
                        f"{name}: {SCORES[column]}",
                        SCORES[column],
                        tuple(bars),
                        reference=getattr(published, column, None),
                    )
                )
        return made


def standard_error(table: pd.DataFrame, name: str, agent: str, column: str) -> tuple[float, float]:
    """Returns the mean over splits of a score, and its standard error."""
    values = table[(table.data == name) & (table.agent == agent)][column].to_numpy(float)
    return float(values.mean()), float(values.std(ddof=1)) / math.sqrt(len(values))


@dataclasses.dataclass(frozen=True)
class AsPublished(Estimator):
    """Ensemble-n, the published method, less what was published, in RMSE and NLL."""

    figure = "UCI"

    name: str

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns both effects."""
        known = protocol.PUBLISHED[self.name]
        effects = []
        units: dict[str, Unit] = {"rmse": "distance", "nll": "nats"}
        for column, unit in units.items():
            mean, error = getattr(known, column), getattr(known, f"{column}_error")
            interval = stats.mean_interval(_values(tables, self.name, N, column)).plus(-mean)
            label = f"{column.upper()} of {self.name}: {N} less {mean:g} ± {error:g}"
            effects.append(Effect(label, interval, Region(high=2.0 * error), unit))
        return effects


@dataclasses.dataclass(frozen=True)
class PriorHelps(Estimator):
    """The joint NLL of ensemble-p less that of ensemble-n, paired by split."""

    figure = "UCI"

    name: str

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effect."""
        one, other = (_values(tables, self.name, agent, "joint_nll") for agent in (P, N))
        label = f"joint NLL of {self.name}: {P} less {N}"
        return [Effect(label, stats.paired_difference(one, other).widened(_WIDER), LOWER, "nats")]


def _values(tables: Tables, name: str, agent: str, column: str) -> Sequence[float]:
    if not tables.has(f"uci/{name}.csv"):
        raise stats.NoDataError(f"no rows of {agent} on {name}")
    table = base.read(tables, f"uci/{name}.csv")
    return table[table.agent == agent].sort_values("split")[column].tolist()


def _claims(name: str) -> tuple[Claim, Claim]:
    where = "deep ensembles (2017), table 1"
    return (
        Claim(
            f"UCI-{name}-published",
            where,
            f"On {name}, an ensemble of 5 has the published RMSE and NLL, or less.",
            AsPublished(name),
            "the 95% interval lies below what was published plus two of its standard errors, for both scores",
            "splits",
            min_count=protocol.NUM_SPLITS,
        ),
        Claim(
            f"UCI-{name}-prior",
            "not in a paper: added",
            f"On {name}, a prior improves the joint NLL of 10 examples.",
            PriorHelps(name),
            "the 95% interval of the difference, widened for splits that share data, lies below 0",
            "splits",
            min_count=protocol.NUM_SPLITS,
        ),
    )


CLAIMS: tuple[Claim, ...] = tuple(claim for name in protocol.NAMES for claim in _claims(name))
FIGURE = _Study()

if __name__ == "__main__":
    judge.tell_family(CLAIMS, __doc__)
