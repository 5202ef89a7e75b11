"""All tests of this folder, and of those in it, need TF-Agents."""

import pathlib

from tests.needs import needs

FOLDER = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(needs("tf_agents"))
