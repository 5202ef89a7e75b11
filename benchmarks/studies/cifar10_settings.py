"""Weight decay and prior scale of the smaller CIFAR10 figures, chosen on training images that no member trains on.

    tf-ensembles sweep run benchmarks.studies.cifar10_settings --preset standard

Networks and training sets are those of figure 3; members have another seed than any that a figure shows. The decay is
chosen as the paper chose its own, by the marginal NLL of ensemble-n, one for all training sets. With it, the prior
scale is chosen by the joint NLL of ensemble-p relative to ensemble-n, for each ensemble size. What is chosen stands in
`SIZES` of figures 3, 4 and 5 and in `Problem`s of `cifar10_runs`; a test compares them with the committed table. Figure
11 keeps the paper's scale.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.figures.cifar10 import figure_3
from benchmarks.figures.cifar10 import runs as cifar10_runs
from benchmarks.figures.cifar10.runs import Agent, N, P, Size
from trainers.images import config as member_config
from trainers.sweeps import sweep

if TYPE_CHECKING:
    import pandas as pd

SWEEP = "cifar10_settings"
DECAYS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SCALES = (1.0, 3.0, 10.0, 30.0)
IMAGES = 2000  # to score on

# Members per ensemble: of ensemble-n when the decay is chosen; of those that a scale is chosen for.
DECAY_MEMBERS = {"quick": 3, "standard": 5}
SCALE_MEMBERS = {"quick": (3,), "standard": (3, 10, 15)}
MEMBERS = {"quick": 15, "standard": 15}  # trained; smaller ensembles are scored in disjoint groups

prepare = cifar10_runs.prepare


def _size(preset: str, decay: float, num_members: int, trained: int) -> Size:
    base = figure_3.SIZES[preset]
    return dataclasses.replace(
        base,
        problems=tuple(dataclasses.replace(problem, weight_decay=decay) for problem in base.problems),
        num_members=num_members,
        seeds=trained // num_members,
        prior_scales=SCALES,
        num_test=IMAGES,
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


def _members(sizes: Sequence[Size], agents: Sequence[Agent], context: cifar10_runs.Context | None) -> list[sweep.Run]:
    runs = {
        run.id: run
        for size in sizes
        for problem in size.problems
        for seed in range(size.seeds)
        for run in cifar10_runs.member_runs(problem, agents, size, seed, context)
    }
    return list(runs.values())


def _ensembles(
    size: Size, agents: Sequence[Agent], context: cifar10_runs.Context | None = None
) -> Iterator[cifar10_runs.Ensemble]:
    for problem in size.problems:
        for seed in range(size.seeds):
            yield from cifar10_runs.ensembles(problem, agents, size, seed, context)


def _scoring(sizes: Sequence[Size], agents: Sequence[Agent], context: cifar10_runs.Context | None) -> list[sweep.Run]:
    return [ensemble.run for size in sizes for ensemble in _ensembles(size, agents, context)]


def stages(
    preset: str, context: cifar10_runs.Context | None = None
) -> list[Callable[[Sequence[dict[str, Any]]], list[sweep.Run]]]:
    """Returns members and scores of ensemble-n with every decay, then, with the best, of p with every prior scale."""
    decays = _decay_sizes(preset)

    def scales(rows: Sequence[dict[str, Any]]) -> list[Size]:
        return _scale_sizes(preset, choose_decay(preset, rows))

    return [
        lambda rows: _members(decays, [Agent(N)], context),
        lambda rows: _scoring(decays, [Agent(N)], context),
        lambda rows: _members(scales(rows), _scale_agents(), context),
        lambda rows: _scoring(scales(rows), _scale_agents(), context),
    ]


def choose_decay(preset: str, rows: Sequence[dict[str, Any]]) -> float:
    """Returns the weight decay with the lowest marginal NLL of ensemble-n, averaged over training sets."""
    table = _table(_decay_sizes(preset), [Agent(N)], rows)
    return table.groupby("weight_decay").nll_marginal.mean().sort_values().index.tolist()[0]


def choose_scales(table: pd.DataFrame) -> dict[int, float]:
    """Returns, per ensemble size, the prior scale with the lowest joint NLL relative to ensemble-n's.

    Args:
        table: `num_train, num_members, prior_scale, nll_joint`; scale 0 is ensemble-n.
    """
    means = table.groupby(["num_members", "prior_scale", "num_train"]).nll_joint.mean().unstack("prior_scale")
    ratios = means.div(means[0.0], axis=0).drop(columns=0.0).groupby("num_members").mean()
    return dict(zip(ratios.index.tolist(), ratios.idxmin(axis=1).tolist(), strict=True))


def _table(sizes: Sequence[Size], agents: Sequence[Agent], rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
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


def report(preset: str, rows: Sequence[dict[str, Any]], folder: pathlib.Path) -> list[str]:
    """Writes `settings_PRESET.csv`: mean scores of every candidate, and which were chosen; returns what to tell."""
    import pandas as pd

    from tf_ensembles import files

    decay = choose_decay(preset, rows)
    decays = _table(_decay_sizes(preset), [Agent(N)], rows).assign(question="weight decay")
    scales = _table(_scale_sizes(preset, decay), _scale_agents(), rows).assign(question="prior scale")
    best = choose_scales(scales)
    decays["chosen"] = decays.weight_decay == decay
    scales["chosen"] = scales.prior_scale == scales.num_members.map(best)
    keys = ["question", "num_members", "weight_decay", "prior_scale", "chosen"]
    candidates = pd.concat([decays, scales]).groupby([*keys, "num_train"], sort=False)
    table = candidates[["nll_marginal", "nll_joint", "accuracy"]].mean().round(5).reset_index()
    path = folder / f"settings_{preset}.csv"
    folder.mkdir(parents=True, exist_ok=True)
    with files.atomic_path(path) as temporary:
        table.to_csv(temporary, index=False)
    over_all = table.groupby(keys, sort=False)[["nll_marginal", "nll_joint"]].mean().round(3).reset_index()
    lines = [f"wrote {path}", over_all.to_string(index=False)]
    if decay in (min(DECAYS), max(DECAYS)):
        lines.append(f"The best weight decay, {decay:g}, is at the end of those tried.")
    return lines
