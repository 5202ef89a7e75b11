"""A minute of what `python -m tests.soak` does for longer."""

import pytest

from tests import soak

pytestmark = pytest.mark.slow


def test_a_disturbed_sweep_has_every_run_once(tmp_path):
    done = soak.soak_sweep(tmp_path, minutes=1.0, count=600)
    assert done["local sessions"] >= 3


def test_memory_is_flat_and_threads_agree(tmp_path):
    done = soak.soak_model(tmp_path, minutes=1.0)
    assert done["different answers"] == 0
    assert done["MB at the end"] < 1.1 * done["MB after a third"]
    assert done["MB of serving, at the end"] < 1.05 * done["MB of serving, after a third"]
