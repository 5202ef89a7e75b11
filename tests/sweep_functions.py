"""Functions that the sweep tests run, by their dotted names, in worker processes."""

from __future__ import annotations

import os
import pathlib
import signal
import time


def square(config):
    time.sleep(config.get("seconds", 0.0))
    return {"square": config["x"] ** 2, "third": config["x"] / 3.0}


def batch_squares(configs):
    """The value says how many were computed together."""
    time.sleep(configs[0].get("seconds", 0.0))
    if len(configs) > 1 and any(config["x"] < 0 for config in configs):
        raise ValueError("a negative one in the batch")
    if configs[0]["x"] < 0:
        raise ValueError(f"negative: {configs[0]['x']}")
    return [{"square": config["x"] ** 2, "together": len(configs)} for config in configs]


def fails_without_file(config):
    if not pathlib.Path(config["path"]).exists():
        raise FileNotFoundError(f"Expected {config['path']}")
    return {"found": True}


def kills_itself(config):
    """Kills its process, the first time only where a path is given."""
    marker = config.get("marker")
    if marker is None or not pathlib.Path(marker).exists():
        if marker is not None:
            pathlib.Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"survived": True}


def process_facts(config):
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    return {"pid": os.getpid(), **{name.lower(): os.environ.get(name) for name in names}}


def infinite(config):
    return {"kl": float("inf"), "undefined": float("nan"), "missing": None}


def returns_list(config):
    return {"values": [1, 2]}


def process_id(config):
    time.sleep(config["seconds"])
    return {"pid": os.getpid()}


def scaled(config, *, factor, place):
    return {"scaled": factor * config["x"]}


def scaled_batch(configs, *, factor, place):
    return [scaled(config, factor=factor, place=place) for config in configs]


def exits(config):
    """Ends its process without a word where it is told to."""
    if config.get("exit"):
        os._exit(7)
    return {"x2": 2 * config["x"]}


def batch_exits(configs):
    return [exits(config) for config in configs]


def large(config):
    return {"text": "x" * config["size"]}


def huge_number(config):
    return {"number": 10 ** config["digits"]}


def leaves_a_child(config):
    """Starts a process that outlives it and holds all that it held; then ends, or waits."""
    child = os.fork()
    if child == 0:
        time.sleep(120)
        os._exit(0)
    pathlib.Path(config["path"]).write_text(str(child))
    if config["exit"]:
        os._exit(7)
    time.sleep(120)


def stops_itself(config):
    """As if somebody had sent the process to sleep."""
    pathlib.Path(config["path"]).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    return {}


def advances_and_dies(config, *, path):
    """Takes one step and dies with its worker, as often as `deaths` says; `steps_taken` tells how far it is."""
    steps = steps_taken(config, path=path)
    pathlib.Path(path).write_text(str(steps + config["stride"]))
    if steps < config["deaths"]:
        os._exit(3)
    return {"steps": steps}


def steps_taken(config, *, path):
    return int(pathlib.Path(path).read_text()) if pathlib.Path(path).exists() else 0


def visible_gpus(config):
    time.sleep(config["seconds"])
    names = {"gpus": "CUDA_VISIBLE_DEVICES", "growth": "TF_FORCE_GPU_ALLOW_GROWTH"}
    return {key: os.environ.get(name, "") for key, name in names.items()}


def copy_data(config, *, data, store):
    """Writes a copy of a file to a folder, and tells where both are."""
    time.sleep(0.5)
    target = pathlib.Path(store) / "copies" / f"{config['i']}.bin"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(pathlib.Path(data).read_bytes())
    return {"data": data, "store": store}
