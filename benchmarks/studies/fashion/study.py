"""Fashion-MNIST by LeNets: one model, ensembles, an epinet, dropout; accuracy, NLL, dyadic NLL, shift, OOD images.

    tf-ensembles sweep run benchmarks.studies.fashion.study --preset standard --figures-to benchmarks/results/fashion

One core makes about 4,000 image passes a second: the standard preset takes about 4.5 hours of a core.

What runs was written before it ran, and nothing here was chosen by a test image. Members of the choice have another
seed, train on 50,000 images and are judged on the 10,000 other training images.

Changed once, when ten members of ensemble-n on 50,000 images had been scored on test images (accuracy 92.8%, NLL
0.214): reported members train on all 60,000. What is published (93.2%, 0.200) was made so: the version of the public
script that came with the published table loads all training images; later versions load 50,000, and the table was not
made again. `Size(whole=False)` is what was planned before.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.figures import panels
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.studies import base
from tf_ensembles.benchmarks.studies.fashion import data, scores
from tf_ensembles.trainers.sweeps import kinds, sweep

if TYPE_CHECKING:
    import pandas as pd

MEMBER = kinds.register("fashion-member", "tf_ensembles.benchmarks.studies.fashion.training:train_member")
NETWORK = kinds.register("fashion-network", "tf_ensembles.benchmarks.studies.fashion.training:train_network")
ENSEMBLE = kinds.register("fashion-ensemble", "tf_ensembles.benchmarks.studies.fashion.study:score_ensemble")
PAIR = kinds.register("fashion-pair", "tf_ensembles.benchmarks.studies.fashion.study:compare_ensembles")
ONE, N, P, BP = "one", "ensemble-n", "ensemble-p", "ensemble-bp"
EPINET, DROPOUT = "epinet", "MC dropout"
AGENTS = (N, P, BP, EPINET, DROPOUT, ONE)
PAIRS = ((P, N), (BP, P))
UNITS = {"rotation": "rotation, degrees", "blur": "blur, pixels", "noise": "noise, of 1"}


@dataclasses.dataclass(frozen=True)
class Size:
    """How large the study is."""

    num_members: int = 10
    steps: int = 5000
    batch: int = 256
    learning_rate: float = 1e-3
    seed: int = 0
    whole: bool = True  # whether reported members train on all 60,000 images, as those that were published
    # The choice: first the prior's scale for ensemble-p, then, with it, the bootstrap's rate for ensemble-bp, each by
    # the least dyadic NLL on held-out images. Shorter trainings and fewer members, for the sake of time.
    choice_seed: int = 1
    choice_members: int = 3
    choice_steps: int = 2000
    scales: tuple[float, ...] = (0.3, 1.0, 3.0)  # standard deviations of the prior's logits over training images
    rates: tuple[float, ...] = (0.5, 0.8)  # p of the weights Bernoulli(p) / p
    # Methods that need one network: the mean over some of them, each trained as long as a member. The epinet's prior
    # scale is chosen from `scales` and the rate of dropout from these, each by one network in the way above.
    num_networks: int = 3
    dropout_rates: tuple[float, ...] = (0.1, 0.3)
    epinet_draws: int = 100  # indices, of which each is a member
    dropout_draws: int = 30


@dataclasses.dataclass(frozen=True)
class Member:
    """One network: all that its training depends on but the data."""

    agent: str
    seed: int
    member: int
    steps: int
    batch: int
    learning_rate: float
    prior_scale: float = 0.0
    rate: float = 1.0
    whole: bool = False  # whether it trains on the images that choices are made on, too

    @property
    def name(self) -> str:
        """Its run, and its file."""
        what = f"{self.agent}{'-whole' if self.whole else ''}-scale{self.prior_scale:g}-rate{self.rate:g}"
        return f"{what}-steps{self.steps}-batch{self.batch}-lr{self.learning_rate:g}-seed{self.seed}-{self.member}"


@dataclasses.dataclass(frozen=True)
class Network:
    """One network of a method that makes many of it; `value` is its prior scale, or its rate of dropout."""

    method: str
    value: float
    seed: int
    number: int
    steps: int
    batch: int
    learning_rate: float
    draws: int
    whole: bool = False  # as of a member

    @property
    def name(self) -> str:
        """Its run."""
        what = f"{self.method.replace(' ', '-')}{'-whole' if self.whole else ''}-{self.value:g}-draws{self.draws}"
        return f"{what}-steps{self.steps}-batch{self.batch}-lr{self.learning_rate:g}-seed{self.seed}-{self.number}"


def sets() -> list[str]:
    """Returns the sets that reported members are judged on."""
    return ["test", "mnist", *data.shift_names()]


def make_members(
    size: Size, agent: str, scale: float = 0.0, rate: float = 1.0, *, choice: bool = False
) -> list[Member]:
    """Returns the members of an ensemble, of the study or of its choice."""
    seed, steps = (size.choice_seed, size.choice_steps) if choice else (size.seed, size.steps)
    whole = size.whole and not choice
    count = size.choice_members if choice else size.num_members
    return [Member(agent, seed, m, steps, size.batch, size.learning_rate, scale, rate, whole) for m in range(count)]


def make_networks(size: Size, method: str, value: float, *, choice: bool = False) -> list[Network]:
    """Returns the networks of a method, of the study or of its choice."""
    seed, steps = (size.choice_seed, size.choice_steps) if choice else (size.seed, size.steps)
    whole, draws = size.whole and not choice, size.epinet_draws if method == EPINET else size.dropout_draws
    count = 1 if choice else size.num_networks
    return [Network(method, value, seed, k, steps, size.batch, size.learning_rate, draws, whole) for k in range(count)]


def score_ensemble(config: Mapping[str, Any], *, store: str) -> dict[str, float]:
    """One run: an ensemble's dyadic NLL on held-out images, or all of its scores and errors by images and score."""
    from tf_ensembles.benchmarks.studies.fashion import training

    images = data.load()
    logits = training.read_logits(store, config["members"], config["sets"])
    if "heldout" in logits:
        return {"heldout_dyadic_nll": scores.heldout(logits, images)}
    labels = images["test"].y
    if config["agent"] == ONE:
        found = scores.score_alone(logits, labels)
    else:
        found = scores.score(logits, labels)
        error = math.sqrt(scores.member_variance(scores.nll(labels), logits))
        found["test", scores.OVER_MEMBERS] = scores.Value(found["test", "nll"].value, error)
    return {
        f"{images_of}|{score}|{part}": getattr(one, part)
        for (images_of, score), one in found.items()
        for part in ("value", "error")
    }


def compare_ensembles(config: Mapping[str, Any], *, store: str) -> dict[str, float]:
    """One run: what one ensemble scores more than another, with its interval, by images and score."""
    from tf_ensembles.benchmarks.studies.fashion import training

    one, other = (training.read_logits(store, config[name], sets()) for name in ("members", "other_members"))
    found = scores.differences(one, other, data.load()["test"].y)
    return {
        f"{images}|{score}|{part}": value
        for (images, score), interval in found.items()
        for part, value in (("difference", interval.estimate), ("low", interval.low), ("high", interval.high))
    }


class _Study(base.Study):
    name, part, kept = "shift", "fashion", "scores"
    title = "Fashion-MNIST, LeNets: NLL and dyadic NLL under shift"
    about = (
        "Bars: 95% intervals, of ensembles over images only, of one model over members, of other methods over networks."
    )
    presets = {
        "quick": Size(2, 20, choice_members=1, choice_steps=10, scales=(0.3, 1.0), num_networks=1, epinet_draws=5),
        "standard": Size(),
    }

    def stages(self, size: Size, context: Mapping[str, Any]) -> list[base.Stage]:
        """Returns the choices, each followed by what it decides on, and at last what all is scored by."""
        where = {"store": context.get("store")}

        def run(kind: str, made: Any, names: Sequence[str]) -> Any:
            config = {**dataclasses.asdict(made), "sets": list(names)}
            own = where if kind == MEMBER else {}
            return sweep.make_run(f"fashion/{made.name}", kind, config, context=own, cost=float(made.steps))

        def score(agent: str, members: Sequence[Member], names: Sequence[str]) -> Any:
            config = {"agent": agent, "members": [member.name for member in members], "sets": list(names)}
            return sweep.make_run(f"fashion/score/{agent}/{members[0].name}", ENSEMBLE, config, context=where)

        def best(rows: base.Rows, runs: Mapping[float, Any]) -> float:
            values = [row["heldout_dyadic_nll"] for row in base.complete(rows, list(runs.values()))]
            return min(zip(values, runs, strict=True))[1]

        scales = {scale: make_members(size, P, scale, choice=True) for scale in size.scales}
        scored_scales = {scale: score(P, members, ["heldout"]) for scale, members in scales.items()}

        def rates(rows: base.Rows) -> dict[float, list[Member]]:
            scale = best(rows, scored_scales)
            return {rate: make_members(size, BP, scale, rate, choice=True) for rate in size.rates}

        def scored_rates(rows: base.Rows) -> dict[float, Any]:
            return {rate: score(BP, members, ["heldout"]) for rate, members in rates(rows).items()}

        def ensembles(rows: base.Rows) -> dict[str, list[Member]]:
            scale, rate = best(rows, scored_scales), best(rows, scored_rates(rows))
            plain, prior = make_members(size, N), make_members(size, P, scale)
            return {N: plain, P: prior, BP: make_members(size, BP, scale, rate)}

        def in_turns(rows: base.Rows) -> list[Any]:
            return list(itertools.chain(*zip(*ensembles(rows).values(), strict=True)))

        def scored(rows: base.Rows) -> list[Any]:
            made = ensembles(rows)
            runs = [score(agent, made[N if agent == ONE else agent], sets()) for agent in (ONE, N, P, BP)]
            for one, other in PAIRS:
                names = {"members": [m.name for m in made[one]], "other_members": [m.name for m in made[other]]}
                config = {"agent": one, "other": other, **names}
                runs.append(sweep.make_run(f"fashion/pair/{one}/{made[one][0].name}", PAIR, config, context=where))
            return runs

        values = {EPINET: size.scales, DROPOUT: size.dropout_rates}
        tried = {
            method: {v: run(NETWORK, make_networks(size, method, v, choice=True)[0], ["heldout"]) for v in listed}
            for method, listed in values.items()
        }

        def networks(rows: base.Rows) -> list[Any]:
            chosen = {method: best(rows, runs) for method, runs in tried.items()}
            return [
                run(NETWORK, one, sets()) for method in tried for one in make_networks(size, method, chosen[method])
            ]

        return [
            lambda rows: [run(MEMBER, member, ["heldout"]) for members in scales.values() for member in members],
            lambda rows: list(scored_scales.values()),
            lambda rows: [run(MEMBER, member, ["heldout"]) for members in rates(rows).values() for member in members],
            lambda rows: list(scored_rates(rows).values()),
            lambda rows: [run(MEMBER, member, sets()) for member in in_turns(rows)],
            scored,
            lambda rows: [one for runs in tried.values() for one in runs.values()],
            networks,
        ]

    def collect(self, size: Size, rows: base.Rows) -> dict[str, pd.DataFrame]:
        """Returns scores and differences, and the scales and rates that were chosen."""
        import pandas as pd

        *_, members, scored, _, networks = self.stages(size, {})
        lines, differences = [], []
        for row in base.rows_of(rows, scored(rows)):
            if "other" in row:
                about = {"agent": row["agent"], "other": row["other"]}
                differences += [about | one for one in base.unpack(row, "images", "score")]
            else:
                lines += [{"agent": row["agent"], **one} for one in base.unpack(row, "images", "score")]
        done = base.rows_of(rows, networks(rows))
        values = pd.DataFrame(
            {"agent": row["method"], **dict(zip(("images", "score"), key.split("|"), strict=True)), "value": value}
            for row in done
            for key, value in row.items()
            if "|" in key
        )
        groups: Any = values.groupby(["agent", "images", "score"], sort=False).value if done else ()
        lines += [dict(zip(scores.LINE, (*key, own.mean(), own.sem()), strict=True)) for key, own in groups]
        chosen = {run.config["agent"]: run.config for run in members(rows)}
        columns = [{"agent": agent, "scale": c["prior_scale"], "rate": c["rate"]} for agent, c in chosen.items()]
        columns += [{"agent": row["method"], "value": row["value"]} for row in done if row["number"] == 0]
        tables = {"scores": lines, "differences": differences, "chosen": columns}
        return {name: pd.DataFrame(listed) for name, listed in tables.items()}

    def table(self, tables: Tables) -> pd.DataFrame:
        """Returns the scores."""
        return base.read(tables, "fashion/scores.csv")

    def panels(self, table: pd.DataFrame) -> list[base.Panel]:
        """Returns NLL and dyadic NLL against the strength of each shift."""
        made = []
        for score, label in (("nll", "NLL"), ("dyadic_nll", f"dyadic NLL of {scores.TAU} labels")):
            for kind, strengths in data.SHIFTS.items():
                names = {"test": 0.0, **{f"{kind}-{strength:g}": strength for strength in strengths}}
                rows = table[(table.score == score) & table.images.isin(list(names))]
                series = []
                for agent in (name for name in AGENTS if name in set(rows.agent)):
                    own = rows[rows.agent == agent].set_index("images")
                    points = [
                        panels.point(x, stats.normal_interval(own.value[name], own.error[name], 0))
                        for name, x in names.items()
                    ]
                    series.append(panels.Series(agent, tuple(points)))
                title = f"{label}, {kind}"
                options: dict[str, Any] = {"kind": "lines", "x_label": UNITS[kind], "from_zero": True}
                made.append(base.Panel(title, label, tuple(series), **options))
        return made


FIGURE = _Study()
