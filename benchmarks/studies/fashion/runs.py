"""The study as stages of a sweep: ensemble-n first, then the choice, then ensemble-p and -bp, member by member in turn.

So what is complete can be read early. A killed sweep goes on where it was.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence

from benchmarks.studies.fashion import data, preset
from benchmarks.studies.fashion.preset import BP, Member, N, P, Size
from tf_ensembles import metrics
from trainers.sweeps import kinds, sweep

KIND = kinds.register("fashion-member", "benchmarks.studies.fashion.training:train_member")
SETS = ("heldout", "test", "mnist", *data.shift_names())


def execute(size: Size, out: pathlib.Path, folder: pathlib.Path, num_workers: int | None) -> bool:
    """Trains what is missing, and returns whether all is there.

    Args:
        size: of the study.
        out: the folder of the sweep and of members' files.
        folder: the data.
        num_workers: members trained at a time.
    """
    with sweep.Sweep(out / "sweep", num_workers=num_workers, show=True) as ours:

        def run(members: Sequence[Member], sets: Sequence[str] = SETS) -> bool:
            context = {"store": str((out / "members").absolute()), "folder": str(folder.absolute())}
            runs = [
                sweep.make_run(
                    f"fashion/{member.name}",
                    KIND,
                    {**dataclasses.asdict(member), "sets": list(sets)},
                    context=context,
                    cost=float(member.steps),
                )
                for member in members
            ]
            report = ours.execute(runs)
            return not (report.left or report.failed)

        if not run(preset.members(size, N)):
            return False
        if not run([m for scale in size.scales for m in preset.members(size, P, scale, choice=True)], ["heldout"]):
            return False
        scale = choose_scale(size, out, folder)
        if not run([m for rate in size.rates for m in preset.members(size, BP, scale, rate, choice=True)], ["heldout"]):
            return False
        rate = choose_rate(size, out, folder, scale)
        pairs = zip(preset.members(size, P, scale), preset.members(size, BP, scale, rate), strict=True)
        return run(list(itertools.chain(*pairs)))


def choose_scale(size: Size, out: pathlib.Path, folder: pathlib.Path) -> float:
    """Returns the prior's scale with the least joint NLL on held-out images."""
    scores = [_score(preset.members(size, P, scale, choice=True), out, folder) for scale in size.scales]
    return size.scales[scores.index(min(scores))]


def choose_rate(size: Size, out: pathlib.Path, folder: pathlib.Path, scale: float) -> float:
    """Returns the bootstrap's rate with the least joint NLL on held-out images."""
    scores = [_score(preset.members(size, BP, scale, rate, choice=True), out, folder) for rate in size.rates]
    return size.rates[scores.index(min(scores))]


def _score(members: list[Member], out: pathlib.Path, folder: pathlib.Path) -> float:
    from benchmarks.studies.fashion import training

    if not training.are_trained(out / "members", members):
        raise ValueError(f"Expected the members of the choice in {out}. Received: not all of them")
    logits = training.read_logits(out / "members", members, "heldout")
    return float(metrics.dyadic_nll(logits, data.load(str(folder))["heldout"].y, tau=preset.TAU))
