"""The words that all sub-commands share: the same option for the same thing, examples, answers.

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
from tf_ensembles.trainers import stores

if TYPE_CHECKING:
    from tf_ensembles.benchmarks.claims import judge

PRESETS = ("quick", "standard", "paper")
_EXAMPLES = "examples:\n"


class Formatter(argparse.HelpFormatter):
    """Wraps descriptions, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if not text.startswith(_EXAMPLES):
            return super()._fill_text(text, width, indent)
        return "".join(f"{indent}{line}\n" for line in text.splitlines())


def examples(*lines: str) -> str:
    """Returns what stands below the options of a command: how it is called."""
    return _EXAMPLES + "\n".join(f"  tf-ensembles {line}" for line in lines)


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes; it may stand before and after a sub-command."""
    for name, about in (
        ("--debug", "show tracebacks and TensorFlow's own messages"),
        ("--json", "answer with one JSON document on stdout"),
    ):
        # Without a default: a sub-command's would replace what was given before it.
        parser.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=about)


def add_command(commands: Any, name: str, summary: str, *lines: str) -> argparse.ArgumentParser:
    """Adds a sub-command of a sub-command, with its examples."""
    description = f"{summary[:1].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=description, epilog=examples(*lines)
    )
    add_shared(parser)
    return parser


def _argument_type(check: Callable[[str], Any]) -> Callable[[str], Any]:
    """Returns a function for `type=` whose errors are shown as they are."""

    def convert(text: str) -> Any:
        """Returns what an argument stands for."""
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


local_path = _argument_type(files.local_path)  # a path of this machine
store_root = _argument_type(stores.check_root)  # a folder of this machine, or an address of an object store


def add_results(
    parser: argparse.ArgumentParser,
    default: str | pathlib.Path | None,
    about: str,
    kind: Callable[[str], Any] = local_path,
) -> None:
    """Adds `--results`; `kind` is `store_root` where it may be an address."""
    path = None if default is None else pathlib.Path(default)
    shown = "" if default is None else f" (default {default})"
    parser.add_argument("--results", type=kind, default=path, metavar="FOLDER", help=f"{about}{shown}")


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
    return args.results or args.folder or default


def suggest(action: argparse.Action, words: Callable[[], Sequence[str]]) -> None:
    """Lets shells complete values of an option that takes others, too."""
    action.suggestions = words  # type: ignore[attr-defined]


def add_preset(parser: argparse.ArgumentParser, default: str, about: str = "how large", *more: str) -> None:
    """Adds `--preset`; `more` are names that some experiments have beside the three."""
    choices = (*PRESETS, *more)
    parser.add_argument("--preset", choices=choices, default=default, help=f"{about} (default {default})")


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
    from tf_ensembles.benchmarks.claims import judge

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
