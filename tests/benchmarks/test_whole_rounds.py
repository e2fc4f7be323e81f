"""The round that passes the limit counts whole, and decoding as many tokens cuts no round."""

import jax.numpy as jnp
import numpy as np
import pytest

import jspec
from benchmarks.texts import join, pad
from benchmarks.whole_rounds import DEEPEST, Decoding
from jspec.testing import PrefixLM

PROMPTS = pad([[1, 2, 1, 2, 1], [3, 4, 3]])
NEW_TOKENS = 6


@pytest.fixture(scope="module")
def one() -> Decoding:
    """Rounds of 3 and of 5 tokens, in turn: the second passes the limit of 6."""
    model = PrefixLM(context=None)
    plain = jspec.decode(
        model, model.init(), PROMPTS.tokens, PROMPTS.lengths, max_new_tokens=NEW_TOKENS + DEEPEST
    )
    drafter = jspec.Scripted(model.vocab_size, jspec.tree.chain(4))
    script = jspec.Script(plain.tokens, jnp.array([2, 4]))
    return Decoding(model, model.init(), drafter, script, NEW_TOKENS)


def test_the_round_that_passes_the_limit_counts_whole(one):
    counted = one.count(PROMPTS)
    assert counted.rounds.tolist() == [2, 2]
    assert counted.tokens.tolist() == [8, 8]
    assert counted.num_draft_tokens.tolist() == [8, 8]
    assert np.flatnonzero(counted.histogram[0]).tolist() == [2, 4]  # 3 and 5 tokens
    # Each row has its own limit.
    assert one.count(PROMPTS, np.array([3, 4])).tokens.tolist() == [3, 8]
    # Decoding as many tokens has as many rounds.
    result = one.run(PROMPTS, counted.tokens)
    assert np.array_equal(result.stats.num_rounds, counted.rounds)
    assert np.array_equal(result.lengths, counted.tokens)
    # A limit in between cuts the round, which is why rounds are counted beyond it.
    cut = one.run(PROMPTS, np.array([NEW_TOKENS, NEW_TOKENS]))
    assert cut.stats.num_rounds.tolist() == [2, 2]
    assert cut.lengths.tolist() == [6, 6]


def test_batches_are_joined_row_by_row():
    both = join([PROMPTS, pad([[5, 6, 7, 8, 9, 10]])])
    assert both.lengths.tolist() == [5, 3, 6]
    assert both.tokens[1].tolist() == [3, 4, 3, 0, 0, 0]
    assert both.take([2]).tokens.tolist() == [[5, 6, 7, 8, 9, 10]]
