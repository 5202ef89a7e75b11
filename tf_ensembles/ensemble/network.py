"""The network of an ensemble: M members and their frozen priors as stacked variables, built, run and saved as one.

Shapes: inputs `[batch, ...]`, outputs `[batch, members, outputs]`. `ensemble` adds how it is trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.base import Array
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import checks, example_ids
from tf_ensembles.ensemble import stack as members
from tf_ensembles.ensemble.layer_rules import Hidden
from tf_ensembles.ensemble.outputs import Kind
from tf_ensembles.prior import PriorFunction

# Prior outputs of in-memory training data are computed once and kept if they fit into this many bytes.
_PRIOR_CACHE_BYTES = 2**30


class EnsembleNetwork(keras.Model):
    """Members and priors of an ensemble: `f_m(x) = g_m(x) + scale * p_m(x)`, only `g_m` trainable.

    Its arguments are those of `Ensemble`.
    """

    def __init__(
        self,
        build_member: Callable[[], keras.Model],
        num_members: int,
        prior: PriorFunction | None = None,
        bootstrap: Bootstrap | None = None,
        l2: float = 0.0,
        seed: int = 0,
        outputs: str = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_arguments(build_member, num_members, prior, bootstrap, l2, seed)
        self.num_members, self.prior, self.bootstrap = num_members, prior, bootstrap
        self.l2, self.seed, self._outputs_argument = float(l2), seed, outputs
        self.kind = Kind.LOGITS if outputs == "auto" else Kind.parse(outputs)
        self.members: members.MemberStack | None = None
        self.priors: members.MemberStack | None = None
        self._frozen = self.add_weight(shape=(num_members,), initializer="zeros", trainable=False, name="frozen")
        self._diverged = self.add_weight(shape=(num_members,), initializer="zeros", trainable=False, name="diverged")
        self._built_on: Any = None
        self._models = Hidden(members.build_models(build_member, num_members, seed, "build_member"))
        self._prior_models = Hidden(
            members.build_models(prior.build, num_members, _prior_seed(seed), "build_prior") if prior else []
        )
        if all(
            model.built and hasattr(model, "output_shape") for model in (*self._models.value, *self._prior_models.value)
        ):
            self._create(None)

    # Building.

    def _create(self, sample: Any) -> None:
        """Stacks the members' variables. `sample`, one example, builds models that were returned unbuilt."""
        if sample is not None:
            members.build_on(self._models.value, sample, self.seed)
            members.build_on(self._prior_models.value, sample, _prior_seed(self.seed))
            self._built_on = tf.nest.map_structure(lambda v: (list(v.shape[1:]), tf.as_dtype(v.dtype).name), sample)
        self.members = members.MemberStack(
            self._models.value, self.num_members, name="members", dtype=self.dtype_policy
        )
        if self.prior is not None:
            self.priors = members.MemberStack(
                self._prior_models.value, self.num_members, trainable=False, name="priors", dtype=self.dtype_policy
            )
        self._models, self._prior_models = Hidden([]), Hidden([])
        self.supports_jit = self.members.supports_jit and (self.priors is None or self.priors.supports_jit)
        self.built = True
        self._check_output_shapes()

    def _check_output_shapes(self) -> None:
        shapes = {}
        for name, stack in (("member", self.members), ("prior", self.priors)):
            if stack is not None:
                shapes[name] = tuple(_output_shape(stack.template, self._built_on))
        member = shapes["member"]
        if len(member) != 2:
            raise ValueError(f"Expected members with outputs [batch, outputs]. Received: shape {member}")
        if shapes.get("prior", member) != member:
            raise ValueError(f"Expected a prior with the member's output shape {member}. Received: {shapes['prior']}")
        assert member[1] is not None
        self._num_outputs: int = member[1]

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: variables are created from the builders, or from the first data for models without inputs."""

    def _build_from(self, x: Any) -> None:
        """Builds from data: arrays, tensors, or a dataset's element spec."""
        if self.members is not None:
            return
        if hasattr(x, "element_spec"):
            spec = x.element_spec[0] if isinstance(x.element_spec, tuple) else x.element_spec
            spec = example_ids.split(spec).x
            sample = tf.nest.map_structure(lambda s: tf.zeros([1, *s.shape[1:]], s.dtype), spec)
        elif checks.is_arrays(x):
            sample = tf.nest.map_structure(lambda v: tf.convert_to_tensor(v[:1]), example_ids.split(x).x)
        else:
            raise ValueError(
                "Expected members that know their input shape, or arrays or a tf.data.Dataset to read it from. "
                f"Received: {type(x)}. Start the member with keras.Input, or call the ensemble on a batch first"
            )
        self._create(sample)

    # State that people may want to read.

    @property
    def execution(self) -> str:
        """How members run: `"vectorized"`, or what is looped over members and why nothing better is known."""
        if self.members is None:
            return "not built"
        looped = [*self.members.looped, *(self.priors.looped if self.priors else ())]
        return "vectorized" if not looped else f"looped over members: {', '.join(looped)}"

    @property
    def frozen(self) -> Array:
        """Which members are no longer trained, `[members]` of bool."""
        return np.asarray(self._frozen) > 0

    @property
    def diverged(self) -> Array:
        """Which members' loss has become NaN or infinite, `[members]` of bool. Mixtures and metrics leave them out."""
        return np.asarray(self._diverged) > 0

    @property
    def stacked_variables(self) -> list[keras.Variable]:
        """The members' variables, each `[members, ...]`, without their priors'."""
        if self.members is None:
            raise ValueError("Expected a built ensemble. Received: one that has not seen any data")
        return [v for v in self.members.variables if v.shape[:1] == (self.num_members,) and "seed_state" not in v.name]

    def input_specs(self) -> Any:
        """The shape, batch first, and dtype of each input, in the structure that the members take."""
        if self._built_on is not None:
            return _map_built_on(lambda shape, dtype: ((None, *shape), dtype), self._built_on)
        if self.members is None:
            raise ValueError("Expected a built ensemble. Received: one that has not seen any data")
        template = self.members.template
        structure = getattr(template, "_inputs_struct", None)
        structure = template.inputs if structure is None else structure  # A lone symbolic tensor has no truth value.
        structure = structure[0] if isinstance(structure, list | tuple) and len(structure) == 1 else structure
        return tf.nest.map_structure(lambda tensor: (tuple(tensor.shape), tensor.dtype), structure)

    # The forward pass.

    def call(self, inputs: Any, training: bool = False) -> tf.Tensor:
        """Returns member outputs `[batch, members, outputs]`."""
        parts = example_ids.split(inputs)
        if self.members is None:
            self._build_from(parts.x)
        return tf.transpose(self._forward(parts, training)[0], [1, 0, 2])

    def _forward(self, parts: example_ids.Inputs, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns outputs `[members, batch, outputs]` and regularisation losses `[members]`."""
        assert self.members is not None
        result, penalty = self.members.run(parts.x, training)
        result = tf.cast(result, tf.float32)
        if self.prior is not None:
            prior = self._prior_outputs(parts.x) if parts.prior is None else tf.transpose(parts.prior, [1, 0, 2])
            result += self.prior.scale * prior
        total = tf.zeros([self.num_members]) if penalty is None else tf.cast(penalty, tf.float32)
        if self.l2:
            total += self.l2 * self.members.squared_norm()
        return result, total

    def _prior_outputs(self, x: Any) -> tf.Tensor:
        """Returns the unscaled prior `[members, batch, outputs]`."""
        assert self.priors is not None
        return tf.stop_gradient(tf.cast(self.priors.run(x, training=False)[0], tf.float32))

    def _cached_prior(self, x: Any, length: int) -> Array | None:
        """Returns the prior's outputs `[batch, members, outputs]` on data in memory, or None if too large to keep."""
        if self.priors is None or length * self.num_members * self._num_outputs * 4 > _PRIOR_CACHE_BYTES:
            return None
        compute = tf.function(self._prior_outputs, jit_compile=self.priors.supports_jit, reduce_retracing=True)
        step = max(1, min(length, 2**22 // (self.num_members * 64)))
        rows = [
            np.transpose(compute(tf.nest.map_structure(lambda v: tf.convert_to_tensor(v[i : i + step]), x)), [1, 0, 2])  # noqa: B023
            for i in range(0, length, step)
        ]
        return np.concatenate(rows)

    # Saving.

    def get_config(self) -> dict[str, Any]:
        """Returns the architecture of a member and of a prior, and the other arguments."""
        if self.members is None:
            raise ValueError("Expected an ensemble that has seen data, or members that start with keras.Input.")
        return {
            **{key: value for key, value in super().get_config().items() if key in ("name", "dtype", "trainable")},
            "member": keras.saving.serialize_keras_object(self.members.template),
            "prior": self.priors and keras.saving.serialize_keras_object(self.priors.template),
            "prior_scale": self.prior and self.prior.scale,
            "num_members": self.num_members,
            "bootstrap": self.bootstrap and keras.saving.serialize_keras_object(self.bootstrap),
            "l2": self.l2,
            "seed": self.seed,
            "outputs": self._outputs_argument,
            "built_on": self._built_on,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> EnsembleNetwork:
        """Returns an ensemble of that architecture; its variables are filled from the file."""
        config = dict(config)
        member, prior, bootstrap = config.pop("member"), config.pop("prior"), config.pop("bootstrap")
        scale, built_on = config.pop("prior_scale"), config.pop("built_on")

        def revive(part: Any) -> Any:
            # A copy, because Keras empties the configuration that it reads.
            return keras.saving.deserialize_keras_object(copy.deepcopy(part), custom_objects=custom_objects)

        model = cls(
            lambda: revive(member),
            prior=PriorFunction(lambda: revive(prior), scale) if prior else None,
            bootstrap=revive(bootstrap) if bootstrap else None,
            **config,
        )
        if model.members is None:
            model._create(_zeros(built_on))
        return model


def _map_built_on(function: Callable[[list[int], str], Any], built_on: Any) -> Any:
    """Applies a function to each (shape, dtype) pair of the structure that a saved ensemble was built on."""
    if isinstance(built_on, dict):
        return {key: _map_built_on(function, value) for key, value in built_on.items()}
    if len(built_on) == 2 and isinstance(built_on[1], str):
        return function(built_on[0], built_on[1])
    return [_map_built_on(function, value) for value in built_on]


def _zeros(built_on: Any) -> Any:
    """One example of zeros in that structure."""
    return _map_built_on(lambda shape, dtype: tf.zeros([1, *shape], dtype), built_on)


def _output_shape(template: keras.Model, built_on: Any) -> tuple[int | None, ...]:
    """The static output shape of a member."""
    if built_on is None:
        return tuple(template.output_shape) if hasattr(template, "output_shape") else ()
    return tuple(keras.ops.shape(template(_zeros(built_on))))


def _prior_seed(seed: int) -> int:
    return draws.key(seed, draws.Purpose.PRIOR)  # Priors must not repeat the draws that start the members.


def _check_arguments(build_member: Any, num_members: Any, prior: Any, bootstrap: Any, l2: Any, seed: Any) -> None:
    if not callable(build_member) or isinstance(build_member, keras.Model):
        raise ValueError(
            f"Expected build_member to be a function that returns a Keras model. Received: {build_member!r}"
        )
    if not isinstance(num_members, int) or num_members < 1:
        raise ValueError(f"Expected num_members >= 1, an integer. Received: {num_members!r}")
    if prior is not None and not isinstance(prior, PriorFunction):
        raise ValueError(f"Expected prior to be a tfe.PriorFunction or None. Received: {prior!r}")
    if bootstrap is not None and not isinstance(bootstrap, Bootstrap):
        raise ValueError(f"Expected bootstrap to be a law such as tfe.Bernoulli(0.5), or None. Received: {bootstrap!r}")
    if not (isinstance(l2, int | float) and 0.0 <= l2 < float("inf")):
        raise ValueError(f"Expected a finite l2 >= 0. Received: {l2!r}")
    if not isinstance(seed, int):
        raise ValueError(f"Expected an integer seed. Received: {seed!r}")
