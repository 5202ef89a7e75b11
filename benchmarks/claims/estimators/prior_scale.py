"""The estimator of figure 7's claims: how much joint predictions depend on the scale of prior functions."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from tf_ensembles.benchmarks import stats
from tf_ensembles.benchmarks.claims.base import Effect, Estimator, Region, Row
from tf_ensembles.benchmarks.claims.estimators.agents import Pair, table_of
from tf_ensembles.benchmarks.figures.tables import Tables
from tf_ensembles.benchmarks.stats import NoDataError

FREQUENCIES = "base-rate"  # the agent that knows how frequent labels are, and nothing else


@dataclasses.dataclass(frozen=True)
class PriorScale(Estimator):
    """Figure 7: ensemble-p's normalized joint KL at scales of its prior, in units of 1 / sqrt(rho), by weight decay."""

    figure = "F7"

    kind: Literal["depends", "flat", "zero is uniform", "zero is frequencies"]
    region: Region
    l2: float = 1.0
    input_dim: int = 100  # the paper's, and below
    temperature: float = 0.01
    right: float = 3.0  # the public code's default, not chosen from these runs
    near: tuple[float, ...] = (1.0, 10.0)  # a third of it and three times it, about

    def __call__(self, tables: Tables) -> list[Effect]:
        """Returns the effects of the kind."""
        table = table_of(tables, self.figure)
        table = table[(table.input_dim == self.input_dim) & (table.temperature == self.temperature)]
        if self.kind.startswith("zero"):
            table = table[table.data_ratio == table.data_ratio.min()]
        constant = table[table.agent == FREQUENCIES]
        table = table[(table.agent != FREQUENCIES) & (table.l2 == self.l2)]
        if table.empty:
            raise NoDataError(f"no rows of {self._where} with weight decay {self.l2:g}")
        scales = stats.by_seed(table, "kl_joint", columns="prior_scale")
        if not self._scales <= set(scales) or not len(scales[0.0]):
            raise NoDataError("no seed has all prior scales")
        if self.kind == "zero is uniform":
            count = round(float((table.input_dim * table.data_ratio).iloc[0]))
            label = f"joint KL without prior against the uniform agent, T = {count}"
            return [Effect(label, stats.mean_interval(scales[0.0] - 1.0), self.region, of_scores=True)]
        if self.kind == "zero is frequencies":
            if constant.empty:
                raise NoDataError("no rows of label frequencies")
            known = stats.by_seed(constant, "kl_joint")[FREQUENCIES]
            shared = scales[0.0].index.intersection(known.index)
            label = "joint KL without prior against the frequencies of the labels"
            one, other = (np.asarray(values[shared], np.float64) for values in (scales[0.0], known))
            return [Pair("none", FREQUENCIES, self.region).effect(label, one, other)]
        if self.kind == "depends":
            label = f"joint KL: scale {self.right:g}/√ρ against no prior{self._at}"
            one, other = (np.asarray(scales[scale], np.float64) for scale in (self.right, 0.0))
            return [Pair("right", "none", self.region).effect(label, one, other)]
        near = [scale for scale in self.near if scale in set(scales)]
        if not near:
            raise NoDataError("no scale near the right one was run")
        gain = scales[0.0] - scales[self.right]
        return [
            Effect(
                f"share of the prior's gain lost at {scale:g}/√ρ instead of {self.right:g}/√ρ{self._at}",
                stats.relative_difference(scales[scale] - scales[self.right], gain).plus(1.0),
                self.region,
                "share",
            )
            for scale in near
        ]

    def needs(self) -> list[Row]:
        """Returns the scales that are compared, in the setting and with the weight decay."""
        setting = {"input_dim": self.input_dim, "temperature": self.temperature}
        needed: list[Row] = [{**setting, "l2": self.l2, "prior_scale": scale} for scale in self._scales]
        return needed + [{**setting, "agent": FREQUENCIES}] * (self.kind == "zero is frequencies")

    @property
    def _scales(self) -> set[float]:
        return {0.0} if self.kind.startswith("zero") else {0.0, self.right}

    @property
    def _where(self) -> str:
        return f"d = {self.input_dim}, ρ = {self.temperature:g}"

    @property
    def _at(self) -> str:
        own = (self.input_dim, self.temperature) == (100, 0.01)
        return "" if own else f", {self._where}"
