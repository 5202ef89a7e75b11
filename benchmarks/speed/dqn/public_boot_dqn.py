"""Steps a second of bsuite's public boot_dqn (JAX) on deep sea of size 10 with 20 members, as its authors set it up.

Usage: `VENV/bin/python benchmarks/speed/dqn/public_boot_dqn.py`, in an environment of its own that has bsuite,
dm-haiku, jax, optax and rlax. It imports nothing of ours. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any


def run(agent: Any, environment: Any, num_steps: int) -> None:
    """Makes some steps, as `bsuite.baselines.experiment.run` does."""
    timestep = environment.reset()
    for _ in range(num_steps):
        if timestep.last():
            timestep = environment.reset()
        action = agent.select_action(timestep)
        after = environment.step(action)
        agent.update(timestep, action, after)
        timestep = after


def main() -> None:
    """Measures after compilation."""
    from bsuite.baselines.jax import boot_dqn  # type: ignore[import-not-found]
    from bsuite.environments import deep_sea  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--members", type=int, default=20)
    args = parser.parse_args()
    environment = deep_sea.DeepSea(args.size, mapping_seed=42)
    agent = boot_dqn.default_agent(environment.observation_spec(), environment.action_spec(), num_ensemble=args.members)
    run(agent, environment, 150)  # fills the buffer to its least, and compiles
    clock, processor = time.perf_counter(), time.process_time()
    run(agent, environment, args.steps)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    print(json.dumps({"clock": clock / args.steps, "processor": processor / args.steps}))


if __name__ == "__main__":
    main()
