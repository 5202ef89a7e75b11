"""Losses of members that predict a distribution of numbers: `tfe.losses`.

    model.compile("adam", tfe.losses.GaussianNLL())      # members return [batch, 2 * targets]: means, then raw scales

Any Keras model can train with them, alone or in an ensemble. Values are in nats per example, summed over targets.
An ensemble reads from the loss's type what its members' columns mean.

Shapes: targets `[batch]` or `[batch, targets]`, outputs `[batch, outputs]`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_ensembles import checks
from tf_ensembles.regression import components, heads

_register = keras.saving.register_keras_serializable(package="tf_ensembles")


class HeadLoss(keras.losses.Loss):
    """A loss that knows what columns mean; each example's value depends on that example alone."""

    head: Any  # one of `heads`

    def _targets(self, y_true: Any, y_pred: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns targets `[batch, targets]` and outputs, or raises where columns do not fit."""
        y_pred = tf.convert_to_tensor(y_pred)
        y_true = tf.cast(tf.convert_to_tensor(y_true), y_pred.dtype)
        targets = self.head.num_targets(y_pred.shape[-1])
        if len(y_true.shape) == 1:
            y_true = y_true[:, None]
        if y_true.shape[-1] != targets:
            raise ValueError(
                f"Expected targets [batch, {targets}], since members return {y_pred.shape[-1]} columns "
                f"({self.head.columns}). Received: {y_true.shape}"
            )
        return y_true, y_pred


class _Likelihood(HeadLoss):
    """The negative log-likelihood."""

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """Returns nats, `[batch]`."""
        y_true, y_pred = self._targets(y_true, y_pred)
        return -tf.reduce_sum(components.log_density(self.head.components(y_pred), y_true), axis=-1)


@_register
class GaussianNLL(_Likelihood):
    """The negative log-likelihood of a normal distribution; outputs are means, then raw scales, `[batch, 2 * targets]`.

    The standard deviation is `min_std + softplus(raw scale)`.

    Args:
        beta: weighs each value by its own variance to this power, without a gradient: with 0.5, examples that are
            taken to be noisy keep their pull on the mean (Seitzer et al., 2022). 0 is the likelihood itself.
        min_std: the least standard deviation, in units of the target.
        name: the loss's.
        **kwargs: `reduction` and `dtype`, as in Keras.
    """

    def __init__(self, beta: float = 0.0, min_std: float = 1e-3, name: str = "gaussian_nll", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.beta = checks.number("beta", beta, "[0, 1]")
        self.head = heads.Gaussian(heads.check_min_std(min_std))

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """Returns nats, `[batch]`; weighted where beta says so."""
        if not self.beta:
            return super().call(y_true, y_pred)
        y_true, y_pred = self._targets(y_true, y_pred)
        parts = self.head.components(y_pred)
        weights = tf.stop_gradient(tf.squeeze(parts.scale, axis=-2) ** (2.0 * self.beta))
        return -tf.reduce_sum(weights * components.log_density(parts, y_true), axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "beta": self.beta, "min_std": self.head.min_std}


@_register
class StudentTNLL(_Likelihood):
    """The negative log-likelihood of Student's t, for targets with outliers; outputs as for `GaussianNLL`.

    Args:
        df: degrees of freedom, more than 2, so that there is a variance.
        min_std: the least scale, in units of the target.
        name: the loss's.
        **kwargs: `reduction` and `dtype`, as in Keras.
    """

    def __init__(self, df: float = 4.0, min_std: float = 1e-3, name: str = "student_t_nll", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        df = checks.number("df", df, "(2, inf)")
        self.head = heads.StudentT(heads.check_min_std(min_std), df)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "df": self.head.df, "min_std": self.head.min_std}


@_register
class MixtureNLL(_Likelihood):
    """The negative log-likelihood of a mixture of normal parts per target, for noise with several modes.

    Outputs are `[batch, 3 * parts * targets]`: all means, part by part, then all raw scales, then all logits.

    Args:
        num_parts: normal distributions per member and target.
        min_std: the least standard deviation of a part, in units of the target.
        name: the loss's.
        **kwargs: `reduction` and `dtype`, as in Keras.
    """

    def __init__(self, num_parts: int = 2, min_std: float = 1e-3, name: str = "mixture_nll", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.head = heads.Mixture(checks.integer("num_parts", num_parts, 1), heads.check_min_std(min_std))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "num_parts": self.head.num_parts, "min_std": self.head.min_std}


@_register
class Pinball(HeadLoss):
    """The pinball loss, whose minimum are quantiles; outputs are `[batch, levels * targets]`, level by level.

    A value is the mean over levels, summed over targets. Predictions are sorted, so that quantiles never cross.

    Args:
        levels: probabilities in (0, 1), in ascending order.
        name: the loss's.
        **kwargs: `reduction` and `dtype`, as in Keras.
    """

    def __init__(self, levels: Sequence[float] = (0.05, 0.5, 0.95), name: str = "pinball", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        checked = tuple(heads.check_level(level, "every level") for level in checks.sequence("levels", levels))
        if any(a >= b for a, b in itertools.pairwise(checked)):
            raise ValueError(f"Expected levels in ascending order. Received: {checks.shown(levels)}")
        self.head = heads.Quantiles(checked)

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        """Returns the mean over levels, `[batch]`."""
        y_true, y_pred = self._targets(y_true, y_pred)
        levels = self.head.levels
        raw = tf.reshape(y_pred, [-1, len(levels), y_true.shape[-1]])
        above = y_true[:, None] - raw
        level = tf.constant(levels, raw.dtype)[:, None]
        values = tf.maximum(level * above, (level - 1.0) * above)
        return tf.reduce_sum(tf.reduce_mean(values, axis=1), axis=-1)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "levels": list(self.head.levels)}


def head_of(loss: Any) -> heads.Head | None:
    """Returns what a loss takes columns for; None for any that is not of this module."""
    return loss.head if isinstance(loss, HeadLoss) else None


def is_known(loss: Any) -> bool:
    """Whether it is a loss of this module itself; a subclass of yours may look across the batch."""
    return type(loss) in (GaussianNLL, StudentTNLL, MixtureNLL, Pinball)
