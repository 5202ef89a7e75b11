"""The fronts of sub-packages: names on first use, and without TensorFlow where NumPy is enough."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

from tests.needs import needs, needs_checkout

ROOT = pathlib.Path(__file__).parent.parent.parent
FRONTS = ["tf_ensembles.metrics", "tf_ensembles.linear", "tf_ensembles.testbed", "tf_ensembles.advice"]
FRONTS += [pytest.param("bandit_env", marks=needs("tf_agents"))]


def _for_type_checkers(package):
    """Returns what the block for type checkers imports: from each name to its module."""
    tree = ast.parse(pathlib.Path(package.__file__).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: node.module for node in imports for alias in node.names}


@pytest.mark.parametrize("name", FRONTS)
def test_type_checkers_see_the_names_that_are_there(name):
    package = importlib.import_module(name)
    seen = _for_type_checkers(package)
    assert sorted(seen) == sorted(package.__all__)
    for attribute, module in seen.items():
        assert getattr(package, attribute) is getattr(importlib.import_module(module), attribute)
        assert attribute in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


WITHOUT = """
import sys, types
sys.path.insert(0, {root!r})
package = types.ModuleType("tf_ensembles")  # stands for the package, whatever its own front imports
package.__path__ = [{root!r} + "/tf_ensembles"]
sys.modules.update({{"tf_ensembles": package, "tensorflow": None, "keras": None}})
import numpy as np
from tf_ensembles import advice, draws, linear, machine, metrics, testbed
from tf_ensembles.metrics import by_size
random = np.random.default_rng(0)
logits, labels = random.normal(size=(40, 3, 2)), random.integers(0, 2, 40)
for function in (metrics.joint_nll, metrics.dyadic_nll, metrics.marginal_nll, metrics.ece, metrics.brier):
    function(logits, labels)
metrics.uncertainty(logits)
by_size.score_sizes(np.moveaxis(logits, 1, 0), labels)
problem = testbed.make_problem(2, 10, 0.1)
testbed.evaluate(testbed.uniform_agent(problem.train, problem.prior_knowledge), problem, num_batches=5)
linear.LinearAgent, linear.Perturbation, draws.Purpose.PRIOR, machine.usable_cores()
"""


@needs_checkout
def test_numpy_is_enough_for_functions_and_testbed():
    result = subprocess.run([sys.executable, "-c", WITHOUT.format(root=str(ROOT))], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
