"""Greedy calls of drafters whose scheme draws at random: they need no key, and no setting."""

import jax
import numpy as np
import pytest
import quick

import jspec
from jspec.testing import PrefixLM
from jspec.verify import schemes

MODEL = PrefixLM(vocab_size=9)
TARGET, DRAFT = MODEL.init(0), MODEL.init(1)
ASK = dict(prompt=[[1, 2, 3], [2, 4, 0]], prompt_lengths=[3, 2], max_new_tokens=5)
SAMPLED = jspec.Sampling(temperature=0.6)
DRAFTERS = (
    jspec.RSDS.published(MODEL, beam=2, max_depth=2),
    jspec.SpeculativeDecoding(MODEL, 2, scheme=schemes.RECURSIVE, sampling=SAMPLED),
    jspec.SpeculativeDecoding(MODEL, 2, scheme=schemes.BLOCK),
    jspec.SpeculativeDecoding(MODEL, 2, scheme=schemes.GUMBEL_LIST),
    jspec.SpecTr(MODEL, num_chains=2, max_depth=2, scheme=schemes.K_SEQ),
    jspec.SpecInfer(MODEL, (2, 1), scheme=schemes.MULTI_ROUND),
    jspec.DySpec.published(MODEL, num_speculative_tokens=4),
    jspec.RSDS(MODEL, beam=2, max_depth=2, scheme=schemes.TRAVERSAL),
)


@pytest.mark.parametrize("drafter", quick.only(DRAFTERS, DRAFTERS[1]))
def test_its_tokens_are_those_of_plain_greedy_decoding(drafter):
    want = jspec.decode(MODEL, TARGET, **ASK).tokens
    got = jspec.decode(MODEL, TARGET, drafter=drafter, drafter_params=DRAFT, **ASK)
    np.testing.assert_array_equal(got.tokens, want)


def test_a_call_whose_rows_are_all_greedy_needs_no_key():
    def call(drafter, sampling, key=None):
        jax.eval_shape(
            lambda params, draft: jspec.decode(
                MODEL, params, drafter=drafter, drafter_params=draft, sampling=sampling, key=key,
                **ASK,
            ),
            TARGET, DRAFT,
        )  # fmt: skip

    call(DRAFTERS[0], None, 3)
    call(DRAFTERS[1], jspec.Sampling(temperature=np.zeros(2)))
    with pytest.raises(jspec.InputError, match="needs a key and key is None"):
        call(DRAFTERS[1], jspec.Sampling(np.array([0.0, 0.1])))
