"""The `tf-ensembles` command: finds the sub-command's module, lets it read its arguments, runs it.

A command module defines `add_arguments(parser)` and `run(args)` and imports TensorFlow inside `run`, never at its top:
`--help` must answer at once.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.metadata
import sys
from typing import NoReturn

from benchmarks.commands import quiet
from tf_ensembles import extras
from trainers import onednn

# What each sub-command is for; the module of its name in this folder implements it.
COMMANDS = {
    "linear": "Bayesian linear regression: the exact theory, its figures and tables",
    "testbed": "train agents on Neural Testbed problems and score their joint predictions",
    "bandit": "Thompson sampling on the heteroscedastic linear bandit",
    "cifar10": "train, score and export an ensemble of VGGs on CIFAR10",
    "sweep": "resumable sweeps over agents, problems and seeds, and the figures they make",
    "reproduce": "the paper's experiments, the verdicts on its claims, and a report",
    "report": "the report of a results folder, or of two side by side",
    "export": "write a saved .keras ensemble as a TensorFlow SavedModel",
    "info": "versions, devices, cores and which optional parts are available",
}

# What a user can cause: bad values, missing extras, missing or unwritable files.
USER_ERRORS = (ValueError, ImportError, OSError)
_MOST_LETTERS = 1000  # of an error


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}. Try: {self.prog} --help\n")


def _top_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = _Parser(
        prog="tf-ensembles",
        description="Ensembles of Keras models with random prior functions and bootstrapping.",
        epilog=f"commands:\n{listing}\n\n'tf-ensembles COMMAND --help' tells more about each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and TensorFlow's own messages")
    parser.add_argument("command", nargs="?", metavar="COMMAND")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...")
    return parser


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"Did you mean '{close[0]}'?" if close else f"Expected one of: {', '.join(COMMANDS)}."
    return f"tf-ensembles: error: unknown command '{name}'. {hint}"


def _one_line(error: BaseException | str) -> str:
    """Returns what an error says, on one line that fits a screen or two, and without what a terminal would obey."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 4]} ..."


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = _top_parser()
    top = parser.parse_args(argv)
    if top.version:
        print(f"tf-ensembles {importlib.metadata.version('tf-ensembles')}")
        return 0
    if top.command is None:
        parser.print_help()
        return 0
    if top.command not in COMMANDS:
        print(_unknown(top.command), file=sys.stderr)
        return 2
    onednn.prefer()
    module = importlib.import_module(f"benchmarks.commands.{top.command}")
    subparser = _Parser(prog=f"tf-ensembles {top.command}", description=module.__doc__)
    subparser.add_argument("--debug", action="store_true", help="show tracebacks and TensorFlow's own messages")
    module.add_arguments(subparser)
    args = subparser.parse_args(top.arguments)
    if top.debug or args.debug:
        return int(module.run(args) or 0)
    with quiet.quiet():
        try:
            return int(module.run(args) or 0)
        except USER_ERRORS as error:
            print(f"tf-ensembles {top.command}: error: {_one_line(extras.explain(error) or error)}", file=sys.stderr)
            return 2
        except Exception as error:  # A damaged file may be the cause of any.
            name = type(error).__name__
            text = f"unexpected {name}: {_one_line(error)}. A file may be damaged; --debug shows where it happened"
            print(f"tf-ensembles {top.command}: error: {text}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"tf-ensembles {top.command}: stopped", file=sys.stderr)
            return 130


if __name__ == "__main__":
    sys.exit(main())
