"""The image engine for a TPU, as far as it can be seen without one.

Its graph is traced under a real `TPUStrategy` whose resolver tells of a 2x2 TPU that is not there. Each operation that
would be compiled for the cores is held against the list of operations that XLA of the installed TensorFlow has kernels
for, which are the same for all of XLA's devices, and against the few that only a TPU has. That the same steps, and the
loop over them, compile by XLA is seen on logical CPUs, without the sums over replicas, which XLA has on no CPU; with
these, the loop is run by TensorFlow's own kernels. What no test can see here is the TPU's own compiler, its memory and
its speed.
"""

import collections

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.tpu import tpu_system_metadata

from tests.member_process import make_config, make_data
from tests.trainers.images.test_strategies import _start
from tf_ensembles.trainers.images import data as image_data
from tf_ensembles.trainers.images import device_loop, strategies, training
from tf_ensembles.trainers.images import engine as member_engine
from tf_ensembles.trainers.images import store as member_store

pywrap_xla_ops = pytest.importorskip("tensorflow.python.util.pywrap_xla_ops")

JOB = "/job:localhost/replica:0/task:0/device"
CORES = [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0]]
# Kernels of these are in the TPU's own library: who the replicas are, and how they talk.
OF_TPUS = {"TPUReplicateMetadata", "CrossReplicaSum", "AllToAll"}

Device = collections.namedtuple("Device", "name device_type")


class Resolver:
    """Tells of four cores on one host."""

    def get_tpu_system_metadata(self):
        cores = [Device(f"{JOB}:TPU:{core}", "TPU") for core in range(4)]
        return tpu_system_metadata.TPUSystemMetadata(
            num_cores=4,
            num_hosts=1,
            num_of_cores_per_host=4,
            topology=None,
            devices=[*cores, Device(f"{JOB}:CPU:0", "CPU")],
        )


def _topology():
    return tf.tpu.experimental.Topology(mesh_shape=[2, 2, 1, 1], device_coordinates=[CORES])


def test_every_core_has_a_strategy_of_its_own():
    each = strategies.strategies_of_cores(Resolver(), _topology())
    assert [one.num_replicas_in_sync for one in each] == [1] * 4
    assert [one.extended.worker_devices for one in each] == [(f"{JOB}:TPU:{core}",) for core in range(4)]


def _cifar10(count=128):
    images = np.zeros((count, 32, 32, 3), np.uint8)
    return image_data.make_data(images, np.arange(count) % 10, 10, (0.5,) * 3, (0.2,) * 3)


def _trace(strategy, dtype, augment):
    """Traces the steps of a call, where nothing has to exist; returns the graph and the bytes sent by each `run`."""
    config = make_config(num_train=128, batch_size=128, dtype=dtype, augment=augment, width=1 / 16)
    data, sent = _cifar10(), []
    spec = tf.TensorSpec
    plan = (spec([None, 128], tf.int64), spec([None], tf.int64), spec([None], tf.float32))
    constants = (spec([], tf.int64), spec([], tf.float32), spec([], tf.float32))
    run = strategy.run

    def record(function, args):
        values = tf.nest.flatten(args)
        assert not any(isinstance(value, tf.distribute.DistributedValues) for value in values)
        # What is no share is sent to each.
        copies = strategy.num_replicas_in_sync
        sent.append(copies * sum(value.dtype.size * value.shape.num_elements() for value in values))
        return run(function, args=args)

    with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        engine = member_engine.get_engine(member_engine.make_shape(config, data), strategy)
        parts = (data.images, data.labels, data.ids, np.ones(128, np.float32), np.zeros((128, 10), np.float32))
        loop = engine.loop(member_engine.Tensors(*map(tf.constant, parts)))
        patch.setattr(strategy, "run", record)
        traced = tf.function(loop.all_steps, input_signature=(*plan, *constants)).get_concrete_function()
        return traced.graph.as_graph_def(), sent


def _nodes(graph):
    """All nodes of a graph; those that are compiled for the cores; and the latter with those of their loops."""
    functions = {one.signature.name: one.node_def for one in graph.library.function}
    every = [*graph.node, *(node for nodes in functions.values() for node in nodes)]
    cores = [node for node in every if "_tpu_replicate" in node.attr]
    within, seen = list(cores), set()
    for node in within:  # It grows as functions are found.
        values = node.attr.values()
        called = {one.name for value in values for one in (value.func, *value.list.func)} & functions.keys()
        within.extend(inner for name in called - seen for inner in functions[name])
        seen |= called
    return every, cores, within


@pytest.mark.slow  # 50 s
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_that_is_compiled_for_the_cores_can_be(dtype, augment):
    strategy = tf.distribute.TPUStrategy(Resolver())
    assert strategy.num_replicas_in_sync == 4
    graph, sent = _trace(strategy, dtype, augment)
    every, cores, within = _nodes(graph)
    known = {*pywrap_xla_ops.get_cpu_kernel_names(), *OF_TPUS}
    assert len(within) > 1000
    assert {node.op for node in within} - known == set()
    # The step: convolutions of eleven layers, their two gradients, the replicas' sums.
    counts = collections.Counter(node.op for node in within)
    assert counts["Conv2DBackpropFilter"] == 11
    assert counts["CrossReplicaSum"] > 0
    _check_one_call(every, cores)
    # Row numbers, epoch and rate of each step to each core, and count, seed, scale and decay; no image.
    assert sent == [4 * (device_loop.STEPS * (128 * 4 + 8 + 4) + 4 + 8 + 4 + 4)]


def _check_one_call(every, cores):
    """All steps are one call of the cores: the only loop is theirs, and has the steps in it."""
    assert len({node.attr["_tpu_replicate"].s for node in cores}) == 1
    assert sum(node.op == "TPUReplicateMetadata" for node in every) == 1
    assert [node.op for node in every if "While" in node.op] == ["While"]
    assert [node.op for node in cores if "While" in node.op or "Conv2D" in node.op] == ["While"]
    assert sum(node.op == "ReadVariableOp" for node in cores) >= 5  # The data: no argument of the call.


@pytest.mark.slow  # 5 s
def test_the_step_of_a_core_that_has_members_of_its_own_can_be_compiled():
    strategy = strategies.strategies_of_cores(Resolver(), _topology())[2]
    graph, sent = _trace(strategy, "bfloat16", augment=True)
    every, cores, within = _nodes(graph)
    ops = {node.op for node in within}
    assert "Conv2DBackpropFilter" in ops
    assert "FusedBatchNormV3" in ops
    assert "CrossReplicaSum" not in ops
    assert ops - {*pywrap_xla_ops.get_cpu_kernel_names(), *OF_TPUS} == set()
    _check_one_call(every, cores)
    assert sent == [device_loop.STEPS * (128 * 4 + 8 + 4) + 4 + 8 + 4 + 4]


def _members(store, *options, **variables):
    process = _start(store, "--members", "5", "--epochs", "3", *options, **variables)
    said, errors = process.communicate(timeout=3000)
    assert process.returncode == 0, errors[-3000:]
    dtype = options[options.index("--dtype") + 1]
    configs = [make_config(member, epochs=3, dtype=dtype, augment=True) for member in range(5)]
    return said.split(), [member_store.MemberFiles(store, config).predictions()[0] for config in configs]


LOOP = "--loop-on-devices"


@pytest.mark.slow  # 60 s
@pytest.mark.parametrize(
    ("onednn", "dtype", "loop"),
    [("1", "float32", ()), ("0", "float32", ()), ("0", "bfloat16", ()), ("0", "bfloat16", (LOOP,))],
)
def test_devices_that_train_members_of_their_own_give_those_of_one_device(tmp_path, onednn, dtype, loop):
    """Four logical devices; without oneDNN, each compiles the step by XLA."""
    options = ("--dtype", dtype, "--augment")
    _, alone = _members(tmp_path / "one", *options, TF_ENABLE_ONEDNN_OPTS=onednn)
    several = ("--parallel", "members", "--logical-cpus", "4", "--strategy", "mirrored", *loop)
    said, members = _members(tmp_path / "four", *several, *options, TF_ENABLE_ONEDNN_OPTS=onednn)
    assert said[-2:] == ["4", "4"]
    for one, other in zip(alone, members, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow  # 30 s
@pytest.mark.parametrize(("devices", "loop"), [("4", ()), ("2", (LOOP,)), ("4", (LOOP,))])
def test_devices_that_share_flipped_and_shifted_batches_give_the_members_of_one(tmp_path, devices, loop):
    """With a step by each call of the devices, and with all steps of a call in a loop of theirs."""
    _, alone = _members(tmp_path / "one", "--dtype", "float32", "--augment")
    options = ("--strategy", "mirrored", "--logical-cpus", devices, "--dtype", "float32", "--augment", *loop)
    _, shared = _members(tmp_path / "several", *options)
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-4)  # Six float32 steps; the order of sums differs.


@pytest.mark.slow  # 20 s
@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_xla_compiles_a_devices_loop_as_a_whole(monkeypatch, momentum):
    """All that a core would be given, data and steps in one, against a step by each call."""
    config, data = make_config(epochs=3, augment=True, momentum=momentum), make_data(32)
    logits = []
    for used in (False, True):
        monkeypatch.setattr(device_loop, "is_used", lambda strategy, used=used: used)
        member = training.Training(config, data, tf.distribute.OneDeviceStrategy("/cpu:0"), None)
        if used:
            loop = member.engine.loop(member._tensors)
            compiled = tf.function(loop.replica_steps, jit_compile=True)
            monkeypatch.setattr(loop, "replica_steps", compiled)
        before = member.engine.predict(data.images)
        member.run(1e6, None)
        assert member.step == 6
        logits.append(member.engine.predict(data.images))
    assert compiled.experimental_get_tracing_count() == 1
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-3, atol=1e-4)
    assert np.abs(logits[1] - before).max() > 0.01  # The steps have moved them by much more than that.
