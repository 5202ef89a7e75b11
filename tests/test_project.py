"""Rules of the whole project: who imports whom, docstrings, README examples, what the wheel holds."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parent.parent
OURS = ("tf_ensembles", "trainers", "bandit_env", "benchmarks")
MAY_IMPORT = {
    "tf_ensembles": {"tf_ensembles"},
    "trainers": {"tf_ensembles", "trainers"},
    "bandit_env": {"tf_ensembles", "trainers", "bandit_env"},
    "benchmarks": set(OURS),
}
SOURCES = sorted(path for name in OURS for path in (ROOT / name).rglob("*.py"))


def _imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_import_rule(path):
    folder = path.relative_to(ROOT).parts[0]
    roots = {name.split(".")[0] for name in _imports(path)}
    assert roots & set(OURS) <= MAY_IMPORT[folder]
    assert "tests" not in roots
    if folder != "bandit_env":
        assert "tf_agents" not in roots
        assert "tensorflow_probability" not in roots  # only through legacy_keras
    assert not re.search(r"\btf\.keras\b(?!` |\.| is|,)", re.sub(r'"""[\s\S]*?"""|#.*|"[^"\n]*"', "", path.read_text()))


def _modules():
    for name in OURS:
        package = importlib.import_module(name)
        yield package
        for info in pkgutil.walk_packages(package.__path__, prefix=f"{name}."):
            yield importlib.import_module(info.name)


def test_every_public_name_has_a_docstring():
    missing = []
    for module in _modules():
        if not module.__doc__:
            missing.append(module.__name__)
        for name, value in vars(module).items():
            if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
                continue
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            if not inspect.getdoc(value):
                missing.append(f"{module.__name__}.{name}")
            if inspect.isclass(value):
                for method, function in vars(value).items():
                    if not method.startswith("_") and inspect.isfunction(function) and not inspect.getdoc(function):
                        missing.append(f"{module.__name__}.{name}.{method}")
    assert not missing


def test_every_listed_name_is_there():
    import tf_ensembles

    for name in tf_ensembles.__all__:
        assert getattr(tf_ensembles, name) is not None


BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def test_first_readme_example_is_short():
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 15
    assert "joint_nll" in BLOCKS[0]


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_readme_example_runs(number, tmp_path):
    result = subprocess.run([sys.executable, "-c", BLOCKS[number]], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]


def test_readme_commands_exist():
    from benchmarks.commands import main as cli

    for name in re.findall(r"tf-ensembles ([a-z0-9-]+)", (ROOT / "README.md").read_text()):
        assert name in cli.COMMANDS


def test_the_wheel_holds_the_four_packages_and_no_tests(tmp_path):
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    roots = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert roots == set(OURS)
    assert "tf_ensembles/py.typed" in names


def test_nothing_names_a_place_on_some_machine():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        path = ROOT / name
        if path.suffix in (".py", ".md", ".cfg", ".toml", ".yml", ".yaml", ".csv", ".txt", ".jsonl", ""):
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not re.search(r"/(root|home|work)/[a-z.]", text), name
