"""The Neural Testbed: random classification problems whose truth is known, and scores against it."""

from tf_ensembles.testbed.problems import (
    SETTINGS,
    Environment,
    InputLaw,
    LabelFlip,
    Problem,
    Setting,
    evaluate,
    flip_labels,
    joint_kl,
    make_problem,
    problem_from_id,
    setting_from_id,
    uniform_agent,
)

__all__ = [
    "SETTINGS",
    "Environment",
    "InputLaw",
    "LabelFlip",
    "Problem",
    "Setting",
    "evaluate",
    "flip_labels",
    "joint_kl",
    "make_problem",
    "problem_from_id",
    "setting_from_id",
    "uniform_agent",
]
