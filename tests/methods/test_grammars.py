"""Tokens forced by a grammar, with any method."""

import jax
import numpy as np
import tables

import jspec

MODEL = jspec.testing.PrefixLM()
TARGET = jspec.models.Loaded(MODEL, MODEL.init())
LETTERS = [bytes([97 + token]) for token in range(22)] + [None]


def test_it_joins_every_drafter_that_can_be_merged():
    draft, weights = tables.Table(23), np.zeros((1, 23, 23), np.float32)
    members = jspec.PromptLookup(num_speculative_tokens=3), jspec.Suffix(capacity=64)
    inside = jspec.merge(*members, num_speculative_tokens=4)
    for drafter, params, policy in (
        (members[0], None, jspec.FixedWidth()),
        (jspec.SpeculativeDecoding(draft, 3), weights, jspec.FixedWidth()),
        (inside, None, jspec.Adaptive((0, 4))),
    ):
        llm = jspec.LLM(TARGET, drafter=drafter, drafter_params=params, policy=policy)
        llm = llm.with_jump_forward()
        *_, forced = llm.drafter.drafters
        assert isinstance(forced, jspec.JumpForward)
        # Longer chains than the policy's widest tree would not be verified.
        assert policy.widths == () or forced.num_speculative_tokens == policy.widths[-1]
        form = jspec.grammar.choices(["abc"], LETTERS)
        jax.eval_shape(  # traces a round, and compiles nothing
            lambda llm=llm, form=form: jspec.prefill(
                TARGET.model, TARGET.params, [[1, 2]], drafter=llm.drafter, max_new_tokens=8,
                drafter_params=llm.drafter_params, stopping=jspec.Stopping(eos=22), processors=form,
            )
        )  # fmt: skip
    own = jspec.SpeculativeDecoding(draft, 3, scheme=jspec.schemes.RECURSIVE)
    for drafter in (own, jspec.Autoregressive()):
        llm = jspec.LLM(TARGET, drafter=drafter)
        assert llm.with_jump_forward() is llm
