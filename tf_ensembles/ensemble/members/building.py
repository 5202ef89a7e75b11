"""M models from a user's function, each with initial weights of its own, and what runs them.

Initial weights are a function of (seed, member, place of the variable in the model), whatever seeds the initializers
carry. Keras seeds those that carry none from Python's `random`, which is seeded here for each member; a variable that
comes out the same for two members all the same is drawn again, by its own initializer with a seed from here.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tf_ensembles import draws, priors
from tf_ensembles.ensemble import keras_private
from tf_ensembles.ensemble.members import layer_state, probe, structure
from tf_ensembles.ensemble.members.stack import MemberStack, SeparateMembers
from tf_ensembles.prior import JoinedPrior, PriorFunction

_COMPARED = 64  # numbers of a variable that are looked at first: two draws that agree in as many are one


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
        with keras_private.global_seeds_kept():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def prior_seed(seed: int) -> int:
    """Returns the seed that priors are built with, so that they do not repeat the draws that start the members."""
    return draws.key(seed, draws.Purpose.PRIOR)


class Given:
    """A builder of models that have their weights already, or will get them from a file: nothing is drawn again.

    Args:
        models: one function per member that returns its model.
    """

    def __init__(self, models: Sequence[Callable[[], keras.Model]]) -> None:
        self._models = iter(models)

    def __call__(self) -> keras.Model:
        """Returns the next member's model."""
        return next(self._models)()


class Draft:
    """M models that wait to be stacked: those without inputs of their own, until the first data.

    Args:
        build: the user's builder; called once per member.
        num_members: M.
        seed: decides the initial weights.
        what: what the user calls the builder, for messages.
    """

    def __init__(self, build: Callable[[], keras.Model], num_members: int, seed: int, what: str) -> None:
        self._seed, self._what, self._ours = seed, what, not isinstance(build, Given)
        self._initializers: dict[int, tuple[Any, Any]] = {}
        self.models: list[keras.Model] = []
        owners: dict[int, int] = {}
        for member in range(num_members):
            with self._drawing(member):
                model = build()
            if not isinstance(model, keras.Model):
                raise ValueError(f"Expected {what} to return a keras.Model (Keras 3). Received: {type(model)}")
            for part in (model, *model.variables):
                first = owners.setdefault(id(part), member)
                if first != member:
                    raise ValueError(
                        f"Expected {what} to return a new model with its own variables at every call. "
                        f"Received: the same {type(part).__name__} for members {first} and {member}"
                        + (f", {part.path}: make its layer inside {what}" if part is not model else "")
                    )
            self.models.append(model)

    @contextlib.contextmanager
    def _drawing(self, member: int) -> Iterator[None]:
        with seeded(self._seed, member), keras_private.recorded_initializers(self._initializers):
            yield

    @property
    def has_known_outputs(self) -> bool:
        """Whether all models have their variables and an output shape already, without having seen data."""
        return all(model.built and hasattr(model, "output_shape") for model in self.models)

    def build_on(self, sample: Any) -> None:
        """Creates the variables of models that were returned unbuilt, by calling each on a sample of the data."""
        for member, model in enumerate(self.models):
            if not model.built:
                with self._drawing(member):
                    structure.build_on(model, sample)

    def see(self, examples: Callable[[], Any], member: keras.Model, sample: Any, name: str | None = None) -> None:
        """Does nothing: these models need no data."""

    # Initial weights.

    def draw_apart(self, frozen: bool) -> None:
        """Draws again what came out the same for two members though it is random; raises if members are still the same.

        Args:
            frozen: whether these are priors, which nothing will tell apart later.
        """
        if not self._ours or len(self.models) < 2:
            return
        for place in range(min(len(model.variables) for model in self.models)):
            variables = [model.variables[place] for model in self.models]
            if all(self._is_random(variable) for variable in variables) and _coincide(variables):
                for member, variable in enumerate(variables):
                    self._draw_again(variable, member, place)
        states = [[generator.state for generator in keras_private.seed_generators(model)] for model in self.models]
        for place, of_members in enumerate(zip(*states, strict=False)):
            if _coincide(of_members):
                for member, state in enumerate(of_members):
                    state.assign([self._seed_of(member, -1 - place), 0])
        self._check_apart(frozen)

    def _is_random(self, variable: Any) -> bool:
        initializer = self._initializers.get(id(variable), (None, None))[1]
        return getattr(initializer, "seed", None) is not None

    def _seed_of(self, member: int, place: int) -> int:
        words = [self._seed & (2**64 - 1), member, draws.Purpose.INITIAL_WEIGHTS.stream, place & (2**32 - 1)]
        return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)

    def _draw_again(self, variable: Any, member: int, place: int) -> None:
        initializer = self._initializers[id(variable)][1]
        shape, dtype = variable.shape, variable.dtype
        if isinstance(initializer.seed, int) and not np.array_equal(initializer(shape, dtype=dtype), variable):
            return  # Somebody has given it another value since, that of a trained model for instance.
        own = copy.copy(initializer)
        own.seed = self._seed_of(member, place)
        variable.assign(own(shape, dtype=dtype))

    def _check_apart(self, frozen: bool) -> None:
        """Raises if two members have the same weights and the same constants, so that they are one and the same."""
        same = self._first_two_alike(frozen)
        if same is None:
            return
        first, second = same
        is_constant = all(
            not self._is_random(v) and _is_constant(self._initializers.get(id(v), (None, None))[1])
            for v in self.models[second].trainable_variables
        )
        text = (
            f"Expected {self._what} to draw other weights at every call. Received: members {first} and {second} with "
            "the same; let initializers draw"
        )
        if frozen or not is_constant:
            raise ValueError(text + ", or give trained models to tfe.Ensemble.from_models")
        warnings.warn(text + " if members should start apart: all of them are constants.", stacklevel=6)

    def _first_two_alike(self, frozen: bool) -> tuple[int, int] | None:
        models = self.models
        lists = [model.variables if frozen else model.trainable_variables for model in models]
        if not frozen and not all(lists):
            return None  # Nothing to train: members that are no more than functions.
        groups = [list(range(len(models)))]  # of members that are the same in the variables before this one
        for place in range(min(len(variables) for variables in lists)):
            finer: dict[Any, list[int]] = {}
            for name, members in enumerate(groups):
                for member in members:
                    finer.setdefault((name, np.asarray(lists[member][place]).tobytes()), []).append(member)
            groups = [group for group in finer.values() if len(group) > 1]
        for group in groups:
            for other in group[1:]:
                if layer_state.difference(models[group[0]], models[other]) is None:
                    return group[0], other
        return None


def draft_priors(prior: PriorFunction, num_members: int, seed: int) -> Draft:
    """Returns the priors of an ensemble: at once, or when data have been seen."""
    if isinstance(prior, JoinedPrior):
        return Joined(prior.parts, num_members, seed)
    if prior.needs_data:
        return Waiting(prior, num_members, seed)
    return Draft(prior.build, num_members, seed, "build_prior")


class Waiting(Draft):
    """Priors that wait for data: their recipe looks at them, and their outputs are standardized on them.

    Args:
        prior: the prior function.
        num_members: M.
        seed: decides their weights.
    """

    has_known_outputs = False

    def __init__(self, prior: PriorFunction, num_members: int, seed: int) -> None:
        self._prior, self._arguments = prior, (num_members, seed, "build_prior")
        self.models = []

    def see(self, examples: Callable[[], Any], member: keras.Model, sample: Any, name: str | None = None) -> None:
        """Makes the priors.

        Args:
            examples: returns examples in the structure of the members' inputs, arrays `[examples, ...]`.
            member: a built member.
            sample: a batch of one example.
            name: the output that they are for, of several.
        """
        x = examples()
        recipe, build = self._prior.recipe, self._prior.build
        if recipe is not None:
            said = structure.of(member, sample, "members")
            if name is None and not said.is_one:
                raise ValueError(
                    "Expected priors that look at data as a dict by output, such as "
                    f"prior={{{said.names[0]!r}: tfe.PriorFunction('auto')}}. Received: one for {list(said.names)}"
                )
            shape = said.shapes[0 if name is None else said.names.index(name) if name in said.names else 0]
            if len(shape or ()) > 1:
                raise ValueError(
                    "Expected a prior network of your own, tfe.PriorFunction(build), for outputs with positions. "
                    f"Received: one of tfe.priors for {(None, *(shape or ()))}"
                )
            sight = priors.see(x, int((shape or (0,))[-1] or 0), member)
            build = functools.partial(recipe, sight)
        super().__init__(build, *self._arguments)
        if self._prior.is_normalized:
            super().build_on(sample)
            super().draw_apart(frozen=True)  # Before constants are computed from what they say.
            self.models = [priors.standardized(model, x) for model in self.models]
        self.has_known_outputs = all(model.built and hasattr(model, "output_shape") for model in self.models)

    def draw_apart(self, frozen: bool) -> None:
        """Draws nothing again where constants belong to what was drawn."""
        if not self._prior.is_normalized:
            super().draw_apart(frozen)


class Joined(Draft):
    """The priors of several outputs, each from its own draft, as models that return a dict of them by name.

    Args:
        parts: the prior function of each output that has one.
        num_members: M.
        seed: decides their weights, together with the names of outputs.
    """

    def __init__(self, parts: Mapping[str, PriorFunction], num_members: int, seed: int) -> None:
        self._parts = {name: draft_priors(part, num_members, _named(seed, name)) for name, part in parts.items()}
        self.models = []
        if self.has_known_outputs:
            self._join(None)

    @property
    def has_known_outputs(self) -> bool:
        """Whether all of them have their variables and an output shape already."""
        return all(draft.has_known_outputs for draft in self._parts.values())

    def see(self, examples: Callable[[], Any], member: keras.Model, sample: Any, name: str | None = None) -> None:
        """Makes those that wait for data."""
        for name, draft in self._parts.items():
            draft.see(examples, member, sample, name)

    def build_on(self, sample: Any) -> None:
        """Creates the variables of models that were returned unbuilt."""
        for draft in self._parts.values():
            draft.build_on(sample)
        if not self.models:
            self._join(sample)

    def _join(self, sample: Any) -> None:
        drafts = self._parts.values()
        known = [keras_private.input_structure(draft.models[0]) for draft in drafts]
        leaf = next((one for one in known if one is not None), sample)
        leaf = leaf[0] if isinstance(leaf, list | tuple) and len(leaf) == 1 else leaf
        for models in zip(*(draft.models for draft in drafts), strict=True):
            inputs = keras.tree.map_structure(_input_like, leaf)
            said = {name: model(inputs) for name, model in zip(self._parts, models, strict=True)}
            self.models.append(keras.Model(inputs, said))

    def draw_apart(self, frozen: bool) -> None:
        """Draws again what came out the same for two members."""
        for draft in self._parts.values():
            draft.draw_apart(frozen)


def _named(seed: int, name: str) -> int:
    """Returns the seed of one of several priors, so that no two repeat each other's draws."""
    return int(np.random.SeedSequence([seed & (2**64 - 1), zlib.crc32(name.encode())]).generate_state(1)[0])


def _input_like(tensor: Any) -> Any:
    dtype = keras.backend.standardize_dtype(tensor.dtype)
    name = tensor.name if isinstance(tensor, keras.KerasTensor) else None
    return keras.Input(tuple(tensor.shape[1:]), dtype=dtype, name=name)


def _coincide(variables: Sequence[Any]) -> bool:
    """Whether two of the variables have the same value."""
    heads = {np.asarray(variable).ravel()[:_COMPARED].tobytes() for variable in variables}
    if len(heads) == len(variables):
        return False
    return len({np.asarray(variable).tobytes() for variable in variables}) < len(variables)


def _is_constant(initializer: Any) -> bool:
    """Whether an initializer, None for a value given as such, always gives the same and says so by its type."""
    return initializer is None or type(initializer).__module__.startswith("keras.")


# What runs them.


def assemble_all(drafts: Sequence[Draft], check: Any, **options: Any) -> list[MemberStack | SeparateMembers]:
    """Returns the members, and the priors if there is a second draft, as layers.

    Args:
        drafts: of members, and of priors.
        check: as `assemble` takes it, or by name, as a saved file has it.
        **options: of `assemble` and the layers.
    """
    names = ("members", "priors")[: len(drafts)]
    found = [check.get(name, False) if isinstance(check, dict) else check for name in names]
    return [
        assemble(draft, name == "priors", checked, **options)
        for draft, name, checked in zip(drafts, names, found, strict=True)
    ]


def assemble(
    draft: Draft, prior: bool, checked: bool | str, sample: Any, **options: Any
) -> MemberStack | SeparateMembers:
    """Returns the models of a draft as one layer: stacked, where the stack says what each of them says alone.

    Args:
        draft: built models.
        prior: whether they are priors, which are never trained.
        checked: True to compare; False to stack without a look; a text for models that are known to run separately,
            and why.
        sample: a batch that the models were built on, or None for models that know their inputs.
        **options: of the layer.
    """
    options.update(name="priors" if prior else "members", trainable=not prior)
    looked_at = draft.models if sample is None else draft.models[:1]  # A call of each would take its time.
    said = [structure.of(model, sample, "a prior" if prior else "members") for model in looked_at]
    if any(one.form is dict and one.names != said[0].names for one in said):
        raise ValueError(f"Expected outputs of the same names. Received: {sorted({one.names for one in said})}")
    if kinds := {kind for kind in ("sparse", "ragged") if probe.takes(draft.models[0], kind)}:
        raise ValueError(f"Expected models with dense inputs. Received: keras.Input({kinds.pop()}=True)")
    draft.draw_apart(frozen=prior)
    reason = None if prior else probe.own_loss(draft.models)
    if checked is True:
        with seeded(0, 0):  # A call that is traced may draw.
            if prior:
                probe.check_fixed(draft.models[0], sample)
            reason = reason or probe.why_separate(draft.models, sample)
    else:
        reason = checked or reason or probe.other_shapes(draft.models)
    if reason is None:
        return MemberStack(draft.models, **options)
    if checked is True:
        what = "Priors" if prior else "Members"
        warnings.warn(f"{what} run each with its own graph, which is slower: {reason}.", stacklevel=6)
    return SeparateMembers(draft.models, reason=reason, **options)
