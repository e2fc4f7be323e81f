"""`drafter_state`: one shape in every call, eager and under transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import quick
import tiny
from contract.methods import DRAFTERS, call_of

import jspec
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=tiny.VOCAB)
PARAMS = MODEL.init()
QUICK = (
    *("suffix", "merge", "adaptive", "speculative_decoding_published", "token_recycling_per_row"),
    *("lookahead", "spine", "rest"),
)
OF_SIX_ROWS = "suffix_of_rollouts", "scripted"


@pytest.mark.parametrize("name", quick.only([*DRAFTERS, "adaptive"], *QUICK))
def test_every_drafters_state_has_one_shape_under_jaxs_strict_modes(name):
    drafting = call_of(name)
    weights, policy = drafting.pop("drafter_params"), drafting.get("policy", jspec.FixedWidth())
    rows = 6 if name in OF_SIX_ROWS else 2
    empty = jax.eval_shape(
        lambda: (jspec.memory_file.empty(drafting["drafter"], rows), policy.init(rows, 8, None))
    )

    def call(params, prompt, weights, known):
        result = jspec.decode(
            MODEL, params, prompt, **drafting, drafter_params=weights, drafter_state=known[0],
            policy_state=known[1], max_new_tokens=5, sampling=jspec.Sampling(0.7), key=0,
        )  # fmt: skip
        return result.drafter_state, result.policy_state

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        after = jax.eval_shape(call, PARAMS, np.ones((rows, 9), int), weights, empty)
    assert jax.tree.map(jax.typeof, after) == jax.tree.map(jax.typeof, empty)


def test_a_loop_traces_once_and_scan_and_compiled_steps_carry_the_state():
    drafter = jspec.Suffix(num_speculative_tokens=3, capacity=32, max_match=4, max_depth=3)
    prompts = np.random.default_rng(0).integers(0, tiny.VOCAB, (3, 2, 7))
    traces = []

    def call(known, prompt):
        traces.append(jnp.shape(prompt))
        result = jspec.decode(
            MODEL, PARAMS, prompt, drafter=drafter, drafter_state=known, max_new_tokens=6
        )
        return result.drafter_state, result.tokens

    empty = jspec.memory_file.empty(drafter, 2)
    known, want = call(empty, prompts[0])
    del traces[:]
    step = jax.jit(call).lower(known, prompts[0]).compile()
    _, tokens = step(empty, prompts[0])
    np.testing.assert_array_equal(tokens, want)
    for prompt in prompts:
        known, _ = step(known, prompt)
    assert len(traces) == 1
    jax.eval_shape(lambda known, prompts: jax.lax.scan(call, known, prompts), known, prompts)
    # Another length of prompts is another program of the same state.
    longer = jax.eval_shape(call, known, np.ones((2, 30), int))[0]
    assert jax.tree.map(jnp.shape, longer) == jax.tree.map(jnp.shape, known)
