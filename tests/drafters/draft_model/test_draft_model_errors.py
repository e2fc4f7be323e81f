"""Errors in a drafter or a call are one sentence, before anything is compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refusals
import tables

import jspec
from jspec import tree as trees
from jspec.verify import rules, schemes

SIZE = 5
MODEL = tables.Table(SIZE)
WEIGHTS = np.random.default_rng(0).normal(size=(1, SIZE, SIZE)).astype(np.float32)
PROMPT = np.array([[1, 2, 3], [2, 2, 0]])
SAMPLED = dict(sampling=jspec.Sampling(1.0), key=0)
RECURSIVE = dict(scheme=schemes.RECURSIVE)
CHAIN = jspec.SpeculativeDecoding(MODEL, 2)


class WithoutNodes(tables.Table):
    """A model that serves as a target alone."""

    def apply(self, params, tokens, positions, mask, cache):
        return super().apply(params, tokens, positions, mask, cache)


SETTINGS = (
    dict(top_p=0.0), dict(top_p=1.5), dict(min_p=2.0), dict(temperature=float("nan")),
    dict(temperature="hot"), dict(top_k=-1), dict(top_k=1.5),
)  # fmt: skip
MAKE = [
    (lambda: jspec.SpecInfer(MODEL, ()), r"branching is \(\); give each level"),
    (lambda: jspec.RSDC(MODEL, (2, 0)), r"branching is \(2, 0\); give each level"),
    (lambda: jspec.RSDC(MODEL, [2, 2]), r"branching is \[2, 2\]; give .* in a tuple"),
    (lambda: jspec.RSDC(MODEL, 3), "branching is 3; give .* in a tuple"),
    (lambda: jspec.RSDC(MODEL, (6,)), "a node 6 children and the vocabulary has 5"),
    (lambda: jspec.RSDC(MODEL, (2.0, 1)), r"branching is \(2.0, 1\); .* of integers"),
    (lambda: jspec.SpecInfer(MODEL, (True,)), r"branching is \(True,\); .* of integers"),
    (lambda: jspec.Sequoia(MODEL, trees.Template(())), "no node below the root"),
    (lambda: jspec.SpecTr(MODEL, num_chains=6, max_depth=1), r"num_chains is 6; pass .* 1 \.\. 5"),
    (lambda: jspec.RSDS(MODEL, beam=6, max_depth=1), r"beam is 6; pass .* 1 \.\. 5, the vocab"),
    (lambda: jspec.RSDS.published(MODEL, beam=6), r"beam is 6; pass an integer in 1 \.\. 5"),
    (lambda: jspec.DySpec(MODEL, beam=6), r"beam is 6; pass an integer in 1 \.\. 5"),
    (lambda: jspec.DySpec(MODEL, num_speculative_tokens=7, max_depth=2, beam=2),
     r"tokens is 7; pass an integer in 1 \.\. 6, what a beam of 2 over 2 levels offers"),
    (lambda: jspec.SpeculativeDecoding(None, 2), "draft model is None; pass a jspec.CausalLM"),
    (lambda: jspec.RSDC(tables.Table, (2,)), "draft model is <class .*; pass a jspec.CausalLM"),
    (lambda: jspec.SpeculativeDecoding(WithoutNodes(SIZE), 2),
     r"whose apply does not take \(params, tokens, positions, mask, memory, nodes\)"),
    (lambda: jspec.DySpec(MODEL, beam=4, order="depth"), "order is 'depth'; pass a function"),
    # By the sizes of subtrees: what was drawn below a child would say when it is judged.
    (lambda: jspec.DySpec(MODEL, beam=4, order=trees.heavy_paths, **RECURSIVE),
     "and the scheme's rule goes by the order in which they were drawn; take jspec.tree."),
    # Both would let what was drawn decide what is there: biased by tens of standard deviations.
    (lambda: jspec.DySpec(MODEL, beam=4, scheme=schemes.K_SEQ), "K-SEQ accepts by how many"),
    *((lambda scheme=scheme: jspec.DySpec(MODEL, beam=4, scheme=scheme, min_gain=0.1),
       "min_gain is 0.1") for scheme in (schemes.RECURSIVE, schemes.MULTI_ROUND)),
    *((lambda bad=bad: jspec.SpecTr(MODEL, sampling=jspec.Sampling(**bad)),
       "the drafter's sampling: .*; pass") for bad in SETTINGS),
    (lambda: jspec.CoupledTree.published(MODEL), "CoupledTree is jspec's own and has no pub"),
    (lambda: jspec.CoupledTree(MODEL, beam=4, **RECURSIVE),
     "only the coupled rule allows; leave out scheme, or take DySpec"),
]  # fmt: skip


def test_drafters_that_cannot_be_are_refused():
    refusals.check(MAKE)
    for scheme in (schemes.COUPLED, schemes.GUMBEL_LIST):  # under which growth may stop
        assert jspec.DySpec(MODEL, beam=4, scheme=scheme, min_gain=0.1).min_gain


def decode(drafter, drafter_params=WEIGHTS, **options):
    return jspec.decode(
        MODEL, WEIGHTS, PROMPT, drafter=drafter, drafter_params=drafter_params, max_new_tokens=4,
        **options,
    )  # fmt: skip


def decode_on(drafter):
    """A second call, which the first one left room for."""
    ask = dict(drafter=drafter, drafter_params=WEIGHTS)
    first = jspec.prefill(MODEL, WEIGHTS, PROMPT, max_new_tokens=3, capacity=16, **ask)
    while not first.done.all():
        first = jspec.step(MODEL, WEIGHTS, first, **ask)
    return jspec.prefill(MODEL, WEIGHTS, PROMPT[:, :1], max_new_tokens=2, earlier=first, **ask)


@pytest.fixture(scope="module")
def plain():
    return np.asarray(jspec.decode(MODEL, WEIGHTS, PROMPT, max_new_tokens=4).tokens)


PAPERS = {
    jspec.SpeculativeDecoding: schemes.RECURSIVE, jspec.SpecTr: schemes.K_SEQ,
    jspec.SpecInfer: schemes.MULTI_ROUND, jspec.RSDC: schemes.RECURSIVE,
    jspec.RSDS: schemes.RECURSIVE, jspec.Sequoia: schemes.RECURSIVE,
    jspec.DySpec: schemes.RECURSIVE,
}  # fmt: skip


@pytest.mark.parametrize("method", PAPERS)
def test_a_papers_name_has_the_papers_algorithm(method):
    """By `published`; the constructor's own default is the coupled scheme."""
    options = dict(template=trees.chain(2)) if method is jspec.Sequoia else {}
    model, other = tables.Table(100), schemes.MULTI_ROUND
    drafter = method.published(model, **options)
    assert drafter.scheme == PAPERS[method] and drafter.verifier == PAPERS[method].verifier
    if method is jspec.DySpec:
        assert drafter.num_speculative_tokens == 64 and drafter.sampling == jspec.Sampling(0.6)
    assert method(model, **options).scheme == schemes.COUPLED
    assert method.published(model, scheme=other, **options).scheme == other


def state(memory):
    """The state of an earlier call, as far as it is looked at."""
    start = CHAIN.init(2, 16, None)
    return start.replace(memory=memory)


COUPLED_TREE = jspec.CoupledTree(MODEL, num_speculative_tokens=3, max_depth=2, beam=2)


def of_context(size, tokens=2):
    return jspec.SpeculativeDecoding(tables.Table(SIZE, context=size), tokens)


def drawing(**sampling):
    return jspec.SpeculativeDecoding(MODEL, 2, sampling=jspec.Sampling(**sampling), **RECURSIVE)


LOOKUP, BOTH = jspec.PromptLookup(2), (WEIGHTS, None)
OF_COUPLED = "rule is {} and the drafter's draws are lossless under coupled alone"
CALLS = [
    # The longest row is 3 + 4 tokens; then 3 + 3, and 1 + 2 that come later.
    (lambda: decode(of_context(6)), "context is 6 and a row may hold 7 tokens; shorten the prompt"),
    (lambda: decode(jspec.merge(LOOKUP, of_context(6)), (None, WEIGHTS)), "a row may hold 7 tok"),
    (lambda: decode_on(of_context(6)), "the drafter's context is 6 and a row may hold 9 tokens"),
    (lambda: decode(CHAIN, WEIGHTS[..., :4]),
     "drafter_params score 4 tokens and the draft model has 5; pass the weights"),
    (lambda: decode(jspec.SpeculativeDecoding(tables.Table(3), 2)),
     r"has 3 tokens and the target 5, 2 apart; take two models of one tokenizer$"),
    (lambda: decode(CHAIN, None), "drafter_params is None and a draft model needs its weights"),
    (lambda: decode(jspec.SpeculativeDecoding(MODEL, 2, scheme=rules.recursive)),
     "pass a draw with its verifier, such as jspec.schemes.RECURSIVE"),
    (lambda: decode(jspec.SpeculativeDecoding(MODEL, 2, sampling=0.6)),
     "the drafter's sampling is 0.6; pass jspec.Sampling of plain numbers"),
    (lambda: decode(drawing(temperature=jnp.ones(2))),
     "the drafter's sampling: temperature is Array.*; pass a number x with 0 <= x"),
    (lambda: decode(drawing(temperature=-1.0)), "temperature is -1.0; pass a number x with 0 <= x"),
    (lambda: decode(drawing(temperature=0.0), **SAMPLED), "the draft's temperature is 0"),
    (lambda: decode(jspec.with_verifier(CHAIN, rules.recursive), **SAMPLED),
     OF_COUPLED.format("recursive")),
    # The noise that drew the children would draw what follows them.
    (lambda: decode(jspec.with_verifier(jspec.merge(CHAIN, LOOKUP), rules.deterministic_proposal),
                    BOTH, **SAMPLED), OF_COUPLED.format("deterministic_proposal")),
    (lambda: decode(jspec.with_verifier(jspec.RSDC(MODEL, (2, 2), **RECURSIVE), rules.multi_round),
                    **SAMPLED),
     "rule is multi_round and the drafter's draws are lossless under recursive alone, or"),
    (lambda: decode(jspec.RSDC(MODEL, (2, 2), scheme=schemes.BLOCK), **SAMPLED),
     "block verification judges chains and a node of this tree has up to 2 children"),
    (lambda: decode(jspec.merge(drawing(), LOOKUP), BOTH, **SAMPLED),
     "draws have a verifier of their own; .* give this one scheme=jspec.schemes.COUPLED"),
    (lambda: decode(CHAIN, drafter_state=jnp.zeros((SIZE, 8), jnp.int32)),
     "drafter_state is a .* and a draft model keeps a DraftModelState; pass the state of a call"),
    (lambda: decode(COUPLED_TREE, drafter_state=state(())),
     "the memory of another method, a tuple, and this one keeps a InverseTemperature"),
    (lambda: decode(CHAIN, drafter_state=state(COUPLED_TREE.init_memory(2, None))),
     "the memory of another method, a InverseTemperature, and this one keeps a tuple"),
]  # fmt: skip


def test_calls_that_cannot_be_are_refused():
    refusals.check(CALLS)


def test_a_vocabulary_that_is_padded_is_said_to_be():
    drafter = jspec.SpeculativeDecoding(tables.Table(32_000), 2)
    seen = jspec.Output(jax.ShapeDtypeStruct((1, 3, 32_064), jnp.float32), None)
    chunk = jspec.PromptChunk.whole(PROMPT[:1], np.array([3]), seen)
    with pytest.raises(
        ValueError,
        match=r"has 32000 tokens and the target 32064, 64 .*PaddedVocabulary\(draft, 32064\)",
    ):
        drafter.prefill(None, drafter.init(1, 16, None), chunk)


def test_a_learnt_memory_serves_a_batch_of_another_size():
    earlier = COUPLED_TREE.init(3, 16, None)
    again = COUPLED_TREE.init(2, 24, earlier)
    assert jax.tree.all(jax.tree.map(lambda leaf: leaf.shape[0] == 2, again.memory))


def test_width_and_depth_are_keywords():
    for drafter in (jspec.RSDS, jspec.SpecTr):
        with pytest.raises(TypeError, match="positional argument"):
            drafter(MODEL, 2, 2)
