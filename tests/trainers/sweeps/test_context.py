"""Contexts: what a function must know of a machine travels with the run, and is part of nothing that is stored."""

from __future__ import annotations

import pytest

from tests.needs import needs
from tests.trainers.sweeps import test_sweep
from tf_ensembles.trainers.sweeps import runs as sweep_runs
from tf_ensembles.trainers.sweeps import store as sweep_store
from tf_ensembles.trainers.sweeps import sweep


def scaled(count, context, batch=""):
    name = "scaled_batch" if batch else "scaled"
    return [
        sweep.make_run(f"{seed}", f"{test_sweep.FUNCTIONS}:{name}", {"x": float(seed)}, context=context, batch=batch)
        for seed in range(count)
    ]


@needs("pandas")
@pytest.mark.parametrize("batch", ["", "one"])
def test_functions_get_it_and_nothing_keeps_it(batch, tmp_path):
    runs = scaled(3, {"factor": 2.0, "place": "somewhere"}, batch)
    assert test_sweep.execute(tmp_path, runs, num_workers=1).completed == 3
    assert sweep.read(tmp_path).scaled.tolist() == [0.0, 2.0, 4.0]
    assert all(b"somewhere" not in path.read_bytes() for path in tmp_path.iterdir())
    # Elsewhere tomorrow, it is the same run.
    moved = scaled(3, {"factor": 2.0, "place": "elsewhere"}, batch)
    assert [run.hash for run in moved] == [run.hash for run in runs]
    assert test_sweep.execute(tmp_path, moved).completed == 0
    assert sweep_store.read_plan(tmp_path)[0].context_json == "{}"


def test_mistakes_say_so(tmp_path):
    assert test_sweep.execute(tmp_path, scaled(1, None), num_workers=1).failed == 1
    assert "missing 2 required keyword-only arguments" in sweep_store.read_failures(tmp_path)[0]["error"]
    with pytest.raises(ValueError, match="JSON values"):
        scaled(1, {"factor": object()})
    with pytest.raises(ValueError, match="one kind, group and context per batch"):
        sweep_runs.check_unique([scaled(1, {"factor": 1.0}, "b")[0], scaled(2, {"factor": 2.0}, "b")[1]])
