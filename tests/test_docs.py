"""The documentation: tutorials run, commands and modules on its pages exist, the site builds, and needs no network."""

import argparse
import ast
import contextlib
import doctest
import importlib
import importlib.util
import inspect
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest

from tests.needs import needs
from tf_ensembles.benchmarks.commands import main as cli

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
# What a reader finds beside the site.
OTHERS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "benchmarks" / "results").glob("*/README.md"))]


def blocks(path, language):
    """Yields (line number, text) of the code blocks in a language."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE):
        yield path.read_text()[: match.start()].count("\n") + 1, match.group(1)


WITH_PYTHON = [path for path in PAGES if any(blocks(path, "python"))]
# These take seconds; the others train, compile and start processes for longer.
QUICK = ("architecture", "index", "keras")
# A table over five seeds of 100 epochs runs with `-m slow`; each time, one of a few epochs. (README has one of 100.)
SHORT = {"for seed in range(5):": "for seed in range(1):", "epochs=100": "epochs=5"}


def _marks(path, slow=False):
    """The marks of a page's tests."""
    agents = "tf_ensembles.bandit_env.agents import" in path.read_text()
    return [*([pytest.mark.slow] if slow else []), *([needs("tf_agents")] if agents else [])]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=_marks(path, path.stem not in QUICK)) for path in WITH_PYTHON],
)
def test_python_blocks_run(path, tmp_path, monkeypatch):
    """One after the other, in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    namespace = run_blocks(path, SHORT if path.stem == "keras" else {})
    if path.stem == "bandit":
        n, p, bp = (np.array([result.regret[-1] for result in listed]) for listed in namespace["results"].values())
        # On each of five seeds, with margins of about half of what was measured.
        assert (n > 3.0 * p).all()
        assert (p > 1.2 * bp).all()
    if path.stem == "deep_sea":
        found = [int(np.sum(run.result().of(0).mark == 0)) for run in namespace["runs"].values()]
        assert found[0] < 5 < found[1]


def run_blocks(path, changes=None):
    """Runs the Python blocks of a page and returns their namespace."""
    namespace = {"__name__": "tutorial"}
    for line, text in blocks(path, "python"):
        for old, new in (changes or {}).items():
            text = text.replace(old, new)
        # Line numbers of tracebacks are those of the page.
        exec(compile("\n" * line + text, str(path), "exec"), namespace)
    return namespace


def assert_four_are_in_order(nll, num_seeds):
    """One model, a plain ensemble, with prior, with prior and bootstrap: each better than the one before."""
    one, plain, prior, both = (np.array(nll[name]) for name in nll)
    assert list(nll) == ["one model", "plain ensemble", "prior", "prior and bootstrap"]
    assert len(one) == len(plain) == len(prior) == len(both) == num_seeds
    # On every seed, with margins of about half of what was measured.
    assert (one > 1.2 * plain).all()
    assert (plain > 3.0 * prior).all()
    assert both.mean() < 0.9 * prior.mean()


@pytest.mark.slow
def test_the_table_of_four_is_in_order_on_five_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_four_are_in_order(run_blocks(DOCS / "tutorials" / "keras.md")["nll"], num_seeds=5)


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def notebook_runner():
    spec = importlib.util.spec_from_file_location("execute", DOCS / "notebooks" / "execute.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs_and_say_what_pictures_show(path):
    cells = json.loads(path.read_text())["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert cells[0]["source"][0].startswith("# ")
    for cell in cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        if any("plt.show()" in line for line in cell["source"]):
            assert len(cell["metadata"]["alt"]) > 40


# Those that take less than about ten seconds run each time.
QUICK_NOTEBOOKS = ("bandit", "regression")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK_NOTEBOOKS else [pytest.mark.slow])
        for path in NOTEBOOKS
    ],
)
def test_notebooks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = notebook_runner()
    namespace, outputs = runner.run(path)
    page, pictures = runner.as_page(path, outputs)
    assert all(picture.startswith(b"\x89PNG") for picture in pictures.values())
    assert page.count("![") == len(pictures) == sum(len(found) for _, found in outputs)
    if path.stem == "regression":  # The picture on the first page.
        (gap, _), (gap_prior, data_prior) = namespace["spreads"].values()
        assert gap_prior > 3 * gap
        assert gap_prior > 3 * data_prior


def test_all_tutorials_have_python_blocks():
    assert {path.stem for path in WITH_PYTHON} >= {path.stem for path in TUTORIALS}


class Checked(ast.NodeVisitor):
    """Resolves names of ours in a program without running it, and holds keyword arguments against signatures."""

    OURS = ("tf_ensembles", "trainers", "bandit_env", "benchmarks")

    def __init__(self):
        self.names = {}
        self.calls = 0

    def visit_Import(self, node):
        for alias in node.names:
            if alias.name.split(".")[0] in self.OURS:
                self.names[alias.asname or alias.name] = importlib.import_module(alias.name)

    def visit_ImportFrom(self, node):
        if node.module.split(".")[0] in self.OURS:
            for alias in node.names:
                if importlib.util.find_spec(f"{node.module}.{alias.name}") if is_package(node.module) else False:
                    value = importlib.import_module(f"{node.module}.{alias.name}")
                else:
                    value = getattr(importlib.import_module(node.module), alias.name)
                self.names[alias.asname or alias.name] = value

    def resolve(self, node):
        if isinstance(node, ast.Attribute):
            parent = self.resolve(node.value)
            return None if parent is None else getattr(parent, node.attr)
        return self.names.get(node.id) if isinstance(node, ast.Name) else None

    def visit_Attribute(self, node):
        self.resolve(node)
        self.generic_visit(node)

    def visit_Call(self, node):
        function = self.resolve(node.func)
        if function is not None and not inspect.isbuiltin(function):  # A method of a dict has no signature to ask.
            given = [None] * len(node.args), {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(function).bind_partial(*given[0], **given[1])
            self.calls += 1
        self.generic_visit(node)


def is_package(name):
    return importlib.util.find_spec(name).submodule_search_locations is not None


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=_marks(path)) for path in WITH_PYTHON])
def test_python_blocks_call_what_there_is(path):
    """Also where they are too slow to run each time."""
    checked = Checked()
    checked.visit(ast.parse("".join(text for _, text in blocks(path, "python"))))
    assert checked.calls


def command_lines(path):
    """Yields the `tf-ensembles` command lines of a page's shell and indented blocks, as lists of words."""
    indented = "\n".join(re.findall(r"^    (tf-ensembles .*)", path.read_text(), flags=re.MULTILINE))
    for text in (*(text for _, text in blocks(path, "bash")), indented):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] == ["tf-ensembles"]:
                yield words[1:]


LINES = [(path, words) for path in [*PAGES, *OTHERS] for words in command_lines(path)]


@pytest.mark.parametrize(("path", "words"), LINES, ids=[" ".join(words) for _, words in LINES])
def test_shell_lines_are_what_the_command_takes(path, words):
    command, *arguments = words
    assert command in cli.COMMANDS
    module = importlib.import_module(f"tf_ensembles.benchmarks.commands.{command}")
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    try:
        parser.parse_args(arguments)
    except SystemExit:
        pytest.fail(f"{path.relative_to(ROOT)}: tf-ensembles {command} does not take {' '.join(arguments)}")


def test_figures_that_are_swept_exist():
    from tf_ensembles.benchmarks.commands import sweep as sweep_command

    swept = {
        name
        for _, words in LINES
        if words[:2] in (["sweep", "run"], ["sweep", "draw"])
        for name in itertools.takewhile(lambda word: not word.startswith("--"), words[2:])
    }
    assert len(swept) > 5
    for name in swept:
        assert sweep_command.load(name).presets


def test_the_shell_lines_were_found():
    assert {words[0] for _, words in LINES} >= {"sweep", "reproduce", "bandit", "export"}


@pytest.mark.parametrize("path", [*PAGES, *OTHERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_modules_that_are_named_exist(path):
    text = path.read_text()
    for name in re.findall(r"\b(?:tf_ensembles|trainers|bandit_env|benchmarks|tests|docs)/[\w./-]*\w", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"python\s+-m\s+((?:trainers|bandit_env|benchmarks)[\w.]*\w)", text):
        place = ROOT / name.replace(".", "/")
        assert place.is_dir() or place.with_suffix(".py").is_file(), name
    for name in re.findall(r"`((?:tf_ensembles|trainers|bandit_env|benchmarks)(?:\.[a-z]\w*)+)`", text):
        assert _resolves(name), name


def _resolves(name):
    """Whether a dotted name is a module of ours at its present place, or something in one."""
    parts = f"tf_ensembles.{name.removeprefix('tf_ensembles.')}".split(".")  # `trainers` is short for that.
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        if place.is_dir() or place.with_suffix(".py").is_file():
            value = importlib.import_module(".".join(parts[:count]))
            for number, part in enumerate(parts[count:], start=count + 1):
                if not hasattr(value, part):  # Such as tf_ensembles.trainers before anybody has imported it.
                    with contextlib.suppress(ImportError):
                        importlib.import_module(".".join(parts[:number]))
                if not hasattr(value, part):
                    return False
                value = getattr(value, part)
            return True
    return False


def test_every_command_is_explained():
    page = (DOCS / "command-line.md").read_text()
    assert not [name for name in cli.COMMANDS if f"`tf-ensembles {name}`" not in page]


def test_every_public_name_is_in_the_api_reference():
    import tf_ensembles as tfe

    text = "\n".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    whole_modules = re.findall(r"^::: ([\w.]+)\n    options:\n      show_root_heading: false", text, flags=re.MULTILINE)
    missing = []
    for name in tfe.__all__:
        if name.startswith("__"):
            continue
        value = getattr(tfe, name)
        home = value.__name__ if inspect.ismodule(value) else value.__module__
        if home not in whole_modules and f"::: {home}.{name}\n" not in text:
            missing.append(name)
    assert not missing


API = sorted(path for path in (DOCS / "api").glob("*.md") if any(blocks(path, "pycon")))
_EXTRA = {"linear": [needs("tensorflow_probability")]}


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem, marks=_EXTRA.get(path.stem, [])) for path in API])
def test_examples_of_the_api_reference_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(text for _, text in blocks(path, "pycon"))
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    found = []
    runner = doctest.DocTestRunner(optionflags=flags)
    runner.run(doctest.DocTestParser().get_doctest(text, {}, path.name, str(path), 0), out=found.append)
    assert runner.failures == 0, "".join(found)
    assert runner.tries > 5


def test_every_public_name_has_an_example():
    import tf_ensembles as tfe
    from tf_ensembles import advice, linear, metrics, testbed

    code = "\n".join(
        line
        for path in API
        for _, text in blocks(path, "pycon")
        for line in text.splitlines()
        if line[:3] in (">>>", "...")
    )
    names = [f"tfe.{name}" for name in tfe.__all__ if not name.startswith("__")]
    names += [f"tfe.metrics.{name}" for name in metrics.__all__]
    names += [f"tfe.testbed.{name}" for name in testbed.__all__]
    names += [f"tfe.linear.{name}" for name in linear.__all__]
    names += [f"advising.{name}" for name in advice.__all__ if name != "Advice"]  # That one is tfe.Advice, too.
    names += [f"tfe.priors.{name}" for name in ("mlp", "fourier", "conv", "Standardize")]
    assert len(names) > 70
    assert not [name for name in names if not re.search(rf"\b{re.escape(name)}\b", code)]


def test_images_have_a_text_that_says_what_they_show():
    for path in PAGES:
        for text in re.findall(r"!\[(.*?)\]\(", path.read_text(), flags=re.DOTALL):
            assert len(text) > 40, (path, text)


def test_relative_links_lead_to_files():
    """As the repository is browsed; the site's own check is below."""
    for path in PAGES:
        prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
            assert (path.parent / target).resolve().exists(), (path, target)


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="MkDocs is not installed: pip install '.[docs]'")
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "TF_ENSEMBLES_NOTEBOOKS": "no"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        text = page.read_text()
        # What a browser loads by itself; links that a reader may follow are another matter.
        loaded = re.findall(r'<(?:script|img|iframe|source)[^>]*\bsrc="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*\brel="(?:stylesheet|icon|preload)"[^>]*\bhref="([^"]+)"', text)
        loaded += re.findall(r'<link[^>]*\bhref="([^"]+)"[^>]*\brel="(?:stylesheet|icon|preload)"', text)
        assert loaded
        assert not [address for address in loaded if re.match(r"(https?:)?//", address)], page
        for address in loaded:
            assert (page.parent / address.split("?")[0].split("#")[0]).resolve().exists() or page.stem == "404", address
    found = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    for word in ("calibration", "OOD", "regression", "Thompson"):
        assert any(re.search(rf"\b{word}\b", entry["title"] + entry["text"], re.IGNORECASE) for entry in found), word
    notebooks = {path.stem for path in NOTEBOOKS}
    assert {page.stem for page in (tmp_path / "notebooks").glob("*.html")} == notebooks
    assert {path.stem for path in (tmp_path / "notebooks").glob("*.ipynb")} == notebooks
