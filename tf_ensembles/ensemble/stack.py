"""M copies of one Keras model as one layer: their weights are stacked along a first axis and run together.

Shapes inside this module are members first, `[members, batch, ...]`; a tensor that all members share, such as the
input, is `[batch, ...]` until the first layer that has weights. `Stacked` marks the former.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles.ensemble import layer_rules as vectorized
from tf_ensembles.ensemble.layer_rules import Stacked


@contextlib.contextmanager
def seeded(seed: int, member: int) -> Iterator[None]:
    """Makes everything that Keras draws while a member is built a function of (seed, member); restores all state.

    Keras 3 seeds its initializers and dropout layers from Python's `random`; user code may draw from NumPy's.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    entropy = np.random.SeedSequence([seed & (2**64 - 1), member]).generate_state(2)
    random.seed(int(entropy[0]))
    np.random.seed(entropy[1])  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def build_models(build: Callable[[], keras.Model], num_members: int, seed: int, what: str) -> list[keras.Model]:
    """Calls the user's builder once per member and checks that it returns a new Keras model each time."""
    models: list[keras.Model] = []
    owners: dict[int, int] = {}
    for member in range(num_members):
        with seeded(seed, member):
            model = build()
        if not isinstance(model, keras.Model):
            raise ValueError(f"Expected {what} to return a keras.Model (Keras 3). Received: {type(model)}")
        for part in (model, *model.variables):
            first = owners.setdefault(id(part), member)
            if first != member:
                raise ValueError(
                    f"Expected {what} to return a new model with its own variables at every call. "
                    f"Received: the same {type(part).__name__} for members {first} and {member}"
                )
        models.append(model)
    return models


def build_on(models: Sequence[keras.Model], sample: Any, seed: int) -> None:
    """Creates the variables of models that were returned unbuilt, by calling each on a sample of the data."""
    for member, model in enumerate(models):
        if not model.built:
            with seeded(seed, member):
                model(sample)


class _PerMember:
    """A weight constraint that is applied to each member's slice by itself."""

    def __init__(self, constraint: Callable[[Any], Any], num_members: int) -> None:
        self._constraint, self._num_members = constraint, num_members

    def __call__(self, stacked: Any) -> Any:
        values = tf.unstack(tf.convert_to_tensor(stacked), num=self._num_members)
        return tf.stack([self._constraint(value) for value in values])


class MemberStack(keras.layers.Layer):
    """Runs M models of one architecture: inputs `[batch, ...]` to outputs `[members, batch, outputs]`.

    Args:
        models: built models of one architecture, one per member. The first is kept as the template; only the values of
            the others' variables are. A single model stands for `num_members` members whose values come later, when
            a saved file is loaded.
        num_members: M.
        trainable: False for a prior: nothing in it is ever trained or updated.
    """

    def __init__(self, models: Sequence[keras.Model], num_members: int, trainable: bool = True, **kwargs: Any) -> None:
        super().__init__(trainable=trainable, **kwargs)
        self.num_members = num_members
        # Hidden in a holder: Keras would otherwise track the template's own variables as ours.
        self._hidden = vectorized.Hidden(models[0])
        self._stacked: vectorized.Hidden = vectorized.Hidden(self._stack(models, trainable))
        self.looped = vectorized.looped_parts(models[0])
        # Measured on CPUs: XLA fuses small batched layers well, and slows convolutions down.
        self.supports_jit = not self.looped
        if not vectorized.is_vectorizable(models[0]):
            return
        for generator in vectorized.shared_generators(models[0]):
            # Drawn once for all members at a time; kept here so that it is saved and restored with us.
            state = generator.state
            generator.state = self.add_weight(
                shape=state.shape, dtype=state.dtype, trainable=False, name="seed_state", initializer=_Constant(state)
            )

    @property
    def template(self) -> keras.Model:
        """The first member's model, which gives the architecture."""
        return self._hidden.value

    def _stack(self, models: Sequence[keras.Model], trainable: bool) -> dict[int, keras.Variable]:
        stacked = {}
        for index, variable in enumerate(models[0].variables):
            values = [np.asarray(model.variables[index]) for model in models]
            if any(value.shape != values[0].shape for value in values):
                raise ValueError(
                    "Expected members of one architecture. Received: variable "
                    f"{variable.path} of shapes {sorted({value.shape for value in values})}"
                )
            if len(values) < self.num_members:
                values = values * self.num_members
            constraint = getattr(variable, "constraint", None)
            stacked[id(variable)] = self.add_weight(
                shape=(self.num_members, *variable.shape),
                dtype=variable.dtype,
                initializer=_Constant(np.stack(values)),
                trainable=trainable and variable.trainable,
                autocast=False,
                constraint=_PerMember(constraint, self.num_members) if constraint else None,
                name=f"{index}_{variable.name}",
            )
        return stacked

    def build(self, *args: Any) -> None:
        """Does nothing: all variables exist since construction."""
        self.built = True

    def run(self, inputs: Any, training: bool) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Returns outputs `[members, batch, outputs]` and each member's own regularisation losses `[members]`."""
        runner = vectorized.Runner(self._stacked.value, self.num_members, training and self.trainable)
        if vectorized.is_vectorizable(self.template):
            outputs = runner.run_graph(self.template, inputs)
        else:
            outputs = runner.loop(self.template, [inputs], {})
        if isinstance(outputs, Stacked):
            return outputs.tensor, runner.penalty()
        tensor = tf.convert_to_tensor(outputs)  # No layer with weights: the members are one and the same.
        return tf.tile(tensor[None], [self.num_members, 1, 1]), runner.penalty()

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns outputs `[members, batch, outputs]`."""
        return self.run(inputs, training)[0]

    def member_values(self, member: int) -> list[np.ndarray[Any, Any]]:
        """Returns one member's variables, in the order of the template's `variables`."""
        return [np.asarray(self._stacked.value[id(variable)])[member] for variable in self.template.variables]

    def squared_norm(self) -> tf.Tensor:
        """Returns `||theta_m||^2` over the trainable variables of each member, `[members]`."""
        total = tf.zeros([self.num_members])
        for variable in self.trainable_variables:
            value = tf.cast(variable.value, tf.float32)
            total += tf.reduce_sum(tf.square(value), axis=list(range(1, len(variable.shape))))
        return total


class _Constant(keras.initializers.Initializer):
    """Starts a variable at given values."""

    def __init__(self, values: Any) -> None:
        self._values = values

    def __call__(self, shape: Any, dtype: Any = None, **kwargs: Any) -> Any:
        return keras.ops.convert_to_tensor(np.asarray(self._values), dtype=dtype)
