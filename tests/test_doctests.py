"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil
from importlib.util import find_spec

import pytest

import jspec
import jspec.models

MODULES = ["jspec"] + [
    module.name
    for module in pkgutil.walk_packages(jspec.__path__, "jspec.")
    if not module.name.endswith("__main__")
    and not (  # they refuse to be imported without their libraries
        module.name.startswith("jspec.integrations.")
        and not find_spec(module.name.rpartition(".")[2])
    )
]
# What compiles for a second or more; other tests call the same functions quickly.
DEAR = {
    f"jspec.{name}"
    for name in (
        "costs.measuring costs.metrics decoding.engine "
        "decoding.programs drafters.draft_head.eagle "
        "drafters.draft_head.lyanna drafters.draft_model.acceptance_vector "
        "drafters.jump_forward drafters.memory_file models.function models.heads.loading "
        "models.heads.store policies.fixed_width processors.log_probabilities processors.logits "
        "round sampling testing.recurrent_lm types verify.functions verify.rules"
    ).split()
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Finder(doctest.DocTestFinder):
    def _from_module(self, module, object):
        # What the import hook of `conftest` wrapped is of the module that it wraps.
        return super()._from_module(module, inspect.unwrap(object))


def check(names):
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    report: list[str] = []
    for name in names:
        for test in Finder(exclude_empty=True).find(importlib.import_module(name), name):
            runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)


def of(name: str) -> str:
    """The package of a module: `jspec` itself, or a folder or file directly in it."""
    return ".".join(name.split(".")[:2])


@pytest.mark.parametrize("package", sorted({of(name) for name in MODULES}))
def test_the_examples_of_a_package(package):
    check(name for name in MODULES if of(name) == package and name not in DEAR)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DEAR & {*MODULES}))
def test_the_examples_of_a_module_that_compile_for_long(name):
    check([name])


def test_the_public_examples_are_found():
    """Or this file would hold nothing: functions behind the hook, methods and classes count."""
    finder = Finder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name), name)]
    assert sum(bool(test.examples) for test in found) >= 150
