import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import rounds
import tiny

import jspec
from jspec.drafters.retrieval.token_recycling import PUBLISHED

LIMIT = 30


def test_rounds_and_matrix_are_the_published_algorithms_cold_and_hot(target, next_logits):
    drafter = jspec.TokenRecycling(tiny.VOCAB)
    state = matrix = None
    for row, length in enumerate(tiny.LENGTHS):
        prompt = tiny.PROMPTS[row, :length]
        result = jspec.decode(
            *target, prompt[None], drafter=drafter, drafter_state=state, max_new_tokens=LIMIT
        )
        tokens, steps, matrix, histogram = oracle.token_recycling(
            next_logits, prompt, LIMIT, matrix=matrix
        )
        state = result.drafter_state
        assert result.tokens[0].tolist() == tokens
        assert int(result.stats.num_rounds[0]) == steps
        assert result.stats.acceptance_histogram[0].tolist() == histogram[1:]
        np.testing.assert_array_equal(state.lines[0], matrix)
        assert result.stats.num_draft_tokens[0] <= 80 * steps


def test_rounds_with_lines_of_pairs_are_those_of_a_dictionary_of_pairs(target, next_logits):
    paths = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    drafter = jspec.TokenRecycling(tiny.VOCAB, jspec.Template(paths), k=3, pairs=2**12)
    state, matrix, pairs, others = None, None, {}, 0
    for row, length in enumerate(tiny.LENGTHS):
        prompt = tiny.PROMPTS[row, :length]
        result = jspec.decode(
            *target, prompt[None], drafter=drafter, drafter_state=state, max_new_tokens=LIMIT
        )
        asked = dict(k=3, template=list(paths), matrix=matrix)
        *_, alone = oracle.token_recycling(next_logits, prompt, LIMIT, **asked)
        tokens, _, matrix, histogram = oracle.token_recycling(
            next_logits, prompt, LIMIT, pairs=pairs, **asked
        )
        others += alone != histogram
        state = result.drafter_state
        assert result.tokens[0].tolist() == tokens
        assert result.stats.acceptance_histogram[0].tolist() == histogram[1:]
        np.testing.assert_array_equal(state.lines[0, : tiny.VOCAB], matrix)
        written = np.asarray(state.keys[0]) > 0
        assert sorted(state.lines[0, tiny.VOCAB :][written].tolist()) == sorted(pairs.values())
    assert others  # without pairs the rounds are other ones


def test_a_pair_that_takes_the_line_of_another_leaves_it_the_tokens_own():
    drafter = jspec.TokenRecycling(6, jspec.tree.chain(1), k=1, pairs=1)
    state, recycle = drafter.init(1, 0, None), jax.jit(drafter.recycle)
    for token, best in ((2, 5), (3, 4)):  # behind token 1
        given = jnp.full((1, 1), 1), jnp.full((1, 1), token)
        logits = jnp.where(jnp.arange(6) == best, 9.0, 0.0)[None, None]
        state = recycle(state, *given, logits, jnp.ones((1, 1), bool))
    state = state.replace(lines=state.lines.at[0, 2:4].set(0), before=jnp.array([1]))
    for root, drafted in ((2, 0), (3, 4)):
        tree, _ = jax.jit(drafter.draft)(None, state, rounds.greedy([root]))
        assert tree.tokens[0, 1] == drafted


def test_an_end_token_leaves_the_last_round_out_and_a_prompt_may_fill_it(target, next_logits):
    prompt = tiny.PROMPTS[0]
    plain = oracle.greedy(next_logits, prompt.tolist(), LIMIT)
    end = plain[9]
    drafter = jspec.TokenRecycling(tiny.VOCAB, update_on_prefill=True)
    result = jspec.decode(
        *target, prompt[None], drafter=drafter, max_new_tokens=LIMIT,
        stopping=jspec.Stopping(eos=end),
    )  # fmt: skip
    tokens, steps, matrix, _ = oracle.token_recycling(
        next_logits, prompt, LIMIT, eos=(end,), update_on_prefill=True
    )
    assert result.tokens[0, : len(tokens)].tolist() == tokens
    assert int(result.stats.num_rounds[0]) == steps
    np.testing.assert_array_equal(result.drafter_state.lines[0], matrix)


def test_a_batch_shares_one_matrix_and_the_last_row_wins():
    drafter = jspec.TokenRecycling(6, jspec.tree.chain(1), k=2)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 6)), jnp.float32)
    tokens = jnp.array([[1, 2, 1], [2, 5, 2]])
    live = jnp.array([[True, True, True], [True, True, False]])
    state = jax.jit(drafter.recycle)(drafter.init(2, 0, None), None, tokens, logits, live)
    best = np.argsort(-np.asarray(logits), axis=-1)[..., :2]
    want = np.zeros((6, 2), int)
    want[1], want[2], want[5] = best[0, 2], best[1, 0], best[1, 1]
    np.testing.assert_array_equal(state.lines[0], want)

    own = jspec.TokenRecycling(6, jspec.tree.chain(1), k=2, per_row=True)
    state = jax.jit(own.recycle)(own.init(2, 0, None), None, tokens, logits, live)
    np.testing.assert_array_equal(state.lines[0, 2], best[0, 1])
    np.testing.assert_array_equal(state.lines[1, 2], best[1, 0])


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"drafts rank 7.*ranks 0 .. 3; pass k=8"):
        jspec.TokenRecycling(100, PUBLISHED, k=4)
    with pytest.raises(ValueError, match=r"k is 0; pass an integer in 1 .. 100"):
        jspec.TokenRecycling(100, k=0)
    with pytest.raises(ValueError, match=r"pairs is 1000; pass a power of two such as 1024, or 0"):
        jspec.TokenRecycling(100, pairs=1000)
    other = jspec.TokenRecycling(100, pairs=4).init(1, 8, None)
    with pytest.raises(ValueError, match=r"\(1, 104, 8\) of int32 with 4 pairs.*with 0 pairs"):
        jspec.TokenRecycling(100).init(1, 8, other)
