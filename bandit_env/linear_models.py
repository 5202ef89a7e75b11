"""Linear models of rewards that learn online: sufficient statistics in matrix form, for any number of features.

Shapes: J problems, K models for each (one, or one per arm), D features, M members. Data are summed in C cells for each
problem: one per model, or one per arm where the noise of each arm is estimated. Sums are float64 and know no order:
data may come late, shuffled and in parts.

Up to `DIRECT_DIM` features, and for many problems, a decision factors the precision `A`. Beyond, a root `W` of its
inverse, `A^-1 = W W'`, is kept, and one reward changes it at a cost of D^2, by Potter's update: with `f = W' x` and
`r = 1 / sqrt(1 + nu |f|^2)`, `W <- W - (1 - r) / |f|^2 (W f) f'`. After `max(MIN_ROWS, 2 D)` rewards it is made anew
from the sums, so that rounding does not add up; the cost per reward stays of the order of D^2.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_ensembles import draws
from tf_ensembles.bandit_env import steps, thompson
from tf_ensembles.bandit_env.thompson import Loss, Spread
from tf_ensembles.bandit_env.window import Window
from tf_ensembles.linear.inputs import DTYPE, Tensor

DIRECT_DIM = 16
MIN_ROWS = 256  # rewards between two factorizations at least
FEW_ROWS = 16  # up to this many, sums of cells are scattered row by row
PRIOR_WEIGHT = 4.0  # observations that all arms together count for in the variance of one
_ROUNDS = 2  # of the noise's estimator
_GROWTH = 1.05  # of the number of data between two estimates, where they are dear


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How many of everything."""

    num_problems: int  # J
    num_actions: int  # N
    num_models: int  # K for each problem: 1, or N
    dim: int  # D
    num_members: Any  # M, or None for infinitely many


class Rewards(NamedTuple):
    """Rewards on their way into the sums, R rows."""

    problem: Tensor  # [R] int64
    action: Tensor  # [R] int64
    features: Tensor  # [R, D] float64
    reward: Tensor  # [R] float64
    keep: Tensor  # [R] float64, a weight of each
    id: Tensor  # [R] int64


class LinearModels(tf.Module):
    """The running distribution of linear ensembles, as variables that checkpoints keep.

    Args:
      sizes: of everything.
      loss: of the agent, for noise variances that are known; its regularizer and scales are used in any case.
      estimated: None for known noise; "arm" estimates a variance per arm, "mean" the mean over arms, "pooled" one over
        all data.
      in_units: whether the scale of the prior is in standard deviations of all rewards so far, which needs estimates.
      discount: what of older data is kept at each call of `learn`, 1 for all.
      window: rewards of each problem that are kept, the latest; None for all.
      seed: of the members' anchors and their perturbations of rewards.
      first: the number of the first problem.
    """

    def __init__(
        self,
        sizes: Sizes,
        loss: Loss,
        estimated: str | None = None,
        in_units: bool = False,
        discount: float = 1.0,
        seed: int = 0,
        first: int = 0,
        window: int | None = None,
    ) -> None:
        super().__init__(name="linear_models")
        self.window = None if window is None else Window(window * sizes.num_problems, sizes.dim)
        self.sizes, self.loss, self._discount, self._first = sizes, loss, discount, first
        self.estimated, self._forgets = estimated, discount < 1.0 or window is not None
        self._per_model = sizes.num_actions if estimated in ("arm", "mean") and sizes.num_models == 1 else 1
        self._num_cells = sizes.num_models * self._per_model
        total, dim, members = sizes.num_problems * self._num_cells, sizes.dim, sizes.num_members
        self._bootstrap = members is not None and loss.spread is Spread.PRECISION
        self._weight = tf.constant(loss.weight, DTYPE)
        self._target_noise = tf.constant(loss.target_noise, DTYPE)
        self._noise_key = draws.key(seed, draws.Purpose.BANDIT_TARGET)
        self.gram = _zeros([total, dim, dim], "gram")
        self.target = _zeros([total, dim], "target")
        self.anchors = self._make_anchors(seed, first) if members is not None else None
        self.perturbation = _zeros([total, members, dim], "perturbation") if self._bootstrap else None
        self.count: Any = None
        self.square: Any = None
        self.total: Any = None
        self.variance: Any = None
        if estimated is not None:
            self.count, self.square, self.total = (_zeros([total], name) for name in ("count", "square", "total"))
            self.variance = tf.Variable(tf.ones([total], DTYPE), trainable=False, name="variance")
            self._due = _zeros([], "due")  # the number of data at which the noise is estimated again
        # The variance of rewards that the prior's is a multiple of, [J].
        self.unit: Any = None
        if in_units:
            self.unit = tf.Variable(tf.ones([sizes.num_problems], DTYPE), trainable=False, name="unit")
        self.root: Any = None
        self._rows: Any = None
        if sizes.num_problems == 1 and dim > DIRECT_DIM:
            start = tf.eye(dim, batch_shape=[sizes.num_models], dtype=DTYPE) / np.sqrt(loss.regularizer)
            self.root = tf.Variable(start, trainable=False, name="root")
            self._rows = _zeros([], "rows")  # since the root was made from the sums
        # One graph for all sizes of batches, and a compiled one for a step of all of many problems.
        signature = [_row_specs(dim), tf.TensorSpec([None, None], DTYPE)]
        self._learn_any = tf.function(self._learn, autograph=False, input_signature=signature)
        self._learn_all = tf.function(self._learn, autograph=False, jit_compile=True)

    # Learning.

    def learn(self, rows: Rewards) -> None:
        """Adds rewards to the sums, and takes out those that leave the window."""
        if self.window is not None:
            rows = self.window.exchange(rows)
        noise = tf.zeros([1, 1], DTYPE)
        if self.perturbation is not None:  # Not compiled, so that a reward's is the same to the bit in any batch.
            drawn = steps.member_normals(self._noise_key, rows.id + self._first, self.sizes.num_members)
            noise = tf.cast(tf.transpose(drawn), DTYPE)
        whole = 1 < self.sizes.num_problems == rows.reward.shape[0]
        (self._learn_all if whole else self._learn_any)(rows, noise)

    def _learn(self, rows: Rewards, noise: Tensor) -> None:
        """Adds rewards; noise has the members' unit perturbations of them, `[R, M]`."""
        place = tf.stack([rows.problem, rows.action], axis=1)
        cell = self._cell(rows)
        known = self.estimated is None
        weight = rows.keep * tf.gather_nd(self._weight, place) if known else rows.keep
        if self._discount < 1.0:
            with tf.control_dependencies([rows.reward]):  # Rewards have been checked.
                for variable in (self.gram, self.target, self.perturbation, self.count, self.square, self.total):
                    if variable is not None:
                        variable.assign(self._discount * variable)
        self._add_cells(rows.features, rows.reward, weight, cell)
        if self.perturbation is not None:
            scale = weight * tf.gather_nd(self._target_noise, place) if known else weight
            parts = (scale[:, tf.newaxis] * noise)[:, :, tf.newaxis] * rows.features[:, tf.newaxis]
            self.perturbation.assign_add(tf.math.unsorted_segment_sum(parts, cell, self.target.shape[0]))
        if not known:
            self._count(rows, weight, cell)
        if self.root is not None:
            self._update_root(rows, weight, cell)
        elif not known:
            self._estimate()

    def _add_cells(self, x: Tensor, reward: Tensor, weight: Tensor, cell: Tensor) -> None:
        weighted = weight[:, tf.newaxis] * x
        total = self.target.shape[0]
        self.target.assign_add(tf.math.unsorted_segment_sum(weighted * reward[:, tf.newaxis], cell, total))
        if total == 1:
            self.gram.assign_add(tf.matmul(weighted, x, transpose_a=True)[tf.newaxis])
            return
        if self.sizes.num_problems > 1:
            outer = weighted[:, :, tf.newaxis] * x[:, tf.newaxis]
            self.gram.assign_add(tf.math.unsorted_segment_sum(outer, cell, total))
            return

        def scatter() -> Tensor:
            outer = weighted[:, :, tf.newaxis] * x[:, tf.newaxis]
            self.gram.scatter_nd_add(cell[:, tf.newaxis], outer)
            return tf.constant(0)

        def multiply() -> Tensor:
            own = tf.one_hot(cell, total, axis=0, dtype=DTYPE)[..., tf.newaxis] * weighted
            self.gram.assign_add(tf.matmul(own, tf.broadcast_to(x, tf.shape(own)), transpose_a=True))
            return tf.constant(0)

        tf.cond(tf.shape(cell)[0] <= FEW_ROWS, scatter, multiply)

    def _count(self, rows: Rewards, weight: Tensor, cell: Tensor) -> None:
        added = tf.stack([tf.ones_like(rows.reward), tf.square(rows.reward), rows.reward], axis=1)
        sums = tf.math.unsorted_segment_sum(weight[:, tf.newaxis] * added, cell, self.target.shape[0])
        for place, variable in enumerate((self.count, self.square, self.total)):
            variable.assign_add(sums[:, place])

    def _update_root(self, rows: Rewards, weight: Tensor, cell: Tensor) -> None:
        number = tf.shape(rows.reward)[0]
        after = self._rows.read_value() + tf.cast(number, DTYPE)
        anew = (after > max(MIN_ROWS, 2 * self.sizes.dim)) | (number > self.sizes.dim // 4) | self._forgets
        if self.estimated is not None:
            anew |= tf.reduce_sum(self.count) >= self._due
        model = cell // self._per_model
        weights = weight if self.estimated is None else weight / tf.gather(self.variance, cell)

        def refresh() -> Tensor:
            self.refresh()
            return tf.constant(0)

        def rank_one() -> Tensor:
            def body(i: Tensor) -> Tensor:
                here = model[i]
                root = tf.gather(self.root, here)
                changed = potter(root, rows.features[i], weights[i])
                self.root.scatter_nd_update([[here]], changed[tf.newaxis])
                return (i + 1,)

            tf.while_loop(lambda i: i < number, body, [tf.constant(0)], parallel_iterations=1)
            self._rows.assign(after)
            return tf.constant(0)

        tf.cond(anew, refresh, rank_one)

    def refresh(self) -> None:
        """Estimates the noise once more, where it is not known, and makes the root from the sums, where one is kept."""
        if self.estimated is not None:
            self._estimate()
            self._due.assign(_GROWTH * tf.reduce_sum(self.count))
        if self.root is not None:
            self.root.assign(_root(self.precision()))
            self._rows.assign(0.0)

    def _estimate(self) -> None:
        """Estimates the noise from squared residuals, arm by arm, and writes it to `variance`.

        Of an arm's n data, the fit used up `h = tr(A^-1 S) / v`, with `S = sum x x'` and `v` the variance so far. Its
        variance is `(a p + sum of squared residuals) / (a + n - h)` with `a = PRIOR_WEIGHT`. What an arm without data
        is given is `p`: the mean over arms, each counted as `(n - h) / (a + n - h)` of one, and as one arm more the
        variance of rewards within and between arms. So an arm that is hardly known is not taken to be as quiet as the
        one that most data come from.
        """
        shape = [self.sizes.num_problems, self._num_cells]
        count, square, total = (tf.reshape(part, shape) for part in (self.count, self.square, self.total))
        guess = _spread_of_rewards(count, square, total)
        if self.unit is not None:
            self.unit.assign(guess[:, 0])
        for _ in range(_ROUNDS):
            root = _root(self.precision())
            mean = self._solve(root, self._targets()[..., tf.newaxis])[..., 0]
            covariance = tf.matmul(root, root, transpose_b=True)
            if self._per_model > 1:
                mean, covariance = (tf.repeat(part, self._per_model, axis=0) for part in (mean, covariance))
            fitted = tf.reduce_sum(mean * (tf.linalg.matvec(self.gram, mean) - 2.0 * self.target), axis=1)
            rest = tf.maximum(square + tf.reshape(fitted, shape), 0.0)
            used = tf.reshape(tf.reduce_sum(covariance * self.gram, axis=[1, 2]) / self.variance, shape)
            free = tf.maximum(count - used, 0.0)
            if self.estimated == "pooled":
                found = (guess + _sum(rest)) / (1.0 + _sum(free))
            else:
                own, known = rest / (PRIOR_WEIGHT + free), free / (PRIOR_WEIGHT + free)
                found = (guess + _sum(own)) / (1.0 + _sum(known))
                if self.estimated == "arm":
                    found = (PRIOR_WEIGHT * found + rest) / (PRIOR_WEIGHT + free)
            self.variance.assign(tf.reshape(tf.maximum(found, 1e-12 * guess) * tf.ones(shape, DTYPE), [-1]))

    # What has been learned; models are `[J * K, ...]`.

    def precision(self) -> Tensor:
        """Returns A of each model, `[J * K, D, D]`."""
        data = self._by_model(self.gram.read_value())
        return data + self._regularizer()[:, tf.newaxis, tf.newaxis] * tf.eye(self.sizes.dim, dtype=DTYPE)

    def targets(self) -> Tensor:
        """Returns the right-hand sides: `[J * K, D]`, or the members' own, `[J * K, M, D]`."""
        data = self._targets()
        if self.anchors is None:
            return data
        # Anchors have the prior's scale, in the same units.
        scale = 1.0 if self.unit is None else tf.repeat(tf.sqrt(self.unit), self.sizes.num_models)
        own = (self._regularizer() * scale)[:, tf.newaxis, tf.newaxis] * self.anchors
        if self.perturbation is not None:
            own += self._by_model(self.perturbation.read_value(), deviation=True)
        return data[:, tf.newaxis] + own

    def roots(self) -> Tensor:
        """Returns W of each model, `[J * K, D, D]`, with `A^-1 = W W'`."""
        return _root(self.precision()) if self.root is None else self.root.read_value()

    def means(self, roots: Tensor) -> Tensor:
        """Returns the mean of the members' parameters, `[J * K, D]`."""
        target = self.targets()
        if self.anchors is not None:
            target = tf.reduce_mean(target, axis=1)
        return self._solve(roots, target[..., tf.newaxis])[..., 0]

    def members(self, roots: Tensor) -> Tensor:
        """Returns the parameters of all M members, `[J * K, M, D]`."""
        return tf.linalg.matrix_transpose(self._solve(roots, tf.linalg.matrix_transpose(self.targets())))

    def spread(self, roots: Tensor) -> Tensor:
        """Returns `R` `[J * K, D, D]` such that a member of the infinite ensemble is the mean plus `R z`."""
        if self.loss.spread is Spread.PRECISION:
            return roots
        return self.anchor_deviation()[:, tf.newaxis, tf.newaxis] * tf.matmul(roots, roots, transpose_b=True)

    def anchor_deviation(self) -> Tensor:
        """Returns `lambda * s0_hat` of each model, `[J * K]`."""
        deviation = self._regularizer() * self.loss.anchor_scale
        return deviation if self.unit is None else deviation * tf.repeat(tf.sqrt(self.unit), self.sizes.num_models)

    def sample(self, normals: Tensor) -> Tensor:
        """Draws a member of the infinite ensemble per row: theta `[rows, K, D]` from N(0, I) draws of that shape.

        For J problems, row j is problem j's; for one, all rows are its own.
        """
        roots, z = self.roots(), tf.cast(normals, DTYPE)
        shape = [self.sizes.num_problems, self.sizes.num_models, self.sizes.dim]
        mean = tf.reshape(self.means(roots), shape)
        by_problem = tf.reshape(roots, [*shape, self.sizes.dim])

        def times(z: Tensor, transposed: bool) -> Tensor:
            if self.sizes.num_problems == 1:  # Rows share the factors: one product for all.
                columns = tf.transpose(z, [1, 0, 2])
                return tf.transpose(tf.matmul(columns, by_problem[0], transpose_b=not transposed), [1, 0, 2])
            return tf.linalg.matvec(by_problem, z, transpose_a=transposed)

        if self.loss.spread is Spread.PRECISION:
            return mean + times(z, False)
        deviation = tf.reshape(self.anchor_deviation(), [*shape[:2], 1])
        return mean + deviation * times(times(z, True), False)

    def noise_variance(self) -> Tensor:
        """Returns the variances that are used, `[problems, actions]`."""
        if self.variance is None:
            return 1.0 / self._weight
        table = tf.reshape(self.variance, [self.sizes.num_problems, self._num_cells])
        return tf.broadcast_to(table, [self.sizes.num_problems, self.sizes.num_actions])

    def fast_sums(self) -> thompson.Sums:
        """Returns the sums in the form of the compiled rollout: for J problems of one model each, of few features."""
        precision, targets = self.precision(), self.targets()
        packed = [precision[:, i, j] for i, j in thompson.triangle(self.sizes.dim)]
        order = [1, 0] if self.anchors is None else [2, 1, 0]
        return thompson.Sums(packed, tf.transpose(targets, order))

    # Parts.

    def _cell(self, rows: Rewards) -> Tensor:
        by_action = self._num_cells > 1
        return rows.problem * self._num_cells + (rows.action if by_action else tf.zeros_like(rows.action))

    def _regularizer(self) -> Tensor:
        """Returns lambda of each model, `[J * K]`."""
        plain = tf.fill([self.sizes.num_problems * self.sizes.num_models], tf.constant(self.loss.regularizer, DTYPE))
        return plain if self.unit is None else plain / tf.repeat(self.unit, self.sizes.num_models)

    def _targets(self) -> Tensor:
        return self._by_model(self.target.read_value())

    def _by_model(self, cells: Tensor, deviation: bool = False) -> Tensor:
        """Weighs cells by their noise, where it is estimated, and adds them up by model."""
        if self.variance is not None:
            weight = 1.0 / self.variance
            if deviation:  # of unit normals
                weight *= tf.sqrt(self.variance)
            cells *= tf.reshape(weight, [-1, *([1] * (len(cells.shape) - 1))])
        if self._per_model == 1:
            return cells
        return tf.reduce_sum(tf.reshape(cells, [-1, self._per_model, *cells.shape[1:]]), axis=1)

    def _solve(self, roots: Tensor, right: Tensor) -> Tensor:
        return tf.matmul(roots, tf.matmul(roots, right, transpose_a=True))

    def _make_anchors(self, seed: int, first: int) -> Any:
        sizes = self.sizes
        rows = tf.range(first, first + sizes.num_problems, dtype=tf.int64)
        drawn = thompson.initial_anchors(
            sizes.num_members, rows, sizes.num_models * sizes.dim, self.loss.anchor_scale, seed
        )  # [K * D, M, J]
        parts = tf.reshape(drawn, [sizes.num_models, sizes.dim, sizes.num_members, sizes.num_problems])
        anchors = tf.reshape(tf.transpose(parts, [3, 0, 2, 1]), [-1, sizes.num_members, sizes.dim])
        return tf.Variable(tf.cast(anchors, DTYPE), trainable=False, name="anchors")


def potter(root: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Returns the root `[D, D]` of `(A + weight x x')^-1` from that of `A^-1`."""
    factor = tf.linalg.matvec(root, x, transpose_a=True)
    grown = weight * tf.reduce_sum(tf.square(factor))
    gain = weight / ((1.0 + grown) * (1.0 + tf.math.rsqrt(1.0 + grown)))
    return root - gain * tf.linalg.matvec(root, factor)[:, tf.newaxis] * factor[tf.newaxis]


def _spread_of_rewards(count: Tensor, square: Tensor, total: Tensor) -> Tensor:
    """Returns the variance of rewards within and between arms, each arm counted once, `[J, 1]` from `[J, C]`."""
    seen = tf.cast(count > 0.0, DTYPE)
    number, arms = tf.maximum(count, 1e-300), tf.maximum(_sum(seen), 1.0)
    squares, mean = _sum(seen * square / number) / arms, _sum(seen * total / number) / arms
    # Few rewards may be close by chance.
    guess = squares - tf.square(mean) + squares / tf.maximum(_sum(count), 1.0)
    return tf.where(guess > 0.0, guess, tf.ones_like(guess))


def _sum(values: Tensor) -> Tensor:
    return tf.reduce_sum(values, axis=1, keepdims=True)


def _root(precision: Tensor) -> Tensor:
    lower = tf.linalg.cholesky(precision)
    eye = tf.eye(precision.shape[-1], batch_shape=tf.shape(precision)[:1], dtype=DTYPE)
    return tf.linalg.matrix_transpose(tf.linalg.triangular_solve(lower, eye))


def _zeros(shape: list[Any], name: str) -> Any:
    return tf.Variable(tf.zeros(shape, DTYPE), trainable=False, name=name)


def _row_specs(dim: int) -> Rewards:
    whole, real = tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], DTYPE)
    return Rewards(whole, whole, tf.TensorSpec([None, dim], DTYPE), real, real, whole)
