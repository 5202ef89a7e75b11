"""Strategies: what their names mean, and that replicas compute what one device does."""

import json
import os
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.member_process import make_config
from tf_ensembles.trainers.images import store as member_store
from tf_ensembles.trainers.images import strategies, training


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch):
    for variable in ("TF_CONFIG", "TPU_NAME"):
        monkeypatch.delenv(variable, raising=False)


def test_one_device():
    for name in ("auto", "cpu", strategies.StrategyName.CPU):
        strategy = strategies.make_strategy(name)
        assert strategy.num_replicas_in_sync == 1
        assert training.is_chief(strategy)
    assert strategies.describe(strategy, 32) == "1 replica, a batch of 32 examples in all, 32 per replica"


def test_mistakes(monkeypatch):
    with pytest.raises(ValueError, match=r"Expected a strategy of auto, cpu, .*'gpu'"):
        strategies.make_strategy("gpu")
    with pytest.raises(ValueError, match="with strategy auto or tpu only"):
        strategies.make_strategy("mirrored", tpu="v4-8")
    with pytest.raises(ValueError, match=r"Expected the workers in \$TF_CONFIG"):
        strategies.make_strategy("multiworker")
    with pytest.raises(ValueError, match="Expected a TPU: give --tpu NAME"):
        strategies.make_strategy("tpu")
    monkeypatch.setenv("TF_CONFIG", "{torn")
    with pytest.raises(ValueError, match=r"JSON with a cluster in \$TF_CONFIG"):
        strategies.make_strategy("auto")


def test_a_tpu_that_cannot_be_reached_takes_one_line(monkeypatch):
    def refuse(tpu):
        raise RuntimeError(f"no {tpu} here\nand many lines\nof details")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", refuse)
    with pytest.raises(ValueError, match=r"^Expected to reach the TPU 'v4-8'\. Received: no v4-8 here$"):
        strategies.make_strategy("tpu", "v4-8")
    monkeypatch.setenv("TPU_NAME", "v5")
    with pytest.raises(ValueError, match="Expected to reach the TPU 'v5'"):
        strategies.make_strategy("auto")


def test_a_tpu_is_wired_as_tensorflow_documents(monkeypatch):
    """Resolver, connection, initialization, strategy, in this order, each with the resolver."""
    calls = []
    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: calls.append(("resolver", tpu)) or "resolver"
    )
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda r: calls.append(("connect", r)))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda r: calls.append(("initialize", r)))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda r: calls.append(("strategy", r)) or "strategy")
    assert strategies.make_strategy("tpu", "v4-8") == "strategy"
    expected = [("resolver", "v4-8"), ("connect", "resolver"), ("initialize", "resolver"), ("strategy", "resolver")]
    assert calls == expected


class _ThreeReplicas:
    num_replicas_in_sync = 3


def test_a_batch_must_be_shared_equally():
    with pytest.raises(ValueError, match=r"3 replicas can share equally\. Received: 16"):
        strategies.describe(_ThreeReplicas(), 16)


def _start(store, *options, **variables):
    command = [sys.executable, "-m", "tests.member_process", str(store), *options]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **variables}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _logits(process, store):
    _, errors = process.communicate(timeout=3000)
    assert process.returncode == 0, errors[-3000:]
    return member_store.MemberFiles(store, make_config()).predictions()[0]


def _free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.mark.slow
def test_replicas_compute_what_one_device_does(tmp_path):
    """Two logical devices, and two processes on loopback, with the same global batch."""
    one = _logits(_start(tmp_path / "one"), tmp_path / "one")
    mirrored = _start(tmp_path / "mirrored", "--strategy", "mirrored", "--logical-cpus", "2")
    mirrored_logits = _logits(mirrored, tmp_path / "mirrored")
    workers = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    processes = [
        _start(
            tmp_path / "workers",
            "--strategy",
            "multiworker",
            TF_CONFIG=json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}),
        )
        for index in range(2)
    ]
    worker_logits = _logits(processes[0], tmp_path / "workers")
    _logits(processes[1], tmp_path / "workers")
    # Sixteen float32 steps; only the order of sums differs. Without synchronized batch norm: 0.4.
    np.testing.assert_allclose(mirrored_logits, one, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(worker_logits, one, rtol=1e-3, atol=1e-4)


@pytest.mark.slow  # 60 s
def test_a_worker_that_goes_is_told_in_a_line_by_those_that_stay(tmp_path):
    workers = [f"127.0.0.1:{port}" for port in _free_ports(2)]
    processes = [
        _start(
            tmp_path / "store",
            *("--strategy", "multiworker", "--epochs", "100000"),
            TF_CONFIG=json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}),
        )
        for index in range(2)
    ]
    deadline = time.monotonic() + 500.0
    while not list((tmp_path / "store").glob(f"*/{member_store.CHECKPOINT}")) and time.monotonic() < deadline:
        time.sleep(0.2)
    processes[1].kill()
    processes[1].communicate()
    errors = processes[0].communicate(timeout=500)[1]
    assert processes[0].returncode not in (0, -9)
    lines = [
        line
        for line in errors.splitlines()
        if line.startswith("tf_ensembles.trainers.images.training.WorkersLostError: ")
    ]
    assert len(lines) == 1, errors[-3000:]
    assert "Expected all 2 workers of $TF_CONFIG to stay. Received: another has gone while member 0 was at" in lines[0]
    assert f"it goes on from the last checkpoint in {tmp_path / 'store'}" in lines[0]
