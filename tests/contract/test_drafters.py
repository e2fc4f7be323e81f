"""The contract of every drafter: its draft changes the number of rounds and nothing else.

The promises are in `jspec.testing.check_drafter`, which is for other people's drafters too.
"""

import pytest
import quick
import tiny
from contract.methods import (
    DRAFTERS,
    IN_MERGE,
    IN_MERGE_TOO,
    OF_A_RULE_OF_THEIR_OWN,
    OF_NO_DRAFT,
    ON_A_TRANSFORMER,
    QUICK,
)

import jspec
from jspec.round import request
from jspec.testing import PrefixLM, check_drafter
from jspec.testing.subject import Subject, pad_prompts
from jspec.testing.watch import WatchedModel


@pytest.fixture(autouse=True, scope="module")
def _small_pieces():
    """Prompts are read in up to four pieces; some rows end before others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "chunk_of", lambda batch, capacity: 4)
        yield


@pytest.fixture(scope="module")
def _plain_program(_small_pieces):
    """Compiled once for all of them: plain decoding, which every drafter is compared with."""
    model = PrefixLM()
    Subject(WatchedModel(model), model.init(), *pad_prompts(None, model), 40).plain()


@pytest.mark.usefixtures("_plain_program")
@pytest.mark.parametrize("name", quick.only(DRAFTERS, *QUICK))
def test_a_drafter_keeps_its_promises(name):
    check(name, in_merge=name in IN_MERGE)


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_MERGE_TOO)
def test_a_merge_keeps_them_too(name):
    """None of the drafter's nodes keeps its number there."""
    drafter, params = DRAFTERS[name]
    both = jspec.merge(jspec.PromptLookup(num_speculative_tokens=2, whole=False), drafter)
    check_drafter(both, (None, params), in_merge=False)


def check(name, in_merge):
    drafter, params = DRAFTERS[name]
    report = check_drafter(drafter, params, in_merge=in_merge)
    skipped = [line for line in report.skipped if not line.startswith("inside jspec.merge")]
    # Only draws with a verifier of their own, and no draft at all, may leave anything unchecked.
    known = ("under the drafter's own verifier", "a greedy call without a key")
    if name in OF_NO_DRAFT:
        known = ("end tokens and limits inside an accepted path: no drafted token was accepted",)
    assert all(line.startswith(known) for line in skipped), str(report)
    assert bool(skipped) == (name in (*OF_A_RULE_OF_THEIR_OWN, *OF_NO_DRAFT)), str(report)


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_A_TRANSFORMER)
def test_a_drafter_keeps_them_on_a_transformer(name):
    """Makes a model whose logits are sums of floats, and whose states a head can read."""
    drafter, params = DRAFTERS[name]
    model = tiny.model(context=48)
    thorough = name == ON_A_TRANSFORMER[0]  # more programs of the engine, whatever is drafted
    check_drafter(
        drafter, params, model=model, model_params=tiny.params(model), in_merge=False,
        thorough=thorough,
    )  # fmt: skip


def test_every_public_drafter_is_under_contract():
    protocol = ("init", "prefill", "draft", "update")
    public = {
        kind
        for kind in (getattr(jspec, name) for name in jspec.__all__)
        if isinstance(kind, type) and all(hasattr(kind, part) for part in protocol)
    }
    under_contract = set(map(type, DRAFTERS.drafters()))
    left_out = public - under_contract - {jspec.Drafter, jspec.Autoregressive}
    assert not left_out, "a new method joins by a line in tests/contract/methods.py"
