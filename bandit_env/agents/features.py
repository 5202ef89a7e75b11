"""What linear models read of an observation: which features an action has, and which actions share a model."""

from __future__ import annotations

import dataclasses
import enum
import warnings
from typing import Any

import tensorflow as tf

from tf_ensembles.bandit_env.agents import observations
from tf_ensembles.linear.inputs import DTYPE, Tensor

MAX_HYBRID = 600  # features; beyond, interactions are left out unless they are asked for


class Form(enum.StrEnum):
    """Which features an action has. Chosen from the observation spec, unless given."""

    SHARED = "shared"  # one model of [global, arm] features
    DISJOINT = "disjoint"  # a model per action, of the global features and a constant
    HYBRID = "hybrid"  # one model of [global, arm, global x arm]: the context may change the choice


@dataclasses.dataclass(frozen=True)
class Design:
    """A form, and the widths of an observation's parts."""

    form: Form
    num_actions: int
    num_global: int
    num_arm: int

    @property
    def width(self) -> int:
        """The number of raw features of an action."""
        return self.num_global + self.num_arm

    @property
    def dim(self) -> int:
        """The number of features of a model."""
        extra = {Form.SHARED: 0, Form.DISJOINT: 1, Form.HYBRID: self.num_global * self.num_arm}
        return self.width + extra[self.form]

    @property
    def num_models(self) -> int:
        """Models of each problem."""
        return self.num_actions if self.form is Form.DISJOINT else 1

    def raw(self, observation: Any) -> Tensor:
        """Returns raw features: `[batch, width]` for disjoint models, `[batch, actions, width]` for others."""
        if self.form is Form.DISJOINT:
            return observations.flat_global(observation)
        return observations.arm_features(observation, self.num_actions)

    def taken(self, observation: Any, action: Tensor, chosen_arm_features: Any) -> Tensor:
        """Returns the raw features of actions that were taken, `[batch, width]`."""
        if self.form is Form.DISJOINT:
            return observations.flat_global(observation)
        return observations.taken_features(observation, action, chosen_arm_features, self.num_actions)

    def expand(self, raw: Tensor) -> Tensor:
        """Returns the models' features `[..., dim]` from raw ones `[..., width]`."""
        raw = tf.cast(raw, DTYPE)
        if self.form is Form.SHARED:
            return raw
        if self.form is Form.DISJOINT:
            return tf.concat([raw, tf.ones_like(raw[..., :1] if self.width else tf.reduce_sum(raw, -1, True))], axis=-1)
        shared, own = raw[..., : self.num_global], raw[..., self.num_global :]
        pairs = shared[..., :, tf.newaxis] * own[..., tf.newaxis, :]
        shape = tf.concat([tf.shape(raw)[:-1], [self.num_global * self.num_arm]], axis=0)
        return tf.concat([raw, tf.reshape(pairs, shape)], axis=-1)

    def values(self, features: Tensor, theta: Tensor) -> Tensor:
        """Returns each action's value `[batch, actions]` for parameters of the models `[batch or 1, models, dim]`."""
        if self.form is Form.DISJOINT:
            return tf.reduce_sum(features[:, tf.newaxis] * theta, axis=-1)
        return tf.linalg.matvec(features, tf.broadcast_to(theta[:, 0], tf.shape(features[:, 0])))

    def describe(self) -> str:
        """Returns a line for a summary."""
        parts = f"{self.num_global} global and {self.num_arm} arm features"
        text = {
            Form.SHARED: f"shared: one model of {parts}; global features cannot change the choice",
            Form.DISJOINT: f"disjoint: {self.num_actions} models, one per action, of {self.num_global} global features "
            "and a constant",
            Form.HYBRID: f"hybrid: one model of {parts}, and their products",
        }[self.form]
        if self.form is Form.SHARED and self.num_global == 0:
            text = f"shared: one model of {self.num_arm} arm features"
        return f"{text} (d = {self.dim})"


def make_design(observation_spec: Any, num_actions: int, form: str = "auto") -> Design:
    """Returns the design for an observation spec.

    "auto" takes "disjoint" for global observations, "shared" where there are arm features alone, and "hybrid" for both,
    up to `MAX_HYBRID` features.
    """
    num_global, num_arm = observations.widths(observation_spec, num_actions)
    names = ["auto", *(one.value for one in Form)]
    if form not in names:
        raise ValueError(f"Expected form to be one of {names}. Received: {form!r}")
    if form == "auto":
        form = Form.DISJOINT if num_arm == 0 else Form.SHARED if num_global == 0 else Form.HYBRID
        if form is Form.HYBRID and Design(form, num_actions, num_global, num_arm).dim > MAX_HYBRID:
            form = Form.SHARED
            warnings.warn(
                f"{num_global} x {num_arm} products of global and arm features are too many: without them, global "
                'features cannot change the choice. Give form="hybrid" to have them all the same.',
                stacklevel=3,
            )
    design = Design(Form(form), num_actions, num_global, num_arm)
    if (design.form is Form.DISJOINT) != (num_arm == 0):
        raise ValueError(
            'Expected form="disjoint" for observations without arm features, and only for them. '
            f"Received: {form!r} for {num_global} global and {num_arm} arm features"
        )
    return design
