"""How good is the rule by which `tfe.advise` chooses an ensemble? Measured on problems whose truth is known.

    python -m benchmarks.studies.advise_rule [--validation 200 1000] [--members 10 20]

Trains ensembles over a grid of prior scales, with and without bootstrap, on Neural Testbed problems, lets rules choose
one from labeled validation data, and compares its joint KL from the truth with the lowest of all, where 1 is perfect,
and with that of the plain ensemble, where above 1 is worse than not asking.
Also tells how often each metric's word on bootstrapping (a 95% interval that leaves out 0) agrees with the truth.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

from tf_ensembles.advice import scores as advisor_scores
from tf_ensembles.advice.scores import DYADIC, JOINT, Choice, Scores

# Inputs, training examples per input, temperature: few to many data, low to high noise.
SETTINGS = (
    (2, 10, 0.1),
    (2, 100, 0.5),
    (10, 1, 0.01),
    (10, 10, 0.01),
    (10, 1, 0.1),
    (10, 10, 0.1),
    (10, 100, 0.1),
    (10, 10, 0.5),
    (10, 100, 0.5),
    (100, 1, 0.01),
    (100, 10, 0.1),
)
SEEDS = (0, 1)
SCALES = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
AGENTS = ("ensemble-p", "ensemble-bp")
TAU, STEPS = 10, 400
# A difference in KL that is worth a word, in standard errors of its estimate.
SHOWN = 3.0


def train(setting: tuple[int, int, float], seed: int, members: int, examples: int) -> tuple[Any, Any, Any]:
    """Returns likelihoods `[agents, scales, examples, members]`, joint KLs and their errors `[agents, scales]`."""
    import tf_ensembles as tfe
    from trainers import make_agent

    dim, ratio, temperature = setting
    problem = tfe.testbed.make_problem(dim, ratio, temperature, seed)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(examples, dim)).astype(np.float32)
    y = problem.environment.draw_labels(x, rng)
    grid = (len(AGENTS), len(SCALES))
    likelihood, kl, error = np.empty((*grid, examples, members)), np.empty(grid), np.empty(grid)
    for agent, scale in np.ndindex(*grid):
        # The agent divides its prior scale by the root of the temperature.
        unscaled = SCALES[scale] * math.sqrt(temperature)
        agent_fn = make_agent(
            AGENTS[agent], num_members=members, num_steps=STEPS, prior_scale=unscaled, l2=0.0, seed=seed
        )
        predictive = agent_fn(problem.train, problem.prior_knowledge)
        quality = tfe.testbed.evaluate(predictive, problem, num_batches=400)
        likelihood[agent, scale] = tfe.metrics.member_log_likelihood(predictive(x), y)
        kl[agent, scale], error[agent, scale] = quality.kl_joint, quality.kl_joint_error
    return likelihood, kl, error


def make_scores(likelihood: Any) -> Scores:
    """Returns the advisor's scores of all agents and scales, at the whole ensemble's size."""
    grid = likelihood.shape[:2]
    size = (likelihood.shape[-1],)
    values, influence = zip(
        *(advisor_scores.score_members(likelihood[at], size, TAU) for at in np.ndindex(*grid)), strict=True
    )
    return Scores(
        np.moveaxis(np.reshape(values, (*grid, *values[0].shape)), 2, 0),
        np.moveaxis(np.reshape(influence, (*grid, *influence[0].shape)), 2, 0),
        np.ones(grid, bool),
    )


def choices(scores: Scores) -> dict[str, tuple[int, int]]:
    """Returns the agent and the scale that each rule chooses."""
    means = scores.means()
    agent = int(advisor_scores.bootstrap_difference(scores, JOINT).high < 0.0)
    joint, dyadic = (advisor_scores.gain(scores, agent, metric) for metric in (JOINT, DYADIC))
    best = advisor_scores.best_other(scores, agent, means)
    other = (best.arm, best.scale)
    near = means[JOINT, agent, :, -1].copy()
    for scale in range(len(SCALES)):
        candidate, lowest = Choice(agent, scale, -1), Choice(agent, int(np.argmin(means[JOINT, agent, :, -1])), -1)
        near[scale] -= scores.estimate(JOINT, candidate, lowest).error
    allowed = near <= means[JOINT, agent, :, -1].min()
    return {
        "advise": other if advisor_scores.beats_plain(joint, dyadic) else (0, 0),
        "joint NLL at 95%": other if joint.high < 0.0 else (0, 0),
        "joint NLL": (agent, int(np.argmin(means[JOINT, agent, :, -1]))),
        "dyadic near joint": (agent, int(np.argmin(np.where(allowed, means[DYADIC, agent, :, -1], np.inf)))),
        "dyadic NLL": (agent, int(np.argmin(means[DYADIC, agent, :, -1]))),
        "plain": (0, 0),
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--validation", type=int, nargs="+", default=[200, 1000], metavar="N")
    parser.add_argument("--members", type=int, nargs="+", default=[20], metavar="M")
    args = parser.parse_args()
    unit = 2 * advisor_scores.block_length(TAU)
    sizes = [n // unit * unit for n in args.validation]
    for members in args.members:
        trained = []
        for number, (setting, seed) in enumerate((setting, seed) for setting in SETTINGS for seed in SEEDS):
            print(f"\rtraining problem {number + 1} of {len(SETTINGS) * len(SEEDS)}", end="", flush=True)
            trained.append(train(setting, seed, members, max(sizes)))
        print()
        for examples in sizes:
            report(trained, members, examples)


def report(trained: list[tuple[Any, Any, Any]], members: int, examples: int) -> None:
    """Prints how the rules do with so many validation examples."""
    ratios: dict[str, list[tuple[float, float]]] = {}
    words: dict[str, list[str]] = {"joint NLL": [], "dyadic NLL": []}
    for likelihood, kl, error in trained:
        scores = make_scores(likelihood[:, :, :examples])
        for rule, at in choices(scores).items():
            ratios.setdefault(rule, []).append((kl[at] / kl.min(), kl[at] / kl[0, 0]))
        plain, other = (advisor_scores.best_scale(scores, arm, scores.means()) for arm in (0, 1))
        truth = (kl[1, other] - kl[0, plain]) / math.hypot(error[1, other], error[0, plain])
        for metric, name in ((JOINT, "joint NLL"), (DYADIC, "dyadic NLL")):
            told = advisor_scores.bootstrap_difference(scores, metric)
            said = told.estimate / told.error if told.excludes(0.0) else 0.0
            right = (said < 0 and truth < -SHOWN) or (said > 0 and truth > SHOWN)
            words[name].append("silent" if said == 0.0 else "right" if right else "wrong")
    print(f"\n{members} members, {examples} validation examples, {len(trained)} problems")
    print("joint KL of what is chosen over that of the best, and over the plain ensemble's, geometric mean and worst:")
    for rule, values in ratios.items():
        means, worst = np.exp(np.mean(np.log(values), axis=0)), np.max(values, axis=0)
        print(f"  {rule:<17} {means[0]:6.2f} {worst[0]:7.2f}   {means[1]:6.2f} {worst[1]:7.2f}")
    print(
        f"word on bootstrapping (right: the truth differs by more than {SHOWN:g} standard errors, in that direction):"
    )
    for name, listed in words.items():
        print(f"  {name:<11} " + ", ".join(f"{word} {listed.count(word)}" for word in ("right", "wrong", "silent")))


if __name__ == "__main__":
    main()
