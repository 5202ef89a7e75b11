"""Which members to keep: a greedy choice by the joint likelihood of held-out data."""

from __future__ import annotations

import numpy as np

from tf_ensembles import checks
from tf_ensembles.base import Array
from tf_ensembles.metrics import likelihood


def greedy(log_likelihood: Array, num: int, tau: int = 10) -> Array:
    """Returns members in the order in which each lowers the joint NLL of those before it the most, `[num]`.

    Args:
        log_likelihood: of each label by each member, `[batch, members]`, examples in random order.
        num: how many to choose.
        tau: labels per joint prediction.
    """
    members = log_likelihood.shape[1]
    if not 1 <= num <= members:
        raise ValueError(f"Expected to choose between 1 and {members} members. Received: {num}")
    checks.integer("tau", tau, 1)
    if len(log_likelihood) < tau:
        raise ValueError(f"Expected at least tau={tau} examples. Received: {len(log_likelihood)}")
    each = np.asarray(likelihood.joint(np.asarray(log_likelihood, np.float64), tau))  # [batches, members]
    total = np.full(len(each), -np.inf)
    chosen: list[int] = []
    for _ in range(num):
        # The sum of likelihoods with each candidate; its mean has the same divisor for all.
        gains = np.logaddexp(total[:, None], each).mean(axis=0)
        gains[chosen] = -np.inf
        chosen.append(int(np.argmax(gains)))
        total = np.logaddexp(total, each[:, chosen[-1]])
    return np.asarray(chosen)
