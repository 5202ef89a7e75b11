"""An `Advice` in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tf_ensembles.advice.scores import DYADIC, JOINT, Choice, Scores

if TYPE_CHECKING:
    from tf_ensembles.advice.result import Advice, BootstrapDiagnosis, Row
    from tf_ensembles.bootstrap import Bootstrap


def describe(advice: Advice) -> str:
    """Returns the recommendation as code, how sure it is, and the part of the table that it rests on."""
    prior = f"tfe.PriorFunction(build_prior, scale={advice.prior_scale:g})" if advice.prior_scale else "None"
    bootstrap = "None" if advice.bootstrap is None else f"tfe.{advice.bootstrap!r}"
    chosen, largest = advice.recommended, max(row.num_members for row in advice.table)
    shown = [row for row in advice.table if row.num_members == largest]
    same = [
        row
        for row in advice.table
        if (row.prior_scale, row.bootstrap) == (chosen.prior_scale, chosen.bootstrap) and row not in shown
    ]
    return "\n".join(
        [
            f"tfe.Ensemble(build_member, num_members={advice.num_members}, prior={prior}, bootstrap={bootstrap})",
            f"  prior scale {advice.prior_scale:g}: {_sureness(advice.confidence.prior_scale)}",
            f"  {advice.num_members} members: {_sureness(advice.confidence.num_members)}",
            *(f"  {line}" for line in _about_bootstrap(advice.diagnosis)),
            f"  joint NLL of {advice.tau} labels {advice.joint_nll}",
            f"  dyadic NLL {advice.dyadic_nll}",
            f"  both chosen on one half of {advice.num_validation} validation examples and judged on the other",
            *(f"  note: {note}" for note in advice.notes),
            "",
            f"{'prior scale':>11}  {'bootstrap':<16}  {'members':>7}  {'joint NLL':>15}  {'dyadic NLL':>15}",
            *(_line(row, chosen) for row in [*same, *shown]),
        ]
    )


def notes(scores: Scores, choice: Choice, scales: Sequence[float], sizes: Sequence[int]) -> Iterator[str]:
    """Yields what to try next."""
    if choice.scale == len(scales) - 1 and len(scales) > 1:
        yield f"{scales[-1]:g} is the largest prior scale tried: try larger ones"
    largest = Choice(choice.arm, choice.scale, len(sizes) - 1)
    others = [dataclasses.replace(largest, scale=scale) for scale in range(len(scales)) if scale != choice.scale]
    alike = [
        f"{scales[other.scale]:g}"
        for other in others
        if scores.usable[other.arm, other.scale]
        and all(scores.estimate(metric, other, largest).low < 0.0 for metric in (JOINT, DYADIC))
    ]
    if alike:
        yield f"not shown at 95% to be worse: prior scale {', '.join(alike)}"
    if len(sizes) > 1 and choice.size == len(sizes) - 1:
        yield f"{sizes[-1]} members, the most tried, are still better than {sizes[-2]}: more may be better yet"
    if not scores.usable.all():
        yield "configurations with members that diverged are left out: a lower learning rate may help"


def bootstrap_name(bootstrap: Bootstrap | None) -> str:
    """Returns what a table calls a distribution of bootstrap weights."""
    return "none" if bootstrap is None else repr(bootstrap)


def _about_bootstrap(diagnosis: BootstrapDiagnosis) -> Iterator[str]:
    """Yields lines about bootstrapping."""
    if diagnosis.difference is None:
        yield "bootstrap: not tried"
        return
    yield f"bootstrap {diagnosis.bootstrap}: {diagnosis.verdict}"
    yield f"  joint NLL with minus without {diagnosis.difference}"
    if diagnosis.noisy is not None and diagnosis.quiet is not None:
        yield f"  where members see more label noise {diagnosis.noisy}"
        yield f"  where they see less {diagnosis.quiet}"


def _line(row: Row, chosen: Row) -> str:
    joint = f"{row.joint_nll:.3f} ± {row.joint_error:.3f}" if not row.diverged else "diverged"
    dyadic = f"{row.dyadic_nll:.3f} ± {row.dyadic_error:.3f}" if not row.diverged else ""
    mark = "  recommended" if row is chosen else ""
    line = f"{row.prior_scale:>11g}  {row.bootstrap:<16}  {row.num_members:>7}  {joint:>15}  {dyadic:>15}{mark}"
    return line.rstrip()


def _sureness(share: float) -> str:
    word = "sure" if share >= 0.95 else "fairly sure" if share >= 0.8 else "not sure"
    return f"{word}, chosen in {share:.0%} of resamples"
