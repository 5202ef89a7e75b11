"""Times alternatives in turns within one run and prints ratios: the speed of a shared machine drifts, a ratio must not.

A measurement is a function whose keyword arguments are the options of its command:

    def mlp(*, turns: int = 2, steps: int = 1000) -> None:
        times = harness.in_turns({"Keras": fit_keras, "ours": fit_ours}, turns)
        harness.print_times(times, "ours")

    PARTS = (mlp,)

    if __name__ == "__main__":
        harness.main(__doc__, PARTS)

`python -m benchmarks.speed.MODULE mlp --turns 3` then runs it. Seconds are of the clock and of the processor, because
other work on the machine slows the clock. Nothing is asserted: a goal depends on the machine.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from tf_ensembles.base import Array
from tf_ensembles.benchmarks.commands import quiet

Part = Callable[..., None]
Run = Callable[[], object]


class Seconds(NamedTuple):
    """What a piece of work took."""

    clock: float
    processor: float  # of all threads of this process


def seconds(run: Run) -> Seconds:
    """Times a call."""
    clock, processor = time.perf_counter(), time.process_time()
    run()
    return Seconds(time.perf_counter() - clock, time.process_time() - processor)


def in_turns(
    runs: Mapping[str, Run], turns: int, *, calls: int = 1, work: Mapping[str, float] | None = None
) -> dict[str, Array]:
    """Times alternatives in turns, so that a slow moment of the machine falls on all of them.

    Args:
        runs: calls by name. All are called once before, which compiles. One that returns `Seconds` has timed itself.
        turns: how often each is timed.
        calls: calls in a turn, of which the fastest counts.
        work: units of work of a call, by name, that seconds are divided by; 1 where a name is missing.

    Returns:
        Seconds by name, `[turns, 2]`, by the clock and of the processor.
    """

    def timed(run: Run) -> Seconds:
        results: list[object] = []
        around = seconds(lambda: results.append(run()))
        return results[0] if isinstance(results[0], Seconds) else around

    for run in runs.values():
        run()
    times: dict[str, list[Any]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            times[name].append(np.min([timed(run) for _ in range(calls)], axis=0))
    return {name: np.array(rows) / (work or {}).get(name, 1) for name, rows in times.items()}


def print_times(times: Mapping[str, Array], reference: str) -> None:
    """Prints the best time of each alternative, and how many times that of the reference; medians in parentheses.

    The median of ratios is over turns. The first two columns are by the clock, the last two of the processor.
    """
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e3, "ms"), (1e6, "us")) if times[reference].min() * s >= 0.1)
    width = max(map(len, times)) + 2
    print(f"  {'best (median)':<{width}}{'clock, ' + unit:>22}{'ratio':>16}{'processor, ' + unit:>22}{'ratio':>16}")
    for name, rows in times.items():
        cells = ""
        for rows_of, reference_of in zip(rows.T, times[reference].T, strict=True):
            cells += f"{scale * rows_of.min():>11.3f} {f'({scale * np.median(rows_of):.3f})':>10}"
            ratio, median = rows_of.min() / reference_of.min(), np.median(rows_of / reference_of)
            cells += f"{ratio:>7.2f} {f'({median:.2f})':>8}"
        print(f"  {name:<{width}}{cells}", flush=True)


def alone(measure: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a function returns in a fresh process, where nothing is imported, compiled or allocated yet."""
    with futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, *arguments).result()


def parse(doc: str | None, parts: Sequence[Part], argv: Sequence[str] | None = None) -> list[tuple[Part, Any]]:
    """Returns the part that a command line names, or all of them, with their options."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    subparsers = parser.add_subparsers(metavar="part", help="all if none is named") if len(parts) > 1 else None
    for part in parts:
        name = part.__name__.replace("_", "-")
        command = subparsers.add_parser(name, help=_title(part), description=part.__doc__) if subparsers else parser
        command.set_defaults(part=part)
        for option, parameter in inspect.signature(part).parameters.items():
            default, several = parameter.default, isinstance(parameter.default, tuple)
            kind, count = type(default[0] if several else default), "+" if several else None
            command.add_argument(f"--{option}", type=kind, nargs=count, default=default, help=f"default: {default}")
    options = vars(parser.parse_args(argv))
    named = options.pop("part", None)
    return [(named, options)] if named else [(part, {}) for part in parts]


def main(doc: str | None, parts: Sequence[Part]) -> None:
    """Runs the part that the command line names, or all."""
    chosen = parse(doc, parts)
    with quiet.quiet():
        for part, options in chosen:
            print(_title(part), flush=True)
            part(**options)


def _title(part: Part) -> str:
    return (part.__doc__ or part.__name__).splitlines()[0]
