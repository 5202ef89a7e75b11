"""Weight decay and prior scale of the smaller CIFAR10 figures, chosen on training images that no member trains on.

    tf-ensembles sweep run benchmarks.studies.cifar10_settings --preset standard

Networks and training sets are those of figure 3; members have another seed than any that a figure shows. The decay is
chosen as the paper chose its own, by the marginal NLL of ensemble-n, one for all training sets. With it, the prior
scale is chosen by the dyadic NLL of ensemble-p relative to ensemble-n, for each ensemble size. What is chosen stands in
`presets` of figures 3, 4 and 5 and in `Problem`s of their `runs`; a test compares them with the committed table. Figure
11 keeps the paper's scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks.figures import base, panels
from tf_ensembles.benchmarks.figures.base import NOT_STATED, Rows, Stage
from tf_ensembles.benchmarks.figures.cifar10 import figure_3
from tf_ensembles.benchmarks.figures.cifar10 import runs as cifar10_runs
from tf_ensembles.benchmarks.figures.cifar10.runs import Agent, Context, N, P, Size
from tf_ensembles.benchmarks.figures.panels import TextTable
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.style import listing
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

DECAYS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SCALES = (1.0, 3.0, 10.0, 30.0)
IMAGES = 2000  # to score on

# Members per ensemble: of ensemble-n when the decay is chosen; of those that a scale is chosen for.
DECAY_MEMBERS = {"quick": 3, "standard": 5}
SCALE_MEMBERS = {"quick": (3,), "standard": (3, 10, 15)}
MEMBERS = {"quick": 15, "standard": 15}  # trained; smaller ensembles are scored in disjoint groups


def _size(preset: str, decay: float, num_members: int, trained: int) -> Size:
    base_size = figure_3.FIGURE.presets[preset]
    return dataclasses.replace(
        base_size,
        problems=tuple(
            dataclasses.replace(problem, weight_decay=decay, num_test=IMAGES) for problem in base_size.problems
        ),
        num_members=num_members,
        seeds=trained // num_members,
        prior_scales=SCALES,
        data=member_config.VALIDATION,
        seed=1,
        name=f"cifar10-validation/decay{decay:g}",
    )


def _decay_sizes(preset: str) -> list[Size]:
    if preset not in MEMBERS:
        raise ValueError(f"Expected preset {' or '.join(MEMBERS)}: the paper states its own. Received: {preset}")
    members = DECAY_MEMBERS[preset]
    return [_size(preset, decay, members, members) for decay in DECAYS]


def _scale_sizes(preset: str, decay: float) -> list[Size]:
    return [_size(preset, decay, members, MEMBERS[preset]) for members in SCALE_MEMBERS[preset]]


def _scale_agents() -> list[Agent]:
    return [Agent(N), *(Agent(P, scale) for scale in SCALES)]


def _members(sizes: Sequence[Size], agents: Sequence[Agent], context: Context | None) -> list[sweep.Run]:
    runs = {
        run.id: run
        for size in sizes
        for problem in size.problems
        for seed in range(size.seeds)
        for run in cifar10_runs.member_runs(problem, agents, size, seed, context)
    }
    return list(runs.values())


def _ensembles(size: Size, agents: Sequence[Agent], context: Context | None = None) -> Iterator[cifar10_runs.Ensemble]:
    for problem in size.problems:
        for seed in range(size.seeds):
            yield from cifar10_runs.ensembles(problem, agents, size, seed, context)


def _scoring(sizes: Sequence[Size], agents: Sequence[Agent], context: Context | None) -> list[sweep.Run]:
    return [ensemble.run for size in sizes for ensemble in _ensembles(size, agents, context)]


def choose_decay(preset: str, rows: Rows) -> float:
    """Returns the weight decay with the lowest marginal NLL of ensemble-n, averaged over training sets."""
    table = _table(_decay_sizes(preset), [Agent(N)], rows)
    return table.groupby("weight_decay").nll_marginal.mean().sort_values().index.tolist()[0]


def choose_scales(table: pd.DataFrame) -> dict[int, float]:
    """Returns, per ensemble size, the prior scale with the lowest dyadic NLL relative to ensemble-n's.

    Args:
        table: `num_train, num_members, prior_scale, nll_joint`; scale 0 is ensemble-n.
    """
    means = table.groupby(["num_members", "prior_scale", "num_train"]).nll_joint.mean().unstack("prior_scale")
    ratios = means.div(means[0.0], axis=0).drop(columns=0.0).groupby("num_members").mean()
    return dict(zip(ratios.index.tolist(), ratios.idxmin(axis=1).tolist(), strict=True))


def _table(sizes: Sequence[Size], agents: Sequence[Agent], rows: Rows) -> pd.DataFrame:
    import pandas as pd

    by_hash = {row["hash"]: row for row in rows}
    ensembles = [ensemble for size in sizes for ensemble in _ensembles(size, agents)]
    if missing := sum(ensemble.run.hash not in by_hash for ensemble in ensembles):
        raise ValueError(
            f"Expected the scores of all {len(ensembles)} ensembles to choose from. Received: {missing} missing"
        )
    columns = ("num_train", "weight_decay", "prior_scale", "num_members", "first_member")
    scores = ("nll_marginal", "nll_joint", "accuracy")
    return pd.DataFrame([{name: by_hash[one.run.hash][name] for name in (*columns, *scores)} for one in ensembles])


class _Figure(base.Figure):
    """The study as a figure, so that it runs and resumes as figures do; a size is the name of a preset of figure 3."""

    id, name, sweep, place = "cifar10-settings", "cifar10_settings", "cifar10_settings", (9.0,)
    part, needs_images = "cifar10", True
    title = "CIFAR10: weight decay and prior scale on held-out training images"
    about = "Candidates for the smaller presets, scored on training images that no member trains on."
    paper = {"weight decays tried": NOT_STATED, "prior scales tried": "1, 3, 10, 30"}
    full_size = "The paper does not say how it chose them."
    presets = {preset: preset for preset in MEMBERS}

    def stages(self, size: str, context: Mapping[str, Any]) -> list[Stage]:
        """Returns members and scores of ensemble-n with every decay, then, with the best, of p with every scale."""
        decays, where = _decay_sizes(size), context or None

        def scales(rows: Rows) -> list[Size]:
            return _scale_sizes(size, choose_decay(size, rows))

        return [
            lambda rows: _members(decays, [Agent(N)], where),
            lambda rows: _scoring(decays, [Agent(N)], where),
            lambda rows: _members(scales(rows), _scale_agents(), where),
            lambda rows: _scoring(scales(rows), _scale_agents(), where),
        ]

    def prepare(self, context: Mapping[str, Any]) -> None:
        """Makes sure that CIFAR10 is there."""
        figure_3.FIGURE.prepare(context)

    def collect(self, size: str, rows: Rows) -> dict[str, pd.DataFrame]:
        """Returns mean scores of every candidate, and which were chosen."""
        import pandas as pd

        decay = choose_decay(size, rows)
        decays = _table(_decay_sizes(size), [Agent(N)], rows).assign(question="weight decay")
        scales = _table(_scale_sizes(size, decay), _scale_agents(), rows).assign(question="prior scale")
        best = choose_scales(scales)
        decays["chosen"] = decays.weight_decay == decay
        scales["chosen"] = scales.prior_scale == scales.num_members.map(best)
        keys = ["question", "num_members", "weight_decay", "prior_scale", "chosen"]
        candidates = pd.concat([decays, scales]).groupby([*keys, "num_train"], sort=False)
        means = candidates[["nll_marginal", "nll_joint", "accuracy"]].mean().round(5).reset_index()
        return {f"settings_{size}": means}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the candidates; those of the larger preset where both were kept."""
        size = "standard" if tables.has("cifar10/settings_standard.csv") else "quick"
        return tables.read(f"cifar10/settings_{size}.csv", ("question", "num_members", "prior_scale", "chosen"))

    def panels(self, table: pd.DataFrame) -> list[panels.Panel]:
        """Returns the scores of candidates, averaged over training sets."""
        decays = table[table.question == "weight decay"].groupby("weight_decay").nll_marginal.mean()
        lines = [panels.Series(N, tuple(panels.Point(float(str(x)), y) for x, y in decays.items()))]
        scales = table[(table.question == "prior scale") & (table.prior_scale > 0)]
        for members, rows in scales.groupby("num_members"):
            means = rows.groupby("prior_scale").nll_joint.mean()
            points = tuple(panels.Point(float(str(x)), y) for x, y in means.items())
            lines.append(panels.Series(f"{members} members", points))
        options: dict[str, Any] = {"kind": "lines", "log_x": True}
        return [
            panels.Panel("ensemble-n", "marginal NLL", tuple(lines[:1]), x_label="weight decay times T", **options),
            panels.Panel("ensemble-p", "dyadic NLL of 10 labels", tuple(lines[1:]), x_label="prior scale", **options),
        ]

    def used(self, tables: Tables) -> Mapping[str, str]:
        """Returns what was tried."""
        table = tables.of(self)
        scales = table[(table.question == "prior scale") & (table.prior_scale > 0)].prior_scale
        return {"weight decays tried": listing(table.weight_decay), "prior scales tried": listing(scales)}

    def chosen(self, tables: Tables) -> TextTable | None:
        """Returns what was chosen."""
        table = tables.of(self)
        rows = table[table.chosen].drop_duplicates(["question", "num_members"]).to_dict("records")
        keys = ("question", "num_members", "weight_decay", "prior_scale")
        return list(keys), [[f"{row[key]}" for key in keys] for row in rows]

    def caption(self, tables: Tables) -> str:
        """Returns what stands below the picture, and whether the choice is at an end of what was tried."""
        table = tables.of(self)
        (decay,) = set(table[(table.question == "weight decay") & table.chosen].weight_decay)
        end = f" It is at the end of those tried: {decay:g}." if decay in (min(DECAYS), max(DECAYS)) else ""
        how = "The weight decay of the lowest marginal NLL is chosen."
        return f"Means over training sets, on {IMAGES:,} held-out images. {how}{end}"


FIGURE = _Figure()
