"""The words that all sub-commands share: the same option for the same thing, former spellings, examples, answers.

--results   the folder of results that experiments write, and that `report` and `status` read
--seeds     seeds, where there may be several; --seed where there is one. Likewise --agents and --agent
--members   how many members, or several such numbers
--preset    how large: quick, standard or paper
--debug     tracebacks, and TensorFlow's own messages
--json      the answer as one JSON document on stdout; what is told meanwhile goes to stderr
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tf_ensembles import files
from trainers import stores

if TYPE_CHECKING:
    from benchmarks.claims import judge

PRESETS = ("quick", "standard", "paper")
_EXAMPLES = "examples:\n"
SUGGESTIONS = "suggestions"  # the name under which an option keeps them


class Formatter(argparse.HelpFormatter):
    """Wraps descriptions, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not text.startswith(_EXAMPLES):
            return super()._fill_text(text, width, indent)
        return "".join(f"{indent}{line}\n" for line in text.splitlines())


def examples(*lines: str) -> str:
    """Returns what stands below the options of a command: how it is called."""
    return _EXAMPLES + "\n".join(f"  tf-ensembles {line}" for line in lines)


def add_command(commands: Any, name: str, summary: str, *lines: str) -> argparse.ArgumentParser:
    """Adds a sub-command of a sub-command, with its examples."""
    description = f"{summary[:1].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=examples(*lines)
    )
    return parser


def local_path(text: str) -> pathlib.Path:
    """Returns a path of this machine, for `type=`."""
    try:
        return files.local_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def store_root(text: str) -> pathlib.Path | str:
    """Returns a folder of this machine, or an address of an object store, for `type=`."""
    try:
        return stores.check_root(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_results(
    parser: argparse.ArgumentParser,
    default: str | pathlib.Path | None,
    about: str,
    kind: Callable[[str], Any] = local_path,
) -> None:
    """Adds `--results`, and its former spelling `--output`; `kind` is `store_root` where it may be an address."""
    path = None if default is None else pathlib.Path(default)
    shown = "" if default is None else f" (default {default})"
    parser.add_argument("--results", type=kind, default=path, metavar="FOLDER", help=f"{about}{shown}")
    formerly(parser, "--output", "--results")


def add_folder(
    parser: argparse.ArgumentParser, default: pathlib.Path, about: str, kind: Callable[[str], Any] = local_path
) -> None:
    """Adds a folder of results that is read: as `--results`, or without the word; `kind` as of `add_results`."""
    parser.add_argument("folder", type=kind, nargs="?", metavar="FOLDER", help="short for --results FOLDER")
    parser.add_argument("--results", type=kind, metavar="FOLDER", help=f"{about} (default {default})")


def chosen_folder(args: argparse.Namespace, default: pathlib.Path) -> Any:
    """Returns the folder that `add_folder` read: a path, or an address where it takes one."""
    if args.folder is not None and args.results is not None and args.folder != args.results:
        raise ValueError(f"Expected one results folder. Received: {args.folder} and --results {args.results}")
    return stores.check_root(args.results or args.folder or default)


def suggest(action: argparse.Action, words: Callable[[], Sequence[str]]) -> None:
    """Lets shells complete values of an option that takes others, too."""
    setattr(action, SUGGESTIONS, words)


def add_preset(parser: argparse.ArgumentParser, default: str, about: str = "how large", *more: str) -> None:
    """Adds `--preset`; `more` are names that some experiments have beside the three."""
    choices = (*PRESETS, *more)
    parser.add_argument("--preset", choices=choices, default=default, help=f"{about} (default {default})")


def formerly(parser: argparse.ArgumentParser, former: str, option: str) -> None:
    """Takes a former spelling of an option for one more release: it is not shown, and says what to write instead."""
    actions = {name: action for action in parser._actions for name in action.option_strings}
    now = actions[option]
    parser.add_argument(
        former,
        dest=now.dest,
        type=now.type or str,
        nargs=now.nargs,
        choices=now.choices,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
        action=_Former,
        const=option,
    )


class _Former(argparse.Action):
    """Stores as another option does, and says so."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        """Stores the values under the name of the option that it was renamed to."""
        note(parser, f"{option} is {self.const} now")
        setattr(namespace, self.dest, values)


def note(parser: argparse.ArgumentParser, text: str) -> None:
    """Tells of something deprecated, on one line."""
    print(f"{parser.prog}: {text}; the former spelling works for one more release", file=sys.stderr)


# Answers.


def wants_json(args: argparse.Namespace) -> bool:
    """Whether the answer is to be JSON."""
    return bool(getattr(args, "json", False))


def answer(args: argparse.Namespace, value: Any, text: str | None = None) -> None:
    """Prints a command's answer: a text for people, if there is one, or with `--json` one JSON document."""
    if wants_json(args):
        stdout = getattr(args, "stdout", None) or sys.stdout  # The real one, while others print to stderr.
        print(json.dumps(plain(value), indent=1, allow_nan=False), file=stdout)
    elif text is not None:
        print(text)


def plain(value: Any) -> Any:
    """Returns what JSON can hold: numbers that are not finite become null, paths and other things text."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [plain(one) for one in value]
    return plain(value.item()) if hasattr(value, "item") else str(value)


def verdicts(results: Sequence[judge.Result]) -> list[dict[str, Any]]:
    """Returns results of claims as an answer, of each the deciding effect first."""
    from benchmarks.claims import judge

    return [
        {
            "claim": one.claim.id,
            "text": one.claim.text,
            "verdict": one.verdict,
            "as_one_family": "identity" if one.claim.identity else one.adjusted,
            "reason": one.reason,
            "effects": [
                {"label": effect.label, "unit": effect.unit, **effect.interval.numbers()}
                for effect in judge.deciding_first(one)
            ],
        }
        for one in results
    ]
