"""What is built and how it is installed: one top-level name, metadata, the Makefile's Python, the Dockerfile."""

import ast
import configparser
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13")
HOSTILE = "raise ImportError('this belongs to somebody else')\n"


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """The source archive and the wheel, as `python -m build` makes them of what git knows."""
    folder = tmp_path_factory.mktemp("dist")
    for name in _git("ls-files").splitlines():
        if (ROOT / name).exists():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name, follow_symlinks=False)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(folder / "source")]
    variables = {**os.environ, "GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "someone/some"}
    result = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(dist / "installed")
    return dist / "installed"


def test_the_wheel_has_one_top_level_name_and_no_tests(wheel):
    roots = {path.name for path in wheel.iterdir() if path.suffix != ".dist-info"}
    assert roots == {"tf_ensembles"}
    for name in ("py.typed", "trainers/agents.py", "bandit_env/rollout.py", "benchmarks/report/assets/report.css"):
        assert (wheel / "tf_ensembles" / name).is_file()
    for name in ("speed", "studies", "results"):
        assert not (wheel / "tf_ensembles" / "benchmarks" / name).exists()
    (info,) = wheel.glob("*.dist-info")
    assert (info / "top_level.txt").read_text().split() == ["tf_ensembles"]
    assert "tf_ensembles.benchmarks.commands.main:main" in (info / "entry_points.txt").read_text()


def test_the_wheel_names_its_packages_by_where_they_are(wheel):
    for path in wheel.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            assert not {name.split(".")[0] for name in names} & {"trainers", "bandit_env", "benchmarks"}, path


def test_the_wheel_works_beside_other_people_s_packages_of_the_same_names(wheel, tmp_path):
    for name in ("trainers", "bandit_env", "benchmarks"):
        (tmp_path / f"{name}.py").write_text(HOSTILE)
    code = """
import sys
import tf_ensembles
from tf_ensembles.trainers.sweeps import kinds, sweep
from tf_ensembles.benchmarks.commands import main
from tf_ensembles.benchmarks.figures import registry
from tf_ensembles import bandit_env
assert {"F6", "F12"} <= {figure.id for figure in registry.figures()}
assert kinds.function_of("testbed") == "tf_ensembles.benchmarks.figures.testbed.runs:train_and_score"
assert "run_bandit" in dir(bandit_env)
print(tf_ensembles.__file__)
sys.exit(main.main(["--version"]))
"""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(wheel)])}
    command = [sys.executable, "-P", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=variables, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.startswith(str(wheel))


def test_the_metadata(wheel, dist):
    (info,) = wheel.glob("*.dist-info")
    text = (info / "METADATA").read_text()
    for line in (
        "License-Expression: Apache-2.0",
        "Requires-Python: <3.14,>=3.11",
        "Classifier: Typing :: Typed",
        *(f"Classifier: Programming Language :: Python :: {version}" for version in VERSIONS),
        "Project-URL: Source, https://example.org/someone/some",
    ):
        assert line in text
    core = re.findall(r"^Requires-Dist: ([\w-]+)[^;\n]*$", text, flags=re.MULTILINE)
    assert core == ["tensorflow", "keras", "numpy", "tqdm"]
    with tarfile.open(*dist.glob("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {
        "setup.py",
        "Makefile",
        "constraints/3.11.txt",
        "constraints/hashed/3.11.txt",
        "tests/conftest.py",
        "tf_ensembles/benchmarks/stats.py",
    } <= names


def test_a_checkout_has_the_names_of_the_wheel():
    for name in ("trainers", "bandit_env", "benchmarks"):
        assert (ROOT / "tf_ensembles" / name).readlink() == pathlib.Path("..") / name
    command = [sys.executable, "-m", "tf_ensembles.trainers.images.cifar10", "--help"]
    assert "Prepares CIFAR10" in subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout


def _make(tmp_path, *pythons, make_arguments=()):
    """What `make lint` would do, with nothing but these Pythons in the PATH, each of which says its version."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name, version in pythons:
        (tools / name).write_text(f"#!/bin/sh\necho {version}\n" if version else "#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    for name in ("make", "sh", "cat", "cksum", "cut", "find", "sort", "echo", "rm", "touch", "uname"):
        if (found := shutil.which(name)) is not None and not (tools / name).exists():
            (tools / name).symlink_to(found)
    command = ["make", "--dry-run", "lint", f"VENV={tmp_path / 'environment'}", *make_arguments]
    variables = {"PATH": str(tools), "LC_ALL": "C"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=variables)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("pythons", "version"),
    [
        ([("python3.13", "3.13")], "3.13"),
        ([("python3", "3.12")], "3.12"),
        ([("python3.13", "3.13"), ("python3.11", "3.11")], "3.11"),
        ([("python3.11", None), ("python3.12", "3.12")], "3.12"),  # such as a pyenv shim of one that is not chosen
    ],
)
def test_make_finds_a_python(pythons, version, tmp_path):
    result = _make(tmp_path, *pythons)
    assert f"(CPython {version})" in result.stdout, result.stdout + result.stderr
    assert f"--constraint constraints/{version}.txt" in result.stdout
    assert f"--require-hashes --requirement constraints/hashed/{version}.txt" in result.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("system", "hashes"), [("Linux x86_64", "yes"), ("Darwin arm64", "no"), ("Linux aarch64", "no")]
)
def test_make_asks_for_hashes_where_the_set_was_made(system, hashes, tmp_path):
    (tmp_path / "tools").mkdir()
    name, machine = system.split()
    (tmp_path / "tools" / "uname").write_text(f'#!/bin/sh\n[ "$1" = -s ] && echo {name} || echo {machine}\n')
    (tmp_path / "tools" / "uname").chmod(0o755)
    assert f"if [ {hashes} = yes ]; then" in _make(tmp_path, ("python3.11", "3.11")).stdout
    shutil.rmtree(tmp_path / "tools")
    chosen = _make(tmp_path, ("python3.11", "3.11"), make_arguments=["HASHES=perhaps"])
    assert "if [ perhaps = yes ]; then" in chosen.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_keeps_the_environment_and_takes_another_python_where_it_is_asked_to(tmp_path):
    first = _make(tmp_path, ("python3.12", "3.12"))
    (stamp,) = re.findall(r"^touch (\S+/installed-3\.12-\d+)$", first.stdout, flags=re.MULTILINE)
    pathlib.Path(stamp).parent.mkdir()
    pathlib.Path(stamp).touch()
    shutil.rmtree(tmp_path / "tools")
    assert "Installing" not in _make(tmp_path, ("python3.11", "3.11")).stdout
    shutil.rmtree(tmp_path / "tools")
    asked = _make(tmp_path, ("python3.11", "3.11"), make_arguments=["PYTHON=python3.11"])
    assert "Installing" in asked.stdout
    assert "(CPython 3.11)" in asked.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_every_python_has_its_tested_set(version):
    lines = (ROOT / "constraints" / f"{version}.txt").read_text().splitlines()
    assert lines[0].startswith(f"# The tested set, for CPython {version}:")
    pinned = dict(line.lower().replace("_", "-").split("==") for line in lines[1:])
    assert {"tensorflow", "keras", "numpy", "pandas", "matplotlib", "ray", "pytest"} <= set(pinned)
    assert ("tf-agents" in pinned) == (version == "3.11")


def _hashed(name):
    """The packages of a file with hashes: their versions, and how many hashes each has."""
    text = (ROOT / "constraints" / "hashed" / f"{name}.txt").read_text().replace(" \\\n", "")
    found = {}
    for line in text.splitlines()[1:]:
        match = re.fullmatch(r"([\w.-]+==[\w.+!-]+)((?: {4}--hash=sha256:[0-9a-f]{64})+)", line)
        assert match, line
        found[match[1]] = match[2].count("--hash")
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_every_package_of_a_tested_set_has_its_hashes(version):
    lines = (ROOT / "constraints" / f"{version}.txt").read_text().splitlines()[1:]
    assert list(_hashed(version)) == lines
    assert _hashed(version)[next(line for line in lines if line.startswith("tensorflow=="))] >= 3  # a wheel a system
    # What is installed first, to build the rest with, is not replaced by another version.
    assert {line for line in _hashed("build") if not line.startswith("pip==")} <= set(lines)


def test_workflows_install_with_hashes_only():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for line in re.findall(r"pip install.*", path.read_text()):
            assert "--require-hashes --requirement constraints/hashed/" in line
        for action in re.findall(r"uses: (actions/.*)", path.read_text()):
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}  # v[\d.]+", action)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert {"build", "setuptools", "pip"} <= {line.partition("==")[0] for line in _hashed("build")}
    assert "twine" in {line.partition("==")[0] for line in _hashed("twine")}


@pytest.mark.parametrize(
    ("file", "fit"),
    [
        ("a-1.0-py3-none-any.whl", True),
        ("a-1.0-py2.py3-none-any.whl", True),
        ("a-1.0-py312-none-any.whl", True),
        ("a-1.0-py313-none-any.whl", False),
        ("a-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1.0-1-cp312-cp312-macosx_11_0_arm64.whl", True),
        ("a-1.0-cp39-abi3-macosx_10_12_universal2.whl", True),
        ("a-1.0-cp313-abi3-manylinux_2_28_aarch64.whl", False),
        ("a-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", False),
        ("a-1.0-cp312-cp312t-manylinux_2_28_x86_64.whl", False),
        ("a-1.0-cp312-cp312-win_amd64.whl", False),
        ("a-1.0-cp312-cp312-musllinux_1_2_x86_64.whl", False),
        ("a-1.0-cp312-cp312-manylinux2014_i686.whl", False),
        ("a-1.0-pp310-pypy310_pp73-manylinux_2_28_x86_64.whl", False),
        ("a-1.0.tar.gz", False),
    ],
)
def test_which_files_are_hashed(file, fit):
    renew = _load(ROOT / "constraints" / "renew.py")
    assert renew.fits(file, ("3.12",)) == fit
    assert renew.of_release(file, "A", "1.0")
    assert not renew.of_release(file, "a", "1.0.1")


def test_pip_refuses_another_file_than_the_one_that_was_hashed(tmp_path, monkeypatch):
    renew = _load(ROOT / "constraints" / "renew.py")
    wheel = tmp_path / "made_up_tfe-1.0-py3-none-any.whl"
    record = "".join(f"made_up_tfe-1.0.dist-info/{name},,\n" for name in ("METADATA", "WHEEL", "RECORD"))
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("made_up_tfe.py", "")
        archive.writestr(
            "made_up_tfe-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: made-up-tfe\nVersion: 1.0\n"
        )
        archive.writestr(
            "made_up_tfe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("made_up_tfe-1.0.dist-info/RECORD", record + "made_up_tfe.py,,\n")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page = f'<a href="../../{wheel.name}#sha256={digest}">x</a><a href="made_up_tfe-2.0.tar.gz#sha256={"0" * 64}">x</a>'
    answer = subprocess.CompletedProcess([], 0, json.dumps({"made-up-tfe": page}))
    with monkeypatch.context() as patch:
        patch.setattr(renew.subprocess, "run", lambda *a, **k: answer)
        lines = renew.hashed(["made_up_tfe==1.0"], VERSIONS)
    assert lines == [f"made_up_tfe==1.0 \\\n    --hash=sha256:{digest}"]
    requirements = tmp_path / "requirements.txt"
    changed = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    for written, expected in ((digest, 0), (changed, 1)):
        requirements.write_text(lines[0].replace(digest, written) + "\n")
        command = [
            sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", str(requirements),
            "--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / written),
        ]  # fmt: skip
        result = subprocess.run(command, capture_output=True, text=True)
        assert result.returncode == expected, result.stderr
        assert (tmp_path / written / "made_up_tfe.py").exists() == (expected == 0)
    assert "DO NOT MATCH THE HASHES" in result.stderr


def test_the_oldest_set_has_the_lower_limits():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    text = (ROOT / "constraints" / "oldest.txt").read_text()
    for name in ("tensorflow", "keras"):
        (limit,) = re.findall(rf"^{name}>=([\d.]+)", config["options"]["install_requires"], flags=re.MULTILINE)
        assert re.search(rf"^{name}=={re.escape(limit)}$", text, flags=re.MULTILINE)


def _instructions():
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    return [line.split(maxsplit=1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_the_image_ends_with_the_self_test():
    instructions = _instructions()
    assert instructions[0] == ["FROM", "python:3.11-slim"]
    assert instructions[-1] == ["RUN", "tf-ensembles info --check"]
    assert {name for name, _ in instructions} <= {"FROM", "ARG", "COPY", "RUN", "ENTRYPOINT", "CMD"}


def test_the_image_installs_files_that_were_tested_and_nothing_else():
    """What pip fetches has a hash; a wheel that is built here has that of this very file."""
    commands = [value for name, value in _instructions() if name == "RUN" and " pip " in value]
    fetching = [command for command in commands if "--no-deps" not in command]
    assert len(fetching) == 2
    assert all("--require-hashes" in command and "constraints/hashed/" in command for command in fetching)
    assert all("--no-build-isolation" in command for command in commands[1:])


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the image has CPython 3.11")
def test_the_commands_of_the_image_run_in_an_empty_environment(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "environment")], check=True)
    shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "build", "dist", "__pycache__"))
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "TF_USE_LEGACY_KERAS")}
    variables["PATH"] = os.pathsep.join([str(tmp_path / "environment" / "bin"), variables["PATH"]])
    last = ""
    for name, value in _instructions():
        if name == "ARG":
            key, _, default = value.partition("=")
            variables[key] = default
        elif name == "RUN":
            command = value.replace("/source", shlex.quote(str(tmp_path / "source")))
            result = subprocess.run(command, shell=True, cwd=tmp_path, env=variables, capture_output=True, text=True)
            assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
            last = result.stdout
    assert last.endswith("everything works\n")
