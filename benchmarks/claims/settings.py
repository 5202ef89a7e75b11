"""The figures of the paper: how large it made them, and how large a results folder did, read from its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from benchmarks.claims.tables import Tables
from benchmarks.figures.testbed.drawing import listing

if TYPE_CHECKING:
    import pandas as pd

NOT_STATED = "not stated"


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting: the paper's and the one used."""

    name: str
    paper: str
    used: str

    @property
    def differs(self) -> bool:
        """Whether the paper states another one."""
        return self.paper not in (NOT_STATED, self.used)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A group of claims that share tables: what it shows, the paper's settings, and how to make it."""

    title: str
    about: str
    paper: Mapping[str, str]
    used: Callable[[Tables], Mapping[str, str]]
    commands: tuple[str, ...]
    full_size: str  # a sentence about the size of the paper's experiment


def compare(figure: str, tables: Tables) -> tuple[Row, ...]:
    """Returns the paper's settings beside those of the tables."""
    about = FIGURES[figure]
    used = about.used(tables)
    return tuple(Row(name, value, used.get(name, "not recorded")) for name, value in about.paper.items())


def _linear(tables: Tables) -> dict[str, str]:
    sweep = tables.read("linear/sweep.csv", ("dim", "num_data", "condition", "heteroscedasticity", "problems"))
    return {
        "problems per setting": listing(sweep.problems),
        "dimensions d": listing(sweep.dim),
        "training data T": listing(sweep.num_data),
        "condition numbers of cov(x)": listing(sweep.condition),
    }


def _testbed(source: str, grid: str | None) -> Callable[[Tables], dict[str, str]]:
    def used(tables: Tables) -> dict[str, str]:
        table = tables.source(source)
        agents = table[table.agent != "mlp"]
        found = {
            "members": listing(agents.num_members),
            "reported seeds": f"{_complete_seeds(table)}",
            "input dimensions d": listing(table.input_dim),
            "T / d": listing(table.data_ratio),
            "temperatures": listing(table.temperature),
        }
        if grid is not None and tables.has(grid):
            tried = tables.read(grid)
            found["tuned on"] = f"{int(tried.seeds.max())} other seed(s)"
            found["weight decays tried"] = listing(tried.l2)
            with_prior = tried[tried.agent.isin(["ensemble-p", "ensemble-bp"])]
            found["prior scales tried"] = f"{with_prior[['prior_scale', 'prior_scaling']].drop_duplicates().shape[0]}"
        if source == "figure 7":
            found["prior scales"] = listing(table.prior_scale / table.temperature**0.5)
        return found

    return used


def _complete_seeds(table: pd.DataFrame) -> int:
    """How many seeds have every setting and agent that there is."""
    found: dict[object, set[tuple[object, object]]] = {}
    for seed, setting, agent in zip(table.seed, table.setting, table.agent, strict=True):
        found.setdefault(seed, set()).add((setting, agent))
    most = max(map(len, found.values()))
    return sum(len(pairs) == most for pairs in found.values())


def _cifar10(source: str) -> Callable[[Tables], dict[str, str]]:
    def used(tables: Tables) -> dict[str, str]:
        table = tables.source(source)
        ensembles = table[table.agent != "vgg"]
        raw = tables.read(f"cifar10/{source.replace(' ', '_')}_runs.csv")
        priors = raw.loc[raw.agent.astype(str).str.startswith(("ensemble-p", "ensemble-bp")), "prior_scale"]
        found = {
            "members": listing(ensembles.num_members),
            "seeds": f"{table.seed.nunique()}",
            "training images T": listing(table.num_train),
            "prior scales": listing(priors),
        }
        for column, name in _CIFAR10_COLUMNS.items():
            if column in raw:
                found[name] = listing(raw[column])
        return found

    return used


def _bandit(tables: Tables) -> dict[str, str]:
    if not tables.has("bandit/regret_runs.csv"):
        table = tables.read("bandit/regret.csv", ("horizon",))
        return {"horizon T": listing([table.horizon.max()])}
    table = tables.source("bandit")
    one = table[(table.horizon == table.horizon.max()) & (table.agent == table.agent.iloc[0])]
    return {"problems J": listing([one.problems.sum()]), "horizon T": listing([table.horizon.max()])}


_TESTBED_PAPER = {"members": "100", "tuned on": "the reported seeds", "weight decays tried": "0.1, 0.3, 1, 3, 10"}
_CIFAR10_SIZES = "10, 100, 1,000, 50,000"
_CIFAR10_COLUMNS = {
    "width": "channels, relative to VGG",
    "epochs": "epochs",
    "batch_size": "batch size",
    "weight_decay": "weight decay times T",
    "num_test": "test images",
}
_CIFAR10_PAPER = dict(zip(_CIFAR10_COLUMNS.values(), ("1", "400", "128", "30", "10,000"), strict=True))

FIGURES: dict[str, Figure] = {
    "linear": Figure(
        "Bayesian linear regression",
        "Section 4 and appendices A and B: where everything can be computed exactly, ensemble-bp is the posterior, "
        "ensemble-n has no spread, and ensemble-p cannot follow a signal-to-noise ratio that differs by direction.",
        {name: NOT_STATED for name in ("problems per setting", "dimensions d", "training data T")}
        | {"condition numbers of cov(x)": NOT_STATED},
        _linear,
        ("tf-ensembles linear --preset {linear} --output {output}/linear",),
        "The paper proves these statements and shows no experiment.",
    ),
    "F1": Figure(
        "Figure 1: even noise, two ways of tuning",
        "Neural Testbed, d = 100: agents with hyper-parameters chosen for each setting, and with one choice for all.",
        {
            **_TESTBED_PAPER,
            "reported seeds": "10",
            "input dimensions d": "100",
            "T / d": "1, 10, 100, 1,000",
            "temperatures": "0.01, 0.1, 0.5",
            "prior scales tried": "6",
        },
        _testbed("figure 1, tuned per setting", "testbed/figure_1_grid.csv"),
        ("tf-ensembles sweep run figure_1 --preset {preset} --output {output}/sweep --figures-to {output}/testbed",),
        "The paper's size: 70 agents x 12 settings x 10 seeds to tune, then 10 more; 100 members; T up to 100,000.",
    ),
    "F2": Figure(
        "Figures 2 and 8: uneven noise",
        "Neural Testbed, temperature 0.1, a quarter of the training labels 1 flipped to 0.",
        {
            **_TESTBED_PAPER,
            "reported seeds": "100",
            "input dimensions d": "2, 10, 100",
            "T / d": "1, 10, 100, 1,000",
            "temperatures": "0.1",
            "prior scales tried": "6",
        },
        _testbed("figure 2", "testbed/flipped_grid.csv"),
        ("tf-ensembles sweep run figure_2 --preset {preset} --output {output}/sweep --figures-to {output}/testbed",),
        "The paper's size: 65 agents x 12 settings x 10 seeds to tune, then 100 more; 100 members; T up to 100,000.",
    ),
    "F9": Figure(
        "Figure 9: uneven noise, by the number of training examples",
        "Figures 2 and 8 at d = 10: where does bootstrapping gain?",
        {
            **_TESTBED_PAPER,
            "reported seeds": "100",
            "input dimensions d": "10",
            "T / d": "1, 10, 100, 1,000",
            "temperatures": "0.1",
            "prior scales tried": "6",
        },
        _testbed("figure 9", "testbed/flipped_grid.csv"),
        ("tf-ensembles sweep run figure_9 --preset {preset} --output {output}/sweep --figures-to {output}/testbed",),
        "The paper's size: a third of figure 2.",
    ),
    "F7": Figure(
        "Figure 7: the scale of the prior functions",
        "Neural Testbed, d = 100, temperature 0.01: ensemble-p against the scale of its prior, by training examples.",
        {
            "members": "100",
            "reported seeds": "10",
            "input dimensions d": "100",
            "T / d": "1, 10, 100, 1,000",
            "temperatures": "0.01",
            "prior scales": NOT_STATED,
        },
        _testbed("figure 7", None),
        ("tf-ensembles sweep run figure_7 --preset {preset} --output {output}/sweep --figures-to {output}/testbed",),
        "The paper's size: 14 agents x 4 settings x 10 seeds, with 100 members and T up to 100,000.",
    ),
    "F3": Figure(
        "Figures 3 and 10: CIFAR10, prior functions",
        "A single network, ensembles of it, and ensembles with prior functions, on training sets of several sizes.",
        {
            "members": "100",
            "seeds": NOT_STATED,
            "training images T": _CIFAR10_SIZES,
            "prior scales": "30",
            **_CIFAR10_PAPER,
        },
        _cifar10("figure 3"),
        ("tf-ensembles sweep run figure_3 --preset {preset} --output {output}/sweep --figures-to {output}/cifar10",),
        "The paper's size: 201 VGG networks for each of 4 training sets, 400 epochs of up to 50,000 images, on TPUs.",
    ),
    "F4": Figure(
        "Figure 4: CIFAR10, bootstrapping where there is little noise",
        "Ensembles of 10 members; of several prior scales, for each training set the one that is best on other seeds.",
        {
            "members": "10",
            "seeds": "5",
            "training images T": _CIFAR10_SIZES,
            "prior scales": "1, 3, 10, 30",
            **_CIFAR10_PAPER,
        },
        _cifar10("figure 4"),
        ("tf-ensembles sweep run figure_4 --preset {preset} --output {output}/sweep --figures-to {output}/cifar10",),
        "The paper's size: 850 VGG networks for each of 4 training sets, 400 epochs, on TPUs.",
    ),
    "F5": Figure(
        "Figure 5: CIFAR10, uneven label noise",
        "A quarter of the labels of classes 0 to 4 moved to classes 5 to 9; the scale as in figure 4.",
        {
            "members": "10",
            "seeds": "5",
            "training images T": "50,000",
            "prior scales": "0, 0.3, 1, 3, 10",
            **_CIFAR10_PAPER,
        },
        _cifar10("figure 5"),
        ("tf-ensembles sweep run figure_5 --preset {preset} --output {output}/sweep --figures-to {output}/cifar10",),
        "The paper's size: 800 VGG networks on 50,000 images, 400 epochs, on TPUs.",
    ),
    "F11": Figure(
        "Figure 11: CIFAR10, ensemble size",
        "1% of the labels random, prior scale 3, ensembles of several sizes.",
        {
            "members": NOT_STATED,
            "seeds": NOT_STATED,
            "training images T": _CIFAR10_SIZES,
            "prior scales": "3",
            **_CIFAR10_PAPER,
        },
        _cifar10("figure 11"),
        ("tf-ensembles sweep run figure_11 --preset {preset} --output {output}/sweep --figures-to {output}/cifar10",),
        "The paper's size: hundreds of VGG networks for each of 4 training sets, 400 epochs, on TPUs.",
    ),
    "F6": Figure(
        "Figures 6 and 12: bandits with uneven noise",
        "Thompson sampling with infinite linear ensembles: cumulative regret over time, d = 2, 4 actions.",
        {"problems J": NOT_STATED, "horizon T": NOT_STATED},
        _bandit,
        ("tf-ensembles bandit {bandit} --output {output}/bandit",),
        "The paper states neither; verdicts depend on the horizon.",
    ),
}
