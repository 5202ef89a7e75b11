"""All tests of this folder need TF-Agents."""

import pathlib

from tests.needs import needs

FOLDER = pathlib.Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent == FOLDER:
            item.add_marker(needs("tf_agents"))
