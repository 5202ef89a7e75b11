"""What the runs behind the figures of Bayesian linear regression share: agents, the common setting, sizes."""

from __future__ import annotations

import dataclasses

SWEEP = "linear"
N, P, WEIGHTED, BP = AGENTS = ("ensemble-n", "ensemble-p", "ensemble-p-weighted", "ensemble-bp")
JOINT = {"dim": 5, "num_data": 50, "condition": 10.0, "heteroscedasticity": 10.0}  # of finite ensembles and predictions

PILOT_SEED = 7_919  # Ensemble-p's prior scale is tuned on problems that are not measured.
STREAM = 10_007  # Seeds of different settings are this far apart.


@dataclasses.dataclass(frozen=True)
class Size:
    """How much to measure."""

    problems: int  # per setting
    dims: tuple[int, ...]
    data: tuple[int, ...]  # T
    conditions: tuple[float, ...]
    heteroscedasticities: tuple[float, ...]
    members: tuple[int, ...]  # M, of finite ensembles; below d + 5 the KL has no variance, so no interval
    taus: tuple[int, ...]  # numbers of joint predictions
    joint_problems: int  # problems for the finite ensembles and the joint predictions
    seed: int = 0


_FULL = Size(
    problems=1000,
    dims=(2, 5, 10, 20),
    data=(1, 3, 10, 30, 100, 300, 1000),
    conditions=(1.0, 10.0, 100.0, 1e4),
    heteroscedasticities=(0.0, 10.0),
    members=(12, 15, 20, 30, 60, 100, 300, 1000, 3000),
    taus=(1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
    joint_problems=200,
)
PRESETS = {
    "quick": Size(
        problems=200,
        dims=(2, 10),
        data=(1, 10, 100),
        conditions=(1.0, 100.0, 1e4),
        heteroscedasticities=(0.0, 10.0),
        members=(12, 30, 100, 1000),
        taus=(1, 10, 100, 1000, 10_000),
        joint_problems=400,
    ),
    "standard": _FULL,
    "paper": _FULL,  # The paper shows no experiment of its own here.
}
