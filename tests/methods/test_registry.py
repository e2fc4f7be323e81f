"""The table of methods against the drafters that it builds, so that a new entry needs no more."""

import doctest
import importlib
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import tiny
from contract import methods as contract

import jspec
from jspec._validate.errors import InputError
from jspec._validate.kinds import Integer, Number, Several
from jspec.methods import METHODS
from jspec.methods.method import Models
from jspec.models import load
from jspec.models.load import Loaded

WORDS = SimpleNamespace(get_vocab=lambda: {str(i): i for i in range(tiny.VOCAB)})


@pytest.fixture(scope="module")
def models():
    made = (tiny.model(), tiny.draft())
    target, draft = (Loaded(model, tiny.params(model), WORDS, (), None) for model in made)
    return Models(target, replace(draft, mask_token=tiny.VOCAB - 1))


@pytest.fixture(scope="module")
def bundled():
    return Models(load("jspec-7m"), load("jspec-800k"))


@pytest.fixture(scope="module")
def datastore(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "store.bin"
    jspec.datastore.save(
        jspec.datastore.build([1, 2, 3, 1, 2, 4] * 9, tiny.VOCAB), path, WORDS.get_vocab()
    )
    return str(path)


OWN = [
    (method.name, option)
    for method in METHODS.values()
    for option in method.options
    if isinstance(option.kind, Integer | Number) and "+" not in method.name
    if math.isfinite(option.kind.low)
]
NEEDED = {
    "max_match": {"min_match": 1},
    "offset": {"factor": 2000.0},
    "factor": {"offset": 1.0},
    "token_budget": {"widths": (0, 1)},
}
"""Options that have to be given for a lowest value to make sense."""
DEFAULTED = ("num_speculative_tokens", "resampled_tokens", "max_depth", "beam")
OPTIONS = {name: {option.name for option in method.options} for name, method in METHODS.items()}


def least(kind):
    low = max(kind.low, -1000)
    return low + 1e-3 if isinstance(kind, Number) and kind.above_low else low


@pytest.mark.parametrize(("name", "option"), OWN, ids=lambda value: getattr(value, "name", value))
def test_the_least_value_is_the_drafters_own_least(models, bundled, datastore, name, option):
    """A drafter checks the bounds in its annotations, and takes the bounds themselves."""
    method = METHODS[name]
    given = bundled if method.needs_training else models
    needed = NEEDED.get(option.name, {}) | ({"datastore": datastore} if name == "rest" else {})
    if option.name in ("max_depth", "beam") and "num_speculative_tokens" in OPTIONS[name]:
        needed = needed | {"num_speculative_tokens": 1}  # more do not fit into so small a tree
    method.make(given, **needed, **{option.name: least(option.kind)})
    if option.name in ("factor", "draft_temperature"):
        return  # these bounds are where a number stops to make sense, not where it is refused
    below = option.kind.low - (1 if isinstance(option.kind, Integer) else 1e-3)
    if below == 0 and option.name in DEFAULTED:
        below = -1  # 0 stands for a default where the device chooses one
    with pytest.raises(InputError):
        method.make(given, **needed, **{option.name: below})


def test_a_kind_reads_again_what_it_has_read():
    for method in METHODS.values():
        for option in method.options:
            kind = option.kind
            value = least(kind) if isinstance(kind, Integer | Number) else None
            if isinstance(kind, Several):
                value = (least(kind.kind),)
            if value is not None:
                assert kind.read(kind.read(value)) == kind.read(value) == value


def test_every_drafter_of_the_table_keeps_the_contract(models, bundled, datastore):
    """A drafter that is built by name stands in tests/contract/methods.py too."""

    def kinds(drafter):
        inner = getattr(drafter, "drafters", getattr(drafter, "drafter", None) or ())
        inner = inner if isinstance(inner, tuple) else (inner,)
        return {type(drafter)}.union(*map(kinds, inner))

    kept = set().union(*(kinds(drafter) for drafter, _ in contract.DRAFTERS.values()))
    for method in METHODS.values():
        options = {"datastore": datastore} if method.needs_options else {}
        built = method.make(bundled if method.needs_training else models, **options)
        assert kinds(built.drafter) <= kept | {jspec.Autoregressive}, method.name


def test_names_are_those_of_the_classes(models, bundled, datastore):
    """File = name = class, up to case, underscores and a last "Drafter"; a mixture joins names."""
    for name, method in METHODS.items():
        if "+" in name or name == "auto":
            continue
        options = {"datastore": datastore} if method.needs_options else {}
        built = method.make(bundled if method.needs_training else models, **options)
        kind = type(built.drafter)
        assert kind.__name__.removesuffix("Drafter").lower() == name.replace("_", "")
        assert kind.__module__.rpartition(".")[2] in (name, name.rstrip("0123456789"))


@pytest.mark.parametrize("name", ["", ".method"])
def test_the_examples_run(name):
    module = importlib.import_module(f"jspec.methods{name}")
    found = doctest.testmod(module)
    assert found.attempted and not found.failed
