"""The addresses that a release shows, which the workflow that builds it knows; everything else is in `setup.cfg`."""

import os

import setuptools


def project_urls() -> dict[str, str]:
    """Returns the addresses of the repository that a workflow builds a release from; none elsewhere."""
    server, repository = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    if not server or not repository:
        return {}
    home = f"{server}/{repository}"
    return {
        "Source": home,
        "Documentation": f"{home}/blob/main/docs/index.md",
        "Changelog": f"{home}/blob/main/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }


if __name__ == "__main__":
    setuptools.setup(project_urls=project_urls())
