"""`cifar10 train`: the members that are missing, one after the other or side by side."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

from tf_ensembles.benchmarks.commands import options, places
from tf_ensembles.benchmarks.commands import sweep as sweep_command
from tf_ensembles.benchmarks.commands.cifar10 import ensembles
from tf_ensembles.trainers import stores
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import runs as member_runs
from tf_ensembles.trainers.images import strategies
from tf_ensembles.trainers.images.config import MemberConfig
from tf_ensembles.trainers.images.runs import EnsembleConfig
from tf_ensembles.trainers.images.store import MemberFiles, State

AGENTS = ("vgg", "ensemble-n", "ensemble-p", "ensemble-bp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what an ensemble is, and how it is trained."""
    defaults = MemberConfig()
    parser.add_argument("--agent", choices=AGENTS, default="ensemble-p", help="(default ensemble-p)")
    parser.add_argument("--members", type=int, metavar="M", help="how many (default 10; 1 for vgg)")
    parser.add_argument("--num-train", type=int, metavar="T", help="training images (default: all)")
    parser.add_argument("--width", type=float, default=1.0, help="multiplies the VGG's channels (default 1)")
    parser.add_argument("--prior-scale", type=float, help="(default 30 for ensemble-p and ensemble-bp)")
    parser.add_argument("--bootstrap", type=float, metavar="P", help="weights Bernoulli(P)/P (default 0.9 for -bp)")
    parser.add_argument(
        "--weight-decay", type=float, default=defaults.weight_decay, metavar="LAMBDA",
        help="the mean loss has LAMBDA/T * ||theta||^2 (default 30)",
    )  # fmt: skip
    parser.add_argument("--learning-rate", type=float, help="of the mean over the global batch (default: the paper's)")
    parser.add_argument("--epochs", type=int, default=defaults.epochs, help="(default 400)")
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--batch-size", type=int, metavar="B", help="global: over all replicas (default 128)")
    batch.add_argument("--batch-per-replica", type=int, metavar="B", help="instead, times the number of replicas")
    parser.add_argument("--augment", action="store_true", help="flip and shift images at random")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="(default float32)")
    parser.add_argument("--seed", type=int, default=0, help="of the ensemble (default 0)")
    data = parser.add_mutually_exclusive_group()
    places.add_data_dir(data)
    data.add_argument("--arrays", metavar="FILE.npz", help="other images in the place of CIFAR10")
    parser.add_argument(
        "--validation", action="store_true",
        help="to choose settings: score on the last 5,000 training images, and train on the others only",
    )  # fmt: skip
    names = [name.value for name in strategies.StrategyName]
    parser.add_argument("--strategy", choices=names, default="auto", help="devices that share a batch (default auto)")
    parser.add_argument("--tpu", metavar="NAME", help="the TPU's name, for --strategy tpu")
    parser.add_argument(
        "--parallel", choices=("data", "members"), default="data",
        help="devices share every batch (data, the default), or each trains members of its own (members)",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="members trained side by side, in one process each")
    parser.add_argument("--engine", choices=("local", "ray"), help="who runs the workers (default local)")
    parser.add_argument("--address", help="of a running Ray cluster")
    sweep_command.add_gpus_per_run(parser)
    parser.add_argument("--retrain", type=int, nargs="+", default=[], metavar="MEMBER", help="forget these first")
    parser.add_argument("--retry-failed", action="store_true", help="forget members that failed or are corrupt first")
    parser.add_argument("--no-weights", action="store_true", help="keep predictions only: less disk, no export")


def run(args: argparse.Namespace) -> int:
    """Trains what is missing; everything is checked before the ensemble is registered."""
    if (args.address is not None or args.gpus_per_run) and args.engine is None:
        args.engine = "ray"
    if (args.workers is not None or args.engine) and args.strategy not in ("auto", "cpu"):
        raise ValueError(f"Expected --strategy auto or cpu with --workers or --engine. Received: {args.strategy}")
    if (args.workers is not None or args.engine) and args.parallel == "members":
        raise ValueError("Expected --parallel members, or --workers and --engine. Received: both")
    if args.arrays is not None and not (stores.is_address(args.arrays) or pathlib.Path(args.arrays).is_file()):
        raise ValueError(f"Expected a file for --arrays. Received: {args.arrays}")
    ensemble = EnsembleConfig(_first_member(args, replicas=1), _num_members(args))  # Complains before TensorFlow loads.
    if bad := sorted(set(args.retrain) - set(range(ensemble.num_members))):
        raise ValueError(f"Expected --retrain to name members in [0, {ensemble.num_members}). Received: {bad}")
    devices = _devices(args)
    strategy = devices[0]
    ensemble = dataclasses.replace(ensemble, first=_first_member(args, strategy.num_replicas_in_sync))
    name = args.name or ensembles.default_name(args.agent, ensemble)
    from tf_ensembles.trainers.images import training

    data = member_runs.load_member_data(ensemble.first, args.arrays or args.data_dir)  # It may download, or complain.
    chief = training.is_chief(strategy)
    if chief:
        ensembles.write(args.store, name, ensemble)
        _forget(args, ensemble)
        first = ensemble.first
        print(f"{name}: {ensemble.num_members} members of {first.num_steps} steps in {args.store}")
        each = f"{len(devices)} members at a time, each on " if len(devices) > 1 else ""
        about = f"{each}{strategies.describe(strategy, first.batch)}"
        print(f"{about}, learning rate {first.learning_rate:g} at the start")
    training.check_agreement(strategy, 0)  # Others wait until the chief has forgotten what it must.
    if args.workers is not None or args.engine is not None:
        failures = _train_side_by_side(args, ensemble)
    else:
        failures = _train_here(args, ensemble, data, devices, show=chief)
    done = ensemble.num_members - len(failures)
    text = "\n".join([*failures, f"{done} of {ensemble.num_members} members finished"])
    found = {"name": name, "store": args.store, "members": ensemble.num_members, "finished": done, "failures": failures}
    options.answer(args, found, text)
    return 1 if failures else 0


def _devices(args: argparse.Namespace) -> list[Any]:
    """One strategy, or one for each device where each is to train members of its own."""
    if args.parallel == "members":
        return strategies.make_one_each(args.strategy, args.tpu)
    return [strategies.make_strategy(args.strategy, args.tpu)]


def _num_members(args: argparse.Namespace) -> int:
    if args.agent == "vgg" and args.members not in (None, 1):
        raise ValueError(f"Expected --members 1 for vgg. Received: {args.members}")
    return (1 if args.agent == "vgg" else 10) if args.members is None else int(args.members)


def _first_member(args: argparse.Namespace, replicas: int) -> MemberConfig:
    has_prior, has_bootstrap = args.agent in ("ensemble-p", "ensemble-bp"), args.agent == "ensemble-bp"
    if args.prior_scale and not has_prior:
        raise ValueError(f"Expected --prior-scale with ensemble-p and ensemble-bp only. Received: {args.agent}")
    if args.bootstrap is not None and not has_bootstrap:
        raise ValueError(f"Expected --bootstrap with ensemble-bp only. Received: {args.agent}")
    batch = 128 if args.batch_size is None else args.batch_size
    if args.batch_per_replica is not None:
        batch = args.batch_per_replica * replicas
    prior_scale = 30.0 if args.prior_scale is None else args.prior_scale
    bootstrap = 0.9 if args.bootstrap is None else args.bootstrap
    data = _data_name(args)
    return MemberConfig(
        data=data,
        num_train=_num_train(args, data),
        width=args.width,
        prior_scale=prior_scale if has_prior else 0.0,
        bootstrap_probability=bootstrap if has_bootstrap else None,
        weight_decay=args.weight_decay,
        learning_rate=args.learning_rate,
        epochs=args.epochs,
        batch_size=batch,
        augment=args.augment,
        dtype=args.dtype,
        seed=args.seed,
    )


def _data_name(args: argparse.Namespace) -> str:
    if args.validation and args.arrays is not None:
        raise ValueError(f"Expected --validation with CIFAR10 only. Received: --arrays {args.arrays}")
    if args.arrays is not None:
        return member_runs.arrays_name(args.arrays)
    return member_config.VALIDATION if args.validation else member_config.CIFAR10


def _num_train(args: argparse.Namespace, data: str) -> int:
    """All training images, unless fewer are asked for."""
    known = member_config.TRAINING_IMAGES.get(data)
    count = member_runs.num_train_images(args.arrays) if known is None else known
    return count if args.num_train is None else int(args.num_train)


def _forget(args: argparse.Namespace, ensemble: EnsembleConfig) -> None:
    for config in ensemble.members:
        member = MemberFiles(args.store, config)
        if config.member in args.retrain:
            with member.locked():
                member.reset()
        elif args.retry_failed:
            member.reset_if_broken()


def _train_here(
    args: argparse.Namespace, ensemble: EnsembleConfig, data: tuple[Any, Any], devices: Sequence[Any], show: bool
) -> list[str]:
    """Trains members in this process, one after the other or one per device; returns what went wrong."""
    import tqdm

    from tf_ensembles.trainers.images import several

    per_epoch, made = ensemble.first.steps_per_epoch, collections.Counter[int]()
    with tqdm.tqdm(total=ensemble.num_members * ensemble.first.num_steps, unit="step", disable=not show) as bar:

        def progress(config: MemberConfig, step: int, loss: float | None) -> None:
            if loss is not None:
                text = f"member {config.member}, epoch {step // per_epoch}, loss {loss:.3f}"
                bar.set_postfix_str(text, refresh=False)
            bar.update(step - made[config.member])
            made[config.member] = step

        keep = not args.no_weights
        return several.train_members(ensemble.members, data, args.store, devices, keep_weights=keep, progress=progress)


def _train_side_by_side(args: argparse.Namespace, ensemble: EnsembleConfig) -> list[str]:
    """Trains members in worker processes, or on Ray, as runs of a sweep; returns what went wrong."""
    from tf_ensembles.trainers.sweeps import store as sweep_store
    from tf_ensembles.trainers.sweeps import sweep

    data = args.arrays or args.data_dir
    context: dict[str, Any] = {**places.context(args.store, data), "keep_weights": not args.no_weights}
    runs = [
        sweep.make_run(f"member{config.member}", member_runs.TRAIN, config.to_dict(), context=context)
        for config in ensemble.members
        # Nodes may not see those that are finished.
        if args.address is None or MemberFiles(args.store, config).status().state is not State.FINISHED
    ]
    if any(MemberFiles(args.store, config).is_busy() for config in ensemble.members):
        runs.reverse()  # Another driver is at the first ones: this one begins at the other end.
    # Members remember by themselves how far they are: the sweep needs to remember nothing.
    with tempfile.TemporaryDirectory() as folder:
        with sweep.Sweep(
            folder,
            engine=args.engine or "local",
            num_workers=args.workers,
            address=args.address,
            show=True,
            gpus_per_run=args.gpus_per_run,
            ship=[context["data"]] if args.arrays is not None and not stores.is_address(args.arrays) else [],
            bring=context["store"],
        ) as one_sweep:
            one_sweep.execute(runs)
            one_sweep.raise_if_stopped()
        return [f"{row['id']}: {row['error']}" for row in sweep_store.read_failures(folder)]
