"""An `Advice` in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tf_ensembles import priors
from tf_ensembles.advice.scores import DYADIC, JOINT, Choice, Scores

if TYPE_CHECKING:
    from tf_ensembles.advice.candidates import Candidate
    from tf_ensembles.advice.result import Advice, BootstrapDiagnosis, Row
    from tf_ensembles.bootstrap import Bootstrap
    from tf_ensembles.intervals import Interval


def describe(advice: Advice) -> str:
    """Returns the recommendation as code, how sure it is, and the part of the table that it rests on."""
    prior = f"tfe.PriorFunction({_prior_name(advice)}, scale={advice.prior_scale:g})" if advice.prior_scale else "None"
    bootstrap = "None" if advice.bootstrap is None else f"tfe.{advice.bootstrap!r}"
    chosen, largest = advice.recommended, max(row.num_members for row in advice.table)
    shown = [
        row
        for row in advice.table
        if (row.num_members == 1 and row.baseline)
        or row.num_members == largest
        or (row.prior_scale, row.length_scale, row.bootstrap)
        == (chosen.prior_scale, chosen.length_scale, chosen.bootstrap)
    ]
    shown.sort(key=lambda row: (not row.baseline, row.num_members))
    head = "scale, length" if any(row.length_scale is not None for row in advice.table) else "prior scale"
    named = "prior scale" if advice.length_scale is None else f"length scale {advice.length_scale:g} and prior scale"
    return "\n".join(
        [
            *(f"warning: {warning}" for warning in advice.warnings),
            f"tfe.Ensemble(build_member, num_members={advice.num_members}, prior={prior}, bootstrap={bootstrap})",
            f"    .fit(x, y, epochs={advice.epochs})",
            *(f"  {line}" for line in _about_baselines(advice)),
            f"  {named} {advice.prior_scale:g}: {_about_scale(advice)}",
            f"  {advice.num_members} members: {_sureness(advice.confidence.num_members)}",
            *(f"  {line}" for line in _about_bootstrap(advice.diagnosis)),
            f"  joint NLL of {advice.tau} labels {interval(advice.joint_nll)}",
            f"  dyadic NLL {interval(advice.dyadic_nll)}",
            f"  {advice.split}",
            f"  {advice.num_validation} examples judge; what one half of them chooses is judged by the other",
            *(f"  note: {note}" for note in advice.notes),
            "",
            f"{head}  {'bootstrap':<16}  {'members':>7}  {'epochs':>6}  {'joint NLL':>15}  {'dyadic NLL':>15}",
            *(_line(row, chosen, len(head)) for row in shown),
        ]
    )


def _about_baselines(advice: Advice) -> Iterator[str]:
    """Yields whether anything beats a plain ensemble, and by how much the advice beats a single model."""
    versus, largest = advice.against_plain, max(row.num_members for row in advice.table)
    if versus is None:
        yield "not compared with a plain ensemble: there is no other, or it diverged"
    else:
        verdict = str(versus) if versus.beaten else f"{versus} (no prior, no bootstrap)".upper()
        yield f"{verdict}; best other minus plain, {largest} members each:"
        yield f"  joint NLL {interval(versus.joint)}"
        yield f"  dyadic NLL {interval(versus.dyadic)}"
    if advice.against_single is None:
        return
    if advice.num_members == 1:
        yield "and more members are not shown to beat a single model"
    yield f"joint NLL of the advice minus a single model's {interval(advice.against_single)}"


def notes(
    scores: Scores, choice: Choice, tried: Sequence[Candidate], sizes: Sequence[int], unfinished: bool
) -> Iterator[str]:
    """Yields what to try next; `unfinished` says that the last epoch was the best."""
    if unfinished:
        yield "the last epoch was the best: try more epochs or a higher learning rate"
    chosen = tried[choice.scale]
    if chosen.scale and chosen.scale == max(one.scale for one in tried):
        yield f"{chosen.scale:g} is the largest prior scale tried: try larger ones"
    lengths = sorted({one.length_scale for one in tried if one.length_scale is not None})
    if len(lengths) > 1 and chosen.length_scale in (lengths[0], lengths[-1]):
        word = "smallest" if chosen.length_scale == lengths[0] else "largest"
        yield f"{chosen.length_scale:g} is the {word} length scale tried: try {word[:-2]}r ones"
    largest = Choice(choice.arm, choice.scale, len(sizes) - 1)
    others = [dataclasses.replace(largest, scale=scale) for scale in range(len(tried)) if scale != choice.scale]
    alike = [
        str(tried[other.scale])
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


def _prior_name(advice: Advice) -> str:
    """Returns the code of the recommended prior's first argument."""
    build = advice.prior.build if advice.prior is not None else None
    if isinstance(build, priors.Fourier):
        more = "" if build.num_features == priors.Fourier().num_features else f", num_features={build.num_features}"
        return f"tfe.priors.fourier(length_scale={build.length_scale:g}{more})"
    return '"auto"' if isinstance(build, priors.Auto) else "build_prior"


def interval(estimate: Interval) -> str:
    """Returns an estimate with its interval."""
    return f"{estimate.estimate:.3g} (95% interval {estimate.low:.3g} to {estimate.high:.3g})"


def bootstrap_name(bootstrap: Bootstrap | None) -> str:
    """Returns what a table calls a distribution of bootstrap weights."""
    return "none" if bootstrap is None else repr(bootstrap)


def _about_bootstrap(diagnosis: BootstrapDiagnosis) -> Iterator[str]:
    """Yields lines about bootstrapping."""
    if diagnosis.difference is None:
        yield "bootstrap: not tried"
        return
    yield f"bootstrap {diagnosis.bootstrap}: {diagnosis.verdict}"
    yield f"  joint NLL with minus without {interval(diagnosis.difference)}"
    if diagnosis.noisy is not None and diagnosis.quiet is not None:
        yield f"  where members see more label noise {interval(diagnosis.noisy)}"
        yield f"  where they see less {interval(diagnosis.quiet)}"


def _line(row: Row, chosen: Row, width: int) -> str:
    joint = f"{row.joint_nll:.3f} ± {row.joint_error:.3f}" if not row.diverged else "diverged"
    dyadic = f"{row.dyadic_nll:.3f} ± {row.dyadic_error:.3f}" if not row.diverged else ""
    marks = ", ".join(mark for mark in (row.baseline, "recommended" if row is chosen else "") if mark)
    prior = f"{row.prior_scale:g}" + ("" if row.length_scale is None else f", {row.length_scale:g}")
    start = f"{prior:>{width}}  {row.bootstrap:<16}  {row.num_members:>7}  {row.epochs:>6}"
    return f"{start}  {joint:>15}  {dyadic:>15}  {marks}".rstrip()


def _about_scale(advice: Advice) -> str:
    if advice.against_plain is None or advice.against_plain.beaten:
        return _sureness(advice.confidence.prior_scale)
    return f"the default, best in {advice.confidence.prior_scale:.0%} of resamples"


def _sureness(share: float) -> str:
    word = "sure" if share >= 0.95 else "fairly sure" if share >= 0.8 else "not sure"
    return f"{word}, chosen in {share:.0%} of resamples"
