"""What is timed can be run: no time is asserted here."""

import importlib
import pathlib
import re

import numpy as np

from tf_ensembles.benchmarks.speed import harness

ROOT = pathlib.Path(__file__).parents[3]
COMMAND = re.compile(r"python -m benchmarks\.speed\.(\w+)([^`\n#|]*)")


def test_documented_commands_are_understood():
    pages = (page for folder in (".", "docs", "benchmarks/results") for page in (ROOT / folder).rglob("*.md"))
    commands = {command for page in pages for command in COMMAND.findall(page.read_text())}
    assert len(commands) > 20
    for module, options in commands:
        parts = importlib.import_module(f"tf_ensembles.benchmarks.speed.{module}").PARTS
        assert harness.parse(None, parts, re.sub(r"[\[\]]", "", options).split())


def test_fastest_call_of_a_turn_counts_per_unit_of_work():
    clock = iter([9.0, 4.0, 2.0, 8.0, 6.0])  # the first compiles
    runs = {"loop": lambda: harness.Seconds(next(clock), 1.0), "other": lambda: None}
    times = harness.in_turns(runs, turns=2, calls=2, work={"loop": 10})
    np.testing.assert_allclose(times["loop"], [[0.2, 0.1], [0.6, 0.1]])
    assert times["other"].shape == (2, 2)
