"""The fronts of sub-packages: names on first use, without TensorFlow where NumPy is enough, and former names."""

import ast
import importlib
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.needs import needs, needs_checkout
from tf_ensembles import linear, testbed
from tf_ensembles.linear import problems as linear_problems
from tf_ensembles.linear import theory

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


@pytest.mark.parametrize(
    ("package", "former", "now"),
    [
        (linear, "ensemble_law", "ensemble_distribution"),
        (linear, "law_from_sums", "distribution_from_sums"),
        (linear, "minimise", "minimize"),
        (testbed, "InputLaw", "InputDistribution"),
    ],
)
def test_former_names_work_and_say_what_replaced_them(package, former, now):
    message = f"{package.__name__}.{former} is now {package.__name__}.{now}"
    with pytest.warns(DeprecationWarning, match=message) as caught:
        assert getattr(package, former) is getattr(package, now)
    assert caught[0].filename == __file__
    assert former not in package.__all__


@needs("tensorflow_probability")
def test_former_methods_and_arguments_of_linear_work_and_say_what_replaced_them():
    problems = linear_problems.sample_problems(linear_problems.make_setting(2, 10), 3, seed=0)
    now = problems.distribution("ensemble-p")
    with pytest.warns(DeprecationWarning, match=r"Problems\.law is now Problems\.distribution"):
        former = problems.law("ensemble-p")
    np.testing.assert_array_equal(former.cov, now.cov)
    with pytest.warns(DeprecationWarning, match="unit_law is now unit"):
        assert theory.tuned_prior_variance(problems.posterior(), unit_law=now) > 0
    with pytest.warns(DeprecationWarning, match="law is now distribution"):
        value = theory.finite_ensemble_kl(problems.posterior(), law=now, num_members=9)
    np.testing.assert_array_equal(value, theory.finite_ensemble_kl(problems.posterior(), now, 9))


def test_a_former_field_of_a_diagnosis_works_and_says_what_replaced_it():
    from tf_ensembles.advice import BootstrapDiagnosis

    diagnosis = BootstrapDiagnosis("not tried", "none", float("nan"))
    with pytest.warns(DeprecationWarning, match=r"BootstrapDiagnosis\.bootstrap"):
        assert diagnosis.law == "none"
