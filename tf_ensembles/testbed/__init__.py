"""The Neural Testbed: random classification problems whose truth is known, and scores against it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_ensembles import lazy

if TYPE_CHECKING:
    from tf_ensembles.testbed.problems import SETTINGS as SETTINGS
    from tf_ensembles.testbed.problems import Environment as Environment
    from tf_ensembles.testbed.problems import InputDistribution as InputDistribution
    from tf_ensembles.testbed.problems import LabelFlip as LabelFlip
    from tf_ensembles.testbed.problems import Problem as Problem
    from tf_ensembles.testbed.problems import Setting as Setting
    from tf_ensembles.testbed.problems import base_rate_agent as base_rate_agent
    from tf_ensembles.testbed.problems import flip_labels as flip_labels
    from tf_ensembles.testbed.problems import make_problem as make_problem
    from tf_ensembles.testbed.problems import problem_from_id as problem_from_id
    from tf_ensembles.testbed.problems import setting_from_id as setting_from_id
    from tf_ensembles.testbed.problems import uniform_agent as uniform_agent
    from tf_ensembles.testbed.scores import evaluate as evaluate
    from tf_ensembles.testbed.scores import joint_kl as joint_kl

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "Environment": "tf_ensembles.testbed.problems",
        "InputDistribution": "tf_ensembles.testbed.problems",
        "LabelFlip": "tf_ensembles.testbed.problems",
        "Problem": "tf_ensembles.testbed.problems",
        "SETTINGS": "tf_ensembles.testbed.problems",
        "Setting": "tf_ensembles.testbed.problems",
        "base_rate_agent": "tf_ensembles.testbed.problems",
        "evaluate": "tf_ensembles.testbed.scores",
        "flip_labels": "tf_ensembles.testbed.problems",
        "joint_kl": "tf_ensembles.testbed.scores",
        "make_problem": "tf_ensembles.testbed.problems",
        "problem_from_id": "tf_ensembles.testbed.problems",
        "setting_from_id": "tf_ensembles.testbed.problems",
        "uniform_agent": "tf_ensembles.testbed.problems",
    },
)
