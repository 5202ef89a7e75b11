"""Members that a stack cannot speak for: each is its own Keras model, with its own graph and variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.ensemble.members import layer_state, probe, structure
from tf_ensembles.ensemble.members.base import Members


class SeparateMembers(Members):
    """Runs M models one after the other, each with its own graph and variables: inputs `[batch, ...]` to outputs
    `[members, batch, outputs]`.

    Slower than a stack, and right for all that a stack cannot be: members with other activations, depths or constants,
    and layers whose calls change more than a stack can follow.

    Args:
        models: built models, one per member.
        num_members: M.
        reason: why they are not stacked.
        trainable: False for a prior: nothing in it is ever trained or updated.
    """

    def __init__(
        self, models: Sequence[keras.Model], num_members: int, reason: str, trainable: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(num_members, trainable, **kwargs)
        self.separate, self.models = reason, list(models)
        self.has_own_losses = trainable and probe.own_loss(models) is not None
        self.looped: tuple[str, ...] = ("whole model",)
        self.supports_jit = False
        for model in models if not trainable else ():
            model.trainable = False

    @property
    def templates(self) -> list[keras.Model]:
        """All members' models."""
        return list(self.models)

    def run(self, inputs: Any, training: bool, predicting: bool = False) -> tuple[Any, tf.Tensor]:
        """Returns outputs `[members, batch, ...]` and each member's own regularization losses `[members]`."""
        said, penalties = [], []
        for model in self.models:
            said.append(model(inputs, training=training and self.trainable))
            own = [] if self.has_own_losses else model.losses  # Their `compute_loss` adds them, or does not.
            penalties.append(sum((tf.cast(loss, tf.float32) for loss in own), start=tf.zeros([])))
        return structure.stacked(said), tf.stack(penalties)

    def owned_variables(self) -> list[tuple[keras.Variable, int | None]]:
        """Returns the variables, each with the member whose it is."""
        return [(variable, member) for member, model in enumerate(self.models) for variable in model.variables]

    def member_values(self, member: int) -> list[np.ndarray[Any, Any]]:
        """Returns one member's variables, in the order of its model's `variables`."""
        return [np.asarray(variable) for variable in self.models[member].variables]

    def squared_norm(self) -> tf.Tensor:
        """Returns `||theta_m||^2` over the trainable variables of each member, `[members]`."""
        norms = []
        for model in self.models:
            squares = [tf.reduce_sum(tf.square(tf.cast(v.value, tf.float32))) for v in model.trainable_variables]
            norms.append(tf.add_n(squares) if squares else tf.zeros([]))
        return tf.stack(norms)

    # Arrays that layers have drawn and that are no variables are in no configuration: the file keeps them here.

    def save_own_variables(self, store: Any) -> None:
        """Writes the arrays, beside which each model writes its variables."""
        for member, model in enumerate(self.models):
            for place, constant in enumerate(layer_state.constants(model)):
                store[f"{member}_{place}"] = np.asarray(constant.value)

    def load_own_variables(self, store: Any) -> None:
        """Puts the arrays back into the layers."""
        for member, model in enumerate(self.models):
            found = layer_state.constants(model)
            kept = [name for name in store.keys() if name.startswith(f"{member}_")]  # noqa: SIM118
            if len(kept) != len(found):
                raise ValueError(
                    f"Expected member {member} with {len(kept)} arrays that are no variables, as the file has. "
                    f"Received: {len(found)}. Has the code of its layers changed?"
                )
            for place, constant in enumerate(found):
                constant.put(np.asarray(store[f"{member}_{place}"]))
