"""The exact predictive distribution of a regression ensemble: the mixture of its members' distributions.

Results are batch first: `[batch, targets]`, several levels `[batch, targets, levels]`, draws `[batch, draws, targets]`.
Everything goes by slices of rows, so that memory beside the results is bounded; where members' outputs are too many to
keep, they are computed again for every question.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from tf_ensembles import checks, draws
from tf_ensembles.metrics.likelihood import SLICE_ELEMENTS, Floats, log_mean_exp
from tf_ensembles.regression import components, heads

# Keys of the draws of one seed lie side by side; those of two seeds are this far apart.
_KEYS_PER_SEED = 2**32


class PredictiveDistribution:
    """The mixture over members of what each predicts, as `Ensemble.predict_distribution` returns it.

    Args:
        head: what columns mean.
        parts: called for each question; yields members' outputs `[rows, members, outputs]`, in order.
        seed: the ensemble's, which decides `joint_sample` together with its keys.
    """

    def __init__(self, head: heads.Head, parts: Callable[[], Iterator[Any]], seed: int = 0) -> None:
        self._head, self._parts, self._seed = head, parts, seed

    @classmethod
    def of_outputs(cls, head: heads.Head, outputs: ArrayLike, seed: int = 0) -> PredictiveDistribution:
        """Returns the distribution of members' outputs in memory, `[batch, members, outputs]`."""
        array = checks.array("outputs", outputs)
        checks.check_range("outputs", array, checks.LARGEST_VALUE)
        if array.ndim != 3 or 0 in array.shape:
            raise ValueError(f"Expected outputs [batch, members, outputs], not empty. Received: {array.shape}")
        return cls(head, lambda: iter([array]), checks.seed(seed))

    # What is asked most: moments.

    @functools.cached_property
    def mean(self) -> Floats:
        """The mixture's mean, `[batch, targets]`."""
        return self._map(lambda outputs: np.asarray(tf.reduce_mean(self._head.means(outputs), axis=1)))

    @functools.cached_property
    def epistemic_std(self) -> Floats:
        """The standard deviation of the members' means, `[batch, targets]`: what more data would remove."""
        return self._map(lambda outputs: np.asarray(tf.math.reduce_std(self._head.means(outputs), axis=1)))

    @functools.cached_property
    def aleatoric_std(self) -> Floats:
        """The root of the members' mean variance, `[batch, targets]`: the noise of the targets."""

        def of(outputs: tf.Tensor) -> Any:
            variances = components.member_variances(self._head.components(outputs))
            return np.sqrt(np.asarray(tf.reduce_mean(variances, axis=1)))

        return self._map(of)

    @property
    def std(self) -> Floats:
        """The mixture's standard deviation, `[batch, targets]`: noise and disagreement together."""
        return np.hypot(self.aleatoric_std, self.epistemic_std)

    @property
    def member_mean(self) -> Floats:
        """Each member's mean, `[batch, members, targets]`."""
        return self._map(lambda outputs: np.asarray(self._head.means(outputs)))

    @property
    def member_std(self) -> Floats:
        """Each member's standard deviation, `[batch, members, targets]`."""
        return self._map(lambda outputs: np.sqrt(components.member_variances(self._head.components(outputs))))

    # Levels and values.

    def quantile(self, level: Any) -> Floats:
        """Returns exact quantiles of the mixture, to float32 precision or better.

        Args:
            level: a probability in (0, 1): `[batch, targets]`; or several: `[batch, targets, levels]`.
        """
        given = checks.array("level", level)
        several = given.ndim > 0
        levels = np.array([heads.check_level(one) for one in given.ravel().tolist()])
        tensor = tf.constant(levels, tf.float64)
        found = self._map(lambda outputs: _quantile(self._head, outputs, tensor), width=len(levels))
        checks.check_result("quantiles", found, level=given)
        return found if several else found[..., 0]

    def interval(self, level: float = 0.9) -> tuple[Floats, Floats]:
        """Returns the lower and upper end of the central interval of this probability, each `[batch, targets]`."""
        tail = 0.5 * (1.0 - heads.check_level(level))
        both = self.quantile([tail, 1.0 - tail])
        return both[..., 0], both[..., 1]

    def cdf(self, y: ArrayLike) -> Floats:
        """Returns the probability of a target at or below y, `[batch, targets]`; y may be `[batch]` for one target."""
        return self._map(
            lambda outputs, targets: np.asarray(components.cdf(self._head.components(outputs), targets)), _targets(y)
        )

    def log_prob(self, y: ArrayLike) -> Floats:
        """Returns the log-density of all targets of an example together, `[batch]`.

        Args:
            y: `[batch]` or `[batch, targets]`. A member's targets are independent, those of the mixture are not.
        """
        return log_mean_exp(self.member_log_prob(y))

    def member_log_prob(self, y: ArrayLike) -> Floats:
        """Returns each member's log-density of an example's targets, `[batch, members]`: what joint scores need."""

        def of(outputs: tf.Tensor, targets: tf.Tensor) -> Any:
            return np.asarray(components.log_likelihood(self._head.components(outputs), targets))

        return self._map(of, _targets(y))

    # Draws.

    def sample(self, num_draws: int, seed: int = 0) -> NDArray[np.float32]:
        """Returns independent draws of every row, `[batch, draws, targets]`: each has a member and noise of its own."""
        num_draws, seed = checks.integer("num_draws", num_draws, 1), checks.seed(seed)
        checks.fits(num_draws, f"num_draws={num_draws}")
        numbers = np.arange(num_draws)

        def of(outputs: tf.Tensor, first: int) -> Any:
            rows = np.arange(first, first + len(outputs))
            streams = 1 + components.num_streams(self._head.num_targets(outputs.shape[-1]))
            uniform = draws.uniform(seed, rows, numbers, streams, draws.Purpose.VALUE_DRAW)
            members = _member_index(uniform[..., 0], outputs.shape[1])
            chosen = tf.gather(outputs, members, axis=1, batch_dims=1)
            return components.draw(self._head.components(chosen), uniform[..., 1:], draws.to_normal)

        return self._map(of, offset=True, width=4 * num_draws, dtype=np.float32)

    def joint_sample(
        self, num_draws: int = 1, seed: int = 0, *, noise: bool = True, keys: Any = None
    ) -> NDArray[np.float32]:
        """Returns draws of one member each, across the whole batch, `[batch, draws, targets]`.

        Two rows of a draw go together as the members say they do: what a decision maker needs.

        Args:
            num_draws: how many.
            seed: decides the members and the noise, together with the ensemble's own seed.
            noise: whether to draw targets, or, if False, the members' means: functions without noise.
            keys: in place of the two before, integers `[draws]`: the draw of a key is what the signature `sample` of an
                exported ensemble returns for it.
        """
        num_draws = checks.integer("num_draws", num_draws, 1, _KEYS_PER_SEED)
        checks.fits(num_draws, f"num_draws={num_draws}")
        seed = checks.integer("seed", seed, 0, 2**31 - 1)
        numbers = np.arange(num_draws, dtype=np.int64) + seed * _KEYS_PER_SEED
        numbers = numbers if keys is None else checks.ids("keys", keys)

        def of(outputs: tf.Tensor, first: int) -> Any:
            member = draws.uniform(self._seed, numbers, [0], purpose=draws.Purpose.SERVED_MEMBER)[:, 0, 0]
            chosen = tf.gather(outputs, _member_index(member, outputs.shape[1]), axis=1)
            if not noise:
                return self._head.means(chosen)
            rows = np.arange(first, first + len(outputs))
            uniform = joint_uniform(self._seed, numbers, rows, self._head.num_targets(outputs.shape[-1]))
            return components.draw(self._head.components(chosen), tf.transpose(uniform, [1, 0, 2]), draws.to_normal)

        return self._map(of, offset=True, width=4 * len(numbers), dtype=np.float32)

    # Rows.

    def _map(
        self,
        function: Callable[..., Any],
        targets: Floats | None = None,
        *,
        offset: bool = False,
        width: int = 1,
        dtype: Any = np.float64,
    ) -> Any:
        """Returns what a function says of slices of rows, one after another.

        Args:
            function: takes outputs `[rows, members, outputs]` in float64; then targets `[rows, targets]` if there are
                any, or the number of the first row if `offset`.
            targets: of all rows, checked.
            offset: whether the function wants row numbers.
            width: how many numbers it makes of each output.
            dtype: of the result.
        """
        results, first = [], 0
        for part in self._parts():
            size = max(1, SLICE_ELEMENTS // (part.shape[1] * part.shape[2] * width))
            for start in range(0, len(part), size):
                outputs = tf.constant(np.asarray(part[start : start + size]), tf.float64)
                more: list[Any] = [first] if offset else []
                if targets is not None:
                    more = [_rows_of(targets, first, len(outputs), self._head.num_targets(part.shape[2]))]
                results.append(np.asarray(function(outputs, *more), dtype))
                first += len(outputs)
        if targets is not None and len(targets) != first:
            raise ValueError(f"Expected targets of {first} rows. Received: shape {targets.shape}")
        return np.concatenate(results)


def joint_uniform(seed: Any, keys: Any, rows: Any, num_targets: int) -> tf.Tensor:
    """Returns the uniform numbers behind the noise of joint draws, `[keys, rows, streams]`; in graphs, too."""
    return draws.uniform(seed, keys, rows, components.num_streams(num_targets), draws.Purpose.JOINT_NOISE)


def _member_index(uniform: tf.Tensor, num_members: int) -> tf.Tensor:
    """Returns members `[...]` from uniform numbers, which may round up to one past the last."""
    return tf.minimum(tf.cast(uniform * num_members, tf.int32), num_members - 1)


def _targets(y: ArrayLike) -> Floats:
    return checks.floats("targets", y, checks.LARGEST_VALUE)


def _rows_of(targets: Floats, first: int, count: int, num_targets: int) -> tf.Tensor:
    """Returns the targets of some rows, `[rows, targets]`, or raises where they do not fit."""
    part = targets[first : first + count] if targets.ndim else targets
    if part.size != count * num_targets or targets.ndim not in (1, 2):
        raise ValueError(f"Expected targets [batch, {num_targets}], one row for each. Received: {targets.shape}")
    return tf.constant(part.reshape(count, num_targets))


@functools.lru_cache(maxsize=64)
def _quantile_graph(head: heads.Head, num_outputs: int) -> Any:
    """The root search as a graph, which loops faster; one for each head."""
    signature = [tf.TensorSpec([None, None, num_outputs], tf.float64), tf.TensorSpec([None], tf.float64)]

    @tf.function(input_signature=signature, autograph=False)
    def run(outputs: tf.Tensor, levels: tf.Tensor) -> tf.Tensor:
        return components.quantile(head.components(outputs), levels)

    return run


def _quantile(head: heads.Head, outputs: tf.Tensor, levels: tf.Tensor) -> Any:
    head.components(outputs[:1])  # Raises here, where errors are short, what a head has to say.
    return np.asarray(_quantile_graph(head, outputs.shape[-1])(outputs, levels))
