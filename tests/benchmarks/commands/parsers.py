"""The parsers of all sub-commands, for tests."""

from __future__ import annotations

import argparse

from tf_ensembles.benchmarks.commands import main as cli


def leaves(parser: argparse.ArgumentParser | None = None) -> dict[str, argparse.ArgumentParser]:
    """All parsers below the top, by what is typed to reach them."""
    parser = parser or cli.make_parser()
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found[name] = below
                found |= {f"{name} {rest}": one for rest, one in leaves(below).items()}
    return found
