"""A sweep in two stages for the tests of the command: squares, then the best of them again."""

from __future__ import annotations

import json

from trainers.sweeps import sweep

SWEEP = "made_up"
FUNCTION = "tests.sweep_functions:square"


def stages(preset):
    def first(rows):
        config = {"seconds": 0.05}
        return [sweep.make_run(f"made_up/seed{s}", FUNCTION, {"x": float(s), "seed": s, **config}) for s in range(6)]

    def second(rows):
        if not rows:
            raise ValueError("nothing to choose from")
        best = max(row["square"] for row in rows if row["id"] != "made_up/best")
        return [sweep.make_run("made_up/best", FUNCTION, {"x": best, "seed": 0})]

    return [first, second]


def report(preset, rows, folder):
    best = max(row["x"] for row in rows if row["id"] != "made_up/best")
    folder.mkdir(exist_ok=True)
    (folder / "best.json").write_text(json.dumps(best))
    return [f"best is {best:g}"]
