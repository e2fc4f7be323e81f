"""Lyanna's chain, trees and second trees: against the oracle, and against the training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import refusals
import rounds
import tiny
from oracle import lyanna as oracle

import jspec
from jspec import tree as trees
from jspec.drafters.draft_head.lyanna import Lyanna
from jspec.drafters.draft_head.lyanna_resampling import ChainCache, Fused, Merged, Separate
from jspec.drafters.draft_head.lyanna_tree import ChainScorer, token_info_tree
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead, collapse, table_bytes
from jspec.training.distributions import observe
from jspec.training.unroll import Unrolled

LEVELS, BATCH = 3, 2


@pytest.fixture(scope="module", params=quick.only([0, 9], 9), ids=["dense", "hot"])
def head(request):
    """(head, variables, the oracle's token info)."""
    head = tiny.lyanna(hot_tokens=request.param)
    variables = tiny.variables(head)
    hot = None
    if request.param:
        hot = np.array([2, 3, 5, 7, 11, 13, 17, 19, 22])
        variables["hot"] = {"info": {"ids": jnp.asarray(hot)}}
    info, embed = variables["params"]["info"], variables["target"]["embed"]

    def of(token):
        return oracle.token_info(
            token, embed, info["down"], info["up"], info["scale"], eps=1e-6, hot=hot
        )

    return head, variables, of


@pytest.fixture(scope="module")
def logits():
    draws = np.random.default_rng(0).normal(size=(BATCH, LEVELS, tiny.VOCAB)) * 2
    return jnp.asarray(draws, jnp.float32)


ROOTS = 3, 8
FRAME = rounds.greedy(ROOTS, 4)


def same(found, wanted):
    assert found.keys() == dict(wanted).keys()
    for path, joint in wanted:
        assert found[path] == pytest.approx(joint, rel=2e-5)


@pytest.mark.parametrize("budget", quick.only([36, 15, 11, 3], 15, 3))
def test_the_tree_is_that_of_algorithm_1(head, logits, budget):
    module, variables, info = head
    first = jnp.zeros(BATCH, jnp.int32)
    scorer = ChainScorer(module, variables, logits, first, FRAME)
    tree = jax.jit(lambda: token_info_tree(scorer, LEVELS, 4, budget))()
    for row, root in enumerate(ROOTS):
        whole = oracle.listed(oracle.build_subtree(np.asarray(logits[row]), root, 4, info))
        assert len(whole) == 36  # k + (N - 1) k^2
        same(rounds.drafted(tree, row), oracle.prune(whole, budget))


@pytest.mark.parametrize("threshold", [0, 1])
def test_the_second_tree_is_that_of_algorithm_2(head, logits, threshold):
    module, variables, info = head

    def grown(logits, first, depth, nodes):
        scorer = ChainScorer(module, variables, logits, first, FRAME)
        return token_info_tree(scorer, depth, 4, nodes)

    fused = Fused(num_speculative_tokens=6, threshold=threshold)
    second = jax.jit(lambda leftover: fused.second(leftover, grown))
    for used in (1, 2, 3):
        leftover = ChainCache(logits, jnp.full(BATCH, used), jnp.zeros(BATCH, bool))
        assert (leftover.num_reusable == LEVELS - (used - 1) - 1).all()
        tree = second(leftover)
        for row, root in enumerate(ROOTS):
            remaining = oracle.reusable(np.asarray(logits[row]), used - 1)
            again = oracle.resample(remaining, root, 4, info, threshold)
            same(rounds.drafted(tree, row), oracle.prune(oracle.listed(again), 6))


def propose(head, variables, resampling, leftover, state, at, nodes=7):
    drafter = Lyanna(head, num_speculative_tokens=nodes, beam=3, resampling=resampling)
    return jax.jit(drafter.draft)(variables, replace(state, memory=leftover), at)


@pytest.fixture(scope="module")
def begun():
    """(head, variables, state after the prompt, the first round)."""
    module = tiny.lyanna()
    variables = tiny.variables(module)
    drafter = Lyanna(module, num_speculative_tokens=7, beam=3)
    target = tiny.model()
    state = jspec.prefill(
        target, tiny.params(target), tiny.PROMPTS, tiny.LENGTHS, drafter=drafter,
        drafter_params=variables, max_new_tokens=16,
    )  # fmt: skip
    return module, variables, state.drafter_state, jspec.round.frame(state)


@pytest.mark.slow
def test_fusion_is_the_best_of_both_trees(begun):
    module, variables, state, at = begun
    levels = np.random.default_rng(1).normal(size=(3, LEVELS, tiny.VOCAB)) * 2
    left = ChainCache(jnp.asarray(levels, jnp.float32), jnp.array([1, 2, 3]), jnp.zeros(3, bool))
    fresh, _ = propose(module, variables, None, left, state, at)
    larger, _ = propose(module, variables, None, left, state, at, nodes=7 + 4)
    fused, _ = propose(module, variables, Fused(num_speculative_tokens=4), left, state, at)
    # Nothing fresh counts for rows that verify what is left alone; the third has nothing left.
    alone, kept = propose(module, variables, Separate(num_speculative_tokens=4), left, state, at)
    np.testing.assert_array_equal(kept.resampled, [True, True, False])
    merged, _ = propose(module, variables, Merged(num_speculative_tokens=4), left, state, at)
    for row in range(3):
        second = {} if row == 2 else rounds.drafted(alone, row)
        assert len(second) == (0 if row == 2 else min(4, 3 if row == 1 else 4))
        # A path of both counts as much as the likelier of them says.
        joined = rounds.drafted(larger, row)
        for path, joint in second.items():
            joined[path] = max(joint, joined.get(path, 0.0))
        same(rounds.drafted(fused, row), oracle.prune(list(joined.items()), 7 + 4))
        # As published nothing gives way: all fresh nodes, and all of the second tree.
        assert set(rounds.drafted(merged, row)) == {*rounds.drafted(fresh, row), *second}
    assert rounds.drafted(alone, 2) == pytest.approx(rounds.drafted(fresh, 2))
    np.testing.assert_array_equal(trees.depths(fused) <= LEVELS, True)


def test_a_chain_is_spent_after_its_second_tree():
    spent = ChainCache.init(3, LEVELS, tiny.VOCAB)
    assert (spent.num_reusable == 0).all()
    left = replace(spent, resampled=jnp.array([True, False, False]))

    counts = jnp.array([1, 1, 3])
    np.testing.assert_array_equal(left.decide(counts).num_reusable, [0, 2, 0])


def test_the_published_method_verifies_second_trees_on_top_of_fresh_ones(head):
    module = head[0]
    found = Lyanna.published(module, max_depth=2)
    assert found == Lyanna(module, 11, 2, 4, Merged(), 1.0)
    assert Lyanna.published(module, resampling=None).resampling is None


def test_the_chain_is_the_one_that_training_unrolls(begun):
    """States, positions and masks of drafting and training are the same, or training is in vain."""
    module, variables, state, at = begun
    target = tiny.model()
    drafter = Lyanna(module, num_speculative_tokens=7, beam=3)
    chain = jax.jit(drafter.chain)(variables, state, at)
    tokens = jnp.asarray(tiny.PROMPTS)

    @jax.jit
    def unrolled(params, variables):
        states = observe(target, params, tokens, 0).hidden
        every = jnp.broadcast_to(jnp.arange(tokens.shape[1] - 1), tokens[:, 1:].shape)
        steps = Unrolled(target, module, LEVELS).predictions(variables, states, tokens, every)
        return jnp.stack([step.hidden for step in steps], axis=1)

    steps = unrolled(tiny.params(target), variables)
    for row, length in enumerate(tiny.LENGTHS):
        want = steps[row, :, length - 2]
        np.testing.assert_allclose(chain[row], want, rtol=2e-4, atol=2e-4)


def test_a_chain_follows_the_accepted_text(begun):
    """After rounds of decoding, the head's cache is what it is when the text is a prompt."""
    module, variables, _, _ = begun
    drafter = Lyanna(module, num_speculative_tokens=7, beam=3)
    target = tiny.model()
    call = dict(drafter=drafter, drafter_params=variables, max_new_tokens=16)
    weights = tiny.params(target)
    state = jspec.prefill(target, weights, tiny.PROMPTS, tiny.LENGTHS, **call)
    for _ in range(3):
        state = jspec.step(target, weights, state, drafter=drafter, drafter_params=variables)
    lengths = tiny.LENGTHS + np.asarray(state.lengths)
    texts = np.zeros((3, lengths.max()), np.int32)
    for row, length in enumerate(tiny.LENGTHS):
        emitted = state.tokens[row, : state.lengths[row]]
        texts[row, : lengths[row]] = [*tiny.PROMPTS[row, :length], *emitted]
    again = jspec.prefill(target, weights, texts, lengths, **call).drafter_state
    held = state.drafter_state
    np.testing.assert_allclose(held.hidden, again.hidden, rtol=2e-4, atol=2e-4)
    np.testing.assert_array_equal(held.cache.lengths, lengths - 1)
    np.testing.assert_array_equal(again.cache.lengths, lengths - 1)


def test_misfits_are_refused():
    head, params = tiny.lyanna(), tiny.variables(tiny.lyanna())

    def decode(vocab_size, drafter_params):
        model = tiny.model(vocab_size=vocab_size)
        call = model, tiny.params(model), tiny.PROMPTS, tiny.LENGTHS
        jspec.decode(*call, drafter=Lyanna(head), drafter_params=drafter_params)

    refusals.check([
        (lambda: Lyanna(head, beam=24), r"beam is 24; pass .* 1 \.\. 23, the vocabulary"),
        (lambda: Lyanna(head, resampling=True), "resampling is True"),
        (lambda: decode(24, params), "the draft head has 23 tokens and the target 24"),
        (lambda: decode(23, None), "drafter_params is None"),
    ])  # fmt: skip


VOCAB = 12


def test_token_info_is_that_of_the_head_factored_and_collapsed():
    """`LyannaHead.inform` from W1 W2, from the table and from its factors, some or all hot."""
    for hot in [(), (1, 2, 5, 8, 11)]:
        head = LyannaHead(LyannaConfig(VOCAB, 8, 12, 1, 2, 1, 4, 32, rank=3, hot_tokens=len(hot)))
        one, inform = jnp.zeros((1, 1), jnp.int32), jax.jit(head.inform)
        inputs = jnp.zeros((1, 1, 8)), one, one, one[..., None] == 0
        fresh = jax.eval_shape(head.init, jax.random.key(0), *inputs)
        rng = np.random.default_rng(len(hot))
        variables = jax.tree.map(
            lambda x, rng=rng: rng.normal(size=x.shape).astype(np.float32), fresh
        )
        if hot:
            variables["hot"]["info"]["ids"] = jnp.asarray(hot, jnp.int32)
        logits = jnp.asarray(rng.normal(size=(1, VOCAB, VOCAB)), jnp.float32)
        info, embed = variables["params"]["info"], variables["target"]["embed"]
        weights = (embed, info["down"], info["up"], info["scale"], 1e-6, hot or None)
        expected = [logits[0, token] + oracle.token_info(token, *weights) for token in range(VOCAB)]
        whole, narrow = collapse(head, variables), collapse(head, variables, max_bytes=0)
        assert "rows" in whole["table"]["info"] and "codes" in narrow["table"]["info"]
        for given in (variables, whole, narrow, collapse(head, narrow)):
            found = inform(given, logits, jnp.arange(VOCAB)[None])[0]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        # In fewer bits each entry is off by at most half a step: of its row, or of its own size.
        largest = np.abs(np.array(expected) - np.asarray(logits[0])).max(-1, keepdims=True)
        for dtype, error in (("int8", largest / 127 / 2), ("float16", largest * 2.0**-11)):
            table = collapse(head, variables, dtype)
            assert table["table"]["info"]["rows"].dtype == dtype
            gap = np.abs(inform(table, logits, jnp.arange(VOCAB)[None])[0] - np.array(expected))
            assert (gap <= 1.001 * error + 1e-5).all() and gap.max() > 1e-5


def test_a_table_has_at_most_the_bytes_that_are_allowed():
    config = LyannaConfig(VOCAB, 8, 12, 1, 2, 1, 4, 32, rank=3, hot_tokens=4)
    assert [table_bytes(config, dtype) for dtype in ("float32", "float16", "int8")] == [64, 32, 16]
    head = LyannaHead(config)
    one = jnp.zeros((1, 1), jnp.int32)
    inputs = jnp.zeros((1, 1, 8)), one, one, one[..., None] == 0
    fresh = jax.eval_shape(head.init, jax.random.key(0), *inputs)
    variables = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), fresh)
    assert "rows" in collapse(head, variables, "float16", 32)["table"]["info"]
    assert "codes" in collapse(head, variables, "float16", 31)["table"]["info"]
    with pytest.raises(ValueError, match="max_bytes"):
        collapse(head, variables, "float16", -1)
