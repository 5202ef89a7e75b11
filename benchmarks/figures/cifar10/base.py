"""What the figures on CIFAR10 share: scores relative to a reference agent, prior scales, settings, captions.

Scores are divided by those of a reference agent on the same training set (its mean over seeds), so that every training
set counts alike when they are averaged; below 1 is better than the reference.
"""

from __future__ import annotations

import fractions
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tf_ensembles.benchmarks.figures import base, panels
from tf_ensembles.benchmarks.figures.base import Rows, Stage
from tf_ensembles.benchmarks.figures.cifar10 import runs, stages
from tf_ensembles.benchmarks.figures.cifar10.runs import BP, N, P
from tf_ensembles.benchmarks.figures.panels import TextTable
from tf_ensembles.benchmarks.figures.tables import Tables, finite
from tf_ensembles.benchmarks.stats import NoDataError
from tf_ensembles.benchmarks.style import listing

if TYPE_CHECKING:
    import pandas as pd

    from tf_ensembles.trainers.sweeps.runs import Run

SCORES = {"nll_marginal": "marginal NLL", "nll_joint": "dyadic NLL of 10 labels"}
BOOTSTRAPPED = tuple(f"{BP}({probability:g})" for probability in (0.5, 0.75, 0.9))
PAPER_SIZES = "10, 100, 1,000, 50,000"

# Columns of runs that are settings, and the paper's.
_TRAINING = {
    "width": ("channels, relative to VGG", "1"),
    "epochs": ("epochs", "400"),
    "batch_size": ("batch size", "128"),
    "weight_decay": ("weight decay times T", "30"),
    "num_test": ("test images", "10,000"),
}
PAPER = dict(_TRAINING.values())
_COLUMNS = (
    *("agent", "seed", "num_train", "num_members", "prior_scale", "bootstrap_probability", "learning_rate"),
    *(*_TRAINING, *SCORES),
)


class Cifar10Figure(base.Figure):
    """A figure on CIFAR10; a setting of its table is a training set, a seed a block of members."""

    part, sweep, scores, needs_images = "cifar10", runs.SWEEP, SCORES, True
    reference: ClassVar[str]  # the agent that scores are divided by
    within: ClassVar[tuple[str, ...]] = ("num_train",)  # what has a reference of its own
    tuned: ClassVar[bool] = False  # whether the prior scale is chosen, per training set, on other seeds

    @property
    def _grid(self) -> str:
        """The table of candidates that prior scales were chosen from on held-out images, where they were."""
        return f"cifar10/{self.name}_grid.csv"

    def agents_of(self, size: runs.Size) -> list[runs.Agent]:
        """Returns the agents of the figure."""
        return runs.bootstrapped_agents(size)

    def stages(self, size: runs.Size, context: Mapping[str, Any]) -> list[Stage]:
        """Returns, for one training set after the other, the training of members and the scoring of ensembles."""
        return stages.stages(size, self.agents_of, context or None)

    def all_runs(self, size: runs.Size, context: Mapping[str, Any], rows: Rows) -> list[Run]:
        """Returns also the training of members whose ensembles are scored, which no stage asks for."""
        return stages.all_runs(size, self.agents_of, rows)

    def prepare(self, context: Mapping[str, Any]) -> None:
        """Makes sure that CIFAR10 is there before any run starts; raises an error that names the ways to get it."""
        from tf_ensembles.trainers.images import cifar10

        cifar10.prepare_cifar10(context.get("data"))

    def collect(self, size: runs.Size, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns a row per scored ensemble of complete seeds, and what prior scales were chosen from."""
        kept = {f"{self.name}_runs": runs.table(rows, size, self.agents_of)}
        if size.tuning is not None:
            grid = runs.tuning_table(rows, size, self.agents_of)
            best = runs.chosen_scales(grid)
            keys = zip(grid.problem, grid.label, grid.prior_scale, strict=True)
            kept[f"{self.name}_grid"] = grid.assign(
                chosen=[best[number, name] == scale for number, name, scale in keys]
            )
        return kept

    def kept(self, tables: Tables) -> pd.DataFrame:
        """Returns what `collect` kept, with finite scores and bootstrapped agents named by their probabilities."""
        return self.read_kept(tables, self.name)

    def read_kept(self, tables: Tables, name: str) -> pd.DataFrame:
        """Returns the runs that `collect` kept of a figure of this name, its own or another of its kind."""
        table = finite(tables.read(f"cifar10/{name}_runs.csv", _COLUMNS), list(SCORES))
        chances = zip(table.agent, table.bootstrap_probability, strict=True)
        agents = [f"{agent}({float(chance):g})" if agent == BP else str(agent) for agent, chance in chances]
        return table.assign(setting=[f"T{int(count)}" for count in table.num_train], agent=agents)

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns ensembles with scores over the reference agent's on the same training set."""
        table = self.kept(tables)
        if self.tuned:
            table = best_scale_on_other_seeds(table)
        return normalize(table, self.reference, self.within)

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns a bar per agent and score."""
        agents = ("vgg", N, P, *BOOTSTRAPPED)
        return [
            panels.Panel(
                name,
                f"relative to {self.reference}",
                panels.relative_bars(table, score, agents, self.reference),
                reference=1.0,
            )
            for score, name in SCORES.items()
        ]

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns sizes, seeds, prior scales and how members were trained."""
        table, kept = tables.of(self), self.kept(tables)
        with_prior = kept.loc[kept.agent.astype(str).str.startswith((P, BP)), "prior_scale"]
        found = {
            "members": listing(table[table.agent != "vgg"].num_members),
            "seeds": f"{table.seed.nunique()}",
            "training images T": listing(table.num_train),
            "prior scales": listing(with_prior),
        }
        if tables.has(self._grid):
            found["prior scales"] = listing(tables.read(self._grid).prior_scale)
        return found | {name: listing(kept[column]) for column, (name, _) in _TRAINING.items()}

    def chosen(self, tables: Tables) -> TextTable | None:
        """Returns the prior scale of every agent and training set, where it is chosen."""
        if tables.has(self._grid):
            grid = tables.read(self._grid)
            picked = grid[grid.chosen].drop_duplicates(["num_train", "label"])
            lines = zip(picked.num_train, picked.label, picked.prior_scale, strict=True)
            rows = [[f"T = {count:,}", str(name), f"{scale:g}"] for count, name, scale in lines]
            return ["training images", "agent", "prior scale, best on held-out images"], rows
        if not self.tuned:
            return None
        table = tables.of(self)
        table = table[table.agent.map(lambda name: str(name).startswith((P, BP)))]
        rows = []
        for (setting, agent), chosen in table.groupby(["setting", "agent"], sort=False):
            counts = chosen.prior_scale.value_counts().sort_index()
            scales = ", ".join(f"{scale:g} ({count} of {len(chosen)} seeds)" for scale, count in counts.items())
            rows.append([str(setting).replace("T", "T = "), str(agent), scales])
        return ["training images", "agent", "prior scale, best on the other seeds"], rows

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture: training sets, members, prior scales, seeds."""
        used = self.used(tables)
        scales = used["prior scales"]
        held_out = tables.has(self._grid)
        where = "held-out training images" if held_out else "the other seeds"
        how = f"chosen from {scales} by dyadic NLL on {where}" if (held_out or self.tuned) and "," in scales else scales
        names = "bp(q): ensemble-bp whose members see each example with probability q. " if self.tuned else ""
        return (
            f"{names}Training sets of T = {used['training images T']} images, each with scores relative to "
            f"{self.reference}'s; {used['members']} members; prior scale {how}. {self._training(tables)} Intervals: "
            f"95%, over {used['seeds']} seeds that share no member."
        )

    def _training(self, tables: Tables) -> str:
        """Says how members were trained and tested."""
        kept = self.kept(tables)
        problems = kept[["num_train", "epochs", "learning_rate", "weight_decay", "num_test"]].drop_duplicates()
        each = "; ".join(
            f"T = {int(row['num_train']):,}: {int(row['epochs'])} epochs at rate {row['learning_rate']:g}, weight "
            f"decay {row['weight_decay']:g} / T, the first {int(row['num_test']):,} test images"
            for row in problems.to_dict("records")
        )
        width = ", ".join(str(fractions.Fraction(value)) for value in sorted(set(kept.width)))
        return f"VGG of width {width}; {each}."


def lines_along(
    column: str, x_label: str, table: pd.DataFrame, agents: Sequence[str], y_label: str
) -> list[panels.Panel]:
    """Returns a panel per score with a line per agent along a column."""
    options: dict[str, Any] = {"kind": "lines", "x_label": x_label, "log_x": True}
    return [
        panels.Panel(name, y_label, panels.mean_lines(table, score, agents, column), **options)
        for score, name in SCORES.items()
    ]


def normalize(table: pd.DataFrame, reference: str, within: Sequence[str] = ("num_train",)) -> pd.DataFrame:
    """Returns the rows with scores divided by the reference agent's mean over seeds, where it has any."""
    table = table.copy()
    keys = list(table[list(within)].itertuples(index=False, name=None))
    for score in SCORES:
        means: dict[Any, list[float]] = {}
        for key, agent, value in zip(keys, table.agent, table[score], strict=True):
            if agent == reference:
                means.setdefault(key, []).append(value)
        if missing := sorted(set(keys) - set(means)):
            raise NoDataError(f"no rows of {reference} at {', '.join(map(str, missing))}")
        table[score] = [
            value / (sum(means[key]) / len(means[key])) for key, value in zip(keys, table[score], strict=True)
        ]
    return table


def best_scale_on_other_seeds(table: pd.DataFrame, score: str = "nll_joint") -> pd.DataFrame:
    """Returns, per (setting, agent, seed), the row of the prior scale that is best on the *other* seeds.

    The paper takes the best scale on the seeds that it reports, which favors whoever has more scales to choose from.
    With one seed there are no others, and its own best is taken.
    """
    groups: dict[Any, dict[Any, dict[Any, tuple[float, int]]]] = {}  # by agent and setting, seed, scale: score, place
    columns = [table[name].tolist() for name in ("setting", "agent", "num_members", "seed", "prior_scale", score)]
    for place, (setting, agent, members, seed, scale, value) in enumerate(zip(*columns, strict=True)):
        groups.setdefault((setting, agent, members), {}).setdefault(seed, {}).setdefault(scale, (value, place))
    kept = []
    for seeds in groups.values():
        for seed, own in seeds.items():
            others = [found for other, found in seeds.items() if other != seed] or [own]
            seen = {scale: [found[scale][0] for found in others if scale in found] for scale in sorted(own)}
            means = {scale: sum(values) / len(values) for scale, values in seen.items() if values}
            kept.append(own[min(means, key=means.__getitem__) if means else min(own)][1])
    return table.iloc[sorted(kept)]
