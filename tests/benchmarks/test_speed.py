"""What is timed can be run: no time is asserted here."""

import tensorflow as tf

from benchmarks.speed import testbed_profile


def test_pieces_of_a_step_give_back_the_state_they_take():
    for name, (step, state, _) in testbed_profile._pieces(3, 2).items():
        after = step(tf.constant(0), *state)
        shapes = [[value.shape for value in tf.nest.flatten(part)] for part in (state, after)]
        assert shapes[0] == shapes[1], name
