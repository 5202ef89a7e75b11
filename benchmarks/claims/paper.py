"""The claims of the paper that are tested, in its order. A new figure adds its claims to one of the lists here."""

from __future__ import annotations

from tf_ensembles.benchmarks.claims import bandit, cifar10, linear, testbed
from tf_ensembles.benchmarks.claims.base import Claim

CLAIMS: tuple[Claim, ...] = (*linear.CLAIMS, *testbed.CLAIMS, *cifar10.CLAIMS, *bandit.CLAIMS)
