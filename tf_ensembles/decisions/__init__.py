"""Decisions from uncertainty: calibration, prediction sets, abstaining, out-of-distribution detection, acquisition."""
