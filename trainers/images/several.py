"""The members of an ensemble in this process: one after the other, or side by side, each on a device of its own.

Devices that share a batch talk in every step, and each of them has little to do where a batch is small. Members are
independent, so devices that train members of their own need not talk at all. A member comes out as on one device alone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from tf_ensembles.trainers import preemption
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images import strategies as member_strategies
from tf_ensembles.trainers.images import training
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.images.data import ImageData

Progress = Callable[[MemberConfig, int, float | None], object]


def train_members(
    configs: Sequence[MemberConfig],
    data: tuple[ImageData, ImageData],
    store: Any,
    strategies: Sequence[Any],
    *,
    keep_weights: bool = True,
    progress: Progress = lambda config, step, loss: None,
) -> list[str]:
    """Trains members, or what is left of their training; returns what went wrong, in their order.

    Members that another process trains are left to it, and looked at again when nothing else is left to do.

    Args:
        configs: the members; all have the same data.
        data: the training set and the test set.
        store: the folder of all members.
        strategies: one, or several whose devices train members side by side (`strategies.make_one_each`).
        keep_weights: whether to keep the variables of finished members.
        progress: called with a member, the steps it has made and its last loss; None: it is finished.
    """
    queue, failures, told = _Queue(configs), dict[int, str](), threading.Lock()

    def tell(config: MemberConfig, step: int, loss: float | None) -> None:
        with told:
            progress(config, step, loss)

    def work(strategy: Any) -> None:
        # Processes that take the same steps must train the same member, and wait for it together.
        together = member_strategies.has_several_processes(strategy)
        while (taken := queue.take()) is not None:
            config, wait = taken
            try:
                training.train(
                    config, *data, store,
                    strategy=strategy, keep_weights=keep_weights, wait=together or wait,
                    progress=functools.partial(tell, config),
                )  # fmt: skip
            except member_store.MemberBusyError:
                queue.give_back(config)
                continue
            except member_store.MemberError as error:
                failures[config.member] = str(error)
            queue.finish()
            tell(config, config.num_steps, None)

    if len(strategies) == 1:
        work(strategies[0])
    else:
        _side_by_side(work, strategies)
    return [failures[config.member] for config in configs if config.member in failures]


def _side_by_side(work: Callable[[Any], None], strategies: Sequence[Any]) -> None:
    """Calls a function for each strategy in a thread of its own; when one raises, the others end at a checkpoint."""
    with preemption.listening(), concurrent.futures.ThreadPoolExecutor(len(strategies)) as pool:
        futures = [pool.submit(work, strategy) for strategy in strategies]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            with preemption.asking():
                concurrent.futures.wait(futures)
            raise


class _Queue:
    """Members that nobody has trained yet."""

    def __init__(self, configs: Sequence[MemberConfig]) -> None:
        self._waiting, self._busy, self._lock = collections.deque(configs), 0, threading.Lock()

    def take(self) -> tuple[MemberConfig, bool] | None:
        """Returns a member, and whether to wait where another process trains it: all that are left are others'."""
        with self._lock:
            return (self._waiting.popleft(), self._busy > len(self._waiting)) if self._waiting else None

    def give_back(self, config: MemberConfig) -> None:
        with self._lock:
            self._waiting.append(config)
            self._busy += 1

    def finish(self) -> None:
        with self._lock:
            self._busy = 0
