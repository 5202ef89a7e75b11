"""Placeholder."""

import setuptools

setuptools.setup()
