"""The examples in docstrings, which pytest looks for in the library alone."""

import doctest
import importlib
import pkgutil

import pytest

import graphs

MODULES = [module.name for module in pkgutil.walk_packages(graphs.__path__, "graphs.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_all_modules_are_found():
    assert {"graphs.generators", "graphs.datasets.planetoid", "graphs.networkx"} <= set(MODULES)
