"""The `tf-ensembles` command: lets the sub-command's module read its arguments, and runs it.

A command module defines `add_arguments(parser)` and `run(args)` and imports TensorFlow inside `run`, never at its top:
`--help` must answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from tf_ensembles import extras
from tf_ensembles.benchmarks.commands import options, quiet
from tf_ensembles.trainers import onednn, preemption
from tf_ensembles.version import __version__

# What each sub-command is for; the module of its name in this folder implements it.
COMMANDS = {
    "linear": "Bayesian linear regression: the exact theory, its figures and tables",
    "testbed": "train agents on Neural Testbed problems and score their joint predictions",
    "bandit": "Thompson sampling on the heteroscedastic linear bandit",
    "cifar10": "train, score and export an ensemble of VGGs on CIFAR10",
    "sweep": "resumable sweeps over agents, problems and seeds, and the figures they make",
    "reproduce": "the paper's experiments, the verdicts on its claims, and a report",
    "report": "the report of a results folder, or of two side by side",
    "assess": "a saved model on test data, as one page with scores, intervals and pictures",
    "export": "write a saved .keras ensemble as a TensorFlow SavedModel",
    "info": "versions, devices, cores and which optional parts are available",
    "completion": "what makes bash, zsh or fish complete this command's words",
}

# What a user can cause: bad values, missing extras, missing or unwritable files.
USER_ERRORS = (ValueError, ImportError, OSError)
_MOST_LETTERS = 1000  # of an error


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors take one line, and whose help ends with examples as they are."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **{"formatter_class": options.Formatter} | settings)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}. Try: {self.prog} --help\n")


def make_parser(names: Iterable[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """Returns the parser of the command, which lists all sub-commands and knows the arguments of those of `names`."""
    parser = _Parser(
        prog="tf-ensembles", description="Ensembles of Keras models with random prior functions and bootstrapping."
    )
    parser.add_argument("--version", action="version", version=f"tf-ensembles {__version__}")
    parser.set_defaults(debug=False, json=False)
    options.add_shared(parser)
    commands = parser.add_subparsers(
        dest="command",
        metavar="COMMAND",
        title="commands",
        description="'tf-ensembles COMMAND --help' tells more about each.",
    )
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in names:
            module = importlib.import_module(f"tf_ensembles.benchmarks.commands.{name}")
            command.description = module.__doc__
            options.add_shared(command)
            module.add_arguments(command)
    return parser


def _one_line(error: BaseException | str) -> str:
    """Returns what an error says, on one line that fits a screen or two, and without what a terminal would obey."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 4]} ..."


def main(argv: list[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    name = next((word for word in words if not word.startswith("-")), None)
    parser = make_parser(() if name is None else (name,))  # The other commands' modules take time to import.
    args = parser.parse_args(words)
    if args.command is None:
        parser.print_help()
        return 0
    onednn.prefer()
    module = importlib.import_module(f"tf_ensembles.benchmarks.commands.{args.command}")
    args.stdout = sys.stdout  # Where an answer goes; what is told meanwhile is no part of a JSON document.
    with contextlib.redirect_stdout(sys.stderr if args.json else sys.stdout):
        return _run(module, args, args.command)


def _run(module: Any, args: argparse.Namespace, name: str) -> int:
    """Runs a command; what goes wrong takes one line, unless tracebacks are asked for.

    Returns:
        The exit code: 2 where something went wrong, 130 after Ctrl-C, 143 after SIGTERM, or the command's own.
    """
    if args.debug:
        return int(module.run(args) or 0)
    with quiet.quiet(), preemption.raising():
        try:
            code = int(module.run(args) or 0)
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # Whoever reads, `head` for example, has seen enough.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end.
            return 128 + signal.SIGPIPE
        except USER_ERRORS as error:
            print(f"tf-ensembles {name}: error: {_one_line(extras.explain(error) or error)}", file=sys.stderr)
            return 2
        except Exception as error:  # A damaged file may be the cause of any.
            kind = type(error).__name__
            text = f"unexpected {kind}: {_one_line(error)}. A file may be damaged; --debug shows where it happened"
            print(f"tf-ensembles {name}: error: {text}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            print(f"tf-ensembles {name}: stopped", file=sys.stderr)
            return 128 + signal.SIGINT
        except preemption.Preempted as notice:
            kept = f"; {notice}; the same command continues" if str(notice) else ""
            print(f"tf-ensembles {name}: stopped by SIGTERM{kept}", file=sys.stderr)
            return 128 + signal.SIGTERM


if __name__ == "__main__":
    sys.exit(main())
