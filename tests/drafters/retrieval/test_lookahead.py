import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
import rounds
import tiny

import jspec

LIMIT = 30


def held(pool):
    """{first token: tails, oldest first} of one pool [V, G, L]."""
    return {
        first: [tuple(tail) for tail in line[::-1] if tail[0] != -1]
        for first, line in enumerate(np.asarray(pool).tolist())
        if line[0][0] != -1
    }


@pytest.mark.parametrize(("window", "ngram", "guesses", "from_prompt"), [
    (4, 2, 3, True), pytest.param(7, 5, 7, False, marks=pytest.mark.slow),
    pytest.param(1, 2, 1, False, marks=pytest.mark.slow),
])  # fmt: skip
def test_rounds_and_pool_are_the_published_algorithms_cold_and_hot(
    target, next_logits, window, ngram, guesses, from_prompt
):
    drafter = jspec.Lookahead(
        tiny.VOCAB, window=window, ngram=ngram, guesses=guesses, pool_from_prompt=from_prompt
    )
    state = pool = None
    accepted = 0
    for row, length in enumerate(tiny.LENGTHS):
        prompt = tiny.PROMPTS[row, :length]
        result = jspec.decode(
            *target, tiny.PROMPTS[[row]], [length], drafter=drafter, drafter_state=state,
            max_new_tokens=LIMIT,
        )  # fmt: skip
        first = drafter.first_window(
            jnp.zeros((ngram - 1, window), jnp.int32), jnp.asarray(prompt),
            *(jnp.int32(0), jnp.asarray(length)),
        )  # fmt: skip
        assert set(np.asarray(first).ravel().tolist()) <= set(prompt.tolist())
        tokens, histogram, pool = oracle.lookahead(
            next_logits, prompt, LIMIT, np.asarray(first).tolist(), ngram, guesses, pool=pool,
            pool_from_prompt=from_prompt,
        )  # fmt: skip
        state = result.drafter_state
        assert result.tokens[0].tolist() == tokens
        assert result.stats.acceptance_histogram[0].tolist() == histogram[1:]
        assert held(state.pool[0]) == pool
        accepted += int(result.stats.num_accepted_tokens[0])
    assert accepted > 0


def test_a_batch_shares_one_pool_or_has_its_own():
    first = jnp.array([[1, 1, 2], [1, 3, 2]])
    tails = jnp.array([[[4], [5], [6]], [[4], [7], [8]]])
    live = jnp.array([[True, True, True], [True, True, False]])
    shared = jspec.Lookahead(9, window=1, ngram=2, guesses=2)
    pool = shared.insert_ngrams(shared.init(2, 0, None).pool, first, tails, live)
    assert held(pool[0]) == {1: [(5,), (4,)], 2: [(6,)], 3: [(7,)]}
    own = jspec.Lookahead(9, window=1, ngram=2, guesses=2, per_row=True)
    pool = own.insert_ngrams(own.init(2, 0, None).pool, first, tails, live)
    assert held(pool[0]) == {1: [(4,), (5,)], 2: [(6,)]}
    assert held(pool[1]) == {1: [(4,)], 3: [(7,)]}


def test_a_pool_of_another_shape_is_refused():
    state = jspec.Lookahead(9, window=2, ngram=3, guesses=2).init(1, 4, None)
    with pytest.raises(ValueError, match=r"pool of shape \(1, 9, 2, 2\).*\(1, 9, 2, 3\) of int32"):
        jspec.Lookahead(9, window=2, ngram=4, guesses=2).init(1, 4, state)


def test_trees_have_a_bound():
    with pytest.raises(ValueError, match=r"\(N - 1\)\(W \+ G\) = 4098 tokens; stay within 4096"):
        jspec.Lookahead(9, window=2000, ngram=3, guesses=49)

    with pytest.raises(ValueError, match=r"a tree of 299 levels.*; stay within 256"):
        jspec.Lookahead(9, window=300, ngram=2, guesses=1)


def test_all_of_a_full_pool_is_drafted():
    """The shares of its oldest would be less than float32 can hold."""
    look = jspec.Lookahead(300, window=1, ngram=2, guesses=200)
    state = look.init(1, 8, None)
    state = state.replace(pool=state.pool.at[0, 3, :, 0].set(jnp.arange(200)))
    tree, _ = jax.jit(look.draft)(None, state, rounds.greedy([3], 4))
    assert set(tree.tokens[0, 1:][tree.valid[0, 1:]].tolist()) == set(range(200))
