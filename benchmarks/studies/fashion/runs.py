"""The study as stages of a sweep: the choice first, then ensembles, member by member in turn, and at last methods that
need one network.

So what is complete can be read early. A killed sweep goes on where it was.
"""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import Any

from benchmarks.studies.fashion import data, preset
from benchmarks.studies.fashion.preset import BP, DROPOUT, EPINET, Member, N, Network, P, Size
from tf_ensembles import metrics
from trainers.sweeps import kinds, store, sweep

NETWORK_KIND = kinds.register("fashion-network", "benchmarks.studies.fashion.networks:train_network")
KIND = kinds.register("fashion-member", "benchmarks.studies.fashion.training:train_member")
SETS = ("test", "mnist", *data.shift_names())


def execute(size: Size, out: pathlib.Path, folder: pathlib.Path, num_workers: int | None) -> bool:
    """Trains what is missing, and returns whether all is there.

    Args:
        size: of the study.
        out: the folder of the sweep and of members' files.
        folder: the data.
        num_workers: members trained at a time.
    """
    with sweep.Sweep(out / "sweep", num_workers=num_workers, show=True) as ours:

        def done(runs: list[Any]) -> bool:
            report = ours.execute(runs)
            return not (report.left or report.failed)

        def run(members: Sequence[Member], sets: Sequence[str] = SETS) -> bool:
            context = {"store": str((out / "members").absolute()), "folder": str(folder.absolute())}
            return done([_run(KIND, member, sets, context) for member in members])

        def run_networks(networks: Sequence[Network], sets: Sequence[str] = SETS) -> bool:
            return done([_network_run(network, sets, folder) for network in networks])

        if not run([m for scale in size.scales for m in preset.members(size, P, scale, choice=True)], ["heldout"]):
            return False
        scale = choose_scale(size, out, folder)
        if not run([m for rate in size.rates for m in preset.members(size, BP, scale, rate, choice=True)], ["heldout"]):
            return False
        rate = choose_rate(size, out, folder, scale)
        ensembles = (
            preset.members(size, N),
            preset.members(size, P, scale),
            preset.members(size, BP, scale, rate),
        )
        if not run(list(itertools.chain(*zip(*ensembles, strict=True)))):
            return False
        choices = [
            network
            for method in (EPINET, DROPOUT)
            for value in preset.values(size, method)
            for network in preset.networks(size, method, value, choice=True)
        ]
        if not run_networks(choices, ["heldout"]):
            return False
        networks: list[Network] = []
        for method in (EPINET, DROPOUT):
            value = choose_value(size, out, method)
            networks += [] if value is None else preset.networks(size, method, value)
        return run_networks(networks)


def _run(kind: str, what: Member | Network, sets: Sequence[str], context: dict[str, str]) -> Any:
    config = {**dataclasses.asdict(what), "sets": list(sets)}
    return sweep.make_run(f"fashion/{what.name}", kind, config, context=context, cost=float(what.steps))


def _network_run(network: Network, sets: Sequence[str], folder: pathlib.Path) -> Any:
    return _run(NETWORK_KIND, network, sets, {"folder": str(folder.absolute())})


def network_rows(
    out: pathlib.Path, networks: Sequence[Network], sets: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """Returns what the runs of these networks found on some sets (default: all), or nothing unless all are done."""
    hashes = [_network_run(network, sets or SETS, out).hash for network in networks]
    found = {row["hash"]: row for row in store.read_results(out / "sweep") if row["hash"] in hashes}
    return [found[one] for one in hashes] if len(found) == len(hashes) else []


def choose_value(size: Size, out: pathlib.Path, method: str) -> float | None:
    """Returns the value of a method with the least dyadic NLL on held-out images; None while the choice is not done."""
    tried = preset.values(size, method)
    rows = [network_rows(out, preset.networks(size, method, value, choice=True), ["heldout"]) for value in tried]
    if not all(rows):
        return None
    return min(zip(tried, rows, strict=True), key=lambda pair: pair[1][0]["heldout_dyadic_nll"])[0]


def choose_scale(size: Size, out: pathlib.Path, folder: pathlib.Path) -> float:
    """Returns the prior's scale with the least dyadic NLL on held-out images."""
    scores = [_score(preset.members(size, P, scale, choice=True), out, folder) for scale in size.scales]
    return size.scales[scores.index(min(scores))]


def choose_rate(size: Size, out: pathlib.Path, folder: pathlib.Path, scale: float) -> float:
    """Returns the bootstrap's rate with the least dyadic NLL on held-out images."""
    scores = [_score(preset.members(size, BP, scale, rate, choice=True), out, folder) for rate in size.rates]
    return size.rates[scores.index(min(scores))]


def _score(members: list[Member], out: pathlib.Path, folder: pathlib.Path) -> float:
    from benchmarks.studies.fashion import training

    if not training.are_trained(out / "members", members):
        raise ValueError(f"Expected the members of the choice in {out}. Received: not all of them")
    logits = training.read_logits(out / "members", members, "heldout")
    return float(metrics.dyadic_nll(logits, data.load(str(folder))["heldout"].y, tau=preset.TAU))
