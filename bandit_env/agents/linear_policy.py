"""The policy of linear ensembles: an infinite one's exact distribution, or M members."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tf_ensembles.bandit_env import choice as choice_lib
from tf_ensembles.bandit_env import propensities, steps, thompson
from tf_ensembles.bandit_env.agents import policy as policy_lib
from tf_ensembles.bandit_env.agents.features import Design, Form
from tf_ensembles.bandit_env.linear_models import LinearModels
from tf_ensembles.linear.inputs import DTYPE, Tensor

MAX_INDEPENDENT = 64  # actions whose probabilities are found by quadrature


class LinearThompsonPolicy(policy_lib.ThompsonPolicy):
    """Decides from the distribution of a linear ensemble, or from its M members."""

    def __init__(
        self,
        time_step_spec: Any,
        action_spec: Any,
        models: LinearModels,
        design: Design,
        options: policy_lib.Options,
    ) -> None:
        self.models, self.design = models, design
        super().__init__(time_step_spec, action_spec, options, "linear_thompson_policy")
        self._compiled = tf.function(self._draw_fast, jit_compile=True, autograph=False)

    def set_replica(self, replica: int) -> None:
        """As for any policy; agents of many problems have no replicas, because a row is a problem there."""
        if replica:
            self._check_replicas()
        super().set_replica(replica)

    def _check_replicas(self) -> None:
        if self.models.sizes.num_problems > 1:
            raise ValueError(f"Expected replicas of an agent with one problem. Received: {self.models.sizes}")

    def _checked(self, observation: Any) -> Any:
        observation = super()._checked(observation)
        batch, problems = tf.nest.flatten(observation)[0].shape[0], self.models.sizes.num_problems
        if problems > 1 and batch not in (None, problems):
            raise ValueError(f"Expected a batch of the agent's {problems} problems. Received: {batch} rows")
        return observation

    def _features(self, observation: Any) -> Tensor:
        return self.design.raw(observation)

    def taken_features(self, observation: Any, action: Tensor, chosen_arm_features: Any) -> Tensor:
        """Returns the raw features of decisions that come back with their rewards, `[batch, width]`."""
        return self.design.taken(observation, action, chosen_arm_features)

    def _draw(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> Tensor:
        sizes = self.models.sizes
        if self.design.form is Form.SHARED and sizes.num_problems > 1 and sizes.dim <= thompson.MAX_UNROLLED_DIM:
            features = tf.ensure_shape(features, [sizes.num_problems, None, None])
            return self._compiled(features, step, tf.ensure_shape(rows, [sizes.num_problems]), key)
        if sizes.num_members is None:
            normals = steps.normal(key, step, rows, sizes.num_models * sizes.dim)
            shape = [tf.shape(rows)[0], sizes.num_models, sizes.dim]
            theta = self.models.sample(tf.reshape(tf.transpose(normals), shape))
        else:
            theta = self._picked(thompson.pick_members(steps.uniform(key, step, rows, 1)[0], sizes.num_members))
        return self.design.values(self.design.expand(features), theta)

    def _draw_fast(self, features: Tensor, step: Tensor, rows: Tensor, key: Tensor) -> Tensor:
        """Many problems of few features: the rollout's own operations, compiled over all problems."""
        last = tf.transpose(tf.cast(features, DTYPE), [1, 2, 0])
        sums, members = self.models.fast_sums(), self.models.sizes.num_members
        deviation = self.models.anchor_deviation()
        return tf.transpose(thompson.choose(sums, last, step, rows, key, self.models.loss.spread, deviation, members))

    def _picked(self, member: Tensor) -> Tensor:
        """Returns the parameters of one member per row, `[rows, models, dim]`."""
        sizes = self.models.sizes
        roots, targets = self.models.roots(), self.models.targets()
        if sizes.num_problems == 1:
            chosen = tf.gather(targets, member, axis=1)  # [models, rows, dim]
            return tf.transpose(tf.matmul(tf.matmul(chosen, roots), roots, transpose_b=True), [1, 0, 2])
        shape = [sizes.num_problems, sizes.num_models, sizes.num_members, sizes.dim]
        chosen = tf.gather(tf.transpose(tf.reshape(targets, shape), [0, 2, 1, 3]), member, batch_dims=1)
        roots = tf.reshape(roots, [*shape[:2], sizes.dim, sizes.dim])
        return tf.linalg.matvec(roots, tf.linalg.matvec(roots, chosen, transpose_a=True))

    def _members(self, features: Tensor) -> Tensor:
        """Returns what all members predict, `[batch, members, actions]`."""
        sizes = self.models.sizes
        shape = [sizes.num_problems, sizes.num_models, sizes.num_members, sizes.dim]
        theta = tf.reshape(self.models.members(self.models.roots()), shape)
        x = self.design.expand(features)
        if self.design.form is Form.DISJOINT:  # [batch, dim] with [problems, actions, members, dim]
            if sizes.num_problems == 1:
                return tf.einsum("bd,nmd->bmn", x, theta[0])
            return tf.einsum("bd,bnmd->bmn", x, theta)
        if sizes.num_problems == 1:
            return tf.einsum("bnd,md->bmn", x, theta[0, 0])
        return tf.einsum("bnd,bmd->bmn", x, theta[:, 0])

    def _normal(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean `[batch, actions]` and a factor of the covariance `[batch, actions, dim]`: infinite ones."""
        sizes = self.models.sizes
        roots = self.models.roots()
        shape = [sizes.num_problems, sizes.num_models, sizes.dim]
        mean = tf.reshape(self.models.means(roots), shape)
        spread = tf.reshape(self.models.spread(roots), [*shape, sizes.dim])
        x = self.design.expand(features)
        if self.design.form is Form.DISJOINT:
            if sizes.num_problems == 1:
                factor = tf.transpose(tf.matmul(x[tf.newaxis], spread[0]), [1, 0, 2])
            else:
                factor = tf.einsum("bd,bnde->bne", x, spread)
        else:
            factor = tf.matmul(x, spread[:, 0])
        return self.design.values(x, mean), factor

    def _moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        if self.models.sizes.num_members is not None:
            values = self._members(features)
            return tf.reduce_mean(values, axis=1), tf.math.reduce_std(values, axis=1)
        mean, factor = self._normal(features)
        return mean, tf.norm(factor, axis=-1)

    def _samples(self, features: Tensor) -> Tensor:
        if self.models.sizes.num_members is not None:
            return self._members(features)
        mean, factor = self._normal(features)
        if self.design.form is Form.DISJOINT:  # Models of different actions are independent.
            factor = tf.linalg.diag(tf.norm(factor, axis=-1))
        return choice_lib.normal_samples(mean, factor)

    def _probabilities(self, features: Tensor, mask: Tensor | None) -> Tensor:
        if self.models.sizes.num_members is not None:
            return super()._probabilities(features, mask)
        mean, factor = self._normal(features)
        if self.design.form is Form.DISJOINT and self.num_actions <= MAX_INDEPENDENT:
            return choice_lib.best_of_independent(mean, tf.norm(factor, axis=-1), mask)
        if self.design.form is not Form.DISJOINT and self._rank <= propensities.MAX_RANK >= self.num_actions:
            return propensities.all_correlated(mean, factor, self._rank, mask)
        return super()._probabilities(features, mask)

    def _propensities(self, features: Tensor, mask: Tensor | None, action: Tensor) -> Tensor:
        if self.models.sizes.num_members is not None:
            return super()._propensities(features, mask, action)
        mean, factor = self._normal(features)
        if self.design.form is Form.DISJOINT and self.num_actions <= MAX_INDEPENDENT:
            return propensities.independent(mean, tf.norm(factor, axis=-1), action, mask)
        if self.design.form is not Form.DISJOINT and self._rank <= propensities.MAX_RANK:
            return propensities.correlated(mean, factor, action, self._rank, mask)
        return super()._propensities(features, mask, action)

    @property
    def _rank(self) -> int:
        """The number of dimensions in which values of actions differ: features that they share make no difference."""
        return min(self.num_actions - 1, self.design.num_arm)
