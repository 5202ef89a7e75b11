"""Trains members in a process of its own: `python -m tests.member_process --help`."""

import argparse
import json
import os
import pathlib
import random
import signal
import threading

import numpy as np


def make_data(count, seed=0, num_classes=3):
    from tf_ensembles.trainers.images import data as image_data

    draws = np.random.default_rng(seed)
    labels = draws.integers(num_classes, size=count)
    images = draws.normal(100, 40, (count, 8, 8, 3)) + 30 * labels[:, None, None, None]
    return image_data.make_data(images.clip(0, 255).astype(np.uint8), labels, num_classes)


def make_config(member=0, **overrides):
    from tf_ensembles.trainers.images.config import MemberConfig

    fields = {
        "num_train": 32,
        "width": 0.05,
        "prior_scale": 2.0,
        "bootstrap_probability": 0.75,
        "weight_decay": 0.2,
        "learning_rate": 0.002,
        "epochs": 8,
        "batch_size": 16,
        "member": member,
    }
    return MemberConfig(**{**fields, **overrides})


def read_members(store):
    """The files of all members of a store, by their numbers."""
    from tf_ensembles.trainers.images import config
    from tf_ensembles.trainers.images import store as member_store

    paths = pathlib.Path(store).glob(f"*/{member_store.CONFIG}")
    configs = [config.from_dict(json.loads(path.read_text())) for path in paths]
    return [member_store.MemberFiles(store, one) for one in sorted(configs, key=lambda one: one.member)]


def loop_on_devices(strategy=None):
    """Has this process loop on its devices as on a TPU's, whose sums over replicas its CPUs lack.

    So replicas meet by collectives, as in TensorFlow's own tests, and loops stay whole: taken apart, each would have a
    name of its own, by which the collectives of its replica would wait for no other's.
    """
    from tensorflow.python.ops import control_flow_util_v2

    from tf_ensembles.trainers.images import device_loop

    device_loop.is_used = lambda strategy: True
    if strategy is not None:
        control_flow_util_v2._DISABLE_LOWER_USING_SWITCH_MERGE = True
        strategy.extended._use_merge_call = lambda: False


class Killer:
    """Kills this very process, as kill -9 does, a random number of steps and milliseconds from its start."""

    def __init__(self, seed):
        draws = random.Random(seed)
        self.steps, self.delay = draws.randrange(100), draws.uniform(0.0, 0.1)
        self.seen, self.last = 0, None

    def __call__(self, step, loss):
        # The first call may be far into a member that goes on; a smaller number is another member's.
        self.seen += 0 if self.last is None else step - self.last if step > self.last else step
        self.last = step
        if self.seen >= self.steps:
            threading.Timer(self.delay, os.kill, [os.getpid(), signal.SIGKILL]).start()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--strategy", default="cpu")
    parser.add_argument("--members", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--logical-cpus", type=int)
    parser.add_argument("--kill", type=int, metavar="SEED")
    parser.add_argument("--parallel", choices=("data", "members"), default="data")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--augment", action="store_true")
    parser.add_argument("--loop-on-devices", action="store_true")
    args = parser.parse_args()
    import tensorflow as tf

    from tf_ensembles.trainers.images import several, strategies, training

    if args.logical_cpus:
        cpu = tf.config.list_physical_devices("CPU")[0]
        pieces = [tf.config.LogicalDeviceConfiguration()] * args.logical_cpus
        tf.config.set_logical_device_configuration(cpu, pieces)
    train, test = make_data(32), make_data(40, seed=1)
    fields = {"epochs": args.epochs, "dtype": args.dtype, "augment": args.augment}
    configs = [make_config(member, **fields) for member in range(args.members)]
    if args.parallel == "members":
        if args.loop_on_devices:
            loop_on_devices()
        devices = strategies.make_one_each(args.strategy)
        failures = several.train_members(configs, (train, test), args.store, devices)
        print(len(devices), len({one.extended.worker_devices for one in devices}), *failures, flush=True)
        return
    strategy = strategies.make_strategy(args.strategy)
    if args.loop_on_devices:
        loop_on_devices(strategy)
    print(strategies.describe(strategy, 16), flush=True)
    killer = None if args.kill is None else Killer(args.kill)
    for config in configs:
        # A checkpoint after every call of the graph: a kill finds something to continue from.
        options = {"strategy": strategy, "checkpoint_seconds": 0.0, "progress": killer}
        training.train(config, train, test, args.store, **options)


if __name__ == "__main__":
    main()
