"""A model whose predictions are given: what decisions are made from, without a network."""

import numpy as np

from tf_ensembles.ensemble.serving import Served
from tf_ensembles.metrics import kinds
from tf_ensembles.metrics.kinds import Kind


class Fixed(Served):
    """Predicts its inputs, `[batch, members, outputs]`."""

    def __init__(self, num_members, kind=Kind.LOGITS, head=None, diverged=None):
        super().__init__()
        self._answers = {"kind": kind, "head": head, "num_members": num_members, "seed": 0, "_member_loss": None}
        self._answers["diverged"] = np.zeros(num_members, bool) if diverged is None else np.asarray(diverged)

    kind = property(lambda self: self._answers["kind"])
    head = property(lambda self: self._answers["head"])
    num_members = property(lambda self: self._answers["num_members"])
    seed = property(lambda self: self._answers["seed"])
    diverged = property(lambda self: self._answers["diverged"])
    _member_loss = property(lambda self: self._answers["_member_loss"])

    def call(self, inputs, training=False):
        return inputs

    def predict(self, x, *args, **kwargs):
        return kinds.tagged(x, self.kind)
