"""Seconds of a step of bsuite's public boot_dqn (JAX) on deep sea, as its authors set it up.

    VENV/bin/python benchmarks/speed/boot_dqn.py STEPS SIZE MEMBERS

`benchmarks.speed.dqn` runs it in an environment of its own that has bsuite, dm-haiku, jax, optax and rlax. It imports
nothing of ours. Prints seconds by the clock and of the processor.
"""

from __future__ import annotations

import json
import sys
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

    steps, size, members = map(int, sys.argv[1:])
    environment = deep_sea.DeepSea(size, mapping_seed=42)
    agent = boot_dqn.default_agent(environment.observation_spec(), environment.action_spec(), num_ensemble=members)
    run(agent, environment, 150)  # fills the buffer to its least, and compiles
    clock, processor = time.perf_counter(), time.process_time()
    run(agent, environment, steps)
    print(json.dumps([time.perf_counter() - clock, time.process_time() - processor]))


if __name__ == "__main__":
    main()
