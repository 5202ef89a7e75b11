"""Units of a sweep on Ray: one of our own on this machine, or a running cluster."""

from __future__ import annotations

import os
from typing import Any

from tf_ensembles import machine
from trainers import onednn
from trainers.sweeps import engines
from trainers.sweeps import worker as sweep_worker


class RayEngine:
    """Ray actors of one CPU each: on a Ray of our own, bound to loopback, or on a running cluster."""

    def __init__(self, num_workers: int | None = None, address: str | None = None):
        """Connects to the cluster at `address`, or starts a Ray on this machine that ends with this process."""
        engines.check_workers(num_workers)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address is None:
            # Ray replaces a loopback address by the machine's own, unless clusters are switched off like this. It reads
            # the variable when it is imported.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        try:
            import ray
        except ImportError:
            raise ImportError("The ray engine needs Ray: pip install 'tf-ensembles[ray]'") from None
        self._ray = ray
        variables = {**sweep_worker.THREAD_VARIABLES, **onednn.variables()}
        if address is None:
            # Workers of our own Ray see what this process sees; a cluster has its own installation.
            variables["PYTHONPATH"] = engines.import_path()
            ray.init(
                num_cpus=num_workers or machine.usable_cores(),
                include_dashboard=False,
                _node_ip_address="127.0.0.1",
                log_to_driver=False,
                logging_level="ERROR",
            )
            self._check_loopback()
        else:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        self.num_slots = num_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        # Nothing is retried by Ray itself: the scheduler counts the deaths of a unit, for every engine alike.
        options = {"num_cpus": 1, "max_restarts": 0, "runtime_env": {"env_vars": variables}}
        self._actor_class = ray.remote(**options)(_RayWorker)
        self._actors: dict[int, Any] = {}
        self._pending: dict[Any, int] = {}

    def _check_loopback(self) -> None:
        addresses = {node["NodeManagerAddress"] for node in self._ray.nodes()}
        if addresses != {"127.0.0.1"}:
            self._ray.shutdown()
            raise ImportError(
                f"Expected our Ray to listen on 127.0.0.1 only. Received: {', '.join(addresses)}, because ray was "
                "imported before with clusters on. Set RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0 before importing it."
            )

    def submit(self, slot: int, message: dict[str, Any]) -> None:
        """Gives a unit to a free slot."""
        actor = self._actors.get(slot) or self._actors.setdefault(slot, self._actor_class.remote())
        self._pending[actor.compute.remote(message)] = slot

    def wait(self, timeout: float) -> list[engines.Event]:
        """Returns what came back, after at most `timeout` seconds of waiting for anything."""
        refs = list(self._pending)
        if not refs:
            return []
        ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout)
        events = []
        for ref in ready:
            slot = self._pending.pop(ref)
            try:
                events.append(engines.Event(slot, tuple(self._ray.get(ref))))
            except self._ray.exceptions.RayError as error:
                events.append(engines.Event(slot, death=str(error)[-engines.LAST_WORDS :]))
                self._ray.kill(self._actors.pop(slot))
        return events

    def close(self) -> None:
        """Ends all workers, busy or not, and a Ray that we started."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._pending.clear()
        self._ray.shutdown()


class _RayWorker:
    """A process of Ray that computes units."""

    def compute(self, message: dict[str, Any]) -> list[sweep_worker.Outcome]:
        return sweep_worker.compute(message)
