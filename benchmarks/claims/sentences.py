"""Verdicts of the paper's sentences: the claims that test the parts of one sentence make one verdict.

A claim names its sentences (`Claim.sentence`). Those that our measurements cannot reach are in `UNTESTED`.

Where a sentence has several parts, all must hold, and one that is contradicted decides. Where the paper says that
something can be or may be so, one part that holds is enough (`Sentence.some`). Either way the error of the verdict is
5%: where any of the parts would do, the smallest of their p-values counts, times their number.

    for one in sentences.judge_all(judge.evaluate("benchmarks/results")):
        print(one.statement.text, one.verdict, one.deciding)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from tf_ensembles.benchmarks.claims.base import Sentence, combine
from tf_ensembles.benchmarks.claims.judge import Result
from tf_ensembles.benchmarks.stats import INCONCLUSIVE, LEVEL, NOT_MEASURED, NOT_SUPPORTED, SUPPORTED, holm

UNTESTED = (
    Sentence("4.1", "An isotropic prior is no loss of generality.", untested="a change of coordinates"),
    Sentence(
        "4.1", "A randomly perturbed regularizer is a prior function.", untested="a change of variables, θ = θ̃ + g"
    ),
    Sentence(
        "4.2", "An eigenvalue is the expected signal-to-noise ratio along its direction.", untested="a definition"
    ),
    Sentence(
        "5.1, F2",
        "Flipping labels of one class makes two signal-to-noise ratios across inputs.",
        untested="how it is built",
    ),
    Sentence(
        "5.2, F4",
        "Perhaps because CIFAR10 has little noise and ensembles are small.",
        untested="the authors suspect it; figure 11 has small ensembles with little noise",
    ),
    Sentence(
        "6",
        "Better joint predictions make better decisions.",
        untested="a result of other papers; see figure 6 for one case",
    ),
    Sentence(
        "A.2",
        "In high dimensions joint scores need very many labels to tell more than marginal ones; dyadic sampling helps.",
        untested="of other papers",
    ),
    Sentence(
        "7",
        "The claims may extend to reinforcement learning, and by tangent kernels to networks.",
        untested="future work",
    ),
)


@dataclasses.dataclass(frozen=True)
class JudgedSentence:
    """What a results folder says about one sentence of the paper."""

    statement: Sentence
    parts: tuple[Result, ...]  # of the claims that test it
    verdict: str
    p_value: float = math.nan  # the smallest level at which the verdict would stand; NaN where nothing was tested
    p_adjusted: float = math.nan  # by Holm's method, over all sentences
    adjusted: str = ""  # the verdict of that family

    @property
    def deciding(self) -> Result | None:
        """The part that the verdict rests on; None where none was measured."""
        measured = [part for part in self.parts if part.effects]
        if not measured:
            return None
        if self.verdict == SUPPORTED:
            return (min if self.statement.some else max)(measured, key=lambda part: part.p_supported)
        return min(measured, key=lambda part: (part.p_contradicted, -part.p_supported))

    @property
    def reduced(self) -> bool:
        """Whether a part was measured at another size than the paper's."""
        return any(part.reduced for part in self.parts)


def judge_all(results: Iterable[Result]) -> list[JudgedSentence]:
    """Returns the verdict of every sentence that claims test, and its verdict as one family of all of them."""
    parts: dict[Sentence, list[Result]] = {}
    for result in results:
        for statement in result.claim.sentences:
            parts.setdefault(statement, []).append(result)
    found = [_judge(one, tuple(parts[one])) for one in sorted(parts, key=lambda one: one.where)]
    adjusted = holm({one.statement.text: one.p_value for one in found if not math.isnan(one.p_value)})
    return [_adjust(one, adjusted[one.statement.text]) if one.statement.text in adjusted else one for one in found]


def _adjust(sentence: JudgedSentence, p_adjusted: float) -> JudgedSentence:
    verdict = sentence.verdict if p_adjusted <= LEVEL else INCONCLUSIVE
    return dataclasses.replace(sentence, p_adjusted=p_adjusted, adjusted=verdict)


def _judge(statement: Sentence, parts: tuple[Result, ...]) -> JudgedSentence:
    if len(parts) == 1:
        return JudgedSentence(statement, parts, parts[0].verdict, parts[0].p_value)
    tested = [part for part in parts if not math.isnan(part.p_value)]
    complete = len(tested) == len(parts)
    if not tested:
        known = [part.verdict for part in parts]
        return JudgedSentence(statement, parts, NOT_MEASURED if NOT_MEASURED in known else combine(known))
    if statement.some:
        holds = min(1.0, len(tested) * min(part.p_supported for part in tested))
        fails = max(part.p_contradicted for part in tested) if complete else 1.0
    else:
        # "Alike" is judged with its wording, which no p-value of the region knows: all parts must be supported.
        every = complete and all(part.verdict == SUPPORTED for part in tested)
        holds = max(part.p_supported for part in tested) if every else 1.0
        fails = min(1.0, len(tested) * min(part.p_contradicted for part in tested))
    if min(holds, fails) <= LEVEL:
        return JudgedSentence(statement, parts, SUPPORTED if holds <= LEVEL else NOT_SUPPORTED, min(holds, fails))
    if any(part.verdict == NOT_MEASURED for part in parts):
        return JudgedSentence(statement, parts, NOT_MEASURED)
    return JudgedSentence(statement, parts, INCONCLUSIVE, min(holds, fails))
