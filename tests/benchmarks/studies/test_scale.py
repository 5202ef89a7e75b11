"""The simulated cluster against what can be computed by hand."""

import dataclasses

import pytest

from tf_ensembles.benchmarks.studies import scale

SMALL = scale.Cluster(members=20, nodes=10, rate=0.0, driver_seconds=0.0)


def test_without_preemptions_members_go_in_waves():
    found = scale.simulate(SMALL)
    assert (found.finished, found.failed, found.preemptions, found.lost_hours) == (20, 0, 0, 0.0)
    assert found.finished_hours == pytest.approx(2 * (2.0 + 30 / 3600))
    # Checkpoints of every 20 s of two hours, and two operations at the end of each.
    assert found.store_operations == 20 * (360 + 2)


def test_the_driver_gives_out_one_run_after_the_other():
    found = scale.simulate(dataclasses.replace(SMALL, members=10, driver_seconds=36.0))
    # The last of ten is given out after ten messages.
    assert found.finished_hours == pytest.approx(10 * 0.01 + 2.0 + 30 / 3600)


@pytest.mark.parametrize("counts_progress", [True, False])
def test_all_members_are_finished_however_often_nodes_are_taken_away(counts_progress):
    found = scale.simulate(dataclasses.replace(SMALL, rate=2.0), counts_progress)
    assert found.finished + found.failed == 20
    assert found.preemptions > 20
    assert (found.failed == 0) == counts_progress  # Three deaths would be the end of a member.
    # What a preemption loses: up to a checkpoint's interval, and the start of a worker.
    assert 0.0 < found.lost_hours <= found.preemptions * (20 + 30) / 3600
