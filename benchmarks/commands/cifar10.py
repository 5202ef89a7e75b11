"""Trains an ensemble of VGGs on CIFAR10, member by member, scores it, tells how far it is, and exports it.

`cifar10 train` continues where it was after a kill; `cifar10 status` tells from another terminal. Members go to a
store, in which an ensemble is known by its name. `--arrays FILE.npz` takes other images than CIFAR10's: x_train,
y_train, x_test, y_test.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.commands import places
from tf_ensembles import files
from trainers.images import config as member_config
from trainers.images import runs as member_runs
from trainers.images import store as member_store
from trainers.images import strategies
from trainers.images.config import MemberConfig
from trainers.images.runs import EnsembleConfig
from trainers.images.store import MemberFiles, State

if TYPE_CHECKING:
    from tf_ensembles.metrics.by_size import Scores

AGENTS = ("vgg", "ensemble-n", "ensemble-p", "ensemble-bp")
ENSEMBLES = "ensembles"

# Sizes shown by `evaluate`, beside the last; the CSV file has all of them.
_SHOWN_SIZES = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200, 500, 1000)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the sub-commands `train`, `evaluate`, `status` and `export`."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="{train,evaluate,status,export}")
    train = commands.add_parser("train", help="train the members that are missing")
    evaluate = commands.add_parser("evaluate", help="score every ensemble size from the stored logits")
    status = commands.add_parser("status", help="members, epochs and failures, also while they train")
    export = commands.add_parser("export", help="write the assembled ensemble as a SavedModel")
    for sub in (train, evaluate, status, export):
        places.add_store(sub)
        sub.add_argument("--name", help="the ensemble's name (default: from its settings; the only one there is)")
    _add_train_arguments(train)
    for sub in (evaluate, export):
        sub.add_argument("--num-members", type=int, metavar="M", help="the first so many members only")
        sub.add_argument(
            "--finished-only", action="store_true", help="leave out members that are not finished, failed or corrupt"
        )
    evaluate.add_argument("--tau", type=int, default=10, help="labels per joint prediction (default 10)")
    evaluate.add_argument("--output", type=pathlib.Path, help="a CSV file for the scores of every ensemble size")
    status.add_argument("--verify", action="store_true", help="read all files and compare their checksums")
    export.add_argument("output", type=pathlib.Path, help="the SavedModel's folder; an earlier export is replaced")


def _add_train_arguments(parser: argparse.ArgumentParser) -> None:
    defaults = MemberConfig()
    parser.add_argument("--agent", choices=AGENTS, default="ensemble-p", help="(default ensemble-p)")
    parser.add_argument("--num-members", type=int, metavar="M", help="(default 10; 1 for vgg)")
    parser.add_argument("--num-train", type=int, metavar="T", help="training images (default: all)")
    parser.add_argument(
        "--subset", default="balanced", metavar="WHICH", help="balanced (default), balanced-7 (drawn by seed 7), first"
    )
    parser.add_argument("--noise", choices=[n.value for n in member_config.Noise], default="none", help="wrong labels")
    parser.add_argument("--num-test", type=int, metavar="N", help="test images (default: all)")
    parser.add_argument("--width", type=float, default=1.0, help="multiplies the VGG's channels (default 1)")
    parser.add_argument("--prior-scale", type=float, help="(default 30 for ensemble-p and ensemble-bp)")
    parser.add_argument("--bootstrap", type=float, metavar="P", help="weights Bernoulli(P)/P (default 0.9 for -bp)")
    parser.add_argument(
        "--weight-decay", type=float, default=defaults.weight_decay, metavar="LAMBDA",
        help="the mean loss has LAMBDA/T * ||theta||^2 (default 30)",
    )  # fmt: skip
    parser.add_argument("--learning-rate", type=float, help="of the mean over the global batch (default: the paper's)")
    parser.add_argument("--momentum", type=float, default=defaults.momentum, help="(default 0.9)")
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
    parser.add_argument("--workers", type=int, metavar="N", help="members trained side by side, in one process each")
    parser.add_argument("--engine", choices=("local", "ray"), help="who runs the workers (default local)")
    parser.add_argument("--address", help="of a running Ray cluster")
    parser.add_argument("--retrain", type=int, nargs="+", default=[], metavar="MEMBER", help="forget these first")
    parser.add_argument("--retry-failed", action="store_true", help="forget members that failed or are corrupt first")
    parser.add_argument("--no-weights", action="store_true", help="keep predictions only: less disk, no export")


def run(args: argparse.Namespace) -> int:
    """Runs the sub-command."""
    return {"train": _train, "evaluate": _evaluate, "status": _status, "export": _export}[args.action](args)


# Ensembles by name.


def _ensemble_path(store: pathlib.Path, name: str) -> pathlib.Path:
    if not name or not all(character.isalnum() or character in "._-" for character in name):
        raise ValueError(f"Expected a name of letters, digits, '.', '_' and '-'. Received: {name!r}")
    return store / ENSEMBLES / f"{name}.json"


def _write_ensemble(store: pathlib.Path, name: str, ensemble: EnsembleConfig) -> None:
    path = _ensemble_path(store, name)
    if path.exists() and (known := _read_ensemble(store, name)).first != ensemble.first:
        pairs = zip(known.first.to_dict().items(), ensemble.first.to_dict().values(), strict=True)
        differing = [f"{field}={before} (now {now})" for (field, before), now in pairs if before != now]
        raise ValueError(
            f"Expected ensemble {name} as it was begun, with {', '.join(differing)}. Choose another --name for another "
            "ensemble"
        )
    content = {"config": ensemble.first.to_dict(), "num_members": ensemble.num_members}
    files.write_json(path, content)


def _read_ensemble(store: pathlib.Path, name: str) -> EnsembleConfig:
    path = _ensemble_path(store, name)
    try:
        content, _ = files.read_json(path)
        return EnsembleConfig(member_config.from_dict(content["config"]), int(content["num_members"]))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"Expected the description of an ensemble in {path}. Received: {error!r}") from None


def _names(store: pathlib.Path) -> list[str]:
    return sorted(path.stem for path in (store / ENSEMBLES).glob("*.json"))


def _find_ensemble(args: argparse.Namespace) -> tuple[str, EnsembleConfig]:
    names = _names(args.store)
    if args.name is not None and args.name not in names:
        raise ValueError(f"Expected an ensemble of {', '.join(names) or 'this empty store'}. Received: {args.name}")
    if args.name is None and len(names) != 1:
        found = f"{len(names)}: {', '.join(names)}. Choose by --name" if names else "none. Train one first"
        raise ValueError(f"Expected one ensemble in {args.store}. Received: {found}")
    name = args.name or names[0]
    ensemble = _read_ensemble(args.store, name)
    count = getattr(args, "num_members", None)
    if count is not None and count > ensemble.num_members:
        raise ValueError(f"Expected at most the {ensemble.num_members} members of {name}. Received: {count}")
    return name, dataclasses.replace(ensemble, num_members=ensemble.num_members if count is None else count)


def _default_name(agent: str, ensemble: EnsembleConfig) -> str:
    first = ensemble.first
    return f"{agent}-T{first.num_train}-width{first.width:g}-seed{first.seed}-{first.key[:6]}"


def _usable_members(args: argparse.Namespace, ensemble: EnsembleConfig) -> list[MemberConfig]:
    """All members, or those that are finished."""
    if not args.finished_only:
        return ensemble.members
    states = [(config, MemberFiles(args.store, config).status(verify=True).state) for config in ensemble.members]
    return [config for config, state in states if state is State.FINISHED]


# Training.


def _train(args: argparse.Namespace) -> int:
    if args.address is not None and args.engine is None:
        args.engine = "ray"
    if (args.workers is not None or args.engine) and args.strategy not in ("auto", "cpu"):
        raise ValueError(f"Expected --strategy auto or cpu with --workers or --engine. Received: {args.strategy}")
    if args.arrays is not None and not pathlib.Path(args.arrays).is_file():
        raise ValueError(f"Expected a file for --arrays. Received: {args.arrays}")
    ensemble = EnsembleConfig(_first_member(args, replicas=1), _num_members(args))  # Complains before TensorFlow loads.
    if bad := sorted(set(args.retrain) - set(range(ensemble.num_members))):
        raise ValueError(f"Expected --retrain to name members in [0, {ensemble.num_members}). Received: {bad}")
    strategy = strategies.make_strategy(args.strategy, args.tpu)
    ensemble = dataclasses.replace(ensemble, first=_first_member(args, strategy.num_replicas_in_sync))
    name = args.name or _default_name(args.agent, ensemble)
    from trainers.images import training

    chief = training.is_chief(strategy)
    if chief:
        _write_ensemble(args.store, name, ensemble)
        _forget(args, ensemble)
        first = ensemble.first
        print(f"{name}: {ensemble.num_members} members of {first.num_steps} steps in {args.store}")
        print(f"{strategies.describe(strategy, first.batch)}, learning rate {first.learning_rate:g} at the start")
    training.check_agreement(strategy, 0)  # Others wait until the chief has forgotten what it must.
    if args.workers is not None or args.engine is not None:
        failures = _train_side_by_side(args, ensemble)
    else:
        failures = _train_here(args, ensemble, strategy, show=chief)
    done = ensemble.num_members - len(failures)
    for failure in failures:
        print(failure)
    print(f"{done} of {ensemble.num_members} members finished")
    return 1 if failures else 0


def _num_members(args: argparse.Namespace) -> int:
    if args.agent == "vgg" and args.num_members not in (None, 1):
        raise ValueError(f"Expected --num-members 1 for vgg. Received: {args.num_members}")
    return (1 if args.agent == "vgg" else 10) if args.num_members is None else int(args.num_members)


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
        num_train=member_config.TRAINING_IMAGES.get(data, 50_000) if args.num_train is None else args.num_train,
        subset=args.subset,
        noise=args.noise,
        num_test=args.num_test,
        width=args.width,
        prior_scale=prior_scale if has_prior else 0.0,
        bootstrap_probability=bootstrap if has_bootstrap else None,
        weight_decay=args.weight_decay,
        learning_rate=args.learning_rate,
        momentum=args.momentum,
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


def _forget(args: argparse.Namespace, ensemble: EnsembleConfig) -> None:
    for config in ensemble.members:
        member = MemberFiles(args.store, config)
        if config.member in args.retrain:
            with member.locked():
                member.reset()
        elif args.retry_failed:
            member.reset_if_broken()


def _train_here(args: argparse.Namespace, ensemble: EnsembleConfig, strategy: Any, show: bool) -> list[str]:
    """Trains one member after the other in this process; returns what went wrong."""
    import tqdm

    from trainers.images import training

    per_epoch = ensemble.first.steps_per_epoch
    total = ensemble.num_members * ensemble.first.num_steps
    train, test = member_runs.load_member_data(ensemble.first, args.arrays or args.data_dir)
    failures: list[str] = []
    with tqdm.tqdm(total=total, unit="step", disable=not show) as bar:
        for index, config in enumerate(ensemble.members):
            before = index * config.num_steps

            def progress(step: int, loss: float, before: int = before, member: int = config.member) -> None:
                bar.set_postfix_str(f"member {member}, epoch {step // per_epoch}, loss {loss:.3f}", refresh=False)
                bar.update(before + step - bar.n)

            try:
                training.train(
                    config, train, test, args.store,
                    strategy=strategy, keep_weights=not args.no_weights, progress=progress,
                )  # fmt: skip
            except member_store.MemberError as error:
                failures.append(str(error))
            bar.update(before + config.num_steps - bar.n)
    return failures


def _train_side_by_side(args: argparse.Namespace, ensemble: EnsembleConfig) -> list[str]:
    """Trains members in worker processes, or on Ray, as runs of a sweep; returns what went wrong."""
    from trainers.sweeps import store as sweep_store
    from trainers.sweeps import sweep

    data = args.arrays or args.data_dir
    member_runs.load_member_data(ensemble.first, data)  # Once, here: it may download.
    context = {**places.context(args.store, data), "keep_weights": not args.no_weights}
    runs = [
        sweep.make_run(f"member{config.member}", member_runs.TRAIN, config.to_dict(), context=context)
        for config in ensemble.members
    ]
    # Members remember by themselves how far they are: the sweep needs to remember nothing.
    with tempfile.TemporaryDirectory() as folder:
        with sweep.Sweep(
            folder, engine=args.engine or "local", num_workers=args.workers, address=args.address, show=True
        ) as one_sweep:
            report = one_sweep.execute(runs)
        failures = [f"{row['id']}: {row['error']}" for row in sweep_store.read_failures(folder)]
    if report.stopped:
        raise KeyboardInterrupt
    return failures


# Evaluation, status and export.


def _evaluate(args: argparse.Namespace) -> int:
    name, ensemble = _find_ensemble(args)
    configs = _usable_members(args, ensemble)
    scores = member_runs.score_members(configs, args.tau, args.store)
    count = len(MemberFiles(args.store, configs[0]).predictions()[1])
    kind = "held-out training" if configs[0].data == member_config.VALIDATION else "test"
    print(f"{name}: {len(configs)} members, {count} {kind} images")
    print(format_scores(scores, args.tau))
    if args.output is not None:
        with files.atomic_path(args.output) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=[field.name for field in dataclasses.fields(scores[0])])
            writer.writeheader()
            writer.writerows(dataclasses.asdict(one) for one in scores)
        print(f"wrote {args.output}")
    return 0


def format_scores(scores: Sequence[Scores], tau: int) -> str:
    """Returns the scores of some ensemble sizes as a table."""
    lines = [f"{'members':>7}{'marginal NLL':>20}{f'joint NLL, τ={tau}':>20}{'accuracy':>10}{'ECE':>8}"]
    for one in scores:
        if one.size in _SHOWN_SIZES or one.size == len(scores):
            marginal = f"{one.nll_marginal:.4f} ± {one.nll_marginal_error:.4f}"
            joint = f"{one.nll_joint:.3f} ± {one.nll_joint_error:.3f}"
            lines.append(f"{one.size:>7}{marginal:>20}{joint:>20}{one.accuracy:>10.4f}{one.ece:>8.4f}")
    return "\n".join(lines)


def _status(args: argparse.Namespace) -> int:
    names = _names(args.store)
    if args.name is not None:
        names = [_find_ensemble(args)[0]]
    if not names:
        print(f"no ensembles in {args.store}")
    troubles = 0
    for name in names:
        ensemble = _read_ensemble(args.store, name)
        statuses = [(config, MemberFiles(args.store, config).status(args.verify)) for config in ensemble.members]
        finished = sum(status.state is State.FINISHED for _, status in statuses)
        epochs = sum(status.steps for _, status in statuses) // ensemble.first.steps_per_epoch
        print(f"{name}: {finished} of {len(statuses)} members finished, {epochs} of {_epochs(ensemble)} epochs")
        for line in _status_lines(ensemble, statuses):
            print(f"  {line}")
        troubles += sum(status.state in (State.FAILED, State.CORRUPT) for _, status in statuses)
    return 1 if troubles else 0


def _epochs(ensemble: EnsembleConfig) -> int:
    return ensemble.num_members * ensemble.first.epochs


def _status_lines(
    ensemble: EnsembleConfig, statuses: Sequence[tuple[MemberConfig, member_store.Status]]
) -> Iterator[str]:
    """What there is to tell about members that are neither finished nor untouched."""
    for config, status in statuses:
        epoch = status.steps // ensemble.first.steps_per_epoch
        if status.state is State.PARTIAL:
            yield f"member {config.member}: {epoch} of {config.epochs} epochs{status.reason and '; ' + status.reason}"
        elif status.state is State.FAILED:
            yield f"member {config.member}: failed in epoch {epoch + 1}: {status.reason}; --retrain {config.member}"
        elif status.state is State.CORRUPT:
            yield f"member {config.member}: corrupt: {status.reason}"
    if unverified := [str(config.member) for config, status in statuses if not status.verified]:
        yield f"unverified, written before results had checksums: member {', '.join(unverified)}"


def _export(args: argparse.Namespace) -> int:
    name, ensemble = _find_ensemble(args)
    configs = _usable_members(args, ensemble)
    missing = [c.member for c in configs if MemberFiles(args.store, c).status().state is not State.FINISHED]
    if missing:
        raise ValueError(f"Expected finished members of {name}. Received: members {missing} that are not")
    from trainers.images import export

    path = export.export_members(configs, args.store, args.output)
    print(f"{len(configs)} members, signatures serving_default, members, sample, uncertainty")
    print(f"wrote {path}")
    return 0
