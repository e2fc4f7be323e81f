"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import jspec
import jspec.models

MODULES = ["jspec"] + [
    module.name
    for module in pkgutil.walk_packages(jspec.__path__, "jspec.")
    if not module.name.endswith("__main__")
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Finder(doctest.DocTestFinder):
    def _from_module(self, module, object):
        # What the import hook of `conftest` wrapped is of the module that it wraps.
        return super()._from_module(module, inspect.unwrap(object))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name):
    module = importlib.import_module(name)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    report: list[str] = []
    for test in Finder(exclude_empty=True).find(module, name):
        runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def test_the_public_examples_are_found():
    """Or this file would hold nothing: functions behind the hook, methods and classes count."""
    finder = Finder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name), name)]
    assert sum(bool(test.examples) for test in found) >= 1
