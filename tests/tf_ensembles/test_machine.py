"""What is said of the machine."""

import importlib.metadata
import os
import platform

from tf_ensembles import machine


def test_usable_cores_are_those_of_this_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert machine.usable_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1


def test_the_processor_has_a_name_on_every_system(monkeypatch):
    def read(path, encoding=None):
        if missing:
            raise FileNotFoundError(path)
        return "processor\t: 0\nmodel name\t: Some CPU @ 2: fast\nmodel name\t: Other\n"

    monkeypatch.setattr("pathlib.Path.read_text", read)
    missing = False
    assert machine.cpu_name() == "Some CPU @ 2: fast"
    missing = True
    assert machine.cpu_name() == (platform.processor() or platform.machine())
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "")
    assert machine.cpu_name() == "unknown processor"


def test_versions_are_those_installed_and_none_for_others():
    found = machine.versions(["numpy", "no-such-package"])
    assert found == {"numpy": importlib.metadata.version("numpy"), "no-such-package": None}


def test_memory_is_whole_gibibytes(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2 * 2**20}.__getitem__)
    assert machine.memory() == "8 GiB"

    def unknown(name):
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert machine.memory() == "unknown memory"


def test_devices_have_short_names():
    assert "CPU:0" in machine.devices()
