"""How fast members train, against a bare Keras `fit` of the same network, and how fast 100 of them are scored.

    python -m benchmarks.speed.cifar10 train [--width 1] [--batch 128] [--steps 8] [--turns 2]
    python -m benchmarks.speed.cifar10 evaluate [--members 100]

`train` gives the ratio of images per second: a member with prior and bootstrap weights over plain `fit` of the VGG
without either, in turns within one run, on random images. `evaluate` writes 100 members' logits (10,000 x 10), then
scores every ensemble size in a fresh process. Exits with 1 when a limit is missed; nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

MIN_RATIO = 0.9
MAX_SECONDS, MAX_MEGABYTES = 5.0, 1000.0
EXAMPLES, CLASSES = 10_000, 10


def _random_data(count: int) -> Any:
    import numpy as np

    from trainers.images import data as image_data

    random = np.random.default_rng(0)
    images = random.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
    return image_data.make_data(images, np.arange(count) % CLASSES, CLASSES)


def _member_images_per_second(data: Any, width: float, batch: int, steps: int, member: int) -> float:
    """Images per second of a member's training, from the end of its first call of the graph, which compiles, on."""
    from trainers.images import config as member_config
    from trainers.images import training as member_training

    config = member_config.MemberConfig(
        num_train=len(data),
        width=width,
        epochs=max(1, (steps + 1) * batch // len(data)),
        batch_size=batch,
        prior_scale=30.0,
        bootstrap_probability=0.9,
        member=member,
    )
    times: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as store:
        member_training.train(
            config,
            data,
            data.select(slice(1)),
            store,
            progress=lambda step, loss: times.append((step, time.perf_counter())),
        )
    (first, started), (last, ended) = times[0], times[-1]
    return (last - first) * batch / (ended - started)


def _make_fit(data: Any, width: float, batch: int) -> Any:
    """Returns a function of steps to images per second of `fit`, after a first epoch that compiles."""
    import keras

    from trainers.images import data as image_data
    from trainers.images import vgg

    model = vgg.build_vgg(data.input_shape, data.num_classes, width)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-2, momentum=0.9), loss, jit_compile=False)
    x = image_data.standardize(data, data.images)
    model.fit(x[:batch], data.labels[:batch], batch_size=batch, verbose=0)

    def run(steps: int) -> float:
        count = steps * batch
        started = time.perf_counter()
        model.fit(x[:count], data.labels[:count], batch_size=batch, verbose=0)
        return count / (time.perf_counter() - started)

    return run


def compare_training(width: float, batch: int, steps: int, turns: int) -> float:
    """Prints images per second of both, the best of some turns, and returns their ratio."""
    data = _random_data((steps + 1) * batch)
    fit = _make_fit(data, width, batch)
    ours, keras_fit = 0.0, 0.0
    for turn in range(turns):
        ours = max(ours, _member_images_per_second(data, width, batch, steps, turn))
        keras_fit = max(keras_fit, fit(steps))
    print(f"width {width:g}, batch {batch}: {ours:.1f} images/s with prior and bootstrap, Keras fit {keras_fit:.1f}")
    print(f"ratio {ours / keras_fit:.3f} (limit {MIN_RATIO})")
    return ours / keras_fit


def _write_members(store: str, count: int) -> dict[str, Any]:
    import numpy as np

    from trainers.images import runs as cifar10_runs
    from trainers.images import store as member_store

    random = np.random.default_rng(0)
    labels = random.integers(CLASSES, size=EXAMPLES).astype(np.int32)
    config = {"num_train": 1000, "num_members": count}
    for member in cifar10_runs.ensemble_from_dict(config).members:
        files = member_store.MemberFiles(store, member)
        files.begin()
        files.finish({"steps": 1}, 3 * random.standard_normal((EXAMPLES, CLASSES), dtype=np.float32), labels, None)
    return config


def measure_evaluation(config: dict[str, Any], store: str) -> dict[str, float]:
    """Scores all sizes in this process; call it in a fresh one, because a peak of memory never falls."""
    started = time.perf_counter()
    from tf_ensembles.metrics import by_size as member_scores  # noqa: F401 - imported here to time the scoring alone
    from trainers.images import runs as cifar10_runs

    imported = time.perf_counter()
    ensemble = cifar10_runs.ensemble_from_dict(config)
    sizes = cifar10_runs.score_members(ensemble.members, ensemble.tau, store)
    seconds = time.perf_counter() - imported
    unit = 1024**2 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return {"seconds": seconds, "import_seconds": imported - started, "megabytes": peak, "sizes": len(sizes)}


def compare_evaluation(count: int) -> bool:
    """Prints time and peak memory of scoring, and returns whether both are below their limits."""
    with tempfile.TemporaryDirectory() as store:
        config = _write_members(store, count)
        command = [sys.executable, "-m", "benchmarks.speed.cifar10", "measure", json.dumps([config, store])]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        answer = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    measured = json.loads(answer.splitlines()[-1])
    print(f"{count} members x {EXAMPLES} x {CLASSES}, {measured['sizes']:.0f} ensemble sizes scored")
    print(f"{measured['seconds']:.2f} s (limit {MAX_SECONDS}), after {measured['import_seconds']:.1f} s of imports")
    print(f"{measured['megabytes']:.0f} MB peak of the whole process (limit {MAX_MEGABYTES:.0f})")
    return measured["seconds"] < MAX_SECONDS and measured["megabytes"] < MAX_MEGABYTES


def main() -> int:
    """Measures and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "evaluate", "measure"))
    parser.add_argument("config", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--members", type=int, default=100)
    args = parser.parse_args()
    if args.what == "measure":
        print(json.dumps(measure_evaluation(*json.loads(args.config))))
        return 0
    if args.what == "evaluate":
        return 0 if compare_evaluation(args.members) else 1
    return 0 if compare_training(args.width, args.batch, args.steps, args.turns) >= MIN_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
