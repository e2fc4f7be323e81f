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
SCHEMES = (schemes.RECURSIVE, schemes.BLOCK, schemes.GUMBEL_LIST)


@pytest.mark.parametrize("scheme", quick.only(SCHEMES, SCHEMES[0]))
def test_its_tokens_are_those_of_plain_greedy_decoding_without_a_key(scheme):
    drafter = jspec.SpeculativeDecoding(MODEL, 2, scheme=scheme, sampling=jspec.Sampling(0.6))
    ask = dict(drafter=drafter, drafter_params=DRAFT, **ASK)
    want = jspec.decode(MODEL, TARGET, **ASK).tokens
    np.testing.assert_array_equal(jspec.decode(MODEL, TARGET, **ask).tokens, want)

    def call(temperature, key=None):
        sampling = jspec.Sampling(np.array(temperature))
        jax.eval_shape(lambda: jspec.decode(MODEL, TARGET, sampling=sampling, key=key, **ask))

    call([0.0, 0.0])
    call([0.0, 0.0], 3)
    with pytest.raises(jspec.InputError, match="needs a key and key is None"):
        call([0.0, 0.1])
