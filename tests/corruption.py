"""Corrupt folders, tables, configurations and model files, and what the command line says about them.

    python -m tests.corruption --seconds 600 --seed 1

Every sub-command that reads something runs on damaged copies of what it reads. It may succeed, or end with one line on
stderr and exit code 2. A traceback, another exit code, silence or a wait without end is a finding.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import logging
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback

import numpy as np

from tests import claim_world
from tf_ensembles.benchmarks.commands import main as cli
from tf_ensembles.benchmarks.commands import quiet

LIMIT = 60  # seconds of computing that a command may take, or a tenth of those that it may wait on a busy machine
VALUES = [
    None,
    "x",
    -1,
    0,
    True,
    1e308,
    10**30,
    10**400,
    float("nan"),
    float("inf"),
    [],
    {},
    [[[]]],
    {"a": {"b": 1}},
    "",
]
NOTICES = ("damaged line", "damaged, so its training")  # lines on stderr that may stand before an error


class HangError(BaseException):
    """A command that takes too long."""


# A valid world, made once.


def make_world(folder, with_model=True, whole=False):
    """Writes one of everything that commands read; returns the invocations, each with the files that it reads.

    Weights of members are those of networks where the world is `whole`: an export then takes seconds.
    """
    from tests import sweep_definition
    from tf_ensembles.trainers.images import store as member_store
    from tf_ensembles.trainers.images.config import MemberConfig
    from tf_ensembles.trainers.sweeps import sweep

    world = pathlib.Path(folder)
    claim_world.write(world / "results")
    runs = sweep_definition.FIGURE.stages(6, {})[0]([])
    with sweep.Sweep(world / "sweeps" / "made_up-quick", num_workers=1) as one:
        one.execute(runs([]) if callable(runs) else runs)
        best = sweep.make_run("made_up/best", sweep_definition.FUNCTION, {"x": 25.0, "seed": 0})
        one.execute([best])
        one.execute([sweep.make_run("made_up/failed", "tests.sweep_functions:no_such", {})])
    chance = np.random.default_rng(0)
    labels = np.arange(20, dtype=np.int32) % 3
    for member in range(2):
        files = member_store.MemberFiles(world / "store", MemberConfig(num_train=100, member=member))
        files.begin()
        logits = chance.standard_normal((20, 3), dtype=np.float32)
        result = {
            "member_key": files.config.key,
            "steps": 400,
            "train_loss": 0.5,
            "test_nll": 1.5,
            "test_accuracy": 0.5,
        }
        files.finish(result, logits, labels, _weights(files.config) if whole else {"model0": np.ones(3, np.float32)})
    partial = member_store.MemberFiles(world / "store", MemberConfig(num_train=100, member=2))
    partial.begin()
    partial.save_checkpoint(7, {"model0": np.arange(3.0)})
    ensembles = {"both": 2, "three": 3}
    for name, count in ensembles.items():
        content = {"config": MemberConfig(num_train=100).to_dict(), "num_members": count}
        path = world / "store" / "ensembles" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
    images = chance.integers(0, 255, (8, 8, 8, 3)).astype(np.uint8)
    np.savez(world / "arrays.npz", x_train=images, y_train=labels[:8], x_test=images, y_test=labels[:8])
    columns = zip(chance.normal(size=(60, 2)).tolist(), chance.integers(0, 3, 60), chance.random(60), strict=True)
    lines = [f"{one},{two},{action},{reward:.3f},0.3333" for (one, two), action, reward in columns]
    (world / "log.csv").write_text("\n".join(["age,visits,a,r,p", *lines]) + "\n")
    if with_model:
        _write_model(world / "model.keras")
        np.savez(world / "test.npz", x=chance.standard_normal((20, 2), dtype=np.float32), y=labels)
    return invocations(world, with_model)


def _weights(config):
    from tf_ensembles.trainers.images import store as member_store
    from tf_ensembles.trainers.images import vgg

    def values(model, prefix):
        return member_store.pack([np.asarray(variable) for variable in model.variables], prefix)

    shape = (8, 8, 3)
    about = {"input_shape": np.asarray(shape), "mean": np.zeros(3), "std": np.ones(3), "pixels_are_bytes": np.ones(())}
    prior = values(vgg.build_conv_prior(shape, 3), "prior") if config.prior_scale else {}
    return {**about, **values(vgg.build_vgg(shape, 3, config.width), "model"), **prior}


def _write_model(path):
    import keras

    import tf_ensembles as tfe

    def build():
        return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])

    model = tfe.Ensemble(build, 2, prior=tfe.PriorFunction(build, scale=1.0), seed=0)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.save(path)


def invocations(world, with_model=True):
    """Returns pairs of arguments and of the files they read."""

    def under(folder, *names):
        paths = [path for path in sorted((world / folder).rglob("*")) if path.is_file() and path.name != "lock"]
        return [path for path in paths if not names or path.name in names]

    store, sweeps = world / "store", world / "sweeps"
    arrays, results = world / "arrays.npz", world / "results"
    log, columns = world / "log.csv", ["--reward", "r", "--action", "a", "--propensity", "p"]
    figure = ["tests.sweep_definition", "--results", sweeps]
    found = [
        (["sweep", "status", sweeps / "made_up-quick"], under("sweeps")),
        (["sweep", "draw", *figure, "--figures-to", world / "drawn"], under("sweeps", "results.jsonl")),
        (["sweep", "run", *figure, "--dry-run"], under("sweeps", "results.jsonl")),
        (["sweep", "run", *figure, "--time-limit", "0"], under("sweeps")),
        (["cifar10", "status", "--store", store], under("store")),
        (["cifar10", "status", "--store", store, "--verify"], under("store")),
        (["cifar10", "evaluate", "--store", store, "--name", "both"], under("store")),
        (["cifar10", "train", "--arrays", arrays, "--members", "0", "--store", store], [arrays]),
        (["cifar10", "export", world / "served", "--store", store, "--name", "both"], under("store")),
        (["bandit", "replay", log, *columns, "--results", world / "replay"], [log]),
        (["report", results], under("results")),
        (["report", "--compare", results, results, "--output", world / "compare"], under("results")),
    ]  # fmt: skip
    if with_model:
        found.append((["export", world / "model.keras", world / "saved"], [world / "model.keras"]))
        options = ["--data", world / "test.npz", "--ood", world / "test.npz", "--output", world / "page.html"]
        assess = ["assess", world / "model.keras", *options, "--draws", "20"]
        found.append((assess, [world / "model.keras", world / "test.npz"]))
    return found


# Damage.


def damage(path, chance):
    """Damages a file; returns how."""
    kinds = [_flip, _flip, _noise, _truncate, _insert, _empty, _repeat, _encode, _pipe, _folder, _loop, _remove]
    if path.suffix in (".json", ".jsonl"):
        kinds += [_json_value] * 6 + [_deep, _digits]
    if path.suffix == ".csv":
        kinds += [_cell] * 6
    if path.suffix == ".keras":
        kinds += [_archive] * 8
    kind = chance.choice(kinds)
    kind(path, chance)
    return kind.__name__.strip("_")


def _flip(path, chance):
    data = bytearray(path.read_bytes() or b"0")
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def _noise(path, chance):
    data = bytearray(path.read_bytes() or b"0")
    for _ in range(20):
        data[chance.randrange(len(data))] = chance.randrange(256)
    path.write_bytes(data)


def _truncate(path, chance):
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) + 1)])


def _insert(path, chance):
    data = path.read_bytes()
    at = chance.randrange(len(data) + 1)
    path.write_bytes(data[:at] + chance.choice([b"\0", b"\n", b"\xff\xfe", b'"', b"{", b"," * 50]) + data[at:])


def _empty(path, chance):
    path.write_bytes(b"")


def _repeat(path, chance):
    path.write_bytes(path.read_bytes() * 2)


def _encode(path, chance):
    text = path.read_bytes().decode("latin-1")
    path.write_bytes(text.encode(chance.choice(["utf-16", "utf-32", "utf-8"])))


def _pipe(path, chance):
    path.unlink()
    os.mkfifo(path)


def _folder(path, chance):
    path.unlink()
    path.mkdir()


def _loop(path, chance):
    path.unlink()
    path.symlink_to(path)


def _remove(path, chance):
    path.unlink()


def _json_value(path, chance):
    """Another value somewhere, and no checksum that would tell."""
    lines = path.read_text().split("\n") if path.suffix == ".jsonl" else [path.read_text()]
    index = chance.choice([number for number, line in enumerate(lines) if line.strip()] or [0])
    content = json.loads(lines[index] or "{}")
    content.pop("checksum", None)
    at = content
    while isinstance(at, dict) and at:
        name = chance.choice(list(at))
        if isinstance(at[name], dict) and at[name] and chance.random() < 0.7:
            at = at[name]
            continue
        if chance.random() < 0.2:
            del at[name]
        else:
            at[name] = chance.choice(VALUES)
        break
    sys.set_int_max_str_digits(0)
    lines[index] = json.dumps(content)
    path.write_text("\n".join(lines))


def _deep(path, chance):
    depth = chance.choice([100, 10_000, 200_000])
    path.write_text(chance.choice(["[" * depth, '{"a":' * depth, '{"a": ' + "[" * depth + "]" * depth + "}"]) + "\n")


def _digits(path, chance):
    path.write_text('{"steps": 1' + "0" * chance.choice([300, 5000, 100_000]) + "}\n")


def _cell(path, chance):
    lines = path.read_text().split("\n")
    index = chance.randrange(len(lines))
    cells = lines[index].split(",")
    cells[chance.randrange(len(cells))] = chance.choice(
        ["", "x", "nan", "inf", "-1", "1e999", "1" * 400, '"', "<b>&", "\0"]
    )
    lines[index] = ",".join(cells)
    path.write_text("\n".join(lines))


def _archive(path, chance):
    """Damages a file within a .keras archive."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    name = chance.choice(list(content))
    with tempfile.TemporaryDirectory() as scratch:
        one = pathlib.Path(scratch, name)
        one.write_bytes(content[name])
        kinds = [_flip, _noise, _truncate, _empty, _insert]
        chance.choice(kinds + ([_json_value, _deep] if name.endswith(".json") else []))(one, chance)
        content[name] = one.read_bytes()
    if chance.random() < 0.1:
        del content[name]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)


# Running.


@contextlib.contextmanager
def damaged(path, seed):
    """A file that is damaged within, and as before afterwards."""
    kept = path.read_bytes()
    try:
        yield damage(path, random.Random(seed))
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(kept)


def call(arguments):
    """Runs a command in this process; returns exit code, stdout and stderr."""

    began, computed = time.monotonic(), time.process_time()

    def alarm(number, frame):
        if time.process_time() - computed > LIMIT or time.monotonic() - began > 10 * LIMIT:
            raise HangError
        signal.alarm(LIMIT)

    out, err = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(err)
    before = signal.signal(signal.SIGALRM, alarm)
    signal.alarm(LIMIT)
    root = logging.getLogger("trainers")
    root.addHandler(handler)
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(4300)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _as_it_is():
            code = cli.main([str(argument) for argument in arguments])
    except HangError:
        code = "hang"
    except SystemExit as error:
        code = error.code
    except BaseException:
        code = "traceback"
        err.write(traceback.format_exc())
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        root.removeHandler(handler)
        sys.set_int_max_str_digits(digits)
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _as_it_is():
    """Without the filter of what C++ code writes, which would replace stderr."""
    before, quiet.quiet = quiet.quiet, contextlib.nullcontext
    try:
        yield
    finally:
        quiet.quiet = before


def verdict(code, err):
    """None where a command ended as it may; otherwise what is wrong."""
    lines = [line for line in err.splitlines() if line.strip() and not any(notice in line for notice in NOTICES)]
    if code in (0, 1):
        return None if "Traceback" not in err else "traceback on stderr"
    if code == 2:
        return None if len(lines) == 1 else f"{len(lines)} lines"
    return str(code)


def try_one(invocation, seed):
    """Damages one file of an invocation and runs it; returns the file, the damage, and how it ended."""
    arguments, paths = invocation
    path = random.Random(seed + 1_000_003).choice(paths)
    with damaged(path, seed) as how:
        code, _, err = call(arguments)
    return path, how, code, verdict(code, err), err


def main():
    """Runs the generator for some time and prints counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts, unexpected, findings = collections.Counter(), collections.Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        plain = make_world(folder, whole=True)
        for arguments, _ in plain:
            code, _, err = call(arguments)
            print(code, " ".join(map(str, arguments[:2])), err[:300], flush=True)
        deadline, seed = time.monotonic() + args.seconds, args.seed * 1_000_000
        while time.monotonic() < deadline:
            seed += 1
            invocation = plain[seed % len(plain)]
            path, how, code, wrong, err = try_one(invocation, seed)
            counts[f"exit code {code}"] += 1
            if "error: unexpected" in err:
                unexpected[err.strip()[:160]] += 1
            if wrong:
                findings.append((seed, wrong))
                print(
                    f"seed {seed}: {wrong}: {' '.join(map(str, invocation[0][:2]))}, {path.name} {how}\n{err[-1500:]}",
                    flush=True,
                )
    print(f"{sum(counts.values())} invocations: {dict(counts)}; {len(findings)} findings")
    for text, count in unexpected.most_common(40):
        print(f"{count:5} {text}")


if __name__ == "__main__":
    main()
