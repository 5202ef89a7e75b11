"""Members taken out, put together, added and chosen: plain Keras models in and out of an ensemble."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tf_ensembles import bootstrap as bootstrap_lib
from tf_ensembles import prior as prior_lib
from tf_ensembles.bootstrap import Bootstrap
from tf_ensembles.ensemble import data, keras_private, trunk
from tf_ensembles.ensemble.members import building, layer_state, stack, structure
from tf_ensembles.ensemble.members.layer_rules import Hidden
from tf_ensembles.prior import PriorFunction


class Collected:
    """The part of an `Ensemble` that hands out its members, and makes ensembles of other members."""

    num_members: int
    seed: int
    l2: float
    compiled: bool
    trunk: Any
    outputs_said: Callable[[], list[Any]]
    prior: PriorFunction | None
    bootstrap: Bootstrap | None
    priors: stack.Members | None
    frozen: Any
    diverged: Any
    get_compile_config: Callable[[], dict[str, Any]]
    input_specs: Callable[[], Any]
    _built_members: Callable[[], stack.Members]
    _built_on: Any
    _prior_on: str
    _outputs_argument: Any
    _structure: structure.Structure
    _refuse_with_trained_trunk: Callable[..., None]
    _show_prior: Callable[..., None]
    _samples: Callable[[Any], list[Any]]
    _builder: Hidden

    @classmethod
    def from_models(cls, models: Sequence[keras.Model], **kwargs: Any) -> Any:
        """Returns an ensemble of models that have their weights already, of one architecture or of several.

        Args:
            models: Keras models with outputs of one shape. The ensemble takes them over: train it, not them.
            **kwargs: the other arguments of an ensemble.
        """
        listed = list(models)
        return cls(_given(listed), len(listed), **kwargs)  # type: ignore[call-arg]

    def member(self, index: int) -> keras.Model:
        """Returns a copy of one member as a plain Keras model: its trunk and prior included, the prior frozen.

        It maps inputs `[batch, ...]` to outputs `[batch, ...]`, the numbers of `predict(x)[:, index]`, in the structure
        in which members return them, saves and loads as any Keras model does, and is not compiled.

        Args:
            index: which member, from 0; negative ones count from the end.
        """
        index = _checked([index], self.num_members)[0]
        own = self._copy(self._built_members(), index)
        if self.trunk is None and self.priors is None:
            return own
        shared = None if self.trunk is None else _copy(self.trunk, [np.asarray(v) for v in self.trunk.variables], None)
        inputs = trunk.inputs_like(self.input_specs())
        features = inputs if shared is None else shared(inputs)
        results = [_float32(part) for part in structure.leaves(own(features))]
        if self.priors is not None and self.prior is not None:
            prior = self._copy(self.priors, index)
            prior.trainable = False
            said = prior(trunk.prior_inputs(self._prior_on, inputs, features))
            said = said[0] if isinstance(said, list | tuple) and len(said) == 1 else said
            parts = self._structure.split(said, "a prior", missing=True)
            given = zip(results, parts, prior_lib.scales(self.prior, self._structure), self.outputs_said(), strict=True)
            results = [self._added(*one) for one in given]
        return keras.Model(inputs, self._structure.pack(results), name=f"member_{index}")

    def _added(self, result: Any, prior: Any, scale: float | None, output: Any) -> Any:
        """Returns a symbolic output with a scaled prior's added, to the means alone of a regression."""
        if prior is None or scale is None:
            return result
        prior = keras.layers.Rescaling(scale, dtype="float32")(_float32(prior))
        every, locations = (1, 1) if output.head is None else output.head.blocks
        if every > 1:
            if prior.shape[-1] == result.shape[-1]:
                prior = keras.ops.split(prior, every, axis=-1)[0]
            nothing = keras.layers.Rescaling(0.0, dtype="float32")(prior)
            prior = keras.layers.Concatenate(dtype="float32")([prior] * locations + [nothing] * (every - locations))
        return keras.layers.Add(dtype="float32")([result, prior])

    def _copy(self, members: stack.Members, index: int) -> keras.Model:
        """Returns a member, or a prior, alone: without trunk and prior."""
        template = members.templates[index if members.separate else 0]
        return _copy(template, members.member_values(index), self._built_on)

    # Other ensembles of these members.

    def select(self, indices: Sequence[int]) -> Any:
        """Returns an ensemble of some of the members, in this order, compiled as this one with a new optimizer.

        Members keep the bootstrap weights of their former numbers, so that they can be trained on. A trunk is shared
        with this ensemble.

        Args:
            indices: which, without repetition; `best_members` chooses some.
        """
        chosen = _checked(indices, self.num_members)
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"Expected different members. Received: {list(indices)}")
        members = [self._copy(self._built_members(), index) for index in chosen]
        priors = None if self.priors is None else [self._copy(self.priors, index) for index in chosen]
        weights = None if self.bootstrap is None else bootstrap_lib.renumbered(self.bootstrap, chosen)
        new = self._made_of(members, priors, weights)
        new._mark_as(self.frozen[chosen], self.diverged[chosen])
        return new

    def extend(
        self, more: int | Sequence[keras.Model], *, freeze: bool = True, x: Any = None, build_member: Any = None
    ) -> Any:
        """Returns an ensemble with more members, the trained ones kept, compiled as this one with a new optimizer.

        New members start with the weights, priors and bootstrap weights that members of these numbers would have had
        from the beginning. So `fit` on the same data, with the old ones frozen, gives the larger ensemble that would
        have been trained at once.

        Args:
            more: how many to add; or trained models, where there is no prior.
            freeze: whether the members of now stay as they are while the others are trained.
            x: training inputs, for priors that look at data or are normalized on them.
            build_member: what the ensemble was made with, where it comes from a file or from models.
        """
        old = self._built_members()
        if self.trunk is not None:
            self._refuse_with_trained_trunk("extend", [])
        if isinstance(self.bootstrap, bootstrap_lib.Renumbered):
            raise ValueError("Expected an ensemble that has all its members. Received: members chosen from another one")
        listed = None if isinstance(more, int | np.integer) else list(more)
        count = int(more) if listed is None else len(listed)  # type: ignore[arg-type]
        if count < 1:
            raise ValueError(f"Expected at least one member to add. Received: {more}")
        if listed is None:
            made, priors = self._drawn(self.num_members + count, x, build_member)
        elif self.priors is not None:
            raise ValueError("Expected a number of members to add, since each has a prior. Received: models")
        else:
            made, priors = listed, None
        members = [self._copy(old, index) for index in range(self.num_members)] + made[-count:]
        if priors is not None and self.priors is not None:
            priors = [self._copy(self.priors, index) for index in range(self.num_members)] + priors[-count:]
        new = self._made_of(members, priors, self.bootstrap)
        kept = np.arange(new.num_members) < self.num_members
        blank = np.zeros(count, bool)
        new._mark_as(kept if freeze else np.append(self.frozen, blank), np.append(self.diverged, blank))
        new._builder = self._builder
        return new

    def _drawn(self, count: int, x: Any, build_member: Any) -> tuple[list[keras.Model], list[keras.Model] | None]:
        """Returns models and priors of `count` members as they are before any training."""
        build = build_member or self._builder.value
        prior = self.prior
        if isinstance(build, building.Given) or (prior is not None and isinstance(prior.build, building.Given)):
            raise ValueError(
                "Expected build_member=..., and no prior, to add members to an ensemble that came from a file or from "
                "models, which keep no function that builds. Received: neither"
            )
        drafts = [building.Draft(build, count, self.seed, "build_member")]
        if prior is not None:
            drafts.append(building.draft_priors(prior, count, building.prior_seed(self.seed)))
        sample = stack.zeros(self._built_on) if self._built_on is not None else None
        if x is not None:
            sample = data.first_example(x)
        elif (prior is not None and prior.needs_data) or (sample is None and not drafts[0].has_known_outputs):
            raise ValueError("Expected x=..., the training inputs that members or priors are made on. Received: None")
        if sample is not None:
            drafts[0].build_on(self._samples(sample)[0])
            for draft in drafts[1:]:
                self._show_prior(draft, x, drafts[0].models[0], sample)
                draft.build_on(self._samples(sample)[1])
        for place, draft in enumerate(drafts):
            draft.draw_apart(frozen=bool(place))
        return drafts[0].models, drafts[1].models if len(drafts) > 1 else None

    def _made_of(self, members: list[Any], priors: list[Any] | None, weights: Bootstrap | None) -> Any:
        prior = None
        if priors is not None and self.prior is not None:
            prior = PriorFunction(_given(priors), self.prior.scale, on=None if self.trunk is None else self._prior_on)
        old = self._built_members()
        reasons = {part.name: part.separate for part in (old, self.priors) if part is not None and part.separate}
        new: Any = type(self)(
            _given(members), len(members), prior, weights, l2=self.l2, seed=self.seed, outputs=self._outputs_argument,
            check=reasons or False, trunk=self.trunk,
        )  # type: ignore[call-arg]  # fmt: skip
        if new.members is None:
            new._build_on(stack.zeros(self._built_on))
        new._output_heads = tuple(output.head for output in self.outputs_said())
        if self.compiled:
            new.compile_from_config(self.get_compile_config())
        return new

    def _mark_as(self, frozen: Any, diverged: Any) -> None:
        """Marks members of a new ensemble."""
        for marks, which in ((self._frozen, frozen | diverged), (self._diverged, diverged)):  # type: ignore[attr-defined]
            if which.any():
                marks.add(np.flatnonzero(which))


def _given(models: Sequence[keras.Model]) -> building.Given:
    return building.Given([functools.partial(_itself, model) for model in models])


def _itself(model: keras.Model) -> keras.Model:
    return model


def _checked(indices: Sequence[int], count: int) -> list[int]:
    """Returns indices from 0, or raises."""
    listed = np.asarray(indices)
    if listed.ndim != 1 or not len(listed) or not np.issubdtype(listed.dtype, np.integer):
        raise ValueError(f"Expected integer indices of members. Received: {indices}")
    if listed.min() < -count or listed.max() >= count:
        raise ValueError(f"Expected indices of members in [0, {count}). Received: {listed.tolist()}")
    return (listed % count).tolist()


def _copy(model: keras.Model, values: Sequence[Any], built_on: Any) -> keras.Model:
    """Returns a model of the same architecture with these values of its variables."""
    config = keras.saving.serialize_keras_object(model)
    config.pop("compile_config", None)
    copied = keras.saving.deserialize_keras_object(config)
    if len(copied.variables) != len(values) and built_on is not None:
        copied(stack.zeros(built_on))
    for variable, value in zip(copied.variables, values, strict=True):
        variable.assign(value)
    for ours, theirs in zip(layer_state.constants(copied), layer_state.constants(model), strict=True):
        ours.put(np.asarray(theirs.value))
    for layer, its in zip(keras_private.all_layers(copied), keras_private.all_layers(model), strict=True):
        if not its.trainable:  # A Sequential model's configuration does not say so.
            layer.trainable = False
    return copied


def _float32(tensor: Any) -> Any:
    return tensor if tensor.dtype == "float32" else keras.layers.Activation("linear", dtype="float32")(tensor)
