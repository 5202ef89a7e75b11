"""Rules of the whole project: who imports whom, docstrings, README examples."""

import ast
import importlib
import inspect
import json
import pathlib
import pkgutil
import re
import subprocess
import sys

import numpy as np
import pytest

from tf_ensembles import extras

ROOT = pathlib.Path(__file__).parent.parent
OURS = ("tf_ensembles", "trainers", "bandit_env", "benchmarks")
MAY_IMPORT = {
    "tf_ensembles": {"tf_ensembles"},
    "trainers": {"tf_ensembles", "trainers"},
    "bandit_env": {"tf_ensembles", "trainers", "bandit_env"},
    "benchmarks": set(OURS),
}
SOURCES = sorted(path for name in OURS for path in (ROOT / name).rglob("*.py"))


TESTS = sorted((ROOT / "tests").rglob("*.py"))
# Where planning must be quick: these take pandas and Matplotlib only when something is computed or drawn.
LIGHT = (
    "benchmarks/figures/",
    "benchmarks/claims/",
    "benchmarks/commands/",
    "benchmarks/stats.py",
    "benchmarks/style.py",
)
MOST_MODULES, MOST_LINES = 15, 420
LONGER: dict[str, int] = {}
DOTTED = re.compile(rf"\b(?:{'|'.join(OURS)})(?:\.\w+)+")


def _name(path):
    return path.relative_to(ROOT).as_posix()


def _imports(node):
    """The modules that are imported anywhere below a node."""
    for one in ast.walk(node):
        if isinstance(one, ast.Import):
            yield from (alias.name for alias in one.names)
        elif isinstance(one, ast.ImportFrom) and one.module is not None:
            yield from (f"tf_ensembles.{alias.name}" for alias in one.names if one.module == "tf_ensembles")
            yield one.module


def _package(name):
    """The package that a dotted name belongs to: `trainers` for `tf_ensembles.trainers.agents`."""
    first, _, rest = name.partition(".")
    second = rest.partition(".")[0]
    return second if first == "tf_ensembles" and second in OURS else first


def _imports_at_once(body):
    """The modules that importing a module imports: not those within functions, nor for type checkers only."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imports(node)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports_at_once(node.orelse)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for field in ("body", "orelse", "finalbody"):
                yield from _imports_at_once(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _imports_at_once(handler.body)


def _strings(tree):
    """The string constants of a module that are not docstrings, nor text that stands alone."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def _is_module(name):
    """Whether a dotted name is that of one of our modules, or of something within one."""
    parts = name.removeprefix("tf_ensembles.").split(".") if _package(name) != "tf_ensembles" else name.split(".")
    places = [ROOT.joinpath(*parts[:count]) for count in range(2, len(parts) + 1)]
    return any(place.with_suffix(".py").is_file() or (place / "__init__.py").is_file() for place in places)


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_import_rule(path):
    folder, tree = path.relative_to(ROOT).parts[0], ast.parse(path.read_text())
    roots = {_package(name) for name in _imports(tree)}
    assert roots & set(OURS) <= MAY_IMPORT[folder]
    # One name for a module: a checkout could import `trainers`, too, as modules of their own.
    assert not {name.split(".")[0] for name in _imports(tree)} & set(OURS[1:])
    assert "tests" not in roots
    if not _name(path).startswith("bandit_env/agents/"):
        assert "tf_agents" not in roots
        assert "tensorflow_probability" not in roots  # only through legacy_keras
    if _name(path).startswith(LIGHT):
        heavy = {name.split(".")[0] for name in _imports_at_once(tree.body)}
        assert not heavy & {"pandas", "matplotlib", "tensorflow", "keras", "scipy"}
    assert not re.search(r"\btf\.keras\b(?!` |\.| is|,)", re.sub(r'"""[\s\S]*?"""|#.*|"[^"\n]*"', "", path.read_text()))


@pytest.mark.parametrize("path", SOURCES, ids=_name)
def test_strings_keep_the_import_rule(path):
    """A module that is named in a string, to be imported later, is imported all the same."""
    folder = path.relative_to(ROOT).parts[0]
    named = {name for text in _strings(ast.parse(path.read_text())) for name in DOTTED.findall(text)}
    assert not [name for name in named if _package(name) not in MAY_IMPORT[folder] and _is_module(name)]


def test_a_module_in_a_string_is_recognized():
    text = 'KIND = register("testbed", "tf_ensembles.benchmarks.figures.testbed.runs:train")\n'
    text += 'run(f"-m trainers.agents {x}")'
    named = [name for text in _strings(ast.parse(text)) for name in DOTTED.findall(text)]
    assert named == ["tf_ensembles.benchmarks.figures.testbed.runs", "trainers.agents"]
    assert all(_is_module(name) for name in named)
    assert _is_module("tf_ensembles.benchmarks.stats.paired")
    assert not _is_module("tf_ensembles.benchmarks.testbed_runs")
    assert list(_strings(ast.parse('"""See tf_ensembles.benchmarks.stats."""'))) == []


def test_imports_come_first():
    for path in (*SOURCES, *TESTS):
        assert not re.search(r"# *noqa:[ \w,]*E402", path.read_text()), _name(path)


def test_folders_and_modules_are_small():
    folders = {path.parent for path in SOURCES}
    counts = {
        _name(folder): len([path for path in folder.glob("*.py") if path.stem != "__init__"]) for folder in folders
    }
    assert {name: count for name, count in counts.items() if count > MOST_MODULES} == {}
    lengths = {_name(path): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > LONGER.get(name, MOST_LINES)} == {}


def test_tests_stand_where_their_packages_do():
    folders = {_name(path.parent) for path in SOURCES}
    mine = [path.relative_to(ROOT / "tests").parent.as_posix() for path in TESTS if path.name.startswith("test_")]
    assert set(OURS) <= {folder.split("/")[0] for folder in mine}
    assert {folder for folder in mine if folder != "."} <= folders


def _modules():
    for name in OURS:
        package = importlib.import_module(name)
        yield package
        # The TF-Agents side of the bandits cannot be imported without it.
        absent = () if extras.is_available("tf_agents") else ("tf_ensembles.bandit_env.agents",)
        for info in pkgutil.walk_packages(package.__path__, prefix=f"{name}.", onerror=lambda name: None):
            if not info.name.startswith(absent):
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


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_first_readme_example_is_short():
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) <= 15
    assert "joint_nll" in BLOCKS[0]


def test_readme_examples_run(tmp_path):
    """Each in a namespace of its own, in one process: TensorFlow takes longer to import than most take to run."""
    code = (
        "import json, sys\nfor block in json.load(sys.stdin): exec(compile(block, 'README', 'exec'), {})\nprint('all')"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, input=json.dumps(BLOCKS))
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.endswith("all\n")
    plain, prior, both = (float(value) for value in re.findall(r"10 labels: ([\d.]+)", result.stdout))
    assert plain > 3 * prior
    assert prior > both
    # What the text says that it prints; machines may differ in the last digits of a step.
    said = re.search(r"It prints ([\d.]+), ([\d.]+) and ([\d.]+),", (ROOT / "README.md").read_text())
    np.testing.assert_allclose([plain, prior, both], [float(value) for value in said.groups()], rtol=0.2)


def test_readme_commands_exist():
    from tf_ensembles.benchmarks.commands import main as cli

    for name in re.findall(r"tf-ensembles ([a-z0-9-]+)", (ROOT / "README.md").read_text()):
        assert name in cli.COMMANDS


def test_nothing_names_a_place_on_some_machine():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in tracked:
        path = ROOT / name
        if path.is_file() and path.suffix in (
            ".py",
            ".md",
            ".cfg",
            ".toml",
            ".yml",
            ".yaml",
            ".csv",
            ".txt",
            ".jsonl",
            "",
        ):
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not re.search(r"/(root|home|work)/[a-z.]", text), name
