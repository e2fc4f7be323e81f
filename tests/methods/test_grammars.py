"""Tokens forced by a grammar, with any method."""

import jax
import numpy as np
import pytest
import tables

import jspec

TARGET = jspec.models.Loaded(jspec.testing.PrefixLM(), ())
LETTERS = [bytes([97 + token]) for token in range(22)] + [None]


@pytest.mark.slow
def test_it_joins_every_drafter_that_can_be_merged():
    model = tables.Table(23, context=64)
    weights = np.zeros((1, 23, 23), np.float32)
    draft = tables.Table(23)
    members = jspec.PromptLookup(num_speculative_tokens=3), jspec.Suffix(capacity=64)
    inside = jspec.merge(*members, num_speculative_tokens=4)
    given = [
        (members[0], None, ()),
        (inside, None, ()),
        (jspec.SpeculativeDecoding(draft, 3), weights, ()),
        (members[0], None, (0, 3)),
        (inside, None, (0, 4)),
    ]
    for drafter, params, widths in given:
        policy = jspec.Adaptive(widths) if widths else jspec.FixedWidth()
        llm = jspec.LLM(TARGET, drafter=drafter, drafter_params=params, policy=policy)
        llm = llm.with_jump_forward()
        joined, weights_of = llm.drafter, llm.drafter_params
        assert any(isinstance(member, jspec.JumpForward) for member in joined.drafters)
        jax.eval_shape(  # traces a round, and compiles nothing
            lambda joined=joined, weights_of=weights_of: jspec.prefill(
                model, weights, [[1, 2]], drafter=joined, drafter_params=weights_of,
                max_new_tokens=8,
                stopping=jspec.Stopping(eos=22), processors=jspec.grammar.choices(["abc"], LETTERS),
            )
        )  # fmt: skip
    own = jspec.SpeculativeDecoding(draft, 3, scheme=jspec.schemes.RECURSIVE)
    for drafter in (own, jspec.Autoregressive()):
        llm = jspec.LLM(TARGET, drafter=drafter)
        assert llm.with_jump_forward() is llm
