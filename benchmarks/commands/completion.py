"""Prints what makes a shell complete the words of this command: sub-commands, options, their values, files.

bash: add `eval "$(tf-ensembles completion bash)"` to ~/.bashrc. zsh: the same in ~/.zshrc, after `compinit`.
fish: `tf-ensembles completion fish > ~/.config/fish/completions/tf-ensembles.fish`.
"""

from __future__ import annotations

import argparse

from tf_ensembles import extras
from tf_ensembles.benchmarks.commands import options

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the shell."""
    parser.epilog = options.examples(*(f"completion {shell}" for shell in SHELLS))
    parser.add_argument("shell", choices=SHELLS, help="for which shell")


def run(args: argparse.Namespace) -> None:
    """Prints the script."""
    extras.require("shtab", "Completion")
    import shtab

    from tf_ensembles.benchmarks.commands import main

    parser = main.make_parser()
    _describe_values(parser)
    text = shtab.complete(parser, args.shell)
    options.answer(args, {"shell": args.shell, "script": text}, text.rstrip())


def _describe_values(parser: argparse.ArgumentParser) -> None:
    """Tells shtab which options take files or folders, and the words that others suggest; the parser parses no more."""
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _describe_values(below)
        elif hasattr(action, "suggestions"):
            action.choices = action.suggestions()
        elif action.metavar == "FOLDER" or action.nargs == 2:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif action.type in (options.local_path, options.store_root) or str(action.metavar).startswith("FILE"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
