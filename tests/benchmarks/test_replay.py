"""A replayed text has the rounds of the decode that wrote it."""

import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import jspec
from benchmarks.recycling.replay import Replay
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import DEEPEST, Decoding
from jspec.drafters.draft_head.block import BlockDrafter
from jspec.training.distributions import observe

WANTED = np.array([9, 16, 12])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rounds_are_those_of_decoding(temperature):
    target = tiny.model()
    head = tiny.block()
    model, params = target.clone(taps=head.config.taps), tiny.params(target)
    variables = tiny.variables(head)
    drafter = BlockDrafter(head, num_speculative_tokens=6, beam=3, num_candidates=8)
    prompts = Prompts(tiny.PROMPTS, tiny.LENGTHS)
    request = dict(
        sampling=jspec.Sampling(temperature), key=3, row_ids=np.array([4, 9, 2], np.int32)
    )
    real = Decoding(model, params, drafter, variables, 16).count(prompts, WANTED, **request)
    size = tiny.PROMPTS.shape[1] + 16 + DEEPEST
    text = np.zeros((3, size), np.int32)
    for row, length in enumerate(tiny.LENGTHS):
        text[row, :length] = tiny.PROMPTS[row, :length]
        text[row, length : length + len(real.texts[row])] = real.texts[row][: size - length]
    known = {
        "tokens": jnp.asarray(text),
        "hidden": observe(model, params, jnp.asarray(text), 0).hidden,
    }
    again = Decoding(Replay(tiny.VOCAB), known, drafter, variables, 16)
    found = again.count(prompts, WANTED, **request)
    np.testing.assert_array_equal(found.texts, real.texts)
    np.testing.assert_array_equal(found.histogram, real.histogram)
    assert real.histogram[:, 1:].any(), "something was accepted"
