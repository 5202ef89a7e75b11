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
