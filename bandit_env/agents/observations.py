"""Reading observations: global and per-arm features, masks, and clear words for what does not fit."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tf_agents.bandits.specs import utils as bandit_spec_utils

from tf_ensembles.linear.inputs import Tensor

# Keys of an observation that has features of its own for each action.
GLOBAL, PER_ARM = bandit_spec_utils.GLOBAL_FEATURE_KEY, bandit_spec_utils.PER_ARM_FEATURE_KEY
# Where arms come and go: how many of the rows are arms, the first ones.
NUM_ACTIONS = bandit_spec_utils.NUM_ACTIONS_FEATURE_KEY


def arm_features(observation: Any, num_actions: int, dtype: Any = tf.float32) -> Tensor:
    """Returns the features of each action, `[batch, actions, features]`.

    Per-arm observations: global features, then the arm's. Global ones alone: the action as a one-hot vector follows.
    """
    if isinstance(observation, dict) and PER_ARM in observation:
        shared, own = tf.cast(observation[GLOBAL], dtype), tf.cast(observation[PER_ARM], dtype)
        if shared.shape[-1] == 0:
            return own
    else:
        shared = flat_global(observation, dtype)
        own = tf.broadcast_to(tf.eye(num_actions, dtype=dtype), [tf.shape(shared)[0], num_actions, num_actions])
    repeated = tf.repeat(shared[:, tf.newaxis], num_actions, axis=1)
    return tf.concat([repeated, own], axis=-1)


def taken_features(observation: Any, action: Tensor, chosen_arm_features: Any, num_actions: int) -> Tensor:
    """Returns the features of actions that were taken, `[batch, features]`, in the order of `arm_features`.

    Global features are the observation's own, and those of an arm come with the decision: `()` where arms have none.
    """
    plain = isinstance(chosen_arm_features, tuple)
    own = tf.one_hot(action, num_actions) if plain else tf.cast(chosen_arm_features, tf.float32)
    return tf.concat([flat_global(observation), own], axis=-1)


def flat_global(observation: Any, dtype: Any = tf.float32) -> Tensor:
    """Returns the global features, `[batch, features]`."""
    shared = observation[GLOBAL] if isinstance(observation, dict) else observation
    width = 1
    for size in shared.shape[1:]:
        width *= size
    return tf.cast(tf.reshape(shared, [tf.shape(shared)[0], width]), dtype)


def num_features(observation_spec: Any, num_actions: int) -> int:
    """Returns the number of features that `arm_features` gives for an observation of this spec."""
    num_global, num_arm = widths(observation_spec, num_actions)
    return num_global + (num_arm or num_actions)


def widths(observation_spec: Any, num_actions: int) -> tuple[int, int]:
    """Returns the numbers of global and of arm features."""
    check_spec(observation_spec, num_actions)
    if isinstance(observation_spec, dict) and PER_ARM in observation_spec:
        return int(observation_spec[GLOBAL].shape[-1]), int(observation_spec[PER_ARM].shape[-1])
    spec = observation_spec[GLOBAL] if isinstance(observation_spec, dict) else observation_spec
    return int(spec.shape.num_elements()), 0


def split_mask(observation: Any, num_actions: int) -> tuple[Any, Tensor | None]:
    """Returns features, and which actions there are, `[batch, actions]`, where the observation says how many."""
    if not isinstance(observation, dict) or NUM_ACTIONS not in observation:
        return observation, None
    number = tf.reshape(tf.cast(observation[NUM_ACTIONS], tf.int32), [-1, 1])
    features = {key: value for key, value in observation.items() if key != NUM_ACTIONS}
    return features, tf.range(num_actions)[tf.newaxis] < number


def check_spec(observation_spec: Any, num_actions: int) -> None:
    """Raises for observations that cannot be read: tuples with a mask, nests, arms that are not the actions."""
    if isinstance(observation_spec, tuple | list):
        raise ValueError(
            "Expected observations of features. Received: a tuple. For (features, mask), give "
            "observation_and_action_constraint_splitter=lambda pair: (pair[0], pair[1])"
        )
    if isinstance(observation_spec, dict):
        known = {GLOBAL, PER_ARM, NUM_ACTIONS}
        if GLOBAL not in observation_spec or not set(observation_spec) <= known:
            raise ValueError(f"Expected observations with keys {sorted(known)}. Received: {sorted(observation_spec)}")
        for key in (GLOBAL, PER_ARM):
            part = observation_spec.get(key)
            if part is not None and not isinstance(part, tf.TypeSpec):
                names = sorted(part) if isinstance(part, dict) else [f"part {place}" for place in range(len(part))]
                raise ValueError(
                    f"Expected the {key!r} features of an observation as one tensor; concatenate them into one. "
                    f"Received: {len(names)} of them: {', '.join(map(str, names))}"
                )
        if PER_ARM in observation_spec:
            shape = observation_spec[PER_ARM].shape
            if len(shape) != 2 or shape[0] != num_actions:
                raise ValueError(
                    f"Expected arm features of shape [{num_actions}, features], a row for each action of the "
                    f"action_spec. Received: {list(shape)}"
                )
    for spec in tf.nest.flatten(observation_spec):
        if not isinstance(spec, tf.TypeSpec) or not spec.shape.is_fully_defined():
            raise ValueError(f"Expected observations of known shapes. Received: {spec}")
        if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
            raise ValueError(f"Expected observations of numbers. Received: {spec}")


def check_shapes(observation: Any, observation_spec: Any) -> None:
    """Raises for an observation whose static shapes are not `[batch, *spec]`."""
    for name, (part, spec) in enumerate(
        zip(tf.nest.flatten(observation), tf.nest.flatten(observation_spec), strict=True)
    ):
        expected = tf.TensorShape([None]).concatenate(spec.shape)
        if not part.shape.is_compatible_with(expected):
            raise ValueError(
                f"Expected an observation of shape [batch, {', '.join(map(str, spec.shape))}] for "
                f"{spec.name or f'part {name}'}. Received: {list(part.shape)}"
            )


def check_action_spec(action_spec: Any) -> int:
    """Returns the number of actions, or raises for actions that are not scalar integers from 0."""
    try:
        low, high = int(action_spec.minimum), int(action_spec.maximum)
        fits = action_spec.dtype.is_integer and action_spec.shape.rank == 0 and low == 0 and high >= 0
    except (AttributeError, TypeError, ValueError):
        fits, high = False, 0
    if not fits:
        raise ValueError(f"Expected a scalar integer action_spec with minimum 0. Received: {action_spec}")
    return high + 1


def where_all_hold(value: Any, *conditions: tuple[Tensor, list[Any]]) -> Any:
    """Returns a value that exists only if all is well, so that nothing computed from it comes before the checks.

    Args:
        value: a tensor, or a nest of them.
        conditions: each with what an error prints where it does not hold.
    """
    operations = [tf.debugging.Assert(condition, data) for condition, data in conditions]
    with tf.control_dependencies([operation for operation in operations if operation is not None]):
        return tf.nest.map_structure(tf.identity, value)


def actions_fit(action: Tensor, num_actions: int) -> tuple[Tensor, list[Any]]:
    """Returns the condition that actions are in their range, with the words of its error."""
    words = [f"Expected actions in [0, {num_actions}). Received:", tf.reduce_min(action), "to", tf.reduce_max(action)]
    return tf.reduce_all((action >= 0) & (action < num_actions)), words
