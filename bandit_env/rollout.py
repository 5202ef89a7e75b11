"""The fast path: Thompson sampling on all problems, compiled as one loop that keeps sufficient statistics only.

It makes the draws that `EnsembleThompsonAgent` makes on `HeteroscedasticLinearBandit` in a TF-Agents driver, so the two
agree in distribution and, up to rounding, in every action. Problems run in chunks whose data fit into a core's cache,
side by side on the cores. Memory does not grow with the horizon: steps run in blocks, and a block returns two numbers
per step.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tf_ensembles import checks, machine
from tf_ensembles.bandit_env import problems, simulation, thompson
from tf_ensembles.bandit_env.thompson import AgentParameters
from tf_ensembles.base import Array

CHUNK = 2500  # problems per chunk at most: their data fit into a few hundred kilobytes; smaller ones were no faster


@dataclasses.dataclass(frozen=True)
class BanditResult:
    """Cumulative regret, averaged over problems (Algorithm 1)."""

    regret: Array  # [horizon], the mean cumulative regret after each step
    standard_error: Array  # [horizon], of that mean
    marks: tuple[int, ...]  # the numbers of steps at which each problem's own regret is kept
    problem_regret: Array  # [marks, problems]; differences between agents on the same problems are paired


def run_bandit(
    agent_name: str,
    num_problems: int,
    horizon: int,
    num_actions: int = 4,
    dim: int = 2,
    prior_scale: float = 1.0,
    seed: int = 0,
    *,
    num_members: int | None = None,
    parameters: AgentParameters | None = None,
    noise: problems.NoiseFunction = problems.diagonal_noise,
    marks: Sequence[int] | None = None,
    first_problem: int = 0,
    progress: bool = False,
) -> BanditResult:
    """Runs Thompson sampling with an ensemble on many heteroscedastic linear bandits and returns its regret.

    Args:
      agent_name: "ensemble-n", "ensemble-p", "ensemble-p-weighted" or "ensemble-bp".
      num_problems: J. Each has its own actions, theta* and noise.
      horizon: T, the number of steps.
      num_actions: N.
      dim: d.
      prior_scale: s0; theta* is drawn from `N(0, s0^2 I)`.
      seed: decides problems, rewards and the agent's draws. Agents with the same seed meet the same problems and the
        same reward noise.
      num_members: M fixed members (ensemble sampling); None for the paper's infinite ensemble.
      parameters: tuned parameters; None for Table 2's.
      noise: gives the noise variances of the actions.
      marks: numbers of steps at which to keep each problem's regret; None for `[horizon]`.
      first_problem: the number of the first problem. A problem's run depends on its number, not on which others are
        run with it, so that work can be split.
      progress: whether to show a progress bar.
    """
    horizon, num_problems = checks.integer("horizon", horizon, 1), checks.integer("num_problems", num_problems, 1)
    checks.fits(4 * horizon, f"horizon={horizon}")
    if num_members is not None:
        num_members = checks.integer("num_members", num_members, 1)
        checks.fits(2 * num_members * num_problems, f"num_members={num_members} of {num_problems} problems")
    kept = (horizon,) if marks is None else tuple(sorted(set(checks.integers("marks", marks, 1, horizon))))
    thompson.check_agent(agent_name, parameters)
    made = problems.make_problems(num_problems, num_actions, dim, prior_scale, seed, noise, first_problem)
    loss = thompson.make_loss(agent_name, made.noise_variance, prior_scale, parameters)
    # Equal sizes, where they can be, so that XLA compiles once.
    parts = np.array_split(np.arange(num_problems), math.ceil(num_problems / CHUNK))
    chunks = [simulation.Simulation(made.part(rows), loss.part(rows), num_members, seed) for rows in parts]
    result = _run(chunks, horizon, kept, progress)
    checks.check_result("regret", result.regret, prior_scale=prior_scale, noise_variance=made.noise_variance)
    return result


def _run(chunks: list[simulation.Simulation], horizon: int, marks: tuple[int, ...], progress: bool) -> BanditResult:
    import tqdm

    totals, kept, done = [], [], 0
    with (
        concurrent.futures.ThreadPoolExecutor(min(len(chunks), machine.usable_cores())) as pool,
        tqdm.tqdm(total=horizon, unit="step", disable=not progress) as bar,
    ):
        while done < horizon:
            stop = min([done + simulation.BLOCK, horizon, *(mark for mark in marks if mark > done)])
            span = done, stop - done
            totals.append(sum(pool.map(lambda chunk, span=span: chunk.advance(*span), chunks)))
            bar.update(stop - done)
            done = stop
            if done in marks:
                kept.append(np.concatenate([chunk.regret for chunk in chunks]))
    count = sum(len(chunk.regret) for chunk in chunks)
    mean, square = np.concatenate(totals).T / count
    # The variance of one problem is unknown, not zero.
    error = np.sqrt(np.maximum(square - mean**2, 0.0) / (count - 1)) if count > 1 else np.full(horizon, math.nan)
    return BanditResult(mean, error, marks, np.reshape(kept, [len(marks), count]))
