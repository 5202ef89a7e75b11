"""Epinets: one network and a small one beside it, which an index turns into many (Osband et al. 2021, "Epistemic
Neural Networks").

    f(x, z) = base(phi(x)) + sigma([sg(phi(x)), z]) . z + scale * sum_i z_i p_i(x) / sqrt(D),      z ~ N(0, I_D)

`phi` is the trunk, `base` a dense layer, `sigma` a small MLP whose outputs `[outputs, D]` are multiplied by the index,
and the `p_i` are D frozen prior functions; `sg` stops gradients. Every index is a member.

Shapes: features `[batch, features]`, indices `[members, D]`, outputs `[batch, members, outputs]`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import checks, draws
from tf_ensembles.ensemble import arguments, data, keras_private
from tf_ensembles.ensemble import trunk as trunk_lib
from tf_ensembles.ensemble.members import base, building, frozen, stack
from tf_ensembles.ensemble.members.layer_rules import Hidden, has_recurrent, looped_parts
from tf_ensembles.methods.sampled import Sampled
from tf_ensembles.prior import PriorFunction
from tf_ensembles.regression import heads


@keras.saving.register_keras_serializable(package="tf_ensembles")
class Epinet(Sampled):
    """An epinet on a trunk: an ensemble's contract at the cost of little more than one network.

    Training averages the loss over `train_indices` indices that are drawn anew at every step; `predict` draws
    `num_members` that are always the same. All draws are functions of the seed.

    Args:
        trunk: a Keras model from inputs to features `[batch, features]`, such as a network up to its last hidden layer.
            It is trained with the rest, by the base's gradient alone, unless `trunk.trainable` is False; then it runs
            in inference mode.
        index_dim: D, the numbers of an index.
        num_outputs: of a member.
        hidden: sizes of the small network's hidden layers.
        prior: D frozen random functions; its scale is that of their sum. "auto": a `tfe.PriorFunction("auto", 1.0)`.
            On inputs, features or both, as its `on` says. None: no prior.
        num_members: K, the indices that `predict` draws.
        train_indices: indices per step of training; None: as many as the index has numbers.
        l2: weight decay of all that is trained, in the mean form.
        seed: decides initial weights, priors and indices.
        outputs: what a member returns, as `tfe.Ensemble` takes it.
    """

    def __init__(
        self,
        trunk: keras.Model,
        index_dim: int = 8,
        *,
        num_outputs: int,
        hidden: Sequence[int] = (15, 15),
        prior: PriorFunction | str | None = "auto",
        num_members: int = 100,
        train_indices: int | None = None,
        l2: float = 0.0,
        seed: int = 0,
        outputs: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_members, seed, outputs, **kwargs)
        prior = PriorFunction(prior, 1.0) if isinstance(prior, str) else prior
        if isinstance(prior, dict):
            raise ValueError(f"Expected one prior, since an epinet has one output. Received: {sorted(prior)}")
        arguments.check(_no_builder, 1, prior, None, l2, seed)
        trunk_lib.check(trunk, prior)
        if len(trunk.outputs) != 1 or len(trunk.outputs[0].shape) != 2 or trunk.outputs[0].shape[1] is None:
            shapes = [tuple(tensor.shape) for tensor in trunk.outputs]
            raise ValueError(f"Expected a trunk with one output [batch, features]; flatten it. Received: {shapes}")
        self.index_dim, self.hidden = (
            checks.integer("index_dim", index_dim, 1),
            checks.integers("hidden", hidden, 1, empty=True),
        )
        self.train_indices = (
            self.index_dim if train_indices is None else checks.integer("train_indices", train_indices, 1)
        )
        num_outputs = checks.integer("num_outputs", num_outputs, 1)
        self.trunk = self._source = trunk
        self._has_columns(num_outputs)
        self.prior, self.l2 = prior, float(l2)
        self._prior_on = trunk_lib.place_of(prior, trunk)
        self.priors: stack.Members | None = None
        features = int(trunk.outputs[0].shape[1])
        with building.seeded(draws.key(self.seed, draws.Purpose.EPINET_WEIGHTS), 0):
            self.base = keras.layers.Dense(num_outputs, name="base")
            self.base.build((None, features))
            sizes = [features + self.index_dim, *self.hidden, num_outputs * self.index_dim]
            self.small = [keras.layers.Dense(size, name=f"epinet_{i}") for i, size in enumerate(sizes[1:])]
            for layer, size in zip(self.small, sizes, strict=False):
                layer.build((None, size))
        self._draft: Hidden | None = None
        if prior is not None:
            self._draft = Hidden(building.draft_priors(prior, self.index_dim, building.prior_seed(self.seed)))
            if self._draft.value.has_known_outputs:
                self._stack_priors()
        self.built = True

    # Priors, which may have to see data first.

    def _stack_priors(self) -> None:
        if self._draft is None:
            return
        options = {"num_members": self.index_dim, "dtype": self.dtype_policy, "sample": None}
        self.priors = building.assemble(self._draft.value, True, True, **options)
        self._draft = None
        columns = tuple(self.priors.template.output_shape)[-1]
        if self._num_outputs % columns:
            raise ValueError(f"Expected a prior with {self._num_outputs} outputs. Received: {columns}")

    def _see(self, x: Any) -> None:
        """Makes priors on the first data."""
        if self._draft is None:
            return
        parts = data.split(data.peek(x)[1])
        sample = data.first_example(parts.x)

        def examples() -> Any:
            some = data.some_examples(parts.x)
            return trunk_lib.prior_inputs(self._prior_on, some, np.asarray(self.trunk(some, training=False)))

        structure = trunk_lib.inputs_like(self.input_specs())
        whole = keras.Model(structure, self.base(self.trunk(structure)))
        self._draft.value.see(examples, whole, sample)
        self._draft.value.build_on(trunk_lib.prior_inputs(self._prior_on, sample, self.trunk(sample, training=False)))
        self._stack_priors()

    # The forward pass.

    def indices(self) -> tf.Tensor:
        """Returns the indices that `predict` takes, `[members, index_dim]`: K draws of N(0, I)."""
        return self._draw(tf.zeros([1], tf.int64), self.num_members, draws.Purpose.EPINET_INDEX)

    def _draw(self, ids: tf.Tensor, count: int, purpose: draws.Purpose) -> tf.Tensor:
        return draws.to_normal(draws.uniform(self.seed, ids, tf.range(count), self.index_dim, purpose)[0])

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns member outputs `[batch, members, outputs]`; in training, those of this step's indices."""
        parts = data.split(inputs)
        x = parts.x
        self._see(x)
        if training and self.compiled:
            step = tf.reshape(tf.cast(keras_private.steps_taken(self.optimizer), tf.int64), [1])
            index = self._draw(step, self.train_indices, draws.Purpose.EPINET_STEP)
        else:
            index = self.indices()
        features = self.trunk(x, training=bool(training and self.trunk.trainable))
        result = tf.cast(self.base(features), tf.float32)[None] + self._learned(tf.stop_gradient(features), index)
        if self.prior is not None and self.priors is not None:
            known = parts.prior
            each = self._prior_outputs(self.priors, x, features) if known is None else tf.transpose(known, [1, 0, 2])
            scale = self.prior.scale / math.sqrt(self.index_dim)
            prior = scale * tf.tensordot(index, each, 1)
            result = result + prior if self.head is None else self.head.add_prior(result, prior)
        return tf.transpose(result, [1, 0, 2])

    def _prior_outputs(self, priors: stack.Members, x: Any, features: Any) -> tf.Tensor:
        """Returns what each prior says, `[index_dim, batch, outputs]`."""
        return base.prior_outputs(priors, trunk_lib.prior_inputs(self._prior_on, x, features))

    def _learned(self, features: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        """Returns what the small network adds, `[members, batch, outputs]`."""
        first, width = self.small[0], features.shape[-1]
        kernel = tf.convert_to_tensor(first.kernel)
        # Features and index side by side, without a copy of the features for every index.
        features = tf.cast(features, kernel.dtype)
        hidden = (features @ kernel[:width])[None] + (index @ kernel[width:])[:, None] + first.bias
        for layer in self.small[1:]:
            hidden = layer(tf.nn.relu(hidden))
        matrix = tf.reshape(hidden, [index.shape[0], -1, self._num_outputs, self.index_dim])
        return tf.einsum("mboi,mi->mbo", tf.cast(matrix, tf.float32), index)

    def _penalty(self) -> tf.Tensor:
        decay = [tf.reduce_sum(tf.square(tf.cast(v.value, tf.float32))) for v in self.trainable_variables]
        return super()._penalty() + (self.l2 * tf.add_n(decay) if self.l2 else 0.0)

    # Training.

    def _resolve_auto_jit_compile(self) -> bool:
        looped = looped_parts(self.trunk) or has_recurrent(self.trunk)
        looped = looped or (self.priors is not None and not self.priors.supports_jit)
        return not looped and self.distribute_strategy.num_replicas_in_sync == 1

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as `keras.Model.fit` does; arrays are checked, and shuffled by the seed."""
        keras_private.require_compiled(self, "fit")
        self._see(x)
        return super().fit(x, y, *args, **kwargs)

    def _with_known(self, x: Any, length: int) -> Any:
        if self._prior_on != "inputs":
            return x
        # Frozen functions of the inputs: evaluated once, where that fits in memory.
        return data.with_ids(x, None, stack.cached_prior(self.priors, x, length, self._num_outputs))

    def adapt(self, x: Any) -> None:
        """Shows data to an epinet that has seen none: priors that look at data are made on them."""
        self._see(x)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns member outputs `[batch, members, outputs]`, which `tfe.metrics` know."""
        self._see(x)
        return super().predict(x, *args, **kwargs)

    # Saving.

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture and the other arguments."""
        if self._draft is not None:
            raise ValueError("Expected an epinet that has seen data, since its prior waits for them. Received: none")
        written = trunk_lib.write(self.trunk, self._prior_on)
        given = {
            "name": self.name,
            "index_dim": self.index_dim,
            "num_outputs": self._num_outputs,
            "hidden": list(self.hidden),
            "prior": self.priors and arguments.write_models(self.priors),
            "prior_scale": self.prior.scale if self.prior is not None else None,
            "num_members": self.num_members,
            "train_indices": self.train_indices,
            "l2": self.l2,
            "seed": self.seed,
            "outputs": self._outputs_argument,
        }
        return {**written, **given, **({"head": heads.write(self.head)} if self.head else {})}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Epinet:
        """Returns an epinet of that architecture; its variables are filled from the file."""
        given = dict(config)
        place, scale, prior = given.pop("prior_on"), given.pop("prior_scale"), given.pop("prior")
        known = given.pop("head", None)

        given["trunk"] = trunk_lib.read(given["trunk"], given.pop("trunk_frozen"), custom_objects)
        given["prior"] = None
        if prior is not None:
            each = prior if isinstance(prior, list) else [prior] * given["index_dim"]
            build = building.Given([functools.partial(frozen.read, part, custom_objects) for part in each])
            given["prior"] = PriorFunction(build, scale, on=place)
        model = cls(**given)
        model._read_heads(known)
        return model


def _no_builder() -> None:
    """Stands for a builder where arguments are checked that have none."""
