"""What the columns of a regression member mean: means, raw scales, quantiles. Softplus and floor are here only.

A member's output `[..., outputs]` is a row of blocks, each with one column per target. The first blocks are locations,
to which a prior is added; the others are never touched by it. All functions take and return tensors of any float dtype.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_ensembles import checks
from tf_ensembles.metrics.kinds import Kind
from tf_ensembles.regression import components
from tf_ensembles.regression.components import Components


def std_of(raw: tf.Tensor, min_std: float) -> tf.Tensor:
    """Returns the standard deviation or scale that a raw column stands for: `min_std + softplus(raw)`."""
    return tf.nn.softplus(raw) + tf.constant(min_std, raw.dtype)


def check_min_std(min_std: Any) -> float:
    """Returns the floor of standard deviations, or raises."""
    return checks.number("min_std", min_std, "(0, inf)")


def check_level(level: Any, name: str = "level") -> float:
    """Returns a probability strictly between 0 and 1, or raises."""
    return checks.number(name, level, "(0, 1)")


@dataclasses.dataclass(frozen=True)
class Head(abc.ABC):
    """How to read member outputs `[..., outputs]`."""

    @property
    @abc.abstractmethod
    def kind(self) -> Kind:
        """What outputs are called."""

    @property
    @abc.abstractmethod
    def blocks(self) -> tuple[int, int]:
        """How many columns each target has, and how many of them, the first, are locations."""

    @property
    @abc.abstractmethod
    def columns(self) -> str:
        """The columns in words, for errors."""

    def num_targets(self, num_outputs: int) -> int:
        """Returns how many targets members with so many columns predict, or raises."""
        every, _ = self.blocks
        if num_outputs % every:
            wanted = "targets" if every == 1 else f"{every} * targets"
            raise ValueError(
                f"Expected members with outputs [batch, {wanted}] of kind {self.kind.value!r}: {self.columns}. "
                f"Received: {num_outputs} column{'s' * (num_outputs != 1)}"
            )
        return num_outputs // every

    def check_prior(self, num_outputs: Any, num_prior: Any) -> None:
        """Raises unless a prior has one column per target, or as many as a member, of which the first count."""
        targets = self.num_targets(num_outputs)
        if num_prior not in (targets, num_outputs):
            raise ValueError(
                f"Expected a prior with one output per target, {targets}: it is added to means only. "
                f"Received: {num_prior}"
            )

    def add_prior(self, outputs: tf.Tensor, prior: tf.Tensor) -> tf.Tensor:
        """Returns outputs `[..., outputs]` with a prior added to every target's locations.

        Args:
            outputs: members' own.
            prior: `[..., targets]`, or `[..., outputs]`, of which the first `targets` columns count.
        """
        every, locations = self.blocks
        if every == 1:
            return outputs + prior
        targets = self.num_targets(outputs.shape[-1])
        part = prior[..., :targets]
        rest = tf.zeros_like(part)
        return outputs + tf.concat([part] * locations + [rest] * (every - locations), axis=-1)

    def over_positions(self, outputs: tf.Tensor) -> tuple[Head, tf.Tensor]:
        """Returns outputs `[batch, members, ..., outputs]` with every position's targets as targets of the example.

        Returns:
            How to read them, and `[batch, members, outputs * positions]`; both as they are where there is one position.
        """
        if len(outputs.shape) == 3:
            return self, outputs
        blocks, shape = self._split(outputs), tf.shape(outputs)
        rank = len(blocks.shape)
        ordered = tf.transpose(blocks, [0, 1, rank - 2, *range(2, rank - 2), rank - 1])
        positions = math.prod(size or 0 for size in outputs.shape[2:-1])
        if not positions:
            raise ValueError(f"Expected outputs with a known number of positions. Received: shape {outputs.shape}")
        flat = tf.reshape(ordered, [shape[0], shape[1], positions * outputs.shape[-1]])
        return self._repeated(positions), flat

    def _repeated(self, times: int) -> Head:
        """Returns how to read so many positions' targets side by side."""
        return self

    def _split(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the blocks, `[..., blocks, targets]`."""
        every, targets = self.blocks[0], self.num_targets(outputs.shape[-1])
        return tf.reshape(outputs, tf.concat([tf.shape(outputs)[:-1], [every, targets]], axis=0))

    @abc.abstractmethod
    def components(self, outputs: tf.Tensor) -> Components:
        """Returns the distribution that each member predicts, parts `[..., parts, targets]`."""

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns what each member predicts, `[..., targets]`."""
        return components.part_means(self.components(outputs))


@dataclasses.dataclass(frozen=True)
class Values(Head):
    """Means only, as `mse` trains them. The noise, the same everywhere, is estimated on data that were held out."""

    noise: tuple[float, ...] | None = None  # standard deviation of each target

    kind = Kind.VALUES
    blocks = (1, 1)
    columns = "means"

    def components(self, outputs: tf.Tensor) -> Components:
        """Returns normal distributions around the members' values."""
        if self.noise is None:
            raise ValueError(
                "Expected the noise of the targets, which members that predict values do not know: give validation "
                "data to fit, call model.estimate_noise(x, y) with data held out, or train with "
                "tfe.losses.GaussianNLL(). Received: no estimate yet"
            )
        loc = self._split(outputs)
        return Components(loc, tf.zeros_like(loc) + tf.constant(self.noise, loc.dtype))

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the values."""
        return outputs

    def _repeated(self, times: int) -> Head:
        """Returns how to read so many positions' targets side by side: each has the noise of its target."""
        return self if self.noise is None else Values(self.noise * times)


@dataclasses.dataclass(frozen=True)
class Gaussian(Head):
    """Means, then raw scales."""

    min_std: float = 1e-3

    kind = Kind.GAUSSIAN
    blocks = (2, 1)
    columns = "means, then raw scales"

    def components(self, outputs: tf.Tensor) -> Components:
        """Returns one normal distribution per member and target."""
        split = self._split(outputs)
        return Components(split[..., :1, :], std_of(split[..., 1:, :], self.min_std))

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the means."""
        return outputs[..., : self.num_targets(outputs.shape[-1])]


@dataclasses.dataclass(frozen=True)
class StudentT(Gaussian):
    """Means, then raw scales, of Student's t with `df` degrees of freedom: noise with outliers."""

    df: float = 4.0

    kind = Kind.STUDENT_T

    def components(self, outputs: tf.Tensor) -> Components:
        """Returns one t distribution per member and target."""
        return super().components(outputs)._replace(df=self.df)


@dataclasses.dataclass(frozen=True)
class Mixture(Head):
    """A mixture of normal distributions per member and target: all means, then all raw scales, then all logits."""

    num_parts: int = 2
    min_std: float = 1e-3

    kind = Kind.GAUSSIAN_MIXTURE

    @property
    def blocks(self) -> tuple[int, int]:
        """Three per part."""
        return 3 * self.num_parts, self.num_parts

    @property
    def columns(self) -> str:
        """The columns in words."""
        return f"the means of {self.num_parts} parts, their raw scales, their logits"

    def components(self, outputs: tf.Tensor) -> Components:
        """Returns the parts of each member and target."""
        loc, raw, logits = tf.split(self._split(outputs), 3, axis=-2)
        return Components(loc, std_of(raw, self.min_std), tf.nn.log_softmax(logits, axis=-2))


@dataclasses.dataclass(frozen=True)
class Quantiles(Head):
    """One column per level and target, all targets of the first level first; sorted, so that none cross."""

    levels: tuple[float, ...] = (0.05, 0.5, 0.95)

    kind = Kind.QUANTILES

    @property
    def blocks(self) -> tuple[int, int]:
        """One per level."""
        return len(self.levels), len(self.levels)

    @property
    def columns(self) -> str:
        """The columns in words."""
        return f"the quantiles at {self.levels}"

    def components(self, outputs: tf.Tensor) -> Components:
        """Raises: a few quantiles are no distribution."""
        raise ValueError(
            "Expected members that predict a distribution, trained with tfe.losses.GaussianNLL() for example. "
            "Received: kind 'quantiles': call model.predict_quantiles(x)"
        )

    def quantiles(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns each member's quantiles in order of the levels, `[..., levels, targets]`, none crossing another."""
        return tf.sort(self._split(outputs), axis=-2)

    def means(self, outputs: tf.Tensor) -> tf.Tensor:
        """Returns the quantile of the level nearest to one half, `[..., targets]`."""
        middle = int(np.argmin(np.abs(np.asarray(self.levels) - 0.5)))
        return self.quantiles(outputs)[..., middle, :]


def of_kind(kind: Kind | None) -> Head | None:
    """Returns the head of outputs of a kind of which nothing more is known; None where outputs are no regression's."""
    if kind in (Kind.GAUSSIAN_MIXTURE, Kind.QUANTILES):
        raise ValueError(
            f"Expected compile with the loss of {kind.value!r}, which knows its columns: tfe.losses.MixtureNLL or "
            "tfe.losses.Pinball. Received: no such loss"
        )
    known: dict[Any, Head] = {Kind.VALUES: Values(), Kind.GAUSSIAN: Gaussian(), Kind.STUDENT_T: StudentT()}
    return known.get(kind)


_CLASSES = {cls.__name__: cls for cls in (Values, Gaussian, StudentT, Mixture, Quantiles)}


def write(head: Head | None) -> dict[str, Any] | None:
    """Returns a head as a dictionary that JSON can hold."""
    return None if head is None else {"name": type(head).__name__, **dataclasses.asdict(head)}


def read(config: dict[str, Any] | None) -> Head | None:
    """Returns the head that `write` described."""
    if config is None:
        return None
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in config.items() if key != "name"}
    return _CLASSES[config["name"]](**given)
