"""What all ways to run M members share. Shapes are members first, `[members, batch, ...]`."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.ensemble.members.mapping import Lookup


class Members(keras.layers.Layer):
    """What all ways to run M members share.

    Args:
        num_members: M.
        trainable: False for a prior: nothing in it is ever trained or updated.
    """

    looped: tuple[str, ...]  # the parts that run once per member
    supports_jit: bool  # whether XLA makes it faster
    separate = ""  # why each member runs with its own graph
    has_own_losses = False  # whether members' own `compute_loss` says what they minimize

    def __init__(self, num_members: int, trainable: bool, **kwargs: Any) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.num_members, self._is_prior = num_members, not trainable
        self._compiled: Hidden | None = None

    def compiled(self) -> Any:
        """Returns `prior_outputs` of these as a compiled function: always the same one, which is traced once."""
        if self._compiled is None:

            def compute(rows: Any) -> Any:
                return prior_outputs(self, rows)

            self._compiled = Hidden(tf.function(compute, jit_compile=self.supports_jit, reduce_retracing=True))
        return self._compiled.value

    @property
    def trainable(self) -> bool:
        """Whether members are trained; a prior never is."""
        return keras.layers.Layer.trainable.fget(self)

    @trainable.setter
    def trainable(self, value: bool) -> None:
        keras.layers.Layer.trainable.fset(self, value and not self._is_prior)
        for model in self.templates:  # As Keras does with all layers within.
            model.trainable = self.trainable

    @property
    def templates(self) -> list[keras.Model]:
        """The models whose graphs are run: the first member's, which stands for all, or all."""
        raise AttributeError

    @property
    def template(self) -> keras.Model:
        """The first member's model."""
        return self.templates[0]

    def tables(self) -> dict[int, list[Lookup]]:
        """Returns the rows of embeddings that the last run took, by the `id` of their stacked variables."""
        return {}

    def ways(self, built_on: Any) -> dict[str, str]:
        """Returns how each looped part runs.

        Args:
            built_on: what models that do not know their inputs were built on.
        """
        return {}

    def forget_traces(self) -> None:
        """Traces again what is traced, because layers have changed in what is no variable."""

    def flags(self) -> tuple[bool, ...]:
        """Returns which layers are trained, after the variables have been told."""
        return (self.trainable, *(layer.trainable for m in self.templates for layer in keras_private.all_layers(m)))

    def build(self, *args: Any) -> None:
        """Does nothing: all variables exist since construction."""
        self.built = True

    def run(self, inputs: Any, training: bool, predicting: bool = False) -> tuple[Any, tf.Tensor | None]:
        """Returns outputs and each member's own regularization losses `[members]`.

        Outputs are in the structure of a member's, each `[members, batch, ...]`, and carry their masks as Keras's do.

        Args:
            inputs: `[batch, ...]`, or a structure of such.
            training: whether dropout drops and batch statistics are used and updated.
            predicting: whether no training depends on the outputs: their last bits may be those of the faster way.
        """
        raise AttributeError

    def run_member(self, inputs: Any, member: tf.Tensor) -> Any:
        """Returns the outputs of one member in inference, in the structure of a member's, each `[1, batch, ...]`.

        Args:
            inputs: `[batch, ...]`, or a structure of such.
            member: its index, an integer tensor `[]`.
        """
        # Every member runs here; a stack does better.
        return tf.nest.map_structure(lambda part: _select_member(part, member), self.run(inputs, False, True)[0])

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Returns outputs, each `[members, batch, ...]`."""
        return self.run(inputs, training)[0]


def _select_member(outputs: tf.Tensor, member: tf.Tensor) -> tf.Tensor:
    """Returns one member of outputs `[members, batch, ...]` as `[1, batch, ...]`, with its mask."""
    mask = keras_private.mask_of(outputs)
    selected = tf.gather(outputs, [member])
    return selected if mask is None else keras_private.with_mask(selected, tf.gather(mask, [member]))


def prior_outputs(priors: Members, x: Any, member: tf.Tensor | None = None, predicting: bool = False) -> Any:
    """Returns the unscaled priors in the structure of the priors' outputs, each `[members, batch, ...]`.

    Of one member, if its index is given, each is `[1, batch, ...]`.
    """
    outputs = priors.run(x, False, predicting)[0] if member is None else priors.run_member(x, member)
    return tf.nest.map_structure(lambda part: tf.stop_gradient(tf.cast(part, tf.float32)), outputs)
