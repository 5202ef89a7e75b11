"""Random regression problems of section 4: inputs, noise that may depend on them, coefficients drawn from the prior.

Shapes are those of `linear`, with one leading dimension of problems.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import tensorflow as tf

from tf_ensembles import checks, linear
from tf_ensembles.base import Array
from tf_ensembles.draws import Purpose
from tf_ensembles.linear import inputs as linear_input
from tf_ensembles.linear.inputs import DTYPE, Tensor

_CHUNK_NUMBERS = 4_000_000  # Inputs are drawn 32 MB at a time, however many problems are asked for.


@dataclasses.dataclass(frozen=True)
class ConstantNoise:
    """Noise of one variance everywhere."""

    variance: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Returns `sigma^2(x)`, `[...]`, for inputs `[..., d]`."""
        return tf.fill(tf.shape(x)[:-1], tf.constant(self.variance, DTYPE))


@dataclasses.dataclass(frozen=True)
class DirectionalNoise:
    """Noise that grows along one direction: `sigma^2(x) = variance (1 + h (u . x)^2) / (1 + h)`.

    With `u` scaled so that `u . x` has variance 1, the mean noise variance is `variance` for every `h`.
    """

    direction: tuple[float, ...]  # u
    heteroscedasticity: float  # h: zero is constant noise
    variance: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """Returns `sigma^2(x)`, `[...]`, for inputs `[..., d]`."""
        along = tf.linalg.matvec(x, tf.constant(self.direction, DTYPE))
        return self.variance * (1.0 + self.heteroscedasticity * tf.square(along)) / (1.0 + self.heteroscedasticity)


@dataclasses.dataclass(frozen=True, eq=False)
class Setting:
    """A distribution of regression problems: `x ~ N(0, input_covariance)`, `theta* ~ N(0, prior_variance I)`."""

    num_data: int  # T
    input_covariance: Array  # [d, d]
    noise: Callable[[Tensor], Tensor] = ConstantNoise()  # sigma^2(x), from [..., d] to [...]
    prior_variance: float = 1.0  # s0^2

    def __post_init__(self) -> None:
        covariance = checks.floats("input_covariance", self.input_covariance)
        if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
            raise ValueError(f"Expected input_covariance of shape [d, d]. Received: {covariance.shape}")
        checks.integer("num_data", self.num_data, 0)
        checks.number("prior_variance", self.prior_variance, "(0, inf)")

    @property
    def dim(self) -> int:
        """The dimension `d` of inputs and coefficients."""
        return len(self.input_covariance)


@dataclasses.dataclass(frozen=True)
class Problems:
    """Problems drawn from one setting."""

    x: Tensor  # [problems, T, d]
    y: Tensor  # [problems, T]
    noise_variance: Tensor  # [problems, T]
    prior_variance: float
    theta: Tensor  # [problems, d], the truth

    def posterior(self) -> linear.Gaussian:
        """The exact posteriors."""
        return linear.posterior(self.x, self.y, self.noise_variance, self.prior_variance)

    def distribution(
        self, agent: linear.LinearAgent | str, agent_prior_variance: Tensor | None = None
    ) -> linear.Gaussian:
        """The distributions of an agent's members."""
        loss = linear.agent_parameters(agent, self.noise_variance, self.prior_variance, agent_prior_variance)
        return linear.ensemble_distribution(self.x, self.y, *loss.arguments())


def make_setting(
    dim: int,
    num_data: int,
    condition: float = 1.0,
    heteroscedasticity: float = 0.0,
    snr: float = 1.0,
    seed: int = 0,
    noise_along: Literal["weakest", "strongest"] = "weakest",
) -> Setting:
    """Returns a setting whose input covariance has the condition number asked for, in a random orientation.

    The eigenvalues are geometric with mean 1, the prior variance is 1 and the mean noise variance `1 / snr`. Noise
    grows along the direction in which inputs vary least (`"weakest"`), so that heteroscedasticity worsens the
    conditioning of Gamma, or most (`"strongest"`), where it makes up for the inputs' own conditioning.
    """
    checks.option("noise_along", noise_along, ("weakest", "strongest"))
    checks.integer("dim", dim, 1)
    checks.fits(dim * dim, f"dim={dim}")
    checks.number("condition", condition, "[1, inf)")
    checks.number("heteroscedasticity", heteroscedasticity, "[0, inf)")
    checks.number("snr", snr, "(0, inf)")
    checks.seed(seed)
    eigenvalues = np.geomspace(1.0, 1.0 / condition, dim)
    eigenvalues /= eigenvalues.mean()
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(dim, dim)))
    noise: Callable[[Tensor], Tensor] = ConstantNoise(1.0 / snr)
    checks.check_result("the noise", [1.0 / snr, 1.0 / math.sqrt(eigenvalues.min())], snr=snr, condition=condition)
    if heteroscedasticity > 0.0:
        axis = -1 if noise_along == "weakest" else 0
        direction = tuple((basis[:, axis] / math.sqrt(eigenvalues[axis])).tolist())
        noise = DirectionalNoise(direction, heteroscedasticity, 1.0 / snr)
    return Setting(num_data, (basis * eigenvalues) @ basis.T, noise)


def sample_inputs(
    setting: Setting, shape: tuple[int, ...], seed: int, stream: int = Purpose.LINEAR_INPUTS.stream
) -> Tensor:
    """Draws inputs `[*shape, d]`."""
    eigenvalues, basis = np.linalg.eigh(np.asarray(setting.input_covariance, np.float64))
    if eigenvalues[0] < -1e-9 * abs(eigenvalues[-1]):
        raise ValueError(f"Expected input_covariance without negative eigenvalues. Received: {eigenvalues[0]}")
    checks.fits(math.prod([*shape, setting.dim]), f"inputs of shape {[*shape, setting.dim]}")
    normal = linear_input.normals([*shape, setting.dim], seed, stream)
    return tf.matmul(normal * np.sqrt(np.maximum(eigenvalues, 0.0)), tf.constant(basis), transpose_b=True)


def sample_problems(setting: Setting, num_problems: int, seed: int) -> Problems:
    """Draws `num_problems` problems at once."""
    checks.integer("num_problems", num_problems, 1)
    x = sample_inputs(setting, (num_problems, setting.num_data), seed)
    noise_variance = setting.noise(x)
    normal = linear_input.normals([num_problems, setting.dim], seed, Purpose.LINEAR_COEFFICIENTS.stream)
    theta = math.sqrt(setting.prior_variance) * normal
    noise = linear_input.normals([num_problems, setting.num_data], seed, Purpose.LINEAR_NOISE.stream)
    y = tf.linalg.matvec(x, theta) + tf.sqrt(noise_variance) * noise
    return Problems(x, y, noise_variance, setting.prior_variance, theta)


def problem_chunks(setting: Setting, num_problems: int, seed: int) -> Iterator[Problems]:
    """Draws `num_problems` problems, a bounded amount of memory at a time."""
    chunk = max(1, _CHUNK_NUMBERS // max(setting.num_data * setting.dim, 1))
    for index, start in enumerate(range(0, num_problems, chunk)):
        # A large stride keeps the chunks of one seed apart from those of the next.
        yield sample_problems(setting, min(chunk, num_problems - start), seed * 1_000_003 + index)


def exact_gamma(setting: Setting) -> Array:
    """Returns the eigenvalues of `Gamma = E[s0^2 x x' / sigma^2(x)]`, ascending, `[d]`; needs constant noise."""
    if not isinstance(setting.noise, ConstantNoise):
        raise ValueError(f"Expected constant noise; use monte_carlo_gamma. Received: {setting.noise}")
    return np.linalg.eigvalsh(setting.input_covariance) * setting.prior_variance / setting.noise.variance


def monte_carlo_gamma(setting: Setting, num_inputs: int, seed: int, num_parts: int = 20) -> tuple[Array, Array]:
    """Estimates the eigenvalues of Gamma from draws of x, for any noise.

    Returns:
      The estimate from all inputs, `[d]`, and those from each of `num_parts` equal parts, `[parts, d]`, whose scatter
      tells the error of anything computed from gamma.
    """
    checks.integer("num_parts", num_parts, 1)
    size = checks.integer("num_inputs", num_inputs, 1) // num_parts
    if size < setting.dim:
        raise ValueError(f"Expected num_inputs >= {num_parts * setting.dim}. Received: {num_inputs}")
    parts = []
    for part in range(num_parts):
        x = sample_inputs(setting, (size,), seed, stream=Purpose.LINEAR_GAMMA.stream + part)
        parts.append(
            setting.prior_variance * tf.matmul(x / setting.noise(x)[:, tf.newaxis], x, transpose_a=True) / size
        )
    matrices = np.stack(parts)
    return np.linalg.eigvalsh(matrices.mean(axis=0)), np.linalg.eigvalsh(matrices)
