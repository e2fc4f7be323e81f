"""Tokens forced by a grammar, with any method."""

import jax
import numpy as np
import pytest
import tables

import jspec
from jspec.methods.grammars import with_jump_forward

LETTERS = [bytes([97 + token]) for token in range(22)] + [None]


@pytest.mark.slow
def test_it_joins_every_drafter_that_can_be_merged():
    model = tables.Table(23, context=64)
    weights = np.zeros((1, 23, 23), np.float32)
    draft = tables.Table(23)
    curve = jspec.CostCurve.of({1: 1.0, 8: 1.5})
    members = jspec.PromptLookup(num_speculative_tokens=3), jspec.Suffix(capacity=64)
    inside = jspec.merge(*members, num_speculative_tokens=4)
    given = [
        (members[0], None),
        (inside, None),
        (jspec.SpeculativeDecoding(draft, 3), weights),
        (jspec.adaptive(members[0], (0, 3)), jspec.AdaptiveParams(None, curve)),
        (jspec.adaptive(inside, (0, 4)), jspec.AdaptiveParams(None, curve)),
    ]
    for drafter, params in given:
        joined, weights_of = with_jump_forward(drafter, params)
        merged = getattr(joined, "drafter", joined).drafters
        assert any(isinstance(member, jspec.JumpForward) for member in merged)
        jax.eval_shape(  # traces a round, and compiles nothing
            lambda joined=joined, weights_of=weights_of: jspec.prefill(
                model, weights, [[1, 2]], drafter=joined, drafter_params=weights_of,
                max_new_tokens=8, eos=22, processors=jspec.grammar.choices(["abc"], LETTERS),
            )
        )  # fmt: skip
    own = jspec.SpeculativeDecoding(draft, 3, scheme=jspec.schemes.RECURSIVE)
    for drafter in (own, jspec.Autoregressive()):
        assert with_jump_forward(drafter, None) == (drafter, None)
