"""JAX's debug modes find nothing in a call."""

import jax
import numpy as np

import jspec
from jspec.testing import PrefixLM

MODEL = PrefixLM(vocab_size=9)
PARAMS = MODEL.init()


def test_a_sampled_call_passes_under_jaxs_checks():
    drafter = jspec.PromptLookup(2)

    def call(params, prompt):
        return jspec.decode(
            MODEL, params, prompt, drafter=drafter, max_new_tokens=4,
            sampling=jspec.Sampling(0.7), key=0,
        ).tokens  # fmt: skip

    for mode in (jax.checking_leaks(), jax.debug_key_reuse(True)):
        with mode:
            jax.eval_shape(call, PARAMS, np.ones((2, 3), int))


def test_no_number_of_a_call_is_nan():
    with jax.debug_nans(True), jax.debug_infs(True):
        result = jspec.decode(
            MODEL, PARAMS, [[1, 2, 1], [3]], drafter=jspec.PromptLookup(2), max_new_tokens=4
        )
    assert result.lengths.tolist() == [4, 4]
