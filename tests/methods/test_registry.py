"""The table of methods against the drafters that it builds."""

import math

import pytest
from contract import methods as contract

import jspec
from jspec._validate.errors import InputError
from jspec._validate.kinds import Integer, Number
from jspec.methods import METHODS
from jspec.methods.method import Models

pytestmark = pytest.mark.usefixtures("heads_once")


@pytest.fixture(scope="module")
def datastore(tmp_path_factory, target):
    path = tmp_path_factory.mktemp("store") / "store.bin"
    store = jspec.datastore.build([1, 2, 3, 1, 2, 4] * 9, target.model.vocab_size)
    jspec.datastore.save(store, path, target.tokenizer.get_vocab())
    return str(path)


@pytest.fixture(scope="module")
def make(target, draft, bundled, block_head, datastore):
    """Builds a method for models that suit it, as a member of a merge is."""

    def build(method, **options):
        if method.needs_options:
            options = {"datastore": datastore} | options
        if "block" in method.name.split("+"):  # none is bundled
            options = {"head": block_head} | options
        models = Models(bundled) if method.needs_training else Models(target, draft)
        return method.make(models, **options)

    return build


OWN = [
    (method, option)
    for method in METHODS.values()
    for option in method.options
    if isinstance(option.kind, Integer | Number) and "+" not in method.name
    if math.isfinite(option.kind.low)
]
NEEDED = {"max_match": {"min_match": 1}, "offset": {"factor": 2000.0}, "factor": {"offset": 1.0}}
"""Options that have to be given for a lowest value to make sense."""
DEFAULTED = ("num_speculative_tokens", "resampled_tokens", "max_depth", "beam")


def least(kind):
    low = max(kind.low, -1000)
    return low + 1e-3 if isinstance(kind, Number) and kind.above_low else low


def test_the_least_value_is_the_drafters_own_least(make):
    """A drafter checks the bounds in its annotations, and takes the bounds themselves."""
    for method, option in OWN:
        given = NEEDED.get(option.name, {})
        budgeted = "num_speculative_tokens" in method.read_options()
        if option.name in ("max_depth", "beam") and budgeted:
            given = given | {"num_speculative_tokens": 1}  # more do not fit into so small a tree
        make(method, **given, **{option.name: least(option.kind)})
        if option.name in ("factor", "draft_temperature"):
            continue  # these bounds are where a number stops to make sense, not where it is refused
        below = option.kind.low - (1 if isinstance(option.kind, Integer) else 1e-3)
        if below == 0 and option.name in DEFAULTED:
            below = -1  # 0 stands for a default where the device chooses one
        print(f"{method.name} is to refuse {option.name}={below}")
        with pytest.raises(InputError):
            make(method, **given, **{option.name: below})


def test_every_drafter_of_the_table_keeps_the_contract(make):
    """A drafter that is built by name is in tests/contract/methods.py too."""

    def kinds(drafter):
        inner = getattr(drafter, "drafters", getattr(drafter, "drafter", None) or ())
        inner = inner if isinstance(inner, tuple) else (inner,)
        return {type(drafter)}.union(*map(kinds, inner))

    kept = set().union(*(kinds(drafter) for drafter, _ in contract.DRAFTERS.values()))
    for method in METHODS.values():
        built = make(method)
        assert kinds(built.drafter) <= kept | {jspec.Autoregressive}, method.name
